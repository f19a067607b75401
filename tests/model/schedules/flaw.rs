//! Mistakes that a developer might ship.

/// A mistake in a condition or in the requested return values. Each breaks a promise, and a test
/// requires the explorer to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The claim's statement in a group replaces a record, as a `PutItem` does.
    InsertOverRecord,
    /// A claim drops the failed messages of the record.
    ClaimForgetsFailures,
    /// A claim drops the time of the earliest open attempt.
    ClaimForgetsOpenAttempts,
    /// The writes and the record are two requests, not one transaction.
    WritesGoFirst,
    /// A transaction's token depends on the key alone.
    TokenOfTheKey,
    /// A claim does not see that a lease has not ended.
    LeaseNotSeen,
    /// A claim takes a completed record for a failed one.
    CompletionNotSeen,
    /// A claim does not see when a failure was recorded.
    FailureNotSeen,
    /// A claim does not see an open attempt.
    OpenAttemptNotSeen,
    /// The end of a lease closes the attempt.
    ReleaseClosesAttempt,
    /// A permanent failure closes the attempts.
    FailureClosesAttempts,
    /// A permanent failure has no time.
    FailureAtZero,
    /// An undone claim closes earlier attempts.
    UndoClosesAttempts,
    /// A worker sends several contents with one version.
    VersionReused,
    /// A swap compares the version alone.
    OwnerNotCompared,
    /// A swap compares the owner alone.
    VersionNotCompared,
    /// An operator's release takes the next version.
    ReleaseTakesVersion,
    /// After a decline the call key stays.
    DeclineKeepsGeneration,
    /// Every permanent failure makes a new call key.
    FailureTakesGeneration,
    /// A claim drops the generation.
    ClaimForgetsGeneration,
    /// A failure answers the messages of every payload.
    FailureAnswersAll,
    /// A failure replaces those of other payloads.
    FailureReplacesOthers,
    /// A claim does not see which payload a record has.
    PayloadNotSeen,
}

impl Flaw {
    pub const ALL: [Self; 23] = [
        Self::InsertOverRecord,
        Self::ClaimForgetsFailures,
        Self::ClaimForgetsOpenAttempts,
        Self::WritesGoFirst,
        Self::TokenOfTheKey,
        Self::LeaseNotSeen,
        Self::CompletionNotSeen,
        Self::FailureNotSeen,
        Self::OpenAttemptNotSeen,
        Self::ReleaseClosesAttempt,
        Self::FailureClosesAttempts,
        Self::FailureAtZero,
        Self::UndoClosesAttempts,
        Self::VersionReused,
        Self::OwnerNotCompared,
        Self::VersionNotCompared,
        Self::ReleaseTakesVersion,
        Self::DeclineKeepsGeneration,
        Self::FailureTakesGeneration,
        Self::ClaimForgetsGeneration,
        Self::FailureAnswersAll,
        Self::FailureReplacesOthers,
        Self::PayloadNotSeen,
    ];
}
