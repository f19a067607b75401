//! A consumer as it ships, and its surroundings: a table, a payment gateway and an SQS.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{
    dynamo::{Dynamo, Item, number, text},
    gateway::Gateway,
    runtime_api::{Env, Lambda, NAMESPACE, of_message, program},
    sqs::{Sqs, SqsBehaviour},
};

pub const TABLE: &str = "idempotency";

/// Enough time for every invocation that is not meant to run out of it.
pub const TIME: Duration = Duration::from_secs(10);

/// Words of the log that a user's metric filter may match.
pub mod outcome {
    pub const COMPLETED: &str = "completed";
    pub const DUPLICATE: &str = "duplicate";
    pub const PANICKED: &str = "panicked";
}

/// A table, a gateway, an SQS, and the settings that point a consumer to them.
pub struct Stage {
    pub dynamo: Dynamo,
    pub gateway: Gateway,
    pub sqs: Sqs,
}

impl Stage {
    pub async fn set() -> Self {
        let dynamo = Dynamo::start().await;
        dynamo.create_table(TABLE).await;
        Self {
            dynamo,
            gateway: Gateway::start().await,
            sqs: Sqs::start(SqsBehaviour::Willing).await,
        }
    }

    pub fn env(&self, settings: &[(&str, &str)]) -> Env {
        let queue = [("AWS_ENDPOINT_URL_SQS", self.sqs.endpoint())];
        let settings = [&queue, settings].concat();
        env(self.dynamo.endpoint(), self.gateway.url(), &settings)
    }

    pub async fn consumer(&self, settings: &[(&str, &str)]) -> Lambda {
        Lambda::start(self.env(settings)).await
    }

    /// A consumer whose builder methods take what no setting says: see `tests/adjusted`.
    pub async fn adjusted(&self, settings: &[(&str, &str)]) -> Lambda {
        Lambda::start_binary(&program("adjusted"), self.env(settings)).await
    }

    /// A consumer that does what its messages say: see `tests/adjusted/src/obey.rs`.
    pub async fn obedient(&self, settings: &[(&str, &str)]) -> Lambda {
        self.adjusted(&[&[("TEST_OBEY", "true")], settings].concat())
            .await
    }

    /// The record of a key, under the namespace of the tests.
    pub async fn record(&self, key: &str) -> Option<Item> {
        self.dynamo.record(TABLE, &id(key)).await
    }

    pub async fn status(&self, key: &str) -> String {
        let record = self.record(key).await.unwrap();
        text(&record, "status").to_owned()
    }

    /// Waits until the lease on a key has ended.
    pub async fn lease_ended(&self, key: &str) {
        let record = self.record(key).await.unwrap();
        let left = number(&record, "lease_until") + 1 - now_ms();
        let left = Duration::from_millis(left.try_into().unwrap_or(0));
        tokio::time::sleep(left).await;
    }

    pub fn charges(&self, order: &str) -> usize {
        self.gateway.calls_for(order).len()
    }
}

/// The `id` of a key's record, under the namespace of the tests.
pub fn id(key: &str) -> String {
    format!("{NAMESPACE}#{key}")
}

/// Settings that point a consumer to a table and a gateway. The given settings come last, and
/// override.
pub fn env(dynamo: &str, gateway: &str, settings: &[(&str, &str)]) -> Env {
    let always = [
        ("AWS_ENDPOINT_URL", dynamo),
        ("IDEMPOTENCY_TABLE_NAME", TABLE),
        ("IDEMPOTENCY_NAMESPACE", NAMESPACE),
        // Permanent failures are reported. Tests of direct dead-lettering switch it on.
        ("CONSUMER_DIRECT_DEAD_LETTERING", "off"),
        ("PAYMENT_GATEWAY_URL", gateway),
    ];
    let all = always.iter().chain(settings);
    all.map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

/// Logged outcomes, one per message, once there are `n`.
pub async fn outcomes(lambda: &Lambda, n: usize) -> Vec<String> {
    let lines = lambda.logged(n, of_message).await;
    let outcome = |line: &Value| line["outcome"].as_str().unwrap().to_owned();
    lines.iter().map(outcome).collect()
}

pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_millis().try_into().unwrap()
}

/// A time in milliseconds in the format of log lines, to the second.
pub fn shown(millis: i64) -> String {
    let since = Duration::from_millis(millis.try_into().unwrap());
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}
