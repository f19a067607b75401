//! A payment gateway that honours `Idempotency-Key`, as real gateways do. Of all requests with one
//! key it charges the first that it accepts, and counts them all. Each worker has its own URL,
//! so that the ledger knows the sender.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
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
    ledger::{ChargeEnd, Death, Event, Ledger, System, Worker},
    plan::{Kind, Seed},
};

pub(crate) struct Gateway {
    url: String,
}

struct GatewayState {
    seed: Seed,
    ledger: Arc<Ledger>,
    down: Mutex<Down>,
    /// Number of calls, some of which begin an outage.
    calls: AtomicUsize,
    /// Requests by key.
    requests: Mutex<HashMap<String, u32>>,
    /// Number of requests of each worker that wait for an answer.
    open: Mutex<HashMap<Worker, usize>>,
}

impl Gateway {
    pub(crate) async fn start(seed: Seed, ledger: Arc<Ledger>) -> Self {
        let desk = GatewayState {
            seed,
            ledger,
            down: Mutex::new(Down::at_least(Duration::ZERO)),
            calls: AtomicUsize::new(0),
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

/// An outage, in which it answers 503 to every call.
struct Down {
    until: Instant,
    /// Ends no earlier than after so many calls, but for the last moment.
    calls: u32,
    at_last: Instant,
}

impl Down {
    fn at_least(time: Duration) -> Self {
        let until = Instant::now() + time;
        Self {
            until,
            calls: 0,
            at_last: until,
        }
    }

    fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.at_last || now >= self.until && self.calls == 0
    }
}

/// The calls that begin an outage: the 60th, and then one of so many.
const BETWEEN_OUTAGES: usize = 4000;

/// Shortest and longest time of an outage.
const OUTAGE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));

/// Calls that an outage fails. Twenty failures in a row open the circuit of a worker.
const FAILED: u32 = 100;

impl GatewayState {
    /// Counts a call, with which an outage may begin. Returns whether the gateway is down.
    fn call_while_down(&self) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut down = self.down.lock().unwrap();
        if calls % BETWEEN_OUTAGES == 60 {
            let (shortest, longest) = OUTAGE;
            *down = Down {
                calls: FAILED,
                at_last: Instant::now() + longest,
                ..Down::at_least(shortest)
            };
            let (of, begins) = (System::Gateway, true);
            self.ledger.note(Event::Outage { of, begins });
        }
        let is_down = !down.is_over();
        down.calls = down.calls.saturating_sub(u32::from(is_down));
        is_down
    }
}

/// Dropped without an end: the caller has hung up.
struct Open<'a> {
    desk: &'a GatewayState,
    worker: Worker,
    how: ChargeEnd,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let how = self.how;
        self.desk.ledger.note(Event::ChargeEnded { how });
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
    let key = (desk.ledger).key_of(headers["idempotency-key"].to_str().unwrap());
    let nth = {
        let mut requests = desk.requests.lock().unwrap();
        let nth = requests.entry(key.clone()).or_default();
        *nth += 1;
        *nth
    };
    let kind = Kind::of_card(body["paymentToken"].as_str().unwrap());
    let down = desk.call_while_down();
    let busy = down || kind == Kind::Busy && nth == 1;
    let declined = kind == Kind::Declined || kind == Kind::Unfunded && nth == 1;
    let work = desk.seed.dice(("gateway", &key, nth)).u64(1..25);
    desk.ledger.note(Event::Charge {
        order: order.clone(),
        key,
        worker,
        taken: !busy && !declined,
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
    if busy {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    if declined {
        return StatusCode::PAYMENT_REQUIRED.into_response();
    }
    let receipt = json!({"chargeId": format!("ch_{order}")}).to_string();
    (StatusCode::CREATED, Body::from(receipt)).into_response()
}
