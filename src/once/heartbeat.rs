//! Heartbeat: renews the lease of a claim while its handler runs.

use std::{future::pending, pin::Pin};

use futures_util::future::{Either, select};
use tokio::time::sleep_until;

use super::{
    held::{HeldClaim, Settled},
    lease::Lease,
    repeat::Effort,
    work::NoAnswer,
};
use crate::store::Store;

impl<S: Store> HeldClaim<'_, S> {
    /// Runs `work`, and meanwhile renews the lease. Drops `work` if the lease is lost, or cannot be
    /// renewed in time.
    pub(super) async fn while_renewed<T>(
        &self,
        work: Pin<&mut impl Future<Output = Result<T, NoAnswer>>>,
    ) -> Result<T, NoAnswer> {
        if self.lease.renewal().is_none() {
            return work.await;
        }
        // Boxed, so that the future of a message stays small without a heartbeat. Polled first: after
        // a freeze beyond the lease, the handler must not go on.
        match select(Box::pin(self.renew_until_lost()), work).await {
            Either::Left((end, _)) => Err(end),
            Either::Right((answer, _)) => answer,
        }
    }

    /// Renews the lease. Returns when it is lost.
    async fn renew_until_lost(&self) -> NoAnswer {
        let mut lease = self.lease;
        while let Some((next, cut)) = lease.renewal() {
            sleep_until(next).await;
            let now = self.records.now();
            // An ended lease is not renewed: another worker may be about to take over.
            if lease.has_ended(now) {
                return NoAnswer::OutOfTime;
            }
            let renewed = Lease::from_now(lease.terms, now, self.deadline);
            let fence = self.fence.clone().with_lease(lease.until());
            let settlement = self.records.renewal(renewed.until());
            // The same renewal is repeated: an earlier copy may have been applied.
            let effort = Effort::renewal(cut);
            match self.settle_by(effort, &fence, &settlement).await {
                Settled::Applied => lease = renewed,
                Settled::LeaseLost => return NoAnswer::LeaseLost,
                Settled::Unknown(error) => {
                    tracing::warn!(
                        key = %self.fence.key,
                        %error,
                        "the lease could not be renewed: the handler is cut off when it ends"
                    );
                    sleep_until(cut).await;
                    return NoAnswer::OutOfTime;
                }
            }
        }
        pending().await
    }
}
