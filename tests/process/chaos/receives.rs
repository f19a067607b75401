//! Cause of each failed receive, from the logs: an injected fault, another delivery of the same
//! operation, a failure ahead in its FIFO group, or a time limit on a machine that was too slow.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use crate::chaos::{
    STORE_TIMEOUT,
    account::PERMANENT,
    environment::APART_MS,
    faults::Fault,
    ledger::{ChargeEnd, Death, Delivery, End, Event, Invocation, System, Worker},
    pace::Pace,
    plan::{Kind, Message},
    stall,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The test ended the receive.
    Injected(String),
    /// Nothing was injected, the receive lasted at least as long as the time limit that ended it, and
    /// the machine was stalled meanwhile. So the worker was right to give up.
    Delayed(String),
    /// Nothing explains the failure, or the worker's log line is false.
    False(String),
}

/// One delivery, and its events.
struct Receive<'a> {
    message: &'a Message,
    worker: Worker,
    invocation: Invocation,
    from: usize,
    to: Option<(usize, End, Duration)>,
    /// For how long the machine was stalled.
    stalled: Duration,
    /// The delivery before it in its batch and FIFO group.
    ahead: Option<usize>,
    injected: Option<String>,
    /// True if its last charge was answered 503, or not answered.
    charge_failed: bool,
    /// True if the table was down at some time of it.
    in_outage: bool,
    /// When it began.
    from_ms: u64,
    said: Option<(&'a str, &'a str)>,
}

/// The time from one owner's claim to its end, or to the next owner's claim.
struct Held<'a> {
    key: &'a str,
    owner: &'a str,
    worker: Worker,
    /// Deliveries to the worker of the message of the claim, at the time of the claim.
    receives: Vec<usize>,
    from: usize,
    at_ms: u64,
    to: Option<usize>,
    /// The end of the lease, where the owner ended it early.
    ended_ms: Option<u64>,
}

#[derive(Default)]
struct Receives<'a> {
    messages: HashMap<&'a str, &'a Message>,
    messages_of_operation: HashMap<&'a str, &'a Message>,
    receives: Vec<Receive<'a>>,
    places: HashMap<&'a Delivery, usize>,
    /// Deliveries of a FIFO group or an operation at each worker.
    open: HashMap<(Worker, &'a str), Vec<usize>>,
    /// Deliveries for which a charge was made.
    charged: HashMap<usize, Vec<usize>>,
    /// By operation.
    held: HashMap<&'a str, Vec<Held<'a>>>,
    /// The first slow write of a worker about a key.
    slow: HashMap<(Worker, &'a str), usize>,
    table_is_down: bool,
    /// Invocations that began with dead connections.
    rested: HashSet<(Worker, Invocation)>,
    failed_handlers: HashMap<Worker, usize>,
    /// Workers with a receive that lasted until the function's timeout on a stalled machine.
    timed_out: HashSet<Worker>,
    deaths: HashMap<Worker, Death>,
    /// From then on there are suspects.
    first_death: Option<usize>,
    paces: HashMap<Worker, Pace>,
}

/// Cause of each delivery that was reported as failed, or lost its worker.
pub(crate) fn causes(events: &[Event]) -> BTreeMap<Delivery, Cause> {
    let mut all = Receives::default();
    for (at, event) in events.iter().enumerate() {
        all.event(at, event);
    }
    all.failed_handlers = all.count_failed_handlers();
    let mut causes: Vec<Option<Cause>> = Vec::with_capacity(all.receives.len());
    for receive in &all.receives {
        let ahead = receive.ahead.and_then(|ahead| causes[ahead].clone());
        causes.push(all.cause(receive, ahead));
    }
    let cause = |(delivery, at): (&&Delivery, &usize)| {
        let cause = causes[*at].take()?;
        Some(((*delivery).clone(), cause))
    };
    all.places.iter().filter_map(cause).collect()
}

/// Shortest time after which a worker gives up by itself, with this outcome.
fn time_limit(outcome: &str, pace: Pace) -> Option<Duration> {
    // The deadline is one of the wall clock, and the worker's clock may be ahead of the test's.
    let ahead = Duration::from_millis(APART_MS / 2);
    let until_deadline = pace.function_timeout() - pace.deadline_reserve() - ahead;
    match outcome {
        "retryable_failure" => Some(pace.gateway_timeout()),
        "store_unavailable" => Some(STORE_TIMEOUT),
        // While a suspect waits, others start in the first half of the time only. The suspect itself
        // starts while the gateway has time to respond, which is a little longer.
        "not_started" => Some(until_deadline / 2),
        "out_of_time" | "lease_lost" | "completion_unrecorded" | "failure_unrecorded" => {
            Some(until_deadline)
        }
        _ => None,
    }
}

/// The deadline reaches the worker in milliseconds of the wall clock.
const ROUNDING: Duration = Duration::from_millis(5);

impl<'a> Receives<'a> {
    fn event(&mut self, at: usize, event: &'a Event) {
        match event {
            Event::Sent(message) => {
                self.messages.insert(&message.id, message);
                self.messages_of_operation
                    .insert(&message.operation, message);
            }
            Event::Started { worker, pace } => {
                self.paces.insert(*worker, *pace);
            }
            Event::Delivered {
                delivery,
                worker,
                invocation,
                at_ms,
            } => {
                let message = self.messages[&*delivery.0];
                let place = self.receives.len();
                let open = self.open.entry((*worker, lane(message))).or_default();
                self.receives.push(Receive {
                    message,
                    worker: *worker,
                    invocation: *invocation,
                    from: at,
                    to: None,
                    stalled: Duration::ZERO,
                    ahead: open.last().copied(),
                    injected: None,
                    charge_failed: false,
                    in_outage: self.table_is_down,
                    from_ms: *at_ms,
                    said: None,
                });
                open.push(place);
                self.places.insert(delivery, place);
            }
            Event::Returned {
                delivery,
                worker,
                end,
                took,
                stalled,
            } => {
                let lane = lane(self.messages[&*delivery.0]);
                let timeout = self.pace(*worker).function_timeout();
                let excused = *took >= timeout && stall::excuses(*stalled, *took);
                self.timed_out.extend(excused.then_some(*worker));
                if let Some(&place) = self.places.get(delivery) {
                    self.receives[place].to = Some((at, *end, *took));
                    self.receives[place].stalled = *stalled;
                    let open = self.open.entry((*worker, lane)).or_default();
                    open.retain(|open| *open != place);
                }
            }
            Event::Faulted { key, worker, fault } => {
                if *fault == Fault::Slow {
                    self.slow.entry((*worker, key)).or_insert(at);
                }
                for place in self.at_work(*worker, operation_of(key)) {
                    self.receives[place].injected = Some(format!("{fault:?}"));
                }
            }
            Event::Charge { key, worker, .. } => {
                let deliveries = self.at_work(*worker, operation_of(key));
                self.charged.insert(at, deliveries);
            }
            Event::ChargeEnded { charge, how } => {
                for &place in self.charged.get(charge).into_iter().flatten() {
                    let receive = &mut self.receives[place];
                    receive.charge_failed = *how != ChargeEnd::Answered;
                    // A worker that hangs up on a responding gateway had its own reason.
                    let injected = match how {
                        ChargeEnd::Answered => false,
                        ChargeEnd::Busy => true,
                        ChargeEnd::Unanswered => {
                            matches!(receive.message.kind, Kind::Slow | Kind::Cut)
                        }
                    };
                    if injected {
                        receive.injected = Some(format!("{how:?}"));
                    }
                }
            }
            Event::Claimed {
                key,
                owner,
                worker,
                message,
                at_ms,
                ..
            } => {
                let mut receives = self.at_work(*worker, operation_of(key));
                receives.retain(|place| self.receives[*place].message.id == *message);
                let held = self.held.entry(operation_of(key)).or_default();
                // A claim repeated by its owner's second request is the same claim.
                if held
                    .last()
                    .is_none_or(|last| last.to.is_some() || last.owner != owner)
                {
                    end(held, at);
                    held.push(Held {
                        key,
                        owner,
                        worker: *worker,
                        receives,
                        from: at,
                        at_ms: *at_ms,
                        to: None,
                        ended_ms: None,
                    });
                }
            }
            Event::Settled {
                key,
                lease_until_ms,
                ..
            } => {
                let held = self.held.entry(operation_of(key)).or_default();
                end(held, at);
                if let Some(last) = held.last_mut() {
                    last.ended_ms = *lease_until_ms;
                }
            }
            Event::Expired { key } => end(self.held.entry(operation_of(key)).or_default(), at),
            Event::Outage {
                of: System::Table,
                begins,
            } => {
                self.table_is_down = *begins;
                for place in self.open.values().flatten() {
                    self.receives[*place].in_outage = true;
                }
            }
            Event::Rested { worker, invocation } => {
                self.rested.insert((*worker, *invocation));
            }
            Event::Died { worker, death } => {
                self.deaths.insert(*worker, *death);
                self.first_death.get_or_insert(at);
            }
            Event::DeliveryLog {
                delivery,
                outcome,
                detail,
                ..
            } => {
                if let Some(&place) = self.places.get(delivery) {
                    self.receives[place].said = Some((outcome, detail));
                }
            }
            Event::DeadLettered { .. }
            | Event::Redriven
            | Event::Outage {
                of: System::Gateway,
                ..
            }
            | Event::Unheard { .. }
            | Event::Doomed { .. }
            | Event::Alone { .. }
            | Event::Copied { .. }
            | Event::Frozen { .. }
            | Event::Thawed { .. }
            | Event::Informed { .. }
            | Event::Late { .. }
            | Event::Unreadable { .. }
            | Event::Answered { .. }
            | Event::Measured { .. } => {}
        }
    }

    /// Deliveries at a worker of an operation or of its whole group: a delay of one delays those
    /// behind it.
    fn at_work(&self, worker: Worker, operation: &str) -> Vec<usize> {
        let message = self.messages_of_operation.get(operation);
        let open = message.and_then(|message| self.open.get(&(worker, lane(message))));
        open.cloned().unwrap_or_default()
    }

    /// `None` for a delivery that needs no cause.
    fn cause(&self, receive: &Receive<'_>, ahead: Option<Cause>) -> Option<Cause> {
        let (to, end, took) = receive.to?;
        if end == End::WorkerDied {
            return Some(self.death(receive.worker));
        }
        if end != End::ReportedFailed {
            return None;
        }
        let Some((outcome, detail)) = receive.said else {
            let injected = receive.injected.clone().map(Cause::Injected);
            return Some(injected.unwrap_or(Cause::False("its worker says nothing".into())));
        };
        match outcome {
            // Promise 6 has its own rule.
            "completed" | "duplicate" => None,
            outcome if PERMANENT.contains(&outcome) => None,
            "conflict" => Some(self.conflict(receive, to, detail)),
            "not_started" if detail.starts_with("a message before this one") => {
                Some(self.behind(receive, ahead))
            }
            "circuit_open" if self.failed_handlers.get(&receive.worker) >= Some(&20) => {
                Some(Cause::Injected("circuit_open".into()))
            }
            _ => Some(self.failure(receive).unwrap_or_else(|| {
                Cause::False(format!(
                    "{outcome} ({detail}) after {took:?}, without a cause: the machine was stalled for {:?}",
                    receive.stalled
                ))
            })),
        }
    }

    /// Number of handlers that failed in each worker, as its circuit breaker counts them.
    fn count_failed_handlers(&self) -> HashMap<Worker, usize> {
        let mut failed = HashMap::new();
        for receive in &self.receives {
            let failed_here = match receive.said {
                Some((outcome, _)) => ["retryable_failure", "out_of_time"].contains(&outcome),
                // The worker ended before this batch did, and a batch logs its messages at its end.
                None => receive.charge_failed,
            };
            *failed.entry(receive.worker).or_default() += usize::from(failed_here);
        }
        failed
    }

    fn pace(&self, worker: Worker) -> Pace {
        self.paces.get(&worker).copied().unwrap_or(Pace::PLANNED)
    }

    /// Cause of the death that ended all receives of a worker.
    fn death(&self, worker: Worker) -> Cause {
        match self.deaths.get(&worker) {
            Some(death @ (Death::Killed | Death::KilledByMessage | Death::FrozenUntilTimeout)) => {
                Cause::Injected(format!("{death:?}"))
            }
            Some(Death::TimedOut) if self.timed_out.contains(&worker) => {
                Cause::Delayed("TimedOut".into())
            }
            other => Cause::False(format!("its worker: {other:?}")),
        }
    }

    /// Cause of an outcome that needs no other delivery: an injected fault, or a time limit.
    fn failure(&self, receive: &Receive<'_>) -> Option<Cause> {
        if let Some(injected) = &receive.injected {
            return Some(Cause::Injected(injected.clone()));
        }
        let ((to, _, took), (outcome, _)) = (receive.to?, receive.said?);
        if outcome == "store_unavailable" {
            if receive.in_outage {
                return Some(Cause::Injected("Outage".into()));
            }
            // Promise 7: dead connections fail no message, unless the machine stood still for nearly all of the time.
            let is_rested = self.rested.contains(&(receive.worker, receive.invocation));
            if is_rested && 4 * receive.stalled < 3 * took {
                return None;
            }
        }
        let limit = time_limit(outcome, self.pace(receive.worker));
        let limit = limit.filter(|limit| took + ROUNDING >= *limit);
        // A suspect of another batch or invocation has the turn, or waits for it.
        let beside_suspect = self.first_death.is_some_and(|death| death < to);
        if outcome == "not_started" && limit.is_some() && beside_suspect {
            return Some(Cause::Injected("beside a suspect".into()));
        }
        // From its tenth receive on, a suspect starts with less than its minimum of time.
        let earlier = self
            .receives
            .iter()
            .filter(|other| other.message.id == receive.message.id && other.from <= receive.from);
        let may_lack_time = earlier.count() >= 10;
        if outcome == "out_of_time" && limit.is_some() && beside_suspect && may_lack_time {
            return Some(Cause::Injected("suspect without a minimum of time".into()));
        }
        let limit = limit.filter(|_| stall::excuses(receive.stalled, took));
        limit.map(|_| Cause::Delayed(outcome.into()))
    }

    /// A failure ahead in the group, unless it is permanent: that message never runs again, so the
    /// group does not wait for it.
    fn behind(&self, receive: &Receive<'_>, ahead: Option<Cause>) -> Cause {
        let said = receive.ahead.and_then(|ahead| self.receives[ahead].said);
        if receive.message.group.is_none() {
            // The deliveries of a key run by their receives, and so perhaps not in the order of the batch.
            let same_key = |other: &&Receive<'_>| {
                (other.worker, other.invocation) == (receive.worker, receive.invocation)
                    && other.message.operation == receive.message.operation
            };
            let stops = |said: &str| {
                said != "completed" && said != "duplicate" && !PERMANENT.contains(&said)
            };
            let failed = self.receives.iter().filter(same_key).find_map(|other| {
                let (outcome, detail) = other.said?;
                let is_behind = detail.starts_with("a message before this one");
                (stops(outcome) && !is_behind).then_some(outcome)
            });
            return match failed {
                Some(outcome) => Cause::Injected(format!("behind {outcome} of its key")),
                None => Cause::False("behind a failure, and nothing of its key failed".into()),
            };
        }
        match (said, ahead) {
            (Some((outcome, _)), _) if PERMANENT.contains(&outcome) => {
                Cause::False(format!("behind {outcome}, which stops no group"))
            }
            (_, Some(cause)) => cause,
            (_, None) => Cause::False("behind a failure, and nothing ahead failed".into()),
        }
    }

    /// Another worker or invocation, named by the log line, held a claim during the delivery.
    fn conflict(&self, receive: &Receive<'_>, to: usize, detail: &str) -> Cause {
        let named = detail.strip_prefix("lease held by ").unwrap_or_default();
        let named = named.split(' ').next().unwrap_or_default();
        let held = self.held.get(&*receive.message.operation);
        let causes = (held.into_iter().flatten())
            // A read may see a claim that the ledger notes only when its answer leaves.
            .filter(|held| held.from < to || receive.ends_after(held.at_ms))
            .filter(|held| held.owner == named)
            .filter(|held| held.lasts_into(receive) || held.seems_to_last_into(receive))
            .filter_map(|held| self.held_by_another(receive, to, held));
        // Of two reasons, an explanation counts.
        let cause = causes.min_by_key(|cause| matches!(cause, Cause::False(_)));
        cause.unwrap_or_else(|| {
            Cause::False(format!(
                "conflict ({detail}), and no other attempt held a claim"
            ))
        })
    }

    /// Why another attempt held its claim during a delivery. `None` if it was the delivery itself.
    fn held_by_another(&self, receive: &Receive<'_>, to: usize, held: &Held<'_>) -> Option<Cause> {
        if !held.lasts_into(receive) {
            return Some(Cause::Injected("conflict by a clock that is behind".into()));
        }
        let slow = self.slow.get(&(held.worker, held.key));
        let late = slow.is_some_and(|slow| *slow < receive.from);
        let others = held.receives.iter().map(|place| &self.receives[*place]);
        let invocation = |of: &Receive<'_>| (of.worker, of.invocation);
        let others: Vec<_> = others
            .filter(|other| invocation(other) != invocation(receive))
            .collect();
        let own = held.worker == receive.worker && held.from >= receive.from;
        if own && others.is_empty() && !late {
            // A worker never conflicts with the claim that it makes. But the claim of an earlier delivery may
            // reach the table late.
            let earlier = self.receives.iter().any(|earlier| {
                earlier.worker == receive.worker
                    && earlier.message.operation == receive.message.operation
                    && earlier.to.is_some_and(|(to, _, _)| to < receive.from)
                    && earlier
                        .said
                        .is_some_and(|(outcome, _)| outcome == "store_unavailable")
            });
            return earlier.then(|| Cause::Delayed("conflict with a late claim".into()));
        }
        let at_work = |other: &Receive<'_>| {
            other.from < to && other.to.is_none_or(|(to, _, _)| to > receive.from)
        };
        if others.iter().any(|other| at_work(other)) {
            return Some(Cause::Injected("conflict with a second delivery".into()));
        }
        if late {
            return Some(Cause::Injected("conflict after Slow".into()));
        }
        let ended = others.iter().find_map(|other| match other.to?.1 {
            End::WorkerDied => Some(self.death(other.worker)),
            _ => self.failure(other),
        });
        // A request of a worker that had died reached the table late.
        let cause = ended.unwrap_or_else(|| self.death(held.worker));
        Some(match cause {
            Cause::Injected(what) => Cause::Injected(format!("conflict after {what}")),
            Cause::Delayed(what) => Cause::Delayed(format!("conflict after {what}")),
            Cause::False(what) => Cause::False(format!(
                "conflict with a claim that nothing should have left: {what}"
            )),
        })
    }
}

impl Receive<'_> {
    fn ends_after(&self, at_ms: u64) -> bool {
        let took = self.to.map_or(Duration::ZERO, |(_, _, took)| took);
        let took_ms = u64::try_from(took.as_millis()).unwrap();
        at_ms <= self.from_ms + took_ms + APART_MS
    }
}

impl Held<'_> {
    fn lasts_into(&self, receive: &Receive<'_>) -> bool {
        self.to.is_none_or(|to| to > receive.from)
    }

    /// The owner ended the lease before, and the worker's clock was behind the owner's.
    fn seems_to_last_into(&self, receive: &Receive<'_>) -> bool {
        (self.ended_ms).is_some_and(|ended| receive.from_ms <= ended + APART_MS)
    }
}

fn lane(message: &Message) -> &str {
    message.group.as_deref().unwrap_or(&message.operation)
}

/// A key ends with the operation's name: `namespace#operation`.
pub(crate) fn operation_of(key: &str) -> &str {
    key.split_once('#').unwrap().1
}

fn end(held: &mut [Held<'_>], at: usize) {
    if let Some(held) = held.last_mut().filter(|held| held.to.is_none()) {
        held.to = Some(at);
    }
}
