//! Heartbeat: renews the lease of a claim while its handler runs.

use std::{
    future::{pending, poll_fn},
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::Poll,
};

use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    held::{HeldClaim, Settled},
    lease::Lease,
    repeat::Effort,
    work::NoOutput,
};
use crate::store::Store;

impl<S: Store> HeldClaim<'_, S> {
    /// Runs `work` and renews the lease meanwhile. Drops `work` if the lease is lost or cannot be renewed in
    /// time.
    pub(super) async fn while_renewed<T>(
        &self,
        mut work: Pin<&mut impl Future<Output = Result<T, NoOutput>>>,
    ) -> Result<T, NoOutput> {
        // Timers stand still while Lambda freezes the process. So after a freeze that outlasted the lease,
        // only the wall clock can tell that the handler must not go on.
        let ends = AtomicU64::new(self.lease.ends.as_millis());
        let work = poll_fn(|context| {
            if self.records.now().as_millis() > ends.load(Relaxed) {
                return Poll::Ready(Err(NoOutput::OutOfTime));
            }
            work.as_mut().poll(context)
        });
        if self.lease.renewal().is_none() {
            return work.await;
        }
        // Boxed, so that the future of a message stays small when there is no heartbeat.
        match select(Box::pin(self.renew_until_lost(&ends)), work).await {
            Either::Left((end, _)) => Err(end),
            Either::Right((answer, _)) => answer,
        }
    }

    /// Waits and renews the lease meanwhile. Never drops a renewal in flight, so we always know the lease in
    /// the record.
    pub(super) async fn while_waiting<T>(
        &mut self,
        mut wait: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, NoOutput> {
        while let Some((next, cut)) = self.lease.renewal() {
            if let Ok(end) = timeout_at(next, wait.as_mut()).await {
                return Ok(end);
            }
            self.lease = self.renew(self.lease, cut).await?;
        }
        Ok(wait.await)
    }

    /// Renews the lease until it is lost. Keeps `ends` at the end of the worker's right to run.
    async fn renew_until_lost(&self, ends: &AtomicU64) -> NoOutput {
        let mut lease = self.lease;
        while let Some((next, cut)) = lease.renewal() {
            sleep_until(next).await;
            match self.renew(lease, cut).await {
                Ok(renewed) => {
                    ends.store(renewed.ends.as_millis(), Relaxed);
                    lease = renewed;
                }
                Err(end) => return end,
            }
        }
        pending().await
    }

    /// Renews a lease that would end at `cut`.
    async fn renew(&self, lease: Lease, cut: Instant) -> Result<Lease, NoOutput> {
        let now = self.records.now();
        // A lease that has ended is not renewed: another worker may be about to take over.
        if lease.has_ended(now) {
            return Err(NoOutput::OutOfTime);
        }
        let renewed = Lease::from_now(lease.terms, now, self.deadline);
        let fence = self.fence.clone().with_lease(lease.until());
        let settlement = self.records.renewal(renewed.until());
        // Retries repeat the same renewal, because an earlier copy may have been applied.
        match self
            .settle_by(&Effort::renewal(cut, &self.meter), &fence, &settlement)
            .await
        {
            Settled::Applied => Ok(renewed),
            Settled::LeaseLost => Err(NoOutput::LeaseLost),
            Settled::Unknown(error) => {
                tracing::warn!(
                    key = %self.fence.key,
                    %error,
                    "the lease could not be renewed: the handler is cut off when it ends"
                );
                sleep_until(cut).await;
                Err(NoOutput::OutOfTime)
            }
        }
    }
}
