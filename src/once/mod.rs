//! How one operation is processed once.
//!
//! | the effect | mode | the handler answers with |
//! | --- | --- | --- |
//! | outside DynamoDB | [`Once`]: claim, handler, complete | its output |
//! | outside, and then DynamoDB writes | [`Once`]: claim, handler, commit | [`Done`](crate::Done) |
//! | DynamoDB writes alone | [`Inbox`]: plan, commit | [`Done`](crate::Done) |
//! | one item of DynamoDB | [`OnItem`]: one conditional write | [`Change`] |
//!
//! With the first, a crash between the effect and the record of it runs the handler again, and it
//! is informed. With the others, the effect happens exactly once. A [`Consumer`](crate::Consumer)
//! takes each of them. None knows of SQS, so they serve an HTTP API as well:
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
//! assert!(matches!(charged, Outcome::Done(_)));
//! let again = once.run(operation()?, |_attempt| async { Ok("never runs") }).await;
//! assert!(matches!(again, Outcome::Duplicate(_)));
//! # Ok(()) }
//! ```

mod claim;
mod commit;
mod inbox;
pub(crate) mod mode;
mod on_item;
mod operation;
mod outcome;

pub use claim::Once;
pub use inbox::Inbox;
pub use mode::Mode;
pub use on_item::{Change, OnItem};
pub use operation::Operation;
pub use outcome::Outcome;
