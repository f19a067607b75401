//! From orders to sent events in PostgreSQL: a consumer that publishes two events for each order, and the scheduled relay,
//! with kills, lost answers and cut connections on every hop. The simulation has the same for DynamoDB.

use std::{
    collections::{BTreeSet, VecDeque},
    env,
    future::poll_fn,
    pin::pin,
    task::Poll,
    time::Duration,
};

use aws_config::retry::RetryConfig;
use fastrand::Rng;
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::{PgPool, postgres::PgPoolOptions};
use sqs_once::{
    Attempt, Consumer, Deadline, Event, Failure, Handler, Mode, handler_fn,
    protocol::{Namespace, Timestamp},
};
use sqs_once_outbox::{PostgresRelay, Relay};
use sqs_once_postgres::{InTransaction, PostgresMode, PostgresStore, Transaction};
use support::{
    event::{batch, failed, in_group, record},
    postgres::SERVER,
    postgres_wire::{Cut, Wire},
    seed,
    sqs::{Sqs, SqsBehaviour},
};

/// Customers, whose orders are groups.
const CUSTOMERS: usize = 20;
/// Events of one order.
const EVENTS: [&str; 2] = ["placed", "reserved"];
/// Timeout of the consumer and of the relay.
const TIME: Duration = Duration::from_secs(5);
const TARGET: &str = "https://sqs.example/1/shipping.fifo";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    order_id: usize,
}

/// Counts the effect, and publishes the events of an order.
async fn place(Order { order_id }: Order, attempt: Attempt) -> Result<InTransaction<()>, Failure> {
    let mut tx = Transaction::of(&attempt)?;
    let count =
        "INSERT INTO effects VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET n = effects.n + 1";
    let count = sqlx::query(count).bind(order_id.to_string());
    count.execute(&mut *tx).await?;
    let customer = format!("c-{}", order_id % CUSTOMERS);
    Ok(EVENTS.iter().fold(tx.done(()), |done, name| {
        let event = Event::new(*name, &format!("{order_id} {name}"));
        done.publish(event.group(&customer))
    }))
}

/// Drops a worker after some steps, one of five times. Counted, and not timed, so that a busy machine kills at the same
/// places.
async fn until_killed<F: Future>(rng: &mut Rng, worker: F) -> Option<F::Output> {
    let (is_killed, steps) = (rng.u8(..5) == 0, rng.u32(..16));
    let (mut worker, mut left) = (pin!(worker), is_killed.then_some(steps));
    poll_fn(|cx| {
        if left == Some(0) {
            return Poll::Ready(None);
        }
        left = left.map(|left| left - 1);
        worker.as_mut().poll(cx).map(Some)
    })
    .await
}

/// A FIFO queue: the orders of each customer that are not acknowledged.
struct Queue(Vec<VecDeque<usize>>);

impl Queue {
    /// Delivers up to four messages, in the order of their groups. Returns whether a response came.
    async fn deliver<M: Mode<H::Output>, H: Handler>(
        &mut self,
        consumer: &Consumer<M, H>,
        rng: &mut Rng,
    ) -> bool {
        let mut groups: Vec<_> = self.0.iter().collect();
        rng.shuffle(&mut groups);
        let orders = groups.into_iter().flat_map(|group| group.iter().take(2));
        let orders: Vec<_> = orders.take(4).copied().collect();
        let message = |order: &usize| {
            let body = json!({ "orderId": order }).to_string();
            let group = format!("c-{}", order % CUSTOMERS);
            in_group(record(&format!("m-{order}"), &body), &group)
        };
        let event = serde_json::from_value(batch(orders.iter().map(message).collect::<Vec<_>>()));
        let deadline = consumer.deadline(Timestamp::now() + TIME);
        let run = consumer.process(event.unwrap(), deadline);
        let Some(Ok(response)) = until_killed(rng, run).await else {
            return false;
        };
        if rng.u8(..10) == 0 {
            return false;
        }
        let failed = failed(&serde_json::to_value(response).unwrap());
        for order in orders {
            if !failed.contains(&format!("m-{order}")) {
                self.0[order % CUSTOMERS].retain(|left| *left != order);
            }
        }
        true
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }
}

/// The database, and workers behind wires that are cut.
struct Database {
    /// Connections that no fault meets.
    pool: PgPool,
    wires: [Wire; 2],
    pools: [PgPool; 2],
}

impl Database {
    async fn start() -> Self {
        let options = SERVER.schema().await;
        let pool = PgPoolOptions::new().connect_lazy_with(options.clone());
        sqs_once_postgres::migrate(&pool).await.unwrap();
        let effects = "CREATE TABLE effects (id text PRIMARY KEY, n bigint NOT NULL)";
        sqlx::query(effects).execute(&pool).await.unwrap();
        let server = ([127, 0, 0, 1], SERVER.options().get_port()).into();
        let wires = [Wire::to(server).await, Wire::to(server).await];
        let behind =
            |wire: &Wire| support::postgres::pool(options.clone().port(wire.address.port()), 10);
        let pools = [behind(&wires[0]), behind(&wires[1])];
        Self { pool, wires, pools }
    }

    /// Cuts one of the next requests, and makes failed groups due, as time does.
    async fn disturb(&self, rng: &mut Rng) {
        for wire in &self.wires {
            if rng.u8(..3) == 0 {
                let cut = if rng.bool() { Cut::Before } else { Cut::After };
                wire.cut(rng.usize(..40), cut);
            }
        }
        let due = "UPDATE sqs_once_outbox SET next_attempt_at = 0 WHERE next_attempt_at > 0";
        sqlx::query(due).execute(&self.pool).await.unwrap();
    }

    async fn number(&self, sql: &'static str) -> usize {
        let number: i64 = sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap();
        number.try_into().unwrap()
    }
}

/// A relay with the retries of `sqs_once::aws::config`.
fn relay(sqs: &Sqs) -> Relay {
    let retries = RetryConfig::standard()
        .with_max_attempts(3)
        .with_initial_backoff(Duration::from_millis(50))
        .with_max_backoff(Duration::from_millis(500));
    let config = support::sdk_config(sqs.endpoint()).to_builder();
    let config = config.retry_config(retries).build();
    let targets = format!("*={TARGET}").parse().unwrap();
    Relay::new(&config, targets, "https://sqs.example/1/dead").unwrap()
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

#[tokio::test]
async fn scheduled_events_are_sent_in_order() {
    let orders = env::var("OUTBOX_ORDERS").map_or(300, |orders| orders.parse().unwrap());
    let mut rng = Rng::with_seed(seed::or(300));
    let database = Database::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let [of_consumer, of_relay] = database.pools.clone();
    let (mode, namespace) = (PostgresMode::new(of_consumer), Namespace::new("orders"));
    let consumer = Consumer::without_aws(mode, namespace.unwrap(), handler_fn(place))
        .key("body:/orderId".parse().unwrap())
        .metrics(None);
    let relay = PostgresRelay::new(relay(&sqs), PostgresStore::new(of_relay));
    let of = |customer| (customer..orders).step_by(CUSTOMERS);
    let mut queue = Queue(
        (0..CUSTOMERS)
            .map(|customer| of(customer).collect())
            .collect(),
    );

    // Batches and invocations of the relay without an answer, without the database, and with events that failed.
    let (mut lost, mut killed, mut failed, mut partial) = (0, 0, 0, 0);
    let waiting = "SELECT count(*) FROM sqs_once_outbox";
    while !queue.is_empty() || database.number(waiting).await > 0 {
        database.disturb(&mut rng).await;
        if rng.bool() && !queue.is_empty() {
            lost += usize::from(!queue.deliver(&consumer, &mut rng).await);
            continue;
        }
        sqs.turn_for("SendMessageBatch", behaviour(&mut rng));
        let deadline = Deadline::after(Timestamp::now(), TIME, TIME / 10);
        match until_killed(&mut rng, relay.send_due(deadline)).await {
            None => killed += 1,
            Some(Err(_)) => failed += 1,
            Some(Ok(relayed)) => partial += usize::from(relayed.failed > 0),
        }
    }

    let effects = "SELECT count(*) FROM effects WHERE n = 1";
    assert_eq!(database.number(effects).await, orders, "effects");
    let mut ids = BTreeSet::new();
    let mut groups = vec![Vec::new(); CUSTOMERS];
    let sent = sqs.each_sent_to(TARGET);
    for event in &sent {
        let id = &event["MessageAttributes"]["idempotencyKey"]["StringValue"];
        if ids.insert(id.to_string()) {
            let group = event["MessageGroupId"].as_str().unwrap();
            let customer: usize = group.trim_start_matches("c-").parse().unwrap();
            groups[customer].push(event["MessageBody"].clone());
        }
    }
    for (customer, sent) in groups.into_iter().enumerate() {
        let of_order = |order| EVENTS.map(|name| json!(format!("\"{order} {name}\"")));
        let expected: Vec<Value> = of(customer).flat_map(of_order).collect();
        assert_eq!(sent, expected, "customer {customer}");
    }
    assert!(sqs.sent_to("dead").is_empty());
    let (repeated, disturbed) = (sent.len() - ids.len(), [lost, killed, failed, partial]);
    println!("{orders} orders, {repeated} events sent again, disturbed: {disturbed:?}");
    assert!(disturbed.iter().all(|times| *times > 0), "{disturbed:?}");
    assert!(repeated > 0, "no event was sent twice");
}
