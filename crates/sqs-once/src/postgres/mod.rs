//! PostgreSQL: connections, the tables of records and events, and the [`Transaction`] that a handler gets.
//!
//! [`InPostgres`](crate::InPostgres) commits record and business writes together.
//! [`PostgresStore`](crate::store::PostgresStore) stores records of effects outside the database.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use sqs_once::{Attempt, Consumer, Failure, InPostgres, InTransaction, Once, Transaction, handler_fn, postgres};
//! use sqs_once::protocol::Namespace;
//!
//! #[derive(Deserialize)]
//! struct Order { id: String, product: String }
//!
//! #[derive(Serialize)]
//! struct Placed { order: String }
//!
//! async fn place(order: Order, attempt: Attempt) -> Result<InTransaction<Placed>, Failure> {
//!     let mut tx = Transaction::of(&attempt)?;
//!     let taken = sqlx::query("UPDATE stock SET quantity = quantity - 1 WHERE product = $1 AND quantity > 0")
//!         .bind(&order.product)
//!         .execute(&mut *tx)
//!         .await?;
//!     if taken.rows_affected() == 0 {
//!         return Err(Failure::permanent("out of stock"));
//!     }
//!     Ok(tx.done(Placed { order: order.id }))
//! }
//!
//! # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = postgres::pool("postgres://orders@db.example/orders".parse()?, 10);
//! postgres::migrate(&pool).await?;
//! let consumer = Consumer::new(InPostgres::new(pool), Namespace::new("orders")?, handler_fn(place));
//! # Ok(()) }
//! ```
//!
//! # TLS
//!
//! The connection to another host than this machine uses TLS, and checks the certificate and the host
//! name (`verify-full`), unless the URL names another `sslmode`. RDS signs with a certificate authority
//! of its own: name its bundle with `sslrootcert`. RDS Proxy has a public certificate.

pub(crate) mod connections;
pub(crate) mod explain;
pub(crate) mod iam;
pub(crate) mod lent;
mod migrate;
pub(crate) mod mode;
pub(crate) mod outbox;
mod pool;
pub(crate) mod secret;
pub(crate) mod store;
mod transaction;

pub(crate) use migrate::create_first_tables;
pub use migrate::migrate;
pub use pool::pool;
pub(crate) use transaction::OpenTransaction;
pub use transaction::{InTransaction, Transaction};
