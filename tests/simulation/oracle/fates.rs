//! Promises 5 and 7: what becomes of each message, and the order of message groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Bench,
    runs::{DEADLY_RUNS, RESTS},
    state::{State, has_crashed},
};
use crate::{
    ledger::{Event, Run, Worker},
    plan::{Kind, Message, Mode, Plan, QUARANTINE, Service, Timeouts},
};

/// How long a cause must last before it takes a message to the dead-letter queue.
const HALF_A_DAY: Duration = Duration::from_secs(12 * 3600);

/// Begins the text of a failure that stands for several.
const OF_MANY: &str = "more than four payloads failed under this key, one with: ";

#[derive(Default)]
pub(super) struct Fates {
    acknowledged: BTreeSet<String>,
    expired: BTreeSet<String>,
    /// Messages in the dead-letter queue, and whether there is a copy of the consumer's. Others were moved by SQS.
    dead: BTreeMap<String, bool>,
    /// Messages behind which their group may go on, and since when.
    settled: BTreeMap<String, Duration>,
    completed: BTreeSet<String>,
    /// When the record of each key was deleted.
    deleted: BTreeMap<String, Duration>,
    /// The last permanent failure of each message.
    failed: BTreeMap<String, Failure>,
    /// Runs that the gateway has declined as it had declined their call key before.
    declined_again: BTreeSet<Run>,
    invoked: BTreeMap<usize, Duration>,
    receives: BTreeMap<String, Vec<Receive>>,
    /// The worker of each run, as long as it lives.
    workers: BTreeMap<Run, Worker>,
    /// Runs that the gateway refused or did not answer.
    refused: BTreeSet<Run>,
}

struct Receive {
    at: Duration,
    batch: usize,
    /// The gateway kept the message, or one ahead of it in its group, from succeeding.
    is_refused: bool,
}

struct Failure {
    error: String,
    /// Something that keeps the promises was the cause, if the message could have succeeded.
    has_cause: bool,
}

impl Fates {
    pub(super) fn event(&mut self, at: Duration, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Invoked { batch, .. } => {
                self.invoked.insert(*batch, at);
            }
            Event::Failed {
                key,
                message,
                error,
            } => {
                self.settle(message, at);
                let failure = Failure {
                    error: error.clone(),
                    has_cause: self.may_fail(key, message, error, bench),
                };
                self.failed.insert(message.clone(), failure);
            }
            Event::Settled {
                key,
                is: "COMPLETED",
                ..
            } => {
                if let Some(message) = bench.claimed_for(key) {
                    self.settle(message, at);
                }
                self.completed.insert(key.clone());
            }
            Event::Deleted { key } | Event::Forgotten { key } => {
                self.deleted.insert(key.clone(), at);
            }
            Event::Received { message, batch, .. } => {
                let receive = Receive {
                    at,
                    batch: *batch,
                    is_refused: false,
                };
                let receives = self.receives.entry(message.clone()).or_default();
                receives.push(receive);
            }
            Event::HandlerStarted {
                message,
                run,
                worker,
                ..
            } => {
                self.workers.insert(*run, *worker);
                self.started(message, bench);
            }
            Event::GatewayRefused { run } | Event::GatewaySilent { run } => {
                self.refused.insert(*run);
            }
            // A crash is no refusal.
            Event::Killed { worker } => self.workers.retain(|_, of| of != worker),
            Event::HandlerEnded {
                run,
                how: "retryable" | "no effect" | "dropped",
            } => self.kept_back(*run, bench),
            Event::GatewayDeclined {
                run,
                call_key,
                again: true,
            } => self.declined_again(*run, call_key, bench),
            // Without a record, the end of the run is all that there is.
            Event::HandlerEnded {
                run,
                how: "permanent" | "declined",
            } if bench.plan.mode == Mode::Item => {
                if let Some((message, ..)) = bench.states.run(*run) {
                    let failure = Failure {
                        error: "declined".to_owned(),
                        has_cause: self.declined_again.contains(run),
                    };
                    self.failed.insert(message.to_owned(), failure);
                }
            }
            Event::Acknowledged {
                message,
                completed,
                batch,
            } => {
                let key = bench.key(&bench.messages[message]);
                // The record may have been there during the invocation.
                let was_deleted =
                    (self.deleted.get(&key)).is_some_and(|deleted| *deleted >= self.invoked[batch]);
                let copied = self.dead.get(message) == Some(&true);
                bench.check(
                    "P5 acknowledged only when recorded",
                    *completed || copied || was_deleted && self.completed.contains(&key),
                    &[message],
                    || format!("{message} was acknowledged, and is neither completed nor copied"),
                );
                self.acknowledged.insert(message.clone());
                self.settle(message, at);
            }
            Event::Copied {
                message,
                reason,
                error,
                attributes,
            } => {
                has_attributes(message, attributes, bench);
                self.copied(message, (reason, error), bench);
                self.died(at, message, Some(reason), bench);
                self.dead.insert(message.clone(), true);
                self.settle(message, at);
            }
            Event::ReceivesUsedUp { message } => {
                if !self.dead.contains_key(message) {
                    self.died(at, message, None, bench);
                    self.dead.insert(message.clone(), false);
                }
                self.settle(message, at);
            }
            Event::Expired { message } => {
                self.expired.insert(message.clone());
                self.settle(message, at);
            }
            _ => {}
        }
    }

    /// Notes that the gateway kept a run from succeeding, and what waits behind it in this receive.
    fn kept_back(&mut self, run: Run, bench: &Bench<'_>) {
        let Some(worker) = self
            .workers
            .get(&run)
            .filter(|_| self.refused.contains(&run))
        else {
            return;
        };
        let Some((id, ..)) = bench.states.run(run) else {
            return;
        };
        for (number, _, batch) in bench.at_work.of(*worker, id) {
            for other in &batch.messages {
                let mut ahead = bench.ahead_in_group(&bench.messages[other]);
                if other == id || ahead.any(|of| of.id == id) {
                    let receives = self.receives.get_mut(other).into_iter().flatten();
                    let of_batch = receives.filter(|receive| receive.batch == number);
                    of_batch.for_each(|receive| receive.is_refused = true);
                }
            }
        }
    }

    fn settle(&mut self, message: &str, at: Duration) {
        self.settled.entry(message.to_owned()).or_insert(at);
    }

    /// Notes that the gateway has declined a run because it had declined its call key. Where a decline is recorded, the next
    /// attempt has a new one.
    fn declined_again(&mut self, run: Run, call_key: &str, bench: &Bench<'_>) {
        let expected = bench.states.run(run).and_then(|(message, _, generation)| {
            let message = bench.messages.get(message)?;
            bench.call_key(message, generation)
        });
        if expected.as_deref() == Some(call_key) {
            self.declined_again.insert(run);
        }
    }

    /// Returns whether a message that could have succeeded may get this failure.
    fn may_fail(&self, key: &str, message: &str, error: &str, bench: &Bench<'_>) -> bool {
        let Some(state) = bench.states.of(key) else {
            return false;
        };
        if has_crashed(error) {
            return state.may_have_crashed();
        }
        if is_too_old(error) {
            // The claim may have been under way for a while when it arrived.
            let slack = bench.plan.timeouts.function + QUARANTINE + 2 * bench.skew();
            let releases = bench.plan.releases.iter();
            let lifetime = releases.filter_map(|of| of.call_key_lifetime).min();
            let open = state.open_since().zip(lifetime);
            return open.is_some_and(|(since, lifetime)| since + lifetime <= bench.now + slack);
        }
        let of_message = |run: &&Run| bench.states.run(**run).map(|of| of.0) == Some(message);
        let last = self.declined_again.iter().rfind(of_message);
        error == "declined" && last.is_some()
    }

    fn started(&self, id: &str, bench: &mut Bench<'_>) {
        let message = &bench.messages[id];
        let Some(group) = &message.group else { return };
        let mut ahead = bench.order.iter().take_while(|other| *other != id);
        let key = bench.key(message);
        // Behind a message that waits for an attempt with another payload, those of its key go ahead of the others.
        let mut is_key_ahead = false;
        let waiting = ahead.find(|other| {
            let other = &bench.messages[*other];
            let is_open = other.group.as_ref() == Some(group)
                && !self.settled.contains_key(&other.id)
                && !is_answered(other, bench);
            let waits_for_this = is_open && waits_for_attempt_of(other, message, bench);
            is_key_ahead |= waits_for_this;
            is_open && !waits_for_this && !(is_key_ahead && bench.key(other) != key)
        });
        let waiting = waiting.cloned();
        bench.check("order of a group", waiting.is_none(), &[id], || {
            format!("{id} ran before {waiting:?} of its group was settled")
        });
    }

    /// Compares what a copy says with what the world saw.
    fn copied(&self, id: &str, (reason, error): (&str, &str), bench: &mut Bench<'_>) {
        let message = &bench.messages[id];
        let key = bench.key(message);
        let failed = self.failed.get(id).map(|failure| &*failure.error);
        let any = |is: &dyn Fn(&State) -> bool| {
            let mut states = bench.states.since(&key, copied_since(bench));
            states.any(is)
        };
        let holds = match reason {
            "permanent_failure" => failed == Some(error),
            "crashed" => failed == Some(error) && has_crashed(error),
            "failed_before" => any(&|state| {
                // Those of earlier payloads are cut, and the last one stands for several.
                let text = error.strip_prefix(OF_MANY).unwrap_or(error);
                let mut failures = state.failures_of(message, bench.skew());
                !text.is_empty() && failures.any(|failure| failure.error.starts_with(text))
            }),
            "key_reused" => {
                error.starts_with("the idempotency key was used")
                    && any(&|state| state.is_reused(message))
            }
            // A hint where pointers start may follow.
            "invalid" => {
                message.kind == Kind::Undecodable
                    && !error.is_empty()
                    && failed.is_none_or(|failed| error.starts_with(failed))
            }
            _ => false,
        };
        bench.check("a dead letter names its reason", holds, &[id, &key], || {
            format!("{id} was copied ({reason}: {error}), and its failure is {failed:?}")
        });
    }

    /// Checks that a message which could have succeeded has a cause to be in the dead-letter queue.
    fn died(&self, at: Duration, id: &str, reason: Option<&str>, bench: &mut Bench<'_>) {
        let message = bench.messages[id].clone();
        if message.kind.fails_always() {
            return;
        }
        let has_cause = self.has_cause(at, &message, reason, bench);
        let check = "P7 no dead letter without a cause";
        bench.check(check, has_cause, &[id], || {
            let why = reason.unwrap_or("its receives were used up");
            format!("{id} ({:?}) became a dead letter: {why}", message.kind)
        });
    }

    fn has_cause(
        &self,
        at: Duration,
        message: &Message,
        reason: Option<&str>,
        bench: &Bench<'_>,
    ) -> bool {
        let has = |expected: &str| reason.is_none_or(|reason| reason == expected);
        // SQS moves a message some time after its last answer.
        let Timeouts {
            visibility, cap, ..
        } = bench.plan.timeouts;
        let moved_since = bench.at_work_since().saturating_sub(visibility + cap);
        let since = reason.map_or(moved_since, |_| copied_since(bench));
        let mut states = bench.states.since(&bench.key(message), since);
        let receives = self.receives.get(&message.id);
        let receives = receives.map(Vec::as_slice).unwrap_or_default();
        let is_answered = states.any(|state| {
            let mut failures = state.failures_of(message, bench.skew());
            has("failed_before") && failures.any(|failure| self.has_failed(&failure.message, bench))
                || has("key_reused") && state.is_reused(message)
        });
        self.has_failed(&message.id, bench) && (has("permanent_failure") || has("crashed"))
            || is_answered
            || reason.is_none()
                && (has_lasted(message, at, receives, bench.plan)
                    || self.is_behind_unrecorded(message, bench)
                    || self.is_behind_other_payload(message, bench)
                    || is_behind_deaths(message, bench))
    }

    /// Returns whether a message has failed as it always does, or for a cause.
    fn has_failed(&self, id: &str, bench: &Bench<'_>) -> bool {
        let failed = self.failed.get(id);
        failed.is_some_and(|failed| failed.has_cause || bench.messages[id].kind.fails_always())
    }

    /// A failure that is not recorded stops its group until its receives are used up, and the messages behind it are
    /// received with it.
    fn is_behind_unrecorded(&self, message: &Message, bench: &Bench<'_>) -> bool {
        bench.ahead_in_group(message).any(|other| {
            let id = &other.id;
            let is_unrecorded = match bench.plan.mode {
                _ if bench.plan.stops_groups => return self.stops_group(id, bench),
                Mode::Item => other.kind.fails_always() || self.failed.contains_key(id),
                _ => other.kind == Kind::Undecodable && !bench.plan.records_unreadable(),
            };
            let is_over = |until: &Duration| *until < message.sent;
            is_unrecorded && !self.settled.get(id).is_some_and(is_over)
        })
    }

    /// Returns whether a message failed permanently, which stops its group where the consumer is told to.
    fn stops_group(&self, id: &str, bench: &Bench<'_>) -> bool {
        let message = &bench.messages[id];
        let state = bench.states.of(&bench.key(message));
        message.kind.fails_always()
            || self.failed.contains_key(id)
            || state.is_some_and(|state| {
                state.is_reused(message) || state.answers(message, bench.skew())
            })
    }

    /// An attempt with another payload is in its way, and no message with that payload is left that could end it. After a
    /// deletion, that may be a late copy of a claim.
    fn is_behind_other_payload(&self, message: &Message, bench: &Bench<'_>) -> bool {
        let key = bench.key(message);
        let state = bench.states.of(&key);
        let others = bench
            .messages
            .values()
            .filter(|other| bench.key(other) == key && other.content() != message.content());
        let is_given_up = |id: &String| self.dead.contains_key(id) || self.expired.contains(id);
        state.is_some_and(|state| state.is_in_the_way_of(message))
            && (bench.touched.contains(&key)
                || others.into_iter().any(|other| is_given_up(&other.id)))
    }

    pub(super) fn end(&self, bench: &mut Bench<'_>) {
        for id in bench.order.clone() {
            let message = bench.messages[&id].clone();
            let (acknowledged, dead) = (self.acknowledged.contains(&id), self.dead.get(&id));
            let expired = self.expired.contains(&id);
            let is_somewhere = acknowledged || expired || dead == Some(&false);
            bench.check("nothing is lost", is_somewhere, &[&id], || {
                format!("{id} is neither acknowledged nor in the dead-letter queue nor expired")
            });
            if message.kind.fails_always() {
                // Unless another message of its key has succeeded meanwhile.
                let excused = expired || self.completed.contains(&bench.key(&message));
                bench.check(
                    "a permanent failure is a dead letter",
                    dead.is_some() || excused,
                    &[&id],
                    || format!("{id} ({:?}) is not in the dead-letter queue", message.kind),
                );
            }
        }
    }
}

/// Returns the earliest time at which the invocation began that sends a copy. The copy may arrive after its end.
fn copied_since(bench: &Bench<'_>) -> Duration {
    bench.at_work_since().saturating_sub(QUARANTINE)
}

/// Compares the attributes of a copy with those of its message.
fn has_attributes(id: &str, copied: &BTreeMap<String, String>, bench: &mut Bench<'_>) {
    const OF_COPY: [&str; 4] = ["id", "SqsOnceReason", "SqsOnceKey", "SqsOnceError"];
    const FIRST_ID: &str = "SqsOnceDeduplicationId";
    let message = bench.messages[id].clone();
    let is_kept = |name: &str| !OF_COPY.contains(&name) && name != FIRST_ID;
    let mut of_message = message.attributes.iter().filter(|(name, _)| is_kept(name));
    let missing = of_message.find(|(name, value)| copied.get(*name) != Some(value));
    let check = "a copy has its message's attributes";
    bench.check(check, missing.is_none(), &[id], || {
        format!("{id} was copied without {missing:?}: {copied:?}")
    });
    if message.group.is_none() || !message.attributes.contains_key("SqsOnceReason") {
        return;
    }
    let first = message.first_deduplication_id();
    let keeps = copied.get(FIRST_ID).map(String::as_str) == Some(first);
    let check = "a second copy keeps the deduplication id";
    bench.check(check, keeps, &[id], || {
        format!("{id} of {first} was copied: {copied:?}")
    });
}

/// Returns whether the record of a message's key answers it, or did so in an invocation that is at work.
fn is_answered(message: &Message, bench: &Bench<'_>) -> bool {
    let mut states = bench
        .states
        .since(&bench.key(message), bench.at_work_since());
    states.any(|state| state.answers(message, bench.skew()))
}

/// Returns whether a message waits for an open attempt with another payload, which this one ahead of it may end.
fn waits_for_attempt_of(message: &Message, running: &Message, bench: &Bench<'_>) -> bool {
    let key = bench.key(message);
    let state = bench.states.of(&key);
    key == bench.key(running) && state.is_some_and(|state| state.was_in_the_way_of(message))
}

/// Returns whether the messages ahead in its group that end their process leave a message too few receives. It is received
/// with each of them: whenever that runs, and when it still rests although its visibility timeout is over. In the last two
/// rows of docs/operations.md, too many such messages fit into a batch.
fn is_behind_deaths(message: &Message, bench: &Bench<'_>) -> bool {
    let timeouts = &bench.plan.timeouts;
    let is_seen = |rest: &&Duration| **rest > timeouts.visibility;
    let of_each = DEADLY_RUNS + RESTS.iter().filter(is_seen).count();
    let ahead = bench.ahead_in_group(message);
    let deadly = ahead.filter(|other| other.kind == Kind::Killer);
    let of_its_own = 3;
    of_each * deadly.count() + of_its_own >= timeouts.max_receives as usize
}

/// Returns whether the text of a failure says that an attempt is too old to repeat.
fn is_too_old(error: &str) -> bool {
    error.starts_with("too old to repeat")
}

/// Returns whether something kept a message from succeeding for half a day: outages, and the time between two receives in a row
/// in which the gateway refused it, or one ahead of it in its group. Two at a time last no longer than their union.
fn has_lasted(message: &Message, until: Duration, receives: &[Receive], plan: &Plan) -> bool {
    let refused = |two: &&[Receive]| two.iter().all(|receive| receive.is_refused);
    let refusals = receives.windows(2).filter(refused);
    let mut outages: Vec<_> = (plan.outages.iter())
        .filter(|outage| keeps_from_running(outage.of, plan))
        .map(|outage| outage.during.clone())
        .chain(refusals.map(|two| two[0].at..two[1].at))
        .collect();
    outages.sort_by_key(|during| during.start);
    let mut reached = message.sent;
    let lasted: Duration = outages
        .into_iter()
        .map(|during| {
            let (from, to) = (during.start.max(reached), during.end.min(until));
            reached = reached.max(to);
            to.saturating_sub(from)
        })
        .sum();
    lasted >= HALF_A_DAY
}

/// Returns whether no message runs, or none ends, while a service is out.
fn keeps_from_running(service: Service, plan: &Plan) -> bool {
    match service {
        Service::Table
        | Service::Gateway
        | Service::Credentials
        | Service::Workers
        | Service::Lambda => true,
        Service::S3 => plan.bodies_in_s3 || plan.outputs_in_s3,
        // Receives go on, and a message that does not fail needs neither a visibility timeout nor a copy.
        Service::Sqs | Service::DeadLetters | Service::Target => false,
    }
}
