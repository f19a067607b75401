//! A payment gateway that honours `Idempotency-Key`, as real gateways do. Of all requests with one
//! key it charges the first that it accepts, and counts them all. Each worker has a URL of its own,
//! so that the ledger knows the sender.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use support::faults::cut;
use tokio::time::{Instant, sleep};

use crate::chaos::{
    ledger::{ChargeEnd, Death, Event, Ledger, Worker},
    plan::{Kind, Seed},
};

pub(crate) struct Gateway {
    url: String,
}

struct GatewayState {
    seed: Seed,
    ledger: Arc<Ledger>,
    /// Until then it answers 503 to every call.
    down_until: Instant,
    /// Requests by key.
    requests: Mutex<HashMap<String, u32>>,
    /// Number of requests of each worker that wait for an answer.
    open: Mutex<HashMap<Worker, usize>>,
}

impl Gateway {
    /// Down for the time of `outage` from now on.
    pub(crate) async fn start(seed: Seed, ledger: Arc<Ledger>, outage: Duration) -> Self {
        let desk = GatewayState {
            seed,
            ledger,
            down_until: Instant::now() + outage,
            requests: Mutex::default(),
            open: Mutex::default(),
        };
        let app = Router::new()
            .route("/{worker}/charges", post(charge))
            .with_state(Arc::new(desk));
        let url = format!("http://{}", support::serve(app).await);
        Self { url }
    }

    pub(crate) fn url_for(&self, worker: Worker) -> String {
        format!("{}/{worker}", self.url)
    }
}

/// Dropped without an end: the caller has hung up.
struct Open<'a> {
    desk: &'a GatewayState,
    worker: Worker,
    charge: usize,
    how: ChargeEnd,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let (charge, how) = (self.charge, self.how);
        self.desk.ledger.note(Event::ChargeEnded { charge, how });
        let mut open = self.desk.open.lock().unwrap();
        *open.entry(self.worker).or_default() -= 1;
    }
}

async fn charge(
    State(desk): State<Arc<GatewayState>>,
    Path(worker): Path<Worker>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let order = body["orderId"].as_str().unwrap().to_owned();
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let nth = {
        let mut requests = desk.requests.lock().unwrap();
        let nth = requests.entry(key.clone()).or_default();
        *nth += 1;
        *nth
    };
    let kind = Kind::of_card(body["paymentToken"].as_str().unwrap());
    let busy = kind == Kind::Busy && nth == 1 || Instant::now() < desk.down_until;
    let work = desk.seed.dice(("gateway", &key, nth)).u64(1..25);
    let charge = desk.ledger.note(Event::Charge {
        order: order.clone(),
        key,
        worker,
        taken: !busy && kind != Kind::Declined,
    });
    let others = {
        let mut open = desk.open.lock().unwrap();
        let open = open.entry(worker).or_default();
        *open += 1;
        *open - 1
    };
    let mut open = Open {
        desk: &desk,
        worker,
        charge,
        how: ChargeEnd::Unanswered,
    };
    sleep(Duration::from_millis(work)).await;
    let death = match kind {
        Kind::Killer => Some(Death::KilledByMessage),
        Kind::Hog if others > 0 => Some(Death::KilledByMessage),
        Kind::Hanging => Some(Death::FrozenUntilTimeout),
        _ => None,
    };
    if let Some(death) = death {
        desk.ledger.note(Event::Doomed { worker, death });
        // Until the caller has hung up.
        std::future::pending::<()>().await;
    }
    match kind {
        Kind::Slow if nth == 1 => {
            // Until the caller hangs up.
            std::future::pending::<()>().await;
        }
        Kind::Cut if nth == 1 => return cut(),
        _ => {}
    }
    open.how = if busy {
        ChargeEnd::Busy
    } else {
        ChargeEnd::Answered
    };
    match kind {
        _ if busy => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Kind::Declined => StatusCode::PAYMENT_REQUIRED.into_response(),
        _ => {
            let receipt = json!({"chargeId": format!("ch_{order}")}).to_string();
            (StatusCode::CREATED, Body::from(receipt)).into_response()
        }
    }
}
