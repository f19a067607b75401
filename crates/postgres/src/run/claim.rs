//! The claim of an attempt, in the transaction that it opens.

use sqlx::Error;
use sqs_once::{
    Outcome,
    internal::system::{self, timeout_at},
    protocol::{
        Record,
        decision::{PriorState, may_claim, rejection},
    },
};

use super::Run;
use crate::{
    explain::{is_connection_lost, is_lock_timeout},
    store::row::insert_or_lock,
    transaction_connection::{Limits, TransactionConnection, Tries},
};

/// A claim whose transaction is open. The transaction locks the record.
#[derive(Debug)]
pub(crate) struct Claim {
    /// The record in progress. If the record existed before, the table still has its old state.
    pub(crate) record: Record,
    pub(crate) claimed: PriorState,
    /// Id of the transaction.
    pub(crate) transaction: String,
}

impl Run<'_> {
    /// Opens a transaction, and claims the operation.
    pub(crate) async fn begin(&self) -> Result<(TransactionConnection, Claim), Outcome> {
        let stop = self.deadline.handler_cutoff();
        let begun = async {
            let mut tries = Tries::new(self.records.store.connections(), stop);
            loop {
                let limits = Limits::until(self.deadline, self.deadline.start_by());
                let mut tx = tries.begin(limits).await?;
                match self.claim(&mut tx).await {
                    // Nothing was committed.
                    Err(error) if is_connection_lost(&error) => tries.failed(tx, error).await?,
                    claim => return Ok((tx, claim)),
                }
            }
        };
        // The response to a lock timeout comes after the last time at which a handler may start.
        let (mut tx, claim) = match self
            .meter
            .timed(timeout_at(self.deadline.write_until(), begun))
            .await
        {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => return Err(self.not_applied("claim", &error)),
            Err(_elapsed) => return Err(Outcome::store_unavailable(self.out_of_time("claim"))),
        };
        let outcome = match claim {
            Ok(Ok(claim)) => return Ok((tx, claim)),
            Ok(Err(refused_by)) => rejection(refused_by, &self.request).into(),
            // The other worker's transaction is open, and we do not know when it ends.
            Err(error) if is_lock_timeout(&error) => Outcome::Conflict {
                owner: None,
                lease_until: self.records.now(),
            },
            Err(error) => self.not_applied("claim", &error),
        };
        self.roll_back(&mut tx).await;
        Err(outcome)
    }

    /// Claims the operation in the open transaction. Returns the record on which the claim's condition
    /// failed, if it did.
    pub(super) async fn claim(
        &self,
        tx: &mut TransactionConnection,
    ) -> Result<Result<Claim, Record>, Error> {
        let request = &self.request;
        let new = request.record(None);
        let time_left = self
            .deadline
            .write_until()
            .saturating_duration_since(system::instant());
        let kept = insert_or_lock(tx, &request.key, &new, time_left).await?;
        let is_new = kept.record.owner == new.owner;
        if !is_new && !may_claim(Some(&kept.record), request) {
            return Ok(Err(kept.record));
        }
        let replaced = Some(kept.record).filter(|old| !is_new && !old.is_expired(request.now));
        Ok(Ok(Claim {
            record: request.record(replaced.as_ref()),
            claimed: PriorState::over(replaced),
            transaction: kept.version,
        }))
    }
}
