//! How one operation is processed once.
//!
//! [`Once::run`] is the mode for effects outside DynamoDB: claim the key, run the
//! handler, record its outcome. It knows nothing of SQS, so it serves an HTTP API as well:
//!
//! ```
//! use std::time::Duration;
//! use sqs_once::{Deadline, Delivery, Once, Operation, Outcome};
//! use sqs_once::protocol::{Fingerprint, Key, Namespace, Timestamp};
//! use sqs_once::store::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let once = Once::new(MemoryStore::default());
//! let operation = || -> Result<Operation, Box<dyn std::error::Error>> {
//!     Ok(Operation::new(
//!         Key::new(&Namespace::new("payments")?, ["order-1"])?,
//!         Some(Fingerprint::of(b"{\"amount\":1}")),
//!         Delivery::new("request-1"),
//!         Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO),
//!     ))
//! };
//! let charged = once.run(operation()?, |_attempt| async { Ok("charged") }).await;
//! assert!(matches!(charged, Outcome::Done(_)));
//! let again = once.run(operation()?, |_attempt| async { Ok("never runs") }).await;
//! assert!(matches!(again, Outcome::Duplicate(_)));
//! # Ok(()) }
//! ```

mod claim;
mod commit;
mod inbox;
mod mode;
mod on_item;
mod operation;
mod outcome;

pub use claim::Once;
pub use inbox::Inbox;
pub use mode::Mode;
pub use on_item::{Change, OnItem, Target};
pub use operation::Operation;
pub use outcome::Outcome;
