//! An AWS Lambda consumer for SQS whose effects happen once.
//!
//! SQS delivers at least once. A redelivered `charge this card` must not charge twice, and a
//! crash must neither lose the message nor lock it for ever. This crate runs each message
//! through claim -> handler -> complete on a DynamoDB table, and answers Lambda with the
//! messages that have to go back to the queue, and no others.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use sqs_once::{Attempt, Consumer, Failure, Once, ResultExt as _, aws, telemetry};
//! use sqs_once::{protocol::Namespace, store::DynamoStore};
//!
//! #[derive(Deserialize)]
//! struct Order { id: String, amount: String }
//!
//! #[derive(Serialize)]
//! struct Receipt { number: u64 }
//!
//! async fn charge(order: Order, attempt: Attempt) -> Result<Receipt, Failure> {
//!     let _cents: f64 = order.amount.parse().permanent()?;  // will fail again: to the DLQ
//!     let _card = tokio::net::lookup_host("cards.example:443").await?;  // may pass: again later
//!     if attempt.may_have_run_before() { /* an attempt was cut off: look before charging */ }
//!     Ok(Receipt { number: 1 })
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), lambda_runtime::Error> {
//!     telemetry::init();
//!     let client = aws_sdk_dynamodb::Client::new(&aws::config().await);
//!     let once = Once::new(DynamoStore::new(client, "idempotency"));
//!     sqs_once::run(Consumer::new(once, Namespace::new("payments")?, charge)).await
//! }
//! ```
//!
//! # Layout
//!
//! Each module imports only from those below it.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`sqs`] | batches in, failures out: [`Consumer`], [`run()`] |
//! | [`once`] | how one operation is processed once: [`Once`], [`Inbox`], [`OnItem`], [`Outcome`] |
//! | [`Handler`], [`Attempt`], [`Failure`], [`Done`] | what you write, what it is told, what it answers |
//! | [`store`] | where records live: [`DynamoStore`](store::DynamoStore), [`MemoryStore`](store::MemoryStore) |
//! | [`protocol`] | the rules, as pure functions: who may claim, what a refused write means |
//! | [`aws`], [`telemetry`] | the SDK set up for Lambda, and logs |
//!
//! # What is promised
//!
//! 1 to 3 are what a claim is for ([`Once`]); in an [`Inbox`] and [`OnItem`] a handler may run
//! again, and 4 is what counts.
//!
//! 1. At any time at most one worker holds a live claim on a key, clocks within the
//!    [lease margin](Once::lease_margin).
//! 2. A handler whose attempt ran to its recorded end never runs again for that key while the
//!    record is [kept](Once::retention); after a permanent failure, not for that message (another
//!    one with the key may try again, unless [`AfterFailure::Replay`](protocol::AfterFailure::Replay)).
//! 3. Otherwise it runs again only after it reported a retryable failure itself, or after an
//!    attempt that was cut off (crash, panic, deadline, DynamoDB out of reach, lease lost); then
//!    it is told: [`Attempt::may_have_run_before`].
//! 4. An effect that is DynamoDB writes, in one of the modes for it ([`once`]), happens exactly
//!    once while its record, or on the item its memory, is kept, whatever crashes, is retried or
//!    gets no answer.
//! 5. No message is acknowledged unless its operation is done and that is recorded; no result is
//!    overwritten; every other message goes back to the queue and in the end to its dead-letter queue.
//! 6. A failing, panicking, slow or malformed message does not change the outcome of another
//!    in its batch, its FIFO group aside.
//!
//! Between an effect outside DynamoDB and the record of it a crash can always fall: such an
//! effect happens *at least* once, and point 3 is what a handler needs to make it once.

pub mod aws;
mod deadline;
mod handler;
pub mod once;
pub mod protocol;
pub mod sqs;
pub mod store;
pub mod telemetry;

pub use deadline::Deadline;
pub use handler::{
    Answer, Attempt, Attribute, Delivery, Done, Failure, FnHandler, Handler, History, IntoHandler,
    OpenAttempts, ResultExt, Stored, ViaFn, ViaHandler,
};
pub use once::{Change, Inbox, Mode, OnItem, Once, Operation, Outcome};
pub use sqs::{BatchError, Consumer, run};
pub use store::Write;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
