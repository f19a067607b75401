//! Direct dead-lettering: copies, their confirmation, and every failure to make one.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt as _};
use serde_json::{Value, json, value::to_raw_value};
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Once,
    protocol::{Key, State},
    sqs::{FifoAfterPermanent, KeySource, Visibility},
    store::MemoryStore,
};
use support::{
    consumer::{namespace, process, within},
    event::{batch, in_group, received},
    log,
    sqs::{DEAD_LETTER_QUEUE_ARN, Sqs, SqsBehaviour},
    stopwatch::Stopwatch,
};

use crate::visibility::{clock, later};

const SECOND: Duration = Duration::from_secs(1);
const DEAD: &str = "/orders-dead";
const SEND: &str = "SendMessageBatch";

/// Handler that obeys the message and counts its runs.
#[derive(Clone, Default)]
struct ScriptedHandler(Arc<AtomicUsize>);

impl Handler for ScriptedHandler {
    type Message = Value;
    type Output = ();

    async fn handle(&self, order: Value, _: Attempt) -> Result<(), Failure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        match order["act"].as_str().unwrap() {
            "succeed" => Ok(()),
            "fail" => Err(Failure::retryable("busy")),
            "decline" => Err(Failure::permanent(
                order["why"].as_str().unwrap_or("card declined"),
            )),
            other => panic!("no such act: {other}"),
        }
    }
}

/// SQS, a table, and a consumer with direct dead-lettering.
struct World {
    sqs: Sqs,
    store: MemoryStore,
    handler: ScriptedHandler,
    consumer: Arc<Consumer<Once<MemoryStore>, ScriptedHandler>>,
}

impl World {
    async fn start() -> Self {
        Self::with(|consumer| consumer).await
    }

    async fn with(
        set: impl FnOnce(
            Consumer<Once<MemoryStore>, ScriptedHandler>,
        ) -> Consumer<Once<MemoryStore>, ScriptedHandler>,
    ) -> Self {
        log::start();
        let sqs = Sqs::start(SqsBehaviour::Willing).await;
        let (store, handler) = (MemoryStore::default(), ScriptedHandler::default());
        let visibility = Visibility::new(sqs.client()).clock(clock);
        let consumer =
            Consumer::without_aws(Once::new(store.clone()), namespace(), handler.clone());
        let consumer = Arc::new(set(consumer.visibility(visibility)));
        Self {
            sqs,
            store,
            handler,
            consumer,
        }
    }

    /// Ids reported as batch item failures.
    async fn process(&self, messages: impl IntoIterator<Item = Value>) -> Vec<String> {
        process(&self.consumer, batch(messages), within(60 * SECOND)).await
    }

    fn copies(&self) -> Vec<Value> {
        self.sqs.sent_to(DEAD)
    }

    /// The `id` in the body of each copy.
    fn copied(&self) -> Vec<String> {
        let copies = self.copies();
        let id = |copy: &Value| {
            let body: Value = serde_json::from_str(copy["MessageBody"].as_str().unwrap()).unwrap();
            body["id"].as_str().unwrap().to_owned()
        };
        copies.iter().map(id).collect()
    }

    fn runs(&self) -> usize {
        self.handler.0.load(Ordering::SeqCst)
    }

    fn is_failed(&self, message_id: &str) -> bool {
        let key = Key::new(&namespace(), [message_id]).unwrap();
        let record = self.store.record(&key);
        record.is_some_and(|record| matches!(record.state, State::Failed))
    }
}

fn order(id: &str, act: &str) -> Value {
    received(id, &json!({"id": id, "act": act}), 1)
}

fn declined(id: &str) -> Value {
    order(id, "decline")
}

fn string(kind: &str, value: &str) -> Value {
    json!({"stringValue": value, "dataType": kind, "stringListValues": [], "binaryListValues": []})
}

fn fifo(message: Value) -> Value {
    let mut message = in_group(message, "g");
    message["attributes"]["MessageDeduplicationId"] = json!(format!(
        "sent-as-{}",
        message["messageId"].as_str().unwrap()
    ));
    message
}

/// Text of an attribute of a copy.
fn text<'a>(copy: &'a Value, name: &str) -> Option<&'a str> {
    let attribute = &copy["MessageAttributes"][name];
    assert!(attribute.is_null() || attribute["DataType"] == "String");
    attribute["StringValue"].as_str()
}

#[tokio::test]
async fn declined_message_is_copied_and_acknowledged() {
    let world = World::start().await;
    let failed = world
        .process([
            order("m-1", "succeed"),
            declined("m-2"),
            order("m-3", "fail"),
        ])
        .await;
    assert_eq!(failed, ["m-3"]);
    assert_eq!(world.copied(), ["m-2"]);
    let copies = world.copies();
    assert_eq!(text(&copies[0], "SqsOnceReason"), Some("permanent_failure"));
    assert_eq!(text(&copies[0], "SqsOnceError"), Some("card declined"));
    assert_eq!(text(&copies[0], "SqsOnceKey"), Some("test#m-2"));
    assert!(world.is_failed("m-2"));
    // The visibility timeout does not matter to this test.
    let changed: Vec<_> = world.sqs.changes().into_iter().map(|(r, _)| r).collect();
    assert_eq!(changed, ["receipt-m-3-1"]);
    let line = log::lines_of("batch processed").pop().unwrap();
    assert_eq!(line["fields"]["dead_lettered"], 1);
    assert_eq!(line["fields"]["failed"], 1);
}

#[tokio::test]
async fn body_and_attributes_are_copied_unchanged() {
    let world = World::start().await;
    let mut message = declined("m-1");
    message["body"] = json!("{\"act\": \"decline\",\n \"id\": \"m-1\", \"name\": \"Zoë\"}");
    message["messageAttributes"] = json!({
        "plain": string("String", "x"),
        "typed": string("String.json", "{\"a\": 1}"),
        "number": string("Number", "1e3"),
        "weight": string("Number.kg", "0.50"),
        "blob": {"binaryValue": "AAH/", "dataType": "Binary.gzip", "stringListValues": [], "binaryListValues": []},
    });
    assert_eq!(world.process([message.clone()]).await, [""; 0]);
    let copy = world.copies().remove(0);
    assert_eq!(copy["MessageBody"], message["body"]);
    let attributes = copy["MessageAttributes"].as_object().unwrap();
    let names: BTreeSet<_> = attributes.keys().map(String::as_str).collect();
    let expected = [
        "plain",
        "typed",
        "number",
        "weight",
        "blob",
        "SqsOnceReason",
        "SqsOnceError",
        "SqsOnceKey",
    ];
    assert_eq!(names, expected.into());
    for (name, kind, value) in [
        ("plain", "String", "x"),
        ("typed", "String.json", "{\"a\": 1}"),
        ("number", "Number", "1e3"),
        ("weight", "Number.kg", "0.50"),
    ] {
        let wanted = json!({"DataType": kind, "StringValue": value});
        assert_eq!(attributes[name], wanted, "{name}");
    }
    let blob = json!({"DataType": "Binary.gzip", "BinaryValue": "AAH/"});
    assert_eq!(attributes["blob"], blob);
}

#[tokio::test]
async fn copy_keeps_trace_header_and_tenant() {
    let world = World::start().await;
    let mut message = declined("m-1");
    message["attributes"]["MessageGroupId"] = json!("tenant-7");
    message["attributes"]["AWSTraceHeader"] = json!("Root=1-5759e988-bd86");
    assert_eq!(world.process([message, declined("m-2")]).await, [""; 0]);
    let copies = world.copies();
    assert_eq!(copies[0]["MessageGroupId"], "tenant-7");
    assert!(copies[0]["MessageDeduplicationId"].is_null());
    assert_eq!(
        copies[0]["MessageSystemAttributes"],
        json!({"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd86"}})
    );
    for name in ["MessageGroupId", "MessageSystemAttributes"] {
        assert!(copies[1][name].is_null(), "{name}");
    }
}

#[tokio::test]
async fn copy_keeps_the_envelope() {
    let world = World::with(|consumer| consumer.envelope("auto".parse().unwrap())).await;
    let order = json!({"id": "m-1", "act": "decline"}).to_string();
    let notification = json!({
        "Type": "Notification", "MessageId": "s-1", "TopicArn": "arn", "Message": order,
        "Timestamp": "2026-11-22T08:00:00.000Z",
        "MessageAttributes": {"tenant": {"Type": "String", "Value": "acme"}},
    });
    let message = received("m-1", &notification, 1);
    assert_eq!(world.process([message]).await, [""; 0]);
    let copy = world.copies().remove(0);
    assert_eq!(copy["MessageBody"], notification.to_string());
    let attributes = copy["MessageAttributes"].as_object().unwrap();
    assert!(!attributes.contains_key("tenant"), "{copy}");
}

#[tokio::test]
async fn permanent_outcomes_are_copied_with_reason() {
    let keys: KeySource = "body:/id".parse().unwrap();
    let world = World::with(|consumer| consumer.key(keys)).await;
    world.sqs.turn_for(SEND, SqsBehaviour::Denying);
    assert_eq!(world.process([declined("m-1")]).await, ["m-1"]);
    world.sqs.turn_for(SEND, SqsBehaviour::Willing);
    assert_eq!(world.process([order("o-1", "succeed")]).await, [""; 0]);

    let mut reused = declined("m-2");
    reused["body"] = json!(json!({"id": "o-1", "act": "fail"}).to_string());
    let mut undecodable = declined("m-3");
    undecodable["body"] = json!("{");
    let mut keyless = declined("m-4");
    keyless["body"] = json!("{}");
    let failed = world
        .process([declined("m-1"), reused, undecodable, keyless])
        .await;
    assert_eq!(failed, [""; 0]);
    let copies = world.copies();
    let of = |copy| {
        let error = text(copy, "SqsOnceError").unwrap().to_owned();
        (
            text(copy, "SqsOnceReason").unwrap(),
            error,
            text(copy, "SqsOnceKey"),
        )
    };
    let mut all: Vec<_> = copies.iter().map(of).collect();
    all.sort();
    assert_eq!(all[0].0, "failed_before");
    assert_eq!((&*all[0].1, all[0].2), ("card declined", Some("test#m-1")));
    assert_eq!(
        (all[1].0, all[2].0, all[3].0),
        ("invalid", "invalid", "key_reused")
    );
    assert_eq!((all[1].2, all[2].2), (None, None), "no key");
    assert_eq!(all[3].2, Some("test#o-1"));
    assert_eq!(world.runs(), 2);
}

#[tokio::test]
async fn odd_message_is_copied_if_it_is_complete() {
    let world = World::start().await;
    let with = |id: &str, attribute: Value| {
        let mut record = declined(id);
        record["messageAttributes"] = json!({ "a": attribute });
        record
    };
    let event = batch([
        with(
            "m-1",
            json!({"stringValue": "x", "stringListValues": null, "dataType": "String"}),
        ),
        with(
            "m-2",
            json!({"binaryValue": "no base64?", "dataType": "Binary"}),
        ),
    ]);
    let event = LambdaEvent::new(to_raw_value(&event).unwrap(), Context::default());
    let consumer = Consumer::clone(&world.consumer);
    let response = consumer.oneshot(event).await.unwrap();
    // SQS keeps what a copy would lack.
    assert_eq!(response.batch_item_failures.len(), 1);
    assert_eq!(response.batch_item_failures[0].item_identifier, "m-2");
    assert_eq!(world.copied(), ["m-1"]);
    let copy = world.copies().remove(0);
    assert_eq!(text(&copy, "a"), Some("x"));
    assert_eq!(text(&copy, "SqsOnceReason"), Some("invalid"));
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn contents_under_one_id_are_both_reported() {
    let mut body = declined("m-1");
    body["body"] = json!(json!({"id": "m-1", "act": "decline", "amount": 2}).to_string());
    let mut attribute = declined("m-1");
    attribute["messageAttributes"] = json!({"tenant": string("String", "acme")});
    let mut failing = declined("m-1");
    failing["body"] = json!(json!({"id": "m-1", "act": "fail"}).to_string());
    for key in ["message-id", "body:/act"] {
        for twin in [&body, &attribute, &failing] {
            let world = World::with(|it| {
                it.key(key.parse().unwrap())
                    .fingerprint("off".parse().unwrap())
            })
            .await;
            let messages = [declined("m-1"), twin.clone(), order("m-2", "decline")];
            assert_eq!(world.process(messages).await, ["m-1"], "{key}: {twin}");
            assert_eq!(world.copied(), ["m-2"], "{key}: {twin}");
        }
    }
}

#[tokio::test]
async fn copy_is_not_sent_when_switched_off() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let consumer = Consumer::without_aws(
        Once::new(MemoryStore::default()),
        namespace(),
        ScriptedHandler::default(),
    );
    let visibility = Visibility::new(sqs.client()).dead_letter(false);
    let consumer = Arc::new(consumer.visibility(visibility));
    let failed = process(&consumer, batch([declined("m-1")]), within(10 * SECOND)).await;
    assert_eq!(failed, ["m-1"]);
    assert!(sqs.calls(SEND).is_empty());
}

#[tokio::test]
async fn crash_before_copy_copies_on_next_receive() {
    let world = World::start().await;
    world.sqs.turn_for(SEND, SqsBehaviour::Hanging);
    tokio::select! {
        _ = world.process([declined("m-1")]) => unreachable!("SQS hangs"),
        () = world.sqs.called(SEND, 1) => assert!(world.is_failed("m-1"), "recorded first"),
    }
    assert_eq!(world.copied(), [""; 0]);
    world.sqs.turn_for(SEND, SqsBehaviour::Willing);
    assert_eq!(world.process([declined("m-1")]).await, [""; 0]);
    assert_eq!(world.copied(), ["m-1"]);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn crash_after_copy_duplicates_only_on_standard() {
    for (is_fifo, copies) in [(false, vec!["m-1", "m-1"]), (true, vec!["m-1"])] {
        let world = World::start().await;
        let message = || {
            if is_fifo {
                fifo(declined("m-1"))
            } else {
                declined("m-1")
            }
        };
        world.sqs.turn_for(SEND, SqsBehaviour::Silent);
        tokio::select! {
            _ = world.process([message()]) => unreachable!("SQS is silent"),
            () = world.sqs.called(SEND, 1) => {}
        }
        let taken = async {
            while world.copies().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(support::PATIENCE, taken)
            .await
            .unwrap();
        world.sqs.turn_for(SEND, SqsBehaviour::Willing);
        assert_eq!(world.process([message()]).await, [""; 0]);
        assert_eq!(world.copied(), copies);
        assert_eq!(world.runs(), 1);
    }
}

#[tokio::test]
async fn lost_responses_leave_message_unacknowledged() {
    let world = World::start().await;
    for behaviour in [SqsBehaviour::Cut, SqsBehaviour::Empty] {
        world.sqs.turn_for(SEND, behaviour);
        assert_eq!(
            world.process([declined("m-1")]).await,
            ["m-1"],
            "{behaviour:?}"
        );
        assert!(!world.copies().is_empty());
        // The endpoint gave no response.
        later(301 * SECOND);
    }
    world.sqs.turn_for(SEND, SqsBehaviour::Willing);
    assert_eq!(world.process([declined("m-1")]).await, [""; 0]);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn partial_response_acknowledges_confirmed_copies() {
    let orders = || ["m-1", "m-2", "m-3"].map(declined);
    for (behaviour, failed) in [
        (SqsBehaviour::FailingFirst, ["m-1"]),
        (SqsBehaviour::Forgetful, ["m-3"]),
    ] {
        let world = World::start().await;
        world.sqs.turn_for(SEND, behaviour);
        assert_eq!(world.process(orders()).await, failed, "{behaviour:?}");
        let changed = world.sqs.changes();
        assert_eq!(changed, [(format!("receipt-{}-1", failed[0]), 0)]);
    }
}

#[tokio::test]
async fn message_without_body_is_failed() {
    let mut bodiless = declined("bodiless");
    bodiless["body"] = Value::Null;
    let world = World::start().await;
    let failed = world.process([bodiless, declined("m-1")]).await;
    assert_eq!(failed, ["bodiless"]);
    assert_eq!(world.copied(), ["m-1"]);
}

fn with_attributes(mut message: Value, number: usize) -> Value {
    for n in 0..number {
        message["messageAttributes"][format!("a{n}")] = string("String", "x");
    }
    message
}

/// The attributes of a copy that we add, by the last word of their names.
fn ours(copy: &Value) -> Vec<&str> {
    ["Reason", "Key", "Error", "DeduplicationId"]
        .into_iter()
        .filter(|name| text(copy, &format!("SqsOnce{name}")).is_some())
        .collect()
}

#[tokio::test]
async fn copy_with_ten_attributes_goes_without_ours() {
    let world = World::start().await;
    let numbers = [7, 8, 9, 10];
    let messages = numbers.map(|n| with_attributes(declined(&format!("with-{n}")), n));
    assert_eq!(world.process(messages).await, [""; 0]);
    let copies = world.copies();
    let left: Vec<_> = copies.iter().map(ours).collect();
    let expected: [&[&str]; 4] = [
        &["Reason", "Key", "Error"],
        &["Reason", "Key"],
        &["Reason"],
        &[],
    ];
    assert_eq!(left, expected);
    for (copy, number) in copies.iter().zip(numbers) {
        let attributes = copy["MessageAttributes"].as_object().unwrap();
        assert_eq!(attributes.len(), 10, "{number}");
    }
}

/// The limit is that of SQS, or the queue's own.
#[tokio::test]
async fn copy_of_largest_message_goes_without_ours() {
    let spent = |name: &str, value: usize| name.len() + "String".len() + value;
    let reason = spent("SqsOnceReason", "permanent_failure".len());
    let key = spent("SqsOnceKey", "test#m-1".len());
    let error = spent("SqsOnceError", 1);
    for limit in [1024 * 1024, 256 * 1024] {
        let world = World::start().await;
        world.sqs.takes(limit);
        for (n, (left, expected, error_bytes)) in [
            (0, &[][..], 0),
            (reason - 1, &[], 0),
            (reason, &["Reason"], 0),
            (reason + key - 1, &["Reason"], 0),
            (reason + key + error - 1, &["Reason", "Key"], 0),
            (reason + key + error, &["Reason", "Key", "Error"], 1),
            (reason + key + error + 4, &["Reason", "Key", "Error"], 5),
        ]
        .into_iter()
        .enumerate()
        {
            let id = format!("m-{n}");
            let mut message = declined(&id);
            let body = |pad: usize| {
                json!({"id": id, "act": "decline", "pad": "x".repeat(pad)}).to_string()
            };
            message["body"] = json!(body(limit - left - body(0).len()));
            message["messageAttributes"] = json!({});
            let before = world.copies().len();
            assert_eq!(world.process([message]).await, [""; 0], "{left} bytes");
            let copy = &world.copies()[before];
            assert_eq!(ours(copy), expected, "{left} bytes");
            let text = text(copy, "SqsOnceError").map_or(0, str::len);
            assert_eq!(text, error_bytes, "{left} bytes");
        }
    }
}

/// Without its deduplication id, the copy would have another key.
#[tokio::test]
async fn copy_keeps_the_deduplication_id_that_is_its_key() {
    for (key, failed) in [("deduplication-id", &["with-10"][..]), ("message-id", &[])] {
        let keys: KeySource = key.parse().unwrap();
        let world = World::with(|consumer| consumer.key(keys)).await;
        let messages = [8, 9, 10].map(|n| {
            let message = fifo(declined(&format!("with-{n}")));
            with_attributes(message, n)
        });
        assert_eq!(world.process(messages).await, failed, "{key}");
        let copies = world.copies();
        assert_eq!(ours(&copies[0]), ["Reason", "DeduplicationId"], "{key}");
        assert_eq!(ours(&copies[1]), ["DeduplicationId"], "{key}");
        assert_eq!(copies.len(), 3 - failed.len(), "{key}");
    }
}

#[tokio::test]
async fn refused_call_does_not_stop_other_copies() {
    let world = World::start().await;
    world.sqs.turn_for(SEND, SqsBehaviour::Invalid("m-3"));
    let messages = (0..23).map(|n| declined(&format!("m-{n}")));
    assert_eq!(world.process(messages).await, ["m-3"]);
    assert_eq!(world.copied().len(), 22);
    let refused = log::lines_containing("did not take its copy");
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert_eq!(refused[0]["fields"]["message_id"], "m-3");
}

#[tokio::test]
async fn missing_permission_is_warned_of_once() {
    for denied in [SEND, "GetQueueUrl", "GetQueueAttributes"] {
        let world = World::start().await;
        world.sqs.turn_for(denied, SqsBehaviour::Denying);
        for _ in 0..3 {
            assert_eq!(world.process([declined("m-1")]).await, ["m-1"], "{denied}");
            // The policy is read again after five minutes.
            later(301 * SECOND);
        }
        assert_eq!(world.copied(), [""; 0]);
        assert_eq!(world.runs(), 1);
        let about_copies = |line: &Value| {
            let message = line["fields"]["message"].as_str().unwrap();
            let about = ["dead-letter queue directly", "attributes could not be read"];
            about.iter().any(|words| message.contains(words))
        };
        let lines: Vec<_> = log::lines().into_iter().filter(about_copies).collect();
        let [line] = lines.as_slice() else {
            panic!("{denied}: {lines:#?}");
        };
        assert_eq!(line["level"], "WARN");
        let error = line["fields"]["error"].as_str().unwrap();
        assert!(
            error.contains(&format!("sqs:{denied}").replace("Batch", "")),
            "{line}"
        );
    }
}

#[tokio::test]
async fn message_without_dlq_is_failed() {
    let world = World::start().await;
    world.sqs.has(None, 345_600);
    assert_eq!(world.process([declined("m-1")]).await, ["m-1"]);
    assert!(world.sqs.calls(SEND).is_empty());
    let warned = log::lines_containing("the queue has no dead-letter queue");
    assert_eq!(warned.len(), 1);
}

#[tokio::test]
async fn hanging_sqs_delays_response_within_bound() {
    for operation in ["GetQueueUrl", "GetQueueAttributes", SEND] {
        for (budget, at_most) in [(60 * SECOND, 5 * SECOND), (SECOND, SECOND)] {
            let world = World::start().await;
            world.sqs.turn_for(operation, SqsBehaviour::Hanging);
            let started = Stopwatch::start();
            let event = batch([declined("m-1")]);
            let failed = process(&world.consumer, event, within(budget)).await;
            assert_eq!(failed, ["m-1"], "{operation}");
            assert!(
                started.elapsed() < at_most,
                "{operation}: {:?}",
                started.elapsed()
            );
        }
    }
}

#[tokio::test]
async fn dead_letter_queue_is_found_by_arn() {
    let world = World::start().await;
    let elsewhere = "arn:aws:sqs:eu-central-1:210987654321:elsewhere";
    world.sqs.has(Some(elsewhere), 345_600);
    assert_eq!(world.process([declined("m-1")]).await, [""; 0]);
    assert_eq!(world.sqs.sent_to("/210987654321/elsewhere").len(), 1);
    assert_eq!(world.process([declined("m-2")]).await, [""; 0]);
    let names = world.sqs.calls("GetQueueUrl").into_iter();
    let names = names.map(|call| call.body["QueueName"].as_str().unwrap().to_owned());
    assert_eq!(names.filter(|name| name == "elsewhere").count(), 1);
    assert_ne!(elsewhere, DEAD_LETTER_QUEUE_ARN);
}

#[tokio::test]
async fn send_batch_is_limited_to_10_copies_and_256_kib() {
    let world = World::start().await;
    let messages = (0..23).map(|n| declined(&format!("m-{n}")));
    assert_eq!(world.process(messages).await, [""; 0]);
    let sizes = |world: &World| -> Vec<usize> {
        let calls = world.sqs.calls(SEND);
        let size = |call: &support::sqs::Call| call.body["Entries"].as_array().unwrap().len();
        calls.iter().map(size).collect()
    };
    assert_eq!(sizes(&world), [10, 10, 3]);

    let world = World::start().await;
    let large = |id: &str, kib: usize| {
        let padding = "x".repeat(kib * 1024);
        let mut message = declined(id);
        message["body"] = json!(json!({"id": id, "act": "decline", "pad": padding}).to_string());
        message
    };
    let messages = [
        large("m-1", 100),
        large("m-2", 100),
        large("m-3", 100),
        large("m-4", 900),
        large("m-5", 1),
    ];
    assert_eq!(world.process(messages).await, [""; 0]);
    assert_eq!(sizes(&world), [2, 1, 1, 1]);
    assert_eq!(world.copied(), ["m-1", "m-2", "m-3", "m-4", "m-5"]);
}

#[tokio::test]
async fn fifo_copy_keeps_group_and_first_id() {
    let world = World::start().await;
    let mut redriven = fifo(declined("m-2"));
    redriven["messageAttributes"]["SqsOnceDeduplicationId"] = string("String", "first-of-all");
    redriven["messageAttributes"]["SqsOnceRedriveOf"] = string("String", "m-0");
    let messages = [
        fifo(declined("m-1")),
        redriven,
        fifo(order("m-3", "succeed")),
        fifo(declined("m-4")),
    ];
    assert_eq!(world.process(messages).await, [""; 0]);
    assert_eq!(
        world.copied(),
        ["m-1", "m-2", "m-4"],
        "in the group's order"
    );
    let copies = world.copies();
    for (copy, (id, original)) in copies.iter().zip([
        ("m-1", "sent-as-m-1"),
        ("m-2", "first-of-all"),
        ("m-4", "sent-as-m-4"),
    ]) {
        assert_eq!(copy["MessageGroupId"], "g");
        assert_eq!(copy["MessageDeduplicationId"], id);
        assert_eq!(text(copy, "SqsOnceDeduplicationId"), Some(original));
    }
    assert_eq!(text(&copies[1], "SqsOnceRedriveOf"), Some("m-0"));
    assert_eq!(world.runs(), 4);

    // A standard queue copies neither.
    assert_eq!(world.process([declined("m-5")]).await, [""; 0]);
    let copy = world.copies().pop().unwrap();
    assert!(copy["MessageGroupId"].is_null() && copy["MessageDeduplicationId"].is_null());
    assert_eq!(text(&copy, "SqsOnceDeduplicationId"), None);
}

#[tokio::test]
async fn fifo_group_goes_on_after_copy_of_keyless_message() {
    let world = World::with(|consumer| consumer.key("body:/key".parse().unwrap())).await;
    let keyless = order("m-1", "succeed");
    let keyed = received(
        "m-2",
        &json!({"id": "m-2", "act": "succeed", "key": "k"}),
        1,
    );
    let failed = world.process([fifo(keyless), fifo(keyed.clone())]).await;
    assert_eq!((failed, world.runs()), (vec!["m-2".to_owned()], 0));
    assert_eq!(world.copied(), ["m-1"]);
    assert_eq!(world.process([fifo(keyed)]).await, [""; 0]);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn stopped_fifo_group_is_visible_after_copy() {
    let stop = |consumer: Consumer<_, _>| consumer.fifo_after_permanent(FifoAfterPermanent::Stop);
    let world = World::with(stop).await;
    let messages = [fifo(declined("m-1")), fifo(order("m-2", "succeed"))];
    assert_eq!(world.process(messages).await, ["m-2"]);
    assert_eq!(world.copied(), ["m-1"]);
    assert_eq!(world.sqs.changes(), [("receipt-m-2-1".to_owned(), 0)]);
}

#[tokio::test]
async fn two_deliveries_of_message_are_copied_once() {
    let world = World::start().await;
    let delivery = |n| received("m-1", &json!({"id": "m-1", "act": "decline"}), n);
    for messages in [
        [delivery(1), delivery(2)],
        [fifo(delivery(3)), fifo(delivery(4))],
    ] {
        let before = world.sqs.calls(SEND).len();
        assert_eq!(world.process(messages).await, [""; 0]);
        let calls = world.sqs.calls(SEND);
        assert_eq!(calls.len(), before + 1);
        assert_eq!(calls[before].body["Entries"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn attributes_of_earlier_copy_are_replaced() {
    let world = World::start().await;
    let mut message = declined("m-1");
    for (name, kind) in [("Reason", "Number"), ("Error", "String"), ("Key", "String")] {
        message["messageAttributes"][format!("SqsOnce{name}")] = string(kind, "7");
    }
    for n in 0..7 {
        message["messageAttributes"][format!("a{n}")] = string("String", "x");
    }
    assert_eq!(world.process([message]).await, [""; 0], "ten attributes");
    let copy = world.copies().remove(0);
    assert_eq!(text(&copy, "SqsOnceReason"), Some("permanent_failure"));
    assert_eq!(text(&copy, "SqsOnceError"), Some("card declined"));
    assert_eq!(text(&copy, "SqsOnceKey"), Some("test#m-1"));
}

#[tokio::test]
async fn stale_attributes_of_copy_are_removed() {
    let keys: KeySource = "body:/id".parse().unwrap();
    let world = World::with(|consumer| consumer.key(keys)).await;
    let mut keyless = declined("m-1");
    keyless["body"] = json!("{}");
    let mut wordless = declined("m-2");
    wordless["body"] = json!(json!({"id": "m-2", "act": "decline", "why": ""}).to_string());
    for message in [&mut keyless, &mut wordless] {
        for name in ["SqsOnceKey", "SqsOnceError"] {
            message["messageAttributes"][name] = string("String", "earlier");
        }
    }
    assert_eq!(world.process([keyless, wordless]).await, [""; 0]);
    let copies = world.copies();
    assert_eq!(text(&copies[0], "SqsOnceKey"), None);
    assert_eq!(text(&copies[1], "SqsOnceError"), None);
}

#[tokio::test]
async fn error_and_key_attributes_fit_sqs() {
    let keys: KeySource = "body:/id".parse().unwrap();
    let world = World::with(|consumer| consumer.key(keys)).await;
    let message = |id: &str, why: &str| {
        let body = json!({"id": id, "act": "decline", "why": why});
        received("m", &body, 1)
    };
    for (id, why) in [
        ("plain", "é".repeat(600)),
        ("bell\u{7}", "rings \u{7}\u{0}\n".to_owned()),
        ("empty", String::new()),
    ] {
        let mut message = message(id, &why);
        message["messageId"] = json!(format!("m-{}", why.len()));
        assert_eq!(world.process([message]).await, [""; 0]);
    }
    let copies = world.copies();
    let error = |n: usize| text(&copies[n], "SqsOnceError");
    assert_eq!(error(0), Some(&*"é".repeat(512)), "1,024 bytes");
    assert_eq!(error(1), Some("rings \u{fffd}\u{fffd}\n"));
    assert_eq!(error(2), None, "SQS takes no empty value");
    assert_eq!(text(&copies[0], "SqsOnceKey"), Some("test#plain"));
    let hash = text(&copies[1], "SqsOnceKey").unwrap();
    assert!(
        hash.len() == 64 && hash.chars().all(|c| c.is_ascii_hexdigit()),
        "{hash}"
    );
}
