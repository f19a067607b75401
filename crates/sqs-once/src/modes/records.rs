//! [`Records`]: store, output storage, retention and clock, for claim mode and inbox mode.

use std::time::Duration;

use super::{
    Operation, Outcome,
    rejected::rejected,
    repeat::{Patience, repeat},
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    protocol::{
        Claim, Effect, End, Key, Owner, Record, StoredResult, Timestamp, decide_without_body,
        record::expires_at,
    },
    store::{RequestContext, Results, Store},
};

/// Default retention of a record, or of the key on an item: 4 days in the queue, 14 in the dead-letter queue, and 2 to spare.
pub(super) const RETENTION: Duration = Duration::from_secs(20 * 24 * 60 * 60);

/// Stores records and outputs, and says how long to keep them.
#[derive(Clone, Debug)]
pub struct Records<S> {
    /// The store.
    pub store: S,
    /// Where outputs are stored.
    pub results: Results,
    /// How long records are kept.
    pub retention: Duration,
    /// The wall clock.
    pub clock: fn() -> Timestamp,
}

impl<S> Records<S> {
    /// Returns the time of the wall clock.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Creates a claim with the current time and a new owner.
    pub fn claim(
        &self,
        operation: &Operation,
        lease_until: Timestamp,
        quarantine: Option<Duration>,
    ) -> Claim {
        let now = self.now();
        let facts = operation.delivery.facts();
        Claim {
            owner: Owner::fresh(),
            fingerprint: operation.fingerprint.clone(),
            message_id: facts.message_id.clone(),
            sent_at: facts.sent_at,
            source: facts.queue_name().map(str::to_owned),
            now,
            lease_until,
            expires_at: expires_at(now, self.retention, lease_until),
            quarantine,
        }
    }

    /// Reads the record of an operation before its claim.
    ///
    /// # Errors
    ///
    /// Returns the operation's outcome if the store did not answer.
    pub async fn read(&self, operation: &Operation) -> Result<Option<Record>, Outcome>
    where
        S: Store,
    {
        let (deadline, key) = (operation.deadline, &operation.key);
        let context = RequestContext::until(deadline.handler_cutoff(), &operation.meter);
        let read = || self.store.get(key, &context);
        match repeat(Patience::Claim, &context, "read", key, read).await {
            Ok(answered) => Ok(answered.answer),
            Err(given_up) => Err(Outcome::store_unavailable(given_up.error)),
        }
    }

    /// Returns what the record says about a message whose body is gone, or `None` if the record doesn't say.
    pub async fn without_body(&self, operation: &Operation) -> Option<Outcome>
    where
        S: Store,
    {
        let found = match self.read(operation).await {
            Ok(found) => found,
            Err(outcome) => return Some(outcome),
        };
        let claim = self.claim(operation, self.now(), operation.quarantine);
        let rejection = decide_without_body(found.as_ref(), &claim)?;
        Some(rejected(rejection, operation))
    }

    /// Stores an output, unless it belongs in the record. Returns the result for the record.
    ///
    /// The effect has happened, so this call never fails. If the output cannot be stored, it logs a warning
    /// with the reason.
    pub async fn store(
        &self,
        key: &Key,
        owner: &Owner,
        output: StoredResult,
        deadline: Deadline,
    ) -> StoredResult {
        let result = self
            .results
            .store(key, owner, output, deadline.write_until())
            .await;
        if let Some(why) = result.missing() {
            tracing::warn!(%key, result_omitted = why, "the result is not stored");
        }
        result
    }

    /// Returns the end that completes an operation. The retention starts now.
    pub fn completion(&self, result: &StoredResult) -> End {
        End::Completed {
            result: result.clone(),
            expires_at: self.expires_at(),
        }
    }

    /// Returns the end for a permanent failure.
    pub fn failure(&self, operation: &Operation, error: String, effect: Effect) -> End {
        End::Failed {
            error,
            effect,
            sent_at: operation.delivery.facts().sent_at,
            expires_at: self.expires_at(),
        }
    }

    /// Returns the end of the retention for a record written now, in seconds since the epoch.
    pub fn expires_at(&self) -> u64 {
        let now = self.now();
        if flawed("a record is not kept") {
            return now.as_secs();
        }
        expires_at(now, self.retention, now)
    }
}
