//! The core of [sqs-once](https://docs.rs/sqs-once): rules, handlers, and the claim mode on any store.
//!
//! A function depends on the crate `sqs-once`, which exports what a handler needs under the same names. This crate
//! is for authors of stores, and for the other crates of this project. It knows no AWS SDK, no SQS and no Lambda.
//!
//! Each module imports only from modules below it.
//!
//! | module | contents |
//! | --- | --- |
//! | [`conformance`] | the suite that every store passes |
//! | [`settings`] | environment variables, and settings of modes |
//! | [`once`] | the claim mode, and what other modes share with it |
//! | [`handler`] | the user's code, its arguments and its answer |
//! | [`store`] | the trait of stores, records in memory, the place of outputs |
//! | [`event`] | messages that a handler publishes with its answer |
//! | [`deadline`], [`meter`], [`system`] | time, measurements, clock and chance |
//! | [`unanswered`] | explanations of requests without an answer |
//! | [`protocol`] | rules as pure functions |

#![cfg_attr(docsrs, feature(doc_cfg))]
// Tests may read the clock; the library reads it in `system` alone.
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
    Attempt, Bytes, EnvelopeFacts, Failure, FromMessage, Handler, HandlerFn, Json, Raw, ResultExt,
    Stored, Text, handler_fn,
};
pub use invalid::InvalidValue;
pub use once::{Mode, Once, Operation, Outcome, Retry, Severity};
