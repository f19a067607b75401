//! The rules of claims and settlements, and what a failed condition means.
//!
//! DynamoDB returns the existing item when a condition check fails (`ReturnValuesOnConditionCheckFailure`).
//! That record and the request decide everything that follows, without a second read.

mod claim;
#[cfg(test)]
mod fixtures;
mod prior_state;
mod settlement;

pub(crate) use claim::failed_insert;
pub use claim::{FailedClaim, Rejection, failed_claim, may_claim, rejection};
pub use prior_state::{PreviousRecord, PriorState};
pub use settlement::{FailedSettlement, Settlement, failed_settlement, may_settle, settled_at};
