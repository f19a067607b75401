//! Events of the shapes that AWS's services and tools send, through the entry point of a Lambda function.

use std::sync::{Arc, Mutex};

use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt as _};
use serde::Deserialize;
use serde_json::{Value, json, value::to_raw_value};
use sqs_once::{
    Attempt, Consumer, Failure, FromMessage, Handler, Mode, Once, Text, store::MemoryStore,
};
use support::{
    consumer::namespace,
    event::{batch, failed, record},
    log,
};

/// Stands in the payload of each record, and must not stand in the log.
const MARKER: &str = "PAYLOAD";

/// The order of the sample.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only their types matter")]
struct Order {
    order_id: String,
    amount: f64,
    currency: String,
}

/// Keeps the messages that it gets, as text.
#[derive(Clone)]
struct Keep<T>(Arc<Mutex<Vec<String>>>, fn(T) -> String);

impl<T: FromMessage + 'static> Handler for Keep<T> {
    type Message = T;
    type Output = ();

    async fn handle(&self, message: T, _: Attempt) -> Result<(), Failure> {
        self.0.lock().unwrap().push((self.1)(message));
        Ok(())
    }
}

/// One event, and what becomes of its records.
struct Row {
    name: &'static str,
    records: Vec<Value>,
    /// Setting of the key, unless it is the message id.
    key: &'static str,
    /// Outcomes with a handler of text, of JSON and of orders.
    text: &'static [&'static str],
    json: &'static [&'static str],
    order: &'static [&'static str],
    /// A part of the last message that the handler of JSON gets.
    seen: &'static str,
}

fn with_attributes(mut record: Value, attributes: Value) -> Value {
    record["messageAttributes"] = attributes;
    record
}

/// A notification as SNS writes it, with white space before colons.
fn sns(kind: &str, message: &str) -> String {
    format!(
        r#"{{
  "Type" : "{kind}",
  "MessageId" : "0b6b1c9e-8f0f-5a53-9d3a-4c2f6f7c1d01",
  "Token" : "{MARKER}",
  "TopicArn" : "arn:aws:sns:eu-central-1:123456789012:shop",
  "Subject" : "{MARKER}",
  "Message" : {},
  "Timestamp" : "2026-05-04T09:30:11.512Z",
  "SignatureVersion" : "1",
  "Signature" : "RVhBTVBMRQ==",
  "SigningCertURL" : "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-example.pem",
  "SubscribeURL" : "https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&Token={MARKER}"
}}"#,
        json!(message)
    )
}

fn s3_notification(key: &str) -> String {
    json!({"Records": [{
        "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "eu-central-1",
        "eventTime": "2026-05-04T09:30:10.107Z", "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": MARKER},
        "requestParameters": {"sourceIPAddress": "192.0.2.7"},
        "responseElements": {"x-amz-request-id": "EXAMPLE"},
        "s3": {
            "s3SchemaVersion": "1.0", "configurationId": "uploads",
            "bucket": {"name": "shop-uploads", "arn": "arn:aws:s3:::shop-uploads"},
            "object": {"key": key, "size": 2048, "eTag": MARKER, "sequencer": "0066A1B2C3D4E5F607"},
        },
    }]})
    .to_string()
}

fn event_bridge(kind: &str, detail: &Value) -> String {
    json!({
        "version": "0", "id": "2f1d7c58-1f9e-4a7e-9a2f-7d0f3a5b6c01", "detail-type": kind,
        "source": "aws.s3", "account": "123456789012", "time": "2026-05-04T09:30:10Z",
        "region": "eu-central-1", "resources": ["arn:aws:s3:::shop-uploads"], "detail": detail,
    })
    .to_string()
}

/// What the failure destination of a stream gets.
fn stream_failure(info: &str) -> String {
    json!({
        "requestContext": {"requestId": MARKER, "condition": "RetryAttemptsExhausted"},
        "responseContext": {"statusCode": 200, "functionError": "Unhandled"},
        "version": "1.0", "timestamp": "2026-05-04T09:30:11.512Z",
        info: {"shardId": "shardId-000000000002", "batchSize": 5, "streamArn": MARKER},
    })
    .to_string()
}

fn rows() -> Vec<Row> {
    let row = |name, records| Row {
        name,
        records,
        key: "message-id",
        text: &["completed"],
        json: &["completed"],
        order: &["invalid"],
        seen: "",
    };
    let one = |body: &str| vec![record("m-1", body)];
    let s3_test = json!({
        "Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-05-04T09:30:09.001Z",
        "Bucket": "shop-uploads", "RequestId": MARKER, "HostId": MARKER,
    });
    let typed = || {
        let body = format!("{MARKER} in words");
        let attributes = json!({
            "bytes": {
                "binaryValue": "MjIwMA==", "stringListValues": ["a", "7"],
                "binaryListValues": ["MA==", "MQ=="], "dataType": "Binary",
            },
            "count": {
                "stringValue": "7", "stringListValues": [], "binaryListValues": ["MQ=="],
                "dataType": "Number",
            },
            "tenant": {
                "stringValue": "acme", "stringListValues": [], "binaryListValues": [],
                "dataType": "String",
            },
        });
        vec![with_attributes(record("m-1", &body), attributes)]
    };
    let object = json!({
        "version": "0", "bucket": {"name": "shop-uploads"}, "reason": MARKER,
        "object": {"key": "in/a+b%20c.json", "size": 2048, "sequencer": "0066A1B2C3D4E5F607"},
    });
    vec![
        Row {
            text: &["invalid", "completed"],
            json: &["invalid", "completed"],
            order: &["invalid", "invalid"],
            ..row(
                "an attribute with bytes that are no base64",
                vec![
                    with_attributes(
                        record("m-1", MARKER),
                        json!({"rate": {"stringValue": "9", "binaryValue": MARKER, "dataType": "Number"}}),
                    ),
                    record("m-2", &json!({"message": MARKER})),
                ],
            )
        },
        Row {
            key: "body:/0/s3/object/sequencer",
            seen: r#""key":"in/a b(1).json""#,
            ..row("S3", one(&s3_notification("in/a+b%281%29.json")))
        },
        Row {
            key: "body:/username",
            seen: r#"{"message":"PAYLOAD","username":"user-7"}"#,
            ..row(
                "SNS",
                one(&sns(
                    "Notification",
                    r#"{"username": "user-7", "message": "PAYLOAD"}"#,
                )),
            )
        },
        Row {
            key: "body:/object/sequencer",
            seen: r#""key":"in/a+b%20c.json""#,
            ..row(
                "S3, EventBridge",
                one(&event_bridge("Object Created", &object)),
            )
        },
        Row {
            key: "body:/0/s3/object/sequencer",
            seen: r#""key":"in/ä b.json""#,
            ..row(
                "S3, SNS",
                one(&sns("Notification", &s3_notification("in/%C3%A4+b.json"))),
            )
        },
        Row {
            key: "body:/object/sequencer",
            seen: r#""key":"in/a+b%20c.json""#,
            ..row(
                "S3, EventBridge, SNS",
                one(&sns(
                    "Notification",
                    &event_bridge("Object Created", &object),
                )),
            )
        },
        Row {
            key: "attribute:tenant",
            json: &["invalid"],
            ..row("a key from an attribute of type String", typed())
        },
        Row {
            key: "attribute:count",
            json: &["invalid"],
            ..row("a key from an attribute of type Number", typed())
        },
        Row {
            key: "attribute:bytes",
            text: &["invalid"],
            json: &["invalid"],
            ..row("a key from an attribute of type Binary", typed())
        },
        Row {
            json: &["invalid"],
            ..row(
                "sam local generate-event",
                one(&format!("Hello, {MARKER}!")),
            )
        },
        Row {
            key: "body:/KinesisBatchInfo/shardId",
            text: &["completed", "invalid"],
            json: &["completed", "invalid"],
            order: &["invalid", "invalid"],
            ..row(
                "failure destination of a stream",
                vec![
                    record("m-1", &stream_failure("KinesisBatchInfo")),
                    record("m-2", &stream_failure("DDBStreamBatchInfo")),
                ],
            )
        },
        Row {
            text: &["invalid", "invalid"],
            json: &["invalid", "invalid"],
            order: &["invalid", "invalid"],
            ..row(
                "confirmations of SNS",
                vec![
                    record("m-1", &sns("SubscriptionConfirmation", "You have chosen")),
                    record("m-2", &sns("UnsubscribeConfirmation", "You have chosen")),
                ],
            )
        },
        Row {
            text: &["ignored"],
            json: &["ignored"],
            order: &["ignored"],
            ..row(
                "test event of S3, SNS",
                one(&sns("Notification", &s3_test.to_string())),
            )
        },
        Row {
            text: &["ignored"],
            json: &["ignored"],
            order: &["ignored"],
            ..row("test event of S3", one(&s3_test.to_string()))
        },
    ]
}

/// Outcome and detail of each record, in the order of the event.
async fn deliver<M: Mode<H::Output>, H: Handler>(
    consumer: &Consumer<M, H>,
    event: &Value,
) -> Vec<(String, String)> {
    log::start();
    let payload = to_raw_value(event).unwrap();
    let event = LambdaEvent::new(payload, Context::default());
    let response = consumer.clone().oneshot(event).await.unwrap();
    let lines = log::lines();
    assert!(!json!(lines).to_string().contains(MARKER), "{lines:#?}");
    let lines = lines.iter().map(|line| &line["fields"]);
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or("").to_owned();
    let mut outcomes: Vec<_> = lines
        .filter(|line| line["message"] == "message processed")
        .map(|line| ["message_id", "outcome", "detail"].map(|name| text(line, name)))
        .collect();
    outcomes.sort();
    let reported = failed(&serde_json::to_value(response).unwrap());
    let settled = ["completed", "duplicate", "ignored"];
    let unsettled = outcomes
        .iter()
        .filter(|[_, outcome, _]| !settled.contains(&outcome.as_str()));
    assert_eq!(
        reported,
        unsettled.map(|[id, ..]| id.clone()).collect::<Vec<_>>()
    );
    outcomes
        .into_iter()
        .map(|[_, outcome, detail]| (outcome, detail))
        .collect()
}

/// Delivers an event twice, as an event source mapping and as a pipe. Returns the messages of the handler.
async fn check<T: FromMessage + 'static>(
    row: &Row,
    kind: &str,
    expected: &[&str],
    show: fn(T) -> String,
) -> Vec<String> {
    let seen = Arc::default();
    let handler = Keep(Arc::clone(&seen), show);
    let consumer = Consumer::without_aws(Once::new(MemoryStore::default()), namespace(), handler)
        .key(row.key.parse().unwrap())
        .envelope("auto".parse().unwrap());
    let first = deliver(&consumer, &batch(row.records.clone())).await;
    let first: Vec<_> = first.iter().map(|(outcome, _)| outcome.as_str()).collect();
    assert_eq!(first, expected, "{}, {kind}", row.name);
    let second = deliver(&consumer, &json!(row.records)).await;
    for (first, (second, _)) in first.iter().zip(&second) {
        let again: &[&str] = match *first {
            "completed" => &["duplicate"],
            "ignored" => &["ignored"],
            _ => &["invalid", "failed_before"],
        };
        assert!(
            again.contains(&second.as_str()),
            "{}, {kind}: {second}",
            row.name
        );
    }
    let completed = expected.iter().filter(|outcome| **outcome == "completed");
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), completed.count(), "{}, {kind}", row.name);
    seen
}

#[tokio::test]
async fn event_of_each_shape_runs_once_or_fails_alone() {
    for row in rows() {
        check::<Text>(&row, "text", row.text, |Text(text)| text).await;
        let seen = check::<Value>(&row, "JSON", row.json, |json| json.to_string()).await;
        let last = seen.last().map(String::as_str).unwrap_or_default();
        assert!(last.contains(row.seen), "{}: {last}", row.name);
        check::<Order>(&row, "order", row.order, |_| String::new()).await;
    }
}

/// The details of these bodies, under a handler of orders without a setting for envelopes.
async fn details(key: &str, bodies: &[&str]) -> Vec<(String, String)> {
    let keep: fn(Order) -> String = |_| String::new();
    let handler = Keep(Arc::default(), keep);
    let consumer = Consumer::without_aws(Once::new(MemoryStore::default()), namespace(), handler);
    let consumer = consumer.key(key.parse().unwrap());
    let records = bodies.iter().enumerate();
    let records = records.map(|(n, body)| record(&format!("m-{n}"), *body));
    deliver(&consumer, &batch(records)).await
}

#[tokio::test]
async fn first_mistakes_are_explained() {
    let order = r#"{"orderId": "o-1", "amount": 1, "currency": "EUR"}"#;
    let hello = format!("Hello, {MARKER}!");
    let bodies = [
        &hello,
        &*sns("Notification", order),
        &*sns("SubscriptionConfirmation", ""),
    ];
    for key in ["message-id", "body:/orderId"] {
        let details = details(key, &bodies).await;
        for ((outcome, detail), part) in details.iter().zip([
            "not valid JSON",
            "CONSUMER_ENVELOPE=auto",
            "aws sns confirm-subscription",
        ]) {
            assert_eq!(outcome, "invalid");
            assert!(detail.contains(part), "{key}: {detail}");
        }
    }
}
