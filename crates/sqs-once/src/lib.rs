//! An AWS Lambda consumer for SQS that recognizes duplicates, and tells your handler when an earlier attempt may already have
//! had its effect.
//!
//! SQS delivers at least once. A redelivered `charge this card` must not charge twice, and a crash must
//! neither lose the message nor lock it. This crate runs each message through claim -> handler -> complete on
//! a DynamoDB table. The response to Lambda names the messages that must go back to the queue, and no others
//! (`ReportBatchItemFailures`).
//!
//! ```no_run
//! use serde::Deserialize;
//! use sqs_once::{Attempt, Consumer, Failure, handler_fn, telemetry};
//!
//! #[derive(Deserialize)]
//! struct Order { id: String, cents: u64 }
//!
//! async fn charge(order: Order, attempt: Attempt) -> Result<String, Failure> {
//!     if order.cents == 0 {
//!         return Err(Failure::permanent_no_effect("the amount is 0")); // to the dead-letter queue
//!     }
//!     // The same key until the gateway declines, so a gateway that remembers it charges once.
//!     let receipt = call_gateway(&order, attempt.call_key()).await?; // `?`: retried with backoff
//!     Ok(receipt) // stored: for a duplicate, `charge` doesn't run
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), lambda_runtime::Error> {
//!     telemetry::init();
//!     sqs_once::run(Consumer::from_env(handler_fn(charge)).await?).await
//! }
//! # async fn call_gateway(_: &Order, key: String) -> Result<String, std::io::Error> { Ok(key) }
//! ```
//!
//! # Eight programs
//!
//! The programs in [`crates/sqs-once/examples`](https://github.com/sqs-once/sqs-once/tree/main/crates/sqs-once/examples) fit on
//! one screen each, and tests run them.
//!
//! | program | shows |
//! | --- | --- |
//! | `existing_main.rs` | an existing `main` with its own subscriber and SDK configuration: [`Consumer::invoke`] |
//! | `shared_state.rs` | shared state: borrowed ([`handler_with`]), or captured by a closure |
//! | `key_in_code.rs` | a key from a small struct: [`Consumer::key_by`]; from JSON pointers; from an attribute |
//! | `own_errors.rs` | an error type that knows its kind: [`Classify`] |
//! | `own_body.rs` | a body that isn't JSON: [`FromMessage`] |
//! | `two_kinds.rs` | two kinds of message in one queue, by attribute |
//! | `start_workflow.rs` | one Step Functions workflow for each operation, under its [call key](Attempt::call_key) |
//! | `middleware.rs` | `tower` layers around each message: [`Handler::layer`]; your own metric: [`Attempt::metric`] |
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
//! | [`protocol`] | the rules as pure functions: when a claim succeeds, and what it means if its condition fails |
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
//! confirmed its copy in the dead-letter queue. (S3 test events need no record.)
//!
//! A crash can always fall between an effect outside DynamoDB and its record, so such an effect happens *at
//! least* once. The handler can make it happen once, because it sees the prior attempt. The seven promises
//! with their conditions are in
//! [docs/concepts.md](https://github.com/sqs-once/sqs-once/blob/main/docs/concepts.md).

#![cfg_attr(docsrs, feature(doc_cfg))]
// Tests may read the clock; the library reads it only in `system`.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod aws;
mod deadline;
mod dynamo;
mod entries;
mod event;
mod flawed;
mod handler;
mod invalid;
mod meter;
pub mod modes;
pub mod protocol;
#[cfg(feature = "s3")]
mod s3;
mod settings;
pub mod sqs;
pub mod store;
mod system;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

/// Items that the other crates of this project and its tests use. Not part of the API.
#[doc(hidden)]
pub mod internal {
    pub use crate::{
        aws::explain::unanswered,
        dynamo::{
            explain::is_contended,
            store::admin::StoredRecord,
            writes::{Refused, Writes, token},
        },
        entries::entries,
        event::{Published, first_fault, is_name},
        flawed::flawed,
        handler::{Answer, AnyLookUp, Delivery, HandlerOutput, History, to_output},
        meter::Meter,
        modes::{
            held::open_too_long,
            mode::{Claimed, Unsupported, sealed::Sealed},
            output::{Lease, Output},
            records::Records,
            rejected::rejected,
            run::{run_handler, run_here},
            work::{HandlerEnd, NoOutput, guard_now},
        },
        protocol::{
            Start,
            circuit::{
                Called, Circuit, CircuitChange, FAILURES_TO_OPEN, FIRST_WAIT, runs_while_open,
            },
            isolation::{Standing, standing},
            record::expires_at,
            request_error_kind::RequestErrorKind,
        },
        settings::{
            parse::positive,
            variables::{ModeOptions, ModeSettings, table},
        },
        sqs::{
            LEAST_OUTAGE,
            identity::{has_payload, key_of},
            survived_outage,
        },
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
    Attempt, Attribute, AttributeValue, Call, CallWith, Classify, DeliveryMetadata,
    EnvelopeMetadata, Failure, FailureKind, FromMessage, Handler, HandlerError, HandlerFn,
    HandlerService, HandlerWith, InvalidMessage, Json, Layered, LookUp, LookUpFn, LookedUp,
    PriorAttempt, ResultExt, Stored, Text, handler_fn, handler_with, look_up_fn,
};
pub use invalid::InvalidValue;
pub use modes::{
    Change, Inbox, ItemMode, Mode, Once, Operation, Outcome, Retry, RetryableError, Severity,
};
#[doc(hidden)]
pub use settings::UnknownVariable;
pub use settings::{Settings, SettingsError, Variables};
pub use sqs::{BatchError, Consumer, run};
