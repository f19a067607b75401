//! Producer -> consumer A -> outbox -> relay -> consumer B, with kills, duplicates and lost answers on
//! every hop.

#[path = "in_postgres.rs"]
mod in_postgres;

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::Poll,
    time::Duration,
};

use aws_config::retry::RetryConfig;
use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use serde::Deserialize;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, BatchError, Consumer, Deadline, Done, Event, Failure, Handler, Inbox, Mode, Once,
    Write, handler_fn,
    protocol::{Namespace, Timestamp},
    store::DynamoStore,
};
use sqs_once_outbox::Relay;
use support::{
    dynamo::{Dynamo, Item, number, text},
    event::{batch, failed, in_group, record},
    faults::Fault,
    seed,
    sqs::{Sqs, SqsBehaviour},
};
use tokio::time::sleep;

use super::stream::{Stream, create_outbox};

const RECORDS_OF_A: &str = "records-a";
const RECORDS_OF_B: &str = "records-b";
const EFFECTS_OF_A: &str = "effects-a";
const EFFECTS_OF_B: &str = "effects-b";
const GROUPS: &str = "groups";
const OUTBOX: &str = "outbox";

/// Customers, whose orders are groups.
const CUSTOMERS: usize = 20;
/// Events of one order.
const EVENTS: [&str; 2] = ["placed", "reserved"];
/// Timeout of both consumers and of the relay.
const TIME: Duration = Duration::from_secs(5);

/// Milliseconds by which the clock of the workers is ahead, so that no test waits for a lease.
static AHEAD: AtomicU64 = AtomicU64::new(0);

fn now() -> Timestamp {
    Timestamp::now() + Duration::from_millis(AHEAD.load(Ordering::Relaxed))
}

/// Number of orders: 300, or `OUTBOX_ORDERS`.
fn orders() -> usize {
    let orders = std::env::var("OUTBOX_ORDERS").ok();
    orders.map_or(300, |orders| orders.parse().unwrap())
}

/// Most orders of one emulator. For each write, dynoxide reads all records of a stream, and consumer B
/// writes all events of a customer.
const ORDERS_OF_ONE_EMULATOR: usize = 500;

/// The numbers of orders of each emulator.
fn rounds() -> impl Iterator<Item = usize> {
    let orders = orders();
    (0..orders)
        .step_by(ORDERS_OF_ONE_EMULATOR)
        .map(move |start| ORDERS_OF_ONE_EMULATOR.min(orders - start))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    order_id: String,
    customer_id: String,
}

/// Counts the effect, and publishes the events of an order.
async fn place(order: Order, _: Attempt) -> Result<Done<()>, Failure> {
    let effect = Write::update(EFFECTS_OF_A, "ADD n :one").key("id", &order.order_id);
    let done = Done::new(()).with(effect.value(":one", 1));
    Ok(EVENTS.iter().fold(done, |done, name| {
        let body =
            json!({ "orderId": order.order_id, "customerId": order.customer_id, "name": name });
        done.publish(Event::new(*name, &body).group(&order.customer_id))
    }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Happened {
    order_id: String,
    customer_id: String,
    name: String,
}

/// Counts the effect of an event, and appends the event to those of its customer.
async fn note(event: Happened, _: Attempt) -> Result<Done<()>, Failure> {
    let id = format!("{} {}", event.order_id, event.name);
    let effect = Write::update(EFFECTS_OF_B, "ADD n :one").key("id", &id);
    let append = "SET seen = list_append(if_not_exists(seen, :none), :event)";
    let append = Write::update(GROUPS, append)
        .key("id", &event.customer_id)
        .value(":none", Vec::<String>::new())
        .value(":event", [id]);
    Ok(Done::new(()).with(effect.value(":one", 1)).with(append))
}

/// A FIFO queue, whose messages are in their groups, and the next message id.
#[derive(Default)]
struct Fifo {
    groups: BTreeMap<String, VecDeque<Value>>,
    next: usize,
    /// Receives of batches of which no answer came.
    lost: usize,
}

impl Fifo {
    fn push(&mut self, group: &str, body: &str, attributes: &Value) {
        let mut message = in_group(record(&format!("m-{}", self.next), body), group);
        message["messageAttributes"] = attributes.clone();
        self.next += 1;
        self.groups
            .entry(group.to_owned())
            .or_default()
            .push_back(message);
    }

    fn is_empty(&self) -> bool {
        self.groups.values().all(VecDeque::is_empty)
    }

    /// Up to ten messages, in the order of their groups.
    fn receive(&self, rng: &mut Rng) -> Vec<Value> {
        let mut groups: Vec<_> = self
            .groups
            .values()
            .filter(|group| !group.is_empty())
            .collect();
        rng.shuffle(&mut groups);
        let of_each = groups
            .into_iter()
            .flat_map(|group| group.iter().take(1 + self.next % 3));
        of_each.take(10).cloned().collect()
    }

    /// Deletes the messages of a batch that are not reported as failed.
    fn delete(&mut self, received: &[Value], failed: &[String]) {
        for message in received {
            let id = message["messageId"].as_str().unwrap();
            if !failed.iter().any(|failed| failed == id) {
                let group = message["attributes"]["MessageGroupId"].as_str().unwrap();
                let group = self.groups.get_mut(group).unwrap();
                let place = group.iter().position(|kept| kept["messageId"] == id);
                group.remove(place.unwrap());
            }
        }
    }
}

/// The number of steps after which a worker is killed, for one of five.
fn kill(rng: &mut Rng) -> Option<u32> {
    let (is_killed, steps) = (rng.u8(..5) == 0, rng.u32(..16));
    is_killed.then_some(steps)
}

/// Polls a worker, so many times at most, and drops it then. Counted, and not timed, so that a busy machine kills at the
/// same places.
async fn until<F: Future>(steps: Option<u32>, worker: F) -> Option<F::Output> {
    let (mut worker, mut left) = (pin!(worker), steps);
    poll_fn(|cx| {
        if left == Some(0) {
            return Poll::Ready(None);
        }
        left = left.map(|left| left - 1);
        worker.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Delivers one batch to a consumer. The worker may be killed, and its answer may be lost.
async fn deliver<M: Mode<H::Output>, H: Handler>(
    queue: &mut Fifo,
    consumer: &Consumer<M, H>,
    rng: &mut Rng,
) {
    let received = queue.receive(rng);
    if received.is_empty() {
        return;
    }
    let event = serde_json::from_value(batch(received.clone())).unwrap();
    let deadline = consumer.deadline(now() + TIME);
    let run = consumer.process(event, deadline);
    let (kill, is_lost) = (kill(rng), rng.u8(..10) == 0);
    let answer = until(kill, run).await;
    if kill.is_some() {
        // The lease of a killed worker ends.
        let ahead = TIME + Duration::from_secs(2);
        AHEAD.fetch_add(ahead.as_millis().try_into().unwrap(), Ordering::Relaxed);
    }
    match answer {
        Some(Ok(response)) if !is_lost => {
            let failed = failed(&serde_json::to_value(response).unwrap());
            queue.delete(&received, &failed);
        }
        Some(Err(error)) => assert!(
            matches!(error, BatchError::StoreUnavailable { .. }),
            "{error}"
        ),
        _ => queue.lost += 1,
    }
}

/// The event source mapping of the relay: sends batches of the stream, and again from the sequence
/// number that the response names.
struct Poller {
    stream: Stream,
    position: usize,
    lost: usize,
    partial: usize,
}

impl Poller {
    async fn poll(&mut self, relay: &Relay, rng: &mut Rng) -> bool {
        let records = self.stream.read().await;
        let end = records.len().min(self.position + rng.usize(1..=100));
        let records = &records[self.position..end];
        if records.is_empty() {
            return false;
        }
        let event = serde_json::from_value(json!({ "Records": records })).unwrap();
        let deadline = Deadline::after(Timestamp::now(), TIME, TIME / 10);
        let run = relay.process(event, deadline);
        let (kill, is_lost) = (kill(rng), rng.u8(..10) == 0);
        let response = until(kill, run).await;
        // A response that is lost makes Lambda send the batch again.
        let Some(response) = response.filter(|_| !is_lost) else {
            self.lost += 1;
            return true;
        };
        match response.batch_item_failures.first() {
            None => self.position = end,
            Some(failure) => {
                let number = failure.item_identifier.as_deref().unwrap();
                let is_named = |record: &Value| record["dynamodb"]["SequenceNumber"] == number;
                self.position += records.iter().position(is_named).unwrap();
                self.partial += 1;
            }
        }
        true
    }
}

/// Lets the next requests to DynamoDB fail.
fn disturb(dynamo: &Dynamo, rng: &mut Rng) {
    const FAULTS: [Fault; 6] = [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::HalfAnswer,
        Fault::Empty,
        Fault::Throttle,
        Fault::Canceled(&["TransactionConflict", "None", "None", "None"]),
    ];
    if rng.u8(..3) == 0 {
        let fault = FAULTS[rng.usize(..FAULTS.len())];
        dynamo.fail("TransactWriteItems", fault);
    }
    if rng.u8(..6) == 0 {
        dynamo.fail("Claim", FAULTS[rng.usize(..5)]);
    }
}

/// Behaviour of the queue in the next call of the relay.
fn behaviour(rng: &mut Rng) -> SqsBehaviour {
    match rng.u8(..10) {
        0 => SqsBehaviour::Cut,
        1 => SqsBehaviour::Empty,
        2 => SqsBehaviour::Forgetful,
        3 => SqsBehaviour::FailingFirst,
        _ => SqsBehaviour::Willing,
    }
}

fn consumer<M: Mode<H::Output>, H: Handler>(
    mode: M,
    name: &str,
    handler: H,
    key: &str,
) -> Consumer<M, H> {
    let namespace = Namespace::new(name).unwrap();
    Consumer::without_aws(mode, namespace, handler)
        .key(key.parse().unwrap())
        .metrics(None)
}

/// A relay to consumer B, with the retries of `sqs_once::aws::config`.
fn relay(sqs: &Sqs) -> Relay {
    let retries = RetryConfig::standard()
        .with_max_attempts(Dynamo::ATTEMPTS)
        .with_initial_backoff(Duration::from_millis(50))
        .with_max_backoff(Duration::from_millis(500));
    let config = support::sdk_config(sqs.endpoint()).to_builder();
    let config = config.retry_config(retries).build();
    let targets = "*=https://sqs.example/1/b.fifo".parse().unwrap();
    Relay::new(&config, targets, "https://sqs.example/1/dead").unwrap()
}

/// Number of disturbances of each kind. How many meet a round depends on the speed of the machine.
type Disturbances = [usize; 4];

/// Adds up the disturbances of all rounds, each with its number of orders and its seed, from `CHAOS_SEED` or `first_seed`
/// on. There is one of each kind at least.
async fn run_rounds<F: Future<Output = Disturbances>>(
    first_seed: u64,
    round: impl Fn(usize, u64) -> F,
) {
    let mut all = Disturbances::default();
    for (seed, orders) in (seed::or(first_seed)..).zip(rounds()) {
        for (all, one) in all.iter_mut().zip(Box::pin(round(orders, seed)).await) {
            *all += one;
        }
    }
    assert!(
        all.iter().all(|one| *one > 0),
        "nothing was disturbed: {all:?}"
    );
}

/// Runs the orders from the producer to consumer B. `mode` is that of consumer A.
async fn run<M>(
    mode_name: &str,
    mode: impl FnOnce(Once<DynamoStore>) -> M,
    orders: usize,
    seed: u64,
) -> Disturbances
where
    M: Mode<Done<()>>,
{
    let mut rng = Rng::with_seed(seed);
    let dynamo = Dynamo::start().await;
    for table in [
        RECORDS_OF_A,
        RECORDS_OF_B,
        EFFECTS_OF_A,
        EFFECTS_OF_B,
        GROUPS,
    ] {
        dynamo.create_table(table).await;
    }
    create_outbox(&dynamo.client(), OUTBOX).await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let client = dynamo.worker(Some(Duration::from_secs(1)));
    let once = |table| Once::new(DynamoStore::new(client.clone(), table)).clock(now);
    let a = mode(once(RECORDS_OF_A).outbox(OUTBOX.to_owned()));
    let a = consumer(a, "a", handler_fn(place), "body:/orderId");
    let b = Inbox::new(once(RECORDS_OF_B));
    let b = consumer(b, "b", handler_fn(note), "attribute:idempotencyKey");
    let relay = relay(&sqs);
    let stream = Stream::open(&dynamo.client(), dynamo.endpoint(), OUTBOX).await;
    let mut poller = Poller {
        stream,
        position: 0,
        lost: 0,
        partial: 0,
    };

    let (mut to_a, mut to_b, mut arrived) = (produce(orders, &mut rng), Fifo::default(), 0);
    let mut idle = false;
    while !(idle && to_a.is_empty() && to_b.is_empty()) {
        disturb(&dynamo, &mut rng);
        match rng.u8(..3) {
            0 => deliver(&mut to_a, &a, &mut rng).await,
            1 => {
                sqs.turn_for("SendMessageBatch", behaviour(&mut rng));
                idle = !poller.poll(&relay, &mut rng).await;
            }
            _ => {
                arrived += arrive(&sqs, arrived, &mut to_b);
                deliver(&mut to_b, &b, &mut rng).await;
            }
        }
        idle &= sqs.sent_count() == arrived;
        if rng.u8(..50) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    let events = orders * EVENTS.len();
    let effects = [(EFFECTS_OF_A, orders), (EFFECTS_OF_B, events)];
    verify(&dynamo, orders, &effects).await;
    assert!(sqs.sent_to("dead").is_empty());
    let (lost, partial) = (poller.lost, poller.partial);
    let relayed = format!("{lost} batches without an answer, {partial} sent again in part");
    report(mode_name, orders, (&to_a, &to_b), &relayed, arrived);
    [to_a.lost, lost, to_b.lost, partial]
}

/// Prints what a run did, of which `relayed` is the relay's part. `arrived` messages came to consumer B.
fn report(name: &str, orders: usize, (to_a, to_b): (&Fifo, &Fifo), relayed: &str, arrived: usize) {
    let events = orders * EVENTS.len();
    println!(
        "\n{name}
  producer -> A       {orders} orders in {} messages, {} batches without an answer, each effect once
  A -> outbox         {events} events
  outbox -> relay     {relayed}
  relay -> B          {arrived} messages, {} of them repetitions
  B                   {} batches without an answer, each of {events} effects once, {CUSTOMERS} groups in order",
        to_a.next,
        to_a.lost,
        arrived - events,
        to_b.lost,
    );
    assert!(arrived > events, "no event was sent twice");
}

/// The messages of the producer. Some answers to it are lost, so that it sends the order again.
fn produce(orders: usize, rng: &mut Rng) -> Fifo {
    let mut to_a = Fifo::default();
    for order in 0..orders {
        let customer = format!("c-{}", order % CUSTOMERS);
        let body = json!({ "orderId": format!("o-{order}"), "customerId": customer }).to_string();
        for _ in 0..1 + usize::from(rng.u8(..10) == 0) {
            to_a.push(&customer, &body, &json!({}));
        }
    }
    to_a
}

/// Puts the messages that were sent from position `from` on into the queue of consumer B. Returns their
/// number.
///
/// The FIFO queue's own deduplication ends after five minutes: every message arrives.
fn arrive(sqs: &Sqs, from: usize, to_b: &mut Fifo) -> usize {
    let sent = sqs.sent_since(from, "b.fifo");
    for entry in &sent {
        let id = &entry["MessageAttributes"]["idempotencyKey"]["StringValue"];
        let id = json!({"idempotencyKey": {"stringValue": id, "dataType": "String"}});
        let group = entry["MessageGroupId"].as_str().unwrap();
        to_b.push(group, entry["MessageBody"].as_str().unwrap(), &id);
    }
    sent.len()
}

/// Every item of a table, of all pages.
async fn items(dynamo: &Dynamo, table: &str) -> Vec<Item> {
    let scan = dynamo.client().scan().table_name(table).into_paginator();
    let items: Result<_, _> = scan.items().send().collect().await;
    items.unwrap()
}

/// Asserts the numbers of effects in these tables, each of which occurred once, and the order of the
/// groups at consumer B.
async fn verify(dynamo: &Dynamo, orders: usize, tables: &[(&str, usize)]) {
    for (table, count) in tables {
        let effects = items(dynamo, table).await;
        assert_eq!(effects.len(), *count, "lost in {table}");
        for effect in &effects {
            assert_eq!(number(effect, "n"), 1, "{} in {table}", text(effect, "id"));
        }
    }
    for group in items(dynamo, GROUPS).await {
        let customer: usize = text(&group, "id").trim_start_matches("c-").parse().unwrap();
        let Some(AttributeValue::L(seen)) = group.get("seen") else {
            panic!("{group:?}");
        };
        let seen: Vec<_> = seen
            .iter()
            .map(|event| event.as_s().unwrap().as_str())
            .collect();
        let of_customer = (customer..orders).step_by(CUSTOMERS);
        let expected = of_customer.flat_map(|order| EVENTS.map(|name| format!("o-{order} {name}")));
        assert_eq!(
            seen,
            expected.collect::<Vec<_>>(),
            "order of customer {customer}"
        );
    }
}

#[tokio::test]
async fn claimed_orders_reach_b_once_and_in_order() {
    let name = "consumer A claims, then commits";
    run_rounds(100, |orders, seed| run(name, |once| once, orders, seed)).await;
}

#[tokio::test]
async fn planned_orders_reach_b_once_and_in_order() {
    let name = "consumer A is an inbox";
    run_rounds(200, |orders, seed| run(name, Inbox::new, orders, seed)).await;
}
