//! [`Rules`]: the library's decisions, one of which may have a flaw.

use std::{sync::Arc, time::Duration};

use sqs_once::{
    internal::{
        Called, Circuit, CircuitChange, History, Standing, expires_at, has_last_look_up,
        lease_alone, standing, takeover_after,
    },
    protocol::{
        AttemptEnd, ClaimRequest, CrashWaits, FailedClaim, FencingToken, PriorState, Record,
        Rejection, Settlement, State, Timestamp,
        decision::{failed_claim, may_claim, may_settle, settled_at},
    },
};

use crate::{
    processes::{
        flaw::Flaw,
        state::{key, seconds},
        world::{MARGIN, TIMEOUT},
    },
    waiting::{Waiting, may_start_beside, next_suspect},
};

/// Each method calls the function of the library with the same name, unless a flaw replaces it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub flaw: Option<Flaw>,
}

impl Rules {
    fn has(self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    // ---- the table's conditions and writes

    pub fn may_claim(self, record: Option<&Record>, request: &ClaimRequest) -> bool {
        let status = record.map(|record| &record.state);
        match (self.flaw, status) {
            (Some(Flaw::InsertOverRecord), _)
            | (Some(Flaw::ClaimIgnoresLease), Some(State::InProgress { .. }))
            | (Some(Flaw::ClaimIgnoresCompleted), Some(State::Completed { .. })) => true,
            (Some(Flaw::NoTakeover), Some(State::InProgress { .. })) => false,
            (Some(Flaw::TakeoverAtLeaseEnd), Some(State::InProgress { lease_until })) => {
                *lease_until <= request.now
            }
            (Some(Flaw::ClaimIgnoresFailures), Some(_)) => {
                let mut record = record.cloned();
                if let Some(record) = &mut record {
                    record.failed_message_ids.clear();
                }
                may_claim(record.as_ref(), request)
            }
            _ => may_claim(record, request),
        }
    }

    /// The record after a claim.
    pub fn claimed(self, request: &ClaimRequest, replaced: Option<&Record>) -> Record {
        let mut record = request.record(replaced);
        match self.flaw {
            Some(Flaw::ClaimForgetsFailures) => record.failed_message_ids.clear(),
            Some(Flaw::ClaimForgetsOpenAttempts) => record.first_claimed_at = Some(request.now),
            Some(Flaw::ClaimForgetsCount) => record.exclusive_attempts = 0,
            Some(Flaw::InsertOverRecord) => record = request.record(None),
            _ => {}
        }
        record
    }

    pub fn may_settle(
        self,
        record: Option<&Record>,
        fence: &FencingToken,
        settlement: &Settlement,
    ) -> bool {
        let in_progress =
            record.is_some_and(|record| matches!(record.state, State::InProgress { .. }));
        match (self.flaw, settlement) {
            (Some(Flaw::CompletionWithoutOwner), Settlement::Complete { .. })
            | (Some(Flaw::RestoreWithoutOwner), Settlement::Restore(_)) => in_progress,
            (Some(Flaw::CompletionWithoutCondition), Settlement::Complete { .. })
            | (Some(Flaw::ReleaseWithoutCondition), Settlement::Release { .. })
            | (Some(Flaw::RenewalWithoutCondition), Settlement::Renew { .. }) => record.is_some(),
            _ => may_settle(record, fence),
        }
    }

    /// The record after a settlement.
    pub fn settled(
        self,
        settlement: &Settlement,
        record: &Record,
        now: Timestamp,
    ) -> Option<Record> {
        let mut settled = settlement.apply(record, now)?;
        match (self.flaw, settlement) {
            (Some(Flaw::ReleaseDeletes), Settlement::Release { .. }) => return None,
            (Some(Flaw::ReleaseKeepsCount), Settlement::Release { .. }) => {
                settled.exclusive_attempts = record.exclusive_attempts;
            }
            (Some(Flaw::LeaseEndsAtZero), Settlement::Release { .. }) => {
                let lease_until = Timestamp::default();
                settled.state = State::InProgress { lease_until };
            }
            (Some(Flaw::NotCounted), Settlement::Renew { .. }) => {
                settled.exclusive_attempts = record.exclusive_attempts;
            }
            _ => {}
        }
        Some(settled)
    }

    // ---- a worker's decisions about its claim

    /// The history that the answer to an applied claim shows.
    pub fn over(self, replaced: Option<Record>) -> PriorState {
        PriorState::over(replaced.filter(|_| !self.has(Flaw::TakeoverNotReturned)))
    }

    /// `None` if the answer is an error to the worker.
    pub fn failed_claim(self, record: Record, request: &ClaimRequest) -> Option<FailedClaim> {
        if self.has(Flaw::RefusedClaimWithoutRecord) {
            return None;
        }
        let lease_until = match record.state {
            State::InProgress { lease_until } => lease_until,
            _ => request.now,
        };
        match failed_claim(record, request) {
            FailedClaim::Held(_) if self.has(Flaw::OwnClaimIsConflict) => {
                let owner = None;
                let conflict = Rejection::Conflict { owner, lease_until };
                Some(FailedClaim::Rejected(conflict))
            }
            failed => Some(failed),
        }
    }

    /// When a record expires that must be kept until then, in seconds since the epoch.
    pub fn expires_at(self, now: Timestamp, retention: u64, kept_until: Timestamp) -> u64 {
        let flawed = self.has(Flaw::ExpiresInLease);
        let kept_until = if flawed { now } else { kept_until };
        expires_at(now, seconds(retention), kept_until)
    }

    pub fn settled_at(self, now: Timestamp, claimed: Timestamp, lease: Timestamp) -> Timestamp {
        let leases = [lease];
        let known = if self.has(Flaw::EndsInLastMillisecond) {
            &leases[..0]
        } else {
            &leases
        };
        settled_at(now, claimed, known)
    }

    pub fn abandon(self, request: &ClaimRequest) -> [(FencingToken, Settlement); 2] {
        let [(first, not_started), (second, nothing)] = Settlement::abandon(request);
        match self.flaw {
            Some(Flaw::AbandonHidesAttempt) => [(second.clone(), not_started), (second, nothing)],
            Some(Flaw::AbandonSaysNothing) => [(first, nothing.clone()), (second, nothing)],
            _ => [(first, not_started), (second, nothing)],
        }
    }

    pub fn undo(self, claimed: PriorState, may_arrive: bool, began: bool) -> Settlement {
        match self.flaw {
            Some(Flaw::RestoreDropsCount) => {
                Settlement::undo(claimed.with_recorded_end(), may_arrive, began)
            }
            Some(Flaw::RestoreKeepsCount) => Settlement::undo(claimed, may_arrive, false),
            Some(Flaw::RestoreForgetsCopies) => Settlement::undo(claimed, false, began),
            _ => Settlement::undo(claimed, may_arrive, began),
        }
    }

    // ---- isolation

    pub fn standing(self, claimed: &PriorState, waits: &CrashWaits) -> Standing {
        let found = standing(claimed, waits);
        match (self.flaw, found) {
            (Some(Flaw::AllAreClear), _) => Standing::Clear,
            (Some(Flaw::RecordedEndIsIgnored), _) => {
                let unended = PriorState {
                    last_end: None,
                    ..claimed.clone()
                };
                standing(&unended, waits)
            }
            (
                Some(Flaw::OpenAttemptIsIgnored),
                Standing::Suspect {
                    exclusive_attempts: 0,
                },
            ) => Standing::Clear,
            (Some(Flaw::CrashedTooEarly), Standing::Suspect { exclusive_attempts })
                if waits.after_death(exclusive_attempts + 1).is_none() =>
            {
                Standing::Crashed { exclusive_attempts }
            }
            (Some(Flaw::CrashedTooLate), Standing::Crashed { exclusive_attempts })
                if waits.after_death(exclusive_attempts - 1).is_some() =>
            {
                Standing::Suspect { exclusive_attempts }
            }
            (_, found) => found,
        }
    }

    pub fn next_suspect(self, waiting: &Waiting) -> Option<usize> {
        match self.flaw {
            Some(Flaw::SuspectBesideOthers) => next_suspect(&Waiting {
                active: 0,
                ..waiting.clone()
            }),
            Some(Flaw::MostDeathsFirst) => {
                let most = waiting.suspects.iter().max();
                Some(most.filter(|_| waiting.active == 0)?.1)
            }
            _ => next_suspect(waiting),
        }
    }

    pub fn may_start_beside(self, suspects_wait: bool, time_left: u64) -> bool {
        let suspects_wait = suspects_wait && !self.has(Flaw::NoHalfForSuspects);
        may_start_beside(suspects_wait, seconds(TIMEOUT), seconds(time_left))
    }

    pub fn lease_alone(
        self,
        n: u64,
        waits: &CrashWaits,
        now: Timestamp,
        lease_until: Timestamp,
    ) -> Timestamp {
        if self.has(Flaw::NoRest) {
            return lease_until;
        }
        lease_alone(n, waits, now, lease_until)
    }

    /// True if the handler may start alone without the answer to the renewal that counts the attempt.
    pub fn starts_unconfirmed(self) -> bool {
        self.has(Flaw::StartsUnconfirmed)
    }

    // ---- reconciliation

    /// How long after the end of a lease a claim takes over, with a quarantine of so many seconds.
    pub fn takeover_after(self, quarantine: Option<u64>) -> Duration {
        let (margin, quarantine) = match self.flaw {
            Some(Flaw::NoQuarantine) => (MARGIN, None),
            Some(Flaw::QuarantineWithoutMargin) => (0, quarantine),
            _ => (MARGIN, quarantine),
        };
        takeover_after(seconds(margin), quarantine.map(seconds))
    }

    /// True if an earlier attempt may have had its effect, so that it is looked up.
    pub fn looks_up(self, prior: &PriorState) -> bool {
        History::from(prior).may_have_effect() && !self.has(Flaw::NoLookUp)
    }

    pub fn has_last_look_up(self, exclusive_attempts: u64, waits: &CrashWaits) -> bool {
        match self.flaw {
            Some(Flaw::NoLastLookUp) => false,
            Some(Flaw::EndlessLookUps) => true,
            _ => has_last_look_up(exclusive_attempts, waits),
        }
    }

    /// True if the handler runs after a look-up that does not know.
    pub fn runs_after_unknown(self) -> bool {
        self.has(Flaw::UnknownIsNotFound)
    }

    // ---- the circuit breaker

    /// Returns the time of the next probe, if the message does not run.
    pub fn admit(
        self,
        circuit: &mut Circuit,
        now: Timestamp,
        receives: u8,
    ) -> Result<(), Timestamp> {
        match self.flaw {
            Some(Flaw::RunsWhileOpen) => Ok(()),
            Some(Flaw::ManyProbes) => circuit.clone().admit(now, receives.into()),
            _ => circuit.admit(now, receives.into()),
        }
    }

    /// Returns whether the circuit opened or closed.
    pub fn called(
        self,
        circuit: &mut Arc<Circuit>,
        now: Timestamp,
        operation: usize,
        end: Called,
    ) -> Option<CircuitChange> {
        Arc::make_mut(circuit).called(now, &key(operation), end)
    }
}

/// An abandoned claim leaves an open attempt in which no handler ran.
#[test]
fn attempt_that_never_started_is_not_looked_up() {
    let prior = PriorState {
        open_since: Some(Timestamp::default()),
        last_end: Some(AttemptEnd::NotStarted),
        ..PriorState::over(None)
    };
    assert!(!Rules::default().looks_up(&prior));
}
