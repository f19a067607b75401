//! The table of records, and the store of the claim mode.

use std::{
    future::pending,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Executor, postgres::PgSslMode};
use sqs_once::{
    Deadline, Failure, Once, Outcome,
    protocol::{ClaimRequest, CrashWaits, Owner, Settlement, StoredResult, Timestamp},
    store::{ClaimResponse, SettleResponse, Store},
    testing::conformance,
};
use sqs_once_postgres::PostgresStore;
use support::CONTEXT;
use support::postgres::{SERVER, one};
use support::world::{SECOND, World, ample, increments, key, operation};
use tokio::sync::Notify;

macro_rules! conformance {
    ($($promise:ident)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            let world = World::start().await;
            conformance::$promise(&PostgresStore::new(world.pool)).await;
        })+
    };
}

sqs_once::testing::for_each_promise_of_a_store!(conformance,);

fn request(id: &str, now: Timestamp, expires_at: u64) -> ClaimRequest {
    ClaimRequest::new(
        key(id),
        Owner::fresh(),
        "m-1",
        now,
        now + SECOND,
        expires_at,
    )
}

#[tokio::test]
async fn consumer_needs_no_privilege_to_create() {
    let world = World::start().await;
    let options = world.options.clone();
    let schema = options.get_application_name().unwrap();
    let user = format!("user_of_{schema}");
    let grants = format!(
        "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.sqs_once_records TO {user}"
    );
    sqlx::raw_sql(AssertSqlSafe(grants))
        .execute(&world.pool)
        .await
        .unwrap();
    let pool = one(options.username(&user));
    let once = Once::new(PostgresStore::new(pool));
    let outcome = once.run(operation("o-1", ample()), async |_| Ok(1)).await;
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

/// The process ends once beside other handlers, and twice alone. Each time the message rests for an hour.
#[tokio::test]
async fn message_that_always_kills_has_crashed() {
    const HOUR: Duration = Duration::from_secs(3600);
    static HOURS: AtomicU64 = AtomicU64::new(0);
    let clock = || Timestamp::now() + HOUR * u32::try_from(HOURS.load(SeqCst)).unwrap();
    let world = World::start().await;
    let once = Once::new(PostgresStore::new(world.pool.clone()))
        .clock(clock)
        .crash_waits(CrashWaits::new([HOUR]));
    let operation = || operation("o-1", Deadline::after(clock(), 30 * SECOND, 5 * SECOND));
    for _ in 0..3 {
        let began = Notify::new();
        let run = once.run(operation(), async |_| -> Result<u32, Failure> {
            began.notify_one();
            pending().await
        });
        tokio::select! {
            outcome = run => panic!("{outcome:?}"),
            () = began.notified() => {}
        }
        HOURS.fetch_add(2, SeqCst);
    }
    let outcome = once.run(operation(), async |_| Ok(1)).await;
    assert!(matches!(outcome, Outcome::Crashed(_)), "{outcome:?}");
    let again = once.run(operation(), async |_| Ok(1)).await;
    assert!(matches!(again, Outcome::FailedBefore(_)), "{again:?}");
}

#[tokio::test]
async fn missing_table_is_explained() {
    let pool = one(SERVER.schema().await);
    let once = Once::new(PostgresStore::new(pool));
    let outcome = once.run(operation("o-1", ample()), async |_| Ok(1)).await;
    let Outcome::StoreUnavailable(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(
        error.to_string().contains("migrations/1_sqs_once.sql"),
        "{error}"
    );
    assert!(!error.may_have_been_applied());
}

#[tokio::test]
async fn server_without_tls_is_refused() {
    let options = SERVER.schema().await.ssl_mode(PgSslMode::VerifyFull);
    let once = Once::new(PostgresStore::new(one(options)));
    let outcome = once.run(operation("o-1", ample()), async |_| Ok(1)).await;
    let Outcome::StoreUnavailable(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[tokio::test]
async fn claim_mode_runs_operation_once() {
    let world = World::start().await;
    let once = Once::new(PostgresStore::new(world.pool.clone()));
    let first = once.run(operation("o-1", ample()), async |_| Ok(17)).await;
    assert!(matches!(first, Outcome::Completed(_)), "{first:?}");
    let second = once.run(operation("o-1", ample()), async |_| Ok(18)).await;
    let kept = StoredResult::Json("17".into());
    assert!(matches!(second, Outcome::Duplicate(result) if result == kept));
}

#[tokio::test]
async fn late_write_after_deletion_is_refused() {
    let world = World::start().await;
    let store = PostgresStore::new(world.pool.clone());
    let now = Timestamp::now();
    let first = request("o-1", now, now.as_secs() + 60);
    assert_eq!(
        store.claim(&first, &CONTEXT).await.unwrap(),
        ClaimResponse::Applied { replaced: None }
    );
    world.run_sql("DELETE FROM sqs_once_records").await;
    let second = request("o-1", now, now.as_secs() + 60);
    let _ = store.claim(&second, &CONTEXT).await.unwrap();
    let end = Settlement::Release { last_end: None };
    let late = store
        .settle(&first.fence(), &end, now, &CONTEXT)
        .await
        .unwrap();
    assert_eq!(
        late,
        SettleResponse::ConditionFailed(Some(second.record(None)))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_takeovers_admit_one() {
    let world = World::start().await;
    let store = PostgresStore::new(world.pool.clone());
    for round in 0..20 {
        let id = format!("o-{round}");
        let now = Timestamp::now();
        let _ = store
            .claim(&request(&id, now, now.as_secs() + 60), &CONTEXT)
            .await
            .unwrap();
        let later = now + 2 * SECOND;
        let claims = (0..16).map(|_| {
            let (store, request) = (store.clone(), request(&id, later, now.as_secs() + 60));
            tokio::spawn(async move { store.claim(&request, &CONTEXT).await.unwrap() })
        });
        let answers = join_all(claims.collect::<Vec<_>>()).await;
        let applied = (answers.into_iter())
            .filter(|answer| matches!(answer, Ok(ClaimResponse::Applied { .. })));
        assert_eq!(applied.count(), 1);
    }
}

async fn number_of_expired(world: &World) -> i64 {
    let sql = "SELECT count(*) FROM sqs_once_records WHERE expires_at = 1";
    sqlx::query_scalar(sql)
        .fetch_one(&world.pool)
        .await
        .unwrap()
}

async fn insert_expired(world: &World) {
    world
        .run_sql(
            "INSERT INTO sqs_once_records (id, status, expires_at, attempts, failed_message_ids) \
             SELECT 'old-' || n, 'COMPLETED', 1, 1, '{}' FROM generate_series(1, 250) AS n",
        )
        .await;
}

/// A steady load deletes twice as many records as it makes.
#[tokio::test]
async fn expired_records_are_deleted_by_completions() {
    let world = World::start().await;
    insert_expired(&world).await;
    let once = Once::new(PostgresStore::new(world.pool.clone()));
    // The first completion deletes too: an environment may be short-lived.
    for (completions, left) in [(1, 150), (49, 150), (1, 50), (49, 50), (1, 0)] {
        for _ in 0..completions {
            let id = fastrand::u64(..).to_string();
            let outcome = once.run(operation(&id, ample()), async |_| Ok(1)).await;
            assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        }
        assert_eq!(number_of_expired(&world).await, left);
    }
}

/// The transaction has returned its connection by then.
#[tokio::test]
async fn one_connection_deletes_expired_records() {
    let world = World::start().await;
    insert_expired(&world).await;
    let (mode, _pool) = world.worker();
    let outcome = mode.run(operation("o-1", ample()), increments("o-1")).await;
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    assert_eq!(number_of_expired(&world).await, 150);
}

#[tokio::test]
async fn popular_cte_returns_no_row() {
    // The statement that many pages show: a new row, or else the existing one.
    const POPULAR: &str = "WITH new AS (INSERT INTO things VALUES ('o-1', 2) \
        ON CONFLICT (id) DO NOTHING RETURNING n) \
        SELECT n FROM new UNION ALL SELECT n FROM things WHERE id = 'o-1'";
    const OURS: &str = "INSERT INTO things AS t VALUES ('o-1', 2) \
        ON CONFLICT (id) DO UPDATE SET id = t.id RETURNING n";
    for (statement, rows) in [(POPULAR, vec![]), (OURS, vec![1_i64])] {
        let world = World::start().await;
        let mut rival = world.pool.begin().await.unwrap();
        rival
            .execute("INSERT INTO things VALUES ('o-1', 1)")
            .await
            .unwrap();
        let pool = world.pool.clone();
        let waiting = tokio::spawn(async move {
            sqlx::query_scalar(statement)
                .fetch_all(&pool)
                .await
                .unwrap()
        });
        world.waiting(1).await;
        rival.commit().await.unwrap();
        let found: Vec<i64> = waiting.await.unwrap();
        assert_eq!(found, rows, "{statement}");
    }
}
