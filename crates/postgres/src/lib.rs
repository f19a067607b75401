//! Records and business writes in PostgreSQL, for [sqs-once](https://docs.rs/sqs-once).
//!
//! [`PostgresMode`] commits the record and business writes together. [`PostgresStore`] stores records for
//! effects outside the database.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use sqs_once::{Attempt, Failure, Settings, handler_fn};
//! use sqs_once_postgres::{PostgresMode, InTransaction, Transaction};
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
//! let pool = sqlx::PgPool::connect_lazy("postgres://orders@db.example/orders?sslmode=verify-full")?;
//! let mode = PostgresMode::new(pool);
//! let consumer = Settings::from_env().consumer(mode, Ok(handler_fn(place))).await?;
//! # Ok(()) }
//! ```
//!
//! # TLS
//!
//! Set `sslmode=verify-full` in the pool's URL: sqlx's default, `prefer`, accepts any certificate, and even a
//! connection without TLS. Amazon's private certificate authority signs RDS's certificates, so set `sslrootcert`
//! to its bundle.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Tests may read the clock. The library reads it only in its own module `system`.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod connections;
mod explain;
mod migrate;
mod mode;
mod outbox;
pub mod relay;
mod run;
mod store;
mod transaction;
mod transaction_connection;

pub use migrate::migrate;
pub use mode::PostgresMode;
pub use store::PostgresStore;
pub use transaction::{InTransaction, Transaction};
