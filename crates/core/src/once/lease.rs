//! [`Lease`]: the time during which a claim is exclusive.

use std::time::Duration;

use tokio::time::Instant;

use crate::{deadline::Deadline, protocol::Timestamp};

/// Part of a lease after which the worker renews it. Two more tries fit into the rest.
const RENEWED_AFTER: u32 = 3;

/// The length of leases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    /// Time by which a lease outlasts the worker's own limit, for clocks that differ.
    pub(crate) margin: Duration,
    /// Length of a lease that is renewed. `None`: the lease ends with the invocation.
    pub(crate) heartbeat: Option<Duration>,
}

/// A lease of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) terms: LeaseTerms,
    /// End of the worker's own right to run, by the wall clock.
    pub(crate) ends: Timestamp,
    /// The same by the monotonic clock. `None`: the deadline.
    cut: Option<Instant>,
    /// End of the lease in the record.
    until: Timestamp,
}

impl Lease {
    /// The lease of a request that the worker sends now.
    pub(crate) fn from_now(terms: LeaseTerms, now: Timestamp, deadline: Deadline) -> Self {
        // Compared before it is added: no clock can count a length of centuries.
        let renewed = terms
            .heartbeat
            .filter(|length| *length < now.until(deadline.at()))
            .map(|length| (now + length, Instant::now() + length));
        let ends = renewed.map_or(deadline.at(), |(ends, _)| ends);
        Self {
            terms,
            ends,
            cut: renewed.map(|(_, cut)| cut),
            until: ends + terms.margin,
        }
    }

    /// This lease, but until then in the record. The worker's right to run ends with the deadline at
    /// the latest. No renewal shortens it: with a heartbeat, the next follows near its end.
    pub(crate) fn lasting_until(
        self,
        until: Timestamp,
        now: Timestamp,
        deadline: Deadline,
    ) -> Self {
        let length = now.until(until).saturating_sub(self.terms.margin);
        let renewed = (self.terms.heartbeat).filter(|_| now + length < deadline.at());
        Self {
            ends: (now + length).min(deadline.at()),
            cut: renewed.map(|_| Instant::now() + length),
            until,
            ..self
        }
    }

    /// End of the lease in the record.
    pub(crate) fn until(&self) -> Timestamp {
        self.until
    }

    /// Returns whether the worker's right to run has ended, by either clock.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        now > self.ends || self.cut.is_some_and(|cut| Instant::now() >= cut)
    }

    /// Time of the next renewal, and the time at which the lease ends without it. `None` if the lease
    /// lasts until the deadline.
    pub(crate) fn renewal(&self) -> Option<(Instant, Instant)> {
        let (length, cut) = (self.terms.heartbeat?, self.cut?);
        Some((cut - length + length / RENEWED_AFTER, cut))
    }
}
