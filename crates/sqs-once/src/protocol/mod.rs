//! The idempotency rules, without I/O, AWS types or a clock. Callers pass in all times.
//!
//! | module | contents |
//! | --- | --- |
//! | `key` | idempotency keys and payload fingerprints |
//! | `record` | the record of an operation, and its limits |
//! | [`decision`] | conditions for claims and settlements, and what a failed condition means |
//! | `isolation` | which messages run alone after a crash, and when |
//!
//! Each decision is a pure function of its arguments. You can check it against the tables in
//! `docs/protocol.md`, and the tests try every row.

pub(crate) mod circuit;
pub mod decision;
pub(crate) mod isolation;
pub(crate) mod key;
pub(crate) mod record;
pub(crate) mod request_error_kind;

pub use decision::Settlement;
#[doc(hidden)]
pub use decision::{FailedClaim, FailedSettlement, PreviousRecord, PriorState, Rejection};
pub use isolation::CrashWaits;
pub(crate) use key::KeyBuilder;
pub use key::{Fingerprint, Key, KeyError, KeyPart, MAX_KEY_BYTES, Namespace};
pub use record::{
    AfterFailure, AttemptEnd, ClaimRequest, FencingToken, MAX_ERROR_BYTES, MAX_FAILED_MESSAGES,
    MAX_ITEM_BYTES, MAX_RESULT_BYTES, Owner, Record, ResultPointer, State, StoredResult, Timestamp,
};
#[doc(hidden)]
pub use request_error_kind::RequestErrorKind;
