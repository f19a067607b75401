//! The claim of an attempt, in the transaction that it opens.

use sqlx::Error;
use sqs_once::{
    Outcome,
    internal::{rejected, system},
    protocol::{Decision, Record, Rejection, decide},
};

use super::PostgresRun;
use crate::{
    explain::{is_connection_lost, is_lock_timeout},
    store::row::insert_or_lock,
    transaction_connection::{Limits, TransactionConnection, Tries},
};

/// A record that an open transaction locks.
#[derive(Debug)]
pub(crate) struct Locked {
    /// The record of this claim, which we write only when the attempt ends.
    pub(crate) record: Record,
    /// The earlier record, unless it was past its retention.
    pub(crate) replaced: Option<Record>,
    /// The transaction's id.
    pub(crate) transaction: String,
}

impl PostgresRun<'_> {
    /// Opens a transaction and claims the operation.
    pub(crate) async fn begin(&self) -> Result<(TransactionConnection, Locked), Outcome> {
        let deadline = self.operation.deadline;
        let stop = deadline.handler_cutoff();
        let begun = async {
            let mut tries = Tries::new(self.records.store.connections(), stop);
            loop {
                let limits = Limits::until(deadline, deadline.start_by());
                let mut tx = tries.begin(limits).await?;
                match self.claim(&mut tx).await {
                    // Safe to retry, because nothing was committed.
                    Err(error) if is_connection_lost(&error) => tries.failed(tx, error).await?,
                    claim => return Ok((tx, claim)),
                }
            }
        };
        // We wait beyond the last time at which a handler may start, because the response to a lock timeout comes after it.
        let (mut tx, claim) = match self.in_time(begun).await {
            Some(Ok(begun)) => begun,
            Some(Err(error)) => return Err(self.not_applied("claim", &error)),
            None => return Err(Outcome::store_unavailable(self.out_of_time("claim"))),
        };
        let outcome = match claim {
            Ok(Ok(locked)) => return Ok((tx, locked)),
            Ok(Err(rejection)) => rejected(rejection, self.operation),
            // Another worker's transaction is open, and we don't know when it will end.
            Err(error) if is_lock_timeout(&error) => Outcome::Conflict {
                owner: None,
                lease_until: self.records.now(),
            },
            Err(error) => self.not_applied("claim", &error),
        };
        self.roll_back(&mut tx).await;
        Err(outcome)
    }

    /// Claims the operation in the open transaction, which locks its record.
    pub(super) async fn claim(
        &self,
        tx: &mut TransactionConnection,
    ) -> Result<Result<Locked, Rejection>, Error> {
        let claim = &self.claim;
        let first = Record::claimed(claim, 1, None, None);
        let deadline = self.operation.deadline;
        let time_left = deadline
            .write_until()
            .saturating_duration_since(system::instant());
        let (found, transaction) = insert_or_lock(tx, self.key(), &first, time_left).await?;
        let version = found.stamp.version + 1;
        let replaced = match decide(Some(&found), claim) {
            // The record was just inserted, or the earlier one is past its retention.
            Decision::Mine | Decision::First => None,
            Decision::Over => Some(found),
            Decision::Rejected(rejection) => return Ok(Err(rejection)),
        };
        Ok(Ok(Locked {
            record: Record::claimed(claim, version, replaced.as_ref(), None),
            replaced,
            transaction,
        }))
    }
}
