//! Leases that are renewed while the handler runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::json;
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Once, Operation, Outcome, handler_fn,
    protocol::{AttemptEnd, ClaimRequest, Key, Namespace, Owner, Record, State, Timestamp},
    store::Store as _,
};
use support::{
    CONTEXT,
    consumer::{namespace, process},
    event::{batch, received},
    lossy::{Fate, Lossy},
};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Length of the leases. They are renewed after a third.
const LENGTH: Duration = Duration::from_secs(30);
/// Default of [`Once::lease_margin`].
const MARGIN: Duration = SECOND;
const BUDGET: Duration = Duration::from_secs(600);
const RESERVE: Duration = Duration::from_secs(10);

thread_local! {
    static START: Instant = Instant::now();
}

/// Wall clock that moves with the paused clock of tokio.
fn now() -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000) + START.with(Instant::elapsed)
}

fn key() -> Key {
    Key::new(&Namespace::new("test").unwrap(), ["key"]).unwrap()
}

fn operation(message_id: &str) -> Operation {
    let deadline = Deadline::after(now(), BUDGET, RESERVE);
    Operation::new(key(), None, message_id, deadline)
}

fn once(store: &Lossy) -> Once<Lossy> {
    let _started = now();
    Once::new(store.clone()).clock(now).heartbeat(LENGTH)
}

/// A handler that takes this long.
async fn takes(span: Duration) -> Result<u64, Failure> {
    sleep(span).await;
    Ok(7)
}

fn record(store: &Lossy) -> Record {
    store.store.get(&key()).unwrap()
}

fn lease_until(store: &Lossy) -> Timestamp {
    match record(store).state {
        State::InProgress { lease_until } => lease_until,
        other => panic!("not in progress: {other:?}"),
    }
}

fn renewals(store: &Lossy) -> usize {
    store.sent().iter().filter(|name| **name == "renew").count()
}

/// Another worker claims the key.
async fn other_worker_claims(store: &Lossy) {
    let lease_until = now() + 60 * SECOND;
    let request = ClaimRequest::new(
        key(),
        Owner::fresh(),
        "m-1",
        now(),
        lease_until,
        lease_until.as_secs() + 60,
    );
    let _ = store.store.claim(&request, &CONTEXT).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_handler_runs() {
    let store = Lossy::default();
    let once = once(&store);
    let outcome = once.run(operation("m-1"), async |_| {
        for _ in 0..10 {
            sleep(LENGTH / 2).await;
            let left = now().until(lease_until(&store));
            assert!(left >= LENGTH * 2 / 3, "{left:?}");
            assert!(left <= LENGTH + MARGIN, "{left:?}");
        }
        Ok(7)
    });
    assert!(matches!(outcome.await, Outcome::Completed(_)));
    // Ten times a half of a lease, and a renewal after each third.
    assert_eq!(renewals(&store), 15);
}

#[tokio::test(start_paused = true)]
async fn short_handler_renews_nothing() {
    let store = Lossy::default();
    let work = |_| takes(LENGTH / 3 - MILLISECOND);
    let outcome = once(&store).run(operation("m-1"), work).await;
    assert!(matches!(outcome, Outcome::Completed(_)));
    assert_eq!(store.sent(), ["claim", "complete"]);
}

#[tokio::test(start_paused = true)]
async fn lease_never_outlasts_invocation() {
    let store = Lossy::default();
    let deadline = now() + BUDGET;
    let once = once(&store);
    let outcome = once.run(operation("m-1"), async |_| {
        sleep(BUDGET - RESERVE - SECOND).await;
        assert_eq!(lease_until(&store), deadline + MARGIN);
        Ok(7)
    });
    assert!(matches!(outcome.await, Outcome::Completed(_)));

    let store = Lossy::default();
    let once = Once::new(store.clone()).clock(now).heartbeat(2 * BUDGET);
    let deadline = now() + BUDGET;
    let outcome = once.run(operation("m-1"), async |_| {
        assert_eq!(lease_until(&store), deadline + MARGIN);
        takes(BUDGET / 2).await
    });
    assert!(matches!(outcome.await, Outcome::Completed(_)));
    assert_eq!(renewals(&store), 0);
}

#[tokio::test(start_paused = true)]
async fn dead_worker_loses_lease_after_one_length() {
    let store = Lossy::default();
    let once = once(&store);
    let crash = once.run(operation("m-1"), |_| takes(BUDGET));
    assert!(timeout(5 * LENGTH, crash).await.is_err());

    sleep(LENGTH * 2 / 3).await;
    let conflict = once.run(operation("m-1"), |_| takes(SECOND)).await;
    assert!(matches!(conflict, Outcome::Conflict { .. }), "{conflict:?}");

    sleep(LENGTH / 3 + MARGIN + MILLISECOND).await;
    let work = async |attempt: Attempt| {
        assert!(attempt.prior().is_some());
        takes(SECOND).await
    };
    let takeover = once.run(operation("m-1"), work).await;
    assert!(matches!(takeover, Outcome::Completed(_)), "{takeover:?}");
}

/// Notes that its handler was dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The outcome of a handler that never ends by itself, after `fates` of its renewals.
async fn endless(store: &Lossy) -> (Outcome, Duration) {
    let dropped = Arc::new(AtomicBool::default());
    let witness = Dropped(Arc::clone(&dropped));
    let started = Instant::now();
    let outcome = once(store)
        .run(operation("m-1"), async move |_| {
            let _witness = witness;
            std::future::pending::<Result<u64, Failure>>().await
        })
        .await;
    assert!(dropped.load(Relaxed), "the handler goes on");
    (outcome, started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn refused_renewal_drops_handler() {
    let store = Lossy::default();
    let rival = async {
        sleep(SECOND).await;
        // As after a freeze beyond the lease: the record is deleted, and claimed again.
        store.store.remove(&key());
        other_worker_claims(&store).await;
        record(&store)
    };
    let ((outcome, elapsed), theirs) = tokio::join!(endless(&store), rival);
    assert!(matches!(outcome, Outcome::LeaseLost), "{outcome:?}");
    assert!(elapsed < LENGTH, "{elapsed:?}");
    assert_eq!(record(&store), theirs);
    assert_eq!(store.sent(), ["claim", "renew"]);
}

#[tokio::test(start_paused = true)]
async fn unanswered_renewals_drop_handler_in_time() {
    for fate in [
        Fate::Silence,
        Fate::RequestLost,
        Fate::Contended,
        Fate::Denied,
    ] {
        let store = Lossy::fates([Fate::Answered]);
        store.meets_always("renew", fate);
        let (outcome, elapsed) = endless(&store).await;
        assert!(
            matches!(outcome, Outcome::OutOfTime),
            "{fate:?}: {outcome:?}"
        );
        assert!(elapsed <= LENGTH + SECOND, "{fate:?}: {elapsed:?}");
        assert!(elapsed >= LENGTH - SECOND, "{fate:?}: {elapsed:?}");
        let record = record(&store);
        assert_eq!(record.last_end, Some(AttemptEnd::Deadline), "{fate:?}");
        assert!(lease_until(&store) <= now(), "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_renewal_is_followed_by_another() {
    for fates in [
        vec![Fate::Denied],
        // The first copy is applied, and its answer is lost.
        vec![Fate::AnswerLost, Fate::Denied],
    ] {
        let store = Lossy::fates([vec![Fate::Answered], fates].concat());
        let once = once(&store);
        let outcome = once.run(operation("m-1"), |_| takes(2 * LENGTH)).await;
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_with_lost_answer_counts() {
    for fate in [Fate::AnswerLost, Fate::SentTwice] {
        let store = Lossy::fates([Fate::Answered, fate]);
        let once = once(&store);
        let outcome = once.run(operation("m-1"), |_| takes(2 * LENGTH)).await;
        assert!(
            matches!(outcome, Outcome::Completed(_)),
            "{fate:?}: {outcome:?}"
        );
    }
}

/// Leases that cannot be renewed say nothing about the system that the handlers call.
#[tokio::test(start_paused = true)]
async fn lost_renewals_leave_the_circuit_closed() {
    let store = Lossy::default();
    store.meets_always("renew", Fate::Invalid);
    let handler = handler_fn(async |order: String, _: Attempt| match order.as_str() {
        "hang" => std::future::pending().await,
        _ => Ok::<_, Failure>(()),
    });
    let consumer = Arc::new(Consumer::new(once(&store), namespace(), handler));
    let send = async |id: &str, order: &str| {
        let deadline = Deadline::after(now(), BUDGET, RESERVE);
        process(&consumer, batch([received(id, &json!(order), 2)]), deadline).await
    };
    for n in 0..20 {
        let id = format!("m-{n}");
        assert_eq!(send(&id, "hang").await, [id.as_str()]);
    }
    assert_eq!(renewals(&store), 20);
    assert_eq!(send("next", "succeed").await, [""; 0]);
}
