//! The rules, and nothing but the rules: no I/O, no AWS types, and times are handed in.
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`key`] | what makes two deliveries the same operation |
//! | [`record`] | what is remembered of an operation, and for how long |
//! | [`decision`] | who may claim, and what a refused write means |
//!
//! Each decision is a pure function of its arguments, so a reader can check it
//! against the tables in the crate's `DESIGN.md`, and a test can try every row.

pub mod decision;
pub mod key;
pub mod record;
mod unavailability;

pub use decision::Settlement;
#[doc(hidden)]
pub use decision::{Before, ClaimRefused, Claimed, Refusal, SettlementRefused};
pub(crate) use key::KeyPart;
pub use key::{Fingerprint, Key, KeyError, Namespace};
pub use record::{
    AfterFailure, AttemptEnd, ClaimRequest, Fence, Owner, Record, State, StoredResult, Timestamp,
};
#[doc(hidden)]
pub use unavailability::Unavailability;
