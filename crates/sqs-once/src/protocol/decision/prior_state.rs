//! [`PriorState`]: the history of a key, as the response to a claim shows it.

use crate::protocol::record::{AttemptEnd, ClaimRequest, Record, State, Timestamp};

/// The history of a key, as the response to a successful claim shows it.
///
/// The history decides how the claim can be undone, and which prior attempts the handler sees.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorState {
    /// The record before the claim.
    pub before: PreviousRecord,
    /// Claim time of the earliest open attempt before this claim. `None` if no attempt was open;
    /// 0 if the time is unknown.
    pub open_since: Option<Timestamp>,
    /// End of the previous attempt. `None` if the end is unknown, as after a crash.
    pub last_end: Option<AttemptEnd>,
    /// Number of earlier claims since the record was created.
    pub attempts: u64,
    /// Attempts alone without a recorded end, as counted in the record before the claim.
    pub exclusive_attempts: u64,
}

/// The record before a claim.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreviousRecord {
    /// No record existed, or only an expired one.
    Nothing,
    /// This record existed.
    Record(Box<Record>),
    /// Unknown, because the response with the replaced record was lost.
    Unknown,
}

impl PriorState {
    /// Creates the history from the response to a claim. `replaced` is the record before the claim, or `None`
    /// if that record was expired.
    #[must_use]
    pub fn over(replaced: Option<Record>) -> Self {
        let Some(record) = replaced else {
            return Self {
                before: PreviousRecord::Nothing,
                open_since: None,
                last_end: None,
                attempts: 0,
                exclusive_attempts: 0,
            };
        };
        Self {
            open_since: record.first_claimed_at,
            last_end: record.last_end,
            attempts: record.attempts,
            exclusive_attempts: record.exclusive_attempts,
            before: PreviousRecord::Record(Box::new(record)),
        }
    }

    /// Creates the history from the `record` that this claim wrote, when the response to the claim was lost.
    pub(super) fn recovered(record: &Record, request: &ClaimRequest) -> Self {
        let claimed_at = Some(request.now);
        let is_new = record.attempts == 1
            && (record.created_at, record.first_claimed_at) == (claimed_at, claimed_at)
            && record.error.is_none()
            && record.failed_message_ids.is_empty();
        Self {
            before: if is_new {
                PreviousRecord::Nothing
            } else {
                PreviousRecord::Unknown
            },
            // A failed attempt may have claimed in the same millisecond. Then the handler is told of it, even if
            // the time is that of this claim.
            open_since: (record.first_claimed_at)
                .filter(|at| *at != request.now || record.error.is_some()),
            last_end: None,
            attempts: record.attempts.saturating_sub(1),
            // The claim did not change the count.
            exclusive_attempts: record.exclusive_attempts,
        }
    }

    /// Returns how the previous attempt ended. `None` if that is unknown, as after a crash.
    pub(crate) fn end(&self) -> Option<AttemptEnd> {
        match &self.before {
            PreviousRecord::Record(record) if record.state == State::Failed => {
                Some(AttemptEnd::Permanent)
            }
            _ => self.last_end,
        }
    }

    /// Returns this history for a handler that has started. Recording its end removes the count of attempts
    /// alone, even if it had no effect.
    #[must_use]
    pub fn with_recorded_end(self) -> Self {
        Self {
            exclusive_attempts: 0,
            ..self
        }
    }

    /// Returns whether this claim set `first_claimed_at`. If so, the settlement that closes this
    /// attempt removes `first_claimed_at`.
    #[must_use]
    pub const fn is_first_open(&self) -> bool {
        self.open_since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::decision::fixtures::{EARLIER, ended, record, request};

    #[test]
    fn claim_keeps_history_of_attempts() {
        let mut before = record(&request("m-1", "p"), ended());
        before.error = Some("declined".into());
        before.failed_message_ids.insert("m-0".into());
        before.last_end = Some(AttemptEnd::Panic);
        let claimed = request("m-2", "p").record(Some(&before));
        assert_eq!(claimed.error, before.error);
        assert_eq!(claimed.failed_message_ids, before.failed_message_ids);
        assert_eq!(claimed.first_claimed_at, Some(EARLIER));
        assert_eq!(claimed.created_at, before.created_at);
        assert_eq!((claimed.attempts, claimed.last_end), (2, None));
    }
}
