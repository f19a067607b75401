//! Bodies that are not bare JSON: text, bytes, base64 and gzip, and keys by code.

use std::{
    io::Write as _,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Bytes, Consumer, Failure, FromMessage, Handler, Json, Mode, Once, Raw, Text,
    handler_fn,
    sqs::{Encoding, Envelope, KeySource, Received},
    store::MemoryStore,
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
    let consumer = Consumer::new(once, namespace(), Keep(Arc::clone(&seen)));
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
    // In the order of the batch. Messages end in the order of their lanes.
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

fn base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn gzip(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes.as_ref()).unwrap();
    encoder.finish().unwrap()
}

fn limit(bytes: u32) -> NonZeroU32 {
    NonZeroU32::new(bytes).unwrap()
}

const COMPLETED: &str = "completed";

#[tokio::test]
async fn each_type_takes_its_view_of_a_body() {
    let order = r#"{"orderId":"o-1"}"#;
    let encoded = base64(gzip(order));
    let gzipped = || [record("m-1", &encoded, [("Content-Encoding", "gzip")])];

    let (consumer, seen) = taking::<Json<Value>>();
    assert_eq!(run(consumer, gzipped()).await[0].0, COMPLETED);
    assert_eq!(taken(&seen), [Json(json!({"orderId": "o-1"}))]);
    let (consumer, seen) = taking::<Value>();
    run(consumer, gzipped()).await;
    assert_eq!(taken(&seen), [json!({"orderId": "o-1"})]);
    let (consumer, seen) = taking::<Text>();
    run(consumer, gzipped()).await;
    assert_eq!(taken(&seen), [Text(order.into())]);
    let (consumer, seen) = taking::<Bytes>();
    run(consumer, gzipped()).await;
    assert_eq!(taken(&seen), [Bytes(order.into())]);
    let (consumer, seen) = taking::<Raw>();
    run(consumer, gzipped()).await;
    assert_eq!(taken(&seen), [Raw(encoded.clone().into_bytes())]);
}

#[tokio::test]
async fn body_without_encoding_is_text_or_base64() {
    let records = || [record("m-1", "/wAB", [])];
    let (consumer, seen) = taking::<Text>();
    run(consumer, records()).await;
    assert_eq!(taken(&seen), [Text("/wAB".into())]);
    let (consumer, seen) = taking::<Raw>();
    run(consumer, records()).await;
    assert_eq!(taken(&seen), [Raw(b"/wAB".to_vec())]);
    let (consumer, seen) = taking::<Bytes>();
    run(consumer, records()).await;
    assert_eq!(taken(&seen), [Bytes(vec![0xff, 0, 1])]);
    let (consumer, _) = taking::<Value>();
    let why = rejection(consumer, record("m-1", "/wAB", [])).await;
    assert!(why.contains("not valid JSON"), "{why}");
}

#[tokio::test]
async fn same_order_has_one_key_however_it_is_sent() {
    let order = r#"{"orderId": "o-1", "amount": 1.0}"#;
    let (consumer, seen) = taking::<Value>();
    let consumer = consumer.key("body:/orderId".parse().unwrap());
    let records = [
        record("m-1", order, []),
        record("m-2", r#"{"amount":1,"orderId":"o-1"}"#, []),
        record("m-3", &base64(order), [("Content-Encoding", "base64")]),
        record("m-4", &base64(gzip(order)), [("Content-Encoding", "gzip")]),
    ];
    let outcomes = run(consumer, records).await;
    let expected = [COMPLETED, "duplicate", "duplicate", "duplicate"];
    assert_eq!(names(&outcomes), expected);
    assert_eq!(
        seen.lock().unwrap()[0].0,
        format!("{}#o-1", namespace().as_str())
    );
}

#[tokio::test]
async fn changed_order_under_one_key_is_found_in_gzip() {
    let (consumer, _) = taking::<Value>();
    let consumer = consumer
        .key("body:/orderId".parse().unwrap())
        .encoding(Encoding::Gzip);
    let order = |amount: u32| {
        base64(gzip(
            json!({"orderId": "o-1", "amount": amount}).to_string(),
        ))
    };
    let outcomes = run(
        consumer,
        [record("m-1", &order(1), []), record("m-2", &order(2), [])],
    )
    .await;
    assert_eq!([&outcomes[0].0, &outcomes[1].0], [COMPLETED, "key_reused"]);
}

#[tokio::test]
async fn attribute_counts_instead_of_setting() {
    let (plain, zipped) = ("7", base64(gzip("7")));
    for (value, body) in [
        ("none", plain),
        ("Identity", plain),
        ("base64", "Nw=="),
        ("BASE64", "Nw"),
        ("GZip", &zipped),
        ("gzip,base64", &zipped),
        ("base64, gzip", &zipped),
        ("base64+gzip", &zipped),
    ] {
        for setting in [Encoding::None, Encoding::Base64, Encoding::Gzip] {
            let (consumer, seen) = taking::<u32>();
            let record = record("m-1", body, [("Content-Encoding", value)]);
            let outcomes = run(consumer.encoding(setting), [record]).await;
            assert_eq!(
                outcomes[0].0, COMPLETED,
                "{value} {setting:?}: {}",
                outcomes[0].1
            );
            assert_eq!(taken(&seen), [7]);
        }
    }
    for unknown in [
        "SECRET",
        "br",
        "deflate",
        "",
        "gzip, SECRET",
        "gzip, gzip",
        "base64,gzip,base64",
    ] {
        let (consumer, _) = taking::<u32>();
        let why = rejection(
            consumer,
            record("m-1", "7", [("Content-Encoding", unknown)]),
        )
        .await;
        assert!(
            why.starts_with("the message attribute Content-Encoding is not"),
            "{why}"
        );
        assert!(!why.contains("SECRET"), "{why}");
    }
}

#[tokio::test]
async fn setting_decodes_messages_without_attribute() {
    for (setting, body) in [
        ("none", "\"SECRET\"".to_owned()),
        ("base64", base64("\"SECRET\"")),
        ("gzip", base64(gzip("\"SECRET\""))),
        ("base64+gzip", base64(gzip("\"SECRET\""))),
    ] {
        let (consumer, seen) = taking::<String>();
        let consumer = consumer.encoding(setting.parse().unwrap());
        assert_eq!(
            run(consumer, [record("m-1", &body, [])]).await[0].0,
            COMPLETED
        );
        assert_eq!(taken(&seen), ["SECRET"], "{setting}");
    }
}

#[tokio::test]
async fn undecodable_body_is_refused_for_every_type() {
    let zipped = gzip(r#"{"orderId":"SECRET"}"#);
    let truncated = base64(&zipped[..zipped.len() - 9]);
    let without_trailer = base64(&zipped[..zipped.len() - 8]);
    let trailing = base64([&zipped[..], b"SECRET SECRET"].concat());
    let mut corrupt = zipped.clone();
    let at = corrupt.len() - 5;
    corrupt[at] ^= 1;
    let zlib_header = base64([0x78, 0x9c].repeat(9));
    for (encoding, body, why) in [
        (Encoding::Base64, "SECRET!", "not base64"),
        (Encoding::Base64, "SECRE", "not base64"),
        (Encoding::Base64, "U0VDUkVU=U0VD", "not base64"),
        (Encoding::Base64, "_-_-", "not base64"),
        (Encoding::Gzip, r#"{"orderId":"SECRET"}"#, "not base64"),
        (Encoding::Gzip, &base64("SECRET SECRET SECRET"), "not gzip"),
        (Encoding::Gzip, &zlib_header, "not gzip"),
        (Encoding::Gzip, &truncated, "truncated gzip"),
        (Encoding::Gzip, &without_trailer, "truncated gzip"),
        (Encoding::Gzip, &base64(&zipped[..3]), "truncated gzip"),
        (Encoding::Gzip, &trailing, "not gzip"),
        (Encoding::Gzip, &base64(corrupt), "not gzip"),
        (Encoding::Gzip, "", "truncated gzip"),
    ] {
        let (json, _) = taking::<Value>();
        let (bytes, _) = taking::<Bytes>();
        let (raw, _) = taking::<Raw>();
        for detail in [
            rejection(json.encoding(encoding), record("m-1", body, [])).await,
            rejection(bytes.encoding(encoding), record("m-1", body, [])).await,
            rejection(raw.encoding(encoding), record("m-1", body, [])).await,
        ] {
            let expected = format!("the body can't be decoded: {why}");
            assert!(detail.contains(&expected), "{body}: {detail}");
            assert!(detail.contains("CONSUMER_ENCODING"), "{detail}");
            assert!(!detail.contains("SECRE"), "{detail}");
        }
    }
}

#[tokio::test]
async fn empty_body_is_empty_text_or_bytes() {
    for encoding in [Encoding::None, Encoding::Base64] {
        let (consumer, seen) = taking::<Text>();
        run(consumer.encoding(encoding), [record("m-1", "", [])]).await;
        assert_eq!(taken(&seen), [Text::default()]);
        let (consumer, seen) = taking::<Bytes>();
        run(consumer.encoding(encoding), [record("m-1", "", [])]).await;
        assert_eq!(taken(&seen), [Bytes::default()]);
        let (consumer, _) = taking::<Value>();
        let why = rejection(consumer.encoding(encoding), record("m-1", "", [])).await;
        assert!(why.contains("not valid JSON"), "{why}");
    }
}

#[tokio::test]
async fn gzip_members_are_joined() {
    let members = base64([gzip(r#"{"orderId":"#), gzip(r#""o-1"}"#)].concat());
    let (consumer, seen) = taking::<Value>();
    run(
        consumer.encoding(Encoding::Gzip),
        [record("m-1", &members, [])],
    )
    .await;
    assert_eq!(taken(&seen), [json!({"orderId": "o-1"})]);
}

#[tokio::test]
async fn base64_may_have_line_breaks() {
    let wrapped = "eyJvcmRlcklk\r\nIjoiby0xIn0=\n";
    let (consumer, seen) = taking::<Value>();
    run(
        consumer.encoding(Encoding::Base64),
        [record("m-1", wrapped, [])],
    )
    .await;
    assert_eq!(taken(&seen), [json!({"orderId": "o-1"})]);
}

#[tokio::test]
async fn decompressed_body_is_bounded() {
    let body = |bytes: usize| base64(gzip("x".repeat(bytes)));
    let (consumer, seen) = taking::<Text>();
    let consumer = consumer
        .encoding(Encoding::Gzip)
        .max_body_bytes(limit(1000));
    let outcomes = run(
        consumer.clone(),
        [
            record("m-1", &body(1000), []),
            record("m-2", &body(1001), []),
        ],
    )
    .await;
    assert_eq!([&outcomes[0].0, &outcomes[1].0], [COMPLETED, "invalid"]);
    let why = &outcomes[1].1;
    assert!(
        why.contains("more than 1000 bytes after decompression"),
        "{why}"
    );
    assert!(why.contains("CONSUMER_MAX_BODY_BYTES"), "{why}");
    assert_eq!(taken(&seen).len(), 1);
    // The limit counts all members together.
    let members = base64([gzip("x".repeat(600)), gzip("x".repeat(600))].concat());
    let why = rejection(consumer, record("m-3", &members, [])).await;
    assert!(why.contains("more than 1000 bytes"), "{why}");
}

#[tokio::test]
async fn gzip_bomb_is_refused_by_default() {
    // 1 GiB. The end is not gzip, and nothing reads as far.
    let members = gzip(vec![b'0'; 1 << 20]).repeat(1 << 10);
    let bomb = base64([&members[..], b"the end of the bomb"].concat());
    let (consumer, _) = taking::<Bytes>();
    let why = rejection(consumer.encoding(Encoding::Gzip), record("m-1", &bomb, [])).await;
    assert!(
        why.contains("more than 2097152 bytes after decompression"),
        "{why}"
    );
}

#[tokio::test]
async fn encoding_is_inside_the_envelope() {
    let notification = json!({
        "Type": "Notification", "MessageId": "s-1", "TopicArn": "arn", "Message": base64(gzip("7")),
        "Timestamp": "2026-11-22T08:00:00.000Z",
        "MessageAttributes": {"Content-Encoding": {"Type": "String", "Value": "gzip,base64"}},
    });
    let (consumer, seen) = taking::<u32>();
    let record = record("m-1", &notification.to_string(), []);
    run(consumer.envelope(Envelope::Sns), [record.clone()]).await;
    assert_eq!(taken(&seen), [7]);
    let (consumer, seen) = taking::<Raw>();
    run(consumer.envelope(Envelope::Sns), [record]).await;
    assert_eq!(taken(&seen), [Raw(base64(gzip("7")).into_bytes())]);
}

#[tokio::test]
async fn key_function_sees_decoded_body_and_facts() {
    let by_code = KeySource::from_fn(|message: &Received<'_>| {
        let tenant = message.attribute("tenant").ok_or("no attribute `tenant`")?;
        let order = message.body().first().ok_or("an empty body")?;
        Ok::<_, &str>([tenant.to_owned(), order.to_string()])
    });
    let (consumer, seen) = taking::<Bytes>();
    let consumer = consumer.key(by_code);
    let tenant = ("tenant", "acme");
    let records = [
        record("m-1", &base64([0xff, 1]), [tenant]),
        record("m-2", &base64([0xff, 1]), [tenant]),
        record("m-3", &base64([0xff, 2]), [tenant]),
        record("m-4", &base64([0xff]), []),
        record("m-5", "", [tenant]),
    ];
    let mut outcomes = run(consumer, records).await;
    outcomes.sort_unstable();
    assert_eq!(
        names(&outcomes),
        [COMPLETED, "duplicate", "invalid", "invalid", "key_reused"]
    );
    let key = format!("{}#acme#255", namespace().as_str());
    assert_eq!(seen.lock().unwrap()[0].0, key);
    let why = "no idempotency key by the key function";
    assert_eq!(outcomes[2].1, format!("{why}: an empty body"));
    assert_eq!(outcomes[3].1, format!("{why}: no attribute `tenant`"));
}

#[tokio::test]
async fn panic_in_key_function_fails_its_message_alone() {
    let panicking = KeySource::from_fn(|message: &Received<'_>| {
        assert_ne!(message.body(), b"2", "no key");
        Ok::<_, String>([message.message_id().to_owned()])
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
        let consumer = Consumer::new(once, namespace(), handler_fn(charge));
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_body_is_taken_as_it_was_sent(
        bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        cut in any::<prop::sample::Index>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let zipped = gzip(&bytes);
            for (name, body) in [("base64", base64(&bytes)), ("gzip", base64(&zipped))] {
                let (consumer, seen) = taking::<Bytes>();
                run(consumer, [record("m-1", &body, [("Content-Encoding", name)])]).await;
                assert_eq!(taken(&seen), [Bytes(bytes.clone())], "{name}");
            }
            // No part of a body passes for the whole.
            let part = base64(&zipped[..cut.index(zipped.len())]);
            let (consumer, _) = taking::<Bytes>();
            let why = rejection(consumer, record("m-1", &part, [("Content-Encoding", "gzip")])).await;
            assert!(why.contains("the body can't be decoded"), "{why}");
        });
    }
}

/// A body of 1.4 KB that is one million bytes long.
fn bomb() -> String {
    base64(gzip(" ".repeat(1_000_000)))
}

#[tokio::test]
async fn slow_bodies_leave_time_for_other_messages() {
    let (consumer, seen) = taking::<u32>();
    let (bomb, mut records) = (bomb(), vec![record("order", "7", [])]);
    let gzip = [("Content-Encoding", "gzip")];
    records.extend((0..300).map(|n| record(&format!("m-{n}"), &bomb, gzip)));
    log::start();
    let budget = Duration::from_secs(4);
    let started = std::time::Instant::now();
    let failed = process(&Arc::new(consumer), batch(records), within(budget)).await;
    assert!(started.elapsed() < 2 * budget, "{:?}", started.elapsed());
    assert_eq!(failed.len(), 300);
    assert_eq!(taken(&seen), [7]);
}
