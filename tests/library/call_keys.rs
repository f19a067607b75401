//! Declined orders, and the call keys under which a gateway remembers them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, LookUp, LookedUp, Once, Outcome,
    protocol::{AttemptEnd, Key, Record, Timestamp},
    store::MemoryStore,
};
use support::{
    consumer::{namespace, process},
    event::{batch, record, sent_at},
};

use crate::wall_clock::{advance, clock};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// What a gateway does with a call key that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// It answers as before, for ever. A different body under the key is an error.
    Answers,
    /// The same, for 24 hours.
    AnswersForADay,
    /// It answers 409.
    Refuses,
}

const MEMORIES: [Memory; 3] = [Memory::Answers, Memory::AnswersForADay, Memory::Refuses];

struct Answered {
    at: Timestamp,
    body: Value,
    status: u16,
}

struct Gateway {
    memory: Memory,
    is_funded: bool,
    /// The next requests get no further than a 503.
    is_busy: bool,
    /// The answers to the next requests are lost.
    loses_answers: bool,
    answered: HashMap<String, Answered>,
    /// Call keys of the requests, in order.
    asked: Vec<String>,
    charged: Vec<Value>,
}

/// The handler of an order and the gateway that it calls.
#[derive(Clone)]
struct World {
    gateway: Arc<Mutex<Gateway>>,
    store: MemoryStore,
    /// The step after the charge fails permanently.
    fails_later: Arc<Mutex<bool>>,
    /// Outcomes of the messages, in order.
    outcomes: Arc<Mutex<Vec<Outcome>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn new(memory: Memory) -> Self {
        let gateway = Gateway {
            memory,
            is_funded: true,
            is_busy: false,
            loses_answers: false,
            answered: HashMap::new(),
            asked: Vec::new(),
            charged: Vec::new(),
        };
        Self {
            gateway: Arc::new(Mutex::new(gateway)),
            store: MemoryStore::default(),
            fails_later: Arc::default(),
            outcomes: Arc::default(),
        }
    }

    fn gateway(&self) -> MutexGuard<'_, Gateway> {
        lock(&self.gateway)
    }

    fn consumer(&self) -> Consumer<Once<MemoryStore>, Self> {
        let outcomes = self.outcomes.clone();
        Consumer::without_aws(
            Once::new(self.store.clone()).clock(clock),
            namespace(),
            self.clone(),
        )
        .key("body:/orderId".parse().unwrap())
        .on_outcome(move |message| lock(&outcomes).push(message.outcome.clone()))
    }

    /// Delivers messages to a new process, and returns the outcome of the last.
    async fn deliver(&self, messages: impl IntoIterator<Item = Value>) -> Outcome {
        self.deliver_to(self.consumer(), messages).await
    }

    async fn deliver_to(
        &self,
        consumer: Consumer<Once<MemoryStore>, Self>,
        messages: impl IntoIterator<Item = Value>,
    ) -> Outcome {
        let deadline = Deadline::after(clock(), 20 * SECOND, SECOND);
        process(&Arc::new(consumer), batch(messages), deadline).await;
        lock(&self.outcomes).last().unwrap().clone()
    }

    fn asked(&self) -> Vec<String> {
        self.gateway().asked.clone()
    }

    fn charges(&self) -> usize {
        self.gateway().charged.len()
    }

    fn record(&self) -> Record {
        self.store.record(&key()).unwrap()
    }
}

fn key() -> Key {
    Key::new(&namespace(), ["o-1"]).unwrap()
}

fn order(amount: u32) -> Value {
    json!({"orderId": "o-1", "amount": amount})
}

/// A message that is sent now.
fn message(id: &str, order: &Value) -> Value {
    sent_at(record(id, order), clock())
}

impl Gateway {
    fn charge(&mut self, key: &str, body: &Value) -> u16 {
        self.asked.push(key.to_owned());
        if self.is_busy {
            return 503;
        }
        let remembers = |answered: &&Answered| {
            self.memory != Memory::AnswersForADay || answered.at + 24 * HOUR > clock()
        };
        if let Some(answered) = self.answered.get(key).filter(remembers) {
            return match self.memory {
                Memory::Refuses => 409,
                _ if answered.body != *body => 422,
                _ => answered.status,
            };
        }
        let status = if self.is_funded { 201 } else { 402 };
        if self.is_funded {
            self.charged.push(body.clone());
        }
        let answered = Answered {
            at: clock(),
            body: body.clone(),
            status,
        };
        self.answered.insert(key.to_owned(), answered);
        status
    }
}

impl Handler for World {
    type Message = Value;
    type Output = u16;

    async fn handle(&self, order: Value, attempt: Attempt) -> Result<u16, Failure> {
        let status = self.gateway().charge(&attempt.call_key(), &order);
        if self.gateway().loses_answers {
            return Err("no answer".into());
        }
        match status {
            201 if *lock(&self.fails_later) => Err(Failure::permanent("no stock")),
            201 => Ok(status),
            402 => Err(Failure::declined("402")),
            422 => Err(Failure::permanent("422")),
            other => Err(Failure::retryable(format!("{other}"))),
        }
    }
}

impl LookUp<Value, u16> for World {
    async fn look_up(&self, order: &Value, _: &Attempt) -> Result<LookedUp<u16>, Failure> {
        Ok(if self.gateway().charged.contains(order) {
            LookedUp::Found(201)
        } else {
            LookedUp::NotFound
        })
    }
}

/// An order that was declined a minute ago. The card is funded now.
async fn declined(memory: Memory, order: &Value) -> World {
    let world = World::new(memory);
    world.gateway().is_funded = false;
    let outcome = world.deliver([message("m-1", order)]).await;
    assert_eq!(outcome.name(), "permanent_failure", "{memory:?}");
    assert_eq!(outcome.to_string(), "permanent failure: 402", "{memory:?}");
    world.gateway().is_funded = true;
    advance(MINUTE);
    world
}

#[tokio::test]
async fn declined_order_is_charged_once_after_a_redrive() {
    for memory in MEMORIES {
        let world = declined(memory, &order(5)).await;
        assert_eq!(
            (world.record().generation, world.record().first_claimed_at),
            (1, None)
        );
        // A redrive is a new message.
        let redriven = message("m-2", &order(5));
        let outcome = world.deliver([redriven.clone()]).await;
        assert_eq!(outcome.name(), "completed", "{memory:?}: {outcome}");
        assert_eq!(world.deliver([redriven]).await.name(), "duplicate");
        assert_eq!(world.charges(), 1, "{memory:?}");
        assert_eq!(world.asked(), [key().call_key(0), key().call_key(1)]);
    }
}

#[tokio::test]
async fn redriven_order_declined_again_gets_a_third_call_key() {
    let world = declined(Memory::Answers, &order(5)).await;
    world.gateway().is_funded = false;
    let mut redriven = message("m-2", &order(5));
    redriven["messageAttributes"]["SqsOnceRedriveOf"] =
        json!({ "stringValue": "m-1", "dataType": "String" });
    let outcome = world.deliver([redriven]).await;
    assert_eq!(outcome.name(), "permanent_failure");
    assert_eq!(world.record().failures[0].message_id, "m-2");
    world.gateway().is_funded = true;
    advance(MINUTE);
    let outcome = world.deliver([message("m-3", &order(5))]).await;
    assert_eq!(outcome.name(), "completed", "{outcome}");
    assert_eq!(world.asked(), [0, 1, 2].map(|n| key().call_key(n)));
}

/// Under the first call key, the gateway stored the decline.
#[tokio::test]
async fn duplicate_gets_the_call_key_of_the_completion() {
    let world = declined(Memory::Answers, &order(5)).await;
    let completed = world.deliver([message("m-2", &order(5))]).await;
    assert_eq!(completed.name(), "completed");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let consumer = world
        .consumer()
        .on_duplicate(move |_, _, attempt: Attempt| {
            assert_eq!(attempt.prior(), None);
            lock(&sees).push((attempt.call_key(), attempt.earlier_claims()));
            async { Ok(()) }
        });
    let duplicate = world
        .deliver_to(consumer, [message("m-3", &order(5))])
        .await;
    assert_eq!(duplicate.name(), "duplicate");
    assert_eq!(*lock(&seen), [(key().call_key(1), 2)]);
    assert_eq!(world.asked().last(), Some(&key().call_key(1)));
}

#[tokio::test]
async fn corrected_order_is_charged_once() {
    for memory in MEMORIES {
        let world = declined(memory, &order(500)).await;
        let outcome = world.deliver([message("m-2", &order(5))]).await;
        assert_eq!(outcome.name(), "completed", "{memory:?}: {outcome}");
        assert_eq!(world.gateway().charged, [order(5)], "{memory:?}");
    }
}

#[tokio::test]
async fn copies_that_were_sent_before_the_decline_do_not_ask_again() {
    for memory in MEMORIES {
        let world = World::new(memory);
        world.gateway().is_funded = false;
        let copies = ["m-1", "m-2", "m-3", "m-4", "m-5"].map(|id| message(id, &order(5)));
        advance(SECOND);
        // One batch with two of them, and one for each of the others.
        let (together, apart) = copies.split_at(2);
        let second = world.deliver(together.to_vec()).await;
        assert_eq!(second.name(), "failed_before", "{memory:?}");
        for copy in apart {
            advance(MINUTE);
            assert_eq!(world.deliver([copy.clone()]).await.name(), "failed_before");
        }
        assert_eq!(world.asked(), [key().call_key(0)], "{memory:?}");
    }
}

#[tokio::test]
async fn order_declined_after_an_open_attempt_is_charged_once() {
    for memory in MEMORIES {
        let world = World::new(memory);
        world.gateway().is_busy = true;
        let first = message("m-1", &order(5));
        assert_eq!(
            world.deliver([first.clone()]).await.name(),
            "retryable_failure"
        );
        assert!(world.record().first_claimed_at.is_some());
        assert_eq!(world.record().last_end, Some(AttemptEnd::Retryable));
        {
            let mut gateway = world.gateway();
            (gateway.is_busy, gateway.is_funded) = (false, false);
        }
        advance(SECOND);
        assert_eq!(world.deliver([first]).await.name(), "permanent_failure");
        // The gateway honours the call key: if the attempt with the 503 had charged, it would have said so.
        assert_eq!(world.record().first_claimed_at, None);
        world.gateway().is_funded = true;
        advance(MINUTE);
        let outcome = world.deliver([message("m-2", &order(5))]).await;
        assert_eq!(outcome.name(), "completed", "{memory:?}: {outcome}");
        assert_eq!(world.charges(), 1, "{memory:?}");
    }
}

#[tokio::test]
async fn permanent_failure_after_a_charge_keeps_the_call_key() {
    for memory in MEMORIES {
        let world = World::new(memory);
        *lock(&world.fails_later) = true;
        let outcome = world.deliver([message("m-1", &order(5))]).await;
        assert_eq!(outcome.to_string(), "permanent failure: no stock");
        assert!(world.record().first_claimed_at.is_some());
        *lock(&world.fails_later) = false;
        advance(MINUTE);
        let outcome = world.deliver([message("m-2", &order(5))]).await;
        let expected = match memory {
            Memory::Answers | Memory::AnswersForADay => "completed",
            Memory::Refuses => "retryable_failure",
        };
        assert_eq!(outcome.name(), expected, "{memory:?}: {outcome}");
        assert_eq!(world.charges(), 1, "{memory:?}");
        assert_eq!(world.asked(), [key().call_key(0), key().call_key(0)]);
    }
}

/// A charge of which nobody knows, and then a day in which the gateway forgets it.
async fn unknown_charge(memory: Memory, rest: Duration) -> World {
    let world = World::new(memory);
    world.gateway().loses_answers = true;
    let outcome = world.deliver([message("m-1", &order(5))]).await;
    assert_eq!(outcome.name(), "retryable_failure");
    assert_eq!(world.charges(), 1);
    world.gateway().loses_answers = false;
    advance(rest);
    world
}

#[tokio::test]
async fn attempt_open_for_too_long_is_not_repeated() {
    // The handler may send its request until the invocation ends.
    let just_before = 20 * HOUR - SECOND;
    let rests = [25 * HOUR, just_before];
    let cases = MEMORIES.map(|memory| rests.map(|rest| (memory, rest)));
    for (memory, rest) in cases.into_iter().flatten() {
        let world = unknown_charge(memory, rest).await;
        for id in ["m-1", "m-2"] {
            let outcome = world.deliver([message(id, &order(5))]).await;
            assert!(outcome.is_permanent(), "{outcome}");
            let why = outcome.to_string();
            assert!(why.contains("too old to repeat: look by hand"), "{why}");
            assert!(why.contains(&key().call_key(0)), "{why}");
            assert!(why.contains("record decline test#o-1"), "{why}");
            advance(MINUTE);
        }
        assert_eq!(world.asked().len(), 1, "{memory:?}");
        assert_eq!(world.record().state.name(), "FAILED");
        let record = world.record();
        assert!(record.first_claimed_at.is_some());
        assert_eq!(record.last_end, Some(AttemptEnd::Retryable));
    }
}

/// At most once, as docs/handlers.md spells it: the message itself and a redrive are dead letters, also if the gateway forgets.
#[tokio::test]
async fn attempt_without_an_end_runs_at_most_once_at_1_ms() {
    for memory in MEMORIES {
        let world = unknown_charge(memory, SECOND).await;
        for id in ["m-1", "m-2"] {
            let consumer = (world.consumer())
                .map_mode(|once| once.call_key_lifetime(Duration::from_millis(1)));
            let outcome = world.deliver_to(consumer, [message(id, &order(5))]).await;
            assert!(outcome.is_permanent(), "{outcome}");
            let why = outcome.to_string();
            assert!(why.contains("too old to repeat: look by hand"), "{why}");
            advance(25 * HOUR);
        }
        assert_eq!(world.asked().len(), 1, "{memory:?}");
        assert_eq!(world.charges(), 1, "{memory:?}");
    }
}

#[tokio::test]
async fn attempt_open_for_less_than_the_lifetime_is_repeated() {
    let world = unknown_charge(Memory::AnswersForADay, 19 * HOUR).await;
    let outcome = world.deliver([message("m-1", &order(5))]).await;
    assert_eq!(outcome.name(), "completed", "{outcome}");
    assert_eq!(world.charges(), 1);
}

#[tokio::test]
async fn system_that_never_forgets_is_asked_at_any_age() {
    let world = unknown_charge(Memory::Answers, 480 * HOUR).await;
    let consumer = (world.consumer()).map_mode(|once| once.call_key_lifetime(None));
    let outcome = world
        .deliver_to(consumer, [message("m-1", &order(5))])
        .await;
    assert_eq!(outcome.name(), "completed", "{outcome}");
    assert_eq!(world.charges(), 1);
}

#[tokio::test]
async fn look_up_decides_about_an_attempt_of_any_age() {
    let world = unknown_charge(Memory::AnswersForADay, 25 * HOUR).await;
    let consumer = world.consumer().look_up(world.clone(), 30 * SECOND);
    let outcome = world
        .deliver_to(consumer, [message("m-1", &order(5))])
        .await;
    assert_eq!(outcome.name(), "reconciled", "{outcome}");
    assert_eq!(world.asked().len(), 1);
}
