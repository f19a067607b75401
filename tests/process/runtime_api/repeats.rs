//! Measures what a kill repeats: charges whose completion is not in the table when the process ends.
//! `make repeats`.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use support::dynamo::{forward, forwarder, request_name};

use super::*;

const KILLS: u64 = 150;
const BATCH: u32 = 10;
/// Half of the round trip to the table.
const WAY: Duration = Duration::from_micros(2500);

/// A gateway that charges after some time, and answers at once.
#[derive(Clone)]
struct Slow {
    charged: Arc<Mutex<Vec<String>>>,
    spread: bool,
}

async fn charge(State(slow): State<Slow>, body: String) -> String {
    let order: Value = serde_json::from_str(&body).unwrap();
    let id = order["orderId"].as_str().unwrap().to_owned();
    let number: u64 = id.trim_start_matches("o-").parse().unwrap();
    let tenth = if slow.spread { number % 10 + 1 } else { 5 };
    sleep(Duration::from_millis(8 * tenth)).await;
    slow.charged.lock().unwrap().push(id);
    "{}".to_owned()
}

#[derive(Clone)]
struct Table {
    client: reqwest::Client,
    upstream: String,
    sent: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// 2.5 ms to the table, and 2.5 ms back.
async fn ask(
    State(table): State<Table>,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    let name = request_name(&headers, &body);
    *table.sent.lock().unwrap().entry(name).or_default() += 1;
    sleep(WAY).await;
    // A request on the wire arrives also if its client is gone.
    let answer =
        tokio::spawn(async move { forward(&table.client, &table.upstream, headers, body).await });
    let answer = answer.await.unwrap();
    sleep(WAY).await;
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and prints counts"]
async fn charges_repeated_by_a_kill() {
    for spread in [false, true] {
        for grouping in ["off", "on"] {
            let stage = Stage::set().await;
            let charged = Arc::new(Mutex::new(Vec::new()));
            let slow = Slow {
                charged: Arc::clone(&charged),
                spread,
            };
            let gateway = Router::new()
                .route("/charges", post(charge))
                .with_state(slow);
            let gateway = format!("http://{}", support::serve(gateway).await);
            let sent = Arc::new(Mutex::new(BTreeMap::new()));
            let table = Table {
                client: forwarder(),
                upstream: stage.dynamo.endpoint().to_owned(),
                sent: Arc::clone(&sent),
            };
            let table = Router::new().fallback(ask).with_state(table);
            let table = format!("http://{}", support::serve(table).await);
            let settings = [
                ("IDEMPOTENCY_BATCHED_WRITES", grouping),
                ("IDEMPOTENCY_KEY", "body:/orderId"),
                ("CONSUMER_VISIBILITY", "off"),
                ("AWS_ENDPOINT_URL", &table),
                ("PAYMENT_GATEWAY_URL", &gateway),
            ];
            let (mut first, mut repeated) = (1, 0);
            for kill in 0..KILLS {
                let lambda = stage.consumer(&settings).await;
                let kill_at = Duration::from_micros(150_000 + kill * 7919 % 120_000);
                let _killed = timeout(kill_at, async {
                    loop {
                        let numbers = first..=first + BATCH - 1;
                        first += BATCH;
                        lambda.invoke(orders(numbers), TIME).await.response();
                    }
                })
                .await;
                lambda.kill().await;
                // The last requests arrive.
                sleep(10 * WAY).await;
                let orders: HashSet<String> = charged.lock().unwrap().drain(..).collect();
                for order in orders {
                    if stage.status(&order).await != "COMPLETED" {
                        repeated += 1;
                    }
                }
            }
            println!(
                "spread {spread}, grouping {grouping}: {repeated} repeated by {KILLS} kills of {} messages; {:?}",
                first - 1,
                sent.lock().unwrap()
            );
        }
    }
}
