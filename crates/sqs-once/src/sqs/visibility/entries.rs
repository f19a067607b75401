//! The entries of a call, one per message: their ids, and which of them SQS rejected.

use aws_sdk_sqs::{error::BuildError, types::BatchResultErrorEntry};

use super::queues::CallError;
use crate::sqs::message::MessageId;

/// How many entries SQS allows in one call.
pub(super) const PER_CALL: usize = 10;

/// Makes the entries of a call. Each entry's id is its place, so that the response can name it.
pub(super) fn entries<T, E>(
    asked: &[T],
    entry: impl Fn(&T, String) -> Result<E, BuildError>,
) -> Result<Vec<E>, CallError> {
    let places = asked.iter().zip(0..);
    let entries: Result<_, _> = places
        .map(|(asked, place): (_, u32)| entry(asked, place.to_string()))
        .collect();
    entries.map_err(CallError::not_made)
}

/// Returns what the entry with this id asked for.
pub(super) fn of_entry<'a, T>(asked: &'a [T], id: &str) -> Option<&'a T> {
    asked.get(id.parse::<usize>().ok()?)
}

/// Logs a warning for each entry that SQS rejected. `becomes` says what happens to its message. Omits SQS's own text, which
/// may quote the payload or the receipt handle.
pub(super) fn warn_of_rejected<T>(
    asked: &[T],
    rejected: &[BatchResultErrorEntry],
    message_id: impl Fn(&T) -> &MessageId,
    becomes: &str,
) {
    for entry in rejected {
        let asked = of_entry(asked, entry.id());
        tracing::warn!(
            message_id = asked.map(|asked| message_id(asked).as_str()),
            code = entry.code(),
            "{becomes}"
        );
    }
}
