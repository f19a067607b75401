//! Mistakes that a developer might ship.

/// A mistake in a condition or in the requested return values. Each breaks a promise, and a test
/// requires the explorer to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The claim's condition ignores the lease.
    ClaimIgnoresLease,
    /// The claim's condition ignores the status.
    ClaimIgnoresCompleted,
    /// The claim's statement in a group replaces a record, as a `PutItem` does.
    InsertOverRecord,
    /// Without `ReturnValues`, a takeover does not know that it is one.
    TakeoverNotReturned,
    /// Without `ReturnValuesOnConditionCheckFailure`, a refused claim returns no record.
    RefusedClaimWithoutRecord,
    /// A completion is conditional on `status = IN_PROGRESS` alone.
    CompletionWithoutOwner,
    /// A completion has no condition.
    CompletionWithoutCondition,
    /// A restoration is conditional on `status = IN_PROGRESS` alone.
    RestoreWithoutOwner,
    /// The end of a lease deletes the record.
    ReleaseDeletes,
    /// The end of a lease has no condition.
    ReleaseWithoutCondition,
    /// A claim drops the failed messages of the record.
    ClaimForgetsFailures,
    /// A claim drops the time of the earliest open attempt.
    ClaimForgetsOpenAttempts,
    /// The writes and the record are two requests, not one transaction.
    WritesGoFirst,
    /// A transaction's token depends on the key alone.
    TokenOfTheKey,
    /// A change of the item has no condition.
    ChangeWithoutCondition,
    /// Without `ReturnValuesOnConditionCheckFailure`, a refused change returns no item.
    RefusalWithoutItem,
}

impl Flaw {
    pub const ALL: [Self; 16] = [
        Self::ClaimIgnoresLease,
        Self::ClaimIgnoresCompleted,
        Self::InsertOverRecord,
        Self::TakeoverNotReturned,
        Self::RefusedClaimWithoutRecord,
        Self::CompletionWithoutOwner,
        Self::CompletionWithoutCondition,
        Self::RestoreWithoutOwner,
        Self::ReleaseDeletes,
        Self::ReleaseWithoutCondition,
        Self::ClaimForgetsFailures,
        Self::ClaimForgetsOpenAttempts,
        Self::WritesGoFirst,
        Self::TokenOfTheKey,
        Self::ChangeWithoutCondition,
        Self::RefusalWithoutItem,
    ];
}
