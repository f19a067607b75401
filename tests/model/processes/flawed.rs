//! Each flaw has a counterexample, and the shortest one has a known number of steps.

use std::fmt::Write as _;

use crate::processes::{
    check,
    flaw::Flaw::{self, *},
    promises::Promise::{self, *},
    world::World,
};

/// The world in which a flaw is found, the promise that it breaks, and the steps of the shortest path there.
fn expected(flaw: Flaw) -> (World, Promise, usize) {
    match flaw {
        ClaimIgnoresLease => (World::freezes(1, 0), OneLiveClaim, 0),
        ClaimIgnoresCompleted => (World::crashes(1), ResultIsKept, 0),
        InsertOverRecord => (World::crashes(1), ResultIsKept, 0),
        TakeoverNotReturned => (World::crashes(1), SeesPriorAttempt, 0),
        RefusedClaimWithoutRecord => (World::single(1, 0, 0).receives(3), EveryMessageEnds, 0),
        CompletionWithoutOwner => (World::freezes(2, 0), RecordedEndIsFinal, 0),
        CompletionWithoutCondition => (World::freezes(2, 0), RecordedEndIsFinal, 0),
        RestoreWithoutOwner => (World::freezes(2, 0), OneLiveClaim, 0),
        ReleaseDeletes => (World::one_key(1, 1), SeesPriorAttempt, 0),
        ReleaseWithoutCondition => (World::freezes(2, 0), OneLiveClaim, 0),
        RenewalWithoutCondition => (World::network(1, 1), ResultIsKept, 0),
        ClaimForgetsFailures => (World::one_key(1, 1), RecordedEndIsFinal, 0),
        ClaimForgetsOpenAttempts => (World::network(1, 1), SeesPriorAttempt, 0),

        NoTakeover => (World::single(1, 0, 0).receives(3), EveryMessageEnds, 0),
        TakeoverAtLeaseEnd => (World::freezes(2, 0), OneLiveClaim, 0),
        ClaimIgnoresFailures => (World::one_key(1, 1), RecordedEndIsFinal, 0),
        ClaimForgetsCount => (World::crashes(1), KillerIsCrashed, 0),
        OwnClaimIsConflict => (World::network(1, 1), IsolatedWithCause, 0),
        ExpiresInLease => (World::retention(2), OneLiveClaim, 0),
        AbandonHidesAttempt => (World::network(1, 1), SuspectRunsAlone, 0),
        AbandonSaysNothing => (World::network(1, 0), IsolatedWithCause, 0),
        ReleaseKeepsCount => (World::single(3, 0, 1), CrashedAtLimit, 0),
        RestoreDropsCount => (World::single(0, 1, 0), KillerIsCrashed, 0),
        RestoreKeepsCount => (World::single(3, 0, 1), CrashedAtLimit, 0),
        RestoreForgetsCopies => {
            let world = World::network(1, 0).trouble(|troubles| troubles.failures = 1);
            (world, EndedClaimStaysEnded, 0)
        }
        LeaseEndsAtZero => (World::network(2, 0), EndedClaimStaysEnded, 0),

        AllAreClear => (World::crashes(1), SuspectRunsAlone, 0),
        RecordedEndIsIgnored => (World::single(0, 0, 1), IsolatedWithCause, 0),
        OpenAttemptIsIgnored => (World::crashes(1), SuspectRunsAlone, 0),
        CrashedTooEarly => (World::crashes(2), CrashedAtLimit, 0),
        CrashedTooLate => (World::crashes(1), KillerIsCrashed, 0),
        SuspectBesideOthers => (World::crashes(1), SuspectRunsAlone, 0),
        MostDeathsFirst => (World::crashes(2), FewestDeathsFirst, 0),
        NoHalfForSuspects => {
            let world = World::crashes(1).trouble(|troubles| troubles.freezes = 1);
            (world, HalfForSuspects, 0)
        }
        NoRest => (World::crashes(1), RestsAfterDeath, 0),
        NotCounted => (World::crashes(1), KillerIsCrashed, 0),
        StartsUnconfirmed => (World::network(1, 1), KillerIsCrashed, 0),

        NoQuarantine => (World::look_up(1, 0), OneEffect, 0),
        QuarantineWithoutMargin => (World::look_up(1, 0).skewed(), OneEffect, 0),
        NoLookUp => (World::look_up(1, 0), OneEffect, 0),
        UnknownIsNotFound => (World::look_up(1, 1), OneEffect, 0),
        NoLastLookUp => (World::look_up(1, 0), EffectIsFound, 0),

        RunsWhileOpen => (World::circuit(2, 0), OpenCircuitSavesClaims, 0),
        ManyProbes => (World::circuit(2, 0), OneProbe, 0),
        ProbeLost => (World::circuit(2, 1), EveryMessageEnds, 0),
        FailedProbeIsIgnored => (World::circuit(2, 0), EveryMessageEnds, 0),
        SuccessIsIgnored => (World::circuit(2, 0), EveryMessageEnds, 0),
    }
}

fn finds(flaws: &[Flaw]) {
    let mut wrong = String::new();
    for &flaw in flaws {
        let (world, promise, steps) = expected(flaw);
        let found = check(world.with(flaw));
        let found = found.as_ref();
        println!("{flaw:?}: {}", found.map_or("", |found| &found.text));
        let broken = found.map(|found| (found.promise, found.steps));
        if broken != Some((promise, steps)) {
            let _ = writeln!(
                wrong,
                "{flaw:?}: expected {promise:?} in {steps}, found {broken:?}"
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn flaws_of_the_explorer_have_shortest_paths() {
    finds(&[
        ClaimIgnoresLease,
        ClaimIgnoresCompleted,
        InsertOverRecord,
        TakeoverNotReturned,
        RefusedClaimWithoutRecord,
        CompletionWithoutOwner,
        CompletionWithoutCondition,
        RestoreWithoutOwner,
        ReleaseDeletes,
        ReleaseWithoutCondition,
        RenewalWithoutCondition,
        ClaimForgetsFailures,
        ClaimForgetsOpenAttempts,
    ]);
}

#[test]
fn flaws_of_claims_have_shortest_paths() {
    finds(&[
        NoTakeover,
        TakeoverAtLeaseEnd,
        ClaimIgnoresFailures,
        ClaimForgetsCount,
        OwnClaimIsConflict,
        ExpiresInLease,
        AbandonHidesAttempt,
        AbandonSaysNothing,
        ReleaseKeepsCount,
        RestoreDropsCount,
        RestoreKeepsCount,
        LeaseEndsAtZero,
        RestoreForgetsCopies,
    ]);
}

#[test]
fn flaws_of_isolation_have_shortest_paths() {
    finds(&[
        AllAreClear,
        RecordedEndIsIgnored,
        OpenAttemptIsIgnored,
        CrashedTooEarly,
        CrashedTooLate,
        SuspectBesideOthers,
        MostDeathsFirst,
        NoHalfForSuspects,
        NoRest,
        NotCounted,
        StartsUnconfirmed,
    ]);
}

#[test]
fn flaws_of_the_look_up_have_shortest_paths() {
    finds(&[
        NoQuarantine,
        QuarantineWithoutMargin,
        NoLookUp,
        UnknownIsNotFound,
        NoLastLookUp,
    ]);
}

#[test]
fn flaws_of_the_circuit_have_shortest_paths() {
    finds(&[
        RunsWhileOpen,
        ManyProbes,
        ProbeLost,
        FailedProbeIsIgnored,
        SuccessIsIgnored,
    ]);
}
