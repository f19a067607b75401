//! The SDK's way to the proxy without a socket, for tests on paused time.
//!
//! Paused time jumps to the next timer as soon as all tasks wait. So a request must not wait: the emulator has a
//! runtime of its own, in real time, and the test's thread is blocked until the emulator has answered. Only injected
//! faults wait, and the machine's speed changes nothing.

use std::{
    collections::VecDeque,
    fmt, io,
    pin::Pin,
    sync::{Arc, LazyLock, Mutex, mpsc},
    task::{Context, Poll},
};

use aws_sdk_dynamodb::Client;
use aws_smithy_runtime_api::client::{
    http::{
        HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn,
    },
    orchestrator::{HttpRequest, HttpResponse},
    result::ConnectorError,
};
use aws_smithy_types::{body::SdkBody, retry::ErrorKind};
use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Response},
};
use dynoxide::Database;
use futures_util::StreamExt as _;
use http_body::Frame;
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    task::{AbortHandle, yield_now},
};

use super::{Dynamo, Faults, Port, Wire, forward, forwarder, relay, sdk_config};

/// The runtime of all emulators.
static EMULATORS: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// An emulator on the runtime of all. Stopped on drop.
pub(super) struct Emulator(AbortHandle);

impl Drop for Emulator {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Dynamo {
    /// A DynamoDB for a test on paused time (`#[tokio::test(start_paused = true)]`).
    ///
    /// A client's timeouts for connecting and reading have no effect.
    pub fn in_memory() -> Self {
        let (upstream, emulator) = blocking(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let upstream = format!("http://{}", listener.local_addr().unwrap());
            let database = Database::memory().unwrap();
            let server = tokio::spawn(dynoxide::server::serve_on(listener, database));
            (upstream, Emulator(server.abort_handle()))
        });
        let wire = Arc::new(Wire {
            upstream,
            forwarder: forwarder(),
            counts: Mutex::default(),
            faults: Faults::default(),
            port: Port::reserve(),
            in_memory: Some(emulator),
        });
        let endpoint = format!("http://{}", wire.port.address());
        let backstage = http_client(&wire, false);
        Self {
            backstage: Client::new(&sdk_config(&endpoint, &backstage)),
            http_client: http_client(&wire, true),
            endpoint,
            wire,
        }
    }
}

/// Runs `future` on the runtime of the emulators, and blocks this thread until it has ended.
fn blocking<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (ended, end) = mpsc::channel();
    EMULATORS.spawn(async move { ended.send(future.await).unwrap() });
    end.recv().unwrap()
}

fn http_client(wire: &Arc<Wire>, through_proxy: bool) -> SharedHttpClient {
    let connector = SharedHttpConnector::new(InMemory {
        wire: wire.clone(),
        through_proxy,
    });
    http_client_fn(move |_, _| connector.clone())
}

struct InMemory {
    wire: Arc<Wire>,
    through_proxy: bool,
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemory")
    }
}

impl HttpConnector for InMemory {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (wire, through_proxy) = (self.wire.clone(), self.through_proxy);
        HttpConnectorFuture::new(async move {
            let headers = request.headers().iter().map(|(name, value)| {
                let name = HeaderName::try_from(name).unwrap();
                (name, HeaderValue::try_from(value).unwrap())
            });
            let headers: HeaderMap = headers.collect();
            let body = Bytes::copy_from_slice(request.body().bytes().unwrap());
            // Other tasks send their requests meanwhile, as over a network.
            yield_now().await;
            if through_proxy && wire.faults.are_refusals() {
                let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
                return Err(ConnectorError::io(refused.into()));
            }
            let answer = if through_proxy {
                relay(State(wire), headers, body).await
            } else {
                wire.ask(headers, body).await
            };
            yield_now().await;
            received(answer).await
        })
    }
}

impl Wire {
    /// The emulator's response.
    pub(super) async fn ask(&self, headers: HeaderMap, body: Bytes) -> Response<Body> {
        let (client, upstream) = (self.forwarder.clone(), self.upstream.clone());
        let answer = async move { forward(&client, &upstream, headers, body).await };
        match self.in_memory {
            Some(_) => blocking(answer),
            None => answer.await,
        }
    }
}

/// What the SDK's own HTTP client would have made of the response: see `faults_are_the_same_in_memory`.
async fn received(answer: Response<Body>) -> Result<HttpResponse, ConnectorError> {
    let (head, body) = answer.into_parts();
    let parts: VecDeque<_> = body.into_data_stream().collect().await;
    if let Some(Err(_)) = parts.front() {
        let closed = "the connection was closed without a response";
        return Err(ConnectorError::other(
            closed.into(),
            Some(ErrorKind::TransientError),
        ));
    }
    let body = SdkBody::from_body_1_x(Parts(parts));
    let mut response = HttpResponse::new(head.status.into(), body);
    for (name, value) in &head.headers {
        let value = value.to_str().unwrap().to_owned();
        response
            .headers_mut()
            .append(name.as_str().to_owned(), value);
    }
    Ok(response)
}

/// A body that may break off.
struct Parts(VecDeque<Result<Bytes, axum::Error>>);

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let part = self.0.pop_front();
        Poll::Ready(part.map(|part| part.map(Frame::data)))
    }
}
