//! [`rejected`]: the outcome of a claim whose handler must not run.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{Operation, Outcome};
use crate::protocol::Rejection;

/// Returns the outcome of a rejected claim. If a message from another queue completed the key, it may be another operation,
/// since two consumers may share a namespace. We count such duplicates, and log the first one in each process.
pub fn rejected(rejection: Rejection, operation: &Operation) -> Outcome {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    match rejection {
        Rejection::KeyReused => Outcome::KeyReused,
        Rejection::Duplicate {
            result,
            other_source,
            attempts,
            generation,
            age,
        } => {
            operation.meter.completed(attempts, generation, age);
            if let Some(other) = other_source {
                operation.meter.other_queue();
                if !LOGGED.swap(true, Relaxed) {
                    tracing::error!(
                        key = %operation.key,
                        queue = operation.delivery.facts().queue_name(),
                        other_queue = other,
                        "a message of another queue completed this key: if another consumer has the same IDEMPOTENCY_NAMESPACE, the messages of one of them are lost; the metric DuplicatesOfOtherQueue counts the further ones"
                    );
                }
            }
            Outcome::Duplicate(result)
        }
        Rejection::FailedBefore(error) => Outcome::FailedBefore(error),
        Rejection::Conflict { owner, until } => Outcome::Conflict {
            owner: Some(owner),
            lease_until: until,
        },
        Rejection::PayloadConflict { open_since } => Outcome::PayloadConflict { open_since },
    }
}
