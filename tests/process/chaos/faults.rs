//! Relay between the workers and DynamoDB: cuts, delays and refuses writes, and notes the writes
//! that the table applied.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Response, StatusCode, Uri},
};
use serde_json::{Value, json};
use support::{
    dynamo::{forward, forwarder, request_name},
    faults::{cut, error},
};
use tokio::time::sleep;

use crate::chaos::{
    groups,
    ledger::{Event, Ledger, Settled, Worker},
    plan::Seed,
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
}

pub(crate) struct Relay {
    url: String,
}

struct Wire {
    faults: bool,
    seed: Seed,
    ledger: Arc<Ledger>,
    upstream: String,
    forwarder: reqwest::Client,
    rows: Mutex<HashMap<String, Row>>,
}

#[derive(Default)]
struct Row {
    writes: u32,
    /// Held from a write's departure until it is noted, so that the ledger has the table's order.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A write request, as far as this relay reads it.
struct Write {
    worker: Worker,
    key: String,
    operation: String,
    body: Value,
}

impl Relay {
    /// `faults` says whether there are any.
    pub(crate) async fn start(
        seed: Seed,
        ledger: Arc<Ledger>,
        upstream: &str,
        faults: bool,
    ) -> Self {
        let wire = Wire {
            faults,
            seed,
            ledger,
            upstream: upstream.to_owned(),
            forwarder: forwarder(),
            rows: Mutex::default(),
        };
        let app = Router::new().fallback(relay).with_state(Arc::new(wire));
        let url = format!("http://{}", support::serve(app).await);
        Self { url }
    }

    pub(crate) fn url_for(&self, worker: Worker) -> String {
        format!("{}/{worker}", self.url)
    }
}

async fn relay(
    State(wire): State<Arc<Wire>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let worker = uri.path().split('/').nth(1).unwrap().parse().unwrap();
    let writes = Write::all_of(worker, &headers, &body);
    let fault = writes.iter().find_map(|write| wire.roll(&write.key));
    if let Some((fault, _)) = fault {
        for write in &writes {
            let key = write.key.clone();
            wire.ledger.note(Event::Faulted { key, worker, fault });
        }
    }
    let delay = match fault {
        Some((Fault::CutBefore, _)) => return cut(),
        Some((Fault::Throttled, _)) => {
            let name = "ProvisionedThroughputExceededException";
            return rejection(StatusCode::BAD_REQUEST, name);
        }
        Some((Fault::ServerError, _)) => {
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

impl Write {
    /// The writes of a request: none, one, or those of a group.
    fn all_of(worker: Worker, headers: &HeaderMap, body: &[u8]) -> Vec<Self> {
        if !request_name(headers, body).ends_with("Group") {
            return Self::of(worker, headers, body).into_iter().collect();
        }
        let writes = groups::writes(&serde_json::from_slice(body).unwrap());
        let write = |(operation, key, body): (&str, _, _)| Self {
            worker,
            key,
            operation: operation.to_owned(),
            body,
        };
        writes.into_iter().map(write).collect()
    }

    fn of(worker: Worker, headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        let operation = request_name(headers, body);
        let body: Value = serde_json::from_slice(body).unwrap();
        let place = match &*operation {
            "PutItem" => "Item",
            "Claim" | "UpdateItem" | "DeleteItem" => "Key",
            _ => return None,
        };
        let key = body[place]["id"]["S"].as_str()?.to_owned();
        Some(Self {
            worker,
            key,
            operation,
            body,
        })
    }

    /// The event for a write that the table applied.
    fn taken(&self) -> Event {
        let key = self.key.clone();
        let values = &self.body["ExpressionAttributeValues"];
        let text = |of: &Value| of["S"].as_str().map(ToOwned::to_owned);
        let number = |of: &Value| of["N"].as_str().map(|n| n.parse().unwrap());
        // A claim over an expired record is a put, as is one in a group, a claim over any other an
        // update.
        let claim = match &*self.operation {
            "PutItem" => {
                let item = &self.body["Item"];
                Some(["owner", "lease_until", "message_id", "first_claimed_at"].map(|n| &item[n]))
            }
            "Claim" => {
                let names = [":owner", ":lease_until", ":message_id", ":now"];
                Some(names.map(|n| &values[n]))
            }
            _ => None,
        };
        if let Some([owner, lease_until, message, made]) = claim {
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            return Event::Claimed {
                key,
                owner: text(owner).unwrap(),
                message: text(message).unwrap(),
                worker: self.worker,
                made_ms: number(made).unwrap(),
                at_ms: at.as_millis().try_into().unwrap(),
                lease_until_ms: number(lease_until).unwrap(),
            };
        }
        if let Some(lease_until_ms) = self.renewal_of_an_attempt_alone() {
            return Event::Alone {
                key,
                owner: text(&values[":me"]).unwrap(),
                worker: self.worker,
                lease_until_ms,
            };
        }
        let as_what = if values[":failed_message_ids"].is_object() {
            Settled::Failed
        } else if text(&values[":status"]).is_some_and(|s| s == "COMPLETED") {
            Settled::Completed
        } else if self.operation == "DeleteItem"
            || values[":status"].is_object()
            || values[":exclusive_attempts"].is_object()
            || self.forgets()
        {
            Settled::Restored
        } else {
            Settled::LeaseEnded
        };
        Event::Settled {
            key,
            owner: text(&values[":me"]).unwrap(),
            as_what,
        }
    }

    /// The lease of an attempt that is about to run alone. A restore writes the count too, and the last
    /// end with it.
    fn renewal_of_an_attempt_alone(&self) -> Option<u64> {
        let values = &self.body["ExpressionAttributeValues"];
        let update = self.body["UpdateExpression"].as_str()?;
        if values[":exclusive_attempts"].is_null() || update.contains("#last_end") {
            return None;
        }
        values[":lease_until"]["N"].as_str()?.parse().ok()
    }

    /// A restore removes the time of the earliest open attempt. The end of a lease may name it in its
    /// condition.
    fn forgets(&self) -> bool {
        let update = self.body["UpdateExpression"].as_str().unwrap_or_default();
        update.contains("#first_claimed_at")
    }
}

impl Wire {
    /// Fault of the next write to `key`, if one is planned, and the delay of a slow write.
    fn roll(&self, key: &str) -> Option<(Fault, Duration)> {
        if !self.faults {
            return None;
        }
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
        let mut keys: Vec<_> = writes.iter().map(|write| &write.key).collect();
        keys.sort();
        let mut turns = Vec::new();
        for key in keys {
            let turn = {
                let mut rows = self.rows.lock().unwrap();
                rows.entry(key.clone()).or_default().turn.clone()
            };
            turns.push(turn.lock_owned().await);
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
                self.ledger.note(write.taken());
            }
        }
        answer
    }
}
