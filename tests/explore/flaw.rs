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
    /// A restoration asks for `status = IN_PROGRESS` alone.
    RestoreWithoutOwner,
    /// A record whose lease is to end is deleted.
    EndLeaseDeletes,
    /// The end of a lease asks for nothing.
    EndLeaseWithoutCondition,
    /// A claim does not keep the messages that failed.
    ClaimForgetsFailures,
    /// A claim does not keep the time of the earliest open attempt.
    ClaimForgetsOpenAttempts,
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
    pub const ALL: [Self; 15] = [
        Self::ClaimIgnoresLease,
        Self::ClaimIgnoresCompleted,
        Self::TakeoverNotReturned,
        Self::RefusedClaimWithoutRecord,
        Self::CompletionWithoutOwner,
        Self::CompletionWithoutCondition,
        Self::RestoreWithoutOwner,
        Self::EndLeaseDeletes,
        Self::EndLeaseWithoutCondition,
        Self::ClaimForgetsFailures,
        Self::ClaimForgetsOpenAttempts,
        Self::WritesGoFirst,
        Self::TokenOfTheKey,
        Self::ChangeWithoutCondition,
        Self::RefusalWithoutItem,
    ];
}
