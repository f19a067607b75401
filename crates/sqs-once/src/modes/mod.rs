//! Modes: the ways to process one operation once.
//!
//! | effect | mode | the handler returns |
//! | --- | --- | --- |
//! | outside DynamoDB | [`Once`]: claim, handler, complete | an output |
//! | outside, and then DynamoDB writes | [`Once`]: claim, handler, commit | `Done` |
//! | only DynamoDB writes | `Inbox`: plan, commit | `Done` |
//! | one DynamoDB item | `ItemMode`: one conditional write | `Change` |
//!
//! The DynamoDB writes of the last three rows are applied exactly once. So are the PostgreSQL writes of
//! `PostgresMode`, in the crate `sqs-once-postgres`. If the process crashes between an effect outside the database
//! and the completion, the handler runs again, and sees the prior attempt.
//!
//! A `Consumer` accepts every mode. Modes do not depend on SQS: behind another trigger, [`Once::run`] runs one operation:
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

pub(crate) mod call;
mod claim;
mod claim_mode;
mod finish;
mod health;
pub(crate) mod held;
pub(crate) mod item;
pub(crate) mod mode;
mod operation;
mod outcome;
pub(crate) mod output;
pub(crate) mod output_memory;
pub(crate) mod records;
pub(crate) mod rejected;
pub(crate) mod repeat;
pub(crate) mod run;
mod turns;
pub(crate) mod work;

pub use claim_mode::{Inbox, Once};
pub use item::{Change, ItemMode};
pub use mode::Mode;
pub use operation::Operation;
pub use outcome::{Outcome, Retry, RetryableError, Severity};
pub use output::{Leased, Unleased};
pub(crate) use turns::{Turn, Turns};
