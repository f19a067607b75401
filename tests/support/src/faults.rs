//! Injected faults between a client and its DynamoDB.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{Response, StatusCode, header::CONTENT_LENGTH},
    serve::ListenerExt,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::{
    net::TcpSocket,
    sync::{Notify, oneshot},
    task::{JoinHandle, JoinSet},
};

use super::dynamo::Counts;

const GARBAGE: &str = "<html>Please log in";

/// Fate of one request. *Applied* means that DynamoDB has executed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not applied; the connection is closed without a response.
    CutBefore,
    /// Applied; the connection is closed without a response.
    CutAfter,
    /// Applied; the response's head and half its body, then the connection is closed.
    HalfAnswer,
    /// Applied; the response is a 200 that is not JSON.
    Garbage,
    /// Applied; the response is a 200 without a body.
    Empty,
    /// Not applied; a third party sends a 200 that is not JSON, like a proxy's login page.
    GarbageInstead,
    /// Not applied; a third party sends a 200 without a body and without a length
    /// (`Transfer-Encoding: chunked`).
    EmptyInstead,
    /// Not applied, no response. On [`Faults::heal`] it is applied, late.
    HoldRequest,
    /// Applied. The response comes on [`Faults::heal`].
    HoldAnswer,
    /// Not applied: 400 `ThrottlingException`.
    Throttle,
    /// As `Throttle`, after 100 milliseconds.
    ThrottleLate,
    /// Not applied: 400 `ProvisionedThroughputExceededException`.
    ThroughputExceeded,
    /// Not applied: 400 `TransactionConflictException`.
    TransactionConflict,
    /// Not applied: 400 `AccessDeniedException`.
    Denied,
    /// Not applied: 400 with this code.
    Code(&'static str),
    /// Not applied: 500 `InternalServerError`.
    InternalError,
    /// Not applied: a load balancer's 503, which is not JSON.
    Unavailable,
    /// No server listens, for any operation, until [`Faults::heal`]. The request that meets this
    /// fault is cut before it is applied, as are all requests on open connections.
    Refuse,
    /// Not applied: 400 `TransactionCanceledException`, with these codes by position (`"None"`,
    /// `"TransactionConflict"`, ...).
    Canceled(&'static [&'static str]),
    /// Not applied: 400 `TransactionInProgressException`.
    TransactionInProgress,
    /// `BatchExecuteStatement`: the first statement is not applied, and its response in the 200 is an
    /// error with this code. The others are applied.
    FirstStatement(&'static str),
    /// `BatchExecuteStatement`: applied; the response lacks the last statement.
    OneResponseLess,
    /// `BatchExecuteStatement`: applied; the response has one statement too many.
    OneResponseMore,
    /// `BatchExecuteStatement`: applied; no error has the item of its failed condition check.
    NoItems,
}

/// Planned failures, by operation.
#[derive(Debug, Default)]
pub struct Faults {
    script: Mutex<Script>,
    healed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Script {
    next: BTreeMap<String, VecDeque<Fault>>,
    all: BTreeMap<String, Fault>,
    refusing: bool,
    met: Counts,
    /// Requests and responses held back.
    held: JoinSet<()>,
}

impl Faults {
    pub fn fail(&self, operation: &str, fault: Fault) {
        let mut script = self.script.lock().unwrap();
        let next = script.next.entry(operation.to_owned()).or_default();
        next.push_back(fault);
    }

    pub fn fail_all(&self, operation: &str, fault: Fault) {
        let mut script = self.script.lock().unwrap();
        script.all.insert(operation.to_owned(), fault);
    }

    /// Ends all injected faults, and waits until held-back requests have been applied. Returns the number of
    /// requests that met a fault since the last call.
    pub async fn heal(&self) -> Counts {
        let mut script = std::mem::take(&mut *self.script.lock().unwrap());
        self.healed.notify_waiters();
        while let Some(held) = script.held.join_next().await {
            held.unwrap();
        }
        script.met
    }

    /// Number of requests for `operation` that met a fault since the last [`Self::heal`].
    pub fn met(&self, operation: &str) -> usize {
        let script = self.script.lock().unwrap();
        script.met.get(operation).copied().unwrap_or_default()
    }

    /// Passes one request with `body` on by `forward`, unless a fault is due.
    pub async fn pass<F>(
        &self,
        operation: &str,
        port: &Port,
        body: Bytes,
        forward: impl FnOnce(Bytes) -> F,
    ) -> Response<Body>
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let Some(fault) = self.due(operation) else {
            return forward(body).await;
        };
        if let Fault::FirstStatement(code) = fault {
            let rest = edited(&body, "Statements", |statements| drop(statements.remove(0)));
            let refused = json!({"Error": {"Code": code, "Message": "scripted"}});
            return answered(forward(rest).await, |answers| answers.insert(0, refused)).await;
        }
        let forward = forward(body);
        match fault {
            Fault::CutBefore => cut(),
            Fault::CutAfter => {
                forward.await;
                cut()
            }
            Fault::HalfAnswer => half(forward.await).await,
            Fault::Garbage => replaced(forward.await, GARBAGE),
            Fault::Empty => replaced(forward.await, ""),
            Fault::GarbageInstead => Response::new(Body::from(GARBAGE)),
            Fault::EmptyInstead => {
                Response::new(Body::from_stream(stream::empty::<io::Result<Bytes>>()))
            }
            Fault::HoldRequest => self.hold(std::future::ready(()), forward).await,
            Fault::HoldAnswer => {
                let (answered, answer) = oneshot::channel();
                let applied = async move { drop(answered.send(forward.await)) };
                self.hold(applied, async { answer.await.unwrap() }).await
            }
            Fault::Refuse => {
                port.close().await;
                cut()
            }
            Fault::Throttle => throttled(),
            Fault::ThrottleLate => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                throttled()
            }
            Fault::ThroughputExceeded => rejection(
                "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
                "The level of configured provisioned throughput for the table was exceeded.",
            ),
            Fault::TransactionConflict => rejection(
                "com.amazonaws.dynamodb.v20120810#TransactionConflictException",
                "Transaction is ongoing for the item",
            ),
            Fault::Denied => rejection(
                "com.amazon.coral.service#AccessDeniedException",
                "User is not authorized to perform this operation",
            ),
            Fault::Code(code) => rejection(
                &format!("com.amazonaws.dynamodb.v20120810#{code}"),
                "scripted",
            ),
            Fault::InternalError => error(
                StatusCode::INTERNAL_SERVER_ERROR,
                &json!({
                    "__type": "com.amazonaws.dynamodb.v20120810#InternalServerError",
                    "message": "The request processing has failed because of an unknown error.",
                }),
            ),
            Fault::Unavailable => Response::builder()
                .status(StatusCode::SERVICE_UNAVAILABLE)
                .body(Body::from("<html><h1>503 Service Unavailable</h1></html>"))
                .unwrap(),
            Fault::Canceled(codes) => canceled(codes),
            Fault::TransactionInProgress => rejection(
                "com.amazonaws.dynamodb.v20120810#TransactionInProgressException",
                "The transaction with the given request token is already in progress.",
            ),
            Fault::OneResponseLess => answered(forward.await, |answers| drop(answers.pop())).await,
            Fault::OneResponseMore => {
                answered(forward.await, |answers| answers.push(json!({}))).await
            }
            Fault::NoItems => {
                answered(forward.await, |answers| {
                    for answer in answers {
                        if let Some(error) = answer["Error"].as_object_mut() {
                            error.remove("Item");
                        }
                    }
                })
                .await
            }
            Fault::FirstStatement(_) => unreachable!("handled above"),
        }
    }

    /// Returns whether no server listens.
    pub(super) fn are_refusals(&self) -> bool {
        self.script.lock().unwrap().refusing
    }

    fn due(&self, operation: &str) -> Option<Fault> {
        let mut script = self.script.lock().unwrap();
        let next = script.next.get_mut(operation).and_then(VecDeque::pop_front);
        let fault = match next.or_else(|| script.all.get(operation).copied()) {
            _ if script.refusing => Fault::CutBefore,
            fault => fault?,
        };
        script.refusing |= fault == Fault::Refuse;
        *script.met.entry(operation.to_owned()).or_default() += 1;
        Some(fault)
    }

    /// Runs `before` now, and `after` on [`Faults::heal`]. Both run even if the client is gone by
    /// then, as a request in flight reaches DynamoDB without its client.
    async fn hold(
        &self,
        before: impl Future<Output = ()> + Send + 'static,
        after: impl Future<Output = Response<Body>> + Send + 'static,
    ) -> Response<Body> {
        let (answered, answer) = oneshot::channel();
        let healed = Arc::clone(&self.healed).notified_owned();
        let held = async move {
            before.await;
            healed.await;
            drop(answered.send(after.await));
        };
        self.script.lock().unwrap().held.spawn(held);
        answer.await.unwrap()
    }
}

/// Closes the connection. When a body fails, hyper does so, and drops all unsent bytes, the head
/// included.
pub fn cut() -> Response<Body> {
    Response::new(Body::from_stream(stream::once(async {
        Err::<Bytes, _>(broken())
    })))
}

/// Changes a list in a JSON text.
fn edited(text: &[u8], list: &str, edit: impl FnOnce(&mut Vec<Value>)) -> Bytes {
    let mut value: Value = serde_json::from_slice(text).unwrap();
    edit(value[list].as_array_mut().unwrap());
    value.to_string().into()
}

/// Changes the responses to the statements of a group.
async fn answered(answer: Response<Body>, edit: impl FnOnce(&mut Vec<Value>)) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let body = edited(&body, "Responses", edit);
    head.headers.remove(CONTENT_LENGTH);
    // Of the unchanged body.
    head.headers.remove("x-amz-crc32");
    Response::from_parts(head, Body::from(body))
}

async fn half(answer: Response<Body>) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    head.headers.insert(CONTENT_LENGTH, body.len().into());
    let sent = stream::once(std::future::ready(Ok(body.slice(..body.len() / 2))));
    let rest = stream::once(async {
        // Meanwhile hyper sends its buffered bytes.
        tokio::task::yield_now().await;
        Err(broken())
    });
    Response::from_parts(head, Body::from_stream(sent.chain(rest)))
}

fn broken() -> io::Error {
    io::Error::other("scripted break")
}

fn replaced(mut answer: Response<Body>, body: &'static str) -> Response<Body> {
    answer.headers_mut().remove(CONTENT_LENGTH);
    answer.map(|_| Body::from(body))
}

fn rejection(kind: &str, message: &str) -> Response<Body> {
    let body = json!({"__type": kind, "message": message});
    error(StatusCode::BAD_REQUEST, &body)
}

fn throttled() -> Response<Body> {
    rejection(
        "com.amazon.coral.availability#ThrottlingException",
        "Rate of requests exceeds the allowed throughput.",
    )
}

fn canceled(codes: &[&str]) -> Response<Body> {
    let reason = |code: &&str| match *code {
        "None" => json!({"Code": "None"}),
        code => json!({"Code": code, "Message": format!("scripted: {code}")}),
    };
    let listed = codes.join(", ");
    let body = json!({
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": format!("Transaction cancelled, please refer cancellation reasons for specific reasons [{listed}]"),
        "CancellationReasons": codes.iter().map(reason).collect::<Vec<_>>(),
    });
    error(StatusCode::BAD_REQUEST, &body)
}

pub fn error(status: StatusCode, body: &Value) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("content-type", "application/x-amz-json-1.0")
        .header("x-amzn-requestid", "TOLD-TO-FAIL")
        .body(Body::from(body.to_string()))
        .unwrap()
}

/// A port of 127.0.0.1 that stays reserved while no server listens on it.
pub struct Port {
    address: SocketAddr,
    /// Bound and never listening: connections are refused, and no other process gets the port.
    _reserved: TcpSocket,
    listening: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Port {
    pub fn reserve() -> Self {
        let reserved = socket(([127, 0, 0, 1], 0).into());
        Self {
            address: reserved.local_addr().unwrap(),
            _reserved: reserved,
            listening: tokio::sync::Mutex::default(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `app`, unless it is already served.
    pub async fn open(&self, app: Router) {
        let mut listening = self.listening.lock().await;
        if listening.is_none() {
            let listener = socket(self.address).listen(1024).unwrap();
            // A response held back for the peer's delayed ACK would look like a slow database.
            let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
            let serving = async move { axum::serve(listener, app).await.unwrap() };
            *listening = Some(tokio::spawn(serving));
        }
    }

    /// Stops listening. Connections stay open.
    pub async fn close(&self) {
        if let Some(listening) = self.listening.lock().await.take() {
            listening.abort();
            listening.await.unwrap_err();
        }
    }
}

fn socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}
