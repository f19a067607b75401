//! A payment gateway with a script for each order, which remembers every call.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::{PATIENCE, faults::Port};

/// Response to one call. A call past the end of its order's script is charged.
#[derive(Clone, Debug)]
pub enum Reply {
    /// 201 and the charge as JSON.
    Charge,
    Status(u16),
    /// No response until [`Gateway::release`], then as `Charge`.
    Hang,
    /// 307 to this address.
    Redirect(String),
    /// 200 and a body of so many bytes.
    Flood(usize),
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Call {
    pub order: String,
    /// The `Idempotency-Key` header.
    pub key: Option<String>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    pub body: Value,
}

pub struct Gateway {
    desk: Arc<GatewayState>,
    port: Port,
    url: String,
}

struct GatewayState {
    script: Mutex<HashMap<String, VecDeque<Reply>>>,
    calls: watch::Sender<Vec<Call>>,
    released: watch::Sender<bool>,
}

impl Gateway {
    pub async fn start() -> Self {
        let desk = Arc::new(GatewayState {
            script: Mutex::default(),
            calls: watch::Sender::new(Vec::new()),
            released: watch::Sender::new(false),
        });
        let port = Port::reserve();
        let url = format!("http://{}", port.address());
        let gateway = Self { desk, port, url };
        gateway.open().await;
        gateway
    }

    /// Accepts connections again.
    pub async fn open(&self) {
        let app = Router::new().route("/charges", post(charge));
        self.port.open(app.with_state(self.desk.clone())).await;
    }

    /// Refuses connections from now on; open connections stay open.
    pub async fn close(&self) {
        self.port.close().await;
    }

    /// For `PAYMENT_GATEWAY_URL`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sets the responses to the next calls for `order`, one after the other.
    pub fn script(&self, order: &str, replies: impl IntoIterator<Item = Reply>) {
        let mut script = self.desk.script.lock().unwrap();
        script.entry(order.to_owned()).or_default().extend(replies);
    }

    /// Releases every hanging call, now and later.
    pub fn release(&self) {
        self.desk.released.send_replace(true);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.desk.calls.borrow().clone()
    }

    pub fn calls_for(&self, order: &str) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.order == order);
        calls
    }

    /// Returns once `n` calls for `order` have arrived, answered or not.
    pub async fn arrived(&self, order: &str, n: usize) {
        let mut calls = self.desk.calls.subscribe();
        let enough = |calls: &Vec<Call>| calls.iter().filter(|c| c.order == order).count() >= n;
        timeout(PATIENCE, calls.wait_for(enough))
            .await
            .unwrap_or_else(|_| panic!("no call number {n} for {order}: {:?}", self.calls()))
            .unwrap();
    }
}

async fn charge(
    State(desk): State<Arc<GatewayState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Some(order) = body["orderId"].as_str().map(str::to_owned) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let header = |name| Some(headers.get(name)?.to_str().unwrap().to_owned());
    let (key, authorization) = (header("idempotency-key"), header("authorization"));
    let charged = json!({"chargeId": format!("ch_{order}"), "status": "succeeded"});
    let reply = desk.next_reply(&order);
    let call = Call {
        order,
        key,
        authorization,
        body,
    };
    desk.calls.send_modify(|calls| calls.push(call));
    match reply {
        Reply::Charge => {}
        Reply::Status(code) => return StatusCode::from_u16(code).unwrap().into_response(),
        Reply::Hang => {
            let mut released = desk.released.subscribe();
            released.wait_for(|released| *released).await.unwrap();
        }
        Reply::Redirect(to) => {
            return (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, to)]).into_response();
        }
        Reply::Flood(size) => return vec![b' '; size].into_response(),
    }
    (StatusCode::CREATED, charged.to_string()).into_response()
}

impl GatewayState {
    fn next_reply(&self, order: &str) -> Reply {
        let mut script = self.script.lock().unwrap();
        let replies = script.get_mut(order);
        replies
            .and_then(VecDeque::pop_front)
            .unwrap_or(Reply::Charge)
    }
}
