//! Crashes, lost responses, contention, and two workers at once.

use std::time::Duration;
use support::{dynamo::text, faults::Fault};

use super::world::{Attempt, EffectMode, RECORDS, RETENTION, SECOND, World, ample, pass, short};

/// Longer than any lease in these tests.
pub const LEASE: Duration = Duration::from_secs(120);

/// A fault that a worker meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meets {
    Once(Fault),
    Always(Fault),
    /// The worker dies when its request has met the fault.
    Dies(Fault),
}
use Meets::{Always, Dies, Once};

/// Injected faults, each with the outcome if the request that makes the effect meets it. A transaction knows
/// its own token, a write to an item its own key.
const STORIES: [(Meets, &str, &str); 25] = [
    (Once(Fault::CutBefore), "completed", "completed"),
    (Always(Fault::CutBefore), "commit_unknown", "commit_unknown"),
    (Once(Fault::CutAfter), "completed", "duplicate"),
    (Always(Fault::CutAfter), "commit_unknown", "commit_unknown"),
    (Once(Fault::HalfAnswer), "completed", "duplicate"),
    (
        Always(Fault::HalfAnswer),
        "commit_unknown",
        "commit_unknown",
    ),
    (Always(Fault::Garbage), "commit_unknown", "commit_unknown"),
    (
        Always(Fault::GarbageInstead),
        "commit_unknown",
        "commit_unknown",
    ),
    (Always(Fault::Empty), "commit_unknown", "commit_unknown"),
    (
        Always(Fault::EmptyInstead),
        "commit_unknown",
        "commit_unknown",
    ),
    (Once(Fault::InternalError), "completed", "completed"),
    (
        Always(Fault::InternalError),
        "commit_unknown",
        "commit_unknown",
    ),
    (
        Always(Fault::Unavailable),
        "commit_unknown",
        "commit_unknown",
    ),
    (Always(Fault::Refuse), "commit_unknown", "commit_unknown"),
    (Once(Fault::Throttle), "completed", "completed"),
    (
        Always(Fault::Throttle),
        "retryable_failure",
        "retryable_failure",
    ),
    (
        Always(Fault::ThroughputExceeded),
        "retryable_failure",
        "retryable_failure",
    ),
    (
        Always(Fault::HoldRequest),
        "commit_unknown",
        "commit_unknown",
    ),
    (
        Always(Fault::HoldAnswer),
        "commit_unknown",
        "commit_unknown",
    ),
    (Dies(Fault::HoldRequest), "", ""),
    (Dies(Fault::HoldAnswer), "", ""),
    // Transactions only:
    (
        Once(Fault::Canceled(&["None", "TransactionConflict"])),
        "completed",
        "",
    ),
    (
        Always(Fault::Canceled(&["None", "TransactionConflict"])),
        "retryable_failure",
        "",
    ),
    (Once(Fault::TransactionInProgress), "completed", ""),
    (
        Always(Fault::TransactionInProgress),
        "retryable_failure",
        "",
    ),
];

impl World {
    /// The next request meets the fault, or all do.
    fn fail(&self, request: &str, meets: Meets) {
        match meets {
            Once(fault) | Dies(fault) => self.dynamo.fail(request, fault),
            Always(fault) => self.dynamo.fail_all(request, fault),
        }
    }

    /// The effect happens once though one request of the first worker meets a fault. If `late`, the
    /// held-back request arrives after the second worker's.
    async fn story(
        &self,
        way: EffectMode,
        request: &str,
        meets: Meets,
        expected: Option<&str>,
        late: bool,
    ) {
        let id = &format!("{way:?}: {request} {meets:?} {late}");
        let client = &self.short_timeout_client();
        let deadline = match meets {
            Always(_) => short(),
            Once(_) | Dies(_) => ample(),
        };
        let first = &Attempt {
            way,
            id,
            client,
            deadline,
        };
        self.dynamo.reset_counts();
        self.fail(request, meets);
        if let Dies(_) = meets {
            tokio::select! {
                outcome = self.run(first) => panic!("{id}: it ended: {outcome}"),
                () = self.met(request) => {}
            }
        } else {
            let outcome = self.run(first).await;
            // The deadline may cut off the last repetition, whose outcome is then unknown.
            let contended = ["retryable_failure", "completion_unrecorded"];
            let cut_off = expected.is_some_and(|expected| contended.contains(&expected))
                && outcome.name() == "commit_unknown";
            if let Some(expected) = expected.filter(|_| !cut_off) {
                assert_eq!(outcome.name(), expected, "{id}: {outcome}");
            }
            // No unfinished message is acknowledged.
            assert!(
                !outcome.is_success() || self.effect(way, id).await == 1,
                "{id}"
            );
        }
        if !late {
            assert!(
                !self.dynamo.heal().await.is_empty(),
                "{id}: no request met the fault"
            );
        }
        assert!(self.effect(way, id).await <= 1, "{id}");
        pass(LEASE);
        let again = self.deliver(way, id).await;
        assert!(again.is_success(), "{id}: {again}");
        assert_eq!(
            self.effect(way, id).await,
            1,
            "{id}: after the second delivery"
        );
        if late {
            assert!(
                !self.dynamo.heal().await.is_empty(),
                "{id}: no request met the fault"
            );
            assert_eq!(self.effect(way, id).await, 1, "{id}: the first came late");
        }
        let known = self.deliver(way, id).await;
        assert_eq!(known.name(), "duplicate", "{id}: {known}");
        assert_eq!(
            self.effect(way, id).await,
            1,
            "{id}: after the third delivery"
        );
    }
}

async fn survives_every_fault(way: EffectMode) {
    let world = World::start_paused().await;
    for request in way.requests() {
        for (meets, in_transaction, item_mode) in STORIES {
            let for_transactions = item_mode.is_empty() && !in_transaction.is_empty();
            if for_transactions && *request != "TransactWriteItems" {
                continue;
            }
            let expected = match (way, in_transaction) {
                // The claim is kept, and counted.
                (way, "retryable_failure") if way.is_claim() => "completion_unrecorded",
                _ if way.is_transaction() => in_transaction,
                _ => item_mode,
            };
            let expected = Some(expected).filter(|_| *request == way.commit());
            world.story(way, request, meets, expected, false).await;
            if let Dies(_) = meets {
                world.story(way, request, meets, expected, true).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn claim_and_commit_survive_every_fault() {
    survives_every_fault(EffectMode::Claim).await;
}

#[tokio::test(start_paused = true)]
async fn inbox_survives_every_fault() {
    survives_every_fault(EffectMode::Inbox).await;
}

#[tokio::test(start_paused = true)]
async fn item_creation_survives_every_fault() {
    survives_every_fault(EffectMode::Create).await;
}

#[tokio::test(start_paused = true)]
async fn item_update_survives_every_fault() {
    survives_every_fault(EffectMode::Update).await;
}

#[tokio::test(start_paused = true)]
async fn crash_in_handler_leaves_effect_to_next_attempt() {
    let world = World::start_paused().await;
    for way in EffectMode::ALL {
        let id = &format!("{way:?}");
        let client = &world.no_timeout_client();
        let attempt = Attempt {
            way,
            id,
            client,
            deadline: ample(),
        };
        // Biased: the code woken by the handler runs before the response is sent.
        tokio::select! {
            biased;
            () = world.running.notified() => {}
            outcome = world.run(&attempt) => panic!("{id}: it ended: {outcome}"),
        }
        pass(LEASE);
        assert!(world.effect(way, id).await <= 1, "{id}");
        let again = world.deliver(way, id).await;
        assert!(again.is_success(), "{id}: {again}");
        assert_eq!(world.effect(way, id).await, 1, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn commit_after_takeover_is_refused() {
    let world = World::start_paused().await;
    for way in EffectMode::ALL {
        let id = &format!("{way:?}");
        let client = &world.no_timeout_client();
        let attempt = Attempt {
            way,
            id,
            client,
            deadline: ample(),
        };
        world.dynamo.reset_counts();
        world.dynamo.fail(way.commit(), Fault::HoldRequest);
        let mut first = Box::pin(world.run(&attempt));
        tokio::select! {
            outcome = &mut first => panic!("{id}: it ended: {outcome}"),
            () = world.met(way.commit()) => {}
        }
        if way.is_claim() {
            let meanwhile = world.deliver(way, id).await;
            assert_eq!(meanwhile.name(), "conflict", "{id}: {meanwhile}");
        }
        pass(LEASE);
        let second = world.deliver(way, id).await;
        assert_eq!(second.name(), "completed", "{id}: {second}");
        assert_eq!(world.effect(way, id).await, 1, "{id}");
        let key = super::world::operation(id, ample()).key;
        let record = world.dynamo.record(RECORDS, key.as_str()).await;

        let (first, _met) = tokio::join!(first, world.dynamo.heal());
        let refused = if way.is_claim() {
            "lease_lost"
        } else {
            "duplicate"
        };
        assert_eq!(first.name(), refused, "{id}: {first}");
        assert_eq!(world.effect(way, id).await, 1, "{id}: the first came late");
        assert_eq!(record.is_some(), way.is_transaction(), "{id}");
        if let Some(record) = record {
            let kept = world.dynamo.record(RECORDS, key.as_str()).await.unwrap();
            assert_eq!(text(&kept, "owner"), text(&record, "owner"), "{id}");
            assert_eq!(text(&kept, "status"), "COMPLETED", "{id}");
        }
    }
}

#[tokio::test]
async fn concurrent_workers_make_effect_once() {
    let world = World::start().await;
    for way in EffectMode::ALL {
        let id = &format!("{way:?}");
        let workers = (0..6).map(|_| world.deliver(way, id));
        let outcomes = futures_util::future::join_all(workers).await;
        let mut names: Vec<_> = outcomes.iter().map(|outcome| outcome.name()).collect();
        names.sort_unstable();
        assert_eq!(
            names.iter().filter(|name| **name == "completed").count(),
            1,
            "{id}: {names:?}"
        );
        names.retain(|name| !["completed", "duplicate", "conflict"].contains(name));
        assert!(names.is_empty(), "{id}: {names:?}");
        assert_eq!(world.effect(way, id).await, 1, "{id}");
        assert_eq!(world.deliver(way, id).await.name(), "duplicate", "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn operation_is_new_only_after_retention() {
    let world = World::start_paused().await;
    for way in EffectMode::ALL {
        assert_eq!(
            world.deliver(way, &format!("{way:?}")).await.name(),
            "completed"
        );
    }
    // Ends are rounded up to seconds, and compared with the process clock.
    pass(RETENTION - 60 * SECOND);
    for way in EffectMode::ALL {
        let id = &format!("{way:?}");
        assert_eq!(world.deliver(way, id).await.name(), "duplicate", "{id}");
        assert_eq!(world.effect(way, id).await, 1, "{id}");
    }
    pass(62 * SECOND);
    for way in EffectMode::ALL {
        let id = &format!("{way:?}");
        // An item keeps a key until a later change removes it.
        let (name, effect) = if way.is_transaction() {
            ("completed", 2)
        } else {
            ("duplicate", 1)
        };
        assert_eq!(world.deliver(way, id).await.name(), name, "{id}");
        assert_eq!(world.effect(way, id).await, effect, "{id}");
        // The new operation also happens once.
        assert_eq!(world.deliver(way, id).await.name(), "duplicate", "{id}");
        assert_eq!(world.effect(way, id).await, effect, "{id}");
    }
}
