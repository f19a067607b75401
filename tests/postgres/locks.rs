//! Two transactions in each other's way, and transactions whose worker has gone.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use serde_json::json;
use sqlx::{Executor, PgPool, postgres::PgConnectOptions};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Outcome, handler_fn,
    protocol::{Namespace, StoredResult, Timestamp},
};
use sqs_once_postgres::{InTransaction, PostgresMode, Transaction};
use support::world::{SECOND, World, ample, increment, increments, operation, short};
use support::{PATIENCE, postgres::one};
use tokio::{
    join, select,
    sync::Notify,
    time::{Instant, timeout},
};

#[track_caller]
fn assert_completed(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

/// Opens the transaction of an operation `o-1`, runs `meanwhile`, and then ends it by `end`.
async fn hold_open<T>(
    world: &World,
    end: Result<(), Failure>,
    meanwhile: impl Future<Output = T>,
) -> (Outcome, T) {
    let (running, go_on) = (Notify::new(), Notify::new());
    let holds = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "o-1").await?;
        running.notify_one();
        go_on.notified().await;
        end?;
        Ok(tx.done(()))
    };
    let mode = world.mode();
    join!(mode.run(operation("o-1", ample()), holds), async {
        running.notified().await;
        let meanwhile = meanwhile.await;
        go_on.notify_one();
        meanwhile
    })
}

/// Delivers `o-1` twice, the second time while the first waits to end by `end`.
async fn first_and_second(world: &World, end: Result<(), Failure>) -> (Outcome, Outcome) {
    let mode = world.mode();
    let second = async move { mode.run(operation("o-1", ample()), increments("o-1")).await };
    let started = async {
        let second = tokio::spawn(second);
        world.waiting(1).await;
        (second,)
    };
    let (first, (second,)) = hold_open(world, end, started).await;
    (first, second.await.unwrap())
}

#[tokio::test]
async fn rival_of_committed_one_is_duplicate() {
    let world = World::start().await;
    let (first, second) = first_and_second(&world, Ok(())).await;
    assert_completed(&first);
    assert!(matches!(second, Outcome::Duplicate(_)), "{second:?}");
    assert_eq!(world.effect("o-1").await, 1);
}

#[tokio::test]
async fn rival_of_rolled_back_one_runs() {
    let world = World::start().await;
    let failure = Err(Failure::retryable("no answer"));
    let (first, second) = first_and_second(&world, failure).await;
    assert!(matches!(first, Outcome::RetryableFailure(_)), "{first:?}");
    assert_completed(&second);
    assert_eq!(world.effect("o-1").await, 1);
}

#[tokio::test]
async fn rival_of_failed_one_runs_as_other_message() {
    let world = World::start().await;
    let failure = Err(Failure::permanent("declined"));
    let (first, second) = first_and_second(&world, failure).await;
    // The message is the same, so whichever records its end first decides.
    match (&first, &second) {
        (Outcome::PermanentFailure(_), Outcome::FailedBefore(_))
        | (Outcome::Duplicate(_), Outcome::Completed(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rival_out_of_time_is_conflict() {
    let world = World::start().await;
    let (mode, pool) = world.worker();
    let rival = mode.run(operation("o-1", short()), increments("o-1"));
    let (first, second) = hold_open(&world, Ok(()), rival).await;
    assert_completed(&first);
    assert!(matches!(second, Outcome::Conflict { .. }), "{second:?}");
    assert_eq!(world.effect("o-1").await, 1);
    let third = mode.run(operation("o-1", ample()), increments("o-1")).await;
    assert!(matches!(third, Outcome::Duplicate(_)), "{third:?}");
    assert_eq!(pool.size(), 1);
}

#[tokio::test]
async fn other_keys_do_not_wait() {
    let world = World::start().await;
    let other = async { world.deliver("o-2").await };
    let (first, other) = hold_open(&world, Ok(()), other).await;
    assert_completed(&first);
    assert_completed(&other);
}

fn serializable(world: &World) -> PgConnectOptions {
    let options = world.options.clone();
    options.options([("default_transaction_isolation", "serializable")])
}

/// A handler that reads the thing `o-1`, lets a rival change it in its first run, and increments it.
async fn increments_after_rival(
    attempt: Attempt,
    rival: PgPool,
    runs: Arc<AtomicUsize>,
) -> Result<InTransaction<()>, Failure> {
    let mut tx = Transaction::of(&attempt)?;
    tx.execute("SELECT n FROM things WHERE id = 'o-1'").await?;
    if runs.fetch_add(1, Relaxed) == 0 {
        increment(&mut *rival.acquire().await?, "o-1").await?;
    }
    increment(&mut tx, "o-1").await?;
    Ok(tx.done(()))
}

#[tokio::test]
async fn consumer_runs_contended_message_again() {
    let world = World::start().await;
    let runs = Arc::<AtomicUsize>::default();
    let handler = handler_fn({
        let (rival, runs) = (world.pool.clone(), Arc::clone(&runs));
        move |_: serde_json::Value, attempt| {
            increments_after_rival(attempt, rival.clone(), Arc::clone(&runs))
        }
    });
    let mode = PostgresMode::new(one(serializable(&world)));
    let consumer = Consumer::without_aws(mode, Namespace::new("tests").unwrap(), handler);
    let batch = sqs_once::testing::event([sqs_once::testing::Message::new("m-1", &json!({}))]);
    let failed = sqs_once::testing::process(&Arc::new(consumer), batch).await;
    assert_eq!(failed, Ok(Vec::new()));
    assert_eq!((runs.load(Relaxed), world.effect("o-1").await), (2, 2));
}

#[tokio::test]
async fn deadlock_is_contended() {
    let world = World::start().await;
    world
        .run_sql("INSERT INTO things VALUES ('a', 0), ('b', 0)")
        .await;
    // The session whose check comes first is the victim.
    let options = world.options.clone().options([("deadlock_timeout", "10")]);
    let mode = PostgresMode::new(one(options));
    let mut rival = world.pool.begin().await.unwrap();
    rival
        .execute("SET LOCAL deadlock_timeout = '1min'")
        .await
        .unwrap();
    increment(&mut rival, "b").await.unwrap();
    let crosswise = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "a").await?;
        // A session checks once, so the rival must wait by then.
        let ours = async {
            world.waiting(1).await;
            increment(&mut tx, "b").await
        };
        let (ours, theirs) = join!(ours, increment(&mut rival, "a"));
        theirs.unwrap();
        ours?;
        Ok(tx.done(()))
    };
    let outcome = mode.run(operation("o-1", ample()), crosswise).await;
    assert!(matches!(outcome, Outcome::Contended(_)), "{outcome:?}");
    rival.commit().await.unwrap();
    assert_eq!((world.effect("a").await, world.effect("b").await), (1, 1));
}

/// A process that is frozen keeps its connections and sends nothing.
#[tokio::test]
async fn frozen_worker_loses_lock_after_deadline() {
    let world = World::start().await;
    let (frozen, _pool) = world.worker();
    let running = Notify::new();
    let deadline = Deadline::after(Timestamp::now(), SECOND, SECOND / 2);
    let start = Instant::now();
    let holds = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "o-1").await?;
        running.notify_one();
        std::future::pending::<()>().await;
        Ok(tx.done(()))
    };
    let mut attempt = pin!(frozen.run(operation("o-1", deadline), holds));
    select! {
        outcome = &mut attempt => panic!("{outcome:?}"),
        () = running.notified() => {}
    }
    // From here on the future is not polled.
    let next = timeout(PATIENCE, world.deliver("o-1")).await.unwrap();
    assert_completed(&next);
    assert!(
        start.elapsed() > SECOND,
        "the lock is kept until the deadline"
    );
    assert_eq!(world.effect("o-1").await, 1);
    // The worker thaws, and finds that its transaction has ended.
    let thawed = attempt.await;
    assert!(matches!(thawed, Outcome::OutOfTime), "{thawed:?}");
    assert_eq!(world.effect("o-1").await, 1);
}

#[tokio::test]
async fn thawed_worker_cannot_commit() {
    let world = World::start().await;
    let (frozen, pool) = world.worker();
    let (running, thaw) = (Notify::new(), Notify::new());
    let holds = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "o-1").await?;
        running.notify_one();
        thaw.notified().await;
        Ok(tx.done(()))
    };
    let (outcome, ()) = join!(frozen.run(operation("o-1", ample()), holds), async {
        running.notified().await;
        // As the server does after the time limits.
        world.close_transactions().await;
        assert_completed(&world.deliver("o-1").await);
        thaw.notify_one();
    });
    assert!(
        matches!(outcome, Outcome::StoreUnavailable(_)),
        "{outcome:?}"
    );
    assert_eq!(world.effect("o-1").await, 1);
    let again = frozen
        .run(operation("o-1", ample()), increments("o-1"))
        .await;
    assert!(matches!(again, Outcome::Duplicate(_)), "{again:?}");
    assert_eq!(pool.size(), 1);
}

/// A server on another system may refuse the check of the client's connection.
#[tokio::test]
async fn clients_connection_is_checked_only_on_linux() {
    let world = World::start().await;
    let setting = async |search_path: &str| {
        let options = world.options.clone();
        let pool = PgPool::connect_lazy_with(options.options([("search_path", search_path)]));
        let reads = async |attempt: Attempt| {
            let mut tx = Transaction::of(&attempt)?;
            let setting = "SELECT current_setting('client_connection_check_interval')";
            let setting: String = sqlx::query_scalar(setting).fetch_one(&mut *tx).await?;
            Ok(tx.done(setting))
        };
        let mode = PostgresMode::new(pool);
        let outcome = mode.run(operation(search_path, ample()), reads).await;
        let Outcome::Completed(StoredResult::Json(setting)) = outcome else {
            panic!("{outcome:?}");
        };
        setting
    };
    let schema = world.options.get_application_name().unwrap();
    assert_eq!(setting(schema).await, r#""1s""#);
    // Found before the server's own function.
    world
        .run_sql(
            "CREATE FUNCTION version() RETURNS text LANGUAGE sql AS \
             $$ SELECT 'PostgreSQL 14.1 on aarch64-apple-darwin' $$",
        )
        .await;
    assert_eq!(setting(&format!("{schema},pg_catalog")).await, r#""0""#);
}

#[tokio::test]
async fn connection_closed_by_server_is_replaced() {
    let world = World::start().await;
    let (mode, pool) = world.worker_of(|options| options.test_before_acquire(false));
    assert_completed(&mode.run(operation("o-1", ample()), increments("o-1")).await);
    world.close_idle_connections().await;
    assert_completed(&mode.run(operation("o-2", ample()), increments("o-2")).await);
    assert_eq!(pool.size(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_server_rolls_back() {
    // Its own server.
    let server = support::postgres::Server::start();
    let world = World::on(&server).await;
    let outcome = {
        let crashes = async |attempt: Attempt| {
            let mut tx = Transaction::of(&attempt)?;
            increment(&mut tx, "o-1").await?;
            tokio::task::block_in_place(|| server.crash());
            Ok(tx.done(()))
        };
        world.mode().run(operation("o-1", ample()), crashes).await
    };
    assert!(
        matches!(outcome, Outcome::StoreUnavailable(_)),
        "{outcome:?}"
    );
    assert_completed(&world.deliver("o-1").await);
    assert_eq!(world.effect("o-1").await, 1);
}

/// The claim waits for a lock until it is too late to start, and the handler until it is cut off.
#[tokio::test]
async fn handler_waits_longer_for_lock_than_claim() {
    let world = World::start().await;
    let mode = world.mode();
    let now = Timestamp::now();
    // Claims may wait for a second.
    let deadline = Deadline::after(now, 60 * SECOND, SECOND).min_time_to_start(58 * SECOND);
    let waits = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        let limit = "SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout'";
        let limit: i64 = sqlx::query_scalar(limit).fetch_one(&mut *tx).await?;
        Ok(tx.done(limit))
    };
    let outcome = mode.run(operation("o-1", deadline), waits).await;
    let Outcome::Completed(StoredResult::Json(limit)) = &outcome else {
        panic!("{outcome:?}")
    };
    assert!(limit.parse::<u64>().unwrap() > 30_000, "{limit}");
}
