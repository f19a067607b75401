//! Both candidates under load.

use std::{
    num::NonZeroUsize,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use aws_lambda_events::event::sqs::SqsEvent;
use serde::Deserialize;
use serde_json::json;
use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, handler_fn,
    protocol::{Namespace, Timestamp},
};
use sqs_once_postgres::{InTransaction, PostgresMode, Transaction};
use support::postgres::pool;
use support::{
    event::{batch, record},
    postgres_wire::Cut,
    world::{World, increment},
};

use super::{Figure, plain_loop};

/// Batches before the first that counts.
const WARM_UP: usize = 5;

#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) connections: u32,
    /// Time of a run.
    pub(crate) time: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Candidate {
    PlainLoop,
    Consumer,
}

impl Candidate {
    pub(crate) const ALL: [Self; 2] = [Self::PlainLoop, Self::Consumer];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PlainLoop => "plain loop",
            Self::Consumer => "consumer",
        }
    }

    /// Messages a second.
    pub(crate) async fn rate(self, options: &PgConnectOptions, load: Load) -> f64 {
        match self {
            Self::PlainLoop => {
                let pool = plain_loop::pool(options, load.connections);
                let rate = load
                    .rate(async |event| plain_loop::process(&pool, event).await)
                    .await;
                pool.close().await;
                rate
            }
            Self::Consumer => {
                let pool = pool(options.clone(), load.connections);
                let consumer = consumer(PostgresMode::new(pool.clone()), load.connections);
                let rate = load
                    .rate(async |event| process(&consumer, event).await)
                    .await;
                pool.close().await;
                rate
            }
        }
    }
}

impl Load {
    async fn rate(self, process: impl AsyncFn(SqsEvent)) -> f64 {
        for _ in 0..WARM_UP {
            process(event(self.messages)).await;
        }
        let (mut batches, mut busy) = (0, Duration::ZERO);
        while busy < self.time {
            let event = event(self.messages);
            let start = Instant::now();
            process(event).await;
            busy += start.elapsed();
            batches += 1;
        }
        (batches * self.messages) as f64 / busy.as_secs_f64()
    }
}

/// A batch of new messages.
fn event(messages: usize) -> SqsEvent {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let message = |_| {
        let id = NEXT.fetch_add(1, Relaxed);
        record(
            &format!("m-{id}"),
            &json!({ "orderId": format!("o-{id}") }).to_string(),
        )
    };
    serde_json::from_value(batch((0..messages).map(message))).unwrap()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    order_id: String,
}

async fn place(order: Order, attempt: Attempt) -> Result<InTransaction<()>, Failure> {
    let mut tx = Transaction::of(&attempt)?;
    increment(&mut tx, &order.order_id).await?;
    Ok(tx.done(()))
}

fn consumer(
    mode: PostgresMode,
    at_once: u32,
) -> Consumer<PostgresMode, impl Handler<Output = InTransaction<()>>> {
    let namespace = Namespace::new("bench").unwrap();
    Consumer::without_aws(mode, namespace, handler_fn(place))
        .concurrency(NonZeroUsize::new(at_once as usize).unwrap())
        .metrics(None)
}

async fn process(
    consumer: &Consumer<PostgresMode, impl Handler<Output = InTransaction<()>>>,
    event: SqsEvent,
) {
    let deadline = Deadline::after(
        Timestamp::now(),
        Duration::from_secs(60),
        Duration::from_secs(1),
    );
    let response = consumer.process(event, deadline).await.unwrap();
    assert!(response.batch_item_failures.is_empty());
}

/// Time of a request without work.
pub(crate) async fn round_trip(options: &PgConnectOptions) -> Duration {
    const PINGS: u32 = 100;
    let mut connection = PgConnection::connect_with(options).await.unwrap();
    let start = Instant::now();
    for _ in 0..PINGS {
        connection.ping().await.unwrap();
    }
    start.elapsed() / PINGS
}

/// Requests of a message on a used connection.
pub(crate) async fn round_trips(world: &World) -> Figure {
    let (mode, _pool, wire) = world.worker_behind_wire().await;
    let consumer = consumer(mode, 1);
    process(&consumer, event(1)).await;
    // A fault that no request meets: the wire begins to record.
    wire.cut(usize::MAX, Cut::Before);
    process(&consumer, event(1)).await;
    let requests = wire.take().len();
    ("round trips of a message".to_owned(), requests as f64)
}
