//! [`Record::ended`]: the record that a worker writes when an attempt has ended.

use crate::flawed::flawed;

use super::record::{AttemptEnd, Record, RecordedFailure, Stamp, State, StoredResult, Timestamp};

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The handler succeeded.
    Completed {
        /// The handler's output.
        result: StoredResult,
        /// End of the record's retention, in seconds since the epoch.
        expires_at: u64,
    },
    /// The handler failed permanently.
    Failed {
        /// Text of the failure.
        error: String,
        /// Says whether the attempt had its effect.
        effect: Effect,
        /// When the message was sent, if that is known.
        sent_at: Option<Timestamp>,
        /// End of the record's retention, in seconds since the epoch.
        expires_at: u64,
    },
    /// The handler returned a retryable failure, panicked, or was cut off. The attempt may have had its effect.
    Open(AttemptEnd),
    /// The attempt had no effect.
    Undone {
        /// True if the handler began.
        began: bool,
    },
}

/// The effect of a permanently failed attempt, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The attempt may have had its effect.
    Possible,
    /// The attempt certainly had no effect.
    None,
    /// The called system has answered that it did nothing for this call key and never will.
    Declined,
    /// The handler wasn't called, because of earlier attempts. We know no more about their effects than before.
    NotCalled,
}

impl End {
    /// Returns the name of the write in logs and errors.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "complete",
            Self::Failed { .. } => "fail",
            Self::Open(_) => "release",
            Self::Undone { .. } => "undo",
        }
    }
}

impl Record {
    /// Returns the record after the end of the attempt that holds it. `replaced` is the record before the claim, or `None`
    /// if it had expired.
    ///
    /// | end | the record becomes | the next delivery |
    /// | --- | --- | --- |
    /// | completed | `COMPLETED`, without history | is a duplicate |
    /// | failed | `FAILED`; open attempts stay open, including this one | ends as failed before; a later message runs, and is told of them |
    /// | failed without effect | the same, but this attempt is not open | the same, but a later message is told of earlier attempts only |
    /// | failed without a call | the same, and `last_end` is that of the attempt before | the same |
    /// | declined | the same, no attempt is open, and `generation` grows | the same, but a later message is told of nothing, and has a new call key |
    /// | open | the lease ends now | is told of it |
    /// | undone | as before the claim, except for stamp, times and `attempts` | is told of attempts before this one only |
    ///
    /// A message is *later* if it was sent after the failure, or has another payload. Without a send time, it is later if it
    /// has another message id.
    ///
    /// The lease ends at the worker's current time and not at 0, because the quarantine starts there. No record is deleted.
    /// If there was none before the claim, the claim's record stays, with an ended lease and no open attempt.
    #[must_use]
    pub fn ended(&self, replaced: Option<&Self>, end: &End, version: u64, now: Timestamp) -> Self {
        let mut record = Self {
            stamp: Stamp {
                owner: self.stamp.owner.clone(),
                version,
            },
            updated_at: now,
            ..self.clone()
        };
        let open_before = replaced.and_then(|record| record.first_claimed_at);
        match end {
            End::Completed { result, expires_at } => {
                record.state = State::Completed {
                    result: result.clone(),
                };
                record.expires_at = *expires_at;
                record.first_claimed_at = None;
                record.last_end = None;
                record.exclusive_attempts = 0;
                record.failures = Vec::new();
            }
            End::Failed {
                error,
                effect,
                sent_at,
                expires_at,
            } => {
                let at = sent_at.map_or(now, |sent_at| now.max(sent_at));
                let failure = RecordedFailure {
                    at: if flawed("a failure has no time") {
                        Timestamp::default()
                    } else {
                        at
                    },
                    error: error.clone(),
                    fingerprint: self.fingerprint.clone(),
                    message_id: self.message_id.clone(),
                };
                record.state = State::Failed;
                record.expires_at = *expires_at;
                record.failures = failure.added_to(&self.failures);
                record.exclusive_attempts = 0;
                record.last_end = match effect {
                    Effect::NotCalled => replaced.and_then(|record| record.last_end),
                    _ => Some(AttemptEnd::Permanent),
                };
                match effect {
                    Effect::Possible => {}
                    Effect::None | Effect::NotCalled => record.first_claimed_at = open_before,
                    Effect::Declined => {
                        record.first_claimed_at = (record.first_claimed_at)
                            .filter(|_| flawed("a decline leaves attempts open"));
                        record.generation += u64::from(!flawed("a decline keeps the call key"));
                    }
                }
            }
            End::Open(last_end) => {
                record.state = State::InProgress { lease_until: now };
                record.last_end = Some(*last_end);
                record.exclusive_attempts = 0;
            }
            End::Undone { began } => record.undo(replaced, *began, now),
        }
        record.open_other &= record.first_claimed_at.is_some();
        record
    }

    fn undo(&mut self, replaced: Option<&Self>, began: bool, now: Timestamp) {
        self.state = State::InProgress { lease_until: now };
        let open_before = replaced.and_then(|before| before.first_claimed_at);
        if !flawed("an undone claim is an open attempt") {
            self.first_claimed_at =
                open_before.filter(|_| !flawed("an undone claim hides earlier attempts"));
        }
        self.last_end = replaced.map_or(Some(AttemptEnd::NoEffect), |before| before.last_end);
        self.exclusive_attempts = replaced.map_or(0, |before| before.exclusive_attempts);
        if began {
            self.last_end = Some(AttemptEnd::NoEffect);
            self.exclusive_attempts = 0;
        }
        match replaced {
            Some(before) => {
                self.fingerprint = before.fingerprint.clone();
                self.message_id.clone_from(&before.message_id);
                self.source.clone_from(&before.source);
                self.open_other = before.open_other;
                if before.state == State::Failed {
                    self.state = State::Failed;
                    self.last_end = before.last_end;
                    self.expires_at = before.expires_at;
                }
            }
            // No attempt is open, so the next one may have another payload.
            None => self.fingerprint = None,
        }
    }
}
