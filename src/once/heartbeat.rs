//! Heartbeat: renews the lease of a claim while its handler runs.

use std::{future::pending, pin::pin, time::Duration};

use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep_until};

use super::{
    held::{HeldClaim, Settled},
    work::NoAnswer,
};
use crate::{deadline::Deadline, protocol::Timestamp, store::Store};

/// Part of a lease after which the worker renews it. Two more tries fit into the rest.
const RENEWED_AFTER: u32 = 3;
/// Renewals after a rejected one, at most. Other failed requests are repeated without a pause of this
/// length.
const RETRIES: u32 = 4;

/// The length of leases.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTerms {
    /// Time by which a lease outlasts the worker's own limit, for clocks that differ.
    pub(super) margin: Duration,
    /// Length of a lease that is renewed. `None`: the lease ends with the invocation.
    pub(super) heartbeat: Option<Duration>,
}

/// A lease of a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    terms: LeaseTerms,
    /// End of the worker's own right to run, by the wall clock.
    pub(super) ends: Timestamp,
    /// The same by the monotonic clock. `None`: the deadline.
    cut: Option<Instant>,
}

impl Lease {
    /// The lease of a request that the worker sends now.
    pub(super) fn from_now(terms: LeaseTerms, now: Timestamp, deadline: Deadline) -> Self {
        let renewed = terms
            .heartbeat
            .map(|length| (now + length, Instant::now() + length))
            .filter(|(ends, _)| *ends < deadline.at());
        Self {
            terms,
            ends: renewed.map_or(deadline.at(), |(ends, _)| ends),
            cut: renewed.map(|(_, cut)| cut),
        }
    }

    /// End of the lease in the record.
    pub(super) fn until(&self) -> Timestamp {
        self.ends + self.terms.margin
    }

    /// Time of the next renewal, and the time at which the lease ends without it. `None` if the lease
    /// lasts until the deadline.
    fn renewal(&self) -> Option<(Instant, Instant)> {
        let (length, cut) = (self.terms.heartbeat?, self.cut?);
        Some((cut - length + length / RENEWED_AFTER, cut))
    }
}

impl<S: Store> HeldClaim<'_, S> {
    /// Runs `work`, and meanwhile renews the lease. Drops `work` if the lease is lost, or cannot be
    /// renewed in time.
    pub(super) async fn while_renewed<T>(
        &self,
        work: impl Future<Output = Result<T, NoAnswer>>,
    ) -> Result<T, NoAnswer> {
        let work = pin!(work);
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
            if Instant::now() >= cut || now > lease.ends {
                return NoAnswer::OutOfTime;
            }
            let renewed = Lease::from_now(lease.terms, now, self.deadline);
            let fence = self.fence.clone().with_lease(lease.until());
            let settlement = self.records.renewal(renewed.until());
            loop {
                match self.settle_by(cut, &fence, &settlement).await {
                    Settled::Applied => break lease = renewed,
                    Settled::LeaseLost => return NoAnswer::LeaseLost,
                    Settled::Unknown(error) => tracing::warn!(
                        key = %self.fence.key,
                        %error,
                        "the lease could not be renewed: the handler is cut off when it ends"
                    ),
                }
                // DynamoDB may reject one request, as while credentials are replaced. The same renewal
                // is sent again: an earlier copy may have been applied.
                sleep_until(cut.min(Instant::now() + (cut - next) / RETRIES)).await;
                if Instant::now() >= cut || self.records.now() > lease.ends {
                    return NoAnswer::OutOfTime;
                }
            }
        }
        pending().await
    }
}
