//! An AWS Lambda consumer for SQS whose effects happen once.
//!
//! SQS delivers at least once. A redelivered `charge this card` must not charge twice, and a crash must
//! neither lose the message nor lock it. This crate runs each message through claim -> handler -> complete on
//! a DynamoDB table. The response to Lambda names the messages that must go back to the queue, and no others
//! (`ReportBatchItemFailures`).
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
//!         return Err(Failure::permanent_no_effect("the amount is 0")); // to the dead-letter queue
//!     }
//!     let request = GATEWAY
//!         .post("https://payments.example/charges")
//!         .header("Idempotency-Key", attempt.call_key()) // the gateway recognizes a repetition
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
//!         402 => Err(Failure::declined("the gateway answered 402")), // the next attempt has a new call key
//!         status @ (400 | 422) => Err(Failure::permanent(format!("the gateway answered {status}"))),
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
//! | [`Settings`] | turns environment variables into a configured consumer |
//! | [`sqs`] | batches in, batch item failures out: [`Consumer`], [`run()`] |
//! | [`modes`] | modes, which process one operation once: [`Once`], [`Inbox`], [`ItemMode`]; [`Outcome`] |
//! | [`Handler`], [`Attempt`], [`Failure`], [`Done`], [`Event`] | your code, its arguments and its output |
//! | [`store`] | records: [`DynamoStore`](store::DynamoStore), [`MemoryStore`](store::MemoryStore) |
//! | [`protocol`] | rules as pure functions: conditions of claims, meaning of failed conditions |
//! | [`aws`], [`telemetry`] | the SDK configured for Lambda; logs and metrics |
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `s3` | `sqs::S3Bodies`: bodies that the Amazon SQS Extended Client stored in S3; `store::S3Results`: large outputs in S3 |
//! | `testing` | `testing`: tests of handlers without AWS, and the conformance suite of stores |
//!
//! Both are off by default. Other crates of this project add to this one:
//!
//! | crate | adds |
//! | --- | --- |
//! | `sqs-once-postgres` | records in PostgreSQL, and business writes in the same transaction |
//! | `sqs-once-outbox` | the relay, which sends published events to SQS, SNS and EventBridge |
//!
//! # Promises
//!
//! At most one worker at a time holds a claim on a key, and a handler whose success is recorded never runs
//! again for that key. If a handler runs again after an attempt that may have had its effect, it sees that
//! prior attempt ([`Attempt::prior`]). Database effects in a transactional mode ([`modes`]) are applied
//! exactly once. A message is acknowledged only when its operation is recorded as completed, or when SQS has
//! confirmed its copy in the dead-letter queue.
//!
//! A crash can always fall between an effect outside DynamoDB and its record, so such an effect happens *at
//! least* once. The handler can make it happen once, because it sees the prior attempt. The seven promises
//! with their conditions are in
//! [docs/promises.md](https://github.com/sqs-once/sqs-once/blob/main/docs/promises.md).

#![cfg_attr(docsrs, feature(doc_cfg))]
// Tests may read the clock; the library reads it in `system` alone.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod aws;
mod deadline;
mod dynamo;
mod event;
mod flawed;
mod handler;
mod invalid;
mod meter;
pub mod modes;
pub mod protocol;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
mod s3_results;
mod settings;
pub mod sqs;
pub mod store;
mod system;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod unanswered;

/// Items that the other crates of this project and its tests use. Not part of the API.
#[doc(hidden)]
pub mod internal {
    pub use crate::{
        dynamo::{
            explain::{is_contended, unanswered},
            transactional::{Commit, CommitResponse, TransactionalStore},
        },
        event::{Published, first_fault, is_name},
        flawed::flawed,
        handler::{AnyLookUp, Delivery, HandlerOutput, History, to_output},
        meter::Meter,
        modes::{
            mode::{Claimed, Start, Unsupported, sealed::Sealed},
            records::Records,
            rejected::rejected,
            run::{run_handler, run_here},
            work::{HandlerEnd, NoOutput, guard_now},
        },
        protocol::{
            circuit::{
                Called, Circuit, CircuitChange, FAILURES_TO_OPEN, FIRST_WAIT, runs_while_open,
            },
            isolation::{Standing, has_last_look_up, standing},
            record::expires_at,
            request_error_kind::RequestErrorKind,
        },
        settings::variables::{ModeOptions, ModeSettings, parse::positive, table},
        store::admin::{RecordFilter, RecordPage, RecordStatus, StoredRecord, UnreadableRecord},
    };

    pub use crate::dynamo::store::swap::{statement, transact_item};

    /// Time, tasks and randomness.
    pub mod system {
        pub use crate::system::{
            Instant, elapsed, instant, random_fraction, sleep, spawn, timeout, timeout_at,
        };
        #[cfg(feature = "simulation")]
        pub use crate::{flawed::set_flaw, system::simulated::Process};
    }
}

pub use deadline::Deadline;
pub use dynamo::{
    condition_failed::{ConditionFailed, FailedWrite},
    done::Done,
    write::{MAX_WRITES, Write},
};
pub use event::Event;
pub use handler::{
    Attempt, Attribute, AttributeValue, DeliveryMetadata, EnvelopeMetadata, Failure, FailureKind,
    FromMessage, Handler, HandlerFn, InvalidMessage, Json, LookUp, LookUpFn, LookedUp,
    PriorAttempt, ResultExt, Stored, Text, handler_fn, look_up_fn,
};
pub use invalid::InvalidValue;
pub use modes::{
    Change, Inbox, ItemMode, Mode, Once, Operation, Outcome, Retry, RetryableError, Severity,
};
pub use settings::{Settings, SettingsError, UnknownVariable, Variables};
pub use sqs::{BatchError, Consumer, run};
