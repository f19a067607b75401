//! Messages of the Amazon SQS Extended Client: their bodies are in S3.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once, Operation, Settings, handler_fn,
    protocol::{Key, State, Timestamp},
    sqs::{S3Bodies, Visibility},
    store::{DynamoStore, MemoryStore},
};
use support::{
    consumer::{namespace, process, within},
    dynamo::{Dynamo, text},
    event::{batch, in_group, order, received, record},
    log,
    prerequisite::emulator,
    s3::{self, BUCKET, S3, S3Answer, impatient, pointer, pointer_to},
    sqs::{Sqs, SqsBehaviour},
};

const ONE_MINUTE: Duration = Duration::from_secs(60);
/// Longest body.
const LIMIT: u32 = 8 << 10;

/// Handler that remembers the orders that it got, and fails those with `act`.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Value>>>);

impl Handler for Seen {
    type Message = Value;
    type Output = ();

    async fn handle(&self, order: Value, _: Attempt) -> Result<(), Failure> {
        tracing::info!("charging");
        let declined = order["act"] == "decline";
        self.0.lock().unwrap().push(order);
        match declined {
            true => Err(Failure::permanent("card declined")),
            false => Ok(()),
        }
    }
}

impl Seen {
    fn orders(&self) -> Vec<String> {
        let seen = self.0.lock().unwrap();
        let ids = seen.iter().map(|order| order["orderId"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    }
}

type Charges = Consumer<Once<MemoryStore>, Seen>;

/// An S3 of the test's own, records in memory, and a consumer with the order as its key.
struct World {
    s3: S3,
    store: MemoryStore,
    seen: Seen,
    consumer: Arc<Charges>,
}

impl World {
    async fn start() -> Self {
        Self::with(|consumer| consumer).await
    }

    async fn with(set: impl FnOnce(Charges) -> Charges) -> Self {
        log::start();
        let (s3, store, seen) = (S3::start().await, MemoryStore::default(), Seen::default());
        let consumer = Consumer::without_aws(Once::new(store.clone()), namespace(), seen.clone());
        let consumer = consumer.key("body:/orderId".parse().unwrap());
        let bodies =
            S3Bodies::new(&impatient(s3.endpoint()), [BUCKET]).max_bytes(LIMIT.try_into().unwrap());
        let consumer = Arc::new(set(consumer.s3_bodies(bodies)));
        Self {
            s3,
            store,
            seen,
            consumer,
        }
    }

    /// Ids reported as batch item failures.
    async fn process(&self, records: impl IntoIterator<Item = Value>) -> Vec<String> {
        process(&self.consumer, batch(records), within(ONE_MINUTE)).await
    }

    fn state(&self, order: &str) -> Option<State> {
        let key = Key::new(&namespace(), [order]).unwrap();
        Some(self.store.record(&key)?.state)
    }

    /// Processes a pointer to the object `o-1`, which fails. Returns outcome and text.
    async fn failure(&self) -> (String, String) {
        let failed = self.process([record("m-1", &pointer("o-1"))]).await;
        assert_eq!(failed, ["m-1"]);
        assert!(self.seen.orders().is_empty());
        assert!(self.state("o-1").is_none(), "a record was written");
        let (outcome, detail) = one_outcome();
        assert!(
            !detail.contains("o-1"),
            "the object key is payload: {detail}"
        );
        (outcome, detail)
    }
}

/// Logged outcomes, in the order of their ends.
fn outcomes() -> Vec<(String, String)> {
    let lines = log::lines_of("message processed").into_iter();
    let text = |line: &Value, name: &str| line["fields"][name].as_str().unwrap_or("").to_owned();
    lines
        .map(|line| (text(&line, "outcome"), text(&line, "detail")))
        .collect()
}

fn names() -> Vec<String> {
    outcomes().into_iter().map(|(name, _)| name).collect()
}

fn one_outcome() -> (String, String) {
    let mut outcomes = outcomes();
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    outcomes.remove(0)
}

#[tokio::test]
async fn body_in_s3_is_keyed_and_handled_as_its_own() {
    let world = World::start().await;
    world.s3.put_object("3f0b8a0e", &order("o-1"));
    let failed = world.process([record("m-1", &pointer("3f0b8a0e"))]).await;
    assert_eq!(failed, [""; 0]);
    assert_eq!(world.seen.0.lock().unwrap()[..], [order("o-1")]);
    assert!(matches!(world.state("o-1"), Some(State::Completed { .. })));
    assert_eq!(world.s3.requests(), [format!("/{BUCKET}/3f0b8a0e")]);
}

#[tokio::test]
async fn pointer_of_an_older_client_is_read() {
    let world = World::start().await;
    world.s3.put_object("k", &order("o-1"));
    let body = pointer("k").replace(
        "software.amazon.payloadoffloading.PayloadS3Pointer",
        "com.amazon.sqs.javamessaging.MessageS3Pointer",
    );
    assert_eq!(world.process([record("m-1", &body)]).await, [""; 0]);
    assert_eq!(world.seen.orders(), ["o-1"]);
}

#[tokio::test]
async fn same_body_plain_and_by_pointer_runs_once() {
    let world = World::start().await;
    for (id, key) in [("o-1", "k-1"), ("o-2", "k-2")] {
        world.s3.put_object(key, &order(id));
    }
    // One batch after the other: a pointer has no key until it is read.
    for body in [
        pointer("k-1"),
        order("o-1").to_string(),
        order("o-2").to_string(),
        pointer("k-2"),
    ] {
        assert_eq!(world.process([record("m-1", &body)]).await, [""; 0]);
    }
    assert_eq!(
        names(),
        ["completed", "duplicate", "completed", "duplicate"]
    );
    assert_eq!(world.seen.orders(), ["o-1", "o-2"]);
}

#[tokio::test]
async fn two_pointers_with_one_key_run_once() {
    let world = World::start().await;
    world.s3.put_object("k-1", &order("o-1"));
    world.s3.put_object("k-2", &order("o-1"));
    let records = ["k-1", "k-2"].map(|key| record(key, &pointer(key)));
    world.process(records).await;
    // Neither has a key when chains are planned, so they run side by side.
    let second = names().into_iter().filter(|name| name != "completed");
    let second: Vec<_> = second.collect();
    assert!(
        second == ["conflict"] || second == ["duplicate"],
        "{second:?}"
    );
    assert_eq!(world.seen.orders(), ["o-1"]);
}

#[tokio::test]
async fn pointer_of_a_changed_body_reuses_its_key() {
    let world = World::start().await;
    for (key, amount) in [("k-1", 1), ("k-2", 2)] {
        let body = json!({"orderId": "o-1", "amount": amount});
        world.s3.put_object(key, &body);
        world.process([record(key, &pointer(key))]).await;
    }
    assert_eq!(names(), ["completed", "key_reused"]);
}

#[tokio::test]
async fn pointer_inside_an_sns_envelope_is_read() {
    let world = World::with(|consumer| consumer.envelope("auto".parse().unwrap())).await;
    world.s3.put_object("k", &order("o-1"));
    let notification = json!({
        "Type": "Notification",
        "MessageId": "s-1",
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:orders",
        "Message": pointer("k"),
        "Timestamp": "2026-11-22T08:00:00.000Z",
        "MessageAttributes": {"ExtendedPayloadSize": {"Type": "Number", "Value": "300000"}},
    });
    let failed = world.process([record("m-1", &notification)]).await;
    assert_eq!(failed, [""; 0]);
    assert_eq!(world.seen.orders(), ["o-1"]);
}

#[tokio::test]
async fn log_lines_have_the_key_of_the_body() {
    let world = World::start().await;
    world.s3.put_object("k", &order("o-1"));
    world.process([record("m-1", &pointer("k"))]).await;
    let lines = log::lines();
    let of = |message: &str| {
        let mut lines = lines.iter();
        let line = lines.find(|line| line["fields"]["message"] == message);
        line.unwrap_or_else(|| panic!("no line `{message}`"))
            .clone()
    };
    assert_eq!(of("message processed")["fields"]["key"], "test#o-1");
    let charging = of("charging");
    assert_eq!(charging["span"]["key"], "test#o-1", "{charging}");
    assert_eq!(charging["span"]["message_id"], "m-1");
}

#[tokio::test]
async fn pointer_to_another_bucket_makes_no_request() {
    let world = World::start().await;
    for bucket in [
        "secrets",
        "order-bodies2",
        "order-bodies/..",
        "ORDER-BODIES",
    ] {
        let failed = world
            .process([record("m-1", &pointer_to(bucket, "o-1"))])
            .await;
        assert_eq!(failed, ["m-1"]);
        let (outcome, detail) = one_outcome();
        assert_eq!(outcome, "no_effect");
        assert!(detail.contains("CONSUMER_S3_BUCKETS"), "{detail}");
        assert!(!detail.contains(bucket), "{detail}");
    }
    assert_eq!(world.s3.requests(), [""; 0]);
    assert!(world.seen.orders().is_empty());
}

#[tokio::test]
async fn pointer_without_sound_key_makes_no_request() {
    let world = World::start().await;
    for key in ["", "..", "../secrets/o-1", "a/../b"] {
        world.process([record("m-1", &pointer(key))]).await;
        assert_eq!(one_outcome().0, "invalid", "{key}");
    }
    assert_eq!(world.s3.requests(), [""; 0]);
}

#[tokio::test]
async fn missing_object_is_a_permanent_failure() {
    let world = World::start().await;
    let (outcome, detail) = world.failure().await;
    assert_eq!(outcome, "invalid");
    assert!(detail.contains("NoSuchKey"), "{detail}");
    assert!(detail.contains(BUCKET), "{detail}");
    assert_eq!(world.s3.requests().len(), 1);
}

#[tokio::test]
async fn failures_of_s3_are_retryable_and_named() {
    let world = World::start().await;
    for (status, code, told) in [
        (403, "AccessDenied", "s3:GetObject"),
        (403, "AccessDenied", "s3:ListBucket"),
        (403, "InvalidObjectState", "InvalidObjectState"),
        (404, "NoSuchBucket", "CONSUMER_S3_BUCKETS"),
        (301, "PermanentRedirect", "Region"),
        (500, "InternalError", "InternalError"),
        (503, "SlowDown", "SlowDown"),
    ] {
        world.s3.put("o-1", S3Answer::Error(status, code));
        let (outcome, detail) = world.failure().await;
        assert_eq!(outcome, "no_effect", "{code}");
        assert!(detail.contains(told), "{code}: {detail}");
        assert!(detail.contains(BUCKET), "{code}: {detail}");
    }
    // The same message succeeds later.
    world.s3.put_object("o-1", &order("o-1"));
    assert_eq!(
        world.process([record("m-1", &pointer("o-1"))]).await,
        [""; 0]
    );
}

#[tokio::test]
async fn silent_and_stalled_s3_are_retryable() {
    let world = World::start().await;
    for (answer, told) in [
        (S3Answer::Silence, "no answer in time"),
        (S3Answer::Stall(100), "incomplete"),
    ] {
        world.s3.put("o-1", answer);
        let (outcome, detail) = world.failure().await;
        assert_eq!(outcome, "no_effect");
        assert!(detail.contains(told), "{detail}");
    }
}

#[tokio::test]
async fn read_ends_at_the_deadline() {
    let world = World::start().await;
    world.s3.put("o-1", S3Answer::Stall(100));
    let event = batch([record("m-1", &pointer("o-1"))]);
    let deadline = within(Duration::from_secs(1));
    let failed = process(&world.consumer, event, deadline).await;
    assert_eq!(failed, ["m-1"]);
    let (outcome, detail) = one_outcome();
    assert_eq!(outcome, "no_effect");
    assert!(detail.contains("deadline"), "{detail}");
    assert!(world.seen.orders().is_empty());
}

#[tokio::test]
async fn body_over_the_limit_is_a_permanent_failure() {
    let world = World::start().await;
    let longest = |extra: usize| {
        let order = order("o-1").to_string();
        format!(
            "{order}{}",
            " ".repeat(LIMIT as usize + extra - order.len())
        )
    };
    // A length that no byte follows: nothing is read. Without length, the read stops at the limit.
    for answer in [
        S3Answer::Stall(LIMIT as usize + 1),
        S3Answer::Stall(usize::MAX >> 1),
        S3Answer::Object(longest(1).into()),
        S3Answer::Endless,
    ] {
        world.s3.put("o-1", answer);
        let (outcome, detail) = world.failure().await;
        assert_eq!(outcome, "invalid");
        assert!(detail.contains("8192 bytes"), "{detail}");
        assert!(detail.contains("CONSUMER_MAX_BODY_BYTES"), "{detail}");
    }
    world.s3.put_object("o-1", &longest(0));
    assert_eq!(
        world.process([record("m-1", &pointer("o-1"))]).await,
        [""; 0]
    );
}

#[tokio::test]
async fn object_without_a_body_is_a_permanent_failure() {
    let world = World::start().await;
    for (object, told) in [
        (&b"\xff\xfe"[..], "not UTF-8"),
        (b"", "not valid JSON"),
        (b"SECRET", "not valid JSON"),
        (br#"{"amount":"SECRET"}"#, "no idempotency key"),
    ] {
        world.s3.put("o-1", S3Answer::Object(object.into()));
        let (outcome, detail) = world.failure().await;
        assert_eq!(outcome, "invalid");
        assert!(detail.contains(told), "{detail}");
        assert!(!detail.contains("SECRET"), "{detail}");
    }
}

#[tokio::test]
async fn fifo_group_keeps_its_order_behind_a_pointer() {
    let world = World::start().await;
    let late = S3Answer::Late(Duration::from_millis(200), order("o-1").to_string().into());
    world.s3.put("k", late);
    let fifo = |id: &str, body: &str| in_group(record(id, body), "g");
    let failed = world.process([
        fifo("m-1", &pointer("k")),
        fifo("m-2", &order("o-2").to_string()),
        fifo("m-3", &pointer("missing")),
        fifo("m-4", &order("o-4").to_string()),
    ]);
    // Without a body there is no key, and so no record of the failure.
    assert_eq!(failed.await, ["m-3", "m-4"]);
    assert_eq!(world.seen.orders(), ["o-1", "o-2"]);
}

#[tokio::test]
async fn fifo_group_waits_for_an_unreadable_body() {
    let world = World::start().await;
    world.s3.put("k", S3Answer::Error(403, "AccessDenied"));
    let fifo = |id: &str, body: &str| in_group(record(id, body), "g");
    let failed = world.process([
        fifo("m-1", &pointer("k")),
        fifo("m-2", &order("o-2").to_string()),
    ]);
    assert_eq!(failed.await, ["m-1", "m-2"]);
    assert_eq!(names(), ["no_effect", "not_started"]);
    assert!(world.seen.orders().is_empty());
}

#[tokio::test]
async fn bodies_in_memory_are_at_most_the_concurrency() {
    /// Handler that compares the bodies that were read with those whose messages ended.
    struct Counting {
        s3: Arc<S3>,
        ended: AtomicUsize,
        most: Arc<AtomicUsize>,
    }
    impl Handler for Counting {
        type Message = Value;
        type Output = ();

        async fn handle(&self, _: Value, _: Attempt) -> Result<(), Failure> {
            // Time for reads ahead of the handlers.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let read = self.s3.requests().len();
            self.most.fetch_max(read - self.ended.load(SeqCst), SeqCst);
            self.ended.fetch_add(1, SeqCst);
            Ok(())
        }
    }
    let s3 = Arc::new(S3::start().await);
    for n in 0..9 {
        s3.put_object(&format!("k-{n}"), &order(&format!("o-{n}")));
    }
    let most = Arc::new(AtomicUsize::new(0));
    let handler = Counting {
        s3: s3.clone(),
        ended: AtomicUsize::new(0),
        most: most.clone(),
    };
    let bodies = S3Bodies::new(&support::sdk_config(s3.endpoint()), [BUCKET]);
    let consumer = Consumer::without_aws(Once::new(MemoryStore::default()), namespace(), handler)
        .concurrency(3.try_into().unwrap())
        .s3_bodies(bodies);
    let records = (0..9).map(|n| record(&format!("m-{n}"), &pointer(&format!("k-{n}"))));
    let failed = process(&Arc::new(consumer), batch(records), within(ONE_MINUTE)).await;
    assert_eq!(failed, [""; 0]);
    assert_eq!(most.load(SeqCst), 3);
}

/// Leaves an attempt at a message without a recorded end: its process ended an hour ago.
fn leave_suspect(store: &MemoryStore, id: &str) {
    let an_hour_ago = || Timestamp::from_millis(Timestamp::now().as_millis() - 3_600_000);
    let once = Once::new(store.clone()).clock(an_hour_ago);
    let key = Key::new(&namespace(), [id]).unwrap();
    let deadline = Deadline::after(an_hour_ago(), ONE_MINUTE, ONE_MINUTE / 4);
    let run = once.run(Operation::new(key, None, id, deadline), async |_| {
        std::future::pending::<Result<(), Failure>>().await
    });
    assert!(run.now_or_never().is_none());
}

/// A process that ends leaves many suspects, and a batch may bring all of them.
#[tokio::test]
async fn waiting_suspects_hold_no_bodies() {
    /// Handler that notes how many bodies were read so far.
    struct Reads {
        s3: Arc<S3>,
        so_far: Arc<Mutex<Vec<usize>>>,
    }
    impl Handler for Reads {
        type Message = Value;
        type Output = ();

        async fn handle(&self, _: Value, _: Attempt) -> Result<(), Failure> {
            let reads = self.s3.requests().len();
            self.so_far.lock().unwrap().push(reads);
            Ok(())
        }
    }
    let (s3, store) = (Arc::new(S3::start().await), MemoryStore::default());
    for n in 0..9 {
        s3.put_object(&format!("k-{n}"), &order(&format!("o-{n}")));
        leave_suspect(&store, &format!("m-{n}"));
    }
    let so_far = Arc::default();
    let handler = Reads {
        s3: Arc::clone(&s3),
        so_far: Arc::clone(&so_far),
    };
    let bodies = S3Bodies::new(&support::sdk_config(s3.endpoint()), [BUCKET]);
    let consumer = Consumer::without_aws(Once::new(store), namespace(), handler)
        .concurrency(3.try_into().unwrap())
        .s3_bodies(bodies);
    let records = (0..9).map(|n| record(&format!("m-{n}"), &pointer(&format!("k-{n}"))));
    let failed = process(&Arc::new(consumer), batch(records), within(ONE_MINUTE)).await;
    assert_eq!(failed, [""; 0]);
    // All nine wait, and each is read again when it runs alone.
    assert_eq!(*so_far.lock().unwrap(), Vec::from_iter(10..=18));
}

/// The other message runs first, and from then on S3 fails or has a different body. The claim is of the body that the
/// handler gets.
#[tokio::test]
async fn suspect_whose_body_is_not_the_same_is_no_death() {
    let fails = S3Answer::Error(503, "SlowDown");
    suspect_meets(fails, ("no_effect", "SlowDown"), 1).await;
    let differs = S3Answer::Object(order("o-3").to_string().into());
    suspect_meets(differs, ("completed", ""), 2).await;
}

async fn suspect_meets(answer: S3Answer, (outcome, told): (&str, &str), attempts: u64) {
    let (s3, store) = (Arc::new(S3::start().await), MemoryStore::default());
    s3.put_object("k", &order("o-1"));
    leave_suspect(&store, "suspect");
    let handler = handler_fn({
        let s3 = Arc::clone(&s3);
        move |_: Value, _: Attempt| {
            s3.put("k", answer.clone());
            async { Ok::<_, Failure>(()) }
        }
    });
    log::start();
    let bodies = S3Bodies::new(&impatient(s3.endpoint()), [BUCKET]);
    let consumer = Consumer::without_aws(Once::new(store.clone()), namespace(), handler)
        .concurrency(1.try_into().unwrap())
        .s3_bodies(bodies);
    let suspect = received("suspect", &pointer("k"), 2);
    let event = batch([suspect, record("other", &order("o-2"))]);
    let failed = process(&Arc::new(consumer), event, within(ONE_MINUTE)).await;
    assert_eq!(failed.is_empty(), outcome == "completed", "{failed:?}");
    let [other, suspect] = outcomes().try_into().unwrap();
    assert_eq!((&*other.0, &*suspect.0), ("completed", outcome));
    assert!(suspect.1.contains(told), "{}", suspect.1);
    let kept = store.record(&Key::new(&namespace(), ["suspect"]).unwrap());
    let kept = kept.unwrap();
    assert_eq!((kept.attempts, kept.exclusive_attempts), (attempts, 0));
}

#[tokio::test]
async fn copy_in_the_dead_letter_queue_has_the_pointer() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let visibility = Visibility::new(sqs.client()).dead_letter(true);
    let world = World::with(|consumer| consumer.visibility(visibility)).await;
    let declined = json!({"orderId": "o-1", "act": "decline"});
    world.s3.put_object("k", &declined);
    let mut message = record("m-1", &pointer("k"));
    message["messageAttributes"] = json!({"ExtendedPayloadSize": {
        "stringValue": "300000", "dataType": "Number", "stringListValues": [], "binaryListValues": [],
    }});
    assert_eq!(world.process([message]).await, [""; 0]);
    let copies = sqs.sent_to("/orders-dead");
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0]["MessageBody"], pointer("k"));
    let attributes = &copies[0]["MessageAttributes"];
    assert_eq!(attributes["ExtendedPayloadSize"]["StringValue"], "300000");
    assert_eq!(attributes["SqsOnceKey"]["StringValue"], "test#o-1");
}

#[tokio::test]
async fn settings_name_buckets_and_limit() {
    log::start();
    let s3 = S3::start().await;
    s3.put_object("k", &order("o-1"));
    let settings = Settings::from_vars([
        ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001"),
        ("IDEMPOTENCY_TABLE_NAME", "never-asked"),
        ("IDEMPOTENCY_NAMESPACE", "test"),
        ("CONSUMER_VISIBILITY", "off"),
        ("CONSUMER_S3_BUCKETS", "invoices,order-bodies"),
        ("CONSUMER_MAX_BODY_BYTES", "10"),
    ]);
    let settings = settings
        .sdk_config(support::sdk_config(s3.endpoint()))
        .warm_up(false);
    let consumer = Arc::new(settings.once(Ok(Seen::default())).await.unwrap());
    let records = [BUCKET, "secrets"].map(|bucket| record(bucket, &pointer_to(bucket, "k")));
    let failed = process(&consumer, batch(records), within(ONE_MINUTE)).await;
    assert_eq!(failed, [BUCKET, "secrets"]);
    let details = outcomes().into_iter().map(|(_, detail)| detail);
    let details = details.collect::<String>();
    for told in [
        "CONSUMER_S3_BUCKETS does not name",
        "CONSUMER_MAX_BODY_BYTES is 10",
    ] {
        assert!(details.contains(told), "{details}");
    }
    assert_eq!(s3.requests(), ["/order-bodies/k"]);
}

/// A record with the pointer of a client that is not written in Java.
fn bare_pointer(id: &str, attribute: &str) -> Value {
    let mut message = record(id, &json!({"s3BucketName": BUCKET, "s3Key": "k"}));
    message["messageAttributes"][attribute] =
        json!({"stringValue": "300000", "dataType": "Number"});
    message
}

#[tokio::test]
async fn pointer_without_class_is_read() {
    let world = World::start().await;
    world.s3.put_object("k", &order("o-1"));
    for attribute in ["ExtendedPayloadSize", "SQSLargePayloadSize"] {
        let failed = world.process([bare_pointer("m-1", attribute)]).await;
        assert_eq!(failed, [""; 0]);
    }
    assert_eq!(names(), ["completed", "duplicate"]);
    let failed = world.process([bare_pointer("m-2", "size")]).await;
    assert_eq!(failed, ["m-2"]);
    assert_eq!(world.seen.orders(), ["o-1"]);
}

#[tokio::test]
async fn pointer_without_buckets_is_never_handled() {
    for key in ["message-id", "attribute:ExtendedPayloadSize", "body:/s3Key"] {
        log::start();
        let (once, seen) = (Once::new(MemoryStore::default()), Seen::default());
        let consumer = Consumer::without_aws(once, namespace(), seen.clone());
        let consumer = Arc::new(consumer.key(key.parse().unwrap()));
        let mut of_java = bare_pointer("m-1", "ExtendedPayloadSize");
        of_java["body"] = json!(pointer("k"));
        let event = batch([of_java, bare_pointer("m-2", "ExtendedPayloadSize")]);
        let failed = process(&consumer, event, within(ONE_MINUTE)).await;
        assert_eq!(failed, ["m-1", "m-2"], "{key}");
        for (outcome, detail) in outcomes() {
            assert_eq!(outcome, "invalid");
            for part in ["extended client", "CONSUMER_S3_BUCKETS"] {
                assert!(detail.contains(part), "{detail}");
            }
        }
        assert!(seen.0.lock().unwrap().is_empty(), "{key}");
    }
}

// ---- against the S3 of the local cloud ---------------------------------------------------------

/// A bucket of the emulator at `AWS_ENDPOINT_URL`, and a consumer with its own table.
struct Emulated {
    s3: aws_sdk_s3::Client,
    bucket: String,
    dynamo: Dynamo,
    seen: Seen,
    consumer: Arc<Consumer<Once<DynamoStore>, Seen>>,
}

impl Emulated {
    async fn start(bucket: &str) -> Self {
        let endpoint = emulator();
        log::start();
        let config = support::sdk_config(&endpoint);
        let dynamo = Dynamo::start().await;
        dynamo.create_table("records").await;
        let store = DynamoStore::new(dynamo.client(), "records");
        let seen = Seen::default();
        let consumer = Consumer::without_aws(Once::new(store), namespace(), seen.clone())
            .key("body:/orderId".parse().unwrap())
            .s3_bodies(S3Bodies::new(&config, [bucket, "never-created"]));
        Self {
            s3: s3::client(&config),
            bucket: bucket.to_owned(),
            dynamo,
            seen,
            consumer: Arc::new(consumer),
        }
    }

    async fn create_bucket(&self) {
        s3::create_bucket(&self.s3, &self.bucket).await;
    }

    async fn put(&self, key: &str, body: String) {
        let put = self.s3.put_object().bucket(&self.bucket).key(key);
        put.body(body.into_bytes().into()).send().await.unwrap();
    }

    async fn process(&self, event: Value) -> Vec<String> {
        process(&self.consumer, event, within(ONE_MINUTE)).await
    }
}

#[tokio::test]
async fn sample_event_is_read_from_a_real_bucket() {
    let world = Emulated::start(BUCKET).await;
    world.create_bucket().await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/events/extended-client.json");
    let event: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut order = order("ord-2026-000081");
    order["lines"] = "x".repeat((2 << 20) - 200).into();
    for record in event["Records"].as_array().unwrap() {
        let body: Value = serde_json::from_str(record["body"].as_str().unwrap()).unwrap();
        assert_eq!(body[1]["s3BucketName"], BUCKET);
        let key = body[1]["s3Key"].as_str().unwrap();
        world.put(key, order.to_string()).await;
        let event = batch([record.clone()]);
        assert_eq!(world.process(event).await, [""; 0]);
    }
    // The clients of two versions sent the same order.
    assert_eq!(names(), ["completed", "duplicate"]);
    assert_eq!(world.seen.0.lock().unwrap()[..], [order]);
    let record = world.dynamo.record("records", "test#ord-2026-000081").await;
    assert_eq!(text(&record.unwrap(), "status"), "COMPLETED");
}

#[tokio::test]
async fn real_s3_names_missing_objects_and_buckets() {
    let world = Emulated::start("order-bodies-2").await;
    world.create_bucket().await;
    for (bucket, wanted, told) in [
        ("order-bodies-2", "invalid", "NoSuchKey"),
        ("never-created", "no_effect", "NoSuchBucket"),
    ] {
        let event = batch([record("m-1", &pointer_to(bucket, "missing"))]);
        assert_eq!(world.process(event).await, ["m-1"]);
        let (outcome, detail) = one_outcome();
        assert_eq!(outcome, wanted, "{detail}");
        assert!(detail.contains(told), "{detail}");
    }
    assert_eq!(world.dynamo.records("records").await.len(), 0);
}
