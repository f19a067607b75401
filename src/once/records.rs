//! [`Records`]: store, retention and clock, shared by claim mode and inbox.

use std::time::Duration;

use crate::protocol::{
    AfterFailure, ClaimRequest, Fingerprint, Key, Owner, Settlement, StoredResult, Timestamp,
};

/// Store, retention and clock of records.
#[derive(Clone, Debug)]
pub(super) struct Records<S> {
    pub(super) store: S,
    pub(super) retention: Duration,
    pub(super) after_failure: AfterFailure,
    pub(super) clock: fn() -> Timestamp,
}

impl<S> Records<S> {
    pub(super) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Creates a claim request with the current time and a new owner.
    pub(super) fn request(
        &self,
        key: &Key,
        fingerprint: Option<Fingerprint>,
        message_id: &str,
        lease_until: Timestamp,
    ) -> ClaimRequest {
        let now = self.now();
        ClaimRequest {
            key: key.clone(),
            owner: Owner::fresh(),
            fingerprint,
            message_id: message_id.to_owned(),
            now,
            lease_until,
            expires_at: (now + self.retention).max(lease_until).as_secs_ceil(),
            after_failure: self.after_failure,
        }
    }

    /// Creates the settlement for a result, with the retention from now on.
    pub(super) fn completion(&self, result: &StoredResult) -> Settlement {
        Settlement::Complete {
            result: result.clone(),
            expires_at: self.expires_at(),
        }
    }

    /// Creates the renewal of a lease, with the retention from now on.
    pub(super) fn renewal(&self, lease_until: Timestamp) -> Settlement {
        Settlement::Renew {
            lease_until,
            expires_at: self.expires_at().max(lease_until.as_secs_ceil()),
        }
    }

    /// Returns the end of the retention for a record written now, in seconds since the epoch.
    pub(super) fn expires_at(&self) -> u64 {
        (self.now() + self.retention).as_secs_ceil()
    }
}

/// Logs a warning if the result is not stored, with the reason.
pub(super) fn warn_of_omitted(key: &Key, result: &StoredResult) {
    if let StoredResult::Omitted(why) = result {
        tracing::warn!(%key, result_omitted = why, "the result is not stored");
    }
}
