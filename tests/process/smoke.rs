//! A queue, and three processes of the release build, of which one is killed and one is frozen while they work on it.
//!
//! Processes, signals, sockets and clocks are real here. What may happen at each step is the simulation's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use serde_json::Value;
use support::{
    event::{batch, failed, in_group, order, received},
    gateway::Reply,
    runtime_api::{Answer, Lambda},
    stage::{Stage, TABLE, now_ms},
};
use tokio::{
    join,
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

const ORDERS: usize = 60;
const WORKERS: usize = 3;
const GROUPS: usize = 4;
const DECLINED: &str = "o-25";
const BUSY: &str = "o-31";
const KILLS: &str = "o-3";
const FREEZES: &str = "o-17";
const INVALID: &str = "no-json";
/// Of the function.
const TIMEOUT: Duration = Duration::from_secs(4);
const VISIBILITY: Duration = Duration::from_millis(200);
/// Receives after which a message that always fails is a dead letter.
const ENOUGH: u32 = 30;
/// Receives of the template.
const MOST: u32 = 130;
/// Memory of a process, in bytes.
const MOST_MEMORY: usize = 64 << 20;

const SETTINGS: [(&str, &str); 5] = [
    ("IDEMPOTENCY_KEY", "body:/orderId"),
    ("CONSUMER_VISIBILITY", "off"),
    ("TEST_LEASE_MARGIN", "100ms"),
    ("TEST_DEADLINE_RESERVE", "800ms"),
    ("TEST_CRASH_WAIT", "1s"),
];

#[tokio::test]
async fn standard_queue_survives_kills_and_freezes() {
    let mut messages: Vec<_> = (0..ORDERS).map(|n| Message::of_order(n, "m")).collect();
    let again = (0..ORDERS)
        .step_by(5)
        .map(|n| Message::of_order(n, "again"));
    messages.extend(again);
    messages.push(Message::new(INVALID, "{".to_owned()));
    let ended = World::run(messages).await;
    let receives = ended.queue.receives(INVALID);
    assert_eq!(receives, ENOUGH);
}

#[tokio::test]
async fn fifo_queue_keeps_its_order_under_kills() {
    let group = |n: usize| format!("account-{}", n % GROUPS);
    let in_groups = (0..ORDERS).map(|n| Message {
        group: Some(group(n)),
        ..Message::of_order(n, "m")
    });
    let ended = World::run(in_groups.collect()).await;
    let mut calls: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for call in ended.stage.gateway.calls() {
        let n: usize = call.order["o-".len()..].parse().unwrap();
        calls.entry(group(n)).or_default().push(n);
    }
    for (group, calls) in calls {
        assert!(calls.is_sorted(), "{group}: {calls:?}");
    }
}

struct World {
    stage: Stage,
    queue: Queue,
    /// How often an order did not end, or its batch was lost with its process.
    lost: Mutex<BTreeMap<String, usize>>,
}

impl World {
    /// Works on the queue until it is empty, and asks for what both kinds of queues promise.
    async fn run(messages: Vec<Message>) -> Self {
        let world = Self {
            stage: Stage::set().await,
            queue: Queue {
                messages: Mutex::new(messages),
                changed: Notify::new(),
            },
            lost: Mutex::default(),
        };
        let gateway = &world.stage.gateway;
        gateway.script(DECLINED, [Reply::Status(402), Reply::Status(402)]);
        gateway.script(BUSY, [Reply::Status(503), Reply::Status(503)]);
        gateway.script(KILLS, [Reply::Hang]);
        gateway.script(FREEZES, [Reply::Hang]);
        join_all((0..WORKERS).map(|_| world.work())).await;
        world.check().await;
        world
    }

    async fn work(&self) {
        let mut lambda = self.stage.adjusted(&SETTINGS).await;
        while let Some(received) = self.queue.receive(10).await {
            let is_first = |order: &str| {
                let has = |message: &Message| message.order() == order && message.receives == 1;
                received.iter().any(has)
            };
            let event = batch(received.iter().map(Message::record));
            let answer = if is_first(KILLS) {
                let arrived = self.stage.gateway.arrived(KILLS, 1);
                let (answer, _) = join!(lambda.invoke(event, TIMEOUT), async {
                    arrived.await;
                    lambda.kill().await
                });
                answer
            } else if is_first(FREEZES) {
                self.freeze(&lambda, event, &received).await;
                continue;
            } else {
                lambda.invoke(event, TIMEOUT).await
            };
            match answer {
                Answer::Response(response) => self.end(&received, &failed(&response)),
                Answer::Exited | Answer::TimedOut => {
                    self.lose(&received);
                    lambda = self.stage.adjusted(&SETTINGS).await;
                }
                Answer::Error(error) => panic!("{error}"),
            }
        }
        let memory = lambda.memory("VmRSS");
        assert!(memory < Some(MOST_MEMORY), "{memory:?} bytes");
    }

    /// Stops the process while the gateway has its call, and lets it go on when another one has called again.
    async fn freeze(&self, lambda: &Lambda, event: Value, received: &[Message]) {
        let end = Instant::now() + TIMEOUT;
        let deadline = now_ms().unsigned_abs() + u64::try_from(TIMEOUT.as_millis()).unwrap();
        let is_thawed = AtomicBool::new(false);
        let invocation = async {
            let answer = lambda.invoke_until(event, deadline, 10 * TIMEOUT).await;
            assert!(is_thawed.load(Relaxed), "{answer:?}");
            answer
        };
        let (answer, ()) = join!(invocation, async {
            self.stage.gateway.arrived(FREEZES, 1).await;
            lambda.signal("-STOP").await;
            sleep_until(end).await;
            self.lose(received);
            self.stage.gateway.arrived(FREEZES, 2).await;
            is_thawed.store(true, Relaxed);
            lambda.signal("-CONT").await;
        });
        let failed = failed(&answer.response());
        let frozen = received.iter().find(|of| of.order() == FREEZES).unwrap();
        assert!(failed.contains(&frozen.id), "{failed:?}");
    }

    /// The messages of a batch without an answer are visible again.
    fn lose(&self, received: &[Message]) {
        let all: Vec<_> = received.iter().map(|message| message.id.clone()).collect();
        self.end(received, &all);
    }

    fn end(&self, received: &[Message], failed: &[String]) {
        let mut lost = self.lost.lock().unwrap();
        for message in received.iter().filter(|of| failed.contains(&of.id)) {
            *lost.entry(message.order().to_owned()).or_default() += 1;
        }
        self.queue.answer(received, failed);
    }

    async fn check(&self) {
        let lost = self.lost.lock().unwrap().clone();
        let records = self.stage.dynamo.records(TABLE).await;
        assert_eq!(records.len(), ORDERS);
        for n in 0..ORDERS {
            let order = format!("o-{n}");
            let status = self.stage.status(&order).await;
            let calls = self.stage.gateway.calls_for(&order);
            let keys: BTreeSet<_> = calls.iter().map(|call| call.key.clone()).collect();
            assert_eq!(keys.len(), 1, "{order}: {calls:?}");
            let expected = match &*order {
                DECLINED => "FAILED",
                _ => "COMPLETED",
            };
            assert_eq!(status, expected, "{order}");
            let least = match &*order {
                BUSY => 3,
                KILLS | FREEZES => 2,
                _ => 1,
            };
            // One attempt for each time that it was received and did not end.
            let most = 1 + lost.get(&order).copied().unwrap_or_default();
            assert!((least..=most).contains(&calls.len()), "{order}: {calls:?}");
        }
    }
}

#[derive(Clone, Debug)]
struct Message {
    id: String,
    body: String,
    group: Option<String>,
    receives: u32,
    /// `None` while a batch has it.
    visible_at: Option<Instant>,
    is_done: bool,
}

impl Message {
    fn new(id: &str, body: String) -> Self {
        Self {
            id: id.to_owned(),
            body,
            group: None,
            receives: 0,
            visible_at: Some(Instant::now()),
            is_done: false,
        }
    }

    fn of_order(n: usize, prefix: &str) -> Self {
        let id = format!("o-{n}");
        Self::new(&format!("{prefix}:{id}"), order(&id).to_string())
    }

    fn order(&self) -> &str {
        self.id
            .split_once(':')
            .map_or(&*self.id, |(_, order)| order)
    }

    fn record(&self) -> Value {
        let record = received(&self.id, &self.body, self.receives);
        match &self.group {
            Some(group) => in_group(record, group),
            None => record,
        }
    }

    /// It is deleted, or a dead letter.
    fn is_over(&self) -> bool {
        let fails = [DECLINED, INVALID].contains(&self.order());
        let is_held = self.visible_at.is_none();
        self.is_done || fails && self.receives >= ENOUGH && !is_held
    }
}

struct Queue {
    messages: Mutex<Vec<Message>>,
    changed: Notify,
}

impl Queue {
    /// Waits for messages. `None` when the queue is empty.
    async fn receive(&self, most: usize) -> Option<Vec<Message>> {
        loop {
            let changed = self.changed.notified();
            let next = {
                let mut messages = self.messages.lock().unwrap();
                if messages.iter().all(Message::is_over) {
                    self.changed.notify_waiters();
                    return None;
                }
                let received = visible(&mut messages, most);
                if !received.is_empty() {
                    return Some(received);
                }
                let hidden = messages.iter().filter_map(|message| message.visible_at);
                let now = Instant::now();
                let next = hidden.filter(|at| *at > now).min();
                next.unwrap_or(now + TIMEOUT)
            };
            let _either = timeout_at(next, changed).await;
        }
    }

    fn answer(&self, received: &[Message], failed: &[String]) {
        let mut messages = self.messages.lock().unwrap();
        for message in &mut *messages {
            if received.iter().any(|of| of.id == message.id) {
                message.is_done = !failed.contains(&message.id);
                message.visible_at = Some(Instant::now() + VISIBILITY);
            }
        }
        self.changed.notify_waiters();
    }

    fn receives(&self, id: &str) -> u32 {
        let messages = self.messages.lock().unwrap();
        messages.iter().find(|of| of.id == id).unwrap().receives
    }
}

/// Takes visible messages. Of a group, one that is held or hidden keeps back those behind it.
fn visible(messages: &mut [Message], most: usize) -> Vec<Message> {
    let now = Instant::now();
    let (mut received, mut closed) = (Vec::new(), BTreeSet::new());
    for message in messages.iter_mut().filter(|message| !message.is_over()) {
        let is_closed = message
            .group
            .as_ref()
            .is_some_and(|group| closed.contains(group));
        let is_visible = message.visible_at.is_some_and(|at| at <= now);
        if is_closed || !is_visible || received.len() == most {
            closed.extend(message.group.clone());
            continue;
        }
        message.receives += 1;
        assert!(message.receives < MOST, "{message:?}");
        message.visible_at = None;
        received.push(message.clone());
    }
    received
}
