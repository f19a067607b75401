//! Messages in the envelopes of SNS, EventBridge and S3.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, EnvelopeMetadata, Failure, Handler, Once, handler_fn, store::MemoryStore,
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
        let facts = attempt.delivery().envelope.clone();
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

fn consumer(envelope: &str, key: &str) -> (Arc<Consumer<Once<MemoryStore>, Seen>>, Seen) {
    let seen = Seen::default();
    let once = Once::new(MemoryStore::default());
    let consumer = Consumer::without_aws(once, namespace(), seen.clone());
    let consumer = consumer
        .key(key.parse().unwrap())
        .envelope(envelope.parse().unwrap());
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
    for name in ["sns", "eventbridge"] {
        let (consumer, seen) = consumer("auto", "body:/orderId");
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
    let (consumer, seen) = consumer("auto", "message-id");
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
    let (consumer, seen) = consumer("auto", "attribute:tenant");
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
        let (consumer, seen) = consumer("auto", key);
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
        assert!(attempt.delivery().envelope.is_none());
        Ok(())
    }
    let once = Once::new(MemoryStore::default());
    let consumer = Arc::new(Consumer::without_aws(once, namespace(), handler_fn(look)));
    assert_eq!(
        process(&consumer, sample("sns"), within(ONE_MINUTE)).await,
        [""; 0]
    );
}

fn sns(message: &str, n: u32) -> Value {
    json!({
        "Type": "Notification", "MessageId": format!("s-{n}"),
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:orders", "Message": message,
        "Timestamp": format!("2026-05-01T10:00:0{n}.000Z"), "Signature": format!("signed-{n}"),
    })
}

fn event_bridge(detail: &Value, n: u32) -> Value {
    json!({
        "version": "0", "id": format!("e-{n}"), "detail-type": "OrderPlaced", "source": "shop",
        "account": "123456789012", "time": format!("2026-05-01T10:00:0{n}Z"), "region": "us-east-1",
        "resources": [], "detail": detail,
    })
}

fn order(id: &str, amount: u32) -> Value {
    json!({"orderId": id, "amount": amount})
}

/// Outcomes by message id.
fn outcomes_of(ids: &[&str]) -> Vec<String> {
    let lines = log::lines_of("message processed");
    let of = |id: &&str| {
        let line = lines
            .iter()
            .find(|line| line["fields"]["message_id"] == **id);
        line.unwrap()["fields"]["outcome"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    ids.iter().map(of).collect()
}

#[tokio::test]
async fn wrapped_and_plain_messages_share_a_queue() {
    let (consumer, seen) = consumer("auto", "body:/orderId");
    log::start();
    let event = batch([
        record("m-1", &sns(&order("o-1", 1).to_string(), 1)),
        record("m-2", &order("o-2", 2)),
        record("m-3", &event_bridge(&order("o-3", 3), 3)),
        record(
            "m-4",
            &sns(&event_bridge(&order("o-4", 4), 4).to_string(), 4),
        ),
        record("m-5", &order("o-1", 1)),
        record("m-6", &event_bridge(&order("o-4", 4), 6)),
    ]);
    let failed = process(&consumer, event, within(ONE_MINUTE)).await;
    assert_eq!(failed, [""; 0]);
    let outcomes = outcomes_of(&["m-1", "m-2", "m-3", "m-4", "m-5", "m-6"]);
    assert_eq!(outcomes[..4], ["completed"; 4]);
    assert_eq!(outcomes[4..], ["duplicate"; 2]);
    let mut orders: Vec<_> = seen
        .take()
        .into_iter()
        .map(|(order, ..)| order.to_string())
        .collect();
    orders.sort();
    let sent = [1, 2, 3, 4].map(|n| order(&format!("o-{n}"), n).to_string());
    assert_eq!(orders, sent);
}

/// Publishes an order of this amount for the `n`th time.
type Publish = fn(amount: u32, n: u32) -> Value;

/// An envelope has its own id and time whenever the order is published.
#[tokio::test]
async fn key_inside_an_envelope_finds_duplicates() {
    let publish: [(&str, Publish); 3] = [
        ("body:/Message/orderId", |amount, n| {
            sns(&order("o-1", amount).to_string(), n)
        }),
        ("body:/detail/orderId", |amount, n| {
            event_bridge(&order("o-1", amount), n)
        }),
        ("body:/Message/detail/orderId", |amount, n| {
            sns(&event_bridge(&order("o-1", amount), n).to_string(), n)
        }),
    ];
    for (key, publish) in publish {
        let (consumer, seen) = consumer("none", key);
        log::start();
        let event = batch([
            record("m-1", &publish(1, 1)),
            record("m-2", &publish(1, 2)),
            record("m-3", &publish(7, 3)),
        ]);
        assert_eq!(
            process(&consumer, event, within(ONE_MINUTE)).await,
            ["m-3"],
            "{key}"
        );
        let outcomes = outcomes_of(&["m-1", "m-2", "m-3"]);
        assert_eq!(outcomes, ["completed", "duplicate", "key_reused"], "{key}");
        // The handler gets the body as it is.
        assert_eq!(seen.take()[0].0, publish(1, 1));
    }
    // A body of the producer's own that only looks like one.
    let (consumer, _) = consumer("none", "body:/detail/orderId");
    log::start();
    let own = |n: u32| json!({"detail": order("o-1", 1), "id": "e-1", "n": n});
    let event = batch([record("m-1", &own(1)), record("m-2", &own(2))]);
    assert_eq!(process(&consumer, event, within(ONE_MINUTE)).await, ["m-2"]);
    assert_eq!(outcomes_of(&["m-2"]), ["key_reused"]);
}

#[tokio::test]
async fn control_messages_reach_no_handler() {
    let confirmation = |kind: &str| {
        let mut body = sns("You have chosen to subscribe", 1);
        body["Type"] = json!(kind);
        body["Token"] = json!("SECRET");
        body
    };
    let test = json!({
        "Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-05-01T10:00:00.000Z",
        "Bucket": "orders-example", "RequestId": "r", "HostId": "h",
    });
    for envelope in ["none", "auto"] {
        for key in ["message-id", "body:/MessageId", "attribute:missing"] {
            let (consumer, seen) = consumer(envelope, key);
            log::start();
            let event = batch([
                record("m-1", &confirmation("SubscriptionConfirmation")),
                record("m-2", &confirmation("UnsubscribeConfirmation")),
                record("m-3", &test),
                record("m-4", &sns(&test.to_string(), 4)),
            ]);
            let failed = process(&consumer, event, within(ONE_MINUTE)).await;
            assert_eq!(failed, ["m-1", "m-2"], "{envelope} {key}");
            assert!(seen.take().is_empty());
            let lines = log::lines_of("message processed");
            for line in lines.iter().map(|line| &line["fields"]) {
                let is_test = ["m-3", "m-4"].iter().any(|id| line["message_id"] == *id);
                let outcome = if is_test { "ignored" } else { "invalid" };
                assert_eq!(line["outcome"], outcome, "{envelope} {key}");
                let detail = line["detail"].as_str().unwrap_or_default();
                let asks = detail.contains("aws sns confirm-subscription");
                assert!(asks != is_test && !detail.contains("SECRET"), "{detail}");
            }
        }
    }
}
