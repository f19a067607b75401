//! Surroundings of the tests: a DynamoDB, a Lambda and a payment gateway, each on a free port of
//! 127.0.0.1 for the duration of a test.

#![allow(missing_docs, reason = "for our own tests")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot set up its surroundings has nothing better to do than panic"
)]

pub mod callgrind;
pub mod clock;
pub mod cloud;
pub mod consumer;
pub mod dynamo;
pub mod emf;
pub mod event;
pub mod faults;
pub mod gateway;
pub mod log;
pub mod lossy;
pub mod postgres;
pub mod postgres_wire;
pub mod prerequisite;
pub mod runtime_api;
pub mod s3;
pub mod seed;
pub mod sqs;
pub mod stage;
pub mod stopwatch;
pub mod stub;
pub mod template;
pub mod throttle;
pub mod world;

use std::{net::SocketAddr, sync::LazyLock, time::Duration};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider, SharedHttpClient};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use axum::serve::ListenerExt;
use sqs_once::{internal::Writes, store::RequestContext};

/// Longer than any awaited event takes on a busy machine; reached only when the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The context of a request whose costs nobody reads, and which may take any time.
pub static CONTEXT: LazyLock<RequestContext> = LazyLock::new(RequestContext::default);

/// The record commits alone.
pub static NOTHING: LazyLock<Writes> = LazyLock::new(Writes::default);

/// Region and credentials of every client and every function under test.
pub const REGION: &str = "eu-central-1";
pub const ACCESS_KEY: &str = "test";

/// Serves `app` on a free port for as long as the test's runtime lives.
pub async fn serve(app: axum::Router) -> SocketAddr {
    serve_until(app, std::future::pending()).await
}

/// Serves `app` on a free port until `ended`, and then frees the port.
pub async fn serve_until(
    app: axum::Router,
    ended: impl Future<Output = ()> + Send + 'static,
) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = listener.local_addr().unwrap();
    // A response held back for the peer's delayed ACK would look like a slow function.
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    let server = axum::serve(listener, app).with_graceful_shutdown(ended);
    tokio::spawn(async move { server.await.unwrap() });
    address
}

/// Configuration of a real SDK client of the emulator at `endpoint`.
///
/// Reads nothing from the environment, so that a developer's AWS profile cannot leak in.
pub fn sdk_config(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new(ACCESS_KEY, ACCESS_KEY, None, None, "tests");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static(REGION))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(endpoint)
        .http_client(http_client())
        .build()
}

/// The SDK's own HTTP client; without default features the SDK has no client.
pub fn http_client() -> SharedHttpClient {
    Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https()
}
