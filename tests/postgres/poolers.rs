//! PgBouncer in transaction mode between the workers and the server.

use futures_util::future::join_all;
use sqlx::{Executor as _, PgConnection};
use sqs_once::{Attempt, Failure, Once, Outcome, Settings, handler_fn};
use sqs_once_postgres::{InTransaction, PostgresMode, PostgresStore, Transaction};
use support::pooled::Pooled;
use support::world::{ample, increments, operation};
use support::{log, postgres::one};

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
    let pooled = Pooled::start(&["default_pool_size=2"]).await;
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
    let pooled = Pooled::start(&["default_pool_size=3"]).await;
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
    // On a busy machine a client gives up a request that waits too long, and PgBouncer closes its
    // session and opens another.
    let closed = pooled.pooler.closed_sessions();
    let at_once = usize::try_from(sessions)
        .unwrap()
        .saturating_sub(closed.len());
    assert!(
        at_once <= 3,
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

/// As by default, and as its administrators tell it to accept and ignore sqlx's and our parameters.
#[tokio::test]
async fn pooler_is_refused_unless_the_url_names_it() {
    let ignores = "ignore_startup_parameters=extra_float_digits,options";
    for settings in [&[][..], &[ignores]] {
        let pooled = Pooled::start(settings).await;
        let pool = || {
            let options = pooled.options.clone().statement_cache_capacity(100);
            one(options)
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
    let pooled = Pooled::start(&[]).await;
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
        let settings = Settings::from_vars([
            ("AWS_LAMBDA_RUNTIME_API", "unused"),
            ("CONSUMER_VISIBILITY", "off"),
            ("IDEMPOTENCY_NAMESPACE", "tests"),
        ])
        .sdk_config(support::sdk_config("http://127.0.0.1:1"));
        let mode = PostgresMode::new(one(url(parameters).parse().unwrap()));
        let done = async |_: String, attempt: Attempt| {
            Ok::<_, Failure>(Transaction::of(&attempt)?.done(()))
        };
        drop(settings.consumer(mode, Ok(handler_fn(done))).await.unwrap());
        let lines = log::lines_containing("could not read the table sqs_once_records at start");
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
