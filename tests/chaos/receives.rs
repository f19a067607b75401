//! Cause of each failed receive of a good message, from the logs. Causes are an injected fault,
//! another worker at the same operation, or a failure ahead in its FIFO group.

use std::collections::HashMap;

use crate::{
    account::PERMANENT,
    faults::Fault,
    ledger::{ChargeEnd, Death, Delivery, End, Event, Invocation, Worker},
    plan::{Kind, Message},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Injected(String),
    /// A failure without an injected cause, in the worker's words: a busy machine causes some.
    Uninjected(String),
    /// Not started because messages ahead took too long: a busy machine may delay a batch.
    NoTime,
    /// The worker's log line is false.
    False(String),
}

/// One delivery, and its events.
struct Receive<'a> {
    message: &'a Message,
    worker: Worker,
    invocation: Invocation,
    from: usize,
    to: Option<(usize, End)>,
    /// The delivery before it in its batch and FIFO group.
    ahead: Option<usize>,
    injected: Option<String>,
    said: Option<(&'a str, &'a str)>,
}

/// The time from one owner's claim to its end, or to the next owner's claim.
struct Held<'a> {
    owner: &'a str,
    worker: Worker,
    /// Invocations of the worker with the message of the claim.
    invocations: Vec<Invocation>,
    from: usize,
    to: Option<usize>,
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
    held: HashMap<&'a str, Vec<Held<'a>>>,
    slow: Vec<(Worker, &'a str, usize)>,
    deaths: HashMap<Worker, Death>,
}

/// Cause of each delivery of a good message that was not acknowledged.
pub(crate) fn causes(events: &[Event]) -> Vec<(Delivery, Cause)> {
    let mut all = Receives::default();
    for (at, event) in events.iter().enumerate() {
        all.event(at, event);
    }
    let mut causes: Vec<Option<Cause>> = Vec::with_capacity(all.receives.len());
    for receive in &all.receives {
        let ahead = receive.ahead.and_then(|ahead| causes[ahead].clone());
        causes.push(all.cause(receive, ahead));
    }
    let mut of_delivery = Vec::new();
    for (delivery, at) in &all.places {
        let good = !all.receives[*at].message.kind.is_permanent();
        if let Some(cause) = causes[*at].take().filter(|_| good) {
            of_delivery.push(((*delivery).clone(), cause));
        }
    }
    of_delivery.sort_by(|(one, _), (other, _)| one.cmp(other));
    of_delivery
}

impl<'a> Receives<'a> {
    fn event(&mut self, at: usize, event: &'a Event) {
        match event {
            Event::Sent(message) => {
                self.messages.insert(&message.id, message);
                self.messages_of_operation
                    .insert(&message.operation, message);
            }
            Event::Delivered {
                delivery,
                worker,
                invocation,
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
                    ahead: open.last().copied(),
                    injected: None,
                    said: None,
                });
                open.push(place);
                self.places.insert(delivery, place);
            }
            Event::Returned {
                delivery,
                worker,
                end,
            } => {
                let lane = lane(self.messages[&*delivery.0]);
                if let Some(&place) = self.places.get(delivery) {
                    self.receives[place].to = Some((at, *end));
                    let open = self.open.entry((*worker, lane)).or_default();
                    open.retain(|open| *open != place);
                }
            }
            Event::Faulted { key, worker, fault } => {
                if *fault == Fault::Slow {
                    self.slow.push((*worker, key, at));
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
                    // A worker that hangs up on a responding gateway had a reason of its own.
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
                ..
            } => {
                let invocations = self.invocations(*worker, operation_of(key), message);
                let held = self.held.entry(key).or_default();
                // A claim repeated by its owner's second request is the same claim.
                if held
                    .last()
                    .is_none_or(|last| last.to.is_some() || last.owner != owner)
                {
                    end(held, at);
                    held.push(Held {
                        owner,
                        worker: *worker,
                        invocations,
                        from: at,
                        to: None,
                    });
                }
            }
            Event::Settled { key, .. } => end(self.held.entry(key).or_default(), at),
            Event::Died { worker, death } => {
                self.deaths.insert(*worker, *death);
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
            | Event::Frozen { .. }
            | Event::Thawed { .. }
            | Event::Informed { .. }
            | Event::Late { .. }
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

    /// Invocations of a worker that have this message of the operation at present.
    fn invocations(&self, worker: Worker, operation: &str, message: &str) -> Vec<Invocation> {
        let at_work = self.at_work(worker, operation).into_iter();
        let receives = at_work.map(|place| &self.receives[place]);
        let with_message = receives.filter(|receive| receive.message.id == message);
        with_message.map(|receive| receive.invocation).collect()
    }

    /// `None` for a delivery that needs no cause.
    fn cause(&self, receive: &Receive<'_>, ahead: Option<Cause>) -> Option<Cause> {
        let (to, end) = receive.to?;
        if end == End::WorkerDied {
            return Some(match self.deaths.get(&receive.worker) {
                Some(death @ (Death::Killed | Death::FrozenUntilTimeout)) => {
                    Cause::Injected(format!("{death:?}"))
                }
                other => Cause::Uninjected(format!("its worker: {other:?}")),
            });
        }
        if end != End::ReportedFailed {
            return None;
        }
        let Some((outcome, detail)) = receive.said else {
            return Some(Cause::Uninjected("its worker says nothing".into()));
        };
        Some(match outcome {
            // Promise 6 has a rule of its own.
            "completed" | "duplicate" => return None,
            "conflict" => self.conflict(receive, to, detail),
            "not_started" if detail.starts_with("a message before this one") => {
                self.behind(receive, ahead)
            }
            _ => match &receive.injected {
                Some(injected) => Cause::Injected(injected.clone()),
                None if outcome == "not_started" => Cause::NoTime,
                None => Cause::Uninjected(format!("{outcome} ({detail})")),
            },
        })
    }

    /// A failure ahead in the group, unless it is permanent: that message never runs again, so the
    /// group does not wait for it.
    fn behind(&self, receive: &Receive<'_>, ahead: Option<Cause>) -> Cause {
        let said = receive.ahead.and_then(|ahead| self.receives[ahead].said);
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
        let mut all = self.held.iter();
        let of_operation = all.find(|(key, _)| operation_of(key) == receive.message.operation);
        let held = of_operation
            .into_iter()
            .flat_map(|(key, held)| held.iter().map(move |held| (key, held)));
        let by_another = held
            .filter(|(_, held)| held.owner == named)
            .any(|(key, held)| {
                let during = held.from < to && held.to.is_none_or(|to| to > receive.from);
                // A late claim of its own, from an earlier delivery.
                let late = || {
                    let mut slow = self.slow.iter();
                    slow.any(|(worker, slow, at)| {
                        (worker, slow) == (&receive.worker, key) && *at < receive.from
                    })
                };
                let mut invocations = held.invocations.iter();
                let other = held.worker != receive.worker
                    || invocations.any(|other| *other != receive.invocation);
                during && (other || held.from < receive.from || late())
            });
        if by_another {
            Cause::Injected("conflict".into())
        } else {
            Cause::False(format!(
                "conflict ({detail}), and no other attempt held a claim"
            ))
        }
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
