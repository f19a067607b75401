//! Monitor of the promises: each is checked at the moment at which it would be broken.
//!
//! | | |
//! | --- | --- |
//! | P1 | no two workers are in the handler under live leases; no worker enters it after its lease has expired |
//! | P2 | once COMPLETED, no worker enters the handler, and no worker with a live lease has an effect. A message whose failure was recorded never enters the handler again, and the table never admits it again |
//! | P3 | a run follows only on a failure, of another message if it was permanent, or an attempt whose end was not recorded. The run is informed of each but one without effect, with a time no later than the claim of the earliest |
//! | P3, in money | the effect happens twice only if a worker had it after its lease had expired |
//! | P4 | an effect in the table exists at most once, and exactly if the record is COMPLETED with the result of the same transaction. No worker makes it under another's live claim |
//! | P5 | a worker reports success only of a COMPLETED operation, with the recorded result. A COMPLETED record does not change, and its result is that of a handler that returned it |
//! | ends | every message ends in success or in a stored failure (`schedule.rs`) |
//!
//! The monitor computes a worker's lease as its invocation's deadline and the margin, and ignores
//! the lease that the claim asks for. It checks promises against events, never against the library's
//! internals. It sees handlers enter, act and leave, workers end, and the record before and after
//! each write.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    time::Duration,
};

use sqs_once::{
    Outcome,
    internal::History,
    protocol::{Record, State, StoredResult, Timestamp},
};

use crate::schedules::{
    clock::{from_now, of_worker, wall},
    handler::{BUDGET, HandlerEnd, MARGIN},
    world::fingerprint,
};

/// One run of the handler.
#[derive(Clone, Debug)]
struct Run {
    worker: usize,
    /// The time in its claim, by its worker's clock.
    claimed_at: Timestamp,
    lease_until: Timestamp,
    /// Answers of the handler: at its end, and then to refused writes.
    said: Vec<HandlerEnd>,
    payload: usize,
    /// Its worker has crashed, ended, or cut it off.
    gone: bool,
    /// Its commit was not answered at once.
    unanswered: bool,
    /// Its failure was recorded.
    settled: bool,
    /// Nobody is told of it: a decline was recorded after it, or the record was deleted.
    closed: bool,
}

impl Run {
    fn inside(&self) -> bool {
        self.said.is_empty() && !self.gone
    }

    fn lease_lives(&self) -> bool {
        lives(self.lease_until)
    }
}

/// The rule of the claim's condition: a lease has expired after its last millisecond.
pub fn lives(lease_until: Timestamp) -> bool {
    lease_until >= wall()
}

#[derive(Clone, Debug, Default)]
pub struct Promises {
    /// Each worker's claim: its time, and the time until which it should be exclusive.
    claims: Vec<(Timestamp, Timestamp)>,
    runs: Vec<Run>,
    /// Each worker's payload.
    payloads: Vec<usize>,
    /// Per effect: true if its worker's lease was live.
    effects: Vec<bool>,
    /// Number of effects in the table.
    made: usize,
    completed: Option<StoredResult>,
    /// Outputs that lookups found.
    found: Vec<StoredResult>,
    /// Messages whose failure was stored at some time.
    failed: BTreeSet<String>,
    /// The same, and what was recorded, before the record was deleted too.
    ever_failed: BTreeSet<String>,
    ever_completed: Vec<StoredResult>,
    deleted: bool,
    /// Number of recorded declines.
    declines: u64,
    /// An operator ended a lease, so that several workers may be in the handler.
    released: bool,
    broken: Option<String>,
}

impl Promises {
    /// The first broken promise.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub fn break_if(&mut self, broken: bool, how: impl FnOnce() -> String) {
        if broken && self.broken.is_none() {
            self.broken = Some(how());
        }
    }

    /// A worker sends its claim, made `at` this time by its clock. The monitor ignores the lease that the claim asks for:
    /// exclusion needs a lease as long as the invocation and the margin. Clocks that differ use up the margin.
    pub fn claims(&mut self, worker: usize, at: Timestamp, clocks_differ: bool) {
        let known = self.claims.len().max(worker + 1);
        self.claims.resize(known, Default::default());
        let margin = if clocks_differ {
            Duration::ZERO
        } else {
            MARGIN
        };
        // The worker repeats the same claim after contention.
        if self.claims[worker].0 != at {
            // A read may have come first, and a pause.
            let made = wall().as_millis() - at.until(of_worker()).as_millis() as u64;
            let lease_until = Timestamp::from_millis(made) + BUDGET + margin;
            self.claims[worker] = (at, lease_until);
        }
    }

    /// The table lengthened a worker's lease before an attempt alone, as its worker asked `at` this time by its
    /// own clock. The lease lasts for the message's rest after a death, whenever the table lengthens it.
    pub fn renews(
        &mut self,
        worker: usize,
        at: Timestamp,
        rest: Option<Duration>,
        clocks_differ: bool,
    ) {
        // By a clock that is ahead the lease is longer by the margin, and the other clocks see it
        // end earlier by the margin.
        let margin = if clocks_differ {
            Duration::ZERO
        } else {
            MARGIN
        };
        let (_, lease) = self.claim(worker);
        let rested = rest.map_or(lease, |rest| at + (rest - MARGIN) + margin);
        let lease_until = lease.max(rested);
        self.claims[worker].1 = lease_until;
        if let Some(run) = self.runs.iter_mut().find(|run| run.worker == worker) {
            run.lease_until = lease_until;
        }
    }

    /// An operator ends the lease of whoever holds the claim: from now on, no lease is live.
    pub fn released(&mut self) {
        self.released = true;
        let ended = Timestamp::from_millis(wall().as_millis() - 1);
        for (_, lease_until) in &mut self.claims {
            *lease_until = ended.min(*lease_until);
        }
        for run in &mut self.runs {
            run.lease_until = ended.min(run.lease_until);
        }
    }

    /// An operator, or DynamoDB after the retention, deletes the record, and with it all that the promises depend on.
    pub fn deleted(&mut self) {
        self.released();
        self.deleted = true;
        self.declines = 0;
        (self.completed, self.failed) = (None, BTreeSet::new());
        self.effects.clear();
        for run in &mut self.runs {
            (run.settled, run.closed) = (true, true);
        }
    }

    /// These messages have failed, as the record says.
    pub fn fail(&mut self, failed: BTreeSet<String>) {
        self.ever_failed.extend(failed.iter().cloned());
        self.failed.extend(failed);
    }

    fn claim(&self, worker: usize) -> (Timestamp, Timestamp) {
        self.claims.get(worker).copied().unwrap_or_default()
    }

    pub fn lease(&self, worker: usize) -> Timestamp {
        self.claim(worker).1
    }

    /// Before the schedule begins, a worker claimed at this time, had its effect and crashed.
    pub fn crashed(&mut self, claimed_at: Timestamp) {
        self.runs.push(Run {
            worker: usize::MAX,
            claimed_at,
            lease_until: Timestamp::default(),
            said: Vec::new(),
            payload: 0,
            gone: true,
            unanswered: false,
            settled: false,
            closed: false,
        });
        self.effects.push(true);
    }

    /// A message with this payload is delivered to the next worker.
    pub fn delivered(&mut self, payload: usize) {
        self.payloads.push(payload);
    }

    pub fn effects(&self) -> usize {
        self.effects.len()
    }

    pub fn enters(&mut self, worker: usize, message: &str, history: &History) {
        let lease_until = self.lease(worker);
        if self.released && !lives(lease_until) {
            // The operator ended its lease after its claim: others may have gone first.
            return self.begins(worker);
        }
        self.break_if(self.failed.contains(message), || {
            format!("P2: w{worker} runs {message} again after its recorded failure")
        });
        let before = self.runs.clone();
        self.begins(worker);
        self.break_if(!lives(lease_until), || {
            format!("P1: w{worker} enters the handler after its lease")
        });
        for run in &before {
            self.break_if(run.inside() && run.lease_lives(), || {
                format!(
                    "P1: w{worker} enters the handler, where w{} is, and both their leases live",
                    run.worker
                )
            });
        }
        self.break_if(self.completed.is_some(), || {
            format!("P2: w{worker} enters the handler of a COMPLETED operation")
        });
        let failed = |run: &&Run| run.said.last() == Some(&HandlerEnd::Permanent);
        let declines = self.declines;
        self.break_if(history.generation < declines, || {
            format!("P3: w{worker} runs under a call key whose decline is recorded")
        });
        let open = |run: &&Run| !run.closed && (!run.settled || failed(run));
        for run in before.iter().filter(open) {
            let other = run.worker;
            let said = run.said.last();
            // A recorded failure is a cause too, of a later message.
            let cut_off = run.gone
                || run.settled
                || run.unanswered
                || matches!(
                    said,
                    Some(HandlerEnd::Panic | HandlerEnd::Retryable | HandlerEnd::NoEffect)
                )
                || !run.lease_lives();
            self.break_if(!cut_off, || {
                format!("P3: w{worker} runs again without a cause from w{other}")
            });
            if said == Some(&HandlerEnd::NoEffect) {
                continue;
            }
            self.break_if(history.prior.is_none(), || {
                format!("P3: w{worker} is not informed of w{other}, whose effect is not recorded")
            });
            let is_other = run.payload != self.payloads[worker];
            let told = history.prior.is_some_and(|open| open.other_payload);
            self.break_if(is_other && !told, || {
                format!("P3: w{worker} is not told that w{other} had another payload")
            });
            let since = history.prior.map(|open| open.first_claimed_at);
            let from_then_on = since.flatten().is_some_and(|since| since <= run.claimed_at);
            self.break_if(!from_then_on, || {
                format!("P3: w{worker} is informed of w{other} with a later time: {since:?}")
            });
        }
    }

    /// A worker's handler runs. Any number may run at once in a mode that only plans.
    pub fn begins(&mut self, worker: usize) {
        let (claimed_at, lease_until) = self.claim(worker);
        self.runs.push(Run {
            worker,
            claimed_at,
            lease_until,
            said: Vec::new(),
            payload: self.payloads[worker],
            gone: false,
            unanswered: false,
            settled: false,
            // Its claim was deleted.
            closed: self.deleted && !lives(lease_until),
        });
    }

    /// A worker has its effect.
    pub fn acts(&mut self, worker: usize) {
        let lease_lives = lives(self.lease(worker));
        self.break_if(lease_lives && self.completed.is_some(), || {
            format!("P2: w{worker} has an effect under a live lease after COMPLETED")
        });
        self.effects.push(lease_lives);
        self.break_if(
            self.effects.iter().filter(|timely| **timely).count() > 1,
            || format!("P3: w{worker} has the effect again, and each time the lease was live"),
        );
    }

    /// A charge arrives at a gateway that charges the card for each request.
    pub fn charges(&mut self, worker: usize) {
        self.effects.push(true);
        let times = self.effects.len();
        self.break_if(times > 1, || {
            format!("once: the card is charged {times} times, now by w{worker}")
        });
    }

    /// A lookup found the effect with this output.
    pub fn finds(&mut self, output: StoredResult) {
        self.found.push(output);
    }

    pub fn says(&mut self, worker: usize, word: HandlerEnd) {
        self.run(worker).said.push(word);
    }

    /// The table is unreachable for the worker's writes.
    pub fn unanswered(&mut self, worker: usize) {
        self.run(worker).unanswered = true;
    }

    /// The handler's future has ended.
    pub fn left(&mut self, worker: usize) {
        let run = self.run(worker);
        run.gone |= run.said.is_empty();
    }

    /// The worker has crashed or ended.
    pub fn gone(&mut self, worker: usize) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.worker == worker) {
            run.gone = true;
        }
    }

    fn run(&mut self, worker: usize) -> &mut Run {
        let run = self.runs.iter_mut().find(|run| run.worker == worker);
        run.expect("it entered the handler")
    }

    /// Checks an effect in the table; `made` lists the workers whose transactions made it. `holder`
    /// had a live claim before that.
    pub fn made(&mut self, made: &[usize], holder: Option<usize>, record: Option<&Record>) {
        self.break_if(made.len() > 1, || {
            format!(
                "P4: the effect exists {} times, made by {made:?}",
                made.len()
            )
        });
        if let Some(worker) = made.get(self.made) {
            let other = holder.filter(|holder| holder != worker);
            self.break_if(other.is_some(), || {
                format!("P1: w{worker} commits under a live claim of another: {other:?}")
            });
        }
        self.made = made.len();
        let recorded = match record.map(|record| &record.state) {
            Some(State::Completed { result }) if *result != declined() => Some(result.clone()),
            _ => None,
        };
        let told = match (made.first(), &recorded) {
            (Some(worker), Some(result)) => is_output_of(result, *worker),
            (effect, recorded) => effect.is_none() && recorded.is_none(),
        };
        self.break_if(!told, || {
            format!("P4: the effect is that of {made:?}, and the record tells {recorded:?}")
        });
    }

    /// The table was written to. The record answers the `failed` messages with its failure; its owner is this worker.
    pub fn wrote(
        &mut self,
        before: Option<&Record>,
        after: Option<&Record>,
        failed: BTreeSet<String>,
        owner: Option<usize>,
    ) {
        if before == after {
            return;
        }
        if let Some(State::Completed { .. }) = before.map(|record| &record.state) {
            self.break_if(true, || "P5: a COMPLETED record was changed".into());
        }
        if let Some(after) = after.filter(|after| after.state != State::Failed) {
            let message = &after.message_id;
            self.break_if(self.failed.contains(message), || {
                format!("P2: the table admits {message} again after its recorded failure")
            });
        }
        match after.map(|record| &record.state) {
            Some(State::Completed { result }) => {
                let said = self.runs.iter().any(|run| {
                    run.said.iter().any(|word| match word {
                        HandlerEnd::Done => is_output_of(result, run.worker),
                        HandlerEnd::NotWritten => *result == declined(),
                        _ => false,
                    })
                });
                let said = said || self.found.contains(result);
                self.break_if(!said, || {
                    "P5: a result was recorded that no handler returned".into()
                });
                self.completed = Some(result.clone());
                self.ever_completed.push(result.clone());
            }
            Some(State::Failed) => {
                self.break_if(!self.failed.is_subset(&failed), || {
                    "P2: the record forgot a message whose failure was recorded".into()
                });
                self.fail(failed);
                let mut declined = false;
                for run in &mut self.runs {
                    let is_owners = Some(run.worker) == owner;
                    run.settled |= is_owners;
                    declined |= is_owners && run.said.last() == Some(&HandlerEnd::Declined);
                }
                if declined {
                    self.declines += 1;
                    self.runs.iter_mut().for_each(|run| run.closed = true);
                }
            }
            _ => {}
        }
    }

    /// A worker ends, with this record.
    pub fn ended(
        &mut self,
        worker: usize,
        message: &str,
        outcome: &Outcome,
        record: Option<&Record>,
    ) {
        self.gone(worker);
        let recorded = match record.map(|record| &record.state) {
            Some(State::Completed { result }) => Some(result),
            _ => None,
        };
        let said = match outcome {
            Outcome::Completed(result)
            | Outcome::Duplicate(result)
            | Outcome::Reconciled(result) => Some(result),
            _ => None,
        };
        let was_recorded =
            self.deleted && said.is_some_and(|said| self.ever_completed.contains(said));
        let recorded = said.filter(|_| was_recorded).or(recorded);
        self.break_if(outcome.is_success() && recorded.is_none(), || {
            format!("P5: w{worker} reports success of an operation that is not COMPLETED")
        });
        let failed = matches!(
            outcome,
            Outcome::FailedBefore(_) | Outcome::PermanentFailure(_)
        );
        let was_recorded = self.ever_failed.contains(message);
        self.break_if(failed && !was_recorded, || {
            format!("P5: w{worker} reports a failure of {message} that was not recorded")
        });
        let own = Some(fingerprint(self.payloads[worker]));
        let record = record.filter(|_| !self.deleted && recorded.is_some());
        let is_other = record.is_some_and(|record| record.fingerprint.as_ref() != own);
        self.break_if(outcome.is_success() && is_other, || {
            format!("P5: w{worker} reports success, and another payload was processed")
        });
        let is_reused = matches!(outcome, Outcome::KeyReused);
        self.break_if(is_reused && !is_other, || {
            format!("P5: w{worker} reports a reused key, and no other payload was processed")
        });
        self.break_if(said.is_some() && said != recorded, || {
            format!("P5: w{worker} passes on another result than the recorded one")
        });
    }
}

/// Output of this worker's handler.
pub fn output_of(worker: usize) -> StoredResult {
    StoredResult::Json(worker.to_string())
}

/// Output of a handler that plans again after its writes were refused.
fn changed_output_of(worker: usize) -> StoredResult {
    StoredResult::Json(format!("[{worker}]"))
}

fn is_output_of(result: &StoredResult, worker: usize) -> bool {
    [output_of(worker), changed_output_of(worker)].contains(result)
}

/// Output of a handler whose writes were refused.
pub const DECLINED: &str = "declined";

fn declined() -> StoredResult {
    StoredResult::Json(format!("\"{DECLINED}\""))
}

/// Hashes all state on which later checks depend.
impl Hash for Promises {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for run in &self.runs {
            let lease = run.lease_lives().then(|| from_now(run.lease_until));
            (run.worker, &run.said, run.gone, run.settled, lease).hash(state);
            run.payload.hash(state);
            run.closed.hash(state);
            let open =
                !run.closed && !run.settled && run.said.last() != Some(&HandlerEnd::NoEffect);
            open.then(|| from_now(run.claimed_at)).hash(state);
            run.unanswered.hash(state);
        }
        self.effects.hash(state);
        self.completed.is_some().hash(state);
        (&self.failed, self.released, self.declines).hash(state);
        (&self.ever_failed, self.ever_completed.len(), self.deleted).hash(state);
    }
}
