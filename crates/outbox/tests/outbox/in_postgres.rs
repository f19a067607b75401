//! Consumer A and its outbox in PostgreSQL. Consumer B stays in DynamoDB.

use fastrand::Rng;
use sqlx::{PgPool, postgres::PgPoolOptions};
use sqs_once::{
    Attempt, Deadline, Event, Failure, Inbox, Once, handler_fn, protocol::Timestamp,
    store::DynamoStore,
};
use sqs_once_outbox::PostgresRelay;
use sqs_once_postgres::{InTransaction, PostgresMode, PostgresStore, Transaction};
use tokio::time::Duration;

use super::{
    Disturbances, EFFECTS_OF_B, EVENTS, Fifo, GROUPS, Order, RECORDS_OF_B, TIME, arrive, behaviour,
    consumer, deliver, disturb, kill, note, now, produce, relay, report, run_rounds, until, verify,
};
use support::{
    dynamo::Dynamo,
    postgres::{SERVER, Server},
    postgres_wire::{Cut, Wire},
    sqs::{Sqs, SqsBehaviour},
};

/// Counts the effect, and publishes the events of an order.
async fn place(order: Order, attempt: Attempt) -> Result<InTransaction<()>, Failure> {
    let mut tx = Transaction::of(&attempt)?;
    let count =
        "INSERT INTO effects VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET n = effects.n + 1";
    let count = sqlx::query(count).bind(&order.order_id);
    count.execute(&mut *tx).await?;
    Ok(EVENTS.iter().fold(tx.done(()), |done, name| {
        let body = serde_json::json!({
            "orderId": order.order_id, "customerId": order.customer_id, "name": name
        });
        done.publish(Event::new(*name, &body).group(&order.customer_id))
    }))
}

/// The database, and workers behind wires that are cut.
struct Database {
    /// Connections that no fault meets.
    pool: PgPool,
    wires: [Wire; 2],
    pools: [PgPool; 2],
}

impl Database {
    async fn start(server: &Server) -> Self {
        let options = server.schema().await;
        let pool = PgPoolOptions::new().connect_lazy_with(options.clone());
        sqs_once_postgres::migrate(&pool).await.unwrap();
        let effects = "CREATE TABLE effects (id text PRIMARY KEY, n bigint NOT NULL)";
        sqlx::query(effects).execute(&pool).await.unwrap();
        let server = ([127, 0, 0, 1], server.options().get_port()).into();
        let wires = [Wire::to(server).await, Wire::to(server).await];
        let behind =
            |wire: &Wire| support::postgres::pool(options.clone().port(wire.address.port()), 10);
        let pools = [behind(&wires[0]), behind(&wires[1])];
        Self { pool, wires, pools }
    }

    /// Cuts one of the next requests.
    fn disturb(&self, rng: &mut Rng) {
        for wire in &self.wires {
            if rng.u8(..3) == 0 {
                let cut = if rng.bool() { Cut::Before } else { Cut::After };
                wire.cut(rng.usize(..40), cut);
            }
        }
    }

    /// Makes failed groups due, as time does.
    async fn wait_for_next_attempt(&self) {
        let due = "UPDATE sqs_once_outbox SET next_attempt_at = 0 WHERE next_attempt_at > 0";
        sqlx::query(due).execute(&self.pool).await.unwrap();
    }

    async fn number(&self, sql: &'static str) -> usize {
        let number: i64 = sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap();
        number.try_into().unwrap()
    }
}

/// Numbers of invocations of the scheduled relay.
#[derive(Default)]
struct Schedule {
    killed: usize,
    failed: usize,
    partial: usize,
}

impl Schedule {
    async fn invoke(&mut self, relay: &PostgresRelay, rng: &mut Rng) {
        let deadline = Deadline::after(Timestamp::now(), TIME, TIME / 10);
        let run = relay.send_due(deadline);
        match until(kill(rng), run).await {
            None => self.killed += 1,
            Some(Err(_)) => self.failed += 1,
            Some(Ok(relayed)) => self.partial += usize::from(relayed.failed > 0),
        }
    }
}

async fn run(name: &str, server: &Server, orders: usize, seed: u64) -> Disturbances {
    let mut rng = Rng::with_seed(seed);
    let (database, dynamo) = (Database::start(server).await, Dynamo::start().await);
    for table in [RECORDS_OF_B, EFFECTS_OF_B, GROUPS] {
        dynamo.create_table(table).await;
    }
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let [pool_of_a, pool_of_relay] = database.pools.clone();
    let a = PostgresMode::new(pool_of_a).clock(now);
    let a = consumer(a, "a", handler_fn(place), "body:/orderId");
    let client = dynamo.worker(Some(Duration::from_secs(1)));
    let b = Once::new(DynamoStore::new(client, RECORDS_OF_B)).clock(now);
    let b = consumer(
        Inbox::new(b),
        "b",
        handler_fn(note),
        "attribute:idempotencyKey",
    );
    let scheduled = PostgresRelay::new(relay(&sqs), PostgresStore::new(pool_of_relay));
    let (mut to_a, mut to_b, mut arrived) = (produce(orders, &mut rng), Fifo::default(), 0);
    let mut schedule = Schedule::default();

    let mut waiting = true;
    while waiting || !to_a.is_empty() || !to_b.is_empty() {
        disturb(&dynamo, &mut rng);
        database.disturb(&mut rng);
        sqs.turn_for("SendMessageBatch", behaviour(&mut rng));
        match rng.u8(..3) {
            0 => deliver(&mut to_a, &a, &mut rng).await,
            1 => {
                database.wait_for_next_attempt().await;
                schedule.invoke(&scheduled, &mut rng).await;
            }
            _ => {
                arrived += arrive(&sqs, arrived, &mut to_b);
                deliver(&mut to_b, &b, &mut rng).await;
            }
        }
        waiting = database
            .number("SELECT count(*) FROM sqs_once_outbox")
            .await
            > 0
            || sqs.sent_count() > arrived;
    }

    let events = orders * EVENTS.len();
    verify(&dynamo, orders, &[(EFFECTS_OF_B, events)]).await;
    let of_a = "SELECT count(*) FROM effects WHERE n = 1";
    assert_eq!(database.number(of_a).await, orders, "effects of A");
    assert_eq!(
        database.number("SELECT count(*) FROM effects").await,
        orders
    );
    assert!(sqs.sent_to("dead").is_empty());
    let Schedule {
        killed,
        failed,
        partial,
    } = schedule;
    let relayed = format!(
        "{killed} invocations killed, {failed} without the database, {partial} sent again in part"
    );
    report(name, orders, (&to_a, &to_b), &relayed, arrived);
    [to_a.lost, to_b.lost, killed, failed]
}

#[tokio::test]
async fn scheduled_events_reach_b_once_and_in_order() {
    let server = &*SERVER;
    let name = "consumer A is in PostgreSQL";
    run_rounds(300, |orders, seed| run(name, server, orders, seed)).await;
}
