//! The circuit breaker: what a batch costs while the called system is down, and which ends of a handler count.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Serialize, Serializer};
use serde_json::Value;
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once, Text, handler_fn, store::MemoryStore,
};
use support::{
    clock,
    consumer::{namespace, process},
    event::{batch, received},
    lossy::{Fate, Lossy},
};
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);

/// The called system, as every handler meets it.
#[derive(Clone, Copy, Debug)]
enum Gateway {
    Works,
    Declines,
    Busy,
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
struct Charge(Arc<Mutex<Gateway>>);

impl Handler for Charge {
    type Message = Value;
    type Output = Receipt;

    async fn handle(&self, _: Value, _: Attempt) -> Result<Receipt, Failure> {
        let gateway = *self.0.lock().unwrap();
        // The messages of a batch are under way at the same time.
        tokio::task::yield_now().await;
        match gateway {
            Gateway::Works => Ok(Receipt::Plain),
            Gateway::Declines => Err(Failure::permanent("declined")),
            Gateway::Busy => Err(Failure::retryable("503")),
            Gateway::Unreachable => Err(Failure::no_effect("connection refused")),
            Gateway::Silent => std::future::pending().await,
            Gateway::Strange => panic!("scripted"),
            Gateway::Unwritable => Ok(Receipt::Unwritable),
        }
    }
}

/// A consumer, on paused time.
struct World {
    store: Lossy,
    gateway: Arc<Mutex<Gateway>>,
    consumer: Arc<Consumer<Once<Lossy>, Charge>>,
    outcomes: Arc<Mutex<Vec<&'static str>>>,
    messages: AtomicUsize,
}

impl World {
    fn new(has_breaker: bool) -> Self {
        let store = Lossy::default();
        let gateway = Arc::new(Mutex::new(Gateway::Works));
        let outcomes: Arc<Mutex<Vec<_>>> = Arc::default();
        let seen = Arc::clone(&outcomes);
        let once = Once::new(store.clone()).clock(clock::now);
        let consumer = Consumer::without_aws(once, namespace(), Charge(Arc::clone(&gateway)))
            .circuit_breaker(has_breaker)
            .on_outcome(move |message| seen.lock().unwrap().push(message.outcome.name()));
        Self {
            store,
            gateway,
            consumer: Arc::new(consumer),
            outcomes,
            messages: AtomicUsize::new(0),
        }
    }

    /// Processes a batch of new messages with these receive counts. Returns their number by outcome.
    async fn receive<const N: usize>(
        &self,
        gateway: Gateway,
        receives: [u32; N],
    ) -> BTreeMap<&'static str, usize> {
        *self.gateway.lock().unwrap() = gateway;
        let messages = receives.map(|n| {
            let id = self.messages.fetch_add(1, Relaxed);
            received(&format!("m-{id}"), "{}", n)
        });
        let deadline = Deadline::after(clock::now(), 10 * SECOND, SECOND);
        process(&self.consumer, batch(messages), deadline).await;
        let mut counts = BTreeMap::new();
        for outcome in self.outcomes.lock().unwrap().drain(..) {
            *counts.entry(outcome).or_default() += 1;
        }
        counts
    }

    async fn ten(&self, gateway: Gateway) -> BTreeMap<&'static str, usize> {
        self.receive(gateway, [2; 10]).await
    }
}

#[tokio::test(start_paused = true)]
async fn open_circuit_costs_no_request_until_a_probe_is_answered() {
    for (answer, outcome) in [
        (Gateway::Works, "completed"),
        (Gateway::Declines, "permanent_failure"),
    ] {
        let world = World::new(true);
        let failed = world.ten(Gateway::Unreachable).await;
        assert_eq!(failed, [("no_effect", 10)].into());
        let failed = world.ten(Gateway::Silent).await;
        assert_eq!(failed, [("out_of_time", 10)].into());
        let requests = world.store.sent().len();
        let open = [("circuit_open", 10)].into();
        assert_eq!(world.ten(Gateway::Busy).await, open);
        assert_eq!(world.store.sent().len(), requests);
        // A first or tenth receive runs nevertheless.
        let some = world.receive(Gateway::Busy, [1, 9, 10, 11, 20]).await;
        assert_eq!(some, [("circuit_open", 2), ("retryable_failure", 3)].into());

        // Nobody waits for a probe that hangs, here for almost nine of the ten seconds until the next one.
        advance(5 * SECOND).await;
        let probed = world.ten(Gateway::Silent).await;
        assert_eq!(probed, [("circuit_open", 9), ("out_of_time", 1)].into());
        assert_eq!(world.ten(answer).await, open);
        advance(2 * SECOND).await;
        let probed = world.ten(answer).await;
        assert_eq!(probed, [("circuit_open", 9), (outcome, 1)].into());
        assert_eq!(world.ten(answer).await, [(outcome, 10)].into());
    }
}

/// A panic says nothing about the called system.
#[tokio::test(start_paused = true)]
async fn panic_of_a_probe_leaves_the_circuit_open() {
    for gateway in [Gateway::Strange, Gateway::Unwritable] {
        let world = World::new(true);
        for _ in 0..2 {
            world.ten(Gateway::Busy).await;
        }
        advance(5 * SECOND).await;
        let probed = world.ten(gateway).await;
        assert_eq!(probed, [("circuit_open", 9), ("panicked", 1)].into());
        assert_eq!(world.ten(gateway).await, [("circuit_open", 10)].into());
    }
}

#[tokio::test(start_paused = true)]
async fn circuit_opens_only_for_the_called_system() {
    for (has_breaker, gateway, claim, outcome) in [
        (true, Gateway::Works, Fate::Denied, "store_unavailable"),
        (true, Gateway::Strange, Fate::Answered, "panicked"),
        (false, Gateway::Busy, Fate::Answered, "retryable_failure"),
    ] {
        let world = World::new(has_breaker);
        world.store.meets_always("claim", claim);
        for _ in 0..5 {
            assert_eq!(world.ten(gateway).await, [(outcome, 10)].into());
        }
    }
}

/// The limit of one tenant is not that of all. So a handler says which it is.
#[tokio::test(start_paused = true)]
async fn system_that_refuses_all_is_left_alone_for_all() {
    let store = MemoryStore::default();
    for (is_for_all, others) in [(false, "completed"), (true, "circuit_open")] {
        let outcomes: Arc<Mutex<Vec<_>>> = Arc::default();
        let seen = Arc::clone(&outcomes);
        let charge = handler_fn(move |Text(tenant): Text, _: Attempt| async move {
            let limited = Failure::retryable("429").retry_after(30 * SECOND);
            match &*tenant {
                "limited" if is_for_all => Err(limited.for_all()),
                "limited" => Err(limited),
                _ => Ok(()),
            }
        });
        let once = Once::new(store.clone()).clock(clock::now);
        let consumer = Consumer::without_aws(once, namespace(), charge)
            .on_outcome(move |message| seen.lock().unwrap().push(message.outcome.name()));
        let consumer = Arc::new(consumer);
        let receive = async |id: &str, tenant| {
            let deadline = Deadline::after(clock::now(), 10 * SECOND, SECOND);
            let id = format!("{id}-{is_for_all}");
            process(&consumer, batch([received(&id, tenant, 1)]), deadline).await;
            outcomes.lock().unwrap().pop()
        };
        assert_eq!(receive("m-1", "limited").await, Some("retryable_failure"));
        advance(29 * SECOND).await;
        assert_eq!(receive("m-2", "other").await, Some(others));
        advance(SECOND).await;
        assert_eq!(receive("m-3", "other").await, Some("completed"));
        assert_eq!(receive("m-1", "limited").await, Some("retryable_failure"));
    }
}
