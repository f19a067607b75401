//! The promises, each checked at the moment at which it would be broken.
//!
//! | | |
//! | --- | --- |
//! | P1 | no two workers are in the handler under live leases; nobody enters it when its lease is over |
//! | P2 | once COMPLETED, nobody enters the handler, and nobody whose lease lives has an effect; a message whose failure is stored does not run again |
//! | P3 | a run follows only on a retryable failure or an attempt that was cut off; of the latter it is told |
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
};

use sqs_once::{
    Outcome,
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
    lease_until: Timestamp,
    /// What the handler said at its end, and what it said then of writes that were refused.
    said: Vec<Word>,
    /// Its worker has crashed or ended, or cut it off.
    gone: bool,
    /// Its commit was not answered at once.
    unanswered: bool,
    /// A failure was stored since: what went before is dealt with.
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
    /// Until when each worker's claim should be exclusive, by worker.
    leases: Vec<Timestamp>,
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
    /// one that lasts as long as its invocation and the margin.
    pub fn claims(&mut self, worker: usize) {
        let known = self.leases.len().max(worker + 1);
        self.leases.resize(known, Timestamp::default());
        self.leases[worker] = wall() + BUDGET + MARGIN;
    }

    pub fn lease(&self, worker: usize) -> Timestamp {
        self.leases.get(worker).copied().unwrap_or_default()
    }

    pub fn effects(&self) -> usize {
        self.effects.len()
    }

    pub fn enters(&mut self, worker: usize, told: bool) {
        let lease_until = self.lease(worker);
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
            if run.said.last() == Some(&Word::Retryable) {
                continue;
            }
            let cut_off = run.gone
                || run.unanswered
                || run.said.last() == Some(&Word::Panic)
                || !run.lease_lives();
            self.break_if(!cut_off, || {
                format!("P3: w{worker} runs again, and nothing has happened to w{other}")
            });
            self.break_if(!told, || {
                format!("P3: w{worker} is told nothing of w{other}, whose end nobody recorded")
            });
        }
    }

    /// A worker's handler runs, as any number may where it only plans.
    pub fn begins(&mut self, worker: usize) {
        self.runs.push(Run {
            worker,
            lease_until: self.lease(worker),
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
            Outcome::Done(result) => made == [worker] && *result == output_of(worker),
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

    /// The table was written to.
    pub fn wrote(&mut self, before: Option<&Record>, after: Option<&Record>) {
        if before == after {
            return;
        }
        if let Some(State::Completed { .. }) = before.map(|record| &record.state) {
            self.break_if(true, || "P5: a COMPLETED record was changed".into());
        }
        if let (Some(before), Some(after)) = (before, after)
            && let State::Failed { .. } = before.state
        {
            self.break_if(before.message_id == after.message_id, || {
                "P2: the stored failure of a message gave way to the same message".into()
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
            Some(State::Failed { .. }) => {
                self.failed
                    .extend(after.and_then(|record| record.message_id.clone()));
                for run in &mut self.runs {
                    run.settled = true;
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
            Outcome::Done(result) | Outcome::Duplicate(result) => Some(result),
            _ => None,
        };
        self.break_if(outcome.is_success() && recorded.is_none(), || {
            format!("P5: w{worker} says success of what is not COMPLETED")
        });
        let before = matches!(outcome, Outcome::FailedBefore(_));
        self.break_if(before && !self.failed.contains(message), || {
            format!("P5: w{worker} passes on a failure of another message")
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
            run.unanswered.hash(state);
        }
        self.effects.hash(state);
        self.completed.is_some().hash(state);
        self.failed.hash(state);
    }
}
