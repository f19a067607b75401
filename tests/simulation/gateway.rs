//! [`Gateway`]: the payment gateway, and [`Charge`], the handler that calls it, in each mode.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_sdk_dynamodb::types::Update;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqs_once::{
    Attempt, Change, Done, Failure, FailureKind, Handler, LookUp, LookedUp, Write,
    internal::system::sleep, protocol::Timestamp,
};

use crate::{
    ledger::{Event, Run, Told, Worker},
    plan::{Keys, Kind, Service},
    stream::publish,
    wire::ITEMS,
    world::{CLIENT_TIMEOUT, Member, World},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The beginning of a handler's panic.
pub const HANDLER_PANICS: &str = "the handler panics on ";

/// The output of a lookup that finds a charge.
pub const FOUND: &str = "the order is charged";

/// The payment gateway.
#[derive(Debug, Default)]
pub struct Gateway {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    runs: Run,
    /// The message of the last run of a key in a process.
    messages: HashMap<(Worker, String), String>,
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
    fn begin(&self, worker: Worker, attempt: &Attempt) -> Run {
        let mut books = self.books();
        let of_worker = (worker, attempt.key().to_string());
        let message = attempt.message_id().to_owned();
        books.messages.insert(of_worker, message);
        books.runs += 1;
        books.runs
    }

    /// Returns the message for which a process ran an operation last.
    pub fn message_of(&self, key: &str, worker: Worker) -> String {
        let books = self.books();
        let message = books.messages.get(&(worker, key.to_owned()));
        message.cloned().unwrap_or_default()
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
        let note_declined = |again| {
            let call_key = call_key.to_owned();
            world.note(Event::GatewayDeclined {
                run,
                call_key,
                again,
            });
        };
        if remembers_declines && self.books().declined.contains(call_key) {
            note_declined(true);
            return Some(Answer::Declined);
        }
        match kind {
            // A copy that was mended before the redrive has charged: its answer is repeated.
            Kind::Declined if !self.remembers_charge(world, call_key) => {
                self.books().declined.insert(call_key.to_owned());
                note_declined(false);
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
        if !world.plan.mode.claims() {
            return;
        }
        let taken = !self.remembers_charge(world, call_key);
        if taken {
            let (mut books, now) = (self.books(), world.age());
            books.charged.insert(call_key.to_owned(), now);
        }
        let key = key.to_owned();
        world.note(Event::Charged { run, key, taken });
    }

    /// Whether a request with this key is answered with the charge that was made under it.
    fn remembers_charge(&self, world: &World, call_key: &str) -> bool {
        let charged = self.books().charged.get(call_key).copied();
        charged.is_some_and(|at| match world.plan.gateway.keys {
            Keys::Forever => true,
            Keys::ForADay => world.age() - at <= DAY,
            Keys::Never => false,
        })
    }

    /// Says whether an operation was charged. `None`: no answer.
    fn look_up(
        &self,
        world: &World,
        worker: Worker,
        (key, call_key): (&str, &str),
    ) -> Option<bool> {
        if world.is_out(Service::Gateway) || world.strikes(world.plan.rates.busy) {
            return None;
        }
        let found = self.books().charged.contains_key(call_key);
        let key = key.to_owned();
        world.note(Event::LookedUp { key, worker, found });
        Some(found)
    }
}

/// The handler: charges an order.
#[derive(Clone, Debug)]
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
        if !self.world.plan.gateway.work.is_zero() {
            sleep(self.world.plan.gateway.work).await;
        }
        let (key, call_key) = (attempt.key().to_string(), attempt.call_key());
        let order = order.to_owned();
        let served = move |world: &World| {
            let keys = (&*key, &*call_key);
            world.gateway.serve(world, run, keys, &order, kind)
        };
        let (world, gateway) = (&self.world, &self.world.plan.gateway);
        // Longer than any function.
        let patience = gateway.patience.unwrap_or(DAY);
        let mut way = world.way();
        // Without keys, it would charge the second copy of a request too. And `no_effect` after a refusal is true only if no copy
        // is under way, which a gateway may charge that forgets declines.
        if gateway.is_looked_up || (gateway.is_trusted && !gateway.remembers_declines) {
            way = way.once();
        }
        let answer = world.exchange_on(way, &self.member, patience, served);
        match answer.await {
            Some(Some(Answer::Charged)) => Ok(format!("the order is charged by run {run}")),
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

    /// Returns what commits with the record.
    fn with_write(&self, output: String, attempt: &Attempt) -> Done<String> {
        let key = attempt.key().as_str();
        let done = Done::new(output).with(count(&format!("item of {key}"), key));
        match self.world.plan.outbox {
            Some(_) => publish(done, key),
            None => done,
        }
    }

    async fn run(&self, order: String, attempt: &Attempt) -> Result<String, Failure> {
        let run = self.world.gateway.begin(self.member.worker, attempt);
        let kind = self.world.queue.kind(attempt.message_id());
        self.world.note(Event::HandlerStarted {
            run,
            message: attempt.message_id().to_owned(),
            key: attempt.key().to_string(),
            order: order.clone(),
            worker: self.member.worker,
            told: attempt.prior().map(|open| Told {
                since_ms: open.first_claimed_at.map(Timestamp::as_millis),
                other_payload: open.other_payload,
            }),
            call_key: attempt.call_key(),
            kind,
        });
        let mut end = End {
            world: &self.world,
            run,
            how: "dropped",
        };
        let ended = self.charge(run, &order, kind, attempt).await;
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

impl Handler for Charge {
    type Message = Order;
    type Output = String;

    async fn handle(&self, Order { order }: Order, attempt: Attempt) -> Result<String, Failure> {
        self.run(order, &attempt).await
    }
}

/// The handler of the modes whose writes commit with the record.
#[derive(Clone, Debug)]
pub struct Commit(pub Charge);

impl Handler for Commit {
    type Message = Order;
    type Output = Done<String>;

    async fn handle(
        &self,
        Order { order }: Order,
        attempt: Attempt,
    ) -> Result<Done<String>, Failure> {
        let output = self.0.run(order, &attempt).await?;
        Ok(self.0.with_write(output, &attempt))
    }
}

/// Counts a write on an item.
fn count(id: &str, key: &str) -> Write<Update> {
    Write::update(ITEMS, "SET #last = :key ADD applied :one")
        .key("id", id)
        .name("#last", "last")
        .value(":key", key)
        .value(":one", 1)
}

/// The handler of the item mode. Some orders share an item.
#[derive(Clone, Debug)]
pub struct ChangeItem(pub Charge);

/// An item, as the handler reads it.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Item {
    id: String,
    applied: u64,
    last: String,
}

impl Handler for ChangeItem {
    type Message = Order;
    type Output = Change<String>;

    async fn handle(
        &self,
        Order { order }: Order,
        attempt: Attempt,
    ) -> Result<Change<String>, Failure> {
        let number: usize = order.bytes().map(usize::from).sum();
        let (id, key) = (format!("account {}", number % 4), attempt.key().to_string());
        let output = self.0.run(order, &attempt).await?;
        if number.is_multiple_of(2) {
            return Ok(Change::update(output, count(&id, &key)));
        }
        let of_item = json!({ "id": id });
        let modify = move |found: Option<Item>| {
            let item = found.unwrap_or_default();
            let changed = Item {
                id: id.clone(),
                applied: item.applied + 1,
                last: key.clone(),
            };
            Ok((changed, output.clone()))
        };
        Ok(Change::modify(ITEMS, of_item, modify))
    }
}

/// The lookup of a charge at a gateway without idempotency keys.
#[derive(Debug)]
pub struct Ask(pub Charge);

impl Ask {
    async fn ask(&self, attempt: &Attempt) -> Result<LookedUp<String>, Failure> {
        let Charge { world, member } = &self.0;
        let (key, call_key) = (attempt.key().to_string(), attempt.call_key());
        let worker = member.worker;
        let served = move |world: &World| world.gateway.look_up(world, worker, (&key, &call_key));
        match world
            .exchange(member, CLIENT_TIMEOUT, served)
            .await
            .flatten()
        {
            Some(true) => Ok(LookedUp::Found(FOUND.to_owned())),
            Some(false) => Ok(LookedUp::NotFound),
            None => {
                world.note(Event::LookUpFailed { worker });
                Err(Failure::retryable("no answer"))
            }
        }
    }
}

impl LookUp<Order, String> for Ask {
    async fn look_up(&self, _: &Order, attempt: &Attempt) -> Result<LookedUp<String>, Failure> {
        self.ask(attempt).await
    }
}

impl LookUp<Order, Done<String>> for Ask {
    async fn look_up(
        &self,
        _: &Order,
        attempt: &Attempt,
    ) -> Result<LookedUp<Done<String>>, Failure> {
        let found = self.ask(attempt).await?;
        Ok(found.map(|output| self.0.with_write(output, attempt)))
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
