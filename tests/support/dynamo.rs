//! A DynamoDB of the test's own: dynoxide in memory, behind a proxy that counts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use aws_config::SdkConfig;
use aws_sdk_dynamodb::{
    Client,
    client::Waiters,
    types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
        ScalarAttributeType,
    },
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Response, header::HOST},
};
use dynoxide::Database;

/// Requests per operation (`PutItem`, `UpdateItem`, ...), as they crossed the wire: an SDK
/// retry counts again.
pub type Counts = BTreeMap<String, usize>;

/// The attributes of one item.
pub type Item = std::collections::HashMap<String, AttributeValue>;

/// One emulated DynamoDB, seen by the code under test through a counting proxy.
pub struct Dynamo {
    wire: Arc<Wire>,
    endpoint: String,
    /// Talks past the proxy: what a test sets up or looks at is never counted.
    backstage: Client,
}

struct Wire {
    upstream: String,
    forward: reqwest::Client,
    counts: Mutex<Counts>,
}

impl Dynamo {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", listener.local_addr().unwrap());
        let database = Database::memory().unwrap();
        tokio::spawn(dynoxide::server::serve_on(listener, database));

        let wire = Arc::new(Wire {
            upstream: upstream.clone(),
            forward: http_forwarder(),
            counts: Mutex::default(),
        });
        let proxy = Router::new().fallback(relay).with_state(wire.clone());
        Self {
            endpoint: format!("http://{}", super::serve(proxy).await),
            backstage: Client::new(&super::sdk_config(&upstream)),
            wire,
        }
    }

    /// The counted endpoint, for `AWS_ENDPOINT_URL`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn sdk_config(&self) -> SdkConfig {
        super::sdk_config(&self.endpoint)
    }

    /// A real SDK client whose requests are counted.
    pub fn client(&self) -> Client {
        Client::new(&self.sdk_config())
    }

    /// Creates an idempotency table as template.yaml has it: partition key `id`, on demand.
    pub async fn create_table(&self, name: &str) {
        create_table(&self.backstage, name).await;
    }

    /// A table with another primary key: the partition key, and the sort key if there is one.
    pub async fn create_table_keyed(&self, name: &str, attributes: &[&str]) {
        create_table_keyed(&self.backstage, name, attributes).await;
    }

    /// The whole record, read consistently; `None` if there is none.
    pub async fn record(&self, table: &str, id: &str) -> Option<Item> {
        record(&self.backstage, table, id).await
    }

    pub async fn put(&self, table: &str, item: Item) {
        let put = self.backstage.put_item().table_name(table);
        put.set_item(Some(item)).send().await.unwrap();
    }

    /// Every record in the table.
    pub async fn records(&self, table: &str) -> Vec<Item> {
        let scan = self.backstage.scan().table_name(table);
        let output = scan.consistent_read(true).send().await.unwrap();
        output.items.unwrap_or_default()
    }

    pub fn counts(&self) -> Counts {
        self.wire.counts.lock().unwrap().clone()
    }

    /// What was counted so far, starting again from nothing.
    pub fn reset_counts(&self) -> Counts {
        std::mem::take(&mut *self.wire.counts.lock().unwrap())
    }
}

/// Creates the idempotency table with any client, so that the integration suite makes the
/// same one.
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

/// A string attribute.
#[track_caller]
pub fn text<'a>(item: &'a Item, name: &str) -> &'a str {
    match item.get(name) {
        Some(AttributeValue::S(value)) => value,
        other => panic!("{name} is not a string: {other:?}"),
    }
}

/// A number attribute.
#[track_caller]
pub fn number(item: &Item, name: &str) -> i64 {
    match item.get(name) {
        Some(AttributeValue::N(value)) => value.parse().unwrap(),
        other => panic!("{name} is not a number: {other:?}"),
    }
}

/// Every request passes here: the place to count, and to lose or refuse one on purpose.
async fn relay(State(wire): State<Arc<Wire>>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let operation = operation(&headers);
    *wire.counts.lock().unwrap().entry(operation).or_default() += 1;
    wire.forward(headers, body).await
}

/// `x-amz-target: DynamoDB_20120810.PutItem` names the operation.
fn operation(headers: &HeaderMap) -> String {
    let target = headers.get("x-amz-target").and_then(|t| t.to_str().ok());
    let name = target.and_then(|t| t.split_once('.')).map(|(_, name)| name);
    name.unwrap_or("unknown").to_owned()
}

impl Wire {
    async fn forward(&self, mut headers: HeaderMap, body: Bytes) -> Response<Body> {
        headers.remove(HOST);
        let request = self.forward.post(&self.upstream).headers(headers);
        let answer = request.body(body).send().await.unwrap();
        let mut response = Response::builder().status(answer.status());
        *response.headers_mut().unwrap() = answer.headers().clone();
        response
            .body(Body::from(answer.bytes().await.unwrap()))
            .unwrap()
    }
}

fn http_forwarder() -> reqwest::Client {
    // reqwest is compiled without a TLS provider; a second test in this process finds it set.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}
