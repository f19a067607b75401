//! [`plan_claim`]: what a claim writes over the record that it found.

use super::{
    decide::{Claim, Decision, Rejection, decide},
    isolation::{CrashWaits, Standing, has_last_look_up, standing},
    record::Record,
};
use crate::flawed::flawed;

/// How a claim's handler would start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The handler starts alongside others. A suspect isn't claimed then.
    Beside,
    /// The handler gets a turn of its own. The claim of a suspect counts the attempt.
    Alone,
}

/// The next step of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing is written, and nothing runs.
    Reject(Rejection),
    /// The claim's swap was applied, but the response was lost.
    Mine,
    /// Nothing is written: the message is a suspect, and needs a turn of its own.
    Suspend {
        /// How many earlier attempts ran alone without a recorded end.
        exclusive_attempts: u64,
    },
    /// The claim is written.
    Write {
        /// The record that the claim writes.
        to: Box<Record>,
        /// False if the new record keeps nothing of the one that the claim found.
        keeps: bool,
        /// The part that runs once the record is written.
        runs: Runs,
    },
}

/// The part of the consumer that runs after a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// The handler, after the lookup if there is one.
    Handler,
    /// Only the lookup: the process died too often.
    LookUp,
    /// Nothing: the message is `crashed`.
    Nothing,
}

/// Plans the next swap of a claim. `version` is the highest version of its earlier swaps.
///
/// | [`decide`] | [`standing`] | alongside others | alone |
/// | --- | --- | --- | --- |
/// | rejected | | reject | reject |
/// | mine | | mine | mine |
/// | first, over | clear | write, handler | write, handler |
/// | over | suspect | suspend | write and count, handler |
/// | over | crashed, but a lookup for an open attempt has not run alone yet | suspend | write and count, lookup |
/// | over | crashed | write, nothing | write, nothing |
#[must_use]
pub fn plan_claim(
    found: Option<&Record>,
    claim: &Claim,
    version: u64,
    start: Start,
    waits: &CrashWaits,
) -> Plan {
    let replaced = match decide(found, claim) {
        Decision::Rejected(rejection) => return Plan::Reject(rejection),
        Decision::Mine => return Plan::Mine,
        Decision::First if !flawed("an expired record is history") => None,
        Decision::First | Decision::Over => found,
    };
    let is_open = replaced.is_some_and(|record| record.first_claimed_at.is_some());
    let (runs, suspect) = match standing(replaced, waits) {
        Standing::Clear => (Runs::Handler, None),
        Standing::Suspect { exclusive_attempts } => (Runs::Handler, Some(exclusive_attempts)),
        Standing::Crashed { exclusive_attempts }
            if claim.quarantine.is_some()
                && is_open
                && has_last_look_up(exclusive_attempts, waits) =>
        {
            (Runs::LookUp, Some(exclusive_attempts))
        }
        Standing::Crashed { .. } => (Runs::Nothing, None),
    };
    if let Some(exclusive_attempts) = suspect
        && start == Start::Beside
    {
        return Plan::Suspend { exclusive_attempts };
    }
    let seen = found.map_or(0, |record| record.stamp.version);
    let alone = suspect.map(|_| waits);
    Plan::Write {
        to: Box::new(Record::claimed(
            claim,
            seen.max(version) + 1,
            replaced,
            alone,
        )),
        keeps: replaced.is_some(),
        runs,
    }
}
