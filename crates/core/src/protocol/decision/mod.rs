//! Rules of claims and settlements, and the meaning of a refused write.
//!
//! DynamoDB returns the existing item when a condition check fails
//! (`ReturnValuesOnConditionCheckFailure`). That record and the request decide everything that
//! follows, without a second read.

mod claim;
mod claimed;
#[cfg(test)]
mod fixtures;
mod settlement;

pub use claim::{ClaimRefused, Refusal, claim_refused, insert_refused, may_claim, refusal};
pub use claimed::{Before, Claimed};
pub use settlement::{Settlement, SettlementRefused, may_settle, settlement_refused};
