//! The idempotency rules, without I/O, AWS types or a clock. Callers pass in all times.
//!
//! | module | contents |
//! | --- | --- |
//! | [`key`] | idempotency keys and payload fingerprints |
//! | [`record`] | the record of an operation, and its limits |
//! | [`decision`] | conditions for claims and settlements, and what a failed condition means |
//! | [`isolation`] | which messages run alone after a crash, and when |
//!
//! Each decision is a pure function of its arguments. You can check it against the tables in
//! `docs/protocol.md`, and the tests try every row.

#[doc(hidden)]
pub mod circuit;
pub mod decision;
pub mod isolation;
pub mod key;
pub mod record;
mod request_error_kind;

pub use decision::Settlement;
#[doc(hidden)]
pub use decision::{FailedClaim, FailedSettlement, PreviousRecord, PriorState, Rejection};
pub use key::KeyPart;
pub use key::{Fingerprint, Key, KeyError, Namespace};
pub use record::{
    AfterFailure, AttemptEnd, ClaimRequest, FencingToken, Owner, Record, ResultPointer, State,
    StoredResult, Timestamp,
};
#[doc(hidden)]
pub use request_error_kind::RequestErrorKind;
