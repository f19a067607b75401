//! [`Records`]: store, retention and clock, which the modes with records share.

use std::time::Duration;

use crate::protocol::{
    AfterFailure, ClaimRequest, Fingerprint, Key, Owner, Settlement, StoredResult, Timestamp,
};

/// Where records are kept, for how long, and by which clock.
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

    /// A claim of now, by a new owner.
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

    /// The settlement that records a result of now.
    pub(super) fn completion(&self, result: &StoredResult) -> Settlement {
        Settlement::Complete {
            result: result.clone(),
            expires_at: self.expires_at(),
        }
    }

    /// Seconds since the epoch at which a record that is written now expires.
    pub(super) fn expires_at(&self) -> u64 {
        (self.now() + self.retention).as_secs_ceil()
    }
}

/// Warns that a result is not stored, and why.
pub(super) fn warn_of_omitted(key: &Key, result: &StoredResult) {
    if let StoredResult::Omitted(why) = result {
        tracing::warn!(%key, result_omitted = why, "the result is not stored");
    }
}
