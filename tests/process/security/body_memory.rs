//! The memory that envelope, key and fingerprint of a body take, whatever its shape. The release binary takes each body
//! between two good ones, which must be charged.

use serde_json::{Value, json};
use support::{
    PATIENCE,
    dynamo::Dynamo,
    event::{batch, failed, record},
};

use super::hostile::{consumer_with, nested, peak};

/// Most memory of the process, beside four times the text of the body.
const BESIDE_BODY: usize = 30_000_000;

/// Text of a body that SQS carries, without the members around it.
const MOST: usize = 1024 * 1024 - 100;

/// Text of a body that has a canonical form.
const MOST_CANONICAL: usize = 64 * 1024 - 100;

/// Where an order has the hostile value.
#[derive(Clone, Copy)]
enum Place {
    Id,
    Member,
    /// In JSON in a text, which is in JSON in a text.
    Text,
    /// In an EventBridge event in an SNS notification, and in the attributes of the notification.
    Notification,
    /// As the records of an S3 event notification.
    Records,
}

/// Key, fingerprint, envelope, and the place that makes them large. One process takes all bodies.
const SETTINGS: [(&str, &str, &str, Place); 9] = [
    ("message-id", "body", "none", Place::Member),
    ("message-id", "off", "none", Place::Member),
    ("body:/orderId", "body", "none", Place::Id),
    ("body:/orderId", "body:/orderId,/amount", "auto", Place::Id),
    (
        "body:/order/id",
        "body:/order,/order/x,/order",
        "none",
        Place::Member,
    ),
    (
        "body:/text/text/id,/text/text,/text",
        "body:/text/text,/text",
        "none",
        Place::Text,
    ),
    ("body:/orderId", "body", "auto", Place::Notification),
    ("message-id", "body", "none", Place::Notification),
    ("message-id", "body", "auto", Place::Records),
];

fn list_of(element: &str, bytes: usize) -> String {
    let elements = vec![element; bytes / (element.len() + 1)];
    format!("[{}]", elements.join(","))
}

fn object_of(members: impl Iterator<Item = String>) -> String {
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

/// JSON whose tree takes many times its length, or whose text does.
fn values() -> [(&'static str, String); 10] {
    let s3_record = r#"{"eventSource":"aws:s3","s3":{}}"#;
    let named = |n| format!(r#""{n:05}":0"#);
    let unnamed = |_| r#""":0"#.to_owned();
    let repeated = |text: &str| format!(r#""{}""#, text.repeat(MOST / text.len()));
    [
        ("objects", list_of(r#"{"":0}"#, MOST)),
        ("lists", list_of("[0]", MOST)),
        ("members", object_of((0..MOST / 10).map(named))),
        ("levels", nested(MOST / 2)),
        ("records of S3", list_of(s3_record, MOST)),
        ("escapes", repeated(r"\n")),
        ("marks of a key", repeated("#")),
        ("64 KiB of objects", list_of(r#"{"":0}"#, MOST_CANONICAL)),
        ("64 KiB of numbers", list_of("1e20", MOST_CANONICAL)),
        (
            "64 KiB of one name",
            object_of((0..MOST_CANONICAL / 5).map(unnamed)),
        ),
    ]
}

fn body(place: Place, value: &str) -> String {
    let order = |id: &str, members: &str| {
        format!(r#"{{"orderId":{id},"amount":1,"currency":"EUR"{members}}}"#)
    };
    match place {
        Place::Id => order(value, ""),
        Place::Member => order(r#""o""#, &format!(r#","order":{{"id":"o","x":{value}}}"#)),
        Place::Text => {
            let inner = Value::String(format!(r#"{{"id":"o","x":{value}}}"#));
            let outer = Value::String(format!(r#"{{"id":"o","text":{inner}}}"#));
            order(r#""o""#, &format!(r#","text":{outer}"#))
        }
        Place::Notification => {
            let order = order(r#""o""#, &format!(r#","x":{value}"#));
            let event = format!(
                r#"{{"id":"e","source":"s","detail-type":"d","time":"t","detail":{order}}}"#
            );
            let message = Value::String(event);
            format!(
                r#"{{"Type":"Notification","TopicArn":"a","MessageId":"m","Message":{message},"MessageAttributes":{value}}}"#
            )
        }
        Place::Records => format!(r#"{{"Records":{value}}}"#),
    }
}

/// An order with a key under each setting.
fn good(id: &str) -> Value {
    let inner = json!({ "id": id }).to_string();
    let outer = json!({"id": id, "text": inner}).to_string();
    json!({"orderId": id, "amount": 1, "currency": "EUR", "order": {"id": id}, "text": outer})
}

#[tokio::test]
async fn key_and_fingerprint_take_little_memory() {
    let mut too_much = Vec::new();
    for (key, fingerprint, envelope, place) in SETTINGS {
        let dynamo = Dynamo::start().await;
        let settings = [
            ("IDEMPOTENCY_KEY", key),
            ("IDEMPOTENCY_FINGERPRINT", fingerprint),
            ("CONSUMER_ENVELOPE", envelope),
        ];
        let lambda = consumer_with(&dynamo, &settings).await;
        let mut most = 0;
        for (shape, value) in values() {
            let name = format!("{shape}, {key}, {fingerprint}, {envelope}");
            let body = body(place, &value);
            let id = |of: &str| format!("{of} {shape}");
            let good = |of| record(&id(of), &good(&id(of)));
            let event = batch([good("before"), record(&id("hostile"), &body), good("after")]);
            let mut failed = failed(&lambda.invoke(event, PATIENCE).await.response());
            failed.retain(|failed| *failed != id("hostile"));
            assert_eq!(failed, [""; 0], "{name}");
            // The peak of an earlier body says nothing about this one.
            let peak = peak(&lambda);
            if peak > most && peak > BESIDE_BODY + 4 * body.len() {
                too_much.push(format!("{peak} bytes for {} bytes of {name}", body.len()));
            }
            most = most.max(peak);
        }
        println!("{most} bytes at most: {key}, {fingerprint}, {envelope}");
    }
    assert!(too_much.is_empty(), "{too_much:#?}");
}
