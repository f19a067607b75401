//! Idempotency rules without I/O, AWS types or a clock: callers pass in all times.
//!
//! | module | contents |
//! | --- | --- |
//! | [`key`] | idempotency keys and payload fingerprints |
//! | [`record`] | the record of an operation, and its limits |
//! | [`decision`] | conditions for claims and settlements, and the meaning of a refused write |
//! | [`isolation`] | which messages run alone after a crash, and when |
//!
//! Each decision is a pure function of its arguments. Readers can check each one against the tables
//! in `docs/protocol.md`, and tests try every row.

#[doc(hidden)]
pub mod circuit;
pub mod decision;
pub mod isolation;
pub mod key;
pub mod record;
mod unavailability;

pub use decision::Settlement;
#[doc(hidden)]
pub use decision::{Before, ClaimRefused, Claimed, Refusal, SettlementRefused};
pub use key::KeyPart;
pub use key::{Fingerprint, Key, KeyError, Namespace};
pub use record::{
    AfterFailure, AttemptEnd, ClaimRequest, Fence, Owner, Record, ResultPointer, State,
    StoredResult, Timestamp,
};
#[doc(hidden)]
pub use unavailability::Unavailability;
