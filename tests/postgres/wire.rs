//! Every request of an operation, cut or held on its way.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::Poll,
};

use futures_util::poll;
use sqs_once::{Attempt, Deadline, Once, Outcome, protocol::Timestamp};
use sqs_once_postgres::{PostgresMode, PostgresStore};
use support::world::{SECOND, World, ample, increments, operation, publishes};
use support::{PATIENCE, postgres_wire::Cut};
use tokio::{
    join, select,
    time::{sleep, timeout},
};

/// Requests of an operation on a connection that knows the statements.
const REQUESTS: [&str; 5] = ["BEGIN", "execute", "execute", "execute", "COMMIT"];
const COMMIT: usize = REQUESTS.len() - 1;

#[tokio::test]
async fn operation_makes_two_round_trips_each_side() {
    let world = World::start().await;
    let (mode, _pool, wire) = world.worker_behind_wire().await;
    let first = mode.run(operation("o-1", ample()), increments("o-1")).await;
    assert!(matches!(first, Outcome::Completed(_)), "{first:?}");
    wire.take();
    let second = mode.run(operation("o-2", ample()), increments("o-2")).await;
    assert!(matches!(second, Outcome::Completed(_)), "{second:?}");
    assert_eq!(wire.take(), REQUESTS);
    let duplicate = mode.run(operation("o-2", ample()), increments("o-2")).await;
    assert!(matches!(duplicate, Outcome::Duplicate(_)), "{duplicate:?}");
    assert_eq!(wire.take(), ["BEGIN", "execute", "ROLLBACK"]);
}

/// A crash before the commit publishes nothing, and after it loses nothing.
#[tokio::test]
async fn events_are_one_request_before_the_commit() {
    let world = World::start().await;
    let (mode, _pool, wire) = world.worker_behind_wire().await;
    for id in ["o-1", "o-2"] {
        wire.take();
        let run = mode.run(operation(id, ample()), publishes(id, &["a", "b", "a"]));
        let outcome = run.await;
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
    let (commit, before) = REQUESTS.split_last().unwrap();
    assert_eq!(wire.take(), [before, &["execute", commit]].concat());
}

/// Lets each request of an operation meet its fate, on a new and on a used connection. Then the
/// message comes again, to another worker and to the same one.
async fn assert_effect_is_once(cut: Cut) {
    let world = World::start().await;
    for used in [false, true] {
        for number in 0.. {
            let id = &format!("{used} {number}");
            let (mode, pool, wire) = world.worker_behind_wire().await;
            if used {
                let warm = format!("warm {number}");
                let warm = mode.run(operation(&warm, ample()), increments(&warm)).await;
                assert!(matches!(warm, Outcome::Completed(_)), "{warm:?}");
            }
            wire.cut(number, cut);
            let run = mode.run(operation(id, ample()), increments(id));
            // A held request: the worker crashes. The connections of a process end with it.
            let outcome = select! {
                outcome = run => Some(outcome),
                () = wire.met(), if cut == Cut::Silence => None,
            };
            let requests = wire.take();
            if requests.len() <= number {
                assert!(
                    matches!(outcome, Some(Outcome::Completed(_))),
                    "{outcome:?}"
                );
                assert!(requests.len() >= REQUESTS.len());
                break;
            }
            let is_commit = requests[number] == "COMMIT";
            // The first completion of a process deletes expired records.
            let is_deletion = requests[..number].iter().any(|request| request == "COMMIT");
            match &outcome {
                // A worker tries another connection for `BEGIN` and for its claim.
                Some(Outcome::Completed(_)) => {
                    let is_claim = !requests[..number]
                        .iter()
                        .any(|request| request == "execute");
                    assert!(is_deletion || is_claim, "{requests:?}");
                }
                Some(Outcome::CommitUnknown(_)) => assert!(is_commit, "{requests:?}"),
                Some(Outcome::StoreUnavailable(_)) => assert!(!is_commit, "{requests:?}"),
                // The statement of the handler.
                Some(Outcome::RetryableFailure(_)) => assert!(!is_commit, "{requests:?}"),
                None => {}
                other => panic!("{other:?} after {requests:?}"),
            }
            let again = timeout(PATIENCE, world.deliver(id)).await.unwrap();
            let committed = match &outcome {
                Some(outcome) if outcome.is_success() => true,
                _ => is_deletion || is_commit && cut != Cut::Before,
            };
            match &again {
                Outcome::Duplicate(_) => assert!(committed, "{requests:?}"),
                Outcome::Completed(_) => assert!(!committed, "{requests:?}"),
                other => panic!("{other:?} after {requests:?}"),
            }
            assert_eq!(world.effect(id).await, 1, "{requests:?}");
            let here = mode.run(operation(id, ample()), increments(id));
            let here = timeout(PATIENCE, here).await.unwrap();
            assert!(matches!(here, Outcome::Duplicate(_)), "{here:?}");
            world.open_transactions(0).await;
            assert!(pool.size() <= 1);
        }
    }
}

#[tokio::test]
async fn request_that_never_arrives_loses_nothing() {
    assert_effect_is_once(Cut::Before).await;
}

#[tokio::test]
async fn lost_answer_repeats_no_effect() {
    assert_effect_is_once(Cut::After).await;
}

#[tokio::test]
async fn crash_at_each_request_loses_nothing() {
    assert_effect_is_once(Cut::Silence).await;
}

#[tokio::test]
async fn silent_server_ends_attempt_at_deadline() {
    let world = World::start().await;
    for number in 0..REQUESTS.len() {
        let id = &format!("o-{number}");
        let (mode, _pool, wire) = world.worker_behind_wire().await;
        let warm = format!("warm {number}");
        let warm = mode.run(operation(&warm, ample()), increments(&warm)).await;
        assert!(matches!(warm, Outcome::Completed(_)), "{warm:?}");
        wire.cut(number, Cut::Silence);
        let deadline = Deadline::after(Timestamp::now(), 4 * SECOND, SECOND);
        let outcome = mode.run(operation(id, deadline), increments(id)).await;
        match (number, &outcome) {
            // Another connection.
            (0, Outcome::Completed(_)) => {}
            (1 | 3, Outcome::StoreUnavailable(_)) => {}
            (2, Outcome::OutOfTime) => {}
            (COMMIT, Outcome::CommitUnknown(_)) => {}
            other => panic!("{other:?}"),
        }
        let again = timeout(PATIENCE, world.deliver(id)).await.unwrap();
        let committed = [0, COMMIT].contains(&number);
        assert_eq!(
            matches!(again, Outcome::Duplicate(_)),
            committed,
            "{again:?}"
        );
        assert_eq!(world.effect(id).await, 1);
    }
}

/// The claim and the completion, on a connection that was just used.
#[tokio::test]
async fn store_repeats_each_request_on_another_connection() {
    let world = World::start().await;
    for cut in [Cut::Before, Cut::After, Cut::Silence] {
        for number in 0..2 {
            let (_mode, pool, wire) = world.worker_behind_wire().await;
            let once = Once::new(PostgresStore::new(pool));
            let charges = AtomicUsize::new(0);
            for id in ["warm", "o"] {
                wire.cut(if id == "o" { number } else { 1000 }, cut);
                let id = format!("{id}-{number}-{cut:?}");
                let charge = async |_: Attempt| Ok(charges.fetch_add(1, Relaxed));
                let outcome = once.run(operation(&id, ample()), charge).await;
                assert!(
                    matches!(outcome, Outcome::Completed(_)),
                    "{cut:?} {number}: {outcome:?}"
                );
            }
            let requests = wire.take();
            assert!(requests.len() > 2, "{cut:?} {number}: {requests:?}");
            // The claim of a duplicate, and the read that follows.
            wire.cut(number, cut);
            let again = operation(&format!("o-{number}-{cut:?}"), ample());
            let charge = async |_: Attempt| Ok(charges.fetch_add(1, Relaxed));
            let outcome = once.run(again, charge).await;
            assert!(
                matches!(outcome, Outcome::Duplicate(_)),
                "{cut:?} {number}: {outcome:?}"
            );
            let requests = wire.take();
            assert!(requests.len() > 2, "{cut:?} {number}: {requests:?}");
            assert_eq!(charges.into_inner(), 2);
        }
    }
}

#[tokio::test]
async fn message_waits_for_connection_until_its_deadline() {
    let world = World::start().await;
    let (_, pool) = world.worker_of(|options| options.acquire_timeout(SECOND));
    let mode = PostgresMode::new(pool.clone());
    let used = pool.acquire().await.unwrap();
    let run = mode.run(operation("o-1", ample()), increments("o-1"));
    let (outcome, ()) = join!(run, async {
        // Longer than the pool's own limit.
        sleep(2 * SECOND).await;
        drop(used);
    });
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

/// The reason for closing connections: sqlx keeps a connection whose `begin()` was cancelled, and the
/// next user gets its open transaction. If this test fails, sqlx has been corrected.
#[tokio::test]
async fn sqlx_keeps_transaction_of_cancelled_begin() {
    let world = World::start().await;
    let (mode, pool) = world.worker_of(|options| options.test_before_acquire(false));
    let idle = async || {
        sqlx::query("SELECT 1").execute(&pool).await.unwrap();
        while pool.num_idle() == 0 {
            tokio::task::yield_now().await;
        }
    };
    idle().await;
    let run = mode.run(operation("o-1", ample()), increments("o-1"));
    assert!(poll!(pin!(run)).is_pending());
    idle().await;
    world.open_transactions(0).await;

    // The first poll sends `BEGIN`. If the answer is there already, nothing is cancelled.
    while let Poll::Ready(begun) = poll!(pin!(pool.begin())) {
        begun.unwrap().rollback().await.unwrap();
        idle().await;
    }
    let kept = timeout(PATIENCE, world.open_transactions(1)).await;
    kept.expect("the session is in a transaction");
}
