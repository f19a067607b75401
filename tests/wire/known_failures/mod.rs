//! Failures known from other idempotency libraries, one test for each. A test fails if sqs-once has
//! the failure too. `make compare` runs the same scenarios on Powertools for AWS Lambda, and four more
//! whose tests of sqs-once are elsewhere (local/compare/scenarios.py names them).
//!
//! "Seen with" names the versions in which `make compare` saw the failure, in November 2026.
//! docs/comparison.md has the table.

mod world;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_lambda_events::sqs::SqsEventObj;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Failure, Handler, Stored, handler_fn,
    protocol::{MAX_RESULT_BYTES, Timestamp},
};
use support::{
    consumer::{process, within},
    dynamo::{number, text},
    event::{batch, record},
    faults::Fault,
};
use tokio::sync::Notify;
use world::{TABLE, TIME, World, an_hour_later, event, in_an_hour, order, worker};

const FALLBACK: Duration = Duration::from_secs(300);

/// A worker outlives its lease. Another worker takes over and completes. Then the first worker ends
/// as `late` says.
async fn overtaken(late: fn() -> Result<&'static str, Failure>) -> (World, Vec<String>) {
    let world = World::new().await;
    let newer = async |_: Value, attempt: Attempt| {
        assert!(attempt.prior().is_some(), "the successor is informed");
        Ok::<_, Failure>("newer")
    };
    let quick = Arc::new(worker(world.once().clock(in_an_hour), handler_fn(newer)));
    let outlive = move |_: Value, _: Attempt| {
        let quick = quick.clone();
        async move {
            assert_eq!(
                process(&quick, event(&order()), an_hour_later(TIME)).await,
                [""; 0]
            );
            late()
        }
    };
    let slow = Arc::new(world.worker(handler_fn(outlive)));
    let failed = process(&slow, event(&order()), within(TIME)).await;
    (world, failed)
}

/// A slow worker ends after its lease, after a takeover by another worker that has completed.
/// Without a fencing token, the late completion replaces the newer result, and every duplicate gets the
/// older one. The cause is a worker that outlives its lease: a paused process, differing clocks, or
/// a slow request.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0, whose update has no
/// condition.
/// Promise 5.
#[tokio::test]
async fn late_completion_keeps_newer_result() {
    let (world, failed) = overtaken(|| Ok("older")).await;
    assert_eq!(failed, ["m-1"], "the late attempt is not acknowledged");
    assert_eq!(text(&world.the_record().await, "result"), "\"newer\"");
    assert_eq!(world.deliver_again(&order()).await, [""; 0]);
}

/// The same worker fails instead. An exception that deletes the record without a condition deletes
/// the completed record of a newer attempt. The next delivery runs the operation again.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0. A related bug
/// deletes records that the middleware never acquired: aws-powertools/powertools-lambda-typescript
/// #5675, "Bug: `makeHandlerIdempotent` deletes idempotency records it never acquired".
#[tokio::test]
async fn late_failure_keeps_newer_completion() {
    let ends: [fn() -> _; 3] = [
        || Err(Failure::retryable("too late")),
        || Err(Failure::permanent("too late")),
        || panic!("too late"),
    ];
    for late in ends {
        let (world, failed) = overtaken(late).await;
        assert_eq!(failed, ["m-1"]);
        let kept = world.the_record().await;
        assert_eq!(text(&kept, "status"), "COMPLETED");
        assert_eq!(text(&kept, "result"), "\"newer\"");
        assert_eq!(world.deliver_again(&order()).await, [""; 0]);
    }
}

/// A worker dies, and the library did not know the deadline of its invocation. The claim never
/// ends by itself, and locks the key until the record expires. The message goes to the dead-letter queue
/// meanwhile.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0, unless the Lambda
/// context is registered, as their documentation says: aws-powertools/powertools-lambda-python
/// #1038, "Idempotency and Lambda timeouts".
#[tokio::test]
async fn crash_without_deadline_locks_key_briefly() {
    let world = World::new().await;
    let started = Arc::new(Notify::new());
    let hang = {
        let started = started.clone();
        move |_: Value, _: Attempt| {
            started.notify_one();
            std::future::pending::<Result<(), Failure>>()
        }
    };
    let dying = Arc::new(world.worker(handler_fn(hang)).assumed_timeout(FALLBACK));
    let unknown = dying.deadline(Timestamp::default());
    tokio::select! {
        _ = process(&dying, event(&order()), unknown) => unreachable!("the handler hangs"),
        () = started.notified() => {}
    }
    let left = world.the_record().await;
    let now = i64::try_from(Timestamp::now().as_millis()).unwrap();
    let locked = Duration::from_millis((number(&left, "lease_until") - now).try_into().unwrap());
    // The configured budget and the lease margin.
    assert!(locked <= FALLBACK + Duration::from_secs(1), "{locked:?}");
    assert_eq!(world.deliver_again(&order()).await, ["m-1"], "for so long");

    let informed = async |_: Value, attempt: Attempt| -> Result<bool, Failure> {
        Ok(attempt.prior().is_some())
    };
    let next = Arc::new(worker(world.once().clock(in_an_hour), handler_fn(informed)));
    let failed = process(&next, event(&order()), an_hour_later(TIME)).await;
    assert_eq!(failed, [""; 0]);
    assert_eq!(text(&world.the_record().await, "result"), "true");
}

/// DynamoDB applies a claim, and the connection breaks before the response. The SDK sends the claim
/// again, and the worker's own record refuses it. The worker takes the record for another worker's
/// and runs nothing. The key stays locked until the deadline.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0. The cause is
/// aws/aws-sdk-java #2667, "AmazonDynamoDB / DynamoDBMapper retries are considered as new
/// requests".
#[tokio::test]
async fn lost_claim_response_does_not_block_worker() {
    let world = World::new().await;
    world.0.fail("Claim", Fault::CutAfter);
    let done = async |_: Value, _: Attempt| -> Result<(), Failure> { Ok(()) };
    let worker = world.worker(handler_fn(done));
    assert_eq!(
        process(&Arc::new(worker), event(&order()), within(TIME)).await,
        [""; 0]
    );
    assert_eq!(world.0.counts()["Claim"], 2, "the SDK asked again");
    assert_eq!(text(&world.the_record().await, "status"), "COMPLETED");
}

/// A falsy output is not a missing output. A truth test on the way into or out of the record gives
/// a duplicate of an operation that returned 0 no result.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0; aws-powertools/powertools-lambda-python
/// #8090, "Tech debt: Fix falsy response handling, inconsistencies, and duplicated code in
/// idempotency utility".
#[tokio::test]
async fn falsy_output_is_replayed_unchanged() {
    /// Returns the value in the order, and records it for each run.
    #[derive(Clone, Default)]
    struct Echo(Arc<Mutex<Vec<Value>>>);
    impl Handler for Echo {
        type Message = Value;
        type Output = Value;
        async fn handle(&self, order: Value, _: Attempt) -> Result<Value, Failure> {
            Ok(order["output"].clone())
        }
    }
    impl Echo {
        async fn replay(self, stored: Stored<Value>) -> Result<(), Failure> {
            let output = stored.output().await?;
            self.0.lock().unwrap().extend(output);
            Ok(())
        }
    }
    let (world, echo) = (World::new().await, Echo::default());
    let (worker, seen) = (world.worker(echo.clone()), echo.clone());
    let worker = Arc::new(worker.on_duplicate(move |_, stored, _| seen.clone().replay(stored)));
    let outputs = [
        json!(0),
        json!(false),
        Value::Null,
        json!(""),
        json!([]),
        json!({}),
    ];
    for (n, output) in outputs.iter().enumerate() {
        let order = json!({"orderId": n, "output": output});
        for _ in 0..2 {
            assert_eq!(process(&worker, event(&order), within(TIME)).await, [""; 0]);
        }
    }
    assert_eq!(*echo.0.lock().unwrap(), outputs);
}

/// Two messages that lack the source `key`: both are reported as failed, and no handler runs.
async fn two_without(key: &str, bodies: [Value; 2]) {
    let world = World::new().await;
    let never =
        async |_: Value, _: Attempt| -> Result<(), Failure> { panic!("the message has no key") };
    let worker = Arc::new(world.worker(handler_fn(never)).key(key.parse().unwrap()));
    let two = batch([record("m-1", &bodies[0]), record("m-2", &bodies[1])]);
    assert_eq!(process(&worker, two, within(TIME)).await, ["m-1", "m-2"]);
    assert!(world.0.records(TABLE).await.is_empty(), "a record of what?");
}

/// The payload lacks the source of the key. A library that hashes the missing value makes all such
/// messages one operation, and acknowledges the second without running it. A library that lets the
/// message through runs it unprotected.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0: unprotected, unless
/// a key is required. The collision was aws-powertools/powertools-lambda-python #2465, "Bug: Treat
/// missing idempotency key as non-idempotent transaction", and -typescript #1501, "Bug: Subsequent
/// Requests without a Idempotency Key Return the Same Result as the First Request".
#[tokio::test]
async fn messages_without_key_do_not_collide() {
    let nothing = [json!({}), json!({"orderId": null}), json!({"orderId": ""})];
    for missing in nothing {
        two_without("body:/orderId", [missing, json!({"amount": 2})]).await;
    }
}

/// The key has two parts, and one of them is missing. Two orders of one customer then have the same
/// key, and the second is acknowledged without running.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0. Both report a
/// missing key only if all of its parts are missing, even if a key is required.
#[tokio::test]
async fn messages_without_part_of_key_do_not_collide() {
    let of = |amount| json!({"customerId": "c-17", "amount": amount});
    two_without("body:/customerId,/orderId", [of(1), of(2)]).await;
}

/// A producer sent an order twice, and both messages come in one batch. In a library with parallel
/// batches, the second message meets the claim of the first and is reported as failed. That costs
/// the message a receive.
///
/// Seen with Powertools for AWS Lambda (TypeScript) 2.35.0, unless messages are processed in turn.
#[tokio::test]
async fn key_twice_in_batch_runs_once() {
    let (world, ran) = (World::new().await, Arc::new(AtomicUsize::new(0)));
    let count = {
        let ran = ran.clone();
        move |_: Value, _: Attempt| {
            ran.fetch_add(1, Ordering::SeqCst);
            // Lets the other message continue, if it runs in parallel.
            async {
                tokio::task::yield_now().await;
                Ok::<_, Failure>(())
            }
        }
    };
    let twice = batch(["m-1", "m-2"].map(|id| record(id, &order())));
    assert_eq!(
        process(
            &Arc::new(world.worker(handler_fn(count))),
            twice,
            within(TIME)
        )
        .await,
        [""; 0]
    );
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

/// The handler changes the part of the message that holds the key, for example by trimming a field.
/// A library that computes the key again after the handler records the result under another key.
/// The message's own record stays in progress.
///
/// Seen with Powertools for AWS Lambda (TypeScript) 2.35.0;
/// aws-powertools/powertools-lambda-typescript #5715, "Bug: Idempotency completes or deletes the
/// wrong record when the wrapped function mutates its input", fixed after that version. The same
/// bug was aws-powertools/powertools-lambda-python #1093, "Bug: event mutations influence
/// idempotency hash used".
#[tokio::test]
async fn message_changed_by_handler_keeps_key() {
    let world = World::new().await;
    let change = async |mut order: Value, _: Attempt| -> Result<Value, Failure> {
        order["orderId"] = json!("changed");
        Ok(order)
    };
    let worker = Arc::new(world.worker(handler_fn(change)));
    assert_eq!(
        process(&worker, event(&order()), within(TIME)).await,
        [""; 0]
    );
    let kept = world.the_record().await;
    assert_eq!(
        (text(&kept, "id"), text(&kept, "status")),
        ("test#o-1", "COMPLETED")
    );
    assert_eq!(world.deliver_again(&order()).await, [""; 0]);
}

/// One message is not valid JSON. A library that parses the batch as a whole fails all of it, and
/// good messages follow the bad one to the dead-letter queue.
///
/// Seen with aws_lambda_events 1.2, if a handler takes `SqsEventObj<T>`, as this test shows. Both
/// Powertools pass.
#[tokio::test]
async fn malformed_message_fails_alone() {
    let world = World::new().await;
    let done = async |_: Value, _: Attempt| -> Result<(), Failure> { Ok(()) };
    let mut bodiless = record("bodiless", "");
    bodiless["body"] = Value::Null;
    let event = batch([
        record("m-1", &json!({"orderId": "o-1"})),
        record("bad", "{"),
        bodiless,
        record("m-4", &json!({"orderId": "o-4"})),
    ]);
    assert!(serde_json::from_value::<SqsEventObj<Value>>(event.clone()).is_err());
    let failed = process(
        &Arc::new(world.worker(handler_fn(done))),
        event,
        within(TIME),
    )
    .await;
    assert_eq!(failed, ["bad", "bodiless"]);
    assert_eq!(world.0.records(TABLE).await.len(), 2);
}

/// The operation is done, and its output does not fit into an item of 400 KB. A library whose
/// completion then fails reports the message as failed. The operation runs again for each receive
/// until the message is dead-lettered.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0.
#[tokio::test]
async fn oversized_result_does_not_run_again() {
    for size in [MAX_RESULT_BYTES, 420_000] {
        let world = World::new().await;
        let large = move |_: Value, _: Attempt| async move { Ok::<_, Failure>("x".repeat(size)) };
        let worker = Arc::new(world.worker(handler_fn(large)));
        assert_eq!(
            process(&worker, event(&order()), within(TIME)).await,
            [""; 0]
        );
        let kept = world.the_record().await;
        assert_eq!(text(&kept, "status"), "COMPLETED");
        assert!(text(&kept, "result_omitted").contains("bytes"), "{kept:?}");
        assert_eq!(world.deliver_again(&order()).await, [""; 0]);
    }
}
