//! Modes: the ways to process one operation once.
//!
//! | effect | mode | the handler returns |
//! | --- | --- | --- |
//! | outside DynamoDB | [`Once`]: claim, handler, complete | an output |
//! | outside, and then DynamoDB writes | [`Once`]: claim, handler, commit | [`Done`](crate::Done) |
//! | only DynamoDB writes | [`Inbox`]: plan, commit | [`Done`](crate::Done) |
//! | one DynamoDB item | [`OnItem`]: one conditional write | [`Change`] |
//!
//! DynamoDB writes of the last three rows are applied exactly once. So are writes of `InPostgres`, which
//! the feature `postgres` adds. For an effect outside the database, a crash between effect and completion
//! makes the handler run again. That attempt is informed.
//!
//! A `Consumer` accepts every mode. Modes do not depend on SQS, so they also
//! serve an HTTP API:
//!
//! ```
//! use std::time::Duration;
//! use sqs_once::{Deadline, Once, Operation, Outcome};
//! use sqs_once::protocol::{Fingerprint, Key, Namespace, Timestamp};
//! use sqs_once::store::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let once = Once::new(MemoryStore::default());
//! let operation = || -> Result<Operation, Box<dyn std::error::Error>> {
//!     Ok(Operation::new(
//!         Key::new(&Namespace::new("payments")?, ["order-1"])?,
//!         Some(Fingerprint::of(b"{\"amount\":1}")),
//!         "request-1",
//!         Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO),
//!     ))
//! };
//! let charged = once.run(operation()?, |_attempt| async { Ok("charged") }).await;
//! assert!(matches!(charged, Outcome::Completed(_)));
//! let again = once.run(operation()?, |_attempt| async { Ok("never runs") }).await;
//! assert!(matches!(again, Outcome::Duplicate(_)));
//! # Ok(()) }
//! ```

mod claim;
mod commit;
mod health;
mod heartbeat;
mod held;
#[cfg(feature = "postgres")]
mod in_postgres;
mod inbox;
mod lease;
pub(crate) mod mode;
mod on_item;
mod operation;
mod outcome;
mod records;
mod repeat;
mod turns;
mod work;

pub use claim::Once;
#[cfg(all(feature = "postgres", feature = "outbox"))]
pub(crate) use in_postgres::AfterCommit;
#[cfg(feature = "postgres")]
pub use in_postgres::InPostgres;
pub use inbox::Inbox;
pub use mode::Mode;
pub use on_item::{Change, OnItem};
pub use operation::Operation;
pub use outcome::{Outcome, Retry, Severity};
#[doc(hidden)]
pub use turns::OperationGate;
pub(crate) use turns::{Gate, Turn, Turns};
