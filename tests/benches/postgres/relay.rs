//! Events a second of the scheduled relay, and the time from a commit to the target.

use std::time::{Duration, Instant};

use serde_json::json;
use sqs_once::{Deadline, protocol::Timestamp};
use sqs_once_outbox::{PostgresRelay, Relay};
use sqs_once_postgres::PostgresStore;
use support::postgres::pool;

use support::{
    sqs::{Sqs, SqsBehaviour},
    world::World,
};

use super::{Figure, median};

const EVENTS: usize = 5000;
/// Single events whose time to the target is measured.
const SINGLE: usize = 100;

pub(crate) async fn measure(world: &World) -> Vec<Figure> {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let targets = "*=https://sqs.example/1/shipping.fifo".parse().unwrap();
    let dead = "https://sqs.example/1/dead";
    let sender = Relay::new(&support::sdk_config(sqs.endpoint()), targets, dead).unwrap();
    let relay = PostgresRelay::new(sender, PostgresStore::new(pool(world.options.clone(), 1)));

    publish(world, 10, 10).await;
    send(&relay, 10).await;
    let mut figures = Vec::new();
    for groups in [1, 100] {
        publish(world, EVENTS, groups).await;
        let time = send(&relay, EVENTS).await;
        let figure = format!("relay, events a second, message groups {groups}");
        figures.push((figure, EVENTS as f64 / time.as_secs_f64()));
    }
    let mut single = Vec::new();
    for _ in 0..SINGLE {
        publish(world, 1, 1).await;
        single.push(send(&relay, 1).await.as_secs_f64() * 1e3);
    }
    let to_target = "relay, from its start to the target, one event, ms".to_owned();
    figures.push((to_target, median(single)));
    figures
}

/// Inserts committed events.
async fn publish(world: &World, events: usize, groups: usize) {
    let body = json!({ "orderId": "o-1" }).to_string();
    let insert = "INSERT INTO sqs_once_outbox (id, group_id, name, body, published_at) \
        SELECT gen_random_uuid()::text, 'g-' || n % $2, 'placed', $3, $4 FROM generate_series(1, $1) AS n";
    let now = i64::try_from(Timestamp::now().as_millis()).unwrap();
    let (events, groups) = (events as i64, groups as i64);
    let insert = sqlx::query(insert)
        .bind(events)
        .bind(groups)
        .bind(body)
        .bind(now);
    insert.execute(&world.pool).await.unwrap();
}

/// Sends all events. Returns the time.
async fn send(relay: &PostgresRelay, events: usize) -> Duration {
    let minute = Duration::from_secs(60);
    let deadline = Deadline::after(Timestamp::now(), minute, minute / 4);
    let start = Instant::now();
    let relayed = relay.send_due(deadline).await.unwrap();
    assert_eq!(relayed.sent, events as u64);
    start.elapsed()
}
