//! The audit: every promise as a rule over the ledger's events, in their order.

#[path = "crashes.rs"]
mod crashes;
#[path = "ends.rs"]
mod ends;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
};

use crate::chaos::{
    account::accounts,
    environment::APART_MS,
    fate::AFTER_REST,
    informed::misinformed,
    ledger::{ChargeEnd, Death, Delivery, End, Event, Settled, Worker},
    measured::Measurements,
    pace::Pace,
    plan::Kind,
    receives::{Cause, causes, operation_of},
};

/// The cause that must never stand between two charges of one operation.
const NOTHING: &str = "nothing";

/// State of one operation, and so of one key.
#[derive(Default)]
struct Operation {
    key: Option<String>,
    last_charge: Option<Charge>,
    /// Cause that cut off the last attempt and permits another charge.
    excuse: Option<String>,
    open_charges: HashMap<usize, Worker>,
    taken: usize,
    /// COMPLETED: no handler may run.
    completed: bool,
    /// Completed at some time, in this record or in one that has expired.
    ever_completed: bool,
    /// A record of it has expired.
    expired: bool,
    /// Messages whose permanent failure was recorded: none may run again.
    failed: HashSet<String>,
    /// The latest recorded permanent failure. No message that was sent before it may run.
    failed_at_ms: Option<u64>,
    claim: Option<Claim>,
}

/// A request for a charge, and its message.
struct Charge {
    at: usize,
    worker: Worker,
    message: String,
    /// Deliveries of the message to the worker. Two at the same time in one process leave open
    /// which of them charged.
    deliveries: Vec<Delivery>,
}

struct Claim {
    owner: String,
    message: String,
    lease_until_ms: u64,
}

impl Operation {
    /// Notes a cause for the attempt that charged last, if `it` was that attempt.
    fn cut_off(&mut self, it: impl Fn(usize, Worker) -> bool, by: &str) {
        let last = self.last_charge.as_ref();
        if last.is_some_and(|last| it(last.at, last.worker)) {
            // The last cause counts: a dying worker hangs up first.
            self.excuse = Some(by.to_owned());
        }
    }

    /// Whether a recorded permanent failure is the answer to this message.
    fn has_failed(&self, message: &str, sent_ms: u64) -> bool {
        self.failed.contains(message) || self.failed_at_ms.is_some_and(|at| sent_ms <= at)
    }

    /// The record is gone, and with it all that the promises depend on. Returns the messages whose failure it had.
    fn expire(&mut self) -> HashSet<String> {
        (self.completed, self.expired, self.failed_at_ms) = (false, true, None);
        (self.claim, self.last_charge, self.excuse) = (None, None, None);
        mem::take(&mut self.failed)
    }
}

pub(crate) struct Findings {
    /// Every violation found in the events.
    pub(crate) violations: Vec<String>,
    /// Number of repeated charges, by the cause that cut off the attempt before.
    pub(crate) charged_again: BTreeMap<String, usize>,
    /// Good messages that used up their receives, though fewer than half of these were ended by a slow machine.
    pub(crate) given_up: Vec<String>,
}

/// Reads the events; `statuses` is the final table, by key.
pub(crate) fn audit(events: &[Event], statuses: &HashMap<String, String>) -> Findings {
    let mut audit = Audit {
        causes: causes(events),
        ..Audit::default()
    };
    audit.charged_again.insert(NOTHING.to_owned(), 0);
    for event in events {
        match event {
            Event::DeliveryLog {
                delivery, outcome, ..
            } => {
                audit.said.insert(delivery.clone(), outcome.clone());
            }
            Event::Late { message, worker } => {
                audit.late.insert((*worker, message.clone()));
            }
            _ => {}
        }
    }
    for (at, event) in events.iter().enumerate() {
        audit.event(at, event);
    }
    audit.found.extend(misinformed(events));
    audit.found.extend(crashes::without_deaths(events));
    audit.found.extend(Measurements::of(events).violations());
    let accounts = accounts(events);
    audit.receives(&accounts);
    audit.ends(&accounts, statuses);
    Findings {
        given_up: audit.given_up(&accounts),
        violations: audit.found,
        charged_again: audit.charged_again,
    }
}

struct Open {
    receive_count: u32,
    returned: bool,
}

/// Outcomes of a delivery that left work to repeat.
const UNFINISHED: [&str; 4] = [
    "retryable_failure",
    "out_of_time",
    "completion_unrecorded",
    "failure_unrecorded",
];

#[derive(Default)]
struct Audit {
    operations: HashMap<String, Operation>,
    /// The order that each operation is to charge.
    orders: HashMap<String, String>,
    operation_of_charge: HashMap<usize, String>,
    operation_of_message: HashMap<String, String>,
    /// When each message was sent.
    sent_ms: HashMap<String, u64>,
    /// Deliveries of each message to each worker: those that have not returned, and the last one.
    delivered: HashMap<(Worker, String), Vec<Open>>,
    /// The message for which each worker last claimed a key. Of two messages in a batch with one
    /// key, one claims it and the other shares the outcome.
    claimed_for: HashMap<(Worker, String), String>,
    /// Logged outcomes of deliveries.
    said: HashMap<Delivery, String>,
    /// Place of each worker's last claim of a key in the ledger, and the end of its lease in milliseconds.
    claimed: HashMap<(Worker, String), (usize, u64)>,
    /// Place of each worker's last freeze.
    frozen: HashMap<Worker, usize>,
    /// Place and time in milliseconds of each worker's last thaw.
    thawed: HashMap<Worker, (usize, u64)>,
    paces: HashMap<Worker, Pace>,
    /// Messages that a worker left unfinished in its response.
    late: HashSet<(Worker, String)>,
    /// Operations in progress at each worker.
    at_work: HashMap<Worker, Vec<String>>,
    /// Operations of each FIFO group neither settled nor given up, in sending order. An unreadable
    /// message has nothing to settle.
    groups: BTreeMap<String, Vec<String>>,
    group_of_operation: HashMap<String, String>,
    /// Messages of which the dead-letter queue has a copy.
    copied: HashSet<String>,
    /// Messages whose recorded failure has expired since they were delivered. Their worker may have read it
    /// before, and copies them after.
    failure_expired: HashSet<String>,
    /// Causes of the deliveries that failed.
    causes: BTreeMap<Delivery, Cause>,
    found: Vec<String>,
    charged_again: BTreeMap<String, usize>,
}

impl Audit {
    fn event(&mut self, at: usize, event: &Event) {
        match event {
            Event::Sent(message) => {
                let (id, operation) = (message.id.clone(), message.operation.clone());
                let group = message.group.as_ref();
                if let Some(group) = group.filter(|_| message.kind != Kind::Undecodable) {
                    let waiting = self.groups.entry(group.clone()).or_default();
                    waiting.push(operation.clone());
                    (self.group_of_operation).insert(operation.clone(), group.clone());
                }
                self.orders.insert(operation.clone(), message.order.clone());
                self.sent_ms.insert(id.clone(), message.sent_ms);
                self.operation_of_message.insert(id, operation);
            }
            Event::Delivered {
                delivery, worker, ..
            } => {
                let (message, receive_count) = delivery.clone();
                let operation = self.operation_of_message[&message].clone();
                self.failure_expired.remove(&message);
                let delivered = self.delivered.entry((*worker, message)).or_default();
                delivered.retain(|delivery| !delivery.returned);
                delivered.push(Open {
                    receive_count,
                    returned: false,
                });
                self.at_work.entry(*worker).or_default().push(operation);
            }
            Event::Returned {
                delivery,
                worker,
                end,
                ..
            } => self.returned(delivery, *worker, *end),
            Event::Copied { message, reason } => {
                self.copied.insert(message.clone());
                let operation = &self.operation_of_message[message];
                let failed = self.operations.get(operation);
                let sent_ms = self.sent_ms[message];
                let recorded = failed.is_some_and(|failed| failed.has_failed(message, sent_ms))
                    || self.failure_expired.contains(message);
                // Without a key there is no record.
                if !recorded && reason != "invalid" {
                    self.found.push(format!(
                        "{message} was copied to the dead-letter queue for {reason}, and its failure was not recorded"
                    ));
                }
            }
            Event::DeadLettered { message } => {
                let operation = self.operation_of_message[message].clone();
                self.leaves_group(&operation);
            }
            Event::Charge {
                order,
                key,
                worker,
                taken,
            } => self.charge(at, order, key, *worker, *taken),
            Event::ChargeEnded { charge, how } => {
                let operation = &self.operation_of_charge[charge];
                let operation = self.operations.get_mut(operation).unwrap();
                operation.open_charges.remove(charge);
                if *how != ChargeEnd::Answered {
                    operation.cut_off(|last, _| last == *charge, &format!("{how:?}"));
                }
            }
            Event::Claimed {
                key,
                owner,
                message,
                worker,
                at_ms,
                lease_until_ms,
                over_expired,
                ..
            } => {
                let of_worker = (*worker, key.clone());
                self.claimed_for.insert(of_worker, message.clone());
                // A claim whose lease has already ended permits no start.
                if at_ms < lease_until_ms {
                    self.claimed
                        .insert((*worker, key.clone()), (at, *lease_until_ms));
                }
                let claim = &self.of_key(key).claim;
                let live = claim.as_ref();
                let live = live.is_some_and(|other| {
                    other.owner != *owner && *at_ms + APART_MS < other.lease_until_ms
                });
                if *over_expired {
                    self.expire(key);
                }
                self.of_key(key).claim = Some(Claim {
                    owner: owner.clone(),
                    message: message.clone(),
                    lease_until_ms: *lease_until_ms,
                });
                let sent_ms = self.sent_ms.get(message).copied().unwrap_or(u64::MAX);
                if self.of_key(key).has_failed(message, sent_ms) {
                    self.found.push(format!(
                        "{key} was claimed for {message}, whose failure was recorded"
                    ));
                }
                if live {
                    self.found
                        .push(format!("{key} was claimed while another's claim was live"));
                }
            }
            Event::Alone {
                key,
                owner,
                lease_until_ms,
                ..
            } => match &mut self.of_key(key).claim {
                Some(claim) if claim.owner == *owner => claim.lease_until_ms = *lease_until_ms,
                other => {
                    let other = other.as_ref().map(|claim| claim.owner.clone());
                    self.found.push(format!(
                        "{key} began alone under {owner} when {other:?} held its claim"
                    ));
                }
            },
            Event::Settled {
                key,
                owner,
                as_what,
                failed_at_ms,
                ..
            } => {
                let operation = self.of_key(key);
                operation.failed_at_ms = operation.failed_at_ms.max(*failed_at_ms);
                let (claim, completed) = (operation.claim.take(), operation.completed);
                operation.completed |= *as_what == Settled::Completed;
                operation.ever_completed |= operation.completed;
                if let Some(claim) = claim
                    .as_ref()
                    .filter(|_| matches!(as_what, Settled::Failed | Settled::Declined))
                {
                    operation.failed.insert(claim.message.clone());
                }
                // Promise 5: a late settlement is refused.
                if let Some(Claim { owner: other, .. }) =
                    claim.filter(|claim| claim.owner != *owner)
                {
                    self.found.push(format!(
                        "{key} was {as_what:?} by {owner} when {other} held its claim"
                    ));
                }
                if completed {
                    self.found
                        .push(format!("{key} was {as_what:?} when it was Completed"));
                }
                if matches!(
                    as_what,
                    Settled::Completed | Settled::Failed | Settled::Declined
                ) {
                    self.leaves_group(operation_of(key));
                }
            }
            Event::Faulted { key, worker, fault } => {
                let fault = format!("{fault:?}");
                self.of_key(key).cut_off(|_, last| last == *worker, &fault);
            }
            Event::Died { worker, death } => {
                for operation in self.at_work.get(worker).into_iter().flatten() {
                    if let Some(operation) = self.operations.get_mut(operation) {
                        operation.cut_off(|_, last| last == *worker, &format!("{death:?}"));
                        // A frozen worker does not hang up.
                        operation.open_charges.retain(|_, by| by != worker);
                    }
                }
                if *death == Death::Crashed {
                    self.found.push(format!("worker {worker} ended by itself"));
                }
                if *death == Death::TimedOut && self.pace(*worker) == Pace::SLOWEST {
                    let limit = Pace::SLOWEST.function_timeout();
                    self.found.push(format!(
                        "worker {worker} did not answer within {limit:?}, and nothing had stopped it"
                    ));
                }
            }
            Event::Started { worker, pace } => {
                self.paces.insert(*worker, *pace);
            }
            // Promise 7. A frozen worker does not hang up.
            Event::Unheard { worker, waited } => {
                let longest = self.pace(*worker).of(AFTER_REST);
                if *waited > longest && !self.frozen.contains_key(worker) {
                    self.found.push(format!(
                        "worker {worker} waited {waited:?} for an answer on a dead connection"
                    ));
                }
            }
            Event::Frozen { worker } => {
                self.frozen.insert(*worker, at);
            }
            Event::Thawed { worker, at_ms } => {
                self.thawed.insert(*worker, (at, *at_ms));
            }
            Event::Expired { key } => self.expire(key),
            Event::DeliveryLog { .. }
            | Event::Redriven
            | Event::Outage { .. }
            | Event::Rested { .. }
            | Event::Doomed { .. }
            | Event::Informed { .. }
            | Event::Late { .. }
            | Event::Unreadable { .. }
            | Event::Answered { .. }
            | Event::Measured { .. } => {}
        }
    }

    fn expire(&mut self, key: &str) {
        let failed_at_ms = self.of_key(key).failed_at_ms;
        let name = operation_of(key);
        let sent_before = (self.operation_of_message.iter())
            .filter(|(id, operation)| *operation == name && Some(self.sent_ms[*id]) <= failed_at_ms)
            .map(|(id, _)| id.clone())
            .collect::<Vec<_>>();
        let failed = self.of_key(key).expire();
        self.failure_expired
            .extend(failed.into_iter().chain(sent_before));
    }

    fn charge(&mut self, at: usize, order: &str, key: &str, worker: Worker, taken: bool) {
        let name = operation_of(key);
        match self.orders.get(name) {
            Some(named) if named == order => {}
            named => self.found.push(format!(
                "{order} was charged under the key {key}, which is that of {named:?}"
            )),
        }
        self.operation_of_charge.insert(at, name.to_owned());
        let operation = self.operations.entry(name.to_owned()).or_default();
        if let Some((thawed, thawed_at_ms)) = self.thawed.get(&worker) {
            let claimed = self.claimed.get(&(worker, key.to_owned())).copied();
            // A worker with a new claim since the thaw is an ordinary worker. Without one, only
            // requests begun before the freeze may arrive late: they cannot be recalled.
            if claimed.is_none_or(|(claimed, _)| claimed < *thawed) {
                // One of several invocations may have claimed so late that its lease outlasts the freeze.
                let began_late = claimed.is_none_or(|(claimed, lease_until_ms)| {
                    claimed > self.frozen[&worker] && *thawed_at_ms >= lease_until_ms + APART_MS
                });
                if began_late {
                    self.found.push(format!(
                        "{name} was charged by worker {worker}, which began when it was thawed"
                    ));
                }
                operation.key = Some(key.to_owned());
                operation.taken += usize::from(taken);
                return;
            }
        }
        if operation.completed {
            self.found.push(format!(
                "{name} was charged by worker {worker} when it was Completed"
            ));
        }
        let message = self.claimed_for.get(&(worker, key.to_owned()));
        let message = message.cloned().unwrap_or_default();
        let open = self.delivered.get(&(worker, message.clone()));
        let open = open.into_iter().flatten();
        let deliveries: Vec<_> = open
            .map(|open| (message.clone(), open.receive_count))
            .collect();
        if deliveries.is_empty() {
            self.found.push(format!(
                "{name} was charged by worker {worker} for the message {message:?}, which was not given to it"
            ));
        }
        let excuse = operation.excuse.take();
        let of_another =
            |last: &Charge| last.message != message && operation.failed.contains(&last.message);
        if operation.last_charge.as_ref().is_some_and(of_another) {
            let after = "the recorded failure of another message".to_owned();
            *self.charged_again.entry(after).or_default() += 1;
        } else if let Some(last) = operation.last_charge.take() {
            // Promise 3: a handler runs again after a retryable failure or a cut-off.
            let unfinished = |one: &&Delivery| {
                (self.said.get(*one)).is_some_and(|outcome| UNFINISHED.contains(&&**outcome))
            };
            let mut unfinished = last.deliveries.iter().filter(unfinished);
            let delayed = unfinished.find_map(|one| self.causes.get(one));
            let after = match (excuse, delayed) {
                (Some(excuse), _) => excuse,
                // A failure without a cause is a finding elsewhere.
                (
                    None,
                    Some(Cause::Injected(cause) | Cause::Delayed(cause) | Cause::False(cause)),
                ) => {
                    format!("{cause}, by its log")
                }
                (None, None) => {
                    self.found.push(format!(
                        "{name} was charged by worker {worker} though nothing cut off worker {}, which charged it before",
                        last.worker
                    ));
                    NOTHING.to_owned()
                }
            };
            *self.charged_again.entry(after).or_default() += 1;
        }
        if !operation.open_charges.is_empty() {
            self.found
                .push(format!("{name} was charged by two at once"));
        }
        if (operation.key.as_ref()).is_some_and(|before| before != key) {
            self.found.push(format!("{name} was charged with two keys"));
        }
        operation.key = Some(key.to_owned());
        operation.last_charge = Some(Charge {
            at,
            worker,
            message,
            deliveries,
        });
        operation.open_charges.insert(at, worker);
        operation.taken += usize::from(taken);
        self.turn_of(name);
    }

    /// Promise 6: a FIFO group continues when the message ahead is settled or given up.
    fn turn_of(&mut self, name: &str) {
        let Some(group) = self.group_of_operation.get(name) else {
            return;
        };
        let waiting = &self.groups[group];
        let ahead = waiting.first().filter(|ahead| *ahead != name);
        if let Some(ahead) = ahead.filter(|_| waiting.iter().any(|waiting| waiting == name)) {
            self.found.push(format!(
                "{name} was charged when {ahead}, sent before it in its group, was not settled"
            ));
        }
    }

    fn returned(&mut self, delivery: &Delivery, worker: Worker, end: End) {
        let (message, receive_count) = delivery;
        let delivered = self.delivered.get_mut(&(worker, message.clone()));
        for open in delivered.into_iter().flatten() {
            open.returned |= open.receive_count == *receive_count;
        }
        let name = &self.operation_of_message[message];
        let at_work = self.at_work.entry(worker).or_default();
        if let Some(at) = at_work.iter().position(|operation| operation == name) {
            at_work.swap_remove(at);
        }
        let operation = self.operations.get(name);
        let completed = operation.is_some_and(|operation| operation.ever_completed);
        if end == End::Acknowledged && !completed && !self.copied.contains(message) {
            self.found.push(format!(
                "{message} was acknowledged when its operation was not completed"
            ));
        }
        // Promise 6: a success is not reported as failed because of another message of its batch.
        let said = self.said.get(delivery).map(|outcome| &**outcome);
        let late = || self.late.contains(&(worker, message.clone()));
        if let (End::ReportedFailed, Some(well @ ("completed" | "duplicate"))) = (end, said)
            && !late()
        {
            self.found.push(format!(
                "{message} was reported as failed, and its worker says: {well}"
            ));
        }
        if end == End::BatchFailed {
            self.found
                .push(format!("{message} failed with its whole batch"));
        }
    }

    fn leaves_group(&mut self, operation: &str) {
        if let Some(group) = self.group_of_operation.get(operation) {
            let waiting = self.groups.entry(group.clone()).or_default();
            waiting.retain(|waiting| waiting != operation);
        }
    }

    fn pace(&self, worker: Worker) -> Pace {
        self.paces.get(&worker).copied().unwrap_or(Pace::PLANNED)
    }

    fn of_key(&mut self, key: &str) -> &mut Operation {
        let name = operation_of(key).to_owned();
        self.operations.entry(name).or_default()
    }
}
