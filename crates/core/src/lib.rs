//! The core of [sqs-once](https://docs.rs/sqs-once): rules, handlers, and the claim mode on any store.
//!
//! Functions depend on the crate `sqs-once`, which exports the same items under the same names. Depend on
//! this crate to write a store, or for a function behind a different trigger. It contains no code for SQS,
//! Lambda or the AWS SDK.
//!
//! Each module imports only from modules below it.
//!
//! | module | contents |
//! | --- | --- |
//! | [`conformance`] | the suite that every store passes |
//! | [`settings`] | environment variables, and settings of modes |
//! | [`once`] | the claim mode, and what other modes share with it |
//! | [`handler`] | the user's code, its arguments and its output |
//! | [`store`] | the trait of stores, records in memory, the place of outputs |
//! | [`event`] | messages that a handler publishes |
//! | [`deadline`], [`meter`], [`system`] | time, measurements, clock and randomness |
//! | [`unanswered`] | explanations of requests that got no response |
//! | [`protocol`] | rules as pure functions |

#![cfg_attr(docsrs, feature(doc_cfg))]
// Tests may read the clock. The library reads it only in `system`.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod conformance;
pub mod deadline;
pub mod event;
pub mod handler;
mod invalid;
pub mod meter;
pub mod once;
pub mod protocol;
pub mod settings;
pub mod store;
pub mod system;
pub mod unanswered;

pub use deadline::Deadline;
pub use event::Event;
pub use handler::{
    Attempt, EnvelopeMetadata, Failure, FromMessage, Handler, HandlerFn, Json, LookUp, Reconcile,
    Reconciled, Reconciling, ResultExt, Stored, Text, handler_fn,
};
pub use invalid::InvalidValue;
pub use once::{Mode, Once, Operation, Outcome, Retry, Severity};
