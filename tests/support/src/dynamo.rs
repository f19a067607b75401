//! A DynamoDB of the test's own: dynoxide in memory, behind a proxy that counts requests and
//! injects failures. The SDK reaches the proxy over HTTP, or in memory on paused time.

mod in_memory;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_config::{SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::{
    Client,
    client::Waiters,
    config::{SharedHttpClient, retry::RetryPartition},
    types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
        ScalarAttributeType,
    },
};
use aws_smithy_http_client::Builder;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{
        HeaderMap, Response,
        header::{CONTENT_LENGTH, HOST},
    },
};
use dynoxide::Database;
use serde_json::{Value, json};

use super::{
    cloud::Cloud,
    faults::{Fault, Faults, Port},
};
use in_memory::Emulator;

/// Requests per operation (`Claim`, `PutItem`, `UpdateItem`, ...; see [`request_name`]), as they
/// crossed the wire: an SDK retry counts again.
pub type Counts = BTreeMap<String, usize>;

/// Attributes of one item.
pub type Item = std::collections::HashMap<String, AttributeValue>;

/// One emulated DynamoDB. The code under test reaches it through a proxy that counts and fails.
pub struct Dynamo {
    wire: Arc<Wire>,
    endpoint: String,
    http_client: SharedHttpClient,
    /// Client that bypasses the proxy: the test's own requests are never counted, and never fail.
    backstage: Client,
}

struct Wire {
    upstream: String,
    forwarder: reqwest::Client,
    counts: Mutex<Counts>,
    faults: Faults,
    port: Port,
    /// The emulator, if clients reach the proxy in memory.
    in_memory: Option<Emulator>,
}

impl Dynamo {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", listener.local_addr().unwrap());
        let database = Database::memory().unwrap();
        tokio::spawn(dynoxide::server::serve_on(listener, database));

        let wire = Arc::new(Wire {
            upstream: upstream.clone(),
            forwarder: forwarder(),
            counts: Mutex::default(),
            faults: Faults::default(),
            port: Port::reserve(),
            in_memory: None,
        });
        wire.port.open(proxy(&wire)).await;
        let http_client = Builder::new().build_http();
        Self {
            endpoint: format!("http://{}", wire.port.address()),
            backstage: Client::new(&sdk_config(&upstream, &http_client)),
            http_client,
            wire,
        }
    }

    /// The counted endpoint, for `AWS_ENDPOINT_URL`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn sdk_config(&self) -> SdkConfig {
        sdk_config(&self.endpoint, &self.http_client)
    }

    /// A real SDK client whose requests are counted.
    pub fn client(&self) -> Client {
        Client::new(&self.sdk_config())
    }

    /// A client whose requests meet no fault, and are not counted.
    pub fn client_past_faults(&self) -> Client {
        self.backstage.clone()
    }

    /// A worker's own client, with the retries of [`sqs_once::aws::config`]. Its timeouts are in
    /// proportion to `attempt`, or absent.
    pub fn worker(&self, attempt: Option<Duration>) -> Client {
        let retries = RetryConfig::standard()
            .with_max_attempts(4)
            .with_initial_backoff(Duration::from_millis(50))
            .with_max_backoff(Duration::from_millis(500));
        let timeouts = match attempt {
            Some(attempt) => TimeoutConfig::builder()
                .operation_attempt_timeout(attempt)
                .operation_timeout(5 * attempt)
                .build(),
            None => TimeoutConfig::disabled(),
        };
        self.client_with(retries, timeouts)
    }

    /// A client with its own retry quota. The SDK has one quota per process, and a test with
    /// many injected faults uses it up.
    pub fn client_with(&self, retries: RetryConfig, timeouts: TimeoutConfig) -> Client {
        static CLIENTS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("client {}", CLIENTS.fetch_add(1, Ordering::Relaxed));
        let config = aws_sdk_dynamodb::config::Builder::from(&self.sdk_config())
            .retry_config(retries)
            .timeout_config(timeouts)
            .retry_partition(RetryPartition::new(name));
        Client::from_conf(config.build())
    }

    /// Number of times that a worker sends a claim that gets no answer.
    pub const CLAIM_COPIES: u32 = 3;

    /// Creates an idempotency table as template.yaml has it: partition key `id`, on demand.
    pub async fn create_table(&self, name: &str) {
        create_table(&self.backstage, name).await;
    }

    /// Creates a table with another primary key: the partition key, and optionally the sort key.
    pub async fn create_table_keyed(&self, name: &str, attributes: &[&str]) {
        create_table_keyed(&self.backstage, name, attributes).await;
    }

    /// The whole record, read consistently; `None` if absent.
    pub async fn record(&self, table: &str, id: &str) -> Option<Item> {
        record(&self.backstage, table, id).await
    }

    pub async fn put(&self, table: &str, item: Item) {
        let put = self.backstage.put_item().table_name(table);
        put.set_item(Some(item)).send().await.unwrap();
    }

    /// Deletes a record, if it exists.
    pub async fn delete(&self, table: &str, id: &str) {
        let delete = self.backstage.delete_item().table_name(table);
        let delete = delete.key("id", AttributeValue::S(id.to_owned()));
        delete.send().await.unwrap();
    }

    /// Every record in the table.
    pub async fn records(&self, table: &str) -> Vec<Item> {
        let scan = self.backstage.scan().table_name(table);
        let items = scan.consistent_read(true).into_paginator().items();
        items.send().try_collect().await.unwrap()
    }

    /// The next request for `operation` without a planned fault meets this one.
    pub fn fail(&self, operation: &str, fault: Fault) {
        self.wire.faults.fail(operation, fault);
    }

    /// Every request for `operation` meets this fault until [`Self::heal`], after those planned by
    /// [`Self::fail`].
    pub fn fail_all(&self, operation: &str, fault: Fault) {
        self.wire.faults.fail_all(operation, fault);
    }

    /// Ends all injected faults: cancels planned ones, and applies held-back requests before it returns.
    /// Returns the number of requests that met a fault since the last call.
    pub async fn heal(&self) -> Counts {
        let met = self.wire.faults.heal().await;
        if self.wire.in_memory.is_none() {
            self.wire.port.open(proxy(&self.wire)).await;
        }
        met
    }

    /// Number of requests for `operation` that met a fault since the last [`Self::heal`].
    pub fn met(&self, operation: &str) -> usize {
        self.wire.faults.met(operation)
    }

    pub fn counts(&self) -> Counts {
        self.wire.counts.lock().unwrap().clone()
    }

    /// Counts so far; restarts from zero.
    pub fn reset_counts(&self) -> Counts {
        std::mem::take(&mut *self.wire.counts.lock().unwrap())
    }
}

/// A table of the test's own, with a client: in dynoxide, or where `make test-aws` says.
pub struct Table {
    pub client: Client,
    pub name: String,
}

impl Table {
    /// Creates a table with this primary key: the partition key, and optionally the sort key.
    ///
    /// `make test-aws` deletes its tables at the end of the run.
    pub async fn create(attributes: &[&str]) -> Self {
        let (client, name) = match Cloud::of_test_aws().await {
            Some(cloud) => (Client::new(&cloud.config), cloud.new_name()),
            None => (Dynamo::start().await.client(), "idempotency".to_owned()),
        };
        create_table_keyed(&client, &name, attributes).await;
        Self { client, name }
    }

    pub async fn put(&self, item: Item) {
        let put = self.client.put_item().table_name(&self.name);
        put.set_item(Some(item)).send().await.unwrap();
    }
}

/// With a client without TLS: a TLS client reads the system's certificates, which takes longer than
/// most tests.
fn sdk_config(endpoint: &str, http_client: &SharedHttpClient) -> SdkConfig {
    let config = super::sdk_config(endpoint).to_builder();
    config.http_client(http_client.clone()).build()
}

/// Creates the idempotency table with any client, so that the integration suite makes the same one.
pub async fn create_table(client: &Client, name: &str) {
    create_table_keyed(client, name, &["id"]).await;
}

async fn create_table_keyed(client: &Client, name: &str, attributes: &[&str]) {
    let mut create = client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest);
    for (attribute, role) in attributes.iter().zip([KeyType::Hash, KeyType::Range]) {
        let definition = AttributeDefinition::builder()
            .attribute_name(*attribute)
            .attribute_type(ScalarAttributeType::S);
        let key = KeySchemaElement::builder()
            .attribute_name(*attribute)
            .key_type(role);
        create = create
            .attribute_definitions(definition.build().unwrap())
            .key_schema(key.build().unwrap());
    }
    create
        .send()
        .await
        .unwrap_or_else(|error| panic!("creating table {name}: {error:?}"));
    let exists = client.wait_until_table_exists().table_name(name);
    exists.wait(super::PATIENCE).await.unwrap();
}

pub async fn record(client: &Client, table: &str, id: &str) -> Option<Item> {
    let get = client.get_item().table_name(table).consistent_read(true);
    let get = get.key("id", AttributeValue::S(id.to_owned()));
    get.send().await.unwrap().item
}

/// A record that another worker claimed in 2096, with other values for these attributes.
pub fn record_of_another(id: &str, attributes: &Value) -> Item {
    let mut record = json!({
        "id": id,
        "status": "IN_PROGRESS",
        "owner": "another",
        "version": 1,
        "lease_until": 4_000_000_000_000_u64,
        "expires_at": 4_000_000_000_u64,
        "message_id": "another",
        "attempts": 1,
        "updated_at": 1,
    });
    for (name, value) in attributes.as_object().unwrap() {
        record[name] = value.clone();
    }
    serde_dynamo::to_item(record).unwrap()
}

/// A string attribute.
#[track_caller]
pub fn text<'a>(item: &'a Item, name: &str) -> &'a str {
    match item.get(name) {
        Some(AttributeValue::S(value)) => value,
        other => panic!("{name} is not a string: {other:?}"),
    }
}

/// The claims of a record. Without the attribute it is one.
pub fn attempts(record: &Item) -> i64 {
    let counted = record.contains_key("attempts");
    if counted {
        number(record, "attempts")
    } else {
        1
    }
}

/// The text of the failure that a record has first.
#[track_caller]
pub fn error(record: &Item) -> String {
    let failures: Value = serde_json::from_str(text(record, "failures")).unwrap();
    failures[0]["error"].as_str().unwrap().to_owned()
}

/// A number attribute.
#[track_caller]
pub fn number(item: &Item, name: &str) -> i64 {
    match item.get(name) {
        Some(AttributeValue::N(value)) => value.parse().unwrap(),
        other => panic!("{name} is not a number: {other:?}"),
    }
}

fn proxy(wire: &Arc<Wire>) -> Router {
    Router::new().fallback(relay).with_state(Arc::clone(wire))
}

/// Every request passes here: the place to count, lose or refuse requests on purpose.
async fn relay(State(wire): State<Arc<Wire>>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let operation = request_name(&headers, &body);
    *wire
        .counts
        .lock()
        .unwrap()
        .entry(operation.clone())
        .or_default() += 1;
    let sending = Arc::clone(&wire);
    let forward = |body| async move { sending.ask(headers, body).await };
    wire.faults
        .pass(&operation, &wire.port, body, forward)
        .await
}

/// The operation, or `Claim`: a first record, or an `UpdateItem` that sets an owner. Groups of statements are
/// `ClaimGroup`, with a claim among them, or `SettlementGroup`.
pub fn request_name(headers: &HeaderMap, body: &[u8]) -> String {
    let operation = operation(headers);
    let has = |text: &str| String::from_utf8_lossy(body).contains(text);
    match operation.as_str() {
        "UpdateItem" if has("#owner = :owner") => "Claim".to_owned(),
        "PutItem" if has("attribute_not_exists(#id)") && has("IN_PROGRESS") => "Claim".to_owned(),
        "BatchExecuteStatement" if has("INSERT INTO") || has(r#"SET \"owner\""#) => {
            "ClaimGroup".to_owned()
        }
        "BatchExecuteStatement" => "SettlementGroup".to_owned(),
        _ => operation,
    }
}

/// `x-amz-target: DynamoDB_20120810.PutItem` names the operation.
pub fn operation(headers: &HeaderMap) -> String {
    let target = headers.get("x-amz-target").and_then(|t| t.to_str().ok());
    let name = target.and_then(|t| t.split_once('.')).map(|(_, name)| name);
    name.unwrap_or("unknown").to_owned()
}

/// Forwards a request unchanged, and returns its response.
pub async fn forward(
    client: &reqwest::Client,
    upstream: &str,
    mut headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    headers.remove(HOST);
    // A fault may have changed the body.
    headers.remove(CONTENT_LENGTH);
    let request = client.post(upstream).headers(headers).body(body);
    let answer = request.send().await.unwrap();
    let mut response = Response::builder().status(answer.status());
    *response.headers_mut().unwrap() = answer.headers().clone();
    response
        .body(Body::from(answer.bytes().await.unwrap()))
        .unwrap()
}

/// HTTP client of [`forward`].
pub fn forwarder() -> reqwest::Client {
    // reqwest is compiled without a TLS provider; a second test in this process finds it set.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .build()
        .unwrap()
}
