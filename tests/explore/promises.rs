//! The promises, each checked at the moment at which it would be broken.
//!
//! | | |
//! | --- | --- |
//! | P1 | no two workers are in the handler under live leases; nobody enters it when its lease is over |
//! | P2 | once COMPLETED, nobody enters the handler, and nobody whose lease lives has an effect; a message whose failure was recorded never enters the handler again, and the table never admits it again |
//! | P3 | a run follows only on a retryable failure, a failure without effect, or an attempt whose end was not recorded; it is informed of each but the second, with a time no later than the claim of the earliest |
//! | P3, in money | the effect is had twice only if a worker had it when its lease was over |
//! | P4 | an effect in the table is there once at most, and exactly if the record is COMPLETED with the result of the same transaction; nobody makes it under another's live claim. On an item it is there once at most, and exactly if the item remembers the operation; nobody is asked what a refusal means that is its own duplicate's |
//! | P5 | success is said only of what is COMPLETED, with the recorded result; a COMPLETED record does not change, and its result is that of a handler which said so |
//! | ends | every message ends in success or in a stored failure (`schedule.rs`) |
//!
//! A worker's lease is what it should be, its invocation's deadline and the margin, whatever its
//! claim asked for. A promise is checked against what happened, never against how the library works: the monitor
//! sees handlers enter, act and leave, workers end, and the record before and after each write.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    time::Duration,
};

use sqs_once::{
    History, Outcome,
    protocol::{Record, State, StoredResult, Timestamp},
};

use crate::{
    clock::{from_now, wall},
    handler::{BUDGET, MARGIN, Word},
    items::Tells,
};

/// One time that the handler ran.
#[derive(Clone, Debug)]
struct Run {
    worker: usize,
    /// The time that its claim bears, by its worker's clock.
    claimed_at: Timestamp,
    lease_until: Timestamp,
    /// What the handler said at its end, and what it said then of writes that were refused.
    said: Vec<Word>,
    /// Its worker has crashed or ended, or cut it off.
    gone: bool,
    /// Its commit was not answered at once.
    unanswered: bool,
    /// Its failure was recorded.
    settled: bool,
}

impl Run {
    fn inside(&self) -> bool {
        self.said.is_empty() && !self.gone
    }

    fn lease_lives(&self) -> bool {
        lives(self.lease_until)
    }
}

/// The rule of the claim's condition: a lease is dead after its last millisecond.
pub fn lives(lease_until: Timestamp) -> bool {
    lease_until >= wall()
}

#[derive(Clone, Debug, Default)]
pub struct Promises {
    /// Each worker's claim: the time that it bears, and until when it should be exclusive.
    claims: Vec<(Timestamp, Timestamp)>,
    runs: Vec<Run>,
    /// Per effect: whether its worker's lease was alive.
    effects: Vec<bool>,
    /// How many effects there are in the table.
    made: usize,
    completed: Option<StoredResult>,
    /// The messages whose failure was stored at some time.
    failed: BTreeSet<String>,
    broken: Option<String>,
}

impl Promises {
    /// The first promise that was broken.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub fn break_if(&mut self, broken: bool, how: impl FnOnce() -> String) {
        if broken && self.broken.is_none() {
            self.broken = Some(how());
        }
    }

    /// A worker sends its claim. What lease it asks for is its own affair: to be alone, it needs
    /// one that lasts as long as its invocation and the margin. Clocks that differ use up the
    /// margin.
    pub fn claims(&mut self, worker: usize, at: Timestamp, clocks_differ: bool) {
        let known = self.claims.len().max(worker + 1);
        self.claims.resize(known, Default::default());
        let margin = if clocks_differ {
            Duration::ZERO
        } else {
            MARGIN
        };
        // The same claim is sent again after contention.
        if self.claims[worker].0 != at {
            self.claims[worker] = (at, wall() + BUDGET + margin);
        }
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
            gone: true,
            unanswered: false,
            settled: false,
        });
        self.effects.push(true);
    }

    pub fn effects(&self) -> usize {
        self.effects.len()
    }

    pub fn enters(&mut self, worker: usize, message: &str, history: &History) {
        let lease_until = self.lease(worker);
        self.break_if(self.failed.contains(message), || {
            format!("P2: w{worker} runs {message} again, whose failure was recorded")
        });
        let before = self.runs.clone();
        self.begins(worker);
        self.break_if(!lives(lease_until), || {
            format!("P1: w{worker} enters the handler, and its lease is over")
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
            format!("P2: w{worker} enters the handler of what is COMPLETED")
        });
        for run in before.iter().filter(|run| !run.settled) {
            let other = run.worker;
            let said = run.said.last();
            let cut_off = run.gone
                || run.unanswered
                || matches!(said, Some(Word::Panic | Word::Retryable | Word::NoEffect))
                || !run.lease_lives();
            self.break_if(!cut_off, || {
                format!("P3: w{worker} runs again, and nothing has happened to w{other}")
            });
            if said == Some(&Word::NoEffect) {
                continue;
            }
            self.break_if(history.open.is_none(), || {
                format!("P3: w{worker} is not informed of w{other}, whose effect is not recorded")
            });
            let since = history.open.map(|open| open.first_claimed_at);
            let from_then_on = since.flatten().is_some_and(|since| since <= run.claimed_at);
            self.break_if(!from_then_on, || {
                format!("P3: w{worker} is informed of w{other} with a later time: {since:?}")
            });
        }
    }

    /// A worker's handler runs, as any number may where it only plans.
    pub fn begins(&mut self, worker: usize) {
        let (claimed_at, lease_until) = self.claim(worker);
        self.runs.push(Run {
            worker,
            claimed_at,
            lease_until,
            said: Vec::new(),
            gone: false,
            unanswered: false,
            settled: false,
        });
    }

    /// A worker has its effect.
    pub fn acts(&mut self, worker: usize) {
        let lease_lives = lives(self.lease(worker));
        self.break_if(lease_lives && self.completed.is_some(), || {
            format!("P2: w{worker} has an effect under a live lease, and all is COMPLETED")
        });
        self.effects.push(lease_lives);
        self.break_if(
            self.effects.iter().filter(|timely| **timely).count() > 1,
            || format!("P3: w{worker} has the effect again, and each time the lease was alive"),
        );
    }

    pub fn says(&mut self, worker: usize, word: Word) {
        self.run(worker).said.push(word);
    }

    /// The table is out of reach when the worker's writes are to be made.
    pub fn unanswered(&mut self, worker: usize) {
        self.run(worker).unanswered = true;
    }

    /// The handler's future is no more.
    pub fn left(&mut self, worker: usize) {
        let run = self.run(worker);
        run.gone |= run.said.is_empty();
    }

    /// The worker is no more: it has crashed, or ended.
    pub fn gone(&mut self, worker: usize) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.worker == worker) {
            run.gone = true;
        }
    }

    fn run(&mut self, worker: usize) -> &mut Run {
        let run = self.runs.iter_mut().find(|run| run.worker == worker);
        run.expect("it entered the handler")
    }

    /// Of an effect that lives in the table, by whose transactions it was `made`. `holder` had a
    /// live claim before that.
    pub fn made(&mut self, made: &[usize], holder: Option<usize>, record: Option<&Record>) {
        self.break_if(made.len() > 1, || {
            format!(
                "P4: the effect is there {} times, made by {made:?}",
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
        let effect = made.first().map(|worker| output_of(*worker));
        self.break_if(recorded != effect, || {
            format!("P4: the effect is that of {effect:?}, and the record tells {recorded:?}")
        });
    }

    /// Of an effect on an item, by whose requests it was `made`, and which others have changed too.
    pub fn changed(&mut self, made: &[usize], tells: Tells, others: usize) {
        self.break_if(made.len() > 1, || {
            format!("P4: the item was changed {} times, by {made:?}", made.len())
        });
        let Tells { sold, known, .. } = tells;
        self.break_if(sold != made.len() || known == made.is_empty(), || {
            format!("P4: changed by {made:?}, the item tells {tells:?}")
        });
        self.break_if(tells.others != others, || {
            format!("P4: a change of somebody else's is lost: {others} were made, {tells:?}")
        });
    }

    /// A worker ends whose effect is on an item.
    pub fn ended_on_item(&mut self, worker: usize, outcome: &Outcome, made: &[usize]) {
        let mut said = self.run(worker).said.iter();
        let unsaid = !said.any(|word| *word == Word::Permanent);
        self.gone(worker);
        let right = match outcome {
            Outcome::Completed(result) => made == [worker] && *result == output_of(worker),
            Outcome::Duplicate(_) => made.len() == 1,
            Outcome::PermanentFailure(_) => !unsaid,
            _ => true,
        };
        self.break_if(!right, || {
            format!(
                "P5: w{worker} says {}, and the effect is that of {made:?}",
                outcome.name()
            )
        });
    }

    /// The table was written to; the record's owner is this worker.
    pub fn wrote(&mut self, before: Option<&Record>, after: Option<&Record>, owner: Option<usize>) {
        if before == after {
            return;
        }
        if let Some(State::Completed { .. }) = before.map(|record| &record.state) {
            self.break_if(true, || "P5: a COMPLETED record was changed".into());
        }
        if let Some(after) = after.filter(|after| after.state != State::Failed)
            && let Some(message) = &after.message_id
        {
            self.break_if(self.failed.contains(message), || {
                format!("P2: the table admits {message} again, whose failure was recorded")
            });
        }
        match after.map(|record| &record.state) {
            Some(State::Completed { result }) => {
                let mut said = self.runs.iter().flat_map(|run| {
                    let outputs = run.said.iter().map(|word| match word {
                        Word::Done => Some(output_of(run.worker)),
                        Word::Declined => Some(declined()),
                        _ => None,
                    });
                    outputs.flatten()
                });
                let said = said.any(|output| output == *result);
                self.break_if(!said, || {
                    "P5: a result was recorded that no handler returned".into()
                });
                self.completed = Some(result.clone());
            }
            Some(State::Failed) => {
                let kept = after.map(|record| record.failed_message_ids.clone());
                let kept = kept.unwrap_or_default();
                self.break_if(!self.failed.is_subset(&kept), || {
                    "P2: the record forgot a message whose failure was recorded".into()
                });
                self.failed.extend(kept);
                for run in &mut self.runs {
                    run.settled |= Some(run.worker) == owner;
                }
            }
            _ => {}
        }
    }

    /// A worker ends, and the record is as it is.
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
            Outcome::Completed(result) | Outcome::Duplicate(result) => Some(result),
            _ => None,
        };
        self.break_if(outcome.is_success() && recorded.is_none(), || {
            format!("P5: w{worker} says success of what is not COMPLETED")
        });
        let failed = matches!(
            outcome,
            Outcome::FailedBefore(_) | Outcome::PermanentFailure(_)
        );
        self.break_if(failed && !self.failed.contains(message), || {
            format!("P5: w{worker} reports a failure of {message} that was not recorded")
        });
        self.break_if(said.is_some() && said != recorded, || {
            format!("P5: w{worker} passes on another result than the recorded one")
        });
    }
}

/// What the handler of this worker returns.
fn output_of(worker: usize) -> StoredResult {
    StoredResult::Json(worker.to_string())
}

/// What the handler returns that did without its writes.
pub const DECLINED: &str = "declined";

fn declined() -> StoredResult {
    StoredResult::Json(format!("\"{DECLINED}\""))
}

/// All that later checks depend on.
impl Hash for Promises {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for run in &self.runs {
            let lease = run.lease_lives().then(|| from_now(run.lease_until));
            (run.worker, &run.said, run.gone, run.settled, lease).hash(state);
            let open = !run.settled && run.said.last() != Some(&Word::NoEffect);
            open.then(|| from_now(run.claimed_at)).hash(state);
            run.unanswered.hash(state);
        }
        self.effects.hash(state);
        self.completed.is_some().hash(state);
        self.failed.hash(state);
    }
}
