//! Mistakes that somebody might ship.

/// A mistake in a condition, or in what is asked back. Each breaks a promise, and
/// a test sees the explorer find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The claim's condition does not look at the lease.
    ClaimIgnoresLease,
    /// The claim's condition does not look at the status.
    ClaimIgnoresCompleted,
    /// `ReturnValues` is not set, so a takeover does not know that it is one.
    TakeoverNotReturned,
    /// `ReturnValuesOnConditionCheckFailure` is not set, so a refused claim says nothing.
    RefusedClaimWithoutRecord,
    /// A completion asks for `status = IN_PROGRESS` alone.
    CompletionWithoutOwner,
    /// A completion asks for nothing.
    CompletionWithoutCondition,
    /// A release asks for `status = IN_PROGRESS` alone.
    ReleaseWithoutOwner,
    /// An abandoned claim is deleted, as a released one is.
    AbandonDeletes,
    /// An abandonment asks for nothing.
    AbandonWithoutCondition,
    /// The writes are made, and then the record's: two requests, no transaction.
    WritesGoFirst,
    /// The token of a transaction is made of the key alone.
    TokenOfTheKey,
    /// A change of the item has no condition.
    ChangeWithoutCondition,
    /// `ReturnValuesOnConditionCheckFailure` is not set, so a refused change says nothing.
    RefusalWithoutItem,
}

impl Flaw {
    pub const ALL: [Self; 13] = [
        Self::ClaimIgnoresLease,
        Self::ClaimIgnoresCompleted,
        Self::TakeoverNotReturned,
        Self::RefusedClaimWithoutRecord,
        Self::CompletionWithoutOwner,
        Self::CompletionWithoutCondition,
        Self::ReleaseWithoutOwner,
        Self::AbandonDeletes,
        Self::AbandonWithoutCondition,
        Self::WritesGoFirst,
        Self::TokenOfTheKey,
        Self::ChangeWithoutCondition,
        Self::RefusalWithoutItem,
    ];
}
