//! The event source mapping and Lambda: polls the queue, invokes processes, deletes what they do not report as failed.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::{Either, join, join_all, select};
use lambda_runtime::{Context, LambdaEvent};
use serde_json::Value;
use sqs_once::protocol::Timestamp;
use tokio::time::{Instant, sleep};

use crate::{
    consumer::{Invoke, consumer},
    event::{event, failures},
    ledger::{Event, Worker},
    operator::operate,
    plan::{Mode, RECORDS_KEPT, Service},
    queue::Received,
    world::{Member, World},
};

/// How long after the last fault everything must have come to an end.
const QUIET: Duration = Duration::from_secs(48 * 3600);
/// The rests of a message that ends its processes take 12 hours and 20 minutes. Messages of one key rest one after the
/// other.
const RESTS: Duration = Duration::from_secs(13 * 3600);
/// Longest pause of a poller after invocations that failed or were throttled.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How soon a process ends while none of them lives.
const SOON: Duration = Duration::from_millis(40);

/// Pause between two looks for records whose time to live is over.
const SWEEP: Duration = Duration::from_secs(6 * 3600);

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
    consumer: Invoke,
    release: usize,
    clock_stops: bool,
    running: AtomicUsize,
}

/// What becomes of an invocation.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Spared,
    Killed(Duration),
    /// Killed at the poll of a task with this number, so between any two awaits.
    KilledAtPoll(u64),
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
        let (world, plan) = (&self.world, &self.world.plan);
        let rests = plan.deadly() * RESTS * (1 + plan.redrives().count() as u32);
        let sent = plan.messages.iter().map(|message| message.sent);
        let last = plan.redrives().chain(sent).chain([plan.healed]).max();
        // An item has no failures, so such a message stops its group until its receives are used up.
        let failing = plan.messages.iter().filter(|of| of.kind.fails_always());
        let stops = if plan.fifo && plan.mode == Mode::Item {
            plan.timeouts.cap * plan.timeouts.max_receives * failing.count() as u32
        } else {
            Duration::ZERO
        };
        let until = world.at(last.unwrap_or_default() + QUIET + rests + stops);
        let slots: Vec<_> = (0..plan.environments).map(|_| Slot::default()).collect();
        let pollers = slots
            .iter()
            .flat_map(|slot| (0..plan.invocations).map(move |_| self.poll(slot, until)));
        let pollers = join_all(pollers);
        let sweeping = async {
            loop {
                sleep(SWEEP).await;
                if plan.records_kept < RECORDS_KEPT {
                    world.sweep();
                }
            }
        };
        let done = join(pollers, operate(world));
        select(pin!(done), pin!(sweeping)).await;
        let left = world.queue.left();
        world.note(Event::Quiet { left });
    }

    async fn poll(&self, slot: &Slot, until: Instant) {
        let (world, plan) = (&self.world, &self.world.plan);
        let mut pause = Pause::default();
        while let Some(mut batch) = world.queue.receive(world, plan.batch, until).await {
            let received = Instant::now();
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
            // Lambda tries a throttled invocation again, until the visibility timeout is over (*AWS Lambda Developer
            // Guide*, "Processing messages from Amazon SQS").
            let mut is_throttled = false;
            while received.elapsed() < plan.timeouts.visibility {
                is_throttled =
                    world.is_out(Service::Lambda) || world.strikes(plan.rates.throttled_invocation);
                if !is_throttled {
                    break;
                }
                world.note(Event::Throttled { batch: number });
                pause.wait().await;
            }
            // Otherwise the receive is wasted.
            if !is_throttled {
                if self.invoke(slot, number, &batch).await {
                    pause = Pause::default();
                } else {
                    pause.wait().await;
                }
            }
        }
    }

    /// Returns whether the invocation succeeded.
    async fn invoke(&self, slot: &Slot, number: usize, batch: &[Received]) -> bool {
        let (world, timeout) = (&self.world, self.world.plan.timeouts.function);
        let environment = self.environment(slot);
        let Member { process, worker } = environment.member.clone();
        world.note(Event::Invoked {
            batch: number,
            worker,
        });
        if environment.running.fetch_add(1, Relaxed) == 0 {
            let (now, most) = process.held();
            world.note(Event::Held { worker, most, now });
        }
        if process.is_frozen() {
            world.note(Event::Thawed { worker });
            process.thaw();
        }
        if world.strikes(world.plan.rates.clock_stepped) {
            self.step_clock(&environment.member);
        }
        let mut context = Context::default();
        context.request_id = format!("r-{number}");
        // Of the machine on which the process runs.
        context.deadline = (process.enter(Timestamp::now) + timeout).as_millis();
        let event = event(batch, world);
        let event = LambdaEvent::new(event, context);
        let answer = process.run(process.enter(|| (environment.consumer)(event)));
        let began = Instant::now();
        let fate = self.fate();
        if let Fate::KilledAtPoll(poll) = fate {
            process.kill_at_poll(poll);
        }
        let stop = async {
            match fate {
                Fate::Spared | Fate::KilledAtPoll(_) => std::future::pending().await,
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
            select(pin!(sleep(timeout)), pin!(stop)).await;
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
        for line in String::from_utf8_lossy(&process.take_output()).lines() {
            world.ledger.note_metrics(line);
        }
        if process.is_dead() {
            world.note(Event::Killed { worker });
        }
        let succeeded = matches!(ended, Some(Ok(_)));
        match ended {
            Some(Ok(response)) => {
                self.settle(number, worker, batch, &response, began.elapsed())
                    .await;
            }
            Some(Err(error)) => {
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
        succeeded
    }

    /// Ends a process at its timeout, or thaws it later, when others may have taken over.
    fn give_up(&self, slot: &Slot, environment: &Arc<Environment>) {
        slot.clear(environment);
        let (world, member) = (Arc::clone(&self.world), environment.member.clone());
        let (is_thawed, after) = {
            let (mut dice, visibility) = (world.dice(), world.plan.timeouts.visibility);
            let is_thawed = member.process.is_frozen() && dice.chance(0.5);
            let after = if dice.chance(0.5) {
                // Another process has the message by then.
                dice.between(visibility, visibility * 3 / 2)
            } else {
                dice.scaled(Duration::from_secs(7200))
            };
            (is_thawed, after)
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
            let key = world.key(&received.message);
            let completed = key.is_some_and(|key| world.table.has_completed(world.plan.mode, &key));
            world.note(Event::Acknowledged {
                message: id.clone(),
                completed,
                batch: number,
            });
            if world.strikes(world.plan.rates.deletion_lost) {
                let after = world.dice().scaled(Duration::from_secs(3600));
                world.queue.forget_deletion(id, after);
            } else {
                world.queue.delete(world, received);
            }
        }
    }

    /// Sets the wall clock of a process, before an invocation or during it.
    fn step_clock(&self, member: &Member) {
        let (world, member) = (Arc::clone(&self.world), member.clone());
        let after = {
            let mut dice = world.dice();
            let is_later = dice.chance(0.5);
            is_later.then(|| dice.scaled(world.plan.timeouts.function))
        };
        match after {
            None => world.set_clock(&member),
            Some(after) => drop(tokio::spawn(async move {
                sleep(after).await;
                world.set_clock(&member);
            })),
        }
    }

    fn fate(&self) -> Fate {
        let (world, rates) = (&self.world, &self.world.plan.rates);
        let timeout = world.plan.timeouts.function;
        if world.is_out(Service::Workers) {
            Fate::Killed(world.dice().between(Duration::ZERO, SOON))
        } else if world.strikes(rates.killed) {
            let mut dice = world.dice();
            if dice.chance(0.5) {
                Fate::Killed(dice.scaled(timeout))
            } else {
                Fate::KilledAtPoll(dice.below(60) as u64)
            }
        } else if world.strikes(rates.frozen) {
            let mut dice = world.dice();
            Fate::Frozen(if dice.chance(0.5) {
                dice.between(Duration::ZERO, SOON)
            } else {
                dice.scaled(timeout)
            })
        } else {
            Fate::Spared
        }
    }

    /// Returns the environment of a slot, after a cold start if there is none.
    fn environment(&self, slot: &Slot) -> Arc<Environment> {
        let mut held = slot.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, release) = self.world.release();
        let is_current =
            |of: &&Arc<Environment>| of.release == number && !of.member.process.is_dead();
        if let Some(environment) = held.as_ref().filter(is_current) {
            return Arc::clone(environment);
        }
        let worker = self.workers.fetch_add(1, Relaxed);
        let member = self.world.start_process(worker);
        let consumer = (member.process).enter(|| consumer(&self.world, &member, release));
        let environment = Arc::new(Environment {
            consumer,
            release: number,
            clock_stops: self.world.dice().chance(0.5),
            member,
            running: AtomicUsize::new(0),
        });
        *held = Some(Arc::clone(&environment));
        environment
    }
}

/// The pause of a poller, which doubles.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_secs(1))
    }
}

impl Pause {
    async fn wait(&mut self) {
        sleep(self.0).await;
        self.0 = LONGEST_PAUSE.min(2 * self.0);
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
