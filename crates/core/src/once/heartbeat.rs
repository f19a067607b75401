//! Heartbeat: renews the lease of a claim while its handler runs.

use std::{future::pending, pin::Pin};

use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep_until, timeout_at};

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

    /// Waits, and meanwhile renews the lease. A renewal in flight is never dropped, so the lease of the
    /// record stays known.
    pub(super) async fn while_waiting<T>(
        &mut self,
        mut wait: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, NoAnswer> {
        while let Some((next, cut)) = self.lease.renewal() {
            if let Ok(end) = timeout_at(next, wait.as_mut()).await {
                return Ok(end);
            }
            self.lease = self.renew(self.lease, cut).await?;
        }
        Ok(wait.await)
    }

    /// Renews the lease. Returns when it is lost.
    async fn renew_until_lost(&self) -> NoAnswer {
        let mut lease = self.lease;
        while let Some((next, cut)) = lease.renewal() {
            sleep_until(next).await;
            match self.renew(lease, cut).await {
                Ok(renewed) => lease = renewed,
                Err(end) => return end,
            }
        }
        pending().await
    }

    /// Renews the lease once, which ends at `cut`.
    async fn renew(&self, lease: Lease, cut: Instant) -> Result<Lease, NoAnswer> {
        let now = self.records.now();
        // An ended lease is not renewed: another worker may be about to take over.
        if lease.has_ended(now) {
            return Err(NoAnswer::OutOfTime);
        }
        let renewed = Lease::from_now(lease.terms, now, self.deadline);
        let fence = self.fence.clone().with_lease(lease.until());
        let settlement = self.records.renewal(renewed.until());
        // The same renewal is repeated: an earlier copy may have been applied.
        match self
            .settle_by(&Effort::renewal(cut, &self.meter), &fence, &settlement)
            .await
        {
            Settled::Applied => Ok(renewed),
            Settled::LeaseLost => Err(NoAnswer::LeaseLost),
            Settled::Unknown(error) => {
                tracing::warn!(
                    key = %self.fence.key,
                    %error,
                    "the lease could not be renewed: the handler is cut off when it ends"
                );
                sleep_until(cut).await;
                Err(NoAnswer::OutOfTime)
            }
        }
    }
}
