//! Relay between the workers and DynamoDB: cuts, delays and refuses writes, lets connections die, and
//! notes the writes that the table applied.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, State},
    http::{HeaderMap, Response, StatusCode, Uri},
    serve::ListenerExt as _,
};
use serde_json::json;
use support::{
    dynamo::{forward, forwarder, request_name},
    faults::{cut, error},
};
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};

use crate::chaos::{
    expiry::delete_expired,
    groups,
    ledger::{Event, Ledger, System, Worker},
    plan::Seed,
    write::{Attributes, Write},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The connection ends before the table gets the request.
    CutBefore,
    /// The connection ends after the table has responded.
    CutAfter,
    /// The request arrives late, even if its sender has given up.
    Slow,
    Throttled,
    ServerError,
    /// The table is down for all.
    Outage,
}

pub(crate) struct Relay {
    url: String,
    wire: Arc<Wire>,
}

/// The writes that begin an outage: the 400th, and then one of so many.
const BETWEEN_OUTAGES: usize = 6000;

/// Longer than a batch repeats a request.
const OUTAGE: Duration = Duration::from_millis(1500);

pub(super) struct Wire {
    seed: Seed,
    pub(super) ledger: Arc<Ledger>,
    upstream: String,
    forwarder: reqwest::Client,
    rows: Mutex<HashMap<String, Row>>,
    /// Records that the table will delete, with the end of their time to live in seconds.
    due: Mutex<BTreeSet<(u64, String)>>,
    outage: Mutex<Outage>,
    /// True for a dead connection, by its worker and its other end.
    connections: Mutex<HashMap<(Worker, SocketAddr), bool>>,
}

#[derive(Default)]
struct Outage {
    writes: usize,
    until: Option<Instant>,
}

#[derive(Default)]
struct Row {
    writes: u32,
    /// Held from a write's departure until it is noted, so that the ledger has the table's order.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// End of the record's time to live, in seconds.
    expires_at: Option<u64>,
    /// The record as the swaps made it. What they remove stays here.
    record: Attributes,
}

impl Relay {
    pub(crate) async fn start(seed: Seed, ledger: Arc<Ledger>, upstream: &str) -> Self {
        let wire = Wire {
            seed,
            ledger,
            upstream: upstream.to_owned(),
            forwarder: forwarder(),
            rows: Mutex::default(),
            due: Mutex::default(),
            outage: Mutex::default(),
            connections: Mutex::default(),
        };
        let wire = Arc::new(wire);
        let app = Router::new().fallback(relay).with_state(wire.clone());
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, wire }
    }

    /// Lets the connections of a worker die: nobody answers on them, and nobody closes them.
    pub(crate) fn disconnect(&self, worker: Worker) {
        let mut connections = self.wire.connections.lock().unwrap();
        for ((of, _), is_dead) in connections.iter_mut() {
            *is_dead |= *of == worker;
        }
    }

    /// Deletes records after their time to live.
    pub(crate) fn delete_expired(&self, client: aws_sdk_dynamodb::Client) {
        let wire = Arc::downgrade(&self.wire);
        tokio::spawn(delete_expired(wire, client));
    }

    pub(crate) fn url_for(&self, worker: Worker) -> String {
        format!("{}/{worker}", self.url)
    }
}

async fn relay(
    State(wire): State<Arc<Wire>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let worker = uri.path().split('/').nth(1).unwrap().parse().unwrap();
    if wire.is_dead(peer, worker) {
        // Until the caller has hung up.
        std::future::pending::<()>().await;
    }
    let writes = Write::all_of(&headers, &body);
    let down = wire
        .is_down(writes.len())
        .then_some((Fault::Outage, Duration::ZERO));
    let fault = down.or_else(|| writes.iter().find_map(|write| wire.roll(&write.key)));
    if let Some((fault, _)) = fault {
        for _ in &writes {
            wire.ledger.note(Event::Faulted { fault });
        }
    }
    let delay = match fault {
        Some((Fault::CutBefore, _)) => return cut(),
        Some((Fault::Throttled, _)) => {
            let name = "ProvisionedThroughputExceededException";
            return rejection(StatusCode::BAD_REQUEST, name);
        }
        Some((Fault::ServerError | Fault::Outage, _)) => {
            return rejection(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError");
        }
        Some((Fault::Slow, delay)) => delay,
        Some((Fault::CutAfter, _)) | None => Duration::ZERO,
    };
    // Spawned, because a sender that hangs up or is killed does not cancel the request.
    let sent = tokio::spawn(async move {
        if !delay.is_zero() {
            sleep(delay).await;
        }
        wire.forward(headers, body, writes).await
    });
    let answer = sent.await.unwrap();
    match fault {
        Some((Fault::CutAfter, _)) => cut(),
        _ => answer,
    }
}

fn rejection(status: StatusCode, name: &str) -> Response<Body> {
    let kind = format!("com.amazonaws.dynamodb.v20120810#{name}");
    error(status, &json!({"__type": kind, "message": "chaos"}))
}

impl Wire {
    /// True if the worker's connection has died. Its first request makes it known.
    fn is_dead(&self, peer: SocketAddr, worker: Worker) -> bool {
        let mut connections = self.connections.lock().unwrap();
        *connections.entry((worker, peer)).or_default()
    }

    /// Counts the writes of a request, with which an outage may begin.
    fn is_down(&self, writes: usize) -> bool {
        if writes == 0 {
            return false;
        }
        let mut outage = self.outage.lock().unwrap();
        let nth = |writes: usize| (writes + BETWEEN_OUTAGES - 400) / BETWEEN_OUTAGES;
        let (before, now) = (outage.writes, Instant::now());
        outage.writes += writes;
        let was_down = outage.until.is_some();
        if nth(outage.writes) > nth(before) {
            outage.until = Some(now + OUTAGE);
        }
        outage.until = outage.until.filter(|until| now < *until);
        let is_down = outage.until.is_some();
        if is_down != was_down {
            let (of, begins) = (System::Table, is_down);
            self.ledger.note(Event::Outage { of, begins });
        }
        is_down
    }

    /// Tells the row of its record's time to live, and plans the deletion of every second record. DynamoDB
    /// deletes within days.
    pub(super) fn lives_until(&self, key: &str, expires_at: Option<u64>) {
        let mut rows = self.rows.lock().unwrap();
        rows.entry(key.to_owned()).or_default().expires_at = expires_at;
        let deleted = self.seed.dice(("time to live", key)).bool();
        if let Some(end) = expires_at.filter(|_| deleted) {
            self.due.lock().unwrap().insert((end, key.to_owned()));
        }
    }

    /// Records that are planned to be deleted by now.
    pub(super) fn over(&self, now: u64) -> Vec<String> {
        let mut due = self.due.lock().unwrap();
        let later = due.split_off(&(now, String::new()));
        let over = std::mem::replace(&mut *due, later);
        over.into_iter().map(|(_, key)| key).collect()
    }

    pub(super) fn row(&self, key: &str) -> (Arc<tokio::sync::Mutex<()>>, Option<u64>) {
        let mut rows = self.rows.lock().unwrap();
        let row = rows.entry(key.to_owned()).or_default();
        (row.turn.clone(), row.expires_at)
    }

    /// The record of this key.
    fn record(&self, key: &str) -> Attributes {
        let rows = self.rows.lock().unwrap();
        rows.get(key)
            .map(|row| row.record.clone())
            .unwrap_or_default()
    }

    fn swapped(&self, key: &str, record: Attributes) {
        let mut rows = self.rows.lock().unwrap();
        rows.entry(key.to_owned()).or_default().record = record;
    }

    /// Fault of the next write to `key`, if one is planned, and the delay of a slow write.
    fn roll(&self, key: &str) -> Option<(Fault, Duration)> {
        let nth = {
            let mut rows = self.rows.lock().unwrap();
            let row = rows.entry(key.to_owned()).or_default();
            row.writes += 1;
            row.writes
        };
        // An outage of eight writes outlasts the SDK's four attempts, before or after the charge.
        let mut dice = self.seed.dice(("outage", key));
        let (outage, from) = (dice.u32(..100) < 3, dice.u32(1..4));
        let in_outage = outage && (from..from + 8).contains(&nth);
        let mut dice = self.seed.dice(("write", key, nth));
        if !in_outage && dice.u32(..100) >= 6 {
            return None;
        }
        let fault = match dice.u32(..5) {
            0 => Fault::CutBefore,
            1 => Fault::CutAfter,
            2 => Fault::Slow,
            3 => Fault::Throttled,
            _ => Fault::ServerError,
        };
        // The SDK waits for one second.
        Some((fault, Duration::from_millis(dice.u64(50..1300))))
    }

    async fn forward(&self, headers: HeaderMap, body: Bytes, writes: Vec<Write>) -> Response<Body> {
        // Sorted, so that two groups do not wait for each other.
        let mut keys: Vec<_> = writes.iter().map(|write| write.key.clone()).collect();
        keys.sort();
        let mut turns = Vec::new();
        for key in keys {
            turns.push(self.row(&key).0.lock_owned().await);
        }
        let in_group = request_name(&headers, &body).ends_with("Group");
        let answer = forward(&self.forwarder, &self.upstream, headers, body).await;
        if !answer.status().is_success() {
            return answer;
        }
        let (answer, applied) = match in_group {
            true => groups::applied(answer).await,
            false => (answer, vec![true; writes.len()]),
        };
        for (write, applied) in writes.iter().zip(applied) {
            if applied {
                let (_, expired) = self.row(&write.key);
                let before = self.record(&write.key);
                if let Some(generation) = write.generation(&before) {
                    self.ledger.will_call(&write.key, generation);
                }
                if let Some(claimed) = write.claimed(expired, &before) {
                    self.ledger.note(claimed);
                }
                self.swapped(&write.key, write.record(&before));
                if let Some(expires_at) = write.expires_at() {
                    self.lives_until(&write.key, Some(expires_at));
                }
            }
        }
        answer
    }
}
