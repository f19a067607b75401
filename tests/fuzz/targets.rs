//! Fuzz targets and their invariants. libFuzzer calls these functions with generated input,
//! `tests/library/fuzz_seeds.rs` with the seeds.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each fuzzer uses its own part of it, and fails by panicking"
)]

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_lambda_events::sqs::{SqsEvent, SqsMessage};
use serde_json::{Value, value::RawValue};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once,
    protocol::{Key, MAX_KEY_BYTES, Namespace, State, Timestamp},
    store::MemoryStore,
};

/// Handler for any JSON. `null` fails retryably, `false` fails permanently, all else succeeds.
#[derive(Clone, Default)]
struct AnyJsonHandler {
    /// Key of each successful call.
    done: Arc<Mutex<Vec<Key>>>,
}

impl Handler for AnyJsonHandler {
    type Message = Value;
    type Output = Value;

    async fn handle(&self, body: Value, attempt: Attempt) -> Result<Value, Failure> {
        match body {
            Value::Null => Err(Failure::retryable("scripted")),
            Value::Bool(false) => Err(Failure::permanent("scripted")),
            other => {
                self.done.lock().unwrap().push(attempt.key().clone());
                Ok(other)
            }
        }
    }
}

/// A consumer, and the keys that succeeded.
struct Bench {
    store: MemoryStore,
    taker: AnyJsonHandler,
    consumer: Arc<Consumer<Once<MemoryStore>, AnyJsonHandler>>,
}

impl Bench {
    fn new(key: &str, fingerprint: &str) -> Self {
        let (store, taker) = (MemoryStore::default(), AnyJsonHandler::default());
        let once = Once::new(store.clone());
        let consumer = Consumer::without_aws(once, namespace(), taker.clone())
            .key(key.parse().unwrap())
            .fingerprint(fingerprint.parse().unwrap());
        Self {
            store,
            taker,
            consumer: Arc::new(consumer),
        }
    }

    /// Identifiers reported as failed; `None` if a record has no usable id.
    fn process(&self, records: &[SqsMessage]) -> Option<Vec<String>> {
        thread_local! {
            static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
        }
        let mut event = SqsEvent::default();
        event.records = records.to_vec();
        let minute = Duration::from_secs(60);
        let response = RUNTIME.with(|runtime| {
            // Made inside: a deadline is a point on the runtime's clock.
            runtime.block_on(async {
                let deadline = Deadline::after(Timestamp::now(), minute, minute / 4);
                self.consumer.process(event, deadline).await
            })
        });
        let failures = response.ok()?.batch_item_failures.into_iter();
        Some(failures.map(|failure| failure.item_identifier).collect())
    }

    fn done(&self) -> Vec<Key> {
        self.taker.done.lock().unwrap().clone()
    }
}

fn namespace() -> Namespace {
    Namespace::new("fuzz").unwrap()
}

/// True for messages that no handler gets, although they are JSON with a key: control messages of SNS and
/// S3, and pointers to bodies in S3.
fn is_for_no_handler(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let marks = ["Confirmation", "s3:TestEvent", "S3Pointer", "s3Key"];
    marks.iter().any(|mark| text.contains(mark))
}

/// `data` as an event from Lambda.
pub(crate) fn event(data: &[u8]) {
    if is_for_no_handler(data) {
        return;
    }
    let Ok(event) = serde_json::from_slice::<SqsEvent>(data) else {
        return;
    };
    let records = event.records;
    let bench = Bench::new("message-id", "body");
    let nameless = |record: &SqsMessage| record.message_id.as_deref().unwrap_or("").is_empty();
    let Some(failed) = bench.process(&records) else {
        assert!(records.iter().any(nameless), "refused, and all have ids");
        assert!(bench.store.is_empty(), "refused, and something ran");
        return;
    };

    // Each named once, in batch order, and no other.
    let ids: Vec<&str> = records
        .iter()
        .filter_map(|record| record.message_id.as_deref())
        .collect();
    let mut rest = ids.iter();
    for (n, id) in failed.iter().enumerate() {
        assert!(rest.any(|known| known == id), "{id:?} in {failed:?}");
        assert!(!failed[..n].contains(id), "{id:?} twice in {failed:?}");
    }

    let again = bench.process(&records).unwrap_or_default();
    let mut deliveries: HashMap<&str, Vec<&SqsMessage>> = HashMap::new();
    for (id, record) in ids.iter().zip(&records) {
        deliveries.entry(id).or_default().push(record);
    }
    for (id, deliveries) in deliveries {
        let is_failed = failed.iter().any(|failed| failed == id);
        let key = Key::new(&namespace(), [id]).unwrap();
        let ran = bench.done().iter().filter(|done| **done == key).count();
        assert!(ran <= 1, "{id:?} was done {ran} times");
        if !is_failed {
            let record = bench.store.record(&key).unwrap();
            assert!(matches!(record.state, State::Completed { .. }), "{id:?}");
            assert_eq!(ran, 1, "{id:?} is acknowledged");
            assert!(!again.iter().any(|again| again == id), "{id:?} came undone");
        }
        if deliveries
            .iter()
            .all(|record| is_unaffected_by_others(record, deliveries[0]))
        {
            assert!(!is_failed, "{id:?} fails by another message's fault");
        }
    }
}

/// True if no other record can make `record` fail, a delivery of the same message as `first`.
fn is_unaffected_by_others(record: &SqsMessage, first: &SqsMessage) -> bool {
    let is_fifo = |arn: &String| arn.ends_with(".fifo");
    let body = record.body.as_deref().map(serde_json::from_str::<Value>);
    record.body == first.body
        && !record.event_source_arn.as_ref().is_some_and(is_fifo)
        && matches!(body, Some(Ok(value)) if !value.is_null() && value != false)
}

const KEYS: [&str; 4] = [
    "message-id",
    "body:/orderId",
    "body:/tenant,/orderId",
    "body:/Message/orderId",
];
const FINGERPRINTS: [&str; 3] = ["body", "off", "body:/amount,/currency"];

/// Number of pairs of key source and fingerprint.
pub(crate) const CHOICES: u8 = (KEYS.len() * FINGERPRINTS.len()) as u8;

/// The first byte selects key source and fingerprint, the rest is a message's body.
pub(crate) fn body(data: &[u8]) {
    let Some((choice, Ok(body))) = data
        .split_first()
        .map(|(choice, body)| (usize::from(*choice), std::str::from_utf8(body)))
    else {
        return;
    };
    if is_for_no_handler(body.as_bytes()) {
        return;
    }
    let key = KEYS[choice % KEYS.len()];
    let fingerprint = FINGERPRINTS[choice / KEYS.len() % FINGERPRINTS.len()];
    let bench = Bench::new(key, fingerprint);
    let send = |id: &str, body: &str| {
        let mut record = SqsMessage::default();
        record.message_id = Some(id.to_owned());
        record.body = Some(body.to_owned());
        bench.process(&[record]).unwrap().is_empty()
    };
    let acknowledged = send("m-1", body);
    let done = bench.done();
    assert_eq!(done.len(), usize::from(acknowledged));
    let json = serde_json::from_str::<Value>(body.strip_prefix('\u{feff}').unwrap_or(body));
    if let (Ok(json), "body:/orderId") = (&json, key) {
        match json.pointer("/orderId") {
            Some(Value::String(id)) if !id.is_empty() => {
                assert_eq!(done, [Key::new(&namespace(), [id.as_str()]).unwrap()]);
            }
            Some(Value::String(_) | Value::Null) => assert!(!acknowledged, "no key"),
            None => assert!(!acknowledged, "no key"),
            Some(_) => {}
        }
    }
    let Some(done) = done.first() else {
        return;
    };
    let json = json.expect("only JSON reaches the handler");
    assert!(done.as_str().starts_with("fuzz#"), "{done}");
    assert!(done.as_str().len() <= MAX_KEY_BYTES, "{done}");

    // The same value in another formatting, under the same key, is a duplicate.
    let text = body.strip_prefix('\u{feff}').unwrap_or(body);
    let other_words = reversed(serde_json::from_str(text).unwrap());
    let same = serde_json::from_str::<Value>(&other_words).is_ok_and(|again| again == json);
    let id = if key.ends_with("message-id") {
        "m-1"
    } else {
        "m-2"
    };
    if same {
        assert!(send(id, &other_words), "{body} and {other_words}");
    }
    // Another value is not a duplicate.
    if key.ends_with("message-id") && fingerprint == "body" {
        assert!(!send(id, &format!("[{body}]")), "{body} and a list of it");
    }
    assert_eq!(bench.done().len(), 1);
    assert_eq!(bench.store.len(), 1);
}

/// A value as JSON with white space, the members of objects backwards. Numbers stay as they are, since a `Value` rounds
/// them.
fn reversed(value: &RawValue) -> String {
    let text = value.get();
    if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) {
        let items: Vec<_> = items.into_iter().map(reversed).collect();
        format!("[ {} ]", items.join("\n, "))
    } else if let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
        let members = members.into_iter().rev();
        let members =
            members.map(|(name, value)| format!("{} : {}", Value::String(name), reversed(value)));
        format!("{{\t{}\r}}", members.collect::<Vec<_>>().join(" ,"))
    } else {
        text.to_owned()
    }
}
