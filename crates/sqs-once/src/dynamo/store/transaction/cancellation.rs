//! [`Cancelled`]: why a transaction was cancelled, from the reasons that DynamoDB returns.

use aws_sdk_dynamodb::types::{CancellationReason, TransactWriteItem};

use crate::{
    dynamo::{
        condition_failed::{ConditionFailed, FailedWrite},
        explain::without_quotes,
        store::DynamoStore,
        write::{Write, WritePlace, table},
        writes::Refused,
    },
    protocol::Key,
    store::{StoreError, Swapped},
};

/// Why a transaction was cancelled. Nothing was written.
pub(super) enum Cancelled {
    Answered(Swapped<Refused>),
    /// A retry may succeed. `None` if the reasons don't say what the contention was.
    Contended(Option<String>),
}

impl DynamoStore {
    /// Interprets the cancellation reasons. The reasons are in the order of the actions, so the first one is the record's.
    pub(super) fn cancelled(
        &self,
        key: &Key,
        writes: &[&Write<TransactWriteItem>],
        reasons: &[CancellationReason],
    ) -> Result<Cancelled, StoreError> {
        let Some((record, others)) = reasons.split_first() else {
            return Ok(Cancelled::Contended(None));
        };
        if ReasonKind::of(record) == ReasonKind::ConditionCheckFailed {
            let found = self.found(key, record.item())?;
            return Ok(Cancelled::Answered(Swapped::Found(found)));
        }
        let first = |kind| {
            let (index, reason) = reasons
                .iter()
                .enumerate()
                .find(|(_, reason)| ReasonKind::of(reason) == kind)?;
            let write = index.checked_sub(1).and_then(|n| writes.get(n));
            Some(match write {
                None => format!("{} on the record", describe(reason)),
                Some(write) => format!(
                    "{} on {}",
                    describe(reason),
                    WritePlace::of(index - 1, write)
                ),
            })
        };
        // We look for contention before failed conditions, because the other transaction may change an item
        // that a failed condition depends on. A retry gets a definite response.
        if let Some(why) = first(ReasonKind::Contended) {
            return Ok(Cancelled::Contended(Some(why)));
        }
        if let Some(why) = first(ReasonKind::Invalid) {
            return Ok(Cancelled::Answered(Swapped::Refused(Refused::Invalid(why))));
        }
        let refused: Vec<_> = (writes.iter().zip(others).enumerate())
            .filter(|(_, (_, why))| ReasonKind::of(why) == ReasonKind::ConditionCheckFailed)
            .map(|(index, (write, reason))| FailedWrite {
                index,
                label: write.label.clone(),
                table: table(&write.action).to_owned(),
                item: reason.item().cloned().filter(|item| !item.is_empty()),
            })
            .collect();
        if refused.is_empty() {
            return Ok(Cancelled::Contended(None));
        }
        let refused = Refused::Conditions(ConditionFailed::new(refused));
        Ok(Cancelled::Answered(Swapped::Refused(refused)))
    }
}

/// Kind of one cancellation reason (*Amazon DynamoDB API Reference*, "TransactWriteItems",
/// cancellation reasons).
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReasonKind {
    /// This action did not cancel the transaction.
    NotFailed,
    ConditionCheckFailed,
    /// A retry may succeed.
    Contended,
    /// A retry would fail again.
    Invalid,
}

impl ReasonKind {
    fn of(reason: &CancellationReason) -> Self {
        match reason.code() {
            None | Some("None") => Self::NotFailed,
            Some("ConditionalCheckFailed") => Self::ConditionCheckFailed,
            Some("ValidationError" | "ItemCollectionSizeLimitExceeded") => Self::Invalid,
            // These are TransactionConflict, ThrottlingError, ProvisionedThroughputExceeded, and codes that we don't know. The
            // message stays in the queue.
            Some(_) => Self::Contended,
        }
    }
}

fn describe(reason: &CancellationReason) -> String {
    let code = reason.code().unwrap_or("no code");
    match reason.message() {
        None => code.to_owned(),
        Some(message) => format!("{code}: {}", without_quotes(message)),
    }
}
