//! Messages in the envelopes of SNS, EventBridge and S3.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, EnvelopeMetadata, Failure, Handler, Once, handler_fn, sqs::Envelope,
    store::MemoryStore,
};
use support::{
    consumer::{namespace, process, within},
    event::{batch, record},
    log,
};

const ONE_MINUTE: Duration = Duration::from_secs(60);

/// A message, the facts of its envelope, and its attribute `tenant`.
type Got = (Value, Option<EnvelopeMetadata>, Option<String>);

/// The messages that a handler got.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Got>>>);

impl Handler for Seen {
    type Message = Value;
    type Output = ();

    async fn handle(&self, message: Value, attempt: Attempt) -> Result<(), Failure> {
        let tenant = attempt.attribute("tenant").map(str::to_owned);
        let facts = attempt.envelope().cloned();
        self.0.lock().unwrap().push((message, facts, tenant));
        Ok(())
    }
}

impl Seen {
    fn take(&self) -> Vec<Got> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn sample(name: &str) -> Value {
    let path = format!("{}/events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn consumer(envelope: Envelope, key: &str) -> (Arc<Consumer<Once<MemoryStore>, Seen>>, Seen) {
    let seen = Seen::default();
    let once = Once::new(MemoryStore::default());
    let consumer = Consumer::new(once, namespace(), seen.clone());
    let consumer = consumer.key(key.parse().unwrap()).envelope(envelope);
    (Arc::new(consumer), seen)
}

fn outcomes() -> Vec<String> {
    let lines = log::lines_of("message processed").into_iter();
    lines
        .map(|line| line["fields"]["outcome"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn order_published_twice_runs_once() {
    for (envelope, name) in [
        (Envelope::Sns, "sns"),
        (Envelope::EventBridge, "eventbridge"),
    ] {
        let (consumer, seen) = consumer(envelope, "body:/orderId");
        log::start();
        let failed = process(&consumer, sample(name), within(ONE_MINUTE)).await;
        assert_eq!(failed, [""; 0], "{name}");
        assert_eq!(outcomes(), ["completed", "duplicate"], "{name}");
        let seen = seen.take();
        let [(order, Some(facts), _)] = &seen[..] else {
            panic!("{seen:?}");
        };
        assert_eq!(order["orderId"], "ord-2026-000071", "{name}");
        assert!(order.get("MessageId").is_none() && order.get("detail").is_none());
        assert!(facts.id.is_some() && facts.source.is_some() && facts.time.is_some());
    }
}

#[tokio::test]
async fn envelope_facts_reach_the_handler() {
    let (consumer, seen) = consumer(Envelope::EventBridge, "message-id");
    process(&consumer, sample("eventbridge"), within(ONE_MINUTE)).await;
    let (_, facts, _) = seen.take().remove(0);
    let facts = facts.unwrap();
    assert_eq!(
        facts.id.as_deref(),
        Some("6a7e8feb-b491-4cf7-a9f1-bf3703467718")
    );
    assert_eq!(facts.source.as_deref(), Some("shop.orders"));
    assert_eq!(facts.detail_type.as_deref(), Some("OrderPlaced"));
    assert_eq!(facts.time.as_deref(), Some("2026-05-01T10:00:04Z"));
}

#[tokio::test]
async fn sns_attributes_are_keys_and_attributes() {
    let (consumer, seen) = consumer(Envelope::Sns, "attribute:tenant");
    log::start();
    process(&consumer, sample("sns"), within(ONE_MINUTE)).await;
    assert_eq!(outcomes(), ["completed", "duplicate"]);
    let (_, facts, tenant) = seen.take().remove(0);
    assert_eq!(tenant.as_deref(), Some("acme"));
    let topic = "arn:aws:sns:us-east-1:123456789012:orders";
    assert_eq!(facts.unwrap().source.as_deref(), Some(topic));
}

#[tokio::test]
async fn s3_test_event_is_acknowledged_without_handler() {
    for key in ["message-id", "body:/0/s3/object/key"] {
        let (consumer, seen) = consumer(Envelope::S3, key);
        log::start();
        let failed = process(&consumer, sample("s3"), within(ONE_MINUTE)).await;
        assert_eq!(failed, [""; 0]);
        let mut outcomes = outcomes();
        outcomes.sort_unstable();
        assert_eq!(outcomes, ["completed", "ignored"]);
        let seen = seen.take();
        let [(records, Some(facts), _)] = &seen[..] else {
            panic!("{seen:?}");
        };
        assert_eq!(
            records[0]["s3"]["object"]["key"],
            "incoming/order 1(new).json"
        );
        assert_eq!(facts.source.as_deref(), Some("arn:aws:s3:::orders-example"));
    }
}

#[tokio::test]
async fn without_envelope_setting_the_body_is_as_sent() {
    async fn look(message: Value, attempt: Attempt) -> Result<(), Failure> {
        assert_eq!(message["Type"], "Notification");
        assert!(attempt.envelope().is_none());
        Ok(())
    }
    let once = Once::new(MemoryStore::default());
    let consumer = Arc::new(Consumer::new(once, namespace(), handler_fn(look)));
    assert_eq!(
        process(&consumer, sample("sns"), within(ONE_MINUTE)).await,
        [""; 0]
    );
}

#[tokio::test]
async fn message_without_envelope_is_invalid() {
    let (consumer, seen) = consumer(Envelope::Sns, "message-id");
    log::start();
    let event = batch([record("m-1", &json!({"orderId": "SECRET"}))]);
    assert_eq!(process(&consumer, event, within(ONE_MINUTE)).await, ["m-1"]);
    let lines = log::lines_of("message processed");
    assert_eq!(lines[0]["fields"]["outcome"], "invalid");
    let detail = lines[0]["fields"]["detail"].as_str().unwrap();
    assert!(detail.contains("CONSUMER_ENVELOPE is sns"), "{detail}");
    assert!(!detail.contains("SECRET"), "{detail}");
    assert!(seen.take().is_empty());
}
