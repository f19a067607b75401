//! [`RecordedFailure`]: a permanent failure, as the record keeps it for each payload.

use serde::{Deserialize, Serialize};

use super::Timestamp;
use crate::protocol::Fingerprint;

/// Maximum size of a failure's text in a record, in bytes. Longer texts are cut.
pub const MAX_ERROR_BYTES: usize = 4 * 1024;
/// Maximum size of each text after the first, in bytes.
const MAX_EARLIER_ERROR_BYTES: usize = 200;
/// Maximum number of payloads whose failures a record keeps.
const MOST_PAYLOADS: usize = 4;

/// A permanent failure under a key. It is the answer to every message with its payload that was sent by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedFailure {
    /// The later of its own time and the `SentTimestamp` of its message.
    pub at: Timestamp,
    /// The text of the failure.
    pub error: String,
    /// The payload that failed. `None` matches every payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// The message that failed.
    pub message_id: String,
}

impl RecordedFailure {
    /// Puts this failure in front of the others. It replaces an earlier one with the same fingerprint, and answers that
    /// one's messages too. Others stay, even if they can't be compared: we don't know that they are for the same payload.
    pub(crate) fn added_to(mut self, failures: &[Self]) -> Vec<Self> {
        cut(&mut self.error, MAX_ERROR_BYTES);
        let mut all = vec![self];
        for earlier in failures {
            let newest = &mut all[0];
            if earlier.fingerprint == newest.fingerprint {
                newest.at = newest.at.max(earlier.at);
            } else if all.len() < MOST_PAYLOADS {
                let mut earlier = earlier.clone();
                cut(&mut earlier.error, MAX_EARLIER_ERROR_BYTES);
                all.push(earlier);
            }
        }
        all
    }
}

fn cut(text: &mut String, bytes: usize) {
    text.truncate(text.floor_char_boundary(bytes));
}
