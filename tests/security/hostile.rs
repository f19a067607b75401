//! Hostile messages, and the memory of a batch. The release binary takes each message between two
//! good ones, which must not be affected.

use std::fs;

use serde_json::{Value, json};

use crate::{
    secrets::{SECRET, lines_with_secrets},
    support::{
        PATIENCE,
        dynamo::Dynamo,
        event::{batch, failed, order, record},
        runtime_api::{Env, FUNCTION_NAME, Lambda, consumer_missing, of_message},
    },
};

const TABLE: &str = "idempotency";
const MIB: usize = 1024 * 1024;

/// Limit of a batch's peak memory, which fits into the smallest function, of 128 MB. Measured: 31
/// MB for ten thousand messages (5 MB of event), and 44 MB for ten of a mebibyte, more than the 6
/// MB that Lambda permits.
const MOST_MEMORY: usize = 96 * MIB;

/// The consumer with the template's settings and the order id as the key. It charges no gateway.
async fn consumer(dynamo: &Dynamo) -> Lambda {
    dynamo.create_table(TABLE).await;
    let settings = [
        ("AWS_ENDPOINT_URL", dynamo.endpoint()),
        ("IDEMPOTENCY_TABLE_NAME", TABLE),
        ("IDEMPOTENCY_KEY", "body:/orderId"),
        ("PAYMENT_GATEWAY_URL", "sandbox"),
        ("CONSUMER_VISIBILITY", "off"),
    ];
    let env: Env = settings
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    Lambda::start(env).await
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// An order with one more member, as JSON.
fn order_with(id: &str, member: &str) -> String {
    format!(r#"{{"orderId":"{id}","amount":1,"currency":"EUR",{member}}}"#)
}

fn order_of(amount: &str) -> String {
    format!(
        r#"{{"orderId":"amount-{:.9}","amount":{amount},"currency":"EUR"}}"#,
        amount
    )
}

/// A message and its expected end: done, or this outcome with a word of its reason.
type Case = (&'static str, Value, Option<(&'static str, &'static str)>);

const INVALID_JSON: Option<(&str, &str)> = Some(("invalid", "not valid JSON"));

fn bodies() -> Vec<Case> {
    let digits = "7".repeat(100_000);
    let body = |name, body: String, outcome| (name, record("m-hostile", &body), outcome);
    vec![
        body("100,000 arrays", nested(100_000), INVALID_JSON),
        body("100,000 objects", r#"{"a":"#.repeat(100_000), INVALID_JSON),
        body(
            "a deep member",
            order_with("deep", &format!(r#""x":{}"#, nested(100_000))),
            INVALID_JSON,
        ),
        body(
            "as deep as is read",
            order_with("flat", &format!(r#""x":{}"#, nested(126))),
            None,
        ),
        body(
            "1 MiB",
            order_with("long", &format!(r#""x":"{}""#, "x".repeat(MIB - 100))),
            None,
        ),
        body(
            "1 MiB of escapes",
            order_with(
                "wide",
                &format!(r#""x":"{}""#, r"\u0000".repeat(MIB / 6 - 20)),
            ),
            None,
        ),
        body(
            "1 MiB of members",
            format!("[{}0]", "0,".repeat(MIB / 2 - 2)),
            Some(("invalid", "no idempotency key")),
        ),
        body(
            "half a character",
            r#"{"orderId":"\ud800","amount":1,"currency":"EUR"}"#.into(),
            INVALID_JSON,
        ),
        body("beyond every number", order_of("1e999999"), INVALID_JSON),
        body("100,000 digits", order_of(&digits), INVALID_JSON),
        body(
            "100,000 digits behind the point",
            order_of(&format!("1.{digits}")),
            None,
        ),
        body(
            "an exponent of 100,000 digits",
            order_of(&format!("1e-{digits}")),
            Some(("permanent_failure", "not more than 0")),
        ),
        body("no number", order_of("NaN"), INVALID_JSON),
        body(
            "two ids",
            order_with("one", r#""orderId":"two""#),
            Some(("invalid", "not of the type")),
        ),
        body("nothing", String::new(), INVALID_JSON),
        body(
            "a byte order mark",
            format!("\u{feff}{}", order("bom")),
            INVALID_JSON,
        ),
    ]
}

fn keys() -> Vec<Case> {
    let id = |name, id: Value, outcome| {
        let mut order = order("");
        order["orderId"] = id;
        (name, record("m-hostile", &order), outcome)
    };
    let no_key = Some(("invalid", "no idempotency key"));
    vec![
        id("a key with NUL", json!("a\0b"), None),
        id("a key of NUL", json!("\0"), None),
        id("a key of 2,049 bytes", json!("k".repeat(2_049)), None),
        id(
            "a key of 100,000 characters",
            json!("é".repeat(100_000)),
            None,
        ),
        id("a key that looks hashed", json!(r"\sha256:0"), None),
        id("an empty key", json!(""), no_key),
        id("a null key", json!(null), no_key),
        id("a fraction for a key", json!(0.1), no_key),
    ]
}

fn wrappings() -> Vec<Case> {
    let with = |name, member: &str, value: Value| {
        let mut record = record("m-hostile", &order(name));
        record[member] = value;
        (name, record, None)
    };
    let attribute = |kind: &str, member: &str, value: &str| json!({"dataType": kind, member: value, "stringListValues": [], "binaryListValues": []});
    let attributes = json!({
        "text": attribute("String", "stringValue", "\0é"),
        "labelled": attribute("String.Array", "stringValue", "[1"),
        "number": attribute("Number", "stringValue", &"9".repeat(100_000)),
        "labelled number": attribute("Number.float", "stringValue", "NaN"),
        "bytes": attribute("Binary", "binaryValue", "AP8="),
        "labelled bytes": attribute("Binary.gif", "binaryValue", "R0lGOA=="),
        "bytes that are none": attribute("Binary", "stringValue", "text"),
        "text that is none": attribute("String", "binaryValue", "AP8="),
        "unheard of": attribute("Decimal", "stringValue", "1"),
        "untyped": {"stringValue": "x"},
        "empty": {"dataType": "String"},
        "": attribute("", "stringValue", ""),
    });
    let system = |name: &str, value: &str| json!({ name: value });
    vec![
        with("attributes of every type", "messageAttributes", attributes),
        with(
            "a count that is none",
            "attributes",
            system("ApproximateReceiveCount", "-1"),
        ),
        with(
            "a count past counting",
            "attributes",
            system("ApproximateReceiveCount", &"9".repeat(99)),
        ),
        with(
            "a group in a standard queue",
            "attributes",
            system("MessageGroupId", "g"),
        ),
        with("an ARN that is none", "eventSourceARN", json!("arn:\0")),
        with("members unheard of", "more", json!({"x": [1, {"y": null}]})),
    ]
}

#[tokio::test]
async fn hostile_message_fails_alone_with_clear_outcome() {
    if consumer_missing() {
        return;
    }
    let dynamo = Dynamo::start().await;
    let lambda = consumer(&dynamo).await;
    let mut seen = 0;
    for (name, hostile, outcome) in [bodies(), keys(), wrappings()].concat() {
        let good = |place| record(&format!("m-{place}"), &order(&format!("{place} {name}")));
        let event = batch([good("before"), hostile, good("after")]);
        let response = lambda.invoke(event, PATIENCE).await.response();
        let expected = outcome.map_or(&[][..], |_| &["m-hostile"]);
        assert_eq!(failed(&response), expected, "{name}");
        seen += 3;
        let lines = lambda.logged(seen, of_message).await;
        let of = |id: &str| {
            lines[seen - 3..]
                .iter()
                .find(|line| line["message_id"] == id)
                .unwrap()
        };
        let (wanted, word) = outcome.unwrap_or(("completed", ""));
        let line = of("m-hostile");
        assert_eq!(line["outcome"], wanted, "{name}: {line}");
        assert!(
            line["detail"].as_str().unwrap_or_default().contains(word),
            "{name}: {line}"
        );
        for id in ["m-before", "m-after"] {
            assert_eq!(of(id)["outcome"], "completed", "{name}: {}", of(id));
        }
        for line in lines {
            // The key is logged: at most 2,048 bytes, each up to six characters of JSON.
            assert!(line.to_string().len() < 16 * 1024, "{name} fills the log");
        }
    }
    for record in dynamo.records(TABLE).await {
        let id = record["id"].as_s().unwrap();
        assert!(
            id.len() <= 2_048 && id.starts_with(&format!("{FUNCTION_NAME}#")),
            "{id}"
        );
    }
}

/// Bytes other than JSON in UTF-8 are not an event. Lambda has nothing to acknowledge, so the whole
/// batch returns.
#[tokio::test]
async fn invalid_bytes_fail_and_next_event_succeeds() {
    if consumer_missing() {
        return;
    }
    let dynamo = Dynamo::start().await;
    let lambda = consumer(&dynamo).await;
    let event = |id: &str, body: &str| {
        let order = order(id);
        batch([record("m-1", &order), record("m-2", body)]).to_string()
    };
    let halved = event("halved", SECRET);
    let mut no_text = event("no text", &format!("{SECRET}-@")).into_bytes();
    *no_text.iter_mut().find(|byte| **byte == b'@').unwrap() = 0xFF;
    for (n, bytes) in [
        vec![0xFF],
        vec![0xC3, 0x28],
        no_text,
        halved.as_bytes()[..halved.len() / 2].to_vec(),
        b"\xFE\xFF\0{\0}".to_vec(),
        vec![],
    ]
    .into_iter()
    .enumerate()
    {
        let error = lambda.invoke_bytes(bytes, PATIENCE).await.error();
        assert!(!error.to_string().contains(SECRET), "{n}: {error}");
        let next = batch([record("m-next", &order(&format!("next {n}")))]);
        let response = lambda.invoke(next, PATIENCE).await.response();
        assert_eq!(failed(&response), [""; 0], "{n}");
    }
    assert_eq!(
        dynamo.records(TABLE).await.len(),
        6,
        "only those that came after"
    );
    assert_eq!(lines_with_secrets(&lambda.kill().await.output), [""; 0]);
}

/// Peak memory of the process, in bytes.
fn peak(lambda: &Lambda) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", lambda.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim()
        .strip_suffix(" kB")
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

#[tokio::test]
async fn batch_of_10000_messages_has_bounded_memory() {
    if consumer_missing() {
        return;
    }
    let dynamo = Dynamo::start().await;
    let lambda = consumer(&dynamo).await;
    let idle = peak(&lambda);
    // Each hundredth message is malformed; the others are 99 orders, a hundred times each.
    let message = |n: usize| {
        let body = match n % 100 {
            0 => "{".to_owned(),
            order_number => order(&format!("o-{order_number}")).to_string(),
        };
        record(&format!("m-{n}"), &body)
    };
    let event = batch((0..10_000).map(message));
    println!("event: {} bytes", event.to_string().len());
    let response = lambda.invoke(event, 3 * PATIENCE).await.response();
    let malformed: Vec<String> = (0..10_000).step_by(100).map(|n| format!("m-{n}")).collect();
    assert_eq!(failed(&response), malformed);
    assert_eq!(dynamo.records(TABLE).await.len(), 99);
    println!("idle: {idle} bytes, at most: {} bytes", peak(&lambda));
    assert!(peak(&lambda) < MOST_MEMORY);
}

#[tokio::test]
async fn messages_of_1_mib_have_bounded_memory() {
    if consumer_missing() {
        return;
    }
    let dynamo = Dynamo::start().await;
    let lambda = consumer(&dynamo).await;
    let idle = peak(&lambda);
    let body = |n| {
        order_with(
            &format!("o-{n}"),
            &format!(r#""x":"{}""#, "x".repeat(MIB - 100)),
        )
    };
    let event = batch((0..10).map(|n| record(&format!("m-{n}"), &body(n))));
    println!("event: {} bytes", event.to_string().len());
    let response = lambda.invoke(event, 3 * PATIENCE).await.response();
    assert_eq!(failed(&response), [""; 0]);
    assert_eq!(dynamo.records(TABLE).await.len(), 10);
    println!("idle: {idle} bytes, at most: {} bytes", peak(&lambda));
    assert!(peak(&lambda) < MOST_MEMORY);
}
