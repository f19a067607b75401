//! The promises that the model checks. Most are checked at the step that would break them, against the facts:
//! what really happened, whatever the records say.

use std::sync::atomic::Ordering::Relaxed;

use stateright::Property;

use crate::processes::{
    state::{Fate, Kind, Reason, Receive, State, Step},
    world::{MARGIN, World},
};

/// A promise, or a part of one. Named as in `docs/promises.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Promise 1: two workers may act for one key at the same time.
    OneLiveClaim,
    /// Promise 2: a handler begins although the end was recorded.
    RecordedEndIsFinal,
    /// Promise 3: a handler begins, and does not see an earlier attempt without a recorded end.
    SeesPriorAttempt,
    /// Promise 3: a late copy of a claim is applied after the claim was ended.
    EndedClaimStaysEnded,
    /// Promise 5: a message is acknowledged whose operation is not completed.
    AcknowledgedAfterRecord,
    /// Promise 5: a completed record changes.
    ResultIsKept,
    /// Promise 6: a handler runs beside one whose earlier attempt may have ended the process.
    SuspectRunsAlone,
    /// Promise 6: a suspect goes before one with fewer deaths.
    FewestDeathsFirst,
    /// Promise 6: while a suspect waits, a handler starts in the second half of the time.
    HalfForSuspects,
    /// Promise 6: a message is isolated, and no earlier attempt can have ended its process.
    IsolatedWithCause,
    /// Promise 7: a message is `crashed` after fewer deaths alone than the limit says.
    CrashedAtLimit,
    /// Promise 7: a killer ends its process more often than the limit says.
    KillerIsCrashed,
    /// Promise 7: a message runs alone again before its rest is over.
    RestsAfterDeath,
    /// Promise 7: nothing can happen, and a message is left in the queue.
    EveryMessageEnds,
    /// Reconciliation: the effect happens again.
    OneEffect,
    /// Reconciliation: a message is `crashed`, a look-up could have found its effect.
    EffectIsFound,
    /// The circuit breaker: a message is claimed while the circuit is open.
    OpenCircuitSavesClaims,
}

/// All of them, with a name for Stateright.
const ALL: [(Promise, &str); 17] = [
    (Promise::OneLiveClaim, "P1: one live claim per key"),
    (Promise::RecordedEndIsFinal, "P2: a recorded end is final"),
    (
        Promise::SeesPriorAttempt,
        "P3: the handler sees a prior attempt",
    ),
    (
        Promise::EndedClaimStaysEnded,
        "P3: an ended claim is not applied again",
    ),
    (
        Promise::AcknowledgedAfterRecord,
        "P5: acknowledged after the record",
    ),
    (Promise::ResultIsKept, "P5: a result is kept"),
    (Promise::SuspectRunsAlone, "P6: a suspect runs alone"),
    (Promise::FewestDeathsFirst, "P6: fewest deaths first"),
    (
        Promise::HalfForSuspects,
        "P6: half of the time for suspects",
    ),
    (Promise::IsolatedWithCause, "P6: isolated with a cause"),
    (Promise::CrashedAtLimit, "P7: crashed at the limit"),
    (Promise::KillerIsCrashed, "P7: a killer ends as crashed"),
    (
        Promise::RestsAfterDeath,
        "P7: a message rests after a death",
    ),
    (Promise::EveryMessageEnds, "P7: every message ends"),
    (Promise::OneEffect, "reconciliation: one effect"),
    (
        Promise::EffectIsFound,
        "reconciliation: an effect is found before crashed",
    ),
    (Promise::OpenCircuitSavesClaims, "circuit: open, no claim"),
];

impl Promise {
    pub fn name(self) -> &'static str {
        let found = ALL.iter().find(|(promise, _)| *promise == self);
        found.map_or("unnamed", |(_, name)| name)
    }
}

/// One property of Stateright: a state with a broken promise has a name. Stateright reports the last path to a
/// broken state within a block of 1500, so only the first one counts, which is the shortest.
pub fn properties() -> Vec<Property<World>> {
    vec![Property::always("keeps every promise", |world, state| {
        world.seen(state);
        let broken = state.broken.or_else(|| world.broken_now(state));
        broken.is_none() || world.seen.broken.fetch_add(1, Relaxed) > 0
    })]
}

impl World {
    fn seen(&self, state: &State) {
        let receives = state.messages.iter().map(|message| message.receives.into());
        let most = receives.max().unwrap_or_default();
        self.seen.receives.fetch_max(most, Relaxed);
        if self.is_last(state) {
            self.seen.last_states.fetch_add(1, Relaxed);
        }
    }

    /// The promise that this state breaks by itself.
    pub fn broken_now(&self, state: &State) -> Option<Promise> {
        if self.has_two_claims(state) {
            return Some(Promise::OneLiveClaim);
        }
        if state.suspect_has_company() {
            return Some(Promise::SuspectRunsAlone);
        }
        (self.is_last(state) && self.has_wrong_end(state)).then_some(Promise::EveryMessageEnds)
    }

    fn has_two_claims(&self, state: &State) -> bool {
        let mut held = vec![false; state.operations.len()];
        for (number, process) in state.processes.iter().enumerate() {
            let clock = state.clock(number);
            for task in &process.tasks {
                if process.holds(task, clock) {
                    let operation = state.operation(task.receive);
                    if std::mem::replace(&mut held[operation], true) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Nothing can happen but the arrival of late requests, and a message has not ended as it should.
    fn has_wrong_end(&self, state: &State) -> bool {
        state.messages.iter().any(|message| {
            let right = match (message.kind, message.fate) {
                (Kind::Good, Fate::Acknowledged)
                | (Kind::Declined, Fate::DeadLetter(Reason::Declined))
                | (_, Fate::DeadLetter(Reason::Crashed)) => true,
                // Under one key, the success of another message is theirs too.
                (Kind::Declined, Fate::Acknowledged) => self.one_key,
                // Its effect was found.
                (Kind::Killer, Fate::Acknowledged) => {
                    !state.operations[message.operation].facts.effects.is_empty()
                }
                _ => false,
            };
            !right
        })
    }
}

impl State {
    pub fn breaks(&mut self, promise: Promise) {
        self.broken.get_or_insert(promise);
    }

    pub fn break_if(&mut self, broken: bool, promise: Promise) {
        if broken {
            self.breaks(promise);
        }
    }

    /// A handler runs beside a suspect: one whose operation has an attempt without a recorded end.
    fn suspect_has_company(&self) -> bool {
        self.processes.iter().any(|process| {
            let running = process.tasks.iter().filter_map(|task| match task.step {
                Step::Runs(_, is_suspect) => Some(is_suspect),
                Step::LooksUp(_) => Some(task.alone),
                _ => None,
            });
            let (mut handlers, mut suspects) = (0, false);
            for is_suspect in running {
                handlers += 1;
                suspects |= is_suspect;
            }
            suspects && handlers > 1
        })
    }

    /// An earlier attempt may have ended its process, or its end could not be recorded.
    pub fn has_cause(&self, receive: Receive) -> bool {
        let operation = self.operation(receive);
        let of_messages = self
            .messages
            .iter()
            .any(|message| message.operation == operation && message.may_be_suspect);
        // A frozen process may still have its message.
        let tasks = self.processes.iter().flat_map(|process| &process.tasks);
        let mut others = tasks
            .map(|task| task.receive)
            .filter(|other| *other != receive);
        of_messages
            || others.any(|other| self.operation(other) == operation)
            || !self.operations[operation].facts.unended.is_empty()
    }

    /// A handler begins. Returns whether an earlier attempt has no recorded end.
    pub fn begins(&mut self, receive: Receive, sees_prior_attempt: bool) -> bool {
        let operation = self.operation(receive);
        let facts = &self.operations[operation].facts;
        let is_suspect = !facts.unended.is_empty();
        let has_failed = facts
            .failed
            .iter()
            .any(|(message, _)| *message == receive.message);
        let is_final = facts.completed.is_some() || has_failed;
        self.break_if(is_final, Promise::RecordedEndIsFinal);
        self.break_if(is_suspect && !sees_prior_attempt, Promise::SeesPriorAttempt);
        self.operations[operation].facts.unended.push(receive);
        is_suspect
    }

    /// An attempt alone is about to be counted. It rests from the time at which the record counts it. `rest` is how long its message must have rested since the last one.
    pub fn begins_alone(&mut self, receive: Receive, rest: impl Fn(usize) -> Option<u64>) {
        let (operation, now) = (self.operation(receive), self.now);
        let facts = &mut self.operations[operation].facts;
        let earlier = rest(facts.alone.len());
        let too_early = facts.alone_since.zip(earlier).is_some_and(|(since, rest)| {
            // The clocks of the two processes may differ.
            now + MARGIN < since + rest
        });
        facts.alone.push(receive);
        self.break_if(too_early, Promise::RestsAfterDeath);
    }
}
