//! [`Gateway`]: the payment gateway, and [`Charge`], the handler that calls it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use sqs_once::{Attempt, Failure, Handler};

use crate::{
    ledger::{Event, Run},
    plan::{Kind, Service},
    world::{Member, World},
};

/// How long the handler waits for the gateway.
const PATIENCE: Duration = Duration::from_secs(5);

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
    /// Charges by idempotency key.
    charged: HashMap<String, u32>,
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
    fn serve(&self, world: &World, run: Run, key: &str, order: &str, kind: Kind) -> Option<Answer> {
        if world.is_out(Service::Gateway) || world.strikes(world.plan.rates.busy) {
            world.note(Event::GatewayRefused { run });
            // Half of the refusals are silent.
            return world.dice().chance(0.5).then_some(Answer::Busy);
        }
        match kind {
            Kind::Declined => return Some(Answer::Declined),
            Kind::Refused(times) if self.count(order) < times => {
                world.note(Event::GatewayRefused { run });
                return Some(Answer::Busy);
            }
            _ => {}
        }
        let mut books = self.books();
        let charges = books.charged.entry(key.to_owned()).or_default();
        let taken = !world.plan.gateway_remembers || *charges == 0;
        *charges += u32::from(taken);
        let key = key.to_owned();
        world.note(Event::Charged { run, key, taken });
        Some(Answer::Charged)
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
        let (key, order) = (attempt.key().to_string(), order.to_owned());
        let served = move |world: &World| world.gateway.serve(world, run, &key, &order, kind);
        match self.world.exchange(&self.member, PATIENCE, served).await {
            Some(Some(Answer::Charged)) => Ok(format!("charged by run {run}")),
            Some(Some(Answer::Declined)) => Err(Failure::permanent("declined")),
            Some(Some(Answer::Busy)) => Err(Failure::retryable("busy")),
            Some(None) | None => {
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
        let messages = self.world.plan.messages.iter();
        let kind = messages
            .clone()
            .find(|message| message.id == attempt.message_id());
        let kind = kind.map_or(Kind::Good, |message| message.kind);
        self.world.note(Event::HandlerStarted {
            run,
            message: attempt.message_id().to_owned(),
            key: attempt.key().to_string(),
            order: order.clone(),
            worker: self.member.worker,
            told: attempt.prior().is_some(),
            kind,
        });
        let ended = self.charge(run, &order, kind, &attempt).await;
        let how = match &ended {
            Ok(_) => "ok",
            Err(failure) if failure.to_string() == "declined" => "permanent",
            Err(_) => "retryable",
        };
        self.world.note(Event::HandlerEnded { run, how });
        ended
    }
}
