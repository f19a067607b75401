//! [`Held`]: an operation that this worker holds, and the swap that ends it.

use std::time::Duration;

use crate::{
    flawed::flawed,
    handler::History,
    protocol::{Claim, Decision, End, Expect, Key, Owner, Record, Swap, Timestamp, decide},
};

/// An operation that this worker holds.
#[derive(Debug)]
pub enum Held {
    /// The claim is in the record, and its lease keeps others away.
    Leased(HeldClaim),
    /// Nothing is written yet, so another worker may be first.
    Unleased(Unwritten),
}

impl Held {
    /// Returns the swap that ends the attempt. Each call picks the version for the next content to be written.
    ///
    /// # Errors
    ///
    /// Returns the decision about the record if that already settles an operation without a lease.
    pub(super) fn ending(
        &mut self,
        key: &Key,
        end: &End,
        now: Timestamp,
    ) -> Result<Swap, Decision> {
        match self {
            Self::Leased(claim) => Ok(claim.ending(key, end, now)),
            Self::Unleased(unwritten) => unwritten.ending(key, end, now),
        }
    }

    /// Returns whether the claim replaced no record.
    pub(super) const fn is_first(&self) -> bool {
        matches!(self, Self::Leased(HeldClaim { replaced: None, .. }))
    }

    pub(super) const fn owner(&self) -> &Owner {
        match self {
            Self::Leased(claim) => &claim.record.stamp.owner,
            Self::Unleased(unwritten) => &unwritten.claim.owner,
        }
    }
}

/// A claim that this worker holds, or that it undoes because it may hold it.
#[derive(Debug)]
pub struct HeldClaim {
    /// The record that the claim wrote.
    pub(crate) record: Record,
    /// The record that the claim replaced. `None` if there was none, or if it had expired.
    pub(crate) replaced: Option<Record>,
    /// The highest version that the claim has sent.
    version: u64,
}

impl HeldClaim {
    pub(crate) const fn new(record: Record, replaced: Option<Record>, version: u64) -> Self {
        Self {
            record,
            replaced,
            version,
        }
    }

    /// Returns the swap that ends the claim with `end`.
    pub(super) fn ending(&mut self, key: &Key, end: &End, now: Timestamp) -> Swap {
        self.version += 1;
        let now = now.max(self.record.updated_at);
        Swap {
            key: key.clone(),
            expect: Expect::Unchanged(self.record.clone()),
            to: (self.record).ended(self.replaced.as_ref(), end, self.version, now),
        }
    }

    /// Returns whether the claim counted this attempt as one that runs alone.
    pub(super) fn is_counted(&self) -> bool {
        self.record.exclusive_attempts > self.earlier_exclusive_attempts()
    }

    /// Returns how many earlier attempts ran alone without a recorded end.
    pub(super) fn earlier_exclusive_attempts(&self) -> u64 {
        let replaced = self.replaced.as_ref();
        replaced.map_or(0, |record| record.exclusive_attempts)
    }

    /// Returns when the earliest open attempt began, if that will be longer ago than `lifetime` at `end`.
    pub(super) fn open_too_long(
        &self,
        lifetime: Option<Duration>,
        end: Timestamp,
    ) -> Option<Timestamp> {
        open_too_long(self.replaced.as_ref()?, lifetime, end)
    }

    /// Returns what the handler is told about earlier attempts.
    pub(super) fn history(&self) -> History {
        History::of(self.replaced.as_ref(), &self.record)
    }
}

/// Returns when the earliest open attempt of `record` began, if that is longer ago than `lifetime` at `now`. The called
/// system may have forgotten the call key by then.
pub fn open_too_long(
    record: &Record,
    lifetime: Option<Duration>,
    now: Timestamp,
) -> Option<Timestamp> {
    let open_since = record.first_claimed_at?;
    let mut is_too_old = open_since.until(now) > lifetime?;
    if flawed("an attempt is too old after an hour") {
        is_too_old = open_since.until(now) > Duration::from_secs(3600);
    }
    (is_too_old && !flawed("no attempt is too old")).then_some(open_since)
}

/// A claim that we write only together with its end, and the record that it found.
#[derive(Debug)]
pub struct Unwritten {
    claim: Claim,
    pub(super) found: Option<Record>,
    /// The highest version that the claim has sent.
    version: u64,
}

impl Unwritten {
    pub(super) const fn new(claim: Claim, found: Option<Record>) -> Self {
        Self {
            claim,
            found,
            version: 0,
        }
    }

    fn ending(&mut self, key: &Key, end: &End, now: Timestamp) -> Result<Swap, Decision> {
        let Self {
            claim,
            found,
            version,
        } = self;
        claim.now = now;
        let replaced = match decide(found.as_ref(), claim) {
            Decision::First => None,
            Decision::Over => found.as_ref(),
            Decision::Rejected(_) if flawed("an inbox commits over any record") => found.as_ref(),
            answer => return Err(answer),
        };
        let seen = found.as_ref().map_or(0, |record| record.stamp.version);
        *version = seen.max(*version) + 1;
        let claimed = Record::claimed(claim, *version, replaced, None);
        Ok(Swap {
            key: key.clone(),
            to: claimed.ended(replaced, end, *version, now),
            expect: found.clone().map_or(Expect::Absent, Expect::Unchanged),
        })
    }
}
