//! Connections that the server keeps open, and that are of no use: to a demoted server, with a statement
//! that the server has forgotten or planned for another table.

use futures_util::future::join_all;
use sqlx::{Executor, PgPool};
use sqs_once::{Attempt, Once, Outcome};
use sqs_once_postgres::{PostgresMode, PostgresStore, Transaction};
use support::world::{World, ample, increments, operation};
use support::{log, postgres::Server};

#[track_caller]
fn assert_completed(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

/// Opens as many connections, and returns when they are idle in the pool.
pub(crate) async fn warm_up(pool: &PgPool, connections: usize) {
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(pool.acquire().await.unwrap());
    }
    drop(open);
    while pool.num_idle() < connections {
        tokio::task::yield_now().await;
    }
}

/// A world whose server is a read-only replica now.
async fn demoted() -> (Server, World) {
    let server = Server::start();
    let world = World::on(&server).await;
    world.pool.close().await;
    server.demote();
    (server, world)
}

#[tokio::test]
async fn connections_to_demoted_server_are_replaced() {
    let (_server, old) = demoted().await;
    let new = World::start().await;
    let pool = support::postgres::pool(old.options.clone(), 3);
    warm_up(&pool, 3).await;
    // The name of the cluster is that of the new writer by now.
    pool.set_connect_options(new.options.clone());
    let mode = PostgresMode::new(pool);
    let messages = ["o-1", "o-2", "o-3"];
    let run = messages.map(|id| mode.run(operation(id, ample()), increments(id)));
    for outcome in join_all(run).await {
        assert_completed(&outcome);
    }
    assert_eq!(new.effect("o-1").await, 1);

    let pool = support::postgres::pool(old.options.clone(), 3);
    warm_up(&pool, 3).await;
    pool.set_connect_options(new.options.clone());
    let once = Once::new(PostgresStore::new(pool));
    assert_completed(&once.run(operation("o-4", ample()), async |_| Ok(1)).await);
    assert_eq!(new.status("o-4").await.as_deref(), Some("COMPLETED"));
}

/// The charge is made, and must be recorded. All sessions of the old server are read-only.
#[tokio::test]
async fn completion_after_failover_is_recorded() {
    let world = World::start().await;
    let pool = support::postgres::pool(world.options.clone(), 1);
    let once = Once::new(PostgresStore::new(pool.clone()));
    let charges = async |_: Attempt| {
        pool.acquire().await?.close().await?;
        let read_only = [("default_transaction_read_only", "on")];
        pool.set_connect_options(world.options.clone().options(read_only));
        warm_up(&pool, 1).await;
        pool.set_connect_options(world.options.clone());
        Ok(1)
    };
    assert_completed(&once.run(operation("o-1", ample()), charges).await);
    assert_eq!(world.status("o-1").await.as_deref(), Some("COMPLETED"));
}

#[tokio::test]
async fn request_tries_three_connections_at_most() {
    let (_server, world) = demoted().await;
    let (mode, _pool, wire) = world.worker_behind_wire().await;
    let outcome = mode.run(operation("o-1", ample()), increments("o-1")).await;
    let Outcome::StoreUnavailable(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.to_string().contains("replica"), "{error}");
    // And one that looks for a pooler.
    assert_eq!(wire.accepted(), 4);

    let (_mode, pool, wire) = world.worker_behind_wire().await;
    let once = Once::new(PostgresStore::new(pool));
    let outcome = once.run(operation("o-1", ample()), async |_| Ok(1)).await;
    assert!(
        matches!(outcome, Outcome::StoreUnavailable(_)),
        "{outcome:?}"
    );
    assert!((2..=6).contains(&wire.accepted()), "{}", wire.accepted());
}

#[tokio::test]
async fn statement_with_stale_plan_runs_on_new_connection() {
    let world = World::start().await;
    let mode = PostgresMode::new(support::postgres::pool(world.options.clone(), 1));
    let reads = async |attempt: Attempt| {
        let mut tx = Transaction::of(&attempt)?;
        sqlx::query("SELECT * FROM things")
            .fetch_all(&mut *tx)
            .await?;
        Ok(tx.done(()))
    };
    assert_completed(&mode.run(operation("o-1", ample()), reads).await);
    world
        .run_sql("ALTER TABLE things ADD COLUMN more text")
        .await;
    // A consumer runs a contended operation again at once.
    let outcome = mode.run(operation("o-2", ample()), reads).await;
    assert!(matches!(outcome, Outcome::Contended(_)), "{outcome:?}");
    assert_completed(&mode.run(operation("o-2", ample()), reads).await);
}

#[tokio::test]
async fn forgotten_statements_cost_no_message() {
    let world = World::start().await;
    let pool = support::postgres::pool(world.options.clone(), 1);
    let mode = PostgresMode::new(pool.clone());
    assert_completed(&mode.run(operation("o-1", ample()), increments("o-1")).await);
    pool.execute("DEALLOCATE ALL").await.unwrap();
    assert_completed(&mode.run(operation("o-2", ample()), increments("o-2")).await);

    let once = Once::new(PostgresStore::new(pool.clone()));
    assert_completed(&once.run(operation("o-3", ample()), async |_| Ok(1)).await);
    pool.execute("DEALLOCATE ALL").await.unwrap();
    assert_completed(&once.run(operation("o-4", ample()), async |_| Ok(1)).await);
}

/// A trigger of an application may quote a row.
#[tokio::test]
async fn notices_of_server_are_not_logged() {
    log::start();
    let world = World::start().await;
    world
        .run_sql(
            "CREATE FUNCTION quote() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             RAISE NOTICE 'new %', NEW.id; RAISE WARNING 'new %', NEW.id; RETURN NEW; END $$; \
             CREATE TRIGGER quote BEFORE INSERT ON things FOR EACH ROW EXECUTE FUNCTION quote()",
        )
        .await;
    assert_completed(&world.deliver("secret-17").await);
    assert_eq!(world.effect("secret-17").await, 1);
    for line in log::lines() {
        assert!(line["target"] != "sqlx::postgres::notice", "{line}");
    }
}
