//! An AWS Lambda consumer for SQS whose effects happen once.
//!
//! SQS delivers at least once. A redelivered `charge this card` must not charge twice, and a
//! crash must neither lose the message nor lock it. This crate runs each message through
//! claim -> handler -> complete on a DynamoDB table. The response to Lambda names the messages
//! that must go back to the queue, and no others (`ReportBatchItemFailures`).
//!
#![cfg_attr(feature = "lambda", doc = "```no_run")]
#![cfg_attr(not(feature = "lambda"), doc = "```ignore")]
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
//!     let response = request.send().await.map_err(|error| match error.is_connect() {
//!         true => Failure::no_effect(error),  // nothing was sent
//!         false => Failure::retryable(error), // the gateway may have charged
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
#![cfg_attr(
    feature = "testing",
    doc = "| [`testing`] | events, runs of a handler without AWS, the conformance suite for stores |"
)]
#![cfg_attr(
    feature = "lambda",
    doc = "| [`Settings`] | environment variables into a configured consumer |"
)]
#![cfg_attr(
    feature = "lambda",
    doc = "| [`sqs`] | batches in, batch item failures out: [`Consumer`], [`run()`] |"
)]
#![cfg_attr(
    feature = "outbox",
    doc = "| [`outbox`] | the relay: sends published events |"
)]
#![cfg_attr(
    feature = "postgres",
    doc = "| [`postgres`] | pool, table of records, [`Transaction`]; the mode is [`InPostgres`] |"
)]
//! | [`once`] | modes, which process one operation once: [`Once`], [`Inbox`], [`OnItem`]; [`Outcome`] |
//! | [`Handler`], [`Attempt`], [`Failure`], [`Done`], [`Event`] | your code, its arguments and its answer |
//! | [`store`] | records: [`DynamoStore`](store::DynamoStore), [`MemoryStore`](store::MemoryStore) |
//! | [`protocol`] | rules as pure functions: conditions of claims, meaning of refused writes |
#![cfg_attr(
    feature = "lambda",
    doc = "| [`aws`], [`telemetry`] | the SDK configured for Lambda; logs, metrics and traces |"
)]
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `lambda` | `sqs`, `aws`, `telemetry` and `Settings`: the consumer of SQS batches in a Lambda function, with its settings from environment variables |
//! | `consumer` | the binary `consumer`, which charges orders over HTTP. Implies `lambda` |
//! | `s3` | `sqs::S3Bodies`: bodies that the Amazon SQS Extended Client stored in S3; `store::Results::s3`: large outputs in S3. Implies `lambda`; off by default |
//! | `cli` | the binary `sqs-once`, the command-line tool. Implies `lambda` and `s3`; with `postgres`, it reads records in PostgreSQL too; off by default |
//! | `outbox` | `outbox::Relay` and the binary `relay`, which sends published events to SQS, SNS and EventBridge. Implies `lambda`; off by default |
//! | `opentelemetry` | `telemetry::traces`: spans of messages and requests, to X-Ray or to a collector. Implies `lambda`; off by default |
//! | `postgres` | `postgres`, `store::PostgresStore` and `Once::in_postgres`: records in PostgreSQL, and business writes in the same transaction; off by default |
//! | `testing` | `testing`: tests of handlers without AWS, and the conformance suite for stores. Implies `lambda`; off by default |
//!
//! The first two are on by default, so that `sam build` and `cargo lambda watch` find the binary. A
//! library user switches the binary and its HTTP client off:
//!
//! ```toml
//! sqs-once = { version = "0.1", default-features = false, features = ["lambda"] }
//! ```
//!
//! Without features the crate holds the protocol, the stores, the modes and [`Handler`]. It then
//! serves functions behind other triggers.
//!
//! | features | crates in the dependency tree |
//! | --- | --- |
//! | default, `postgres` | 227 crates |
//! | default, `opentelemetry` | 204 crates |
//! | default, `s3` | 202 crates |
//! | default | 190 crates |
//! | `lambda` | 184 crates |
//! | `--no-default-features` | 110 crates |
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
// Without all features, some internal functions have no caller.
#![cfg_attr(
    not(feature = "lambda"),
    allow(dead_code, unused_imports, reason = "used by a feature that is off")
)]
// Tests may read the clock; the library reads it in `system` alone.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(feature = "lambda")]
pub mod aws;
mod deadline;
mod dynamodb;
mod event;
mod handler;
mod invalid;
mod meter;
pub mod once;
#[cfg(feature = "outbox")]
pub mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod protocol;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "lambda")]
mod settings;
#[cfg(feature = "lambda")]
pub mod sqs;
pub mod store;
mod system;
#[cfg(feature = "lambda")]
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use deadline::Deadline;
pub use dynamodb::{
    refused::{Refused, RefusedWrite},
    write::{MAX_WRITES, Write},
};
pub use event::Event;
pub use handler::{
    Attempt, Bytes, Done, EnvelopeFacts, Failure, FromMessage, Handler, HandlerFn, Json, Raw,
    ResultExt, Stored, Text, handler_fn,
};
#[doc(hidden)]
pub use handler::{Delivery, History, OpenAttempts};
pub use invalid::InvalidValue;
#[cfg(feature = "postgres")]
pub use once::InPostgres;
pub use once::{Change, Inbox, Mode, OnItem, Once, Operation, Outcome, Retry, Severity};
#[cfg(feature = "postgres")]
pub use postgres::{InTransaction, Transaction};
#[cfg(feature = "lambda")]
pub use settings::{Settings, SettingsError};
#[cfg(feature = "lambda")]
pub use sqs::{BatchError, Consumer, run};

// Doctests: the Rust blocks of the README and of `docs/`.
#[cfg(all(doctest, feature = "lambda", feature = "testing"))]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(all(doctest, feature = "lambda"))]
#[doc = include_str!("../docs/choosing-a-key.md")]
mod choosing_a_key {}

#[cfg(all(doctest, feature = "lambda"))]
#[doc = include_str!("../docs/effects-in-dynamodb.md")]
mod effects_in_dynamodb {}

#[cfg(all(doctest, feature = "lambda", feature = "postgres"))]
#[doc = include_str!("../docs/effects-in-postgresql.md")]
mod effects_in_postgresql {}

#[cfg(all(doctest, feature = "lambda", feature = "testing"))]
#[doc = include_str!("../docs/handlers.md")]
mod handlers {}

#[cfg(all(doctest, feature = "lambda"))]
#[doc = include_str!("../docs/metrics.md")]
mod metrics_page {}

#[cfg(doctest)]
#[doc = include_str!("../docs/outbox.md")]
mod outbox_page {}

#[cfg(all(doctest, feature = "lambda"))]
#[doc = include_str!("../docs/settings.md")]
mod settings_page {}
