//! An AWS Lambda consumer for SQS whose effects happen once.
//!
//! SQS delivers at least once. A redelivered `charge this card` must not charge twice, and a
//! crash must neither lose the message nor lock it. This crate runs each message through
//! claim -> handler -> complete on a DynamoDB table. The response to Lambda names the messages
//! that must go back to the queue, and no others (`ReportBatchItemFailures`).
//!
//! ```no_run
//! use std::{sync::LazyLock, time::Duration};
//!
//! use reqwest::{Client, redirect::Policy};
//! use serde::{Deserialize, Serialize};
//! use sqs_once::{Attempt, Consumer, Failure, handler_fn, telemetry};
//!
//! #[derive(Deserialize, Serialize)]
//! #[serde(rename_all = "camelCase")]
//! struct Order { order_id: String, amount_cents: u64, currency: String }
//!
//! static GATEWAY: LazyLock<Client> = // a redirect could charge elsewhere
//!     LazyLock::new(|| Client::builder().redirect(Policy::none()).build().expect("TLS is built in"));
//!
//! async fn charge(order: Order, attempt: Attempt) -> Result<String, Failure> {
//!     if order.amount_cents == 0 {
//!         return Err(Failure::permanent("the amount is 0")); // to the dead-letter queue
//!     }
//!     let request = GATEWAY
//!         .post("https://payments.example/charges")
//!         .header("Idempotency-Key", &*attempt.key().header_value()) // the gateway recognizes a repetition
//!         .header("Content-Type", "application/json")
//!         .body(serde_json::to_vec(&order)?)
//!         .timeout(Duration::from_secs(5));
//!     let response = request.send().await.map_err(|error| {
//!         if error.is_connect() {
//!             Failure::no_effect(error) // nothing was sent
//!         } else {
//!             Failure::retryable(error) // the gateway may have charged
//!         }
//!     })?;
//!     match response.status().as_u16() {
//!         200..=299 => Ok(response.text().await?), // stored, as the answer to duplicates
//!         status @ (402 | 422) => Err(Failure::permanent(format!("declined with {status}"))),
//!         status => Err(Failure::retryable(format!("the gateway answered {status}"))),
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), lambda_runtime::Error> {
//!     telemetry::init();
//!     sqs_once::run(Consumer::from_env(handler_fn(charge)).await?).await
//! }
//! ```
//!
//! # Layout
//!
//! Each module imports only from modules below it.
//!
//! | module | contents |
//! | --- | --- |
//! | [`Settings`] | environment variables into a configured consumer |
//! | [`sqs`] | batches in, batch item failures out: [`Consumer`], [`run()`] |
//! | [`once`] | modes, which process one operation once: [`Once`], [`Inbox`], [`OnItem`]; [`Outcome`] |
//! | [`Handler`], [`Attempt`], [`Failure`], [`Done`], [`Event`] | your code, its arguments and its answer |
//! | [`store`] | records: [`DynamoStore`](store::DynamoStore), [`MemoryStore`](store::MemoryStore) |
//! | [`protocol`] | rules as pure functions: conditions of claims, meaning of refused writes |
//! | [`aws`], [`telemetry`] | the SDK configured for Lambda; logs, metrics and traces |
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `s3` | `sqs::S3Bodies`: bodies that the Amazon SQS Extended Client stored in S3; `store::S3Results`: large outputs in S3 |
//!
//! It is off by default. Other crates of this project add to this one:
//!
//! | crate | adds |
//! | --- | --- |
//! | `sqs-once-postgres` | records in PostgreSQL, and business writes in the same transaction |
//! | `sqs-once-testing` | tests of handlers without AWS, and the conformance suite of stores |
//! | `sqs-once-otel` | traces: spans of messages and requests, to X-Ray or to a collector |
//! | `sqs-once-outbox` | the relay, which sends published events to SQS, SNS and EventBridge |
//!
//! A function behind another trigger needs only the crates `sqs-once-core` and `sqs-once-dynamodb`: rules,
//! stores and modes.
//!
//! # Promises
//!
//! Promises 1 to 3 are for claims ([`Once`]). In an [`Inbox`], in [`OnItem`] and in a PostgreSQL
//! transaction a handler may run again, and promise 4 applies. Promises 2 to 4 hold while the record is [kept](Once::retention), or
//! while the item has the key.
//!
//! 1. At any time at most one worker holds a live claim on a key. Clocks must differ by no more than
//!    the [lease margin](Once::lease_margin), and one Region writes to a table.
//! 2. A handler whose success is recorded never runs again for that key. A message whose permanent
//!    failure is recorded never runs again.
//! 3. A handler runs again only in three cases, and is informed of every earlier attempt that may have
//!    had an effect ([`Attempt::may_have_run_before`]):
//!    - after a retryable failure;
//!    - after an attempt whose end was not recorded: crash, panic, deadline, DynamoDB unavailable,
//!      lease lost;
//!    - for another message, after a recorded permanent failure (unless
//!      [`AfterFailure::Replay`](protocol::AfterFailure::Replay)).
//! 4. Database effects in a transactional mode ([`once`]) are applied exactly once, although workers
//!    crash, requests are retried and answers are lost.
//! 5. No message is acknowledged unless its operation is recorded as completed, or SQS confirmed its
//!    copy in the dead-letter queue. No result is overwritten.
//! 6. A failing, panicking, slow or malformed message does not change the record of another message. It
//!    can only delay other messages of its FIFO group, its key or its batch. A message whose handler
//!    kills its process, or blocks every thread, takes the others of its batch with it once. From then
//!    on it runs alone ([`Once::crash_waits`]). Modes without a claim do not isolate it.
//! 7. With the receives and waits of `template.yaml`, a message reaches the dead-letter queue only by its
//!    own permanent failure, or after its cause lasted for twelve hours. A crash of another message, dead
//!    connections, throttling, a slow table or a large batch does not take it there.
//!
//! A crash can always fall between an effect outside DynamoDB and its record. Such an effect happens
//! *at least* once. With promise 3 a handler can make it once.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Tests may read the clock; the library reads it in `system` alone.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

/// Modes: the ways to process one operation once.
pub mod once {
    pub use crate::dynamodb::{
        inbox::Inbox,
        on_item::{Change, OnItem},
    };
    pub use sqs_once_core::once::{Mode, Once, Operation, Outcome, Retry, Severity};
}

/// Stores of records.
pub mod store {
    pub use crate::dynamodb::store::{Batched, DynamoStore, Field, Layout};
    #[cfg(feature = "s3")]
    pub use crate::s3_results::S3Results;
    pub use crate::settings::any_store::AnyStore;
    pub use sqs_once_core::store::{
        ClaimAnswer, MemoryStore, OutputStore, RequestContext, Results, SettleAnswer, Store,
        StoreError,
    };
}

pub mod aws;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
mod s3_results;
mod settings;
pub mod sqs;
pub mod telemetry;

pub use sqs_once_core::{InvalidValue, protocol};
use sqs_once_core::{deadline, event, handler, meter, system};
use sqs_once_dynamodb as dynamodb;

pub use deadline::Deadline;
pub use dynamodb::{
    done::Done,
    refused::{Refused, RefusedWrite},
    write::{MAX_WRITES, Write},
};
pub use event::Event;
pub use handler::{
    Attempt, Bytes, EnvelopeFacts, Failure, FromMessage, Handler, HandlerFn, Json, Raw, ResultExt,
    Stored, Text, handler_fn,
};
pub use once::{Change, Inbox, Mode, OnItem, Once, Operation, Outcome, Retry, Severity};
pub use settings::{Settings, SettingsError, UnknownVariable, Variables};
pub use sqs::{BatchError, Consumer, run};
