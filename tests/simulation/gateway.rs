//! [`Gateway`]: the payment gateway, and [`Charge`], the handler that calls it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use sqs_once::{Attempt, Failure, FailureKind, Handler, internal::system::sleep};

use crate::{
    ledger::{Event, Run},
    plan::{Keys, Kind, Service},
    world::{Member, World},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The beginning of a handler's panic.
pub const HANDLER_PANICS: &str = "the handler panics on ";

/// The payment gateway.
#[derive(Debug, Default)]
pub struct Gateway {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    runs: Run,
    /// When each call key was first charged, as far as it is remembered.
    charged: HashMap<String, Duration>,
    /// Call keys that were declined.
    declined: HashSet<String>,
    /// Requests by order, for what happens a number of times.
    asked: HashMap<String, u32>,
}

/// An answer of the gateway.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Charged,
    Declined,
    Busy,
}

impl Gateway {
    fn begin(&self) -> Run {
        let mut books = self.books();
        books.runs += 1;
        books.runs
    }

    /// Counts what happens to an order, and returns how often it has happened before.
    fn count(&self, order: &str) -> u32 {
        let mut books = self.books();
        let count = books.asked.entry(order.to_owned()).or_default();
        *count += 1;
        *count - 1
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request. `None`: no answer.
    fn serve(
        &self,
        world: &World,
        run: Run,
        (key, call_key): (&str, &str),
        order: &str,
        kind: Kind,
    ) -> Option<Answer> {
        if world.is_out(Service::Gateway) || world.strikes(world.plan.rates.busy) {
            world.note(Event::GatewayRefused { run });
            // Half of the refusals are silent: the handler waits.
            return world.dice().chance(0.5).then_some(Answer::Busy);
        }
        let remembers_declines = world.plan.gateway.remembers_declines;
        if remembers_declines && self.books().declined.contains(call_key) {
            return Some(Answer::Declined);
        }
        match kind {
            Kind::Declined => {
                self.books().declined.insert(call_key.to_owned());
                return Some(Answer::Declined);
            }
            // It may have charged before it hangs.
            Kind::Hangs(times) if self.count(order) < times => {
                world.note(Event::GatewayRefused { run });
                if world.dice().chance(0.5) {
                    self.charge(world, run, key, call_key);
                }
                return None;
            }
            Kind::Refused(times) if self.count(order) < times => {
                world.note(Event::GatewayRefused { run });
                return Some(Answer::Busy);
            }
            _ => {}
        }
        self.charge(world, run, key, call_key);
        Some(Answer::Charged)
    }

    fn charge(&self, world: &World, run: Run, key: &str, call_key: &str) {
        let (mut books, now) = (self.books(), world.age());
        let before = books.charged.get(call_key).copied();
        let taken = match world.plan.gateway.keys {
            Keys::Forever => before.is_none(),
            Keys::ForADay => before.is_none_or(|at| now - at > DAY),
            Keys::Never => true,
        };
        if taken {
            books.charged.insert(call_key.to_owned(), now);
        }
        let key = key.to_owned();
        world.note(Event::Charged { run, key, taken });
    }
}

/// The handler: charges an order.
#[derive(Debug)]
pub struct Charge {
    pub world: Arc<World>,
    pub member: Member,
}

#[derive(Debug, Deserialize)]
pub struct Order {
    order: String,
}

impl Charge {
    async fn charge(
        &self,
        run: Run,
        order: &str,
        kind: Kind,
        attempt: &Attempt,
    ) -> Result<String, Failure> {
        match kind {
            Kind::Panics(times) if self.world.gateway.count(order) < times => {
                panic!("{HANDLER_PANICS}{order}")
            }
            Kind::Killer => self.end_process().await,
            Kind::Kills(times) if self.world.gateway.count(order) < times => {
                self.end_process().await
            }
            _ => {}
        }
        let (key, call_key) = (attempt.key().to_string(), attempt.call_key());
        let order = order.to_owned();
        let served = move |world: &World| {
            let keys = (&*key, &*call_key);
            world.gateway.serve(world, run, keys, &order, kind)
        };
        // Longer than any function.
        let patience = self.world.plan.gateway.patience.unwrap_or(DAY);
        match self.world.exchange(&self.member, patience, served).await {
            Some(Some(Answer::Charged)) => Ok(format!("charged by run {run}")),
            // Without keys, the gateway cannot know whether an earlier attempt charged.
            Some(Some(Answer::Declined)) if self.world.plan.gateway.keys == Keys::Never => {
                Err(Failure::permanent("declined"))
            }
            Some(Some(Answer::Declined)) => Err(Failure::declined("declined")),
            Some(Some(Answer::Busy)) if self.world.plan.gateway.is_trusted => {
                Err(Failure::no_effect("busy"))
            }
            Some(Some(Answer::Busy)) => Err(Failure::retryable("busy")),
            silent => {
                if silent.is_some() {
                    sleep(patience).await;
                }
                self.world.note(Event::GatewaySilent { run });
                Err(Failure::retryable("no answer"))
            }
        }
    }

    async fn end_process(&self) {
        self.world.note(Event::Killed {
            worker: self.member.worker,
        });
        self.member.process.kill();
        std::future::pending().await
    }
}

impl Handler for Charge {
    type Message = Order;
    type Output = String;

    async fn handle(&self, Order { order }: Order, attempt: Attempt) -> Result<String, Failure> {
        let run = self.world.gateway.begin();
        let kind = self.world.queue.kind(attempt.message_id());
        self.world.note(Event::HandlerStarted {
            run,
            message: attempt.message_id().to_owned(),
            key: attempt.key().to_string(),
            order: order.clone(),
            worker: self.member.worker,
            told: attempt.prior().is_some(),
            kind,
        });
        let mut end = End {
            world: &self.world,
            run,
            how: "dropped",
        };
        let ended = self.charge(run, &order, kind, &attempt).await;
        end.how = match &ended {
            Ok(_) => "ok",
            Err(failure) => match failure.kind() {
                FailureKind::Permanent => "permanent",
                FailureKind::Declined => "declined",
                FailureKind::NoEffect => "no effect",
                _ => "retryable",
            },
        };
        ended
    }
}

/// Notes the end of a run, also of one that panics, is cut off, or whose process ends.
struct End<'a> {
    world: &'a World,
    run: Run,
    how: &'static str,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let how = if std::thread::panicking() {
            "panicked"
        } else {
            self.how
        };
        self.world.note(Event::HandlerEnded { run: self.run, how });
    }
}
