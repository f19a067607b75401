//! Failures that others in the field are known for, each by name and true for us: a test fails
//! where sqs-once has the failure too. `make compare` tries the same on Powertools for AWS Lambda.
//!
//! "Seen with" names the versions in which that saw the failure, in November 2026; its table is in
//! the README.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

mod support;
#[path = "known_failures/world.rs"]
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
    protocol::{Timestamp, record::MAX_RESULT_BYTES},
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

/// A worker outlives its lease; another takes over and completes; then the first one ends `late`.
async fn overtaken(late: fn() -> Result<&'static str, Failure>) -> (World, Vec<String>) {
    let world = World::new().await;
    let newer = async |_: Value, attempt: Attempt| {
        assert!(attempt.may_have_run_before(), "the successor is told");
        Ok("newer")
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

/// A worker that was slow ends after its lease, when another has taken over and completed. Unfenced,
/// its completion replaces the newer result, and every duplicate is answered with the older one. It
/// takes a worker that outlives its lease: a process that was paused, clocks apart, a request that
/// was long on its way.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0, whose update has no
/// condition.
#[tokio::test]
async fn a_late_completion_does_not_overwrite_a_newer_result() {
    let (world, failed) = overtaken(|| Ok("older")).await;
    assert_eq!(failed, ["m-1"], "the late one is not acknowledged");
    assert_eq!(text(&world.the_record().await, "result"), "\"newer\"");
    assert_eq!(world.deliver_again(&order()).await, [""; 0]);
}

/// The same worker fails instead. Where an exception deletes the record without a condition, it
/// deletes that of a newer attempt, which was completed, and the next delivery runs the operation
/// again.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0. A neighbour of it, where
/// the middleware deletes records that it never acquired, is aws-powertools/powertools-lambda-typescript
/// #5675, "Bug: `makeHandlerIdempotent` deletes idempotency records it never acquired".
#[tokio::test]
async fn a_late_failure_does_not_undo_a_newer_completion() {
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

/// A worker dies, and the deadline of its invocation was not known to the library: the claim has no
/// end of its own and locks the key until the record expires, while the message goes on to the
/// dead-letter queue.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0, unless the Lambda
/// context is registered, as their documentation says:
/// aws-powertools/powertools-lambda-python #1038, "Idempotency and Lambda timeouts".
#[tokio::test]
async fn a_crash_without_a_deadline_does_not_lock_the_key_for_the_retention() {
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
    // The budget and the lease margin.
    assert!(locked <= FALLBACK + Duration::from_secs(1), "{locked:?}");
    assert_eq!(world.deliver_again(&order()).await, ["m-1"], "for so long");

    let told = async |_: Value, attempt: Attempt| -> Result<bool, Failure> {
        Ok(attempt.may_have_run_before())
    };
    let next = Arc::new(worker(world.once().clock(in_an_hour), handler_fn(told)));
    let failed = process(&next, event(&order()), an_hour_later(TIME)).await;
    assert_eq!(failed, [""; 0]);
    assert_eq!(text(&world.the_record().await, "result"), "true");
}

/// A claim is written, and the connection breaks before its answer. The SDK sends it again; the
/// condition is refused by the worker's own record; the worker takes itself for somebody else, runs
/// nothing, and the key stays locked until its deadline.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0. What is behind it is
/// aws/aws-sdk-java #2667, "AmazonDynamoDB / DynamoDBMapper retries are considered as new requests".
#[tokio::test]
async fn a_claim_whose_answer_was_lost_does_not_block_its_own_worker() {
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

/// An output that a language takes for false is not an output that is missing. Where it is tested for
/// truth on its way into or out of the record, a duplicate of an operation that answered 0 is answered
/// with nothing.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0; aws-powertools/powertools-lambda-python #8090,
/// "Tech debt: Fix falsy response handling, inconsistencies, and duplicated code in idempotency
/// utility".
#[tokio::test]
async fn an_output_of_zero_false_null_or_nothing_is_replayed_as_such() {
    /// Answers with what the order says, and notes what it answered before.
    #[derive(Clone, Default)]
    struct Echo(Arc<Mutex<Vec<Value>>>);
    impl Handler for Echo {
        type Message = Value;
        type Output = Value;
        async fn handle(&self, order: Value, _: Attempt) -> Result<Value, Failure> {
            Ok(order["output"].clone())
        }
        async fn on_duplicate(&self, stored: Stored<Value>, _: Attempt) -> Result<(), Failure> {
            self.0.lock().unwrap().extend(stored.output()?);
            Ok(())
        }
    }
    let (world, echo) = (World::new().await, Echo::default());
    let worker = Arc::new(world.worker(echo.clone()));
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

/// Two messages that lack what `key` names: both are reported as failed, and nothing runs.
async fn two_without(key: &str, bodies: [Value; 2]) {
    let world = World::new().await;
    let never = async |_: Value, _: Attempt| -> Result<(), Failure> { panic!("it has no key") };
    let worker = Arc::new(world.worker(handler_fn(never)).key(key.parse().unwrap()));
    let two = batch([record("m-1", &bodies[0]), record("m-2", &bodies[1])]);
    assert_eq!(process(&worker, two, within(TIME)).await, ["m-1", "m-2"]);
    assert!(world.0.records(TABLE).await.is_empty(), "a record of what?");
}

/// The payload lacks what the key is taken from. Where nothing is hashed like something, all such
/// messages are the same operation, and the second is acknowledged without being run; where it is
/// let through, it runs unprotected.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0: unprotected, unless a
/// key is required. The collision was aws-powertools/powertools-lambda-python #2465, "Bug: Treat missing
/// idempotency key as non-idempotent transaction", and -typescript #1501, "Bug: Subsequent Requests
/// without a Idempotency Key Return the Same Result as the First Request".
#[tokio::test]
async fn two_messages_without_a_key_do_not_collide() {
    let nothing = [json!({}), json!({"orderId": null}), json!({"orderId": ""})];
    for missing in nothing {
        two_without("body:/orderId", [missing, json!({"amount": 2})]).await;
    }
}

/// The key has two parts, and one of them is missing: two orders of one customer have the same key
/// then, and the second is acknowledged without being run.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0, which miss a key only
/// where all of its parts are missing, also if a key is required.
#[tokio::test]
async fn two_messages_without_a_part_of_their_key_do_not_collide() {
    let of = |amount| json!({"customerId": "c-17", "amount": amount});
    two_without("body:/customerId,/orderId", [of(1), of(2)]).await;
}

/// A producer sent twice, and both messages come in one batch. Where a batch is processed in
/// parallel, the second meets the claim of the first and is reported as failed, which costs it a
/// receive.
///
/// Seen with Powertools for AWS Lambda (TypeScript) 2.35.0, unless messages are processed in turn.
#[tokio::test]
async fn one_key_twice_in_a_batch_runs_once_and_answers_both() {
    let (world, ran) = (World::new().await, Arc::new(AtomicUsize::new(0)));
    let count = {
        let ran = ran.clone();
        move |_: Value, _: Attempt| {
            ran.fetch_add(1, Ordering::SeqCst);
            // Lets the other message go on, if it runs beside this one.
            async {
                tokio::task::yield_now().await;
                Ok(())
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

/// The handler changes the message in which the key is, say by trimming a field. Where the key is
/// taken again when the handler has ended, the result is recorded under another key, and the
/// message's own stays in progress.
///
/// Seen with Powertools for AWS Lambda (TypeScript) 2.35.0;
/// aws-powertools/powertools-lambda-typescript #5715, "Bug: Idempotency completes or deletes the wrong
/// record when the wrapped function mutates its input", mended after that version. It was
/// aws-powertools/powertools-lambda-python #1093, "Bug: event mutations influence idempotency hash used".
#[tokio::test]
async fn a_message_changed_by_its_handler_keeps_its_key() {
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

/// One message can't be read. Where a batch is read before its messages are told apart, all of it
/// fails, comes back, and follows the bad one to the dead-letter queue.
///
/// Seen with aws_lambda_events 1.2, where a handler takes `SqsEventObj<T>`, as this test shows. Both
/// Powertools hold.
#[tokio::test]
async fn a_malformed_message_fails_alone() {
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

/// The operation is done, and its output does not fit into an item of 400 KB. Where the completion
/// fails by that, the message is reported as failed and the operation runs again, and again, until the
/// message is dead.
///
/// Seen with Powertools for AWS Lambda (Python) 3.37.0 and (TypeScript) 2.35.0.
#[tokio::test]
async fn a_result_too_large_to_store_does_not_run_again() {
    for size in [MAX_RESULT_BYTES, 420_000] {
        let world = World::new().await;
        let large = move |_: Value, _: Attempt| async move { Ok("x".repeat(size)) };
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
