//! Crashes and failures between the handler of a large output, S3 and the record.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use aws_config::{retry::RetryConfig, timeout::TimeoutConfig};
use sqs_once::{
    Attempt, Deadline, Done, Once, Operation, Outcome, Write,
    internal::Delivery,
    protocol::{Key, MAX_RESULT_BYTES, StoredResult, Timestamp},
    store::{DynamoStore, Results, S3Results},
};
use support::{
    PATIENCE,
    consumer::namespace,
    dynamo::{Dynamo, number, text},
    faults::Fault,
    s3::{BUCKET, S3, S3Put},
};

use crate::faults::SECOND;

const RECORDS: &str = "idempotency";
const THINGS: &str = "things";
const HOUR: Duration = Duration::from_secs(3600);

/// Mode whose handler has an effect and an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Claim,
    Commit,
    Inbox,
}

impl Way {
    const ALL: [Self; 3] = [Self::Claim, Self::Commit, Self::Inbox];

    /// Request that records the completion.
    const fn completion(self) -> &'static str {
        match self {
            Self::Claim => "UpdateItem",
            Self::Commit | Self::Inbox => "TransactWriteItems",
        }
    }
}

/// Workers of one way, with one operation.
struct World {
    way: Way,
    dynamo: Dynamo,
    s3: S3,
    runs: AtomicUsize,
    /// Runs that were informed of an earlier attempt.
    informed: AtomicUsize,
    /// Later runs meet no injected fault.
    avoids_faults: AtomicBool,
}

fn now() -> Timestamp {
    Timestamp::now()
}

fn an_hour_later() -> Timestamp {
    Timestamp::now() + HOUR
}

impl World {
    async fn start(way: Way) -> Self {
        let (dynamo, s3) = (Dynamo::start().await, S3::start().await);
        dynamo.create_table(RECORDS).await;
        dynamo.create_table(THINGS).await;
        Self {
            way,
            dynamo,
            s3,
            runs: AtomicUsize::new(0),
            informed: AtomicUsize::new(0),
            avoids_faults: AtomicBool::new(false),
        }
    }

    fn once(&self, clock: fn() -> Timestamp) -> Once<DynamoStore> {
        let retries = RetryConfig::standard().with_max_attempts(2);
        let config = support::sdk_config(self.s3.endpoint()).to_builder();
        let config = config
            .retry_config(retries.with_initial_backoff(Duration::from_millis(1)))
            .timeout_config(TimeoutConfig::disabled())
            .build();
        let client = if self.avoids_faults.load(SeqCst) {
            self.dynamo.client_past_faults()
        } else {
            self.dynamo.worker(None)
        };
        Once::new(DynamoStore::new(client, RECORDS))
            .results(Results::outside(S3Results::new(&config, BUCKET)).inline_limit(10))
            .clock(clock)
    }

    async fn run(&self, clock: fn() -> Timestamp) -> Outcome {
        let operation = operation(clock());
        let once = self.once(clock);
        let claim = |attempt: Attempt| async move { Ok(self.output(&attempt)) };
        let commit = |attempt: Attempt| async move {
            let add = Write::update(THINGS, "ADD n :one").key("id", "t");
            Ok(Done::new(self.output(&attempt)).with(add.value(":one", 1)))
        };
        match self.way {
            Way::Claim => once.run(operation, claim).await,
            Way::Commit => once.run(operation, commit).await,
            Way::Inbox => once.inbox().run(operation, commit).await,
        }
    }

    /// The output of the next run, which is longer than the limit.
    fn output(&self, attempt: &Attempt) -> String {
        let informed = usize::from(attempt.prior().is_some());
        self.informed.fetch_add(informed, SeqCst);
        output_of(self.runs.fetch_add(1, SeqCst) + 1)
    }

    /// The operation is completed, with its effect once and this output. `None`: omitted.
    async fn assert_completed(&self, case: impl std::fmt::Debug, output: Option<String>) {
        let again = self.run(an_hour_later).await;
        let Outcome::Duplicate(result) = again else {
            panic!("{case:?}: {again}");
        };
        let stored = self.once(now).stored::<String>(result);
        assert_eq!(stored.output().await.unwrap(), output, "{case:?}");
        if self.way != Way::Claim {
            let thing = self.dynamo.record(THINGS, "t").await.unwrap();
            assert_eq!(number(&thing, "n"), 1, "{case:?}");
        }
    }
}

/// The operation, with more time than it needs.
fn operation(now: Timestamp) -> Operation {
    Operation::new(
        Key::new(&namespace(), ["o-1"]).unwrap(),
        None,
        Delivery::new("m-1"),
        Deadline::after(now, PATIENCE, SECOND),
    )
}

fn output_of(run: usize) -> String {
    format!("output of run {run}")
}

#[tokio::test]
async fn failed_put_completes_without_output() {
    for way in Way::ALL {
        for (put, told) in [
            (S3Put::Lost, "in time"),
            (S3Put::Unanswered, "in time"),
            (S3Put::Late, "in time"),
            (S3Put::Error(503, "SlowDown"), "SlowDown"),
            (S3Put::Error(403, "AccessDenied"), "s3:PutObject"),
            (
                S3Put::Error(404, "NoSuchBucket"),
                "IDEMPOTENCY_RESULT_BUCKET",
            ),
            (S3Put::Foreign, "did not come from S3"),
        ] {
            let case = (way, put);
            let world = World::start(way).await;
            world.s3.on_put(put);
            let outcome = world.run(now).await;
            let Outcome::Completed(StoredResult::Omitted(why)) = outcome else {
                panic!("{case:?}: {outcome:?}");
            };
            assert!(why.contains(told), "{case:?}: {why}");
            assert!(why.starts_with("output of 17 bytes not stored: "), "{why}");
            let record = world.dynamo.record(RECORDS, "test#o-1").await.unwrap();
            assert_eq!(text(&record, "status"), "COMPLETED", "{case:?}");
            assert_eq!(text(&record, "result_omitted"), why, "{case:?}");
            if let S3Put::Late = put {
                world.s3.release().await;
            }
            world.s3.on_put(S3Put::Stored);
            world.assert_completed(case, None).await;
        }
    }
}

#[tokio::test]
async fn crash_at_the_put_leaves_an_open_attempt() {
    for way in Way::ALL {
        for put in [S3Put::Lost, S3Put::Unanswered, S3Put::Late] {
            let case = (way, put);
            let world = World::start(way).await;
            world.s3.on_put(put);
            // A dropped future is a crash.
            tokio::select! {
                outcome = world.run(now) => panic!("{case:?}: {outcome}"),
                () = world.s3.next_put() => {}
            }
            world.s3.on_put(S3Put::Stored);
            if way != Way::Inbox {
                assert_eq!(world.run(now).await.name(), "conflict", "{case:?}");
            }
            let outcome = world.run(an_hour_later).await;
            assert_eq!(outcome.name(), "completed", "{case:?}: {outcome}");
            let informed = usize::from(way != Way::Inbox);
            assert_eq!(world.informed.load(SeqCst), informed, "{case:?}");
            // The first attempt's object has another name, so it replaces nothing.
            if let S3Put::Late = put {
                world.s3.release().await;
            }
            let objects = if let S3Put::Lost = put { 1 } else { 2 };
            assert_eq!(world.s3.objects().len(), objects, "{case:?}");
            world.assert_completed(case, Some(output_of(2))).await;
        }
    }
}

#[tokio::test]
async fn unanswered_completion_keeps_its_pointer() {
    for way in Way::ALL {
        for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Throttle] {
            let case = (way, fault);
            let world = World::start(way).await;
            world.dynamo.fail(way.completion(), fault);
            let outcome = world.run(now).await;
            let completed = matches!(outcome, Outcome::Completed(StoredResult::InS3(_)));
            assert!(completed, "{case:?}: {outcome:?}");
            assert_eq!(world.s3.puts().len(), 1, "{case:?}");
            world.assert_completed(case, Some(output_of(1))).await;
        }
    }
}

#[tokio::test]
async fn crash_after_the_put_before_the_record_runs_again() {
    for way in Way::ALL {
        let world = World::start(way).await;
        world.dynamo.fail_all(way.completion(), Fault::CutBefore);
        let completion = async {
            while world.dynamo.met(way.completion()) == 0 {
                tokio::task::yield_now().await;
            }
        };
        // A dropped future is a crash.
        tokio::select! {
            outcome = world.run(now) => panic!("{way:?}: {outcome}"),
            () = completion => {}
        }
        // Its requests keep failing: the last copy may be on its way still.
        world.avoids_faults.store(true, SeqCst);
        let outcome = world.run(an_hour_later).await;
        assert_eq!(outcome.name(), "completed", "{way:?}: {outcome}");
        assert_eq!(world.s3.objects().len(), 2, "{way:?}");
        world.assert_completed(way, Some(output_of(2))).await;
    }
}

/// One attempt with two outputs: the put of the first arrives after the record.
#[tokio::test]
async fn late_put_of_a_refused_answer_changes_nothing() {
    for way in [Way::Commit, Way::Inbox] {
        let world = World::start(way).await;
        world.s3.on_put(S3Put::Late);
        let operation = operation(now());
        let plan = |_: Attempt| async move {
            let taken = Write::update(THINGS, "ADD n :one").key("id", "t");
            let taken = taken.value(":one", 1).when("attribute_exists(never)");
            let add = Write::update(THINGS, "ADD n :one").key("id", "t");
            let second = Done::new(output_of(2)).with(add.value(":one", 1));
            Ok(Done::new(output_of(1))
                .with(taken)
                .on_condition_failed(|_| Ok(second)))
        };
        let once = world.once(now);
        let run = async {
            match way {
                Way::Inbox => once.clone().inbox().run(operation, plan).await,
                Way::Claim | Way::Commit => once.run(operation, plan).await,
            }
        };
        let (outcome, ()) = tokio::join!(run, async {
            world.s3.next_put().await;
            world.s3.on_put(S3Put::Stored);
        });
        let completed = matches!(outcome, Outcome::Completed(StoredResult::InS3(_)));
        assert!(completed, "{way:?}: {outcome:?}");
        world.s3.release().await;
        assert_eq!(world.s3.objects().len(), 2, "{way:?}");
        world.assert_completed(way, Some(output_of(2))).await;
    }
}

/// The operation is done, and its output does not fit into an item of 400 KB. A library whose completion then fails reports
/// the message as failed, and the operation runs again for each receive until the message is dead-lettered.
///
/// Known failure: oversized result does not run again. Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript)
/// 2.35.0.
#[tokio::test]
async fn oversized_result_does_not_run_again() {
    for size in [MAX_RESULT_BYTES, 420_000] {
        let dynamo = Dynamo::start().await;
        dynamo.create_table(RECORDS).await;
        let once = Once::new(DynamoStore::new(dynamo.client(), RECORDS));
        let first = once.run(operation(now()), async |_| Ok("x".repeat(size)));
        assert_eq!(first.await.name(), "completed", "{size}");
        let kept = dynamo.record(RECORDS, "test#o-1").await.unwrap();
        assert_eq!(text(&kept, "status"), "COMPLETED");
        assert!(text(&kept, "result_omitted").contains("bytes"), "{kept:?}");
        let never = async |_| -> Result<(), _> { panic!("it ran again") };
        let again = once.run(operation(now()), never).await;
        assert_eq!(again.name(), "duplicate", "{size}");
    }
}
