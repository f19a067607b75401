//! The event source mapping and Lambda: polls the queue, invokes processes, deletes what they do not report as failed.

use std::{
    num::NonZeroUsize,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::{Either, join_all, select};
use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt as _};
use serde_json::{Value, json, value::to_raw_value};
use sqs_once::{
    Consumer, Once,
    protocol::{Namespace, Timestamp},
    sqs::Visibility,
};
use tokio::time::{Instant, sleep};

use crate::{
    gateway::Charge,
    ledger::{Event, Worker},
    plan::{Kind, Service},
    queue::Received,
    sqs::{QUEUE_ARN, client},
    table::Line,
    world::{Member, World},
};

/// How long after the last fault everything must have come to an end.
const QUIET: Duration = Duration::from_secs(48 * 3600);
/// The rests of a message that ends its processes take 12 hours and 20 minutes. Messages of one key rest one after the
/// other.
const RESTS: Duration = Duration::from_secs(13 * 3600);

/// How soon a process ends while none of them lives.
const SOON: Duration = Duration::from_millis(40);

type Charging = Consumer<Once<Line>, Charge>;

pub struct Lambda {
    world: Arc<World>,
    workers: AtomicUsize,
    batches: AtomicUsize,
}

/// Room for one execution environment.
#[derive(Default)]
struct Slot(Mutex<Option<Arc<Environment>>>);

struct Environment {
    member: Member,
    consumer: Charging,
    clock_stops: bool,
    running: AtomicUsize,
}

/// What becomes of an invocation.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Spared,
    Killed(Duration),
    Frozen(Duration),
}

impl Lambda {
    pub fn new(world: Arc<World>) -> Self {
        Self {
            world,
            workers: AtomicUsize::new(0),
            batches: AtomicUsize::new(0),
        }
    }

    /// Runs until the queue is empty, or too much time has passed.
    pub async fn run(&self) {
        let plan = &self.world.plan;
        let until = self.world.at(plan.healed + QUIET + plan.deadly() * RESTS);
        let slots: Vec<_> = (0..self.world.plan.environments)
            .map(|_| Slot::default())
            .collect();
        let pollers = slots
            .iter()
            .flat_map(|slot| (0..self.world.plan.invocations).map(move |_| self.poll(slot, until)));
        join_all(pollers).await;
        let left = self.world.queue.left();
        self.world.note(Event::Quiet { left });
    }

    async fn poll(&self, slot: &Slot, until: Instant) {
        let (world, plan) = (&self.world, &self.world.plan);
        while let Some(mut batch) = world.queue.receive(world, plan.batch, until).await {
            if batch.len() < plan.batch && !plan.window.is_zero() {
                sleep(plan.window).await;
                batch.extend(world.queue.receive_now(world, plan.batch - batch.len()));
            }
            let number = self.batches.fetch_add(1, Relaxed);
            for received in &batch {
                world.note(Event::Received {
                    message: received.message.id.clone(),
                    count: received.count,
                    batch: number,
                });
            }
            if world.strikes(plan.rates.throttled_invocation) {
                world.note(Event::Throttled { batch: number });
                continue;
            }
            self.invoke(slot, number, &batch).await;
        }
    }

    async fn invoke(&self, slot: &Slot, number: usize, batch: &[Received]) {
        let (world, timeout) = (&self.world, self.world.plan.timeouts.function);
        let environment = self.environment(slot);
        let Member { process, worker } = environment.member.clone();
        world.note(Event::Invoked {
            batch: number,
            worker,
        });
        environment.running.fetch_add(1, Relaxed);
        if process.is_frozen() {
            world.note(Event::Thawed { worker });
            process.thaw();
        }
        let mut context = Context::default();
        context.request_id = format!("r-{number}");
        // Of the machine on which the process runs.
        context.deadline = (process.enter(Timestamp::now) + timeout).as_millis();
        let event = event(batch, world);
        let consumer = environment.consumer.clone();
        let answer =
            process.run(async move { consumer.oneshot(LambdaEvent::new(event, context)).await });
        let began = Instant::now();
        let fate = async {
            match self.fate() {
                Fate::Spared => std::future::pending().await,
                Fate::Killed(after) => {
                    sleep(after).await;
                    world.note(Event::Killed { worker });
                    process.kill();
                    std::future::pending::<()>().await;
                }
                Fate::Frozen(after) => {
                    sleep(after).await;
                    let clock_stops = environment.clock_stops;
                    world.note(Event::Frozen {
                        worker,
                        clock_stops,
                    });
                    process.freeze(clock_stops);
                    std::future::pending::<()>().await;
                }
            }
        };
        let limit = async {
            select(pin!(sleep(timeout)), pin!(fate)).await;
        };
        let ended = match select(pin!(answer), pin!(limit)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                let frozen = process.is_frozen();
                world.note(Event::TimedOut {
                    batch: number,
                    worker,
                    frozen,
                });
                self.give_up(slot, &environment);
                None
            }
        };
        let last = environment.running.fetch_sub(1, Relaxed) == 1;
        match ended {
            Some(Ok(response)) => {
                let response = serde_json::to_value(&response).unwrap_or_default();
                self.settle(number, worker, batch, &response, began.elapsed())
                    .await;
            }
            Some(Err(error)) => {
                let error = error.to_string();
                world.note(Event::InvocationFailed {
                    batch: number,
                    error,
                });
            }
            None => world.note(Event::InvocationLost { batch: number }),
        }
        if process.is_dead() {
            slot.clear(&environment);
        } else if last && slot.holds(&environment) {
            process.freeze(environment.clock_stops);
        }
    }

    /// Ends a process at its timeout, or thaws it later, when others may have taken over.
    fn give_up(&self, slot: &Slot, environment: &Arc<Environment>) {
        slot.clear(environment);
        let (world, member) = (Arc::clone(&self.world), environment.member.clone());
        let (is_thawed, after) = {
            let mut dice = world.dice();
            (
                member.process.is_frozen() && dice.chance(0.5),
                dice.scaled(Duration::from_secs(7200)),
            )
        };
        if !is_thawed {
            world.note(Event::Killed {
                worker: member.worker,
            });
            member.process.kill();
            return;
        }
        tokio::spawn(async move {
            sleep(after).await;
            world.note(Event::Thawed {
                worker: member.worker,
            });
            member.process.thaw();
            sleep(Duration::from_secs(1000)).await;
            member.process.kill();
        });
    }

    /// Deletes what the response does not name.
    async fn settle(
        &self,
        number: usize,
        worker: Worker,
        batch: &[Received],
        response: &Value,
        took: Duration,
    ) {
        let world = &self.world;
        let failed = match failures(response, batch) {
            Ok(failed) => failed,
            Err(why) => {
                world.note(Event::BadResponse { batch: number, why });
                return;
            }
        };
        world.note(Event::Answered {
            batch: number,
            worker,
            took,
            failed: failed.clone(),
        });
        for received in batch {
            let id = &received.message.id;
            if failed.contains(id) {
                continue;
            }
            let completed = self.is_completed(&received.message);
            world.note(Event::Acknowledged {
                message: id.clone(),
                completed,
            });
            if world.strikes(world.plan.rates.deletion_lost) {
                let after = world.dice().scaled(Duration::from_secs(3600));
                world.queue.forget_deletion(id, after);
            } else {
                world.queue.delete(id);
            }
        }
    }

    fn is_completed(&self, message: &crate::plan::Message) -> bool {
        let part = if self.world.plan.keyed_by_order {
            &message.order
        } else {
            &message.id
        };
        let key = namespace()
            .and_then(|namespace| sqs_once::protocol::Key::new(&namespace, [part.as_str()]).ok());
        let record = key.and_then(|key| self.world.table.get(&key));
        record.is_some_and(|record| record.state.name() == "COMPLETED")
    }

    fn fate(&self) -> Fate {
        let (world, rates) = (&self.world, &self.world.plan.rates);
        let timeout = world.plan.timeouts.function;
        if world.is_out(Service::Workers) {
            Fate::Killed(world.dice().between(Duration::ZERO, SOON))
        } else if world.strikes(rates.killed) {
            Fate::Killed(world.dice().scaled(timeout))
        } else if world.strikes(rates.frozen) {
            Fate::Frozen(world.dice().scaled(timeout))
        } else {
            Fate::Spared
        }
    }

    /// Returns the environment of a slot, after a cold start if there is none.
    fn environment(&self, slot: &Slot) -> Arc<Environment> {
        let mut held = slot.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(environment) = held.as_ref().filter(|of| !of.member.process.is_dead()) {
            return Arc::clone(environment);
        }
        let worker = self.workers.fetch_add(1, Relaxed);
        let member = self.world.start_process(worker);
        let world = Arc::clone(&self.world);
        let consumer = member.process.enter(|| consumer(world, &member));
        let environment = Arc::new(Environment {
            consumer,
            clock_stops: self.world.dice().chance(0.5),
            member,
            running: AtomicUsize::new(0),
        });
        *held = Some(Arc::clone(&environment));
        environment
    }
}

impl Slot {
    fn clear(&self, environment: &Arc<Environment>) {
        if self.holds(environment) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn holds(&self, environment: &Arc<Environment>) -> bool {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref()
            .is_some_and(|held| Arc::ptr_eq(held, environment))
    }
}

fn namespace() -> Option<Namespace> {
    Namespace::new("orders").ok()
}

fn consumer(world: Arc<World>, member: &Member) -> Charging {
    let plan = world.plan.clone();
    let line = Line {
        world: Arc::clone(&world),
        member: member.clone(),
    };
    let handler = Charge {
        world: Arc::clone(&world),
        member: member.clone(),
    };
    let visibility = Visibility::new(client(Arc::clone(&world), member.clone()))
        .backoff(Duration::from_secs(10), plan.timeouts.cap)
        .dead_letter(plan.direct_dead_letters);
    let key = if plan.keyed_by_order {
        "body:/order"
    } else {
        "message-id"
    };
    let worker = member.worker;
    Consumer::new(Once::new(line), namespace().expect("a namespace"), handler)
        .key(key.parse().expect("a key source"))
        .concurrency(NonZeroUsize::new(plan.concurrency).unwrap_or(NonZeroUsize::MIN))
        .visibility(visibility)
        .on_outcome(move |message| {
            world.note(Event::Outcome {
                message: message.message_id.to_owned(),
                count: message.receive_count,
                outcome: message.outcome.name(),
                worker,
            });
        })
}

fn event(batch: &[Received], world: &World) -> Box<serde_json::value::RawValue> {
    let suffix = if world.plan.fifo { ".fifo" } else { "" };
    let records: Vec<_> = batch
        .iter()
        .map(|received| {
            let message = &received.message;
            let body = match message.kind {
                Kind::Undecodable => "not an order".to_owned(),
                _ => json!({"order": message.order}).to_string(),
            };
            let sent = world.wall().as_millis().saturating_sub(
                u64::try_from((world.age() - message.sent.min(world.age())).as_millis()).unwrap_or(0),
            );
            let mut record = json!({
                "messageId": message.id,
                "receiptHandle": received.receipt(),
                "body": body,
                "attributes": {
                    "ApproximateReceiveCount": received.count.to_string(),
                    "SentTimestamp": sent.to_string(),
                    "ApproximateFirstReceiveTimestamp": received.first_received.as_millis().to_string(),
                },
                "messageAttributes": {"id": {"dataType": "String", "stringValue": message.id}},
                "eventSource": "aws:sqs",
                "eventSourceARN": format!("{QUEUE_ARN}{suffix}"),
                "awsRegion": "eu-central-1",
            });
            if let Some(group) = &message.group {
                record["attributes"]["MessageGroupId"] = json!(group);
                record["attributes"]["MessageDeduplicationId"] = json!(message.id);
            }
            record
        })
        .collect();
    to_raw_value(&json!({ "Records": records })).expect("JSON")
}

/// Returns the messages that a response names, as the event source mapping reads it.
fn failures(response: &Value, batch: &[Received]) -> Result<Vec<String>, String> {
    let named = response["batchItemFailures"]
        .as_array()
        .ok_or("no batchItemFailures")?;
    let mut ids = Vec::new();
    let mut rest = batch.iter().map(|received| &received.message.id);
    for failure in named {
        let id = failure["itemIdentifier"]
            .as_str()
            .ok_or("no itemIdentifier")?;
        if !rest.any(|known| known == id) {
            return Err(format!("{id} is unknown, named twice, or out of order"));
        }
        ids.push(id.to_owned());
    }
    Ok(ids)
}
