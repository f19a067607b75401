//! Outputs in S3: their way there, and back to the handlers of duplicates.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Once, Settings, Stored, handler_fn,
    sqs::Visibility,
    store::{DynamoStore, Results, S3Results},
};
use support::{
    consumer::{namespace, process, within},
    dynamo::{Dynamo, text},
    event::{batch, record},
    log,
    prerequisite::emulator,
    s3::{self, BUCKET, S3, S3Answer, impatient},
    sqs::{Sqs, SqsBehaviour},
};

const ONE_MINUTE: Duration = Duration::from_secs(60);
const TABLE: &str = "records";

/// Handler whose output has as many letters as the message says. It asks for the output of duplicates.
#[derive(Clone, Default)]
struct Writer(Arc<Mutex<Vec<Option<String>>>>);

impl Handler for Writer {
    type Message = usize;
    type Output = String;

    async fn handle(&self, letters: usize, _: Attempt) -> Result<String, Failure> {
        Ok("x".repeat(letters))
    }
}

impl Writer {
    async fn replay(self, stored: Stored<String>) -> Result<(), Failure> {
        let output = stored.output().await?;
        self.0.lock().unwrap().push(output);
        Ok(())
    }
}

/// A table, a bucket, and consumers of both.
struct World {
    dynamo: Dynamo,
    s3: S3,
    writer: Writer,
}

impl World {
    async fn start() -> Self {
        log::start();
        let (dynamo, s3) = (Dynamo::start().await, S3::start().await);
        dynamo.create_table(TABLE).await;
        Self {
            dynamo,
            s3,
            writer: Writer::default(),
        }
    }

    fn results(&self) -> Results {
        Results::outside(S3Results::new(&impatient(self.s3.endpoint()), BUCKET))
    }

    fn once(&self, results: Results) -> Once<DynamoStore> {
        Once::new(DynamoStore::new(self.dynamo.client(), TABLE)).results(results)
    }

    /// Ids reported as batch item failures after a message that asks for an output of so many letters.
    async fn process(&self, letters: usize, results: Results) -> Vec<String> {
        deliver(&Arc::new(self.consumer(results)), letters).await
    }

    fn consumer(&self, results: Results) -> Consumer<Once<DynamoStore>, Writer> {
        let seen = self.writer.clone();
        Consumer::without_aws(self.once(results), namespace(), self.writer.clone())
            .on_duplicate(move |_, stored, _| seen.clone().replay(stored))
    }

    async fn record(&self) -> support::dynamo::Item {
        self.dynamo.record(TABLE, "test#m-1").await.unwrap()
    }

    /// The one object, with its name.
    fn object(&self) -> String {
        let objects = self.s3.objects();
        assert_eq!(objects.len(), 1, "{objects:?}");
        objects.into_iter().next().unwrap()
    }

    fn replayed(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.writer.0.lock().unwrap())
    }
}

async fn deliver<M, H>(consumer: &Arc<Consumer<M, H>>, letters: usize) -> Vec<String>
where
    M: sqs_once::Mode<H::Output>,
    H: Handler,
{
    let event = batch([record("m-1", &letters.to_string())]);
    process(consumer, event, within(ONE_MINUTE)).await
}

/// Outcome and text of the last message.
fn last_outcome() -> (String, String) {
    let line = log::lines_of("message processed").pop().unwrap();
    let text = |name: &str| line["fields"][name].as_str().unwrap_or("").to_owned();
    (text("outcome"), text("detail"))
}

#[tokio::test]
async fn output_over_the_limit_is_an_object() {
    let world = World::start().await;
    // With its quotes, the output has 64 KB.
    assert_eq!(world.process(65_534, world.results()).await, [""; 0]);
    assert_eq!(text(&world.record().await, "result").len(), 65_536);
    assert!(world.s3.puts().is_empty());

    let world = World::start().await;
    for letters in [65_535, 500_000] {
        let world = World::start().await;
        assert_eq!(world.process(letters, world.results()).await, [""; 0]);
        assert_eq!(world.process(letters, world.results()).await, [""; 0]);
        assert_eq!(world.replayed(), [Some("x".repeat(letters))]);
        assert_eq!(last_outcome().0, "duplicate");
    }
    assert_eq!(world.process(70_000, world.results()).await, [""; 0]);
    let record = world.record().await;
    assert!(!record.contains_key("result") && !record.contains_key("result_omitted"));
    let pointer: Value = serde_json::from_str(text(&record, "result_in_s3")).unwrap();
    let name = world.object();
    assert_eq!(pointer["bucket"], BUCKET);
    assert_eq!(pointer["key"], name);
    assert_eq!(pointer["bytes"], 70_002);
    let [prefix, key, owner, digest] = &name.split('/').collect::<Vec<_>>()[..] else {
        panic!("{name}");
    };
    assert_eq!((*prefix, key.len()), ("results", 64));
    assert_eq!(*owner, text(&record, "owner"));
    assert_eq!(pointer["sha256"], *digest);
}

#[tokio::test]
async fn output_over_10_mib_is_omitted() {
    let world = World::start().await;
    assert_eq!(world.process(10 << 20, world.results()).await, [""; 0]);
    let why = "output of 10485762 bytes not stored: an output in S3 has at most 10485760";
    assert_eq!(text(&world.record().await, "result_omitted"), why);
    assert!(world.s3.puts().is_empty());
    let [warning] = &log::lines_of("the result is not stored")[..] else {
        panic!("one warning");
    };
    assert_eq!(warning["fields"]["result_omitted"], why);
}

#[tokio::test]
async fn handler_that_does_not_ask_costs_no_read() {
    let world = World::start().await;
    let write =
        handler_fn(async |letters: usize, _: Attempt| Ok::<_, Failure>("x".repeat(letters)));
    let once = world.once(world.results());
    let consumer = Arc::new(Consumer::without_aws(once, namespace(), write));
    for _ in 0..2 {
        assert_eq!(deliver(&consumer, 70_000).await, [""; 0]);
    }
    assert_eq!(last_outcome().0, "duplicate");
    assert!(world.s3.requests().is_empty());
    assert_eq!(world.process(70_000, world.results()).await, [""; 0]);
    assert_eq!(world.s3.requests().len(), 1);
}

#[tokio::test]
async fn unreadable_output_returns_its_message() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    assert_eq!(world.process(70_000, world.results()).await, [""; 0]);
    let (name, before) = (world.object(), world.record().await);
    let output = serde_json::to_string(&"x".repeat(70_000)).unwrap();
    let altered = output.replacen('x', "y", 1);
    for (answer, told) in [
        (S3Answer::Error(404, "NoSuchKey"), "the object is lost"),
        (S3Answer::Object(altered.into()), "was altered"),
        (S3Answer::Object("[1]".into()), "was altered"),
        (S3Answer::Object(format!("{output} ").into()), "was altered"),
        (S3Answer::Endless, "was altered"),
        (S3Answer::Error(403, "AccessDenied"), "s3:GetObject"),
        (
            S3Answer::Error(404, "NoSuchBucket"),
            "IDEMPOTENCY_RESULT_BUCKET",
        ),
        (S3Answer::Error(503, "SlowDown"), "SlowDown"),
        (S3Answer::Silence, "no answer in time"),
        (S3Answer::Stall(70_002), "incomplete"),
    ] {
        let case = format!("{answer:?}").chars().take(60).collect::<String>();
        world.s3.put(&name, answer);
        // A permanent failure would be copied to the dead-letter queue, and acknowledged.
        let visibility = Visibility::new(sqs.client()).dead_letter(true);
        let consumer = world.consumer(world.results());
        let consumer = Arc::new(consumer.visibility(visibility));
        assert_eq!(deliver(&consumer, 70_000).await, ["m-1"], "{case}");
        let (outcome, detail) = last_outcome();
        assert_eq!(outcome, "no_effect", "{case}: {detail}");
        assert!(detail.contains(told), "{case}: {detail}");
        let place = format!("s3://{BUCKET}/{name}");
        assert!(detail.contains(&place), "{case}: {detail}");
        assert!(!detail.contains("xx"), "{case}: {detail}");
    }
    assert_eq!(world.record().await, before);
    assert!(sqs.sent_to("/orders-dead").is_empty());
    // After the repair the handler gets the output.
    world.s3.put(&name, S3Answer::Object(output.into()));
    assert_eq!(world.process(70_000, world.results()).await, [""; 0]);
    assert_eq!(world.replayed(), [Some("x".repeat(70_000))]);
}

#[tokio::test]
async fn output_in_s3_needs_the_setting_to_be_read() {
    let world = World::start().await;
    assert_eq!(world.process(70_000, world.results()).await, [""; 0]);
    assert_eq!(world.process(70_000, Results::inline()).await, ["m-1"]);
    let (outcome, detail) = last_outcome();
    assert_eq!(outcome, "no_effect");
    assert!(detail.contains("IDEMPOTENCY_RESULT_BUCKET"), "{detail}");
}

#[tokio::test]
async fn output_is_not_stored_without_a_place() {
    let world = World::start().await;
    for _ in 0..2 {
        assert_eq!(world.process(3, Results::none()).await, [""; 0]);
    }
    let record = world.record().await;
    assert_eq!(text(&record, "result_omitted"), "Results::none()");
    assert!(!record.contains_key("result"));
    assert_eq!(world.replayed(), [None]);
    let lines = log::lines();
    let omitted: Vec<_> = lines
        .iter()
        .filter_map(|line| line["fields"].get("result_omitted"))
        .collect();
    assert_eq!(omitted, [&json!(0), &json!(0)]);
}

#[tokio::test]
async fn setting_bucket_takes_outputs_over_64_kb() {
    let world = World::start().await;
    let config = support::sdk_config(world.s3.endpoint());
    // Table and bucket are behind one endpoint on AWS alone. In an inbox in memory, only S3 is asked.
    let settings = Settings::from_vars([
        ("AWS_LAMBDA_FUNCTION_NAME", "_"),
        ("AWS_LAMBDA_RUNTIME_API", "http://127.0.0.1:9000/.rt/_"),
        ("IDEMPOTENCY_NAMESPACE", "test"),
        ("IDEMPOTENCY_RESULT_BUCKET", BUCKET),
    ]);
    let consumer = settings.sdk_config(config).once(Ok(world.writer.clone()));
    let (consumer, seen) = (consumer.await.unwrap(), world.writer.clone());
    let consumer = Arc::new(consumer.on_duplicate(move |_, stored, _| seen.clone().replay(stored)));
    // With its quotes, the longest output in a record.
    assert_eq!(deliver(&consumer, 65_534).await, [""; 0]);
    assert!(world.s3.objects().is_empty());
    let event = batch([record("m-2", "65535")]);
    for _ in 0..2 {
        let failed = process(&consumer, event.clone(), within(ONE_MINUTE)).await;
        assert_eq!(failed, [""; 0]);
    }
    assert!(world.object().starts_with("results/"));
    assert_eq!(world.replayed(), [Some("x".repeat(65_535))]);
}

// ---- against the S3 of the local cloud ---------------------------------------------------------

#[tokio::test]
async fn real_bucket_keeps_and_loses_outputs() {
    const OUTPUTS: &str = "order-outputs";
    let endpoint = emulator();
    let world = World::start().await;
    let config = support::sdk_config(&endpoint);
    let s3 = s3::client(&config);
    let results = || Results::outside(S3Results::new(&config, OUTPUTS));

    let missing = || Results::outside(S3Results::new(&config, "never-created"));
    assert_eq!(world.process(70_000, missing()).await, [""; 0]);
    let why = text(&world.record().await, "result_omitted").to_owned();
    assert!(why.contains("NoSuchBucket"), "{why}");
    world.dynamo.delete(TABLE, "test#m-1").await;

    s3::create_bucket(&s3, OUTPUTS).await;
    let longest = (10 << 20) - 2;
    for _ in 0..2 {
        assert_eq!(world.process(longest, results()).await, [""; 0]);
    }
    let [Some(output)] = &world.replayed()[..] else {
        panic!("one duplicate");
    };
    assert_eq!(output.len(), longest);

    let pointer = text(&world.record().await, "result_in_s3").to_owned();
    let pointer: Value = serde_json::from_str(&pointer).unwrap();
    let key = pointer["key"].as_str().unwrap();
    let put = s3.put_object().bucket(OUTPUTS).key(key);
    put.body(b"\"other\"".to_vec().into()).send().await.unwrap();
    assert_eq!(world.process(longest, results()).await, ["m-1"]);
    assert!(last_outcome().1.contains("was altered"));
    let delete = s3.delete_object().bucket(OUTPUTS).key(key);
    delete.send().await.unwrap();
    assert_eq!(world.process(longest, results()).await, ["m-1"]);
    let (outcome, detail) = last_outcome();
    assert_eq!(outcome, "no_effect");
    assert!(detail.contains("the object is lost"), "{detail}");
}
