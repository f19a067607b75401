//! The idempotency rules, without I/O, AWS types or a clock. Callers pass in all times.
//!
//! | module | contents |
//! | --- | --- |
//! | `key` | idempotency keys and payload fingerprints |
//! | `record` | the record of an operation, and its limits |
//! | `decide` | may a claim replace the record that it found, and what does it write? |
//! | `plan` | what does a claim write, and what runs then? |
//! | `ended` | what does a worker write when an attempt has ended? |
//! | `isolation` | which messages run alone after a crash, and when |
//!
//! Each decision is a pure function of its arguments. You can check it against the tables in
//! `docs/protocol.md`, and the tests try every row.

pub(crate) mod circuit;
mod decide;
mod ended;
pub(crate) mod isolation;
pub(crate) mod key;
mod plan;
pub(crate) mod record;
pub(crate) mod request_error_kind;

pub use decide::{Claim, Decision, Rejection, decide, decide_without_body};
pub use ended::{Effect, End};
pub use isolation::CrashWaits;
pub(crate) use key::KeyBuilder;
pub use key::{Fingerprint, Key, KeyError, KeyPart, MAX_KEY_BYTES, Namespace};
#[doc(hidden)]
pub use plan::{Plan, Runs, Start, plan_claim};
#[doc(hidden)]
pub use record::Pause;
pub use record::{
    AttemptEnd, Expect, MAX_ERROR_BYTES, MAX_ITEM_BYTES, MAX_RESULT_BYTES, Owner, Record,
    RecordedFailure, ResultPointer, Stamp, State, StoredResult, Swap, Timestamp,
};
#[doc(hidden)]
pub use request_error_kind::RequestErrorKind;

#[cfg(test)]
mod tests;
