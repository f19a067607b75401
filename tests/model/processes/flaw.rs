//! Mistakes in the rules. The model must find each of them by a promise that it breaks.

/// A mistake in one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    // The flaws of tables that the explorer knows too: `tests/model/schedules/flaw.rs`.
    /// The claim's condition ignores the lease.
    ClaimIgnoresLease,
    /// The claim's condition ignores the status.
    ClaimIgnoresCompleted,
    /// A claim replaces any record, as a `PutItem` does.
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
    /// The renewal of a lease has no condition.
    RenewalWithoutCondition,
    /// A claim drops the failed messages of the record.
    ClaimForgetsFailures,
    /// A claim drops the time of the earliest open attempt.
    ClaimForgetsOpenAttempts,

    // Claims and settlements.
    /// No claim takes over an ended lease.
    NoTakeover,
    /// A claim takes over in the last millisecond of a lease.
    TakeoverAtLeaseEnd,
    /// A claim does not look for its message among the failed ones.
    ClaimIgnoresFailures,
    /// A claim drops the count of attempts alone.
    ClaimForgetsCount,
    /// A worker takes its own record for that of another.
    OwnClaimIsConflict,
    /// A record expires while its lease lives.
    ExpiresInLease,
    /// An abandoned claim says that nothing was started, although an earlier attempt is open.
    AbandonHidesAttempt,
    /// An abandoned claim does not say that nothing was started.
    AbandonSaysNothing,
    /// The end of a lease keeps the count of attempts alone.
    ReleaseKeepsCount,
    /// A claim that is undone drops the count of attempts alone.
    RestoreDropsCount,
    /// An attempt alone that had no effect puts the earlier count back.
    RestoreKeepsCount,
    /// A claim is undone in the last millisecond of its lease, so that a late renewal fits.
    EndsInLastMillisecond,
    /// The end of a lease is the year 1970, not now.
    LeaseEndsAtZero,
    /// A claim is undone as if no copy of it could arrive later.
    RestoreForgetsCopies,

    // Isolation after a crash.
    /// Every message runs beside others.
    AllAreClear,
    /// A message is a suspect although its last end was recorded.
    RecordedEndIsIgnored,
    /// A message is a suspect only if attempts alone were counted.
    OpenAttemptIsIgnored,
    /// A message is `crashed` one death too early.
    CrashedTooEarly,
    /// A message is `crashed` one death too late.
    CrashedTooLate,
    /// A suspect starts beside others.
    SuspectBesideOthers,
    /// The suspect with the most attempts alone starts first.
    MostDeathsFirst,
    /// While a suspect waits, others start until the end of the time.
    NoHalfForSuspects,
    /// The lease of an attempt alone is an ordinary one.
    NoRest,
    /// The attempt alone is not counted.
    NotCounted,
    /// The handler starts alone although the count was not confirmed.
    StartsUnconfirmed,

    // Reconciliation.
    /// A claim takes over as soon as the lease has ended.
    NoQuarantine,
    /// The quarantine begins at the end of the lease, without the margin.
    QuarantineWithoutMargin,
    /// The handler runs without a look-up.
    NoLookUp,
    /// The handler runs after a look-up that does not know.
    UnknownIsNotFound,
    /// A message is `crashed` without a last look-up.
    NoLastLookUp,
    /// A last look-up that ended its process is followed by another.
    EndlessLookUps,

    // The circuit breaker.
    /// A message runs although the circuit is open.
    RunsWhileOpen,
    /// Each message that comes after the first interval is a probe.
    ManyProbes,
}
