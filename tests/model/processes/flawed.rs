//! Each flaw has a counterexample, and the shortest one has a known number of steps.

use std::fmt::Write as _;

use crate::processes::{
    check,
    flaw::Flaw::{self, *},
    promises::Promise::{self, *},
    state::Kind::Good,
    world::World,
};

/// One message, one crash, and as many receives as that takes.
fn one_crash() -> World {
    World::single(1, 0, 0).only(&[Good]).receives(3)
}

/// One message, lost requests, crashes and failures.
fn lossy(losses: u8, crashes: u8, failures: u8) -> World {
    World::single(crashes, 0, failures).losing(losses)
}

/// Expects of each flaw that it breaks this promise in this world, and no path there with fewer steps.
fn finds<const N: usize>(flaws: [(Flaw, World, Promise, usize); N]) {
    let mut wrong = String::new();
    for (flaw, world, promise, steps) in flaws {
        let found = check(world.with(flaw));
        let found = found.as_ref();
        if promise == EveryMessageEnds {
            // The flaw alone uses up the receives of its world.
            assert!(check(world).is_none(), "{flaw:?}");
        }
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
    finds([
        (ClaimIgnoresLease, World::freezes(1, 0), OneLiveClaim, 4),
        (ClaimIgnoresCompleted, World::crashes(1), ResultIsKept, 9),
        (InsertOverRecord, World::crashes(1), ResultIsKept, 9),
        (TakeoverNotReturned, World::crashes(1), SeesPriorAttempt, 8),
        (RefusedClaimWithoutRecord, one_crash(), EveryMessageEnds, 14),
        (
            CompletionWithoutOwner,
            World::freezes(1, 0),
            RecordedEndIsFinal,
            11,
        ),
        (
            CompletionWithoutCondition,
            World::freezes(1, 0),
            RecordedEndIsFinal,
            11,
        ),
        (RestoreWithoutOwner, World::freezes(2, 0), OneLiveClaim, 9),
        (
            ReleaseDeletes,
            World::one_key(1, 1),
            EndedClaimStaysEnded,
            7,
        ),
        (
            ReleaseWithoutCondition,
            World::freezes(2, 0),
            OneLiveClaim,
            11,
        ),
        (RenewalWithoutCondition, lossy(1, 1, 0), ResultIsKept, 12),
        (
            ClaimForgetsFailures,
            World::one_key(1, 0),
            RecordedEndIsFinal,
            12,
        ),
        (
            ClaimForgetsOpenAttempts,
            lossy(1, 1, 0),
            SeesPriorAttempt,
            9,
        ),
    ]);
}

#[test]
fn flaws_of_claims_have_shortest_paths() {
    finds([
        (NoTakeover, one_crash(), EveryMessageEnds, 11),
        (TakeoverAtLeaseEnd, World::freezes(1, 0), OneLiveClaim, 5),
        (
            ClaimIgnoresFailures,
            World::one_key(1, 0),
            RecordedEndIsFinal,
            8,
        ),
        (
            ClaimForgetsCount,
            World::single(1, 0, 0),
            KillerIsCrashed,
            30,
        ),
        (OwnClaimIsConflict, lossy(1, 0, 0), IsolatedWithCause, 7),
        (ExpiresInLease, World::retention(1), OneLiveClaim, 4),
        (
            AbandonHidesAttempt,
            World::crashes(1).only(&[Good, Good]).losing(1),
            SuspectRunsAlone,
            15,
        ),
        (AbandonSaysNothing, lossy(1, 0, 0), IsolatedWithCause, 7),
        (
            ReleaseKeepsCount,
            World::single(3, 0, 1),
            CrashedAtLimit,
            24,
        ),
        (
            RestoreDropsCount,
            World::single(0, 1, 0),
            KillerIsCrashed,
            32,
        ),
        (
            RestoreKeepsCount,
            World::single(3, 0, 1),
            CrashedAtLimit,
            30,
        ),
        (
            EndsInLastMillisecond,
            World::single(0, 1, 0).losing(1),
            CrashedAtLimit,
            26,
        ),
        (LeaseEndsAtZero, lossy(2, 0, 0), EndedClaimStaysEnded, 5),
        (
            RestoreForgetsCopies,
            lossy(1, 0, 1),
            EndedClaimStaysEnded,
            7,
        ),
    ]);
}

#[test]
fn flaws_of_isolation_have_shortest_paths() {
    finds([
        (AllAreClear, World::crashes(1), SuspectRunsAlone, 10),
        (
            RecordedEndIsIgnored,
            World::single(0, 0, 1),
            IsolatedWithCause,
            9,
        ),
        (
            OpenAttemptIsIgnored,
            World::crashes(1),
            SuspectRunsAlone,
            10,
        ),
        (CrashedTooEarly, World::single(2, 0, 0), CrashedAtLimit, 15),
        (CrashedTooLate, World::single(1, 0, 0), KillerIsCrashed, 25),
        (SuspectBesideOthers, World::crashes(1), SuspectRunsAlone, 11),
        (MostDeathsFirst, World::crashes(2), FewestDeathsFirst, 18),
        (
            NoHalfForSuspects,
            World::crashes(1).trouble(|troubles| troubles.freezes = 1),
            HalfForSuspects,
            9,
        ),
        (NoRest, World::crashes(1), RestsAfterDeath, 13),
        (NotCounted, World::single(1, 0, 0), KillerIsCrashed, 29),
        (StartsUnconfirmed, lossy(1, 0, 0), KillerIsCrashed, 26),
    ]);
}

#[test]
fn flaws_of_the_look_up_have_shortest_paths() {
    finds([
        (NoQuarantine, World::look_up(1, 0), OneEffect, 14),
        (
            QuarantineWithoutMargin,
            World::look_up(1, 0).skewed(),
            OneEffect,
            18,
        ),
        (NoLookUp, World::look_up(1, 0), OneEffect, 16),
        (UnknownIsNotFound, World::look_up(1, 1), OneEffect, 17),
        (NoLastLookUp, World::look_up(1, 0), EffectIsFound, 32),
        (EndlessLookUps, World::look_up(0, 0), KillerIsCrashed, 44),
    ]);
}

#[test]
fn flaws_of_the_circuit_have_shortest_paths() {
    finds([
        (
            RunsWhileOpen,
            World::circuit(2, 0),
            OpenCircuitSavesClaims,
            10,
        ),
        (ManyProbes, World::circuit(2, 0), OpenCircuitSavesClaims, 20),
    ]);
}
