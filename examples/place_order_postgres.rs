//! Places an order in PostgreSQL: inserts the order, takes its products from the stock, and publishes the
//! event `order-placed`, in one transaction with the record. An order for more than the stock is declined.
//!
//! It needs these tables besides those for records and events (crates/postgres/migrations/1_sqs_once.sql):
//!
//! ```sql
//! CREATE TABLE stock (product text PRIMARY KEY, quantity bigint NOT NULL CHECK (quantity >= 0));
//! CREATE TABLE orders (order_id text PRIMARY KEY, customer_id text NOT NULL);
//! CREATE TABLE order_lines (order_id text REFERENCES orders, product text, pieces bigint NOT NULL);
//! ```
//!
//! `DATABASE_URL` names the database. The consumer logs in by IAM (`rds/iam.rs`), unless the server accepts the
//! password in the URL or in `PGPASSWORD`. For a rotated secret, use `rds/secret.rs` instead.
//!
//! `make dev EXAMPLE=place_order_postgres` runs it on this machine. To deploy it beside a database in RDS, run in the root of
//! the clone:
//!
//! ```sh
//! cargo lambda build --release --arm64 --package programs --bin place_order_postgres \
//!     --features postgres
//! # the certificate authorities of RDS
//! curl -fo target/lambda/place_order_postgres/global-bundle.pem \
//!     https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem
//! sam deploy --guided --stack-name orders --config-env orders \
//!     --template-file examples/place_order_postgres.template.yaml
//! ```
//!
//! docs/effects-in-postgresql.md lists the privileges that the database user needs. The handler also needs `INSERT` on
//! `orders` and `order_lines`, and `SELECT` and `UPDATE` on `stock`.
//!
//! The events stay in the table `sqs_once_outbox` until a relay sends them. docs/outbox.md says how to deploy the relay.

#[path = "rds/iam.rs"]
mod rds_iam;

use std::{collections::BTreeMap, num::NonZeroU32};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{Connection as _, PgConnection, PgPool, postgres::PgPoolOptions};
use sqs_once::{
    Attempt, Consumer, Event, Failure, Handler, Settings, SettingsError, handler_fn, telemetry,
};
use sqs_once_postgres::{InTransaction, PostgresMode, Transaction};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    order_id: String,
    customer_id: String,
    /// How many pieces of each product.
    products: BTreeMap<String, NonZeroU32>,
}

/// The output of the handler.
#[derive(Serialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum Answer {
    /// The order is placed.
    Placed,
    /// There are too few pieces of this product.
    #[serde(rename_all = "camelCase")]
    Declined {
        /// The product.
        out_of_stock: String,
    },
}

async fn place(order: Order, attempt: Attempt) -> Result<InTransaction<Answer>, Failure> {
    if order.products.is_empty() {
        return Err(Failure::permanent("the order has no products"));
    }
    let mut tx = Transaction::of(&attempt)?;
    // Because of this savepoint, a declined order leaves no writes, but its answer is recorded.
    let mut writes = tx.begin().await?;
    // The order stays in its table longer than its record is kept. A message that comes back after its record has expired must not
    // take from the stock again.
    let insert = "INSERT INTO orders VALUES ($1, $2) ON CONFLICT DO NOTHING";
    let inserted = sqlx::query(insert)
        .bind(&order.order_id)
        .bind(&order.customer_id);
    if inserted.execute(&mut *writes).await?.rows_affected() == 0 {
        return Err(Failure::permanent("an order with this id is there already"));
    }
    // We follow the order of the map, so that two orders for the same products can't deadlock.
    for (product, pieces) in &order.products {
        let pieces = i64::from(pieces.get());
        if !take(&mut writes, &order.order_id, product, pieces).await? {
            writes.rollback().await?;
            return Ok(tx.done(Answer::Declined {
                out_of_stock: product.clone(),
            }));
        }
    }
    writes.commit().await?;
    let placed = Event::new("order-placed", &json!({ "orderId": order.order_id }));
    Ok(tx
        .done(Answer::Placed)
        .publish(placed.group(order.customer_id)))
}

/// Takes pieces from the stock. Returns false if there are too few.
async fn take(
    connection: &mut PgConnection,
    order: &str,
    product: &str,
    pieces: i64,
) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE stock SET quantity = quantity - $2 WHERE product = $1 AND quantity >= $2";
    let taken = sqlx::query(sql).bind(product).bind(pieces);
    if taken.execute(&mut *connection).await?.rows_affected() == 0 {
        return Ok(false);
    }
    let line = sqlx::query("INSERT INTO order_lines VALUES ($1, $2, $3)")
        .bind(order)
        .bind(product)
        .bind(pieces);
    line.execute(connection).await?;
    Ok(true)
}

fn pool(url: &str) -> Result<PgPool, &'static str> {
    PgPoolOptions::new()
        // One connection for each running handler. Its first statement tests the connection.
        .max_connections(10)
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy(url)
        // The parser's error could quote the URL, and with it a password.
        .map_err(|_| "is not a URL such as postgres://user@host/database")
}

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<PostgresMode, impl Handler<Output = InTransaction<Answer>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "orders");
    // An order that is sent twice has two message ids, but one order id.
    settings.set_default("IDEMPOTENCY_KEY", "body:/orderId");
    let pool = settings.required("DATABASE_URL", "database of the orders", pool)?;
    let config = settings.config().await;
    let mode = PostgresMode::new(pool)
        .password(move |options| rds_iam::with_token(config.clone(), options));
    settings.consumer(mode, Ok(handler_fn(place))).await
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}
