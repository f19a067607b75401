//! The best plain loop: one transaction a message with the statements of the consumer, in `crates/postgres/src/store/row.rs`.
//!
//! It takes the answers without a look at them: it knows no duplicate, no other worker, no failed handler.

use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use sqlx::{
    Error, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
    query::Query,
};
use support::world::increment;

const INSERT: &str = "INSERT INTO sqs_once_records AS r (id, status, owner, error, result, version, \
    lease_until, expires_at, attributes) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
    ON CONFLICT (id) DO UPDATE SET id = r.id RETURNING status, owner, error, result, version, lease_until, \
    expires_at, attributes, pg_current_xact_id()::text AS transaction, set_config('lock_timeout', $10, true)";
const UPDATE: &str = "UPDATE sqs_once_records SET (status, owner, error, result, version, lease_until, \
    expires_at, attributes) = ($2, $3, $4, $5, $6, $7, $8, $9) WHERE id = $1 \
    AND pg_current_xact_id()::text = $10";

/// A pool that sends no test of a connection.
pub(crate) fn pool(options: &PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .connect_lazy_with(options.clone())
}

pub(crate) async fn process(pool: &PgPool, event: SqsEvent) {
    let at_once = pool.options().get_max_connections() as usize;
    let each = stream::iter(event.records).for_each_concurrent(at_once, async |message| {
        place(pool, message).await.unwrap();
    });
    each.await;
}

async fn place(pool: &PgPool, message: SqsMessage) -> Result<(), Error> {
    let id = message.message_id.unwrap();
    let body: Value = serde_json::from_str(&message.body.unwrap()).unwrap();
    let key = format!("bench#{id}");
    let mut transaction = pool.begin().await?;
    bind(INSERT, &key, "IN_PROGRESS", &id)
        .bind("1000")
        .fetch_one(&mut *transaction)
        .await?;
    increment(&mut transaction, body["orderId"].as_str().unwrap()).await?;
    bind(UPDATE, &key, "COMPLETED", &id)
        .bind("1000")
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}

/// A statement with the values of a record.
fn bind<'q>(
    sql: &'static str,
    key: &'q str,
    status: &'q str,
    message_id: &str,
) -> Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments> {
    const NOW: i64 = 1_800_000_000;
    let none: Option<&str> = None;
    let attributes = json!({
        "fingerprint": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "fingerprint_scheme": "body",
        "message_id": message_id,
        "attempts": 1,
        "created_at": NOW * 1000,
        "updated_at": NOW * 1000,
    });
    sqlx::query(sql)
        .bind(key)
        .bind(status)
        .bind("01890a5d-ac96-774b-bcce-b302099a8057")
        .bind(none)
        .bind("null")
        .bind(1_i64)
        .bind(Some(NOW * 1000))
        .bind(NOW)
        .bind(attributes.to_string())
}
