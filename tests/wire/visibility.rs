//! Visibility timeouts of failed messages: the calls that the consumer sends to SQS for a batch.

use std::{cell::Cell, sync::Arc, time::Duration};

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Once, handler_fn,
    protocol::{Claim, Key, Owner, Record, Timestamp},
    sqs::Visibility,
    store::MemoryStore,
};
use support::{
    consumer::{namespace, process, within},
    event::{QUEUE_ARN, batch, in_group, received, record},
    log,
    sqs::{self, Sqs, SqsBehaviour},
    stopwatch::Stopwatch,
};

const SECOND: Duration = Duration::from_secs(1);

/// Handler that obeys the message.
async fn obey(order: String, _: Attempt) -> Result<(), Failure> {
    match order.as_str() {
        "succeed" => Ok(()),
        "fail" => Err(Failure::retryable("scripted")),
        "wait" => Err(Failure::retryable("429").retry_after(30 * SECOND)),
        "wait, no effect" => Err(Failure::no_effect("503").retry_after(20 * SECOND)),
        "decline" => Err(Failure::permanent("scripted").retry_after(30 * SECOND)),
        "hang" => std::future::pending().await,
        "an hour passes" => {
            later(3600 * SECOND);
            Ok(())
        }
        "take a second" => {
            tokio::time::sleep(SECOND).await;
            Ok(())
        }
        _ => panic!("scripted"),
    }
}

/// The longest possible waits: full jitter.
fn visibility(sqs: &Sqs) -> Visibility {
    let visibility = Visibility::new(sqs.client())
        .clock(clock)
        .jitter(|most| most)
        .backoff(4 * SECOND, 60 * SECOND);
    // Declined messages stay: tests/wire/dead_letter.rs has direct dead-lettering.
    visibility.dead_letter(false)
}

fn consumer(
    store: MemoryStore,
    visibility: Visibility,
) -> Arc<Consumer<Once<MemoryStore>, impl Handler<Output: serde::Serialize>>> {
    let once = Once::new(store).clock(clock);
    let consumer = Consumer::without_aws(once, namespace(), handler_fn(obey));
    Arc::new(consumer.visibility(visibility))
}

/// Another worker claims the key `busy` for so long.
fn hold(store: &MemoryStore, lease: Duration) {
    let now = Timestamp::now();
    let lease_until = now + lease;
    let key = Key::new(&namespace(), ["busy"]).unwrap();
    let expires_at = lease_until.as_secs() + 60;
    let other = Claim::new(Owner::fresh(), "busy", now, lease_until, expires_at);
    store.put(&key, Some(Record::claimed(&other, 1, None, None)));
}

fn order(id: &str, order: &str, receive_count: u32) -> Value {
    received(id, &json!(order), receive_count)
}

fn change(id: &str, receive_count: u32, seconds: u64) -> (String, u64) {
    (format!("receipt-{id}-{receive_count}"), seconds)
}

#[tokio::test]
async fn each_failure_sets_its_visibility_timeout() {
    let (sqs, store) = (
        Sqs::start(SqsBehaviour::Willing).await,
        MemoryStore::default(),
    );
    hold(&store, 30 * SECOND);
    let consumer = consumer(store, visibility(&sqs));
    let event = batch([
        order("done", "succeed", 5),
        order("first", "fail", 1),
        order("third", "fail", 3),
        order("tenth", "fail", 10),
        order("asks", "wait", 1),
        order("asks-too", "wait, no effect", 2),
        order("asks-for-less", "wait", 5),
        order("declined", "decline", 3),
        order("panics", "panic", 2),
        order("busy", "succeed", 4),
        received("malformed", "{", 2),
    ]);
    let failed = process(&consumer, event, within(10 * SECOND)).await;
    assert_eq!(failed.len(), 10);

    let expected = [
        change("first", 1, 4),
        change("third", 3, 16),
        change("tenth", 10, 60),
        change("asks", 1, 30),
        change("asks-too", 2, 20),
        change("asks-for-less", 5, 60),
        change("declined", 3, 0),
        change("panics", 2, 8),
        // The lease ends after 30 s.
        change("busy", 4, 32),
        change("malformed", 2, 0),
    ];
    let mut changes = sqs.changes();
    let conflict = &mut changes[8].1;
    assert!((31..=33).contains(conflict), "{conflict}");
    *conflict = 32;
    assert_eq!(changes, expected);
}

/// Another program holds the key for so long that SQS would reject the wait.
#[tokio::test]
async fn longest_wait_counts_from_the_invocation() {
    let (sqs, store) = (
        Sqs::start(SqsBehaviour::Willing).await,
        MemoryStore::default(),
    );
    hold(&store, 20 * 3600 * SECOND);
    let consumer = consumer(store, visibility(&sqs));
    let event = batch([
        order("busy", "succeed", 1),
        order("slow", "an hour passes", 1),
    ]);
    let failed = process(&consumer, event, within(2 * 3600 * SECOND)).await;
    assert_eq!(failed, ["busy"]);
    let longest = Visibility::LONGEST_BACKOFF.as_secs();
    let (_, waits) = sqs.changes().remove(0);
    assert!(
        (longest - 3610..=longest - 3600).contains(&waits),
        "{waits}"
    );
}

#[tokio::test]
async fn queue_lookup_is_cached_and_calls_hold_ten() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    let elsewhere = "arn:aws-cn:sqs:cn-north-1:210987654321:theirs";
    for n in 0..2 {
        let mut records: Vec<_> = (0..21)
            .map(|i| order(&format!("m-{n}-{i}"), "fail", 1))
            .collect();
        for record in &mut records[..1] {
            record["eventSourceARN"] = json!(elsewhere);
        }
        process(&consumer, batch(records), within(10 * SECOND)).await;
    }

    let looked_up = sqs.calls("GetQueueUrl");
    let found: Vec<_> = looked_up.iter().map(|call| &call.body).collect();
    let body = |name, account| json!({"QueueName": name, "QueueOwnerAWSAccountId": account});
    assert_eq!(
        found,
        [
            &body("theirs", "210987654321"),
            &body("orders", "123456789012")
        ]
    );
    assert_eq!(looked_up[0].region, "cn-north-1");
    assert_eq!(looked_up[1].region, support::REGION);

    let calls = sqs.calls("ChangeMessageVisibilityBatch");
    let of = |call: &support::sqs::Call| {
        let url = call.body["QueueUrl"].as_str().unwrap().to_owned();
        (url, call.body["Entries"].as_array().unwrap().len())
    };
    let mut sizes: Vec<_> = calls.iter().map(of).collect();
    sizes.sort();
    let ours = || "https://sqs.example/123456789012/orders".to_owned();
    let theirs = || "https://sqs.example/210987654321/theirs".to_owned();
    assert_eq!(
        sizes,
        [
            (ours(), 10),
            (ours(), 10),
            (ours(), 10),
            (ours(), 10),
            (theirs(), 1),
            (theirs(), 1)
        ]
    );
    assert!(calls.iter().all(|call| {
        let theirs = call.body["QueueUrl"].as_str().unwrap().ends_with("theirs");
        (call.region == "cn-north-1") == theirs
    }));
}

#[tokio::test]
async fn fifo_group_never_overtakes_failed_message() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    let fifo = |id: &str, group: &str, word: &str, receive_count| {
        in_group(order(id, word, receive_count), group)
    };
    let event = batch([
        fifo("a-1", "a", "succeed", 1),
        fifo("b-1", "b", "decline", 1),
        fifo("a-2", "a", "fail", 3),
        fifo("a-3", "a", "succeed", 1),
        fifo("b-2", "b", "panic", 1),
        fifo("b-3", "b", "succeed", 6),
        fifo("a-4", "a", "succeed", 9),
    ]);
    process(&consumer, event, within(10 * SECOND)).await;
    let expected = [
        change("b-1", 1, 0),
        change("a-2", 3, 16),
        change("a-3", 1, 16),
        change("b-2", 1, 4),
        change("b-3", 6, 4),
        change("a-4", 9, 16),
    ];
    assert_eq!(sqs.changes(), expected);
}

#[tokio::test]
async fn sqs_is_called_only_for_failures_with_receipt() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    let mut anonymous = [order("m-1", "decline", 1), order("m-2", "decline", 1)];
    anonymous[0]["receiptHandle"] = Value::Null;
    anonymous[1]["eventSourceARN"] = Value::Null;
    let succeeds = record("m-3", &json!("succeed"));
    let event = batch(anonymous.into_iter().chain([succeeds]));
    let failed = process(&consumer, event, within(10 * SECOND)).await;
    assert_eq!(failed, ["m-1", "m-2"]);
    assert!(sqs.calls("GetQueueUrl").is_empty());
    assert!(sqs.changes().is_empty());
}

#[tokio::test]
async fn sqs_error_does_not_change_response() {
    for (behaviour, looked_up) in [(SqsBehaviour::Denying, 2), (SqsBehaviour::FailingFirst, 1)] {
        let sqs = Sqs::start(behaviour).await;
        let consumer = consumer(MemoryStore::default(), visibility(&sqs));
        for n in 1..=2 {
            let event = batch([order("m-1", "fail", n), order("m-2", "succeed", n)]);
            assert_eq!(
                process(&consumer, event, within(10 * SECOND)).await,
                ["m-1"]
            );
        }
        // A denied permission may be granted at any time.
        assert_eq!(sqs.calls("GetQueueUrl").len(), looked_up, "{behaviour:?}");
    }
}

/// The process was frozen after it had signed, or its clock is wrong for a moment.
#[tokio::test]
async fn refused_signature_is_repeated_once() {
    for (refused, calls, waits) in [(1, 2, &[4][..]), (2, 2, &[])] {
        let sqs = Sqs::start(SqsBehaviour::Willing).await;
        let consumer = consumer(MemoryStore::default(), visibility(&sqs));
        // The URL of the queue is known.
        process(
            &consumer,
            batch([order("m-0", "fail", 1)]),
            within(10 * SECOND),
        )
        .await;
        let change = "ChangeMessageVisibilityBatch";
        sqs.turn_for(change, SqsBehaviour::RefusingSignature(1 + refused));
        log::start();
        process(
            &consumer,
            batch([order("m-1", "fail", 1)]),
            within(10 * SECOND),
        )
        .await;
        assert_eq!(sqs.calls(change).len(), 1 + calls, "{refused}");
        let errors = not_changed();
        assert_eq!(errors.is_empty(), !waits.is_empty(), "{errors:?}");
        assert!(
            errors
                .iter()
                .all(|error| error.contains("the clock of this machine"))
        );
    }
}

/// A gateway is down, and the queue has the three receives of many examples.
#[tokio::test]
async fn queue_of_few_receives_warns_once_of_outages() {
    const FEW: &str = "maxReceiveCount is too low";
    for (receives, visibility_timeout, survived) in [
        (3, 60, Some(10)),
        (130, 420, None),
        (130, 30, Some(10 + 20 + 126 * 30)),
    ] {
        let sqs = Sqs::start(SqsBehaviour::Willing).await;
        sqs.receives(receives, visibility_timeout);
        log::start();
        let visibility = Visibility::new(sqs.client()).clock(clock);
        let consumer = consumer(MemoryStore::default(), visibility);
        let read_twice = async {
            while sqs.calls("GetQueueAttributes").len() < 2 {
                let event = batch([order("m-1", "fail", 1)]);
                process(&consumer, event, within(10 * SECOND)).await;
                later(3600 * SECOND);
            }
        };
        tokio::time::timeout(support::PATIENCE, read_twice)
            .await
            .unwrap();
        // The second read begins after the answer of the first was stored.
        let lines = log::lines_containing(FEW);
        let said: Vec<_> = lines
            .iter()
            .map(|line| &line["fields"]["survived_outage_s"])
            .collect();
        let wanted: Vec<_> = survived.iter().map(|seconds| json!(seconds)).collect();
        assert_eq!(said, wanted.iter().collect::<Vec<_>>(), "{receives}");
        for line in &lines {
            assert_eq!(
                (&line["level"], &line["fields"]["queue"]),
                (&json!("WARN"), &json!(QUEUE_ARN))
            );
            assert_eq!(line["fields"]["max_receive_count"], receives);
        }
    }
}

/// The limits of this suite are those of a runtime that runs.
#[tokio::test]
async fn stopwatch_stops_while_runtime_does_not_run() {
    let stopwatch = Stopwatch::start();
    let time = SECOND / 10;
    while stopwatch.elapsed() < time {
        tokio::time::sleep(SECOND / 100).await;
    }
    let before = stopwatch.elapsed();
    // Blocks the only thread.
    std::thread::sleep(3 * time);
    assert!(stopwatch.elapsed() < before + time);
}

#[tokio::test]
async fn hanging_sqs_costs_at_most_two_seconds() {
    let sqs = Sqs::start(SqsBehaviour::Hanging).await;
    for (word, budget, at_most) in [
        ("fail", 60 * SECOND, 3 * SECOND),
        ("fail", SECOND, SECOND),
        ("hang", SECOND, SECOND),
    ] {
        let consumer = consumer(MemoryStore::default(), visibility(&sqs));
        let started = Stopwatch::start();
        let event = batch([order("m-1", word, 1)]);
        assert_eq!(process(&consumer, event, within(budget)).await, ["m-1"]);
        assert!(started.elapsed() < at_most, "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn silent_sqs_is_not_called_for_five_minutes() {
    let sqs = Sqs::start(SqsBehaviour::Hanging).await;
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    let asked = || sqs.calls("GetQueueUrl").len();
    let fails = async || {
        let started = Stopwatch::start();
        let event = batch([order("m-1", "fail", 1)]);
        assert_eq!(
            process(&consumer, event, within(60 * SECOND)).await,
            ["m-1"]
        );
        started.elapsed()
    };
    log::start();
    fails().await;
    assert_eq!(asked(), 1);
    let logged = not_changed();
    assert_eq!(logged.len(), 1, "{logged:#?}");
    assert!(logged[0].contains("no answer within"), "{logged:#?}");

    assert!(fails().await < SECOND);
    // The monotonic clock stands still, as in a process that Lambda has frozen.
    later(290 * SECOND);
    assert!(fails().await < SECOND);
    assert_eq!(asked(), 1);
    assert_eq!(not_changed(), [""; 0], "logged once");
    later(11 * SECOND);
    sqs.turn(SqsBehaviour::Willing);
    fails().await;
    assert_eq!(asked(), 2);
    assert_eq!(sqs.changes().len(), 1);
}

#[tokio::test]
async fn clock_that_steps_back_ends_the_pause() {
    let sqs = Sqs::start(SqsBehaviour::Hanging).await;
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    let fails = async |id| {
        let event = batch([order(id, "fail", 1)]);
        assert_eq!(process(&consumer, event, within(60 * SECOND)).await, [id]);
    };
    later(3600 * SECOND);
    fails("m-1").await;
    AHEAD.set(Duration::ZERO);
    sqs.turn(SqsBehaviour::Willing);
    fails("m-2").await;
    assert_eq!(sqs.changes(), [change("m-2", 1, 4)]);
}

#[tokio::test]
async fn unreachable_sqs_is_logged_with_its_cause() {
    // The port no longer listens.
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", port.local_addr().unwrap());
    drop(port);
    let visibility = Visibility::new(sqs::client(&endpoint));
    let consumer = consumer(MemoryStore::default(), visibility);
    log::start();
    for _ in 0..2 {
        let event = batch([order("m-1", "fail", 1)]);
        assert_eq!(
            process(&consumer, event, within(60 * SECOND)).await,
            ["m-1"]
        );
    }
    let logged = not_changed();
    assert_eq!(logged.len(), 1, "{logged:#?}");
    assert!(logged[0].contains("Connection refused"), "{logged:#?}");
}

#[tokio::test]
async fn batch_does_not_wait_for_other_sqs_calls() {
    let sqs = Sqs::start(SqsBehaviour::Hanging).await;
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    let fails = |id| {
        let event = batch([order(id, "fail", 1)]);
        process(&consumer, event, within(60 * SECOND))
    };
    let overtakes = async {
        sqs.called("GetQueueUrl", 1).await;
        sqs.turn(SqsBehaviour::Willing);
        let started = Stopwatch::start();
        fails("m-2").await;
        assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    };
    tokio::join!(fails("m-1"), overtakes);
    assert_eq!(sqs.changes(), [change("m-2", 1, 4)]);
}

/// Processes one order that is declined again and again, and returns its new visibility timeout.
async fn decline(
    sqs: &Sqs,
    consumer: &Arc<Consumer<Once<MemoryStore>, impl Handler<Output: serde::Serialize>>>,
    receive_count: u32,
) -> u64 {
    let before = sqs.changes().len();
    let event = batch([order("declined", "decline", receive_count)]);
    let failed = process(consumer, event, within(60 * SECOND)).await;
    assert_eq!(failed, ["declined"]);
    assert_eq!(sqs.changes().len(), before + 1);
    sqs.changes()[before].1
}

/// Waits for a log line with `message`.
async fn logged(message: &str) -> Value {
    let line = async {
        loop {
            if let Some(line) = log::lines_containing(message).pop() {
                return line;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(support::PATIENCE, line).await.unwrap()
}

const NO_DEAD_LETTER_QUEUE: &str = "the queue has no dead-letter queue";
const RETENTION: &str = "keeps messages longer than the table keeps records";
const NOT_READ: &str = "the queue's attributes could not be read";

#[tokio::test]
async fn poison_with_dlq_is_visible_at_once_three_times() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    for _ in 0..3 {
        assert_eq!(decline(&sqs, &consumer, 3).await, 0);
    }
    sqs.called("GetQueueAttributes", 1).await;
    assert_eq!(decline(&sqs, &consumer, 3).await, 0);
    assert_eq!(decline(&sqs, &consumer, 4).await, 32);
    assert_eq!(sqs.calls("GetQueueAttributes").len(), 1);

    sqs.has(None, 345_600);
    later(3599 * SECOND);
    assert_eq!(decline(&sqs, &consumer, 3).await, 0);
    assert_eq!(sqs.calls("GetQueueAttributes").len(), 1);
    later(SECOND);
    let settled = async { while decline(&sqs, &consumer, 3).await == 0 {} };
    tokio::time::timeout(support::PATIENCE, settled)
        .await
        .unwrap();
    assert_eq!(sqs.calls("GetQueueAttributes").len(), 2, "after an hour");
}

#[tokio::test]
async fn poison_without_dlq_backs_off_and_warns_once() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.has(None, 345_600);
    log::start();
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    assert_eq!(decline(&sqs, &consumer, 3).await, 0, "is assumed");
    let warning = logged(NO_DEAD_LETTER_QUEUE).await;
    assert_eq!(warning["level"], "WARN");
    assert_eq!(warning["fields"]["queue"], QUEUE_ARN);
    assert_eq!(decline(&sqs, &consumer, 4).await, 32);

    later(3601 * SECOND);
    decline(&sqs, &consumer, 5).await;
    sqs.called("GetQueueAttributes", 2).await;
    assert_eq!(decline(&sqs, &consumer, 40).await, 60);
    assert!(log::lines_containing(NO_DEAD_LETTER_QUEUE).is_empty());
}

#[tokio::test]
async fn poison_with_unreadable_dlq_backs_off() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.turn_for("GetQueueAttributes", SqsBehaviour::Denying);
    log::start();
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    assert_eq!(decline(&sqs, &consumer, 3).await, 0, "is assumed");
    let warning = logged(NOT_READ).await;
    let error = warning["fields"]["error"].as_str().unwrap();
    assert!(error.contains("sqs:GetQueueAttributes"), "{warning}");
    assert_eq!(decline(&sqs, &consumer, 4).await, 32);
    assert_eq!(sqs.calls("GetQueueAttributes").len(), 1, "for five minutes");
    sqs.turn_for("GetQueueAttributes", SqsBehaviour::Willing);
    later(301 * SECOND);
    decline(&sqs, &consumer, 4).await;
    sqs.called("GetQueueAttributes", 2).await;
}

#[tokio::test]
async fn queue_attributes_never_delay_response() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.turn_for("GetQueueAttributes", SqsBehaviour::Hanging);
    let consumer = consumer(MemoryStore::default(), visibility(&sqs));
    let started = Stopwatch::start();
    for _ in 0..2 {
        assert_eq!(
            decline(&sqs, &consumer, 3).await,
            0,
            "a dead-letter queue is assumed"
        );
    }
    sqs.called("GetQueueAttributes", 1).await;
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());

    // Simulates a process frozen by Lambda: the call times out as soon as the process continues.
    tokio::time::pause();
    tokio::time::advance(600 * SECOND).await;
    tokio::time::resume();
    let backed_off = async { while decline(&sqs, &consumer, 3).await == 0 {} };
    tokio::time::timeout(support::PATIENCE, backed_off)
        .await
        .unwrap();
    later(600 * SECOND);
    sqs.turn_for("GetQueueAttributes", SqsBehaviour::Willing);
    let settled = async { while decline(&sqs, &consumer, 3).await != 0 {} };
    tokio::time::timeout(support::PATIENCE, settled)
        .await
        .unwrap();
}

#[tokio::test]
async fn queue_outliving_records_warns_once() {
    let day = 24 * 3600 * SECOND;
    for (records, warnings) in [(3 * day, 1), (4 * day, 0)] {
        let sqs = Sqs::start(SqsBehaviour::Willing).await;
        sqs.has(None, 4 * 24 * 3600);
        log::start();
        let consumer = consumer(
            MemoryStore::default(),
            visibility(&sqs).record_retention(records),
        );
        let mut lines = Vec::new();
        for queue in ["orders", "refunds"] {
            let mut message = order(queue, "decline", 1);
            message["eventSourceARN"] = json!(format!("arn:aws:sqs:eu-central-1:1:{queue}"));
            process(&consumer, batch([message]), within(60 * SECOND)).await;
            let read = async {
                while !lines.iter().any(|line: &Value| {
                    line.to_string().contains(NO_DEAD_LETTER_QUEUE)
                        && line.to_string().contains(queue)
                }) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    lines.extend(log::lines());
                }
            };
            tokio::time::timeout(support::PATIENCE, read).await.unwrap();
        }
        lines.retain(|line| line.to_string().contains(RETENTION));
        assert_eq!(lines.len(), warnings, "{lines:#?}");
        for line in lines {
            assert_eq!(line["fields"]["queue_retention_s"], 4 * 24 * 3600);
            assert_eq!(line["fields"]["record_retention_s"], 3 * 24 * 3600);
        }
    }
}

thread_local! {
    /// How far the wall clock of the test's thread is ahead.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

pub fn clock() -> Timestamp {
    Timestamp::now() + AHEAD.get()
}

/// Moves the wall clock of the consumer, and not the monotonic one.
pub fn later(by: Duration) {
    AHEAD.set(AHEAD.get() + by);
}

/// Errors of failed calls, since the last look.
fn not_changed() -> Vec<String> {
    let mut errors = Vec::new();
    for line in log::lines() {
        let message = line["fields"]["message"].as_str().unwrap();
        if message.contains("visibility could not be changed") {
            errors.push(line["fields"]["error"].as_str().unwrap().to_owned());
        }
    }
    errors
}

#[tokio::test]
async fn default_backoff_is_jittered_from_half() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let consumer = consumer(MemoryStore::default(), Visibility::new(sqs.client()));
    let event = batch((0..60).map(|n| order(&format!("m-{n}"), "fail", 3)));
    process(&consumer, event, within(10 * SECOND)).await;
    let waits: Vec<_> = sqs.changes().into_iter().map(|(_, wait)| wait).collect();
    assert_eq!(waits.len(), 60);
    let all = 20..=40;
    assert!(waits.iter().all(|wait| all.contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|&wait| wait < 30), "{waits:?}");
    assert!(waits.iter().any(|&wait| wait > 30), "{waits:?}");
}
