//! The conformance suite that every [`Store`] must pass.
//!
//! If you write a store, run [`all`], or each promise as a separate test. A function panics if the store
//! breaks its promise. The store must be empty at the start of each.
//!
//! ```
//! use sqs_once::store::MemoryStore;
//! use sqs_once::testing::conformance;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! conformance::all(async || MemoryStore::default()).await;
//! # }
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test suite, which fails by panicking"
)]

mod claims;
mod leases;
mod requests;
mod settlements;

pub use claims::{
    claim_admission_follows_rules, concurrent_claims_admit_one,
    failed_messages_are_never_admitted_again, keys_with_special_characters_are_distinct,
    new_key_is_claimed_and_recorded, refused_claim_returns_record,
    takeover_returns_replaced_record, takeover_waits_for_quarantine,
};
pub use leases::{
    abandon_of_first_claim_is_recorded, attempt_alone_is_counted_until_its_end,
    ended_lease_is_taken_over_at_once, late_renewal_changes_nothing, renewed_lease_stays_exclusive,
};
pub use settlements::{
    completed_record_keeps_result, failed_record_keeps_error, largest_result_fits,
    late_settlement_changes_nothing, repeated_settlement_counts_as_applied,
    restored_key_is_as_before_claim, settlement_admission_follows_rules,
};

use crate::store::Store;

/// Calls a macro with the arguments and the name of each promise. This is the only list of them.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_promise_of_a_store {
    ($run:ident, $($arguments:tt)*) => {
        $run! {
            $($arguments)*
            new_key_is_claimed_and_recorded
            refused_claim_returns_record
            claim_admission_follows_rules
            takeover_returns_replaced_record
            takeover_waits_for_quarantine
            completed_record_keeps_result
            failed_record_keeps_error
            restored_key_is_as_before_claim
            ended_lease_is_taken_over_at_once
            renewed_lease_stays_exclusive
            late_renewal_changes_nothing
            attempt_alone_is_counted_until_its_end
            abandon_of_first_claim_is_recorded
            failed_messages_are_never_admitted_again
            settlement_admission_follows_rules
            late_settlement_changes_nothing
            repeated_settlement_counts_as_applied
            concurrent_claims_admit_one
            keys_with_special_characters_are_distinct
            largest_result_fits
        }
    };
}

/// Declares [`all`], which runs every promise.
macro_rules! promises {
    ($($promise:ident)+) => {
        /// Runs every promise, each on a new store from `new`.
        ///
        /// # Panics
        ///
        /// If the store breaks a promise. The standard error output names the promise.
        pub async fn all<S: Store>(new: impl AsyncFn() -> S) {
            $(
                eprintln!("conformance: {}", stringify!($promise));
                $promise(&new().await).await;
            )+
        }
    };
}

for_each_promise_of_a_store!(promises,);
