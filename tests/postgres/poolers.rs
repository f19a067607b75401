//! PgBouncer in transaction mode between the workers and the server.

use futures_util::future::join_all;
use sqlx::{Executor as _, PgConnection};
use sqs_once::{Attempt, Failure, Once, Outcome, Settings, handler_fn};
use sqs_once_postgres::{
    DatabaseSettings, InTransaction, PostgresMode, PostgresStore, Transaction,
};
use sqs_once_testing::conformance;
use support::pooled::Pooled;
use support::world::{SECOND, ample, increments, operation};
use support::{log, postgres::Server, postgres_wire::Cut};
use tokio::{join, time::sleep};

const MORE: &str = "UPDATE things SET n = n + 1 WHERE id = $1";
const LESS: &str = "UPDATE things SET n = n - 1 WHERE id = $1";

#[track_caller]
fn unavailable(outcome: &Outcome) -> String {
    let Outcome::StoreUnavailable(error) = outcome else {
        panic!("{outcome:?}")
    };
    error.to_string()
}

/// The reason for refusing kept statements behind a pooler: each connection of sqlx calls its first
/// statement `sqlx_s_1`. If this test fails, the pooler or sqlx has been corrected.
#[tokio::test]
async fn sqlx_runs_statement_of_another_client() {
    let Some(pooled) = Pooled::start(&["default_pool_size=2"]).await else {
        return;
    };
    pooled.insert_things().await;
    let (mut a, mut b) = (pooled.plain_client().await, pooled.plain_client().await);
    // In two sessions of the server.
    for client in [&mut a, &mut b] {
        client.execute("BEGIN").await.unwrap();
    }
    let run = async |sql: &'static str, id: &'static str, client: &mut PgConnection| {
        let run = sqlx::query(sql).bind(id).execute(client).await.unwrap();
        assert_eq!(run.rows_affected(), 1);
    };
    run(MORE, "more", &mut a).await;
    run(LESS, "less", &mut b).await;
    for client in [&mut a, &mut b] {
        client.execute("COMMIT").await.unwrap();
    }
    assert_eq!(pooled.world.effect("more").await, 1);
    // The pooler hands out the session that was used last, which is the other client's.
    run(MORE, "more", &mut a).await;
    assert_eq!(pooled.world.effect("more").await, 0);
}

async fn changes(sql: &'static str, attempt: Attempt) -> Result<InTransaction<i32>, Failure> {
    let mut tx = Transaction::of(&attempt)?;
    let session = sqlx::query_scalar("SELECT pg_backend_pid()");
    let session = session.fetch_one(&mut *tx).await?;
    let id = if sql == MORE { "more" } else { "less" };
    let change = sqlx::query(sql).bind(id).execute(&mut *tx).await?;
    assert_eq!(change.rows_affected(), 1);
    Ok(tx.done(session))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rival_clients_run_their_own_statements() {
    const CLIENTS: usize = 4;
    const MESSAGES: usize = 30;
    let Some(pooled) = Pooled::start(&["default_pool_size=3"]).await else {
        return;
    };
    pooled.insert_things().await;
    let clients = (0..CLIENTS).map(async |client| {
        let mode = pooled.mode(2);
        let messages = (0..MESSAGES).map(async |message| {
            let id = format!("{client}-{message}");
            // The clients prepare their statements in another order.
            let sql = [MORE, LESS][(client + message) % 2];
            let run = mode.run(operation(&id, ample()), |attempt| changes(sql, attempt));
            let outcome = run.await;
            assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        });
        join_all(messages).await;
    });
    join_all(clients).await;
    let sessions = "SELECT count(DISTINCT result) FROM sqs_once_records";
    let sessions: i64 = sqlx::query_scalar(sessions)
        .fetch_one(&pooled.world.pool)
        .await
        .unwrap();
    let closed = pooled.pooler.closed_sessions();
    assert!(
        sessions <= 3,
        "{sessions} sessions, of which PgBouncer closed {closed:#?}"
    );
    let half = i64::try_from(CLIENTS * MESSAGES / 2).unwrap();
    assert_eq!(pooled.world.effect("more").await, half);
    assert_eq!(pooled.world.effect("less").await, -half);
    let mode = pooled.mode(1);
    let run = mode.run(operation("0-0", ample()), |attempt| changes(MORE, attempt));
    let again = run.await;
    assert!(matches!(again, Outcome::Duplicate(_)), "{again:?}");
}

macro_rules! conformance {
    ($($promise:ident)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            let Some(pooled) = Pooled::start(&["default_pool_size=3"]).await else {
                return;
            };
            conformance::$promise(&PostgresStore::new(pooled.pool(10))).await;
        })+
    };
}

/// The store of the claim mode behind a pooler.
mod conforms {
    use super::*;

    sqs_once_testing::for_each_promise_of_a_store!(conformance,);
}

/// As by default, and as its administrators tell it to accept and ignore sqlx's and our parameters.
#[tokio::test]
async fn pooler_is_refused_unless_the_url_names_it() {
    let ignores = "ignore_startup_parameters=extra_float_digits,options";
    for settings in [&[][..], &[ignores]] {
        let Some(pooled) = Pooled::start(settings).await else {
            return;
        };
        let pool = || {
            let options = pooled.options.clone().statement_cache_capacity(100);
            sqs_once_postgres::pool(options, 1)
        };
        let remedy = "statement-cache-capacity=0";
        let mode = PostgresMode::new(pool());
        let refused = mode.run(operation("o-1", ample()), increments("o-1")).await;
        let error = unavailable(&refused);
        assert!(error.contains(remedy), "{error}");
        let once = Once::new(PostgresStore::new(pool()));
        let refused = once.run(operation("o-1", ample()), async |_| Ok(1)).await;
        let error = unavailable(&refused);
        assert!(error.contains(remedy), "{error}");
        assert_eq!(pooled.world.status("o-1").await, None);
        assert_eq!(pooled.world.effect("o-1").await, 0);
    }
}

#[tokio::test]
async fn login_that_pooler_refuses_is_explained_at_start() {
    let Some(pooled) = Pooled::start(&[]).await else {
        return;
    };
    let url = |parameters: &str| {
        let (user, port) = (pooled.options.get_username(), pooled.pooler.port);
        format!("postgres://{user}@127.0.0.1:{port}/postgres?sslmode=disable{parameters}")
    };
    let search_path = "&statement-cache-capacity=0&options=-c%20search_path%3Dpublic";
    for (parameters, remedy) in [
        ("", "`statement-cache-capacity=0`"),
        (search_path, "ALTER ROLE .. SET search_path"),
        ("&statement-cache-capacity=0", ""),
    ] {
        log::start();
        let mut settings = Settings::from_vars([
            ("IDEMPOTENCY_POSTGRES_URL", &*url(parameters)),
            ("AWS_LAMBDA_RUNTIME_API", "unused"),
            ("CONSUMER_VISIBILITY", "off"),
            ("IDEMPOTENCY_NAMESPACE", "tests"),
        ])
        .sdk_config(support::sdk_config("http://127.0.0.1:1"));
        let database = DatabaseSettings::read(&mut settings);
        let done = async |_: String, attempt: Attempt| Ok(Transaction::of(&attempt)?.done(()));
        drop(
            settings
                .consumer(database, Ok(handler_fn(done)))
                .await
                .unwrap(),
        );
        let lines = log::lines_containing("could not prepare the tables at start");
        let errors: Vec<_> = lines
            .iter()
            .map(|line| line["fields"]["error"].as_str().unwrap())
            .collect();
        if remedy.is_empty() {
            assert!(errors.is_empty(), "{errors:?}");
        } else {
            assert!(errors[0].contains(remedy), "{errors:?}");
        }
    }
}

#[tokio::test]
async fn saturated_pooler_delays_messages_on_one_connection() {
    let Some(pooled) = Pooled::start(&["default_pool_size=1"]).await else {
        return;
    };
    let mut other = pooled.plain_client().await;
    // A new connection, one that was just used, and one that was idle.
    for (case, pause) in [(0, 0), (1, 0), (2, 11)] {
        let (mode, pool, wire) = pooled.worker_behind_wire().await;
        if case > 0 {
            let warm = format!("warm-{case}");
            let warm = mode.run(operation(&warm, ample()), increments(&warm)).await;
            assert!(matches!(warm, Outcome::Completed(_)), "{warm:?}");
            while pool.num_idle() == 0 {
                tokio::task::yield_now().await;
            }
            sleep(SECOND / 10 * pause).await;
        }
        other.execute("BEGIN").await.unwrap();
        // Far beyond its requests: records them.
        wire.cut(1000, Cut::Before);
        let id = format!("o-{case}");
        let run = mode.run(operation(&id, ample()), increments(&id));
        let (outcome, ()) = join!(run, async {
            // Longer than `BEGIN` waits on an old connection without a pooler.
            sleep(SECOND * 5 / 2).await;
            other.execute("COMMIT").await.unwrap();
        });
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        let requests = wire.take();
        let of_message = requests.iter().take_while(|name| *name != "COMMIT");
        let begins = of_message.filter(|name| *name == "BEGIN");
        assert_eq!(begins.count(), 1, "{requests:?}");
        assert_eq!(wire.accepted(), 1);
    }
}

#[tokio::test]
async fn operation_behind_pooler_makes_eight_round_trips() {
    let Some(pooled) = Pooled::start(&[]).await else {
        return;
    };
    let (mode, _pool, wire) = pooled.worker_behind_wire().await;
    for id in ["o-1", "o-2"] {
        wire.cut(1000, Cut::Before);
        let outcome = mode.run(operation(id, ample()), increments(id)).await;
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
    let statement = ["prepare", "execute"];
    let expected = [
        &["BEGIN"][..],
        &statement,
        &statement,
        &statement,
        &["COMMIT"],
    ];
    assert_eq!(wire.take(), expected.concat());
}

/// The pooler accepts logins and ends each session at `BEGIN`: at once if it knows that the server is gone,
/// else after `query_wait_timeout`.
#[tokio::test]
async fn pooler_without_server_gets_few_logins() {
    let server = Server::start();
    let settings = ["server_login_retry=1", "query_wait_timeout=1"];
    let Some(pooled) = Pooled::before(&server, &settings).await else {
        return;
    };
    let (warm, ..) = pooled.worker_behind_wire().await;
    let warm = warm
        .run(operation("warm", ample()), increments("warm"))
        .await;
    assert!(matches!(warm, Outcome::Completed(_)), "{warm:?}");
    server.kill();
    let (mode, _pool, wire) = pooled.worker_behind_wire().await;
    let outcome = mode.run(operation("o-1", ample()), increments("o-1")).await;
    let error = unavailable(&outcome);
    assert!(
        (2..=3).contains(&wire.accepted()),
        "{} {error}",
        wire.accepted()
    );
}

#[tokio::test]
async fn expired_records_are_deleted_behind_pooler() {
    let Some(pooled) = Pooled::start(&[]).await else {
        return;
    };
    pooled
        .world
        .run_sql("INSERT INTO sqs_once_records (id, status, expires_at, attempts, failed_message_ids) VALUES ('old', 'FAILED', 1, 1, '{}')")
        .await;
    let mode = pooled.mode(1);
    // The first completion of a process deletes.
    let outcome = mode.run(operation("o-1", ample()), increments("o-1")).await;
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    let kept = "SELECT count(*) FROM sqs_once_records";
    let kept: i64 = sqlx::query_scalar(kept)
        .fetch_one(&pooled.world.pool)
        .await
        .unwrap();
    assert_eq!(kept, 1);
}
