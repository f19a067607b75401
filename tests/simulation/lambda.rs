//! [`Slot`]: Lambda, which invokes a function in processes that are throttled, killed, frozen and thawed.

use std::{
    fmt::Display,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Either, select},
};
use lambda_runtime::{Context, LambdaEvent, Service, tower::ServiceExt as _};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqs_once::protocol::Timestamp;
use tokio::time::{Instant, sleep};

use crate::{
    ledger::{Event, Worker},
    plan::{Release, Service as Of},
    world::{Member, World},
};

/// Longest pause after invocations that failed or were throttled.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How soon a process ends while none of them lives.
const SOON: Duration = Duration::from_millis(40);

/// Invokes a function. Returns its response.
pub type Invoke = Box<
    dyn Fn(LambdaEvent<Box<RawValue>>) -> BoxFuture<'static, Result<Value, String>> + Send + Sync,
>;

/// Starts a function in a process. To be called as this process.
pub type Start = fn(&Arc<World>, &Member, Release) -> Invoke;

/// Returns the function that a service is.
pub fn function<S>(service: S) -> Invoke
where
    S: Service<LambdaEvent<Box<RawValue>>> + Clone + Send + Sync + 'static,
    S::Response: Serialize,
    S::Error: Display,
    S::Future: Send,
{
    Box::new(move |event| {
        let service = service.clone();
        async move {
            let response = service.oneshot(event).await;
            let response = response.map_err(|error| error.to_string())?;
            Ok(serde_json::to_value(&response).unwrap_or_default())
        }
        .boxed()
    })
}

/// Room for one execution environment of a function.
pub struct Slot {
    world: Arc<World>,
    start: Start,
    held: Mutex<Option<Arc<Environment>>>,
}

struct Environment {
    member: Member,
    invoke: Invoke,
    release: usize,
    clock_stops: bool,
    running: AtomicUsize,
}

/// The response of an invocation.
pub struct Answer {
    pub worker: Worker,
    pub response: Value,
    pub took: Duration,
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

impl Slot {
    pub fn new(world: &Arc<World>, start: Start) -> Self {
        Self {
            world: Arc::clone(world),
            start,
            held: Mutex::default(),
        }
    }

    /// Invokes the function with a batch, which has this number. `None`: it failed, or its process ended.
    pub async fn invoke(&self, number: usize, event: Box<RawValue>) -> Option<Answer> {
        let (world, timeout) = (&self.world, self.world.plan.timeouts.function);
        let environment = self.environment();
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
        let event = LambdaEvent::new(event, context);
        let answer = process.run(process.enter(|| (environment.invoke)(event)));
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
                self.give_up(&environment);
                None
            }
        };
        let last = environment.running.fetch_sub(1, Relaxed) == 1;
        for line in String::from_utf8_lossy(&process.take_output()).lines() {
            world.ledger.note_metrics(line);
        }
        if process.is_dead() {
            world.note(Event::Killed { worker });
            self.clear(&environment);
        } else if last && self.holds(&environment) {
            process.freeze(environment.clock_stops);
        }
        match ended {
            Some(Ok(response)) => Some(Answer {
                worker,
                response,
                took: began.elapsed(),
            }),
            Some(Err(error)) => {
                world.note(Event::InvocationFailed {
                    batch: number,
                    error,
                });
                None
            }
            None => {
                world.note(Event::InvocationLost { batch: number });
                None
            }
        }
    }

    /// Ends a process at its timeout, or thaws it later, when others may have taken over.
    fn give_up(&self, environment: &Arc<Environment>) {
        self.clear(environment);
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
        if world.is_out(Of::Workers) {
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

    /// Returns the environment, after a cold start if there is none.
    fn environment(&self) -> Arc<Environment> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, release) = self.world.release();
        let is_current =
            |of: &&Arc<Environment>| of.release == number && !of.member.process.is_dead();
        if let Some(environment) = held.as_ref().filter(is_current) {
            return Arc::clone(environment);
        }
        let member = self.world.start_process(number);
        let invoke = (member.process).enter(|| (self.start)(&self.world, &member, release));
        let environment = Arc::new(Environment {
            invoke,
            release: number,
            clock_stops: self.world.dice().chance(0.5),
            member,
            running: AtomicUsize::new(0),
        });
        *held = Some(Arc::clone(&environment));
        environment
    }

    fn clear(&self, environment: &Arc<Environment>) {
        if self.holds(environment) {
            *self.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn holds(&self, environment: &Arc<Environment>) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref()
            .is_some_and(|held| Arc::ptr_eq(held, environment))
    }
}

/// The pause of an event source mapping, which doubles.
pub struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_secs(1))
    }
}

impl Pause {
    pub async fn wait(&mut self) {
        sleep(self.0).await;
        self.0 = LONGEST_PAUSE.min(2 * self.0);
    }

    /// Waits while Lambda throttles the invocation with a batch. Returns whether it still does so at `end`.
    pub async fn is_throttled(&mut self, world: &World, number: usize, end: Instant) -> bool {
        while Instant::now() < end {
            let rate = world.plan.rates.throttled_invocation;
            if !(world.is_out(Of::Lambda) || world.strikes(rate)) {
                return false;
            }
            world.note(Event::Throttled { batch: number });
            self.wait().await;
        }
        true
    }
}
