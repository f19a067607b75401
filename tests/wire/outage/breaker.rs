//! The circuit breaker: calls and writes while the called system is down, and how it ends.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once,
    protocol::{Key, Record, Swap, Timestamp},
    store::{MemoryStore, RequestContext, Store, StoreError, Swapped},
};

use support::{
    consumer::{namespace, process},
    event::{batch, received},
};

const SECOND: Duration = Duration::from_secs(1);

thread_local! {
    /// The wall clock of the test's thread.
    static NOW: Cell<Timestamp> = const { Cell::new(Timestamp::from_millis(1_796_000_000_000)) };
}

fn now() -> Timestamp {
    NOW.get()
}

fn pass(time: Duration) {
    NOW.set(now() + time);
}

/// A store in memory that counts its requests.
#[derive(Clone, Default)]
struct Counted {
    records: MemoryStore,
    reads: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
    down: Arc<AtomicBool>,
}

impl Counted {
    fn is_up(&self, action: &'static str, key: &Key) -> Result<(), StoreError> {
        match self.down.load(Relaxed) {
            true => Err(StoreError::denied(action, key, "table", "down")),
            false => Ok(()),
        }
    }

    fn requests(&self) -> usize {
        self.reads.load(Relaxed) + self.writes.load(Relaxed)
    }
}

impl Store for Counted {
    type With = ();

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        self.reads.fetch_add(1, Relaxed);
        self.is_up("read", key)?;
        self.records.get(key, context).await
    }

    async fn swap(
        &self,
        swap: &Swap,
        (): &(),
        context: &RequestContext,
    ) -> Result<Swapped, StoreError> {
        self.writes.fetch_add(1, Relaxed);
        self.is_up("write", &swap.key)?;
        self.records.swap(swap, &(), context).await
    }
}

/// The called system, as the messages' handlers meet it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gateway {
    Works,
    Busy,
    Declines,
    Unreachable,
    Silent,
    /// The handler panics.
    Strange,
    /// The handler's output panics.
    Unwritable,
}

enum Receipt {
    Plain,
    Unwritable,
}

impl Serialize for Receipt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Plain => serializer.serialize_unit(),
            Self::Unwritable => panic!("scripted"),
        }
    }
}

#[derive(Clone)]
struct Charge {
    gateway: Arc<Mutex<Gateway>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Handler for Charge {
    type Message = Value;
    type Output = Receipt;

    async fn handle(&self, order: Value, attempt: Attempt) -> Result<Receipt, Failure> {
        let id = attempt.message_id().to_owned();
        self.calls.lock().unwrap().push(id);
        // Calls of one batch are under way at the same time.
        tokio::task::yield_now().await;
        let gateway = *self.gateway.lock().unwrap();
        match gateway {
            // Another system, which has no outage.
            _ if order["system"] == "other" => Ok(Receipt::Plain),
            Gateway::Works => Ok(Receipt::Plain),
            Gateway::Busy => Err(Failure::retryable("503")),
            Gateway::Declines => Err(Failure::permanent("declined")),
            Gateway::Unreachable => Err(Failure::no_effect("connection refused")),
            Gateway::Silent => std::future::pending().await,
            Gateway::Strange => panic!("scripted"),
            Gateway::Unwritable => Ok(Receipt::Unwritable),
        }
    }
}

struct World {
    store: Counted,
    charge: Charge,
    consumer: Arc<Consumer<Once<Counted>, Charge>>,
    outcomes: Arc<Mutex<Vec<&'static str>>>,
}

impl World {
    fn new(gateway: Gateway) -> Self {
        Self::with(gateway, |consumer| consumer)
    }

    fn with(
        gateway: Gateway,
        set: impl FnOnce(Consumer<Once<Counted>, Charge>) -> Consumer<Once<Counted>, Charge>,
    ) -> Self {
        let store = Counted::default();
        let charge = Charge {
            gateway: Arc::new(Mutex::new(gateway)),
            calls: Arc::default(),
        };
        let outcomes: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let seen = Arc::clone(&outcomes);
        let once = Once::new(store.clone()).clock(now);
        let consumer = Consumer::without_aws(once, namespace(), charge.clone())
            .on_outcome(move |message| seen.lock().unwrap().push(message.outcome.name()));
        Self {
            store,
            charge,
            consumer: Arc::new(set(consumer)),
            outcomes,
        }
    }

    fn set(&self, gateway: Gateway) {
        *self.charge.gateway.lock().unwrap() = gateway;
    }

    /// Processes a batch, and returns the number of messages by outcome.
    async fn process(
        &self,
        messages: impl IntoIterator<Item = Value>,
    ) -> BTreeMap<&'static str, usize> {
        let deadline = Deadline::after(now(), 10 * SECOND, SECOND);
        process(&self.consumer, batch(messages), deadline).await;
        let mut counts = BTreeMap::new();
        for outcome in self.outcomes.lock().unwrap().drain(..) {
            *counts.entry(outcome).or_default() += 1;
        }
        counts
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.charge.calls.lock().unwrap())
    }

    /// Opens the circuit by two batches of ten.
    async fn open(&self) {
        for first in [0, 10] {
            self.process(ten(first, 2)).await;
        }
        assert_eq!(self.calls().len(), 20);
    }
}

/// Ten messages with ids from `first` on, received for the `n`th time.
fn ten(first: usize, n: u32) -> impl Iterator<Item = Value> {
    (first..first + 10).map(move |id| received(&format!("m-{id}"), "{}", n))
}

#[tokio::test(start_paused = true)]
async fn outage_of_called_system_costs_few_calls_and_writes() {
    for (gap, gateway) in [
        (Duration::ZERO, Gateway::Busy),
        (30 * SECOND, Gateway::Busy),
        (30 * SECOND, Gateway::Unreachable),
        (30 * SECOND, Gateway::Silent),
    ] {
        let world = World::new(gateway);
        for number in 0..20 {
            world.process(ten(10 * number, 2)).await;
            pass(gap);
        }
        let (calls, writes) = (world.calls().len(), world.store.writes.load(Relaxed));
        assert!(
            calls <= 60 && writes <= 150,
            "{gateway:?}, {gap:?}: {calls} calls, {writes} writes"
        );
        assert!(calls >= 20, "{gateway:?}: {calls}");
    }
}

#[tokio::test]
async fn open_circuit_returns_messages_without_claim() {
    let world = World::new(Gateway::Busy);
    world.open().await;
    let requests = world.store.requests();
    assert_eq!(
        world.process(ten(20, 2)).await,
        [("circuit_open", 10)].into()
    );
    assert_eq!(world.store.requests(), requests);
    assert!(world.calls().is_empty());
}

#[tokio::test]
async fn first_and_tenth_receives_run_while_open() {
    let world = World::new(Gateway::Busy);
    world.open().await;
    let other = json!({"system": "other"}).to_string();
    let messages = [("a", 1), ("b", 9), ("c", 10), ("d", 11), ("e", 20)];
    let outcomes = (world.process(messages.map(|(id, n)| received(id, "{}", n)))).await;
    assert_eq!(
        outcomes,
        [("circuit_open", 2), ("retryable_failure", 3)].into()
    );
    // A handler that calls another system succeeds, and closes the circuit.
    let outcomes = world.process([received("f", &other, 1)]).await;
    assert_eq!(outcomes, [("completed", 1)].into());
    assert_eq!(
        world.process(ten(20, 2)).await,
        [("retryable_failure", 10)].into()
    );
}

#[tokio::test]
async fn messages_run_after_probe_succeeds() {
    for (gateway, outcome) in [
        (Gateway::Works, "completed"),
        (Gateway::Declines, "permanent_failure"),
    ] {
        let world = World::new(Gateway::Busy);
        world.open().await;
        pass(5 * SECOND);
        world.set(gateway);
        let outcomes = world.process(ten(20, 2)).await;
        assert_eq!(outcomes, [("circuit_open", 9), (outcome, 1)].into());
        assert_eq!(world.process(ten(30, 2)).await, [(outcome, 10)].into());
    }
}

/// Nobody waits for a probe that hangs.
#[tokio::test(start_paused = true)]
async fn interval_begins_when_the_probe_is_taken() {
    let world = World::new(Gateway::Busy);
    world.open().await;
    world.set(Gateway::Silent);
    for wait in [5, 10, 20] {
        pass(wait * SECOND - SECOND);
        assert_eq!(
            world.process(ten(20, 2)).await,
            [("circuit_open", 10)].into()
        );
        pass(SECOND);
        assert_eq!(
            world.process(ten(20, 2)).await,
            [("circuit_open", 9), ("out_of_time", 1)].into()
        );
    }
}

#[tokio::test]
async fn failures_of_the_store_leave_the_circuit_closed() {
    let world = World::new(Gateway::Works);
    world.store.down.store(true, Relaxed);
    for number in 0..10 {
        let outcomes = world.process(ten(10 * number, 2)).await;
        assert_eq!(outcomes, [("store_unavailable", 10)].into());
    }
}

#[tokio::test]
async fn panics_leave_the_circuit_closed() {
    let world = World::new(Gateway::Strange);
    for number in 0..5 {
        let outcomes = world.process(ten(10 * number, 2)).await;
        assert_eq!(outcomes, [("panicked", 10)].into());
    }
}

/// A panic says nothing about the called system.
#[tokio::test]
async fn panic_of_a_probe_leaves_the_circuit_open() {
    for gateway in [Gateway::Strange, Gateway::Unwritable] {
        let world = World::new(Gateway::Busy);
        world.open().await;
        pass(5 * SECOND);
        world.set(gateway);
        let outcomes = world.process(ten(20, 2)).await;
        assert_eq!(outcomes, [("circuit_open", 9), ("panicked", 1)].into());
        assert_eq!(
            world.process(ten(30, 2)).await,
            [("circuit_open", 10)].into()
        );
    }
}

#[tokio::test]
async fn circuit_that_is_off_lets_every_message_run() {
    let world = World::with(Gateway::Busy, |consumer| consumer.circuit_breaker(false));
    for number in 0..5 {
        let outcomes = world.process(ten(10 * number, 2)).await;
        assert_eq!(outcomes, [("retryable_failure", 10)].into());
    }
}
