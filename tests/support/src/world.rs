//! A schema with a table of things, and workers whose effects can be counted.

use std::time::Duration;

use super::{
    postgres::{SERVER, Server, one},
    postgres_wire::Wire,
};
use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, Executor, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use sqs_once::{
    Attempt, Deadline, Event, Failure, Operation, Outcome,
    internal::Delivery,
    protocol::{Fingerprint, Key, Namespace, Timestamp},
};
use sqs_once_postgres::{InTransaction, PostgresMode, Transaction};

pub const SECOND: Duration = Duration::from_secs(1);

pub struct World {
    pub options: PgConnectOptions,
    /// Connections that no fault meets.
    pub pool: PgPool,
}

impl World {
    pub async fn start() -> Self {
        Self::on(&SERVER).await
    }

    pub async fn on(server: &Server) -> Self {
        let options = server.schema().await;
        let pool = PgPoolOptions::new().max_connections(20);
        let pool = pool.connect_lazy_with(options.clone());
        sqs_once_postgres::migrate(&pool).await.unwrap();
        let things = "CREATE TABLE things (id text PRIMARY KEY, n bigint NOT NULL)";
        pool.execute(things).await.unwrap();
        Self { options, pool }
    }

    pub fn mode(&self) -> PostgresMode {
        PostgresMode::new(self.pool.clone())
    }

    /// A worker with one connection.
    pub fn worker(&self) -> (PostgresMode, PgPool) {
        self.worker_of(|options| options)
    }

    /// A worker with one connection, and these options of its pool.
    pub fn worker_of(
        &self,
        options: impl FnOnce(PgPoolOptions) -> PgPoolOptions,
    ) -> (PostgresMode, PgPool) {
        let pool = options(PgPoolOptions::new().max_connections(1));
        let pool = pool.connect_lazy_with(self.options.clone());
        (PostgresMode::new(pool.clone()), pool)
    }

    /// A worker with one connection, through a wire that can be cut.
    pub async fn worker_behind_wire(&self) -> (PostgresMode, PgPool, Wire) {
        let server = ([127, 0, 0, 1], self.options.get_port()).into();
        let wire = Wire::to(server).await;
        let pool = one(self.options.clone().port(wire.address.port()));
        (PostgresMode::new(pool.clone()), pool, wire)
    }

    /// Delivers a message that increments the thing `id`.
    pub async fn deliver(&self, id: &str) -> Outcome {
        self.mode()
            .run(operation(id, ample()), increments(id))
            .await
    }

    /// Number of times that the effect has happened.
    pub async fn effect(&self, id: &str) -> i64 {
        let n = sqlx::query_scalar("SELECT n FROM things WHERE id = $1").bind(id);
        let n = n.fetch_optional(&self.pool).await.unwrap();
        n.unwrap_or_default()
    }

    /// One value of a record.
    pub async fn column(&self, id: &str, column: &str) -> Option<String> {
        let sql = format!("SELECT {column}::text FROM sqs_once_records WHERE id = $1");
        let value = sqlx::query_scalar(AssertSqlSafe(sql)).bind(key(id).as_str().to_owned());
        let row: Option<Option<String>> = value.fetch_optional(&self.pool).await.unwrap();
        row.flatten()
    }

    pub async fn status(&self, id: &str) -> Option<String> {
        self.column(id, "status").await
    }

    /// The events in the outbox, as id, group and body, in their order.
    pub async fn events(&self) -> Vec<(String, String, String)> {
        let sql = "SELECT id, group_id, body FROM sqs_once_outbox ORDER BY sequence";
        sqlx::query_as(sql).fetch_all(&self.pool).await.unwrap()
    }

    pub async fn run_sql(&self, sql: &'static str) {
        self.pool.execute(sql).await.unwrap();
    }

    /// Number of this world's sessions in this state, beside the one that asks.
    pub async fn sessions(&self, condition: &str) -> i64 {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE {condition} AND pid <> pg_backend_pid() \
             AND application_name = current_setting('application_name')"
        );
        let count = sqlx::query_scalar(AssertSqlSafe(sql));
        count.fetch_one(&self.pool).await.unwrap()
    }

    /// Returns when as many sessions wait for a lock.
    pub async fn waiting(&self, sessions: i64) {
        while self.sessions("wait_event_type = 'Lock'").await < sessions {
            tokio::task::yield_now().await;
        }
    }

    /// Returns when as many sessions are in a transaction.
    pub async fn open_transactions(&self, sessions: i64) {
        while self.sessions("state LIKE 'idle in transaction%'").await != sessions {
            tokio::task::yield_now().await;
        }
    }

    /// Ends the server's side of all idle connections, beside the one that asks.
    pub async fn close_idle_connections(&self) {
        self.close("idle").await;
    }

    /// Ends the server's side of all connections with an open transaction.
    pub async fn close_transactions(&self) {
        self.close("idle in transaction").await;
    }

    pub async fn close(&self, state: &str) {
        let sql = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity \
            WHERE state = $1 AND pid <> pg_backend_pid() \
            AND application_name = current_setting('application_name')";
        let ended = sqlx::query_scalar(sql).bind(state.to_owned());
        let ended: i64 = ended.fetch_one(&self.pool).await.unwrap();
        assert!(ended > 0);
    }
}

/// A handler that increments the thing `id`, and publishes an event in each of these groups.
pub fn publishes(
    id: &str,
    groups: &[&str],
) -> impl FnOnce(Attempt) -> BoxFuture<'static, Result<InTransaction<()>, Failure>> + use<> {
    let id = id.to_owned();
    let groups: Vec<_> = groups.iter().map(|group| (*group).to_owned()).collect();
    move |attempt| {
        Box::pin(async move {
            let mut tx = Transaction::of(&attempt)?;
            increment(&mut tx, &id).await?;
            let event = |group| Event::new("placed", &id).group(group);
            let done = tx.done(());
            Ok(groups
                .into_iter()
                .map(event)
                .fold(done, InTransaction::publish))
        })
    }
}

/// A handler that increments the thing `id`.
pub fn increments(
    id: &str,
) -> impl FnOnce(Attempt) -> BoxFuture<'static, Result<InTransaction<String>, Failure>> {
    let id = id.to_owned();
    move |attempt| {
        Box::pin(async move {
            let mut tx = Transaction::of(&attempt)?;
            increment(&mut tx, &id).await?;
            Ok(tx.done(id))
        })
    }
}

pub async fn increment(connection: &mut PgConnection, id: &str) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO things VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET n = things.n + 1";
    sqlx::query(sql)
        .bind(id.to_owned())
        .execute(connection)
        .await?;
    Ok(())
}

pub fn key(id: &str) -> Key {
    Key::new(&Namespace::new("tests").unwrap(), [id]).unwrap()
}

pub fn operation(id: &str, deadline: Deadline) -> Operation {
    operation_of(id, id, deadline)
}

/// The operation `id`, in this message.
pub fn operation_of(id: &str, message_id: &str, deadline: Deadline) -> Operation {
    let fingerprint = Some(Fingerprint::of(id.as_bytes()));
    Operation::new(key(id), fingerprint, Delivery::new(message_id), deadline)
}

/// More than any test needs.
pub fn ample() -> Deadline {
    Deadline::after(Timestamp::now(), 60 * SECOND, SECOND)
}

/// Handlers are cut off after half a second.
pub fn short() -> Deadline {
    Deadline::after(Timestamp::now(), SECOND, SECOND / 2)
}

/// The URL of the world's schema.
pub fn url(server: &Server, world: &World) -> String {
    url_of(server, &world.options)
}

/// The URL of the schema in these options.
pub fn url_of(server: &Server, options: &PgConnectOptions) -> String {
    let schema = options.get_application_name().unwrap();
    let port = server.options().get_port();
    format!(
        "postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable&options=-c%20search_path%3D{schema}"
    )
}
