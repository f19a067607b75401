//! The relay sends a batch of the stream to a queue.

use std::{path::Path, time::Duration};

use aws_config::{SdkConfig, timeout::TimeoutConfig};
use lambda_runtime::{LambdaEvent, tower::ServiceExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use sqs_once::{Deadline, Settings, protocol::Timestamp};
use sqs_once_outbox::{Relay, RelayError};
use support::{
    emf,
    runtime_api::{Lambda, says},
    sqs::{Sqs, SqsBehaviour},
    stopwatch::Stopwatch,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

const SHIPPING: &str = "https://sqs.example/1/shipping.fifo";
const BILLING: &str = "https://sqs.example/1/billing";
const DEAD: &str = "https://sqs.example/1/dead";

async fn relay(sqs: &Sqs) -> Relay {
    relay_with(support::sdk_config(sqs.endpoint())).await
}

async fn relay_with(config: SdkConfig) -> Relay {
    let settings = Settings::from_vars([
        ("AWS_LAMBDA_FUNCTION_NAME", "relay"),
        (
            "OUTBOX_TARGETS",
            &*format!("placed={SHIPPING},billed={BILLING}"),
        ),
        ("OUTBOX_DEAD_LETTER_QUEUE_URL", DEAD),
        ("CONSUMER_METRICS", "off"),
    ]);
    Relay::from_settings(settings.sdk_config(config))
        .await
        .unwrap()
}

/// A record of the stream: an event of this group, with this body.
fn event(number: u32, name: &str, group: &str, body: &str) -> Value {
    item(number, group, only(name, body, 0))
}

/// The only event of a group in its answer. Older consumers write each event so.
fn only(name: &str, body: &str, index: u32) -> Value {
    json!({
        "id": {"S": format!("orders#{body}#{index:02}")},
        "name": {"S": name},
        "body": {"S": json!(body).to_string()},
    })
}

/// Several events of a group in one answer, all with the name `placed`.
fn several(number: u32, group: &str, bodies: &[&str]) -> Value {
    let events = (0..).zip(bodies);
    let events = events.map(|(index, body)| json!({ "M": only("placed", body, index) }));
    let events = json!({ "events": {"L": events.collect::<Vec<_>>()} });
    item(number, group, events)
}

/// A record of the stream with these attributes of one or several events.
fn item(number: u32, group: &str, mut image: Value) -> Value {
    image["group"] = json!({ "S": group });
    image["sequence"] = json!({ "S": format!("001796000000000#commit-{number}#00") });
    image["published_at"] = json!({ "N": Timestamp::now().as_millis().to_string() });
    image["expires_at"] = json!({ "N": "1796604800" });
    change(number, "INSERT", &image)
}

/// The same event, published so many minutes ago.
fn aged(mut event: Value, minutes: u64) -> Value {
    let published_at = Timestamp::now().as_millis() - minutes * 60_000;
    event["dynamodb"]["NewImage"]["published_at"] = json!({ "N": published_at.to_string() });
    event
}

fn change(number: u32, kind: &str, image: &Value) -> Value {
    json!({
        "eventID": format!("event-{number}"),
        "eventName": kind,
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "eu-central-1",
        "dynamodb": {
            "ApproximateCreationDateTime": 1_796_000_000.0,
            "Keys": {"group": {"S": "g"}, "sequence": {"S": "s"}},
            "NewImage": image,
            "SequenceNumber": number.to_string(),
            "SizeBytes": 100,
            "StreamViewType": "NEW_IMAGE",
        },
        "eventSourceARN": "arn:aws:dynamodb:eu-central-1:123456789012:table/outbox/stream/2026",
    })
}

/// Sends a batch. Returns the sequence numbers in the response.
async fn send(relay: &Relay, records: &[Value]) -> Vec<String> {
    send_within(relay, records, Duration::from_secs(20)).await
}

async fn send_within(relay: &Relay, records: &[Value], time: Duration) -> Vec<String> {
    let event = serde_json::from_value(json!({ "Records": records })).unwrap();
    let deadline = Deadline::after(Timestamp::now(), time, time / 4);
    let failures = relay.process(event, deadline).await.batch_item_failures;
    let number = |failure: aws_lambda_events::streams::DynamoDbBatchItemFailure| {
        failure.item_identifier.unwrap()
    };
    failures.into_iter().map(number).collect()
}

fn bodies(sqs: &Sqs, queue: &str) -> Vec<String> {
    let sent = sqs.each_sent_to(queue);
    let body =
        |entry: &Value| serde_json::from_str(entry["MessageBody"].as_str().unwrap()).unwrap();
    sent.iter().map(body).collect()
}

#[tokio::test]
async fn event_is_sent_with_its_id_and_group() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let records = [
        event(1, "placed", "c-1", "a"),
        event(2, "billed", "c-1", "b"),
    ];
    assert!(send(&relay(&sqs).await, &records).await.is_empty());
    let [sent] = &sqs.sent_to(SHIPPING)[..] else {
        panic!("{:?}", sqs.sent_to(SHIPPING));
    };
    assert_eq!(sent["MessageBody"], "\"a\"");
    assert_eq!(sent["MessageGroupId"], "c-1");
    assert_eq!(sent["MessageDeduplicationId"], "orders#a#00");
    let attributes = &sent["MessageAttributes"];
    assert_eq!(attributes["idempotencyKey"]["StringValue"], "orders#a#00");
    assert_eq!(attributes["eventName"]["StringValue"], "placed");
    let [sent] = &sqs.sent_to(BILLING)[..] else {
        panic!("{:?}", sqs.sent_to(BILLING));
    };
    assert_eq!(
        sent["MessageAttributes"]["idempotencyKey"]["StringValue"],
        "orders#b#00"
    );
    // The tenant of fair queues.
    assert_eq!(sent["MessageGroupId"], "c-1");
    assert!(sent.get("MessageDeduplicationId").is_none());
}

#[tokio::test]
async fn event_without_group_is_no_tenant_of_its_own() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let records = [
        event(1, "placed", "orders#a#00", "a"),
        event(2, "billed", "orders#b#00", "b"),
        event(3, "lost", "orders#c#00", "c"),
    ];
    assert!(send(&relay(&sqs).await, &records).await.is_empty());
    assert_eq!(sqs.sent_to(SHIPPING)[0]["MessageGroupId"], "orders#a#00");
    for queue in [BILLING, DEAD] {
        let [sent] = &sqs.sent_to(queue)[..] else {
            panic!("{queue}: {:?}", sqs.sent_to(queue));
        };
        assert!(sent.get("MessageGroupId").is_none(), "{queue}");
    }
}

/// Reads one request, denies it, and returns its text.
async fn denied_request(listener: &TcpListener) -> String {
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    loop {
        connection.read_buf(&mut request).await.unwrap();
        let text = String::from_utf8_lossy(&request).to_lowercase();
        let length = |head: &str| -> Option<usize> {
            let (_, length) = head.split_once("content-length: ")?;
            length.lines().next()?.parse().ok()
        };
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && length(head) == Some(body.len())
        {
            break;
        }
    }
    let denied = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    connection.write_all(denied).await.unwrap();
    String::from_utf8(request).unwrap()
}

/// Reads the request itself, because the topics of our emulator drop the group.
#[tokio::test]
async fn standard_topic_gets_the_group_as_tenant() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = support::sdk_config(&format!("http://{}", listener.local_addr().unwrap()));
    let targets = "placed=arn:aws:sns:eu-central-1:123456789012:placed";
    let relay = Relay::new(&config, targets.parse().unwrap(), DEAD).unwrap();
    let records = [
        event(1, "placed", "c-1", "a"),
        event(2, "placed", "orders#b#00", "b"),
    ];
    let (failed, request) = tokio::join!(send(&relay, &records), denied_request(&listener));
    assert_eq!(failed, ["1"]);
    assert_eq!(request.matches(".MessageGroupId=").count(), 1, "{request}");
    let tenant = "PublishBatchRequestEntries.member.1.MessageGroupId=c-1";
    assert!(request.contains(tenant), "{request}");
    assert!(!request.contains("MessageDeduplicationId"), "{request}");
}

#[tokio::test]
async fn group_is_sent_in_the_order_of_the_stream() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let names: Vec<String> = (0..50).map(|n| format!("{:02}", (n * 7) % 50)).collect();
    let record = |(n, name): (usize, &String)| {
        event(
            n.try_into().unwrap(),
            "placed",
            &format!("c-{}", n % 3),
            name,
        )
    };
    let records: Vec<_> = names.iter().enumerate().map(record).collect();
    assert!(send(&relay(&sqs).await, &records).await.is_empty());
    for group in 0..3 {
        let sent = sqs.sent_to(SHIPPING);
        let of_group = |entry: &&Value| entry["MessageGroupId"] == format!("c-{group}");
        let sent: Vec<_> = sent
            .iter()
            .filter(of_group)
            .map(|entry| entry["MessageBody"].clone())
            .collect();
        let expected: Vec<_> = names
            .iter()
            .skip(group)
            .step_by(3)
            .map(|name| json!(format!("\"{name}\"")))
            .collect();
        assert_eq!(sent, expected);
    }
    // 3 groups side by side in one call.
    assert_eq!(sqs.calls("SendMessageBatch").len(), 17);
}

#[tokio::test]
async fn events_of_an_item_keep_the_answers_order() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let records = [
        several(1, "c-1", &["a", "b", "c"]),
        event(2, "placed", "c-1", "d"),
        several(3, "c-1", &["e", "f"]),
    ];
    assert!(send(&relay(&sqs).await, &records).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["a", "b", "c", "d", "e", "f"]);
    let ids = sqs.sent_to(SHIPPING);
    assert_eq!(ids[2]["MessageDeduplicationId"], "orders#c#02");
}

/// The form of an item that relays before the list `events` read.
#[derive(Deserialize)]
struct OlderItem {
    #[serde(rename = "group")]
    _group: String,
    #[serde(rename = "sequence")]
    _sequence: String,
    id: String,
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "body")]
    _body: String,
    #[serde(rename = "published_at")]
    _published_at: u64,
}

/// An older relay sends the single events of newer consumers. Of an item with a list it takes no part: it
/// dead-letters the key, and a change of the item makes the newer relay send all its events.
#[tokio::test]
async fn older_relay_takes_no_part_of_a_list() {
    let older = |record: &Value| {
        let image = record["dynamodb"]["NewImage"].clone();
        serde_dynamo::from_item::<serde_dynamo::Item, OlderItem>(
            serde_json::from_value(image).unwrap(),
        )
    };
    let (single, list) = (
        event(1, "placed", "c-1", "a"),
        several(2, "c-1", &["b", "c"]),
    );
    assert_eq!(older(&single).unwrap().id, "orders#a#00");
    assert!(older(&list).is_err());
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let image = &list["dynamodb"]["NewImage"];
    let changed = [single, change(3, "MODIFY", image)];
    assert!(send(&relay(&sqs).await, &changed).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["a", "b", "c"]);
}

/// The second event of the item fails.
#[tokio::test]
async fn failed_event_of_an_item_returns_the_record() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let mut records = [
        several(1, "c-1", &["a", "b"]),
        event(2, "placed", "c-2", "c"),
    ];
    records[0]["dynamodb"]["NewImage"]["events"]["L"][1]["M"]["name"] = json!({ "S": "billed" });
    sqs.turn_for(BILLING, SqsBehaviour::Denying);
    let relay = relay(&sqs).await;
    assert_eq!(send(&relay, &records).await, ["1"]);
    assert_eq!(bodies(&sqs, SHIPPING), ["a", "c"]);
    sqs.turn_for(BILLING, SqsBehaviour::Willing);
    assert!(send(&relay, &records[..1]).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["a", "c"]);
    assert_eq!(bodies(&sqs, BILLING), ["b"]);
}

/// Nothing is half sent of an item that is not complete.
#[tokio::test]
async fn incomplete_item_is_dead_lettered() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let mut broken = several(1, "c-1", &["a", "b"]);
    let second = &mut broken["dynamodb"]["NewImage"]["events"]["L"][1]["M"];
    second.as_object_mut().unwrap().remove("body");
    let empty = several(2, "c-1", &[]);
    assert!(send(&relay(&sqs).await, &[broken, empty]).await.is_empty());
    assert!(bodies(&sqs, SHIPPING).is_empty());
    assert_eq!(sqs.sent_to("dead").len(), 2);
}

#[tokio::test]
async fn failed_event_stops_its_group_alone() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.turn_for("SendMessageBatch", SqsBehaviour::FailingFirst);
    let records = [
        event(11, "placed", "c-2", "a"),
        event(12, "placed", "c-1", "b"),
        event(13, "placed", "c-1", "c"),
        event(14, "placed", "c-2", "d"),
    ];
    // Groups are sent by name: `b` of c-1 is the first entry. The next round has `d` alone.
    let relay = relay(&sqs).await;
    assert_eq!(send(&relay, &records).await, ["12"]);
    assert_eq!(bodies(&sqs, SHIPPING), ["a"]);
    sqs.turn_for("SendMessageBatch", SqsBehaviour::Willing);
    assert!(send(&relay, &records[1..]).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["a", "b", "d", "c"]);
}

#[tokio::test]
async fn unconfirmed_event_is_sent_again() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let relay = relay(&sqs).await;
    let records = [
        event(1, "placed", "c-1", "a"),
        event(2, "placed", "c-2", "b"),
    ];
    for (behaviour, first) in [
        (SqsBehaviour::Empty, "1"),
        (SqsBehaviour::Forgetful, "2"),
        (SqsBehaviour::Cut, "1"),
        (SqsBehaviour::Denying, "1"),
    ] {
        sqs.turn_for("SendMessageBatch", behaviour);
        assert_eq!(send(&relay, &records).await, [first], "{behaviour:?}");
    }
    assert!(sqs.sent_to("dead").is_empty());
}

#[tokio::test]
async fn refused_event_is_dead_lettered_alone() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let records = [
        event(1, "placed", "c-1", "a"),
        event(2, "unknown", "c-1", "b"),
        change(3, "INSERT", &json!({"group": {"S": "c-1"}})),
        event(4, "placed", "c-1", "c"),
    ];
    assert!(send(&relay(&sqs).await, &records).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["a", "c"]);
    let mut dead = sqs.sent_to("dead");
    let reason = |entry: &Value| {
        entry["MessageAttributes"]["SqsOnceReason"]["StringValue"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    dead.sort_by_key(reason);
    assert_eq!(
        dead.iter().map(reason).collect::<Vec<_>>(),
        ["NoTarget", "NotAnEvent"]
    );
    assert_eq!(dead[0]["MessageBody"], "\"b\"");
    assert_eq!(
        dead[0]["MessageAttributes"]["idempotencyKey"]["StringValue"],
        "orders#b#00"
    );
    let keys: Value = serde_json::from_str(dead[1]["MessageBody"].as_str().unwrap()).unwrap();
    assert!(
        keys["group"].is_object() || keys["group"].is_string(),
        "{keys}"
    );
}

#[tokio::test]
async fn event_refused_by_its_target_is_dead_lettered() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let relay = relay(&sqs).await;
    let records = [
        event(1, "placed", "c-1", "a"),
        event(2, "placed", "c-2", "b"),
    ];
    sqs.turn(SqsBehaviour::RefusingFirst);
    // The dead-letter queue refuses it too: it stays in the stream.
    assert_eq!(send(&relay, &records).await, ["1"]);
    sqs.turn_for(DEAD, SqsBehaviour::Willing);
    assert!(send(&relay, &records[..1]).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["b"]);
    assert_eq!(bodies(&sqs, DEAD), ["a"]);
}

/// A queue URL of another Region, or a misspelt one, refuses every call: that says nothing of the events.
#[tokio::test]
async fn refusal_of_every_call_is_a_failure() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let relay = relay(&sqs).await;
    sqs.turn_for(SHIPPING, SqsBehaviour::Invalid(""));
    let two = [
        event(1, "placed", "c-1", "a"),
        event(2, "placed", "c-2", "b"),
    ];
    assert_eq!(send(&relay, &two).await, ["1"]);
    assert_eq!(send(&relay, &two[1..]).await, ["2"]);
    assert!(sqs.sent_to("dead").is_empty());
}

#[tokio::test]
async fn refusal_of_one_call_is_that_of_its_event() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let relay = relay(&sqs).await;
    sqs.turn_for(SHIPPING, SqsBehaviour::Invalid("poison"));
    let records = [
        event(1, "placed", "c-1", "poison"),
        event(2, "placed", "c-2", "b"),
        event(3, "placed", "c-1", "c"),
    ];
    assert!(send(&relay, &records).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["b", "c"]);
    let [dead] = &sqs.sent_to("dead")[..] else {
        panic!("{:?}", sqs.sent_to("dead"));
    };
    let reason = &dead["MessageAttributes"]["SqsOnceReason"]["StringValue"];
    assert_eq!(reason, "InvalidParameterValue");
}

#[tokio::test]
async fn unconfirmed_dead_letter_stays_in_the_stream() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.turn_for("SendMessageBatch", SqsBehaviour::Empty);
    let records = [
        event(1, "unknown", "c-1", "a"),
        event(2, "placed", "c-1", "b"),
    ];
    assert_eq!(send(&relay(&sqs).await, &records).await, ["1"]);
    assert!(
        sqs.sent_to(SHIPPING).is_empty(),
        "behind an event that is not sent"
    );
}

/// Lambda reads no further in the shard while an event fails, so a denied target would hold up all others.
#[tokio::test]
async fn denied_event_is_dead_lettered_after_a_time() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.turn_for(SHIPPING, SqsBehaviour::Denying);
    let relay = relay(&sqs).await;
    let young = [
        event(1, "billed", "c-1", "a"),
        aged(event(2, "placed", "c-2", "b"), 14),
    ];
    assert_eq!(send(&relay, &young).await, ["2"]);
    assert!(sqs.sent_to("dead").is_empty());
    let old = [
        aged(event(2, "placed", "c-2", "b"), 16),
        aged(event(3, "billed", "c-2", "c"), 16),
        event(4, "billed", "c-3", "d"),
    ];
    assert!(send(&relay, &old).await.is_empty());
    let [dead] = &sqs.sent_to("dead")[..] else {
        panic!("{:?}", sqs.sent_to("dead"));
    };
    let reason = &dead["MessageAttributes"]["SqsOnceReason"]["StringValue"];
    assert_eq!(
        (reason, &dead["MessageBody"]),
        (&json!("AccessDeniedException"), &json!("\"b\""))
    );
    assert_eq!(bodies(&sqs, BILLING), ["a", "d", "c"]);
}

#[tokio::test]
async fn throttled_event_stays_in_the_stream() {
    for code in ["RequestThrottled", "KMS.ThrottlingException"] {
        let sqs = Sqs::start(SqsBehaviour::Willing).await;
        sqs.turn_for(SHIPPING, SqsBehaviour::ThrottlingFirst(code));
        let records = [aged(event(1, "placed", "c-1", "a"), 60)];
        assert_eq!(send(&relay(&sqs).await, &records).await, ["1"], "{code}");
        assert!(sqs.sent_to("dead").is_empty(), "{code}");
    }
}

/// One call timed out, and the target was not called for the other events.
#[tokio::test]
async fn old_event_that_was_not_tried_stays_in_the_stream() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.turn_for(SHIPPING, SqsBehaviour::Hanging);
    let old = |number, body| aged(event(number, "placed", "c-1", body), 16);
    let records = [old(1, "a"), old(2, "b"), old(3, "c")];
    let limit = TimeoutConfig::builder().operation_timeout(Duration::from_secs(2));
    let builder = support::sdk_config(sqs.endpoint()).to_builder();
    let relay = relay_with(builder.timeout_config(limit.build()).build()).await;
    assert_eq!(send(&relay, &records).await, ["2"]);
    let [dead] = &sqs.sent_to("dead")[..] else {
        panic!("{:?}", sqs.sent_to("dead"));
    };
    assert_eq!(dead["MessageBody"], "\"a\"");
}

/// Otherwise a record with many events could use up the time of each invocation, and never get to its end.
#[tokio::test]
async fn record_continues_behind_its_sent_events() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let (relay, another) = (relay(&sqs).await, relay(&sqs).await);
    let records = [several(1, "c-1", &["a", "stuck", "c"])];
    sqs.turn_for(SHIPPING, SqsBehaviour::Invalid("stuck"));
    assert_eq!(send(&relay, &records).await, ["1"]);
    assert_eq!(send(&relay, &records).await, ["1"]);
    sqs.turn_for(SHIPPING, SqsBehaviour::Willing);
    assert!(send(&relay, &records).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["a", "stuck", "c"]);
    // Nothing is left to know once the record is done, and another process never knew.
    for relay in [relay, another] {
        assert!(send(&relay, &records).await.is_empty());
    }
    assert_eq!(bodies(&sqs, SHIPPING).len(), 9);
}

/// examples/outbox.template.yaml changes it each minute.
#[tokio::test]
async fn heartbeat_is_no_event() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let image = json!({
        "group": {"S": "sqs-once-heartbeat"}, "sequence": {"S": "-"}, "heartbeat": {"N": "7"},
    });
    let records = [
        change(1, "INSERT", &image),
        event(2, "placed", "sqs-once-heartbeat", "a"),
        change(3, "MODIFY", &image),
    ];
    assert!(send(&relay(&sqs).await, &records).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["a"]);
    assert!(sqs.sent_to("dead").is_empty());
}

#[tokio::test]
async fn batch_ends_before_the_deadline() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.turn_for("SendMessageBatch", SqsBehaviour::Hanging);
    let records = [
        event(1, "placed", "c-1", "a"),
        event(2, "placed", "c-1", "b"),
    ];
    let relay = relay(&sqs).await;
    let (started, time) = (Stopwatch::start(), Duration::from_secs(2));
    assert_eq!(send_within(&relay, &records, time).await, ["1"]);
    assert!(started.elapsed() < time, "{:?}", started.elapsed());
}

#[tokio::test]
async fn deleted_item_is_not_sent() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let mut records = [
        event(1, "placed", "c-1", "a"),
        event(2, "placed", "c-1", "b"),
    ];
    records[0]["eventName"] = json!("REMOVE");
    // An operator touches an item, to have its event sent again.
    records[1]["eventName"] = json!("MODIFY");
    assert!(send(&relay(&sqs).await, &records).await.is_empty());
    assert_eq!(bodies(&sqs, SHIPPING), ["b"]);
}

#[tokio::test]
async fn other_event_is_reported_without_payload() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let payload = serde_json::value::to_raw_value(&json!({"Records": "SECRET"})).unwrap();
    let event = LambdaEvent::new(payload, lambda_runtime::Context::default());
    let error = relay(&sqs).await.oneshot(event).await.unwrap_err();
    assert!(matches!(error, RelayError::NotAStream { .. }), "{error}");
    assert!(!error.to_string().contains("SECRET"), "{error}");
}

#[tokio::test]
async fn program_answers_lambda_and_writes_metrics() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let targets = format!("placed={SHIPPING}");
    let env = [
        ("AWS_ENDPOINT_URL", sqs.endpoint()),
        ("OUTBOX_TARGETS", &*targets),
        ("OUTBOX_DEAD_LETTER_QUEUE_URL", DEAD),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let lambda = Lambda::start_binary(Path::new(env!("CARGO_BIN_EXE_relay")), env.into()).await;
    let records = [
        event(1, "placed", "c-1", "a"),
        event(2, "unknown", "c-1", "SECRET"),
    ];
    let batch = json!({ "Records": records });
    let answer = lambda.invoke(batch.clone(), Duration::from_secs(20)).await;
    assert_eq!(answer.response(), json!({ "batchItemFailures": [] }));
    sqs.turn_for("SendMessageBatch", SqsBehaviour::Empty);
    let answer = lambda.invoke(batch, Duration::from_secs(20)).await;
    let failures = json!([{ "itemIdentifier": "1" }]);
    assert_eq!(answer.response(), json!({ "batchItemFailures": failures }));
    let lines = lambda.logged(2, |line| says(line, "events relayed")).await;
    for (line, counts) in lines.iter().zip([[1, 1, 0], [0, 0, 2]]) {
        assert_eq!(emf::check(line), Ok(()), "{line}");
        let metrics = ["EventsSent", "EventsDeadLettered", "EventsFailed"];
        assert_eq!(metrics.map(|name| line[name].as_i64().unwrap()), counts);
    }
    assert!(
        !lambda.output().concat().contains("\"SECRET"),
        "the body is logged"
    );
}

#[tokio::test]
async fn settings_report_every_error() {
    let settings = Settings::from_vars([("OUTBOX_TARGETS", "placed=shipping")]);
    let error = Relay::from_settings(settings).await.unwrap_err();
    let [targets, dead_letters] = error.errors() else {
        panic!("{error}");
    };
    assert!(
        targets.starts_with("OUTBOX_TARGETS: must be NAME=TARGET"),
        "{targets}"
    );
    assert!(
        dead_letters.starts_with("OUTBOX_DEAD_LETTER_QUEUE_URL is not set"),
        "{dead_letters}"
    );
    let queue = [
        ("OUTBOX_TARGETS", "*=https://sqs/1/a"),
        ("OUTBOX_DEAD_LETTER_QUEUE_URL", "dead"),
    ];
    let settings = Settings::from_vars(queue);
    let error = Relay::from_settings(settings).await.unwrap_err();
    assert_eq!(
        error.errors(),
        ["OUTBOX_DEAD_LETTER_QUEUE_URL: must be the URL of a queue"]
    );
}
