//! [`RecordedFailure`]: a permanent failure of one payload, as the record keeps it.

use serde::{Deserialize, Serialize};

use super::Timestamp;
use crate::{flawed::flawed, protocol::Fingerprint};

/// Maximum size of a failure's text in a record, in bytes. Longer texts are cut.
pub const MAX_ERROR_BYTES: usize = 4 * 1024;
/// Maximum size of an earlier failure's text, in bytes.
const MAX_EARLIER_ERROR_BYTES: usize = 200;
/// Maximum number of payloads whose failures a record keeps.
const MOST_PAYLOADS: usize = 4;
/// Begins the text of a failure that stands for older ones.
const OF_MANY: &str = "more than four payloads failed under this key, one with: ";

/// A permanent failure under a key. The failure answers every message with the same payload that was sent at or before its
/// time. If a message has no send time, only a failure of its own message id answers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedFailure {
    /// When the failure happened, or the `SentTimestamp` of its message if that is later.
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
    /// Puts this failure in front of the others. It replaces an earlier one with the same fingerprint and takes over its
    /// time if that is later, so that it also answers the earlier one's messages. The earlier one's message id is lost, so a
    /// message without a send time may run again. Up to three others stay, even if we can't compare them, because they may
    /// be for other payloads. The oldest of four then stands for all older ones: it answers every payload.
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
            } else if let Some(oldest) = all.last_mut()
                && !flawed("a fifth payload makes a failure forgotten")
            {
                oldest.at = oldest.at.max(earlier.at);
                if oldest.fingerprint.take().is_some() {
                    oldest.error.insert_str(0, OF_MANY);
                    cut(&mut oldest.error, MAX_EARLIER_ERROR_BYTES);
                }
            }
        }
        all
    }
}

fn cut(text: &mut String, bytes: usize) {
    text.truncate(text.floor_char_boundary(bytes));
}
