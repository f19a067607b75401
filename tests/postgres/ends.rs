//! Each end of an attempt: the state of the database, and the outcome of the next delivery.

use std::{future::pending, sync::Mutex};

use futures_util::FutureExt as _;
use sqlx::{Connection, Executor};
use sqs_once::{
    Attempt, Deadline, DeliveryMetadata, Event, Failure, Once, Operation, Outcome, ResultExt,
    internal::Delivery,
    protocol::{StoredResult, Timestamp},
    store::MemoryStore,
};
use sqs_once_postgres::{InTransaction, PostgresStore, Transaction};
use support::world::{SECOND, World, ample, increment, increments, operation, operation_of, short};

const ATTEMPTS: &str = "attributes::json->>'attempts'";

#[track_caller]
fn assert_completed(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

#[tokio::test]
async fn success_commits_writes_and_record() {
    let world = World::start().await;
    assert_completed(&world.deliver("o-1").await);
    let second = world.deliver("o-1").await;
    let kept = StoredResult::Json("\"o-1\"".into());
    assert!(
        matches!(&second, Outcome::Duplicate(result) if *result == kept),
        "{second:?}"
    );
    assert_eq!(world.effect("o-1").await, 1);
    assert_eq!(world.status("o-1").await.as_deref(), Some("COMPLETED"));
}

#[tokio::test]
async fn permanent_failure_is_recorded_alone() {
    let world = World::start().await;
    let declined = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "o-1").await?;
        Err::<InTransaction<()>, _>(Failure::permanent("declined"))
    };
    let outcome = world.mode().run(operation("o-1", ample()), declined).await;
    assert!(
        matches!(&outcome, Outcome::PermanentFailure(why) if why == "declined"),
        "{outcome:?}"
    );
    assert_eq!(world.effect("o-1").await, 0);
    assert_eq!(world.status("o-1").await.as_deref(), Some("FAILED"));
    let failures = world.column("o-1", "failures").await.unwrap();
    assert!(failures.contains(r#""error":"declined""#), "{failures}");

    let again = world.deliver("o-1").await;
    assert!(matches!(again, Outcome::FailedBefore(_)), "{again:?}");
}

/// The operation `o-1` in another message, which was sent then.
fn sent(at: Timestamp) -> Operation {
    let mut operation = operation("o-1", ample());
    operation.delivery = Delivery::from(DeliveryMetadata {
        message_id: "another message".to_owned(),
        sent_at: Some(at),
        ..operation.delivery.facts().clone()
    });
    operation
}

#[tokio::test]
async fn message_sent_after_failure_runs() {
    let world = World::start().await;
    let now = Timestamp::now();
    let declined = async |_| Err::<InTransaction<()>, _>(Failure::permanent("declined"));
    let first = world.mode().run(sent(now), declined).await;
    assert!(matches!(first, Outcome::PermanentFailure(_)), "{first:?}");
    let earlier = world.mode().run(sent(now), increments("o-1")).await;
    assert!(matches!(earlier, Outcome::FailedBefore(_)), "{earlier:?}");
    let is_told = Mutex::new(None);
    let later = async |attempt: Attempt| {
        *is_told.lock().unwrap() = Some(attempt.prior().is_some());
        increments("o-1")(attempt).await
    };
    let resent = sent(now + 30 * SECOND);
    assert_completed(&world.mode().run(resent, later).await);
    // The failed attempt was rolled back, so it had no effect.
    assert_eq!(*is_told.lock().unwrap(), Some(false));
    assert_eq!(world.effect("o-1").await, 1);
    assert_eq!(world.column("o-1", ATTEMPTS).await.as_deref(), Some("2"));
    assert_eq!(world.column("o-1", "failures").await, None);
}

#[tokio::test]
async fn permanent_failure_after_failed_statement() {
    let world = World::start().await;
    let invalid = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        tx.execute("SELECT 1 / 0").await.permanent()?;
        Ok(tx.done(()))
    };
    let outcome = world.mode().run(operation("o-1", ample()), invalid).await;
    assert!(
        matches!(outcome, Outcome::PermanentFailure(_)),
        "{outcome:?}"
    );
    assert_eq!(world.status("o-1").await.as_deref(), Some("FAILED"));
}

#[tokio::test]
async fn other_ends_roll_back_and_run_again() {
    let world = World::start().await;
    let (mode, pool) = world.worker();
    for end in [
        "retryable",
        "no effect",
        "panic",
        "cut-off",
        "cut-off in a statement",
    ] {
        let fails = async |attempt: Attempt| {
            let mut tx = Transaction::of(&attempt)?;
            increment(&mut tx, end).await?;
            match end {
                "retryable" => return Err(Failure::retryable(end)),
                "no effect" => return Err(Failure::no_effect(end)),
                "panic" => panic!("{end}"),
                "cut-off" => pending().await,
                _ => tx.execute("SELECT pg_sleep(60)").await?,
            };
            Ok(tx.done(()))
        };
        let outcome = mode.run(operation(end, short()), fails).await;
        assert!(
            matches!(
                (end, &outcome),
                ("retryable", Outcome::RetryableFailure(_))
                    | ("no effect", Outcome::NoEffect(_))
                    | ("panic", Outcome::Panicked)
                    | ("cut-off" | "cut-off in a statement", Outcome::OutOfTime)
            ),
            "{end}: {outcome:?}"
        );
        assert_eq!(
            (world.effect(end).await, world.status(end).await),
            (0, None),
            "{end}"
        );
        // The same connection, or a new one.
        assert_completed(&mode.run(operation(end, ample()), increments(end)).await);
        assert_eq!(world.effect(end).await, 1, "{end}");
        assert_eq!(pool.size(), 1);
    }
}

#[tokio::test]
async fn expired_record_counts_as_absent() {
    let world = World::start().await;
    let brief = world.mode().retention(SECOND);
    assert_completed(
        &brief
            .run(operation("o-1", ample()), increments("o-1"))
            .await,
    );
    // Two seconds, since the end of the retention is rounded up.
    let later = world.mode().clock(|| Timestamp::now() + 3 * SECOND);
    assert_completed(
        &later
            .run(operation("o-1", ample()), increments("o-1"))
            .await,
    );
    assert_eq!(world.effect("o-1").await, 2);
    // Absent is 1.
    assert_eq!(world.column("o-1", ATTEMPTS).await, None);
}

#[tokio::test]
async fn ended_lease_of_claim_mode_is_taken_over() {
    let world = World::start().await;
    let once = Once::new(PostgresStore::new(world.pool.clone()));
    let crash = async |_| Err::<(), _>(Failure::retryable("no answer"));
    let _ = once.run(operation("o-1", ample()), crash).await;
    assert_eq!(world.status("o-1").await.as_deref(), Some("IN_PROGRESS"));
    // The lease has ended in the millisecond before.
    let informed = Mutex::new(None);
    let takes_over = async |attempt: Attempt| {
        *informed.lock().unwrap() = Some(attempt.prior().is_some());
        increments("o-1")(attempt).await
    };
    let mode = world.mode().clock(|| Timestamp::now() + SECOND);
    assert_completed(&mode.run(operation("o-1", ample()), takes_over).await);
    assert_eq!(*informed.lock().unwrap(), Some(true));
    assert_eq!(world.column("o-1", ATTEMPTS).await.as_deref(), Some("2"));
    let again = once.run(operation("o-1", ample()), async |_| Ok(())).await;
    assert!(matches!(again, Outcome::Duplicate(_)), "{again:?}");
}

#[tokio::test]
async fn live_lease_of_claim_mode_is_conflict() {
    let world = World::start().await;
    let once = Once::new(PostgresStore::new(world.pool.clone()));
    let rival = async |_| {
        let outcome = world.deliver("o-1").await;
        assert!(
            matches!(outcome, Outcome::Conflict { owner: Some(_), .. }),
            "{outcome:?}"
        );
        Ok(())
    };
    assert_completed(&once.run(operation("o-1", ample()), rival).await);
    assert_eq!(world.effect("o-1").await, 0);
}

#[tokio::test]
async fn handlers_own_commit_is_permanent_failure() {
    let world = World::start().await;
    for sql in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "COMMIT AND CHAIN"] {
        let ends = async |attempt: Attempt| {
            let mut tx = Transaction::of(&attempt)?;
            sqlx::raw_sql(sql).execute(&mut *tx).await?;
            increment(&mut tx, sql).await?;
            Ok(tx.done(()).publish(Event::new("placed", &1)))
        };
        let outcome = world.mode().run(operation(sql, ample()), ends).await;
        let Outcome::PermanentFailure(why) = &outcome else {
            panic!("{sql}: {outcome:?}")
        };
        assert!(why.contains("tx.done"), "{why}");
        assert_eq!(world.status(sql).await.as_deref(), Some("FAILED"), "{sql}");
        assert_eq!(world.events().await, [], "{sql}");
        let again = world.deliver(sql).await;
        assert!(
            matches!(again, Outcome::FailedBefore(_)),
            "{sql}: {again:?}"
        );
        // The handler's own writes stay.
        let is_told = Mutex::new(None);
        let told = async |attempt: Attempt| {
            *is_told.lock().unwrap() = Some(attempt.prior().is_some());
            increments("o-2")(attempt).await
        };
        let later = operation_of(sql, "another message", ample());
        assert_completed(&world.mode().run(later, told).await);
        assert_eq!(*is_told.lock().unwrap(), Some(true), "{sql}");
    }
}

#[tokio::test]
async fn nested_begin_is_savepoint() {
    let world = World::start().await;
    let nested = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        let mut inner = tx.begin().await?;
        increment(&mut inner, "rolled back").await?;
        inner.rollback().await?;
        let mut inner = tx.begin().await?;
        increment(&mut inner, "dropped").await?;
        drop(inner);
        let mut inner = tx.begin().await?;
        assert!(inner.execute("SELECT 1 / 0").await.is_err());
        inner.rollback().await?;
        let mut inner = tx.begin().await?;
        increment(&mut inner, "o-1").await?;
        inner.commit().await?;
        Ok(tx.done(()))
    };
    assert_completed(&world.mode().run(operation("o-1", ample()), nested).await);
    for (id, n) in [("rolled back", 0), ("dropped", 0), ("o-1", 1)] {
        assert_eq!(world.effect(id).await, n, "{id}");
    }
}

/// sqlx rolls back the whole transaction then. Later statements would run without one.
#[tokio::test]
async fn savepoint_that_does_not_begin_commits_nothing() {
    for is_dropped in [false, true] {
        let world = World::start().await;
        let goes_on = async |attempt: Attempt| {
            let mut tx = Transaction::of(&attempt)?;
            if is_dropped {
                assert!(tx.begin().now_or_never().is_none());
            } else {
                assert!(tx.execute("SELECT 1 / 0").await.is_err());
                assert!(tx.begin().await.is_err());
            }
            increment(&mut tx, "o-1").await?;
            Ok(tx.done(()))
        };
        let outcome = world.mode().run(operation("o-1", ample()), goes_on).await;
        assert!(matches!(outcome, Outcome::Panicked), "{outcome:?}");
        assert_eq!(world.effect("o-1").await, 0);
        assert_completed(&world.deliver("o-1").await);
        assert_eq!(world.effect("o-1").await, 1);
    }
}

#[tokio::test]
async fn ignored_error_of_statement_commits_nothing() {
    let world = World::start().await;
    let ignores = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "o-1").await?;
        let _ignored = tx.execute("SELECT 1 / 0").await;
        Ok(tx.done(()).publish(Event::new("placed", &1)))
    };
    let outcome = world.mode().run(operation("o-1", ample()), ignores).await;
    let Outcome::RetryableFailure(why) = &outcome else {
        panic!("{outcome:?}")
    };
    assert!(
        why.text.contains("a statement of the handler failed"),
        "{why}"
    );
    assert_eq!(
        (world.effect("o-1").await, world.status("o-1").await),
        (0, None)
    );
    assert_eq!(world.events().await, []);
}

#[tokio::test]
async fn deferred_constraint_fails_at_commit() {
    let world = World::start().await;
    world
        .run_sql("ALTER TABLE things ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
        .await;
    let twice = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "o-1").await?;
        increment(&mut tx, "o-2").await?;
        Ok(tx.done(()).publish(Event::new("placed", &1)))
    };
    let (mode, pool) = world.worker();
    let outcome = mode.run(operation("o-1", ample()), twice).await;
    let Outcome::RetryableFailure(why) = &outcome else {
        panic!("{outcome:?}")
    };
    assert!(why.text.contains("things_n_key"), "{why}");
    assert_eq!(
        (world.effect("o-1").await, world.status("o-1").await),
        (0, None)
    );
    assert_eq!(world.events().await, []);
    assert_completed(&mode.run(operation("o-1", ample()), increments("o-1")).await);
    assert_eq!(pool.size(), 1);
}

#[tokio::test]
async fn transaction_is_for_one_user_at_a_time() {
    let world = World::start().await;
    let twice = async |attempt: Attempt| {
        drop(Transaction::of(&attempt)?);
        let tx = Transaction::of(&attempt)?;
        let error = Transaction::of(&attempt).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
        Ok(tx.done(()))
    };
    assert_completed(&world.mode().run(operation("o-1", ample()), twice).await);
}

#[tokio::test]
async fn other_mode_has_no_transaction() {
    let once = Once::new(MemoryStore::default());
    let asks = async |attempt: Attempt| {
        Transaction::of(&attempt)?;
        Ok(())
    };
    let outcome = once.run(operation("o-1", ample()), asks).await;
    let Outcome::PermanentFailure(why) = &outcome else {
        panic!("{outcome:?}")
    };
    assert!(why.contains("PostgresMode"), "{why}");
}

#[tokio::test]
async fn task_that_keeps_transaction_loses_it() {
    let world = World::start().await;
    let (mode, pool) = world.worker();
    let leaked = Mutex::new(None);
    let leaks = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "o-1").await?;
        *leaked.lock().unwrap() = Some((tx, attempt));
        Err::<InTransaction<()>, _>(Failure::retryable("a task goes on"))
    };
    let outcome = mode.run(operation("o-1", ample()), leaks).await;
    assert!(
        matches!(outcome, Outcome::RetryableFailure(_)),
        "{outcome:?}"
    );
    let (tx, attempt) = leaked.lock().unwrap().take().unwrap();
    drop(tx);
    let error = Transaction::of(&attempt).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    assert_completed(&mode.run(operation("o-1", ample()), increments("o-1")).await);
    assert_eq!((world.effect("o-1").await, pool.size()), (1, 1));
}

#[tokio::test]
async fn past_deadline_starts_nothing() {
    let world = World::start().await;
    let past = Deadline::after(Timestamp::now(), SECOND / 1000, SECOND / 1000);
    tokio::time::sleep_until((std::time::Instant::now() + past.time_left()).into()).await;
    let outcome = world
        .mode()
        .run(operation("o-1", past), increments("o-1"))
        .await;
    assert!(matches!(outcome, Outcome::NotStarted), "{outcome:?}");
    assert_eq!(world.status("o-1").await, None);
}
