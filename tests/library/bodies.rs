//! Bodies that are not bare JSON: text, types of the user's own, and keys by code.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, DeliveryMetadata, Failure, FromMessage, Handler, InvalidMessage, Json, Mode,
    Once, Text, handler_fn, sqs::KeySource, store::MemoryStore,
};
use support::{
    consumer::{namespace, process, within},
    event::batch,
    log,
};

const ONE_MINUTE: Duration = Duration::from_secs(60);

/// Keys and messages that a handler got.
type Seen<T> = Arc<Mutex<Vec<(String, T)>>>;

/// A handler that keeps its messages.
#[derive(Clone)]
struct Keep<T>(Seen<T>);

impl<T: FromMessage + 'static> Handler for Keep<T> {
    type Message = T;
    type Output = ();

    async fn handle(&self, message: T, attempt: Attempt) -> Result<(), Failure> {
        let key = attempt.key().as_str().to_owned();
        self.0.lock().unwrap().push((key, message));
        Ok(())
    }
}

/// A consumer whose handler takes `T`, and its messages.
fn taking<T: FromMessage + 'static>() -> (Consumer<Once<MemoryStore>, Keep<T>>, Seen<T>) {
    let seen = Seen::default();
    let once = Once::new(MemoryStore::default());
    let consumer = Consumer::without_aws(once, namespace(), Keep(Arc::clone(&seen)));
    (consumer, seen)
}

fn taken<T>(seen: &Seen<T>) -> Vec<T> {
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.into_iter().map(|(_, message)| message).collect()
}

/// A record with this body, and these message attributes.
fn record<const N: usize>(id: &str, body: &str, attributes: [(&str, &str); N]) -> Value {
    let attributes = attributes.map(|(name, value)| {
        let value = json!({"stringValue": value, "dataType": "String"});
        (name.to_owned(), value)
    });
    json!({
        "messageId": id, "receiptHandle": format!("receipt-{id}"), "body": body,
        "attributes": {"ApproximateReceiveCount": "1"},
        "messageAttributes": Value::Object(attributes.into_iter().collect()),
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:orders",
    })
}

/// Outcome and detail of each message of a batch, in the order of the log.
async fn run<M: Mode<H::Output>, H: Handler>(
    consumer: Consumer<M, H>,
    records: impl IntoIterator<Item = Value>,
) -> Vec<(String, String)> {
    let records: Vec<_> = records.into_iter().collect();
    let ids: Vec<_> = records
        .iter()
        .map(|record| record["messageId"].clone())
        .collect();
    log::start();
    let _failed = process(&Arc::new(consumer), batch(records), within(ONE_MINUTE)).await;
    let mut lines = log::lines_of("message processed");
    // In the order of the batch. Messages end in the order of their chains.
    lines.sort_by_key(|line| {
        ids.iter()
            .position(|id| *id == line["fields"]["message_id"])
    });
    let text = |line: &Value, name: &str| line["fields"][name].as_str().unwrap_or("").to_owned();
    lines
        .into_iter()
        .map(|line| (text(&line, "outcome"), text(&line, "detail")))
        .collect()
}

/// The detail of one message that is refused.
async fn rejection<M: Mode<H::Output>, H: Handler>(
    consumer: Consumer<M, H>,
    record: Value,
) -> String {
    let mut outcomes = run(consumer, [record]).await;
    let (outcome, detail) = outcomes.remove(0);
    assert_eq!(outcome, "invalid", "{detail}");
    detail
}

const COMPLETED: &str = "completed";

/// A body such as `7 EUR`, of a tenant, as a program reads it.
#[derive(Debug, PartialEq, Eq)]
struct Price {
    cents: u32,
    tenant: String,
    queue: Option<String>,
    topic: Option<String>,
}

impl FromMessage for Price {
    fn from_message(body: &str, delivery: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
        let euros = body.strip_suffix(" EUR").ok_or("no price")?;
        let euros: u32 = euros
            .parse()
            .map_err(|_| format!("{} letters", euros.len()))?;
        let tenant = delivery.attribute("tenant");
        let envelope = delivery.envelope.as_ref();
        Ok(Self {
            cents: euros * 100,
            tenant: tenant.ok_or("no attribute `tenant`")?.to_owned(),
            queue: delivery.queue_arn.clone(),
            topic: envelope.and_then(|envelope| envelope.source.clone()),
        })
    }
}

#[tokio::test]
async fn each_type_takes_its_view_of_a_body() {
    let order = r#"{"orderId":"o-1"}"#;
    let records = || [record("m-1", order, [])];
    let (consumer, seen) = taking::<Json<Value>>();
    assert_eq!(run(consumer, records()).await[0].0, COMPLETED);
    assert_eq!(taken(&seen), [Json(json!({"orderId": "o-1"}))]);
    let (consumer, seen) = taking::<Value>();
    run(consumer, records()).await;
    assert_eq!(taken(&seen), [json!({"orderId": "o-1"})]);
    let (consumer, seen) = taking::<Text>();
    run(consumer, [record("m-1", order, []), record("m-2", "", [])]).await;
    assert_eq!(taken(&seen), [Text(order.into()), Text::default()]);
    let (consumer, _) = taking::<Value>();
    let why = rejection(consumer, record("m-1", "", [])).await;
    assert!(why.contains("not valid JSON"), "{why}");
}

#[tokio::test]
async fn own_type_sees_body_attributes_and_delivery() {
    let (consumer, seen) = taking::<Price>();
    run(
        consumer.clone(),
        [record("m-1", "7 EUR", [("tenant", "acme")])],
    )
    .await;
    let price = |topic: Option<&str>| Price {
        cents: 700,
        tenant: "acme".into(),
        queue: Some("arn:aws:sqs:us-east-1:123456789012:orders".into()),
        topic: topic.map(str::to_owned),
    };
    assert_eq!(taken(&seen), [price(None)]);
    let notification = json!({
        "Type": "Notification", "MessageId": "s-1", "TopicArn": "arn", "Message": "7 EUR",
        "Timestamp": "2026-11-22T08:00:00.000Z",
        "MessageAttributes": {"tenant": {"Type": "String", "Value": "acme"}},
    });
    let consumer = consumer.envelope("auto".parse().unwrap());
    run(consumer, [record("m-2", &notification.to_string(), [])]).await;
    assert_eq!(taken(&seen), [price(Some("arn"))]);
}

#[tokio::test]
async fn own_types_error_is_permanent_in_the_users_words() {
    let (consumer, seen) = taking::<Price>();
    for (body, why) in [
        ("7 USD", "no price"),
        ("seven EUR", "5 letters"),
        ("7 EUR", "no attribute `tenant`"),
    ] {
        assert_eq!(
            rejection(consumer.clone(), record(body, body, [])).await,
            why
        );
    }
    assert_eq!(taken(&seen), []);
}

#[tokio::test]
async fn key_function_sees_body_and_attributes() {
    let by_code = KeySource::from_fn(|body, delivery| {
        let tenant = delivery
            .attribute("tenant")
            .ok_or("no attribute `tenant`")?;
        let order = body.chars().next().ok_or("an empty body")?;
        Ok::<_, &str>([tenant.to_owned(), order.to_string()])
    });
    let (consumer, seen) = taking::<Text>();
    let consumer = consumer.key(by_code);
    let tenant = ("tenant", "acme");
    let records = [
        record("m-1", "é1", [tenant]),
        record("m-2", "é1", [tenant]),
        record("m-3", "é2", [tenant]),
        record("m-4", "é", []),
        record("m-5", "", [tenant]),
    ];
    let mut outcomes = run(consumer, records).await;
    outcomes.sort_unstable();
    assert_eq!(
        names(&outcomes),
        [COMPLETED, "duplicate", "invalid", "invalid", "key_reused"]
    );
    let key = format!("{}#acme#é", namespace().as_str());
    assert_eq!(seen.lock().unwrap()[0].0, key);
    let why = "no idempotency key by the key function";
    assert_eq!(outcomes[2].1, format!("{why}: an empty body"));
    assert_eq!(outcomes[3].1, format!("{why}: no attribute `tenant`"));
}

#[tokio::test]
async fn panic_in_key_function_fails_its_message_alone() {
    let panicking = KeySource::from_fn(|body, delivery| {
        assert_ne!(body, "2", "no key");
        Ok::<_, String>([delivery.message_id.clone()])
    });
    let (consumer, seen) = taking::<u32>();
    let consumer = Arc::new(consumer.key(panicking));
    let records = ["1", "2", "3"].map(|n| record(&format!("m-{n}"), n, []));
    let failed = process(&consumer, batch(records), within(ONE_MINUTE)).await;
    assert_eq!(failed, ["m-2"]);
    assert_eq!(taken(&seen), [1, 3]);
}

#[tokio::test]
async fn bodies_that_are_not_json_have_keys() {
    for key in ["message-id", "attribute:order"] {
        let (consumer, seen) = taking::<Text>();
        let consumer = consumer.key(key.parse().unwrap());
        let order = ("order", "o-1");
        let records =
            ["plain text", "plain text", "other text"].map(|text| record("m-1", text, [order]));
        let outcomes = run(consumer, records).await;
        assert_eq!(
            names(&outcomes),
            [COMPLETED, "duplicate", "key_reused"],
            "{key}"
        );
        assert_eq!(taken(&seen).len(), 1);
    }
}

/// Records of a sample event.
fn sample(name: &str) -> Vec<Value> {
    let path = format!("{}/events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let event: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    event["Records"].as_array().unwrap().clone()
}

fn names(outcomes: &[(String, String)]) -> Vec<&str> {
    outcomes
        .iter()
        .map(|(outcome, _)| outcome.as_str())
        .collect()
}

#[tokio::test]
async fn producer_key_runs_each_request_once() {
    let key = "body:/metadata/idempotencyKey";
    let (consumer, seen) = taking::<Value>();
    let consumer = consumer.key(key.parse().unwrap());
    let by_parts = "body:/orderId,/amount".parse().unwrap();
    let outcomes = run(
        consumer.clone().fingerprint(by_parts),
        sample("producer-key"),
    )
    .await;
    assert_eq!(names(&outcomes), [COMPLETED, "duplicate", COMPLETED]);
    let keys: Vec<_> = seen.lock().unwrap().drain(..).map(|(key, _)| key).collect();
    assert_eq!(keys[0], "test#0196886a-1c00-7a51-9f0e-3b6f6d7c1e01");
    assert_eq!(keys[1], "test#0196886a-2310-7c3d-8a44-5d1f0b9e7a02");
    // The time of sending is part of the whole body.
    let (consumer, _) = taking::<Value>();
    let outcomes = run(consumer.key(key.parse().unwrap()), sample("producer-key")).await;
    assert_eq!(names(&outcomes), [COMPLETED, "key_reused", COMPLETED]);
}

#[tokio::test]
async fn redriven_message_runs_as_its_key_says() {
    /// Fails the second order at first.
    async fn charge(order: Value, attempt: Attempt) -> Result<(), Failure> {
        let is_copy = attempt.attribute("SqsOnceReason").is_some();
        match order["orderId"].as_str() {
            Some("ord-2026-000002") if !is_copy => Err(Failure::permanent("422")),
            _ => Ok(()),
        }
    }
    for (key, redriven) in [
        ("body:/orderId", ["duplicate", COMPLETED]),
        // A new message id is a new operation: the first order is charged again.
        ("message-id", [COMPLETED, COMPLETED]),
    ] {
        let once = Once::new(MemoryStore::default());
        let consumer = Consumer::without_aws(once, namespace(), handler_fn(charge));
        let consumer = consumer.key(key.parse().unwrap());
        let first = run(consumer.clone(), sample("new-orders")).await;
        assert_eq!(names(&first)[..2], [COMPLETED, "permanent_failure"]);
        let second = run(consumer.clone(), sample("redriven")).await;
        assert_eq!(names(&second), redriven, "{key}");
        let third = run(consumer, sample("redriven")).await;
        assert_eq!(names(&third), ["duplicate", "duplicate"], "{key}");
    }
}

#[test]
fn redriven_sample_is_of_the_new_orders() {
    let (sent, redriven) = (sample("new-orders"), sample("redriven"));
    for (sent, redriven) in sent.iter().zip(&redriven) {
        assert_eq!(sent["body"], redriven["body"]);
        assert_ne!(sent["messageId"], redriven["messageId"]);
    }
    let of = &redriven[0]["messageAttributes"]["SqsOnceRedriveOf"]["stringValue"];
    assert_eq!(*of, sent[0]["messageId"]);
}

#[tokio::test]
async fn slow_keys_leave_time_for_other_messages() {
    let slow = KeySource::from_fn(|_, delivery| {
        let id = &delivery.message_id;
        if id != "order" {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok::<_, String>([id.clone()])
    });
    let (consumer, seen) = taking::<u32>();
    let mut records = vec![record("order", "7", [])];
    records.extend((0..300).map(|n| record(&format!("m-{n}"), "no number", [])));
    let budget = Duration::from_secs(2);
    let started = std::time::Instant::now();
    let consumer = Arc::new(consumer.key(slow));
    let failed = process(&consumer, batch(records), within(budget)).await;
    assert!(started.elapsed() < 2 * budget, "{:?}", started.elapsed());
    assert_eq!(failed.len(), 300);
    assert_eq!(taken(&seen), [7]);
}
