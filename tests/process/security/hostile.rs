//! Hostile messages, and the memory of a batch. The release binary takes each message between two
//! good ones, which must not be affected.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::types::AttributeValue;
use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode},
};
use serde_json::{Value, json};
use support::{
    PATIENCE,
    dynamo::{Dynamo, Item, operation, record_of_another, text},
    event::{batch, failed, order, record},
    runtime_api::{Env, Lambda, NAMESPACE, of_message},
    throttle::{Throttle, share},
};

use crate::security::secrets::{SECRET, lines_with_secrets};

const TABLE: &str = "idempotency";
const MIB: usize = 1024 * 1024;

/// Limit of a batch's peak memory, which fits into the smallest function, of 128 MB. Measured: 31
/// MB for ten thousand messages (5 MB of event), and 44 MB for ten of a mebibyte, more than the 6
/// MB that Lambda permits.
const MOST_MEMORY: usize = 96 * MIB;

/// The consumer with the template's settings and the order id as the key. It charges no gateway.
async fn consumer(dynamo: &Dynamo) -> Lambda {
    consumer_with(dynamo, &[]).await
}

pub(super) async fn consumer_with(dynamo: &Dynamo, more: &[(&str, &str)]) -> Lambda {
    dynamo.create_table(TABLE).await;
    let endpoint = [("AWS_ENDPOINT_URL", dynamo.endpoint())];
    start(&[&endpoint, more].concat()).await
}

/// A consumer with these settings, which override the others.
async fn start(settings: &[(&str, &str)]) -> Lambda {
    let always = [
        ("IDEMPOTENCY_TABLE_NAME", TABLE),
        ("IDEMPOTENCY_NAMESPACE", NAMESPACE),
        ("IDEMPOTENCY_KEY", "body:/orderId"),
        ("PAYMENT_GATEWAY_URL", "sandbox"),
        ("CONSUMER_VISIBILITY", "off"),
    ];
    let all = always.iter().chain(settings);
    let env: Env = all
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Lambda::start(env).await
}

pub(super) fn nested(depth: usize) -> String {
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

const NO_KEY: Option<(&str, &str)> = Some(("invalid", "no idempotency key"));
const OTHER_TYPE: Option<(&str, &str)> = Some(("invalid", "not of the expected type"));
const TOO_LONG: Option<(&str, &str)> = Some(("permanent_failure", "more than 40 digits"));
const INVALID_JSON: Option<(&str, &str)> = Some(("invalid", "not valid JSON"));

fn bodies() -> Vec<Case> {
    let digits = "7".repeat(100_000);
    let body = |name, body: String, outcome| (name, record("m-hostile", &body), outcome);
    vec![
        body("100,000 arrays", nested(100_000), NO_KEY),
        body("100,000 objects", r#"{"a":"#.repeat(100_000), INVALID_JSON),
        body(
            "a deep member",
            order_with("deep", &format!(r#""x":{}"#, nested(100_000))),
            None,
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
            NO_KEY,
        ),
        body(
            "half a character",
            r#"{"orderId":"\ud800","amount":1,"currency":"EUR"}"#.into(),
            INVALID_JSON,
        ),
        body(
            "half a character that nobody reads",
            order_with("half", r#""x":"\ud83d""#),
            None,
        ),
        body(
            "beyond every number, where nobody reads",
            order_with("beyond", r#""x":1e999999"#),
            None,
        ),
        body(
            "text behind the JSON",
            format!("{} x", order("behind")),
            INVALID_JSON,
        ),
        body(
            "NUL behind the JSON",
            format!("{}\0", order("nul")),
            INVALID_JSON,
        ),
        body(
            "an exponent of 100,000 digits",
            order_of(&format!("1e-{digits}")),
            TOO_LONG,
        ),
        body(
            "two ids",
            order_with("one", r#""orderId":"two""#),
            OTHER_TYPE,
        ),
        body("nothing", String::new(), INVALID_JSON),
        body(
            "a byte order mark",
            format!("\u{feff}{}", order("bom")),
            None,
        ),
    ]
}

fn keys() -> Vec<Case> {
    let id = |name, id: Value, outcome| {
        let mut order = order("");
        order["orderId"] = id;
        (name, record("m-hostile", &order), outcome)
    };
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
        id("an empty object for a key", json!({}), NO_KEY),
        id("a fraction for a key", json!(0.1), NO_KEY),
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
            id.len() <= 2_048 && id.starts_with(&format!("{NAMESPACE}#")),
            "{id}"
        );
    }
}

/// Bytes other than JSON in UTF-8 are not an event, nor is that of another service. Lambda has nothing to acknowledge, so
/// the whole batch returns.
#[tokio::test]
async fn invalid_event_fails_and_next_one_succeeds() {
    let dynamo = Dynamo::start().await;
    let lambda = consumer(&dynamo).await;
    let event = |id: &str, body: &str| {
        let order = order(id);
        batch([record("m-1", &order), record("m-2", body)]).to_string()
    };
    let halved = event("halved", SECRET);
    let mut no_text = event("no text", &format!("{SECRET}-@")).into_bytes();
    *no_text.iter_mut().find(|byte| **byte == b'@').unwrap() = 0xFF;
    let of_s3 = json!({"Records": [{"eventSource": "aws:s3", "s3": {"object": {"key": SECRET}}}]});
    for (n, bytes) in [
        of_s3.to_string().into_bytes(),
        json!({ SECRET: "world" }).to_string().into_bytes(),
        json!(SECRET).to_string().into_bytes(),
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
        9,
        "only those that came after"
    );
    assert_eq!(lines_with_secrets(&lambda.kill().await.output), [""; 0]);
}

/// Peak memory of the process, in bytes.
pub(super) fn peak(lambda: &Lambda) -> usize {
    lambda.memory("VmHWM").unwrap()
}

#[tokio::test]
async fn batch_of_10000_messages_has_bounded_memory() {
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

/// Peak memory of a process that gets ten thousand messages. If they are suspects, it has read nearly all of their records
/// before the first runs alone.
async fn peak_with_messages(are_suspects: bool) -> usize {
    let dynamo = Dynamo::start().await;
    let lambda = consumer(&dynamo).await;
    if are_suspects {
        for n in 0..10_000 {
            let died = json!({
                "owner": format!("{n:032x}"),
                "message_id": format!("m-{n}"),
                "lease_until": 1000,
                "first_claimed_at": 500,
            });
            let died = record_of_another(&format!("{NAMESPACE}#o-{n}"), &died);
            dynamo.put(TABLE, died).await;
        }
    }
    let message = |n: usize| record(&format!("m-{n}"), &order(&format!("o-{n}")));
    let event = batch((0..10_000).map(message));
    let response = lambda.invoke(event, PATIENCE).await.response();
    println!(
        "suspects: {are_suspects}, {} returned",
        failed(&response).len()
    );
    peak(&lambda)
}

#[tokio::test]
async fn ten_thousand_suspects_take_little_memory() {
    let [fresh, suspects] = [
        peak_with_messages(false).await,
        peak_with_messages(true).await,
    ];
    println!("{fresh} bytes at most, {suspects} with suspects");
    // Measured: 1.3 KB for each that waits, for its key, its span and its readings.
    assert!(
        suspects <= fresh + 16 * MIB,
        "{suspects} bytes, not {fresh}"
    );
}

#[tokio::test]
async fn messages_of_1_mib_have_bounded_memory() {
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

/// The id that an `INSERT` gives to its item.
fn inserted_id(statement: &Value) -> Option<&Value> {
    let (_, item) = statement["Statement"].as_str()?.split_once("INSERT INTO")?;
    let mut names = item.split('\'').skip(1).step_by(2);
    let id = names.position(|name| name == "id")?;
    Some(&statement["Parameters"][id]["S"])
}

/// A gateway and a DynamoDB in one that answer with so many KB: a charge with its receipt, and the record of
/// a completed operation. Its address, and the ids that have a record.
async fn bulky_server(output_kb: usize) -> (String, Arc<Mutex<HashSet<String>>>) {
    let receipt = json!({"receipt": "x".repeat(output_kb * 1024)}).to_string();
    let completed = Arc::new(Mutex::new(HashSet::new()));
    let ids = Arc::clone(&completed);
    let answer = async move |headers: HeaderMap, body: Bytes| {
        if !headers.contains_key("x-amz-target") {
            return (StatusCode::CREATED, receipt);
        }
        let request: Value = serde_json::from_slice(&body).unwrap();
        if let Some(statements) = request["Statements"].as_array() {
            // A claim of a group that finds a record gets no item, and goes out again alone.
            let found =
                json!({"Error": {"Code": "DuplicateItem", "Message": "Duplicate primary key"}});
            let answer = |statement| match inserted_id(statement) {
                Some(id) if !ids.lock().unwrap().insert(id.to_string()) => found.clone(),
                _ => json!({}),
            };
            let responses: Vec<Value> = statements.iter().map(answer).collect();
            return (StatusCode::OK, json!({"Responses": responses}).to_string());
        }
        let completed = |id: &Value| {
            let of_another = json!({"status": "COMPLETED", "result": receipt});
            let item = record_of_another(id["S"].as_str().unwrap(), &of_another);
            let wire_form = |value: &AttributeValue| match value {
                AttributeValue::S(text) => json!({ "S": text }),
                AttributeValue::N(number) => json!({ "N": number }),
                other => panic!("{other:?}"),
            };
            let members = item
                .iter()
                .map(|(name, value)| (name.clone(), wire_form(value)));
            Value::Object(members.collect())
        };
        let nothing = (StatusCode::OK, "{}".to_owned());
        match operation(&headers).as_str() {
            "GetItem" => {
                let id = &request["Key"]["id"];
                if !ids.lock().unwrap().contains(&id["S"].to_string()) {
                    return nothing; // the read at start
                }
                (StatusCode::OK, json!({"Item": completed(id)}).to_string())
            }
            "PutItem" => {
                let id = &request["Item"]["id"];
                if ids.lock().unwrap().insert(id["S"].to_string()) {
                    return nothing;
                }
                let refused = json!({
                    "__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
                    "Item": completed(id),
                });
                (StatusCode::BAD_REQUEST, refused.to_string())
            }
            _ => nothing,
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, completed)
}

/// Orders of each process whose memory is compared: the more, the higher the peak by chance.
const ORDERS: usize = 1_200;

/// Deliveries after which a message that still returns is a defect.
const MOST_RECEIVES: usize = 20;

/// Peak memory of a process with 128 MB that gets orders in batches of this size, each followed by its duplicates.
/// Outputs have `output_kb` KB.
async fn peak_with_outputs(batch_size: usize, output_kb: usize, more: &[(&str, &str)]) -> usize {
    let (address, completed) = bulky_server(output_kb).await;
    let settings = [
        ("AWS_ENDPOINT_URL", address.as_str()),
        ("PAYMENT_GATEWAY_URL", &address),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128"),
    ];
    let lambda = start(&[&settings, more].concat()).await;
    for first in (0..ORDERS).step_by(batch_size) {
        for delivery in ["first", "second"] {
            let id = |n| format!("m-{n}-{delivery}");
            let mut waiting: Vec<usize> = (first..first + batch_size).collect();
            for receive in 1.. {
                assert!(receive <= MOST_RECEIVES, "still returned: {waiting:?}");
                let message = |&n: &usize| record(&id(n), &order(&format!("o-{n}")));
                let event = batch(waiting.iter().map(message));
                let returned = failed(&lambda.invoke(event, 3 * PATIENCE).await.response());
                // On a busy machine the server leaves some requests unanswered. SQS delivers their messages again.
                waiting.retain(|&n| returned.contains(&id(n)));
                if waiting.is_empty() {
                    break;
                }
            }
        }
    }
    let orders = completed.lock().unwrap().len();
    let is_done = |line: &Value| line["outcome"] == "completed" || line["outcome"] == "duplicate";
    lambda.logged(2 * orders, is_done).await;
    peak(&lambda)
}

/// The outputs of the largest batch are larger than the memory of the smallest function.
#[tokio::test]
async fn outputs_of_a_batch_are_not_kept_in_memory() {
    let ten_at_a_time = [
        ("CONSUMER_CONCURRENCY", "10"),
        ("IDEMPOTENCY_BATCHED_WRITES", "off"),
    ];
    let mut peaks = Vec::new();
    for batch_size in [100, 400, 1_000] {
        peaks.push(peak_with_outputs(batch_size, 150, &ten_at_a_time).await);
    }
    println!("{peaks:?} bytes at most");
    let (least, most) = (peaks.iter().min().unwrap(), peaks.iter().max().unwrap());
    assert!(*most <= 48 * MIB, "{peaks:?}");
    assert!(most - least <= 4 * MIB, "{peaks:?}");
}

#[tokio::test]
async fn largest_outputs_fit_into_smallest_function() {
    let peak = peak_with_outputs(400, 380, &[]).await;
    println!("{peak} bytes at most");
    assert!(peak <= 112 * MIB, "{peak} bytes");
}

/// Cuts a batch off in a function with so much memory, and returns the time of its response.
async fn cut_off(memory_mb: u64, messages: usize, time: Duration) -> Duration {
    let dynamo = Dynamo::start().await;
    let memory = memory_mb.to_string();
    let settings = [
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory.as_str()),
        ("CONSUMER_MIN_TIME_TO_START", "0s"),
    ];
    let lambda = consumer_with(&dynamo, &settings).await;
    // One batch opens the connections.
    let first = batch([record("m-first", &order("o-first"))]);
    assert_eq!(
        failed(&lambda.invoke(first, PATIENCE).await.response()),
        [""; 0]
    );
    let records = (0..messages).map(|n| record(&format!("m-{n}"), &order(&format!("o-{n}"))));
    let event = batch(records).to_string();
    let _throttle = Throttle::start(lambda.pid(), share(memory_mb));
    let started = Instant::now();
    let response = lambda.invoke_bytes(event, time).await.response();
    let response_time = started.elapsed();
    let records = dynamo.records(TABLE).await;
    let is_completed = |record: &&Item| text(record, "status") == "COMPLETED";
    let completed = records.iter().filter(is_completed).count() - 1;
    println!("{memory_mb} MB: {completed} of {messages} in {response_time:?}");
    let returned = failed(&response).len();
    assert!(returned > 0, "not cut off");
    // The answer to a completion can come too late: then a completed message returns, and is a duplicate.
    assert!(messages - returned <= completed, "{returned} returned");
    response_time
}

#[tokio::test]
async fn cut_off_batch_is_answered_in_time_on_a_slow_cpu() {
    for (memory_mb, messages) in [(128, 15_000), (256, 30_000)] {
        let time = Duration::from_secs(10);
        assert!(cut_off(memory_mb, messages, time).await < time);
    }
}
