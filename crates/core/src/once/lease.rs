//! [`Lease`]: the time during which a claim is exclusive.

use std::time::Duration;

use tokio::time::Instant;

use crate::{deadline::Deadline, protocol::Timestamp};

/// A worker renews a lease when one third of it has passed. That leaves time for two more tries.
const RENEWED_AFTER: u32 = 3;

/// How long leases last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    /// How much longer the record's lease lasts than the worker's right to run, since clocks differ.
    pub(crate) margin: Duration,
    /// Length of a lease that is renewed. With `None`, the lease ends with the invocation.
    pub(crate) heartbeat: Option<Duration>,
    /// How long after the end of a lease another attempt may take over: with a look-up, after the margin and
    /// the quarantine.
    pub(crate) takeover_after: Duration,
}

impl LeaseTerms {
    /// Returns these terms for a handler with this quarantine, or without a look-up.
    pub(crate) fn with_quarantine(self, quarantine: Option<Duration>) -> Self {
        let takeover_after = quarantine.map(|wait| self.margin.saturating_add(wait));
        Self {
            takeover_after: takeover_after.unwrap_or_default(),
            ..self
        }
    }
}

/// The lease of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) terms: LeaseTerms,
    /// When the worker must stop, by the wall clock.
    pub(crate) ends: Timestamp,
    /// The same by the monotonic clock. `None`: at the deadline.
    cut: Option<Instant>,
    /// End of the lease in the record.
    until: Timestamp,
}

impl Lease {
    /// Returns the lease that a request sent now would get.
    pub(crate) fn from_now(terms: LeaseTerms, now: Timestamp, deadline: Deadline) -> Self {
        // Compare before you add: no clock can represent centuries from now.
        let renewed = terms
            .heartbeat
            .filter(|length| *length < now.until(deadline.invocation_end()))
            .map(|length| (now + length, Instant::now() + length));
        let ends = renewed.map_or(deadline.invocation_end(), |(ends, _)| ends);
        Self {
            terms,
            ends,
            cut: renewed.map(|(_, cut)| cut),
            until: ends + terms.margin,
        }
    }

    /// Returns this lease with a different end in the record. The worker's right to run still ends with the
    /// deadline at the latest. A renewal never shortens the new lease: with a heartbeat, the next renewal
    /// comes close to its end.
    pub(crate) fn lasting_until(
        self,
        until: Timestamp,
        now: Timestamp,
        deadline: Deadline,
    ) -> Self {
        let length = now.until(until).saturating_sub(self.terms.margin);
        let renewed = (self.terms.heartbeat).filter(|_| now + length < deadline.invocation_end());
        Self {
            ends: (now + length).min(deadline.invocation_end()),
            cut: renewed.map(|_| Instant::now() + length),
            until,
            ..self
        }
    }

    /// End of the lease in the record.
    pub(crate) fn until(&self) -> Timestamp {
        self.until
    }

    /// Time until which the record must be kept: no other attempt may take over before.
    pub(crate) fn kept_until(&self) -> Timestamp {
        self.until + self.terms.takeover_after
    }

    /// Returns whether the worker's right to run has ended, by either clock.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        now > self.ends || self.cut.is_some_and(|cut| Instant::now() >= cut)
    }

    /// Returns the time of the next renewal, and the time at which the lease ends without it. `None` if the
    /// lease lasts until the deadline.
    pub(crate) fn renewal(&self) -> Option<(Instant, Instant)> {
        let (length, cut) = (self.terms.heartbeat?, self.cut?);
        Some((cut - length + length / RENEWED_AFTER, cut))
    }
}
