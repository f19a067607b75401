//! Metrics in the batch's log line, written by the release binary, and the observer of a consumer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Failure, Once, handler_fn, protocol::Namespace, store::MemoryStore,
};
use support::{
    emf::{self, BatchMetrics},
    event::{QUEUE_ARN, batch, failed, in_group, order, received, record},
    gateway::Reply,
    runtime_api::{FUNCTION_NAME, Lambda, of_batch},
    sqs::SqsBehaviour,
    stage::{Stage, TIME, now_ms},
};

fn lines(output: &[String]) -> Vec<Value> {
    let lines = output.iter().map(|line| serde_json::from_str(line));
    lines.collect::<Result<_, _>>().unwrap()
}

/// The metrics of the first `n` batches.
async fn batches(lambda: &Lambda, n: usize) -> Vec<BatchMetrics> {
    lambda.logged(n, of_batch).await;
    emf::batches(&lines(&lambda.output()))
}

fn counters(counters: &[(&str, usize)]) -> BTreeMap<String, usize> {
    let owned = counters.iter().map(|(name, n)| ((*name).to_owned(), *n));
    owned.collect()
}

#[tokio::test]
async fn each_message_counts_in_one_outcome_counter() {
    let stage = Stage::set().await;
    let lambda = stage
        .consumer(&[("IDEMPOTENCY_KEY", "body:/orderId")])
        .await;
    stage.gateway.script("busy", [Reply::Status(503)]);
    stage.gateway.script("declined", [Reply::Status(402)]);
    let mixed = |n| {
        let mut dearer = order("o-1");
        dearer["amount"] = json!(if n == 1 { 1 } else { 2 });
        batch([
            received("m-1", &order("o-2"), n),
            received("m-busy", &order("busy"), n),
            received("m-declined", &order("declined"), n),
            received("m-malformed", "{", n),
            received("m-dearer", &dearer, n),
        ])
    };
    for n in 1..=2 {
        lambda.invoke(mixed(n), TIME).await.response();
    }
    let [first, second] = &batches(&lambda, 2).await[..] else {
        panic!("not two batches");
    };
    let expected = [
        ("Completed", 2),
        ("Invalid", 1),
        ("PermanentFailures", 1),
        ("RetryableFailures", 1),
    ];
    assert_eq!(first.outcomes(), counters(&expected));
    let expected = [
        ("Completed", 1),
        ("Duplicates", 1),
        ("Invalid", 1),
        ("KeysReused", 1),
        ("PermanentFailures", 1),
    ];
    assert_eq!(second.outcomes(), counters(&expected));

    for (batch, cold, handled, requests) in [(first, 1, 4, 8), (second, 0, 1, 6)] {
        assert_eq!(batch.sum("ColdStart"), f64::from(cold));
        assert_eq!(batch.sum("BatchSize"), 5.0);
        assert_eq!(batch.samples("HandlerDuration"), handled);
        assert_eq!(batch.samples("StoreLatency"), requests);
        assert!(batch.sum("StoreLatency") > 0.0);
        let line = &batch.line;
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["messages"], 5);
        assert_eq!(line["service"], FUNCTION_NAME);
        let directive = &line["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(directive["Namespace"], "sqs-once");
        let at = line["timestamp"].as_str().unwrap();
        let at = humantime::parse_rfc3339(at).unwrap();
        let at = at.duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(line["_aws"]["Timestamp"], at.as_millis() as u64);
    }
    // Counters that are 0 and rare are not in the line.
    for absent in ["Conflicts", "Takeovers", "DeadLettered"] {
        assert_eq!(first.line.get(absent), None, "{absent}");
    }
    assert_eq!(second.line.get("ColdStart"), None);
    assert_eq!(first.line["Duplicates"], 0);
}

/// Two consumers under one namespace would acknowledge each other's messages.
#[tokio::test]
async fn duplicates_of_another_queue_are_counted_and_the_first_is_logged() {
    let stage = Stage::set().await;
    let lambda = stage
        .consumer(&[("IDEMPOTENCY_KEY", "body:/orderId")])
        .await;
    let of_queue = |id: &str, queue: &str| {
        let mut record = record(id, &order("o-1"));
        record["eventSourceARN"] = json!(format!("{QUEUE_ARN}-{queue}"));
        record
    };
    for event in [
        batch([of_queue("m-1", "a"), of_queue("m-2", "a")]),
        batch([of_queue("m-3", "b"), of_queue("m-4", "b")]),
        batch([of_queue("m-5", "a"), of_queue("m-6", "b")]),
    ] {
        let response = lambda.invoke(event, TIME).await.response();
        assert_eq!(failed(&response), [""; 0]);
    }
    let counted = batches(&lambda, 3).await;
    let counted: Vec<_> = (counted.iter())
        .map(|batch| batch.line.get("DuplicatesOfOtherQueue").cloned())
        .collect();
    assert_eq!(counted, [None, Some(json!(2)), Some(json!(1))]);
    let errors = lines(&lambda.kill().await.output)
        .into_iter()
        .filter(|line| line["level"] == "ERROR")
        .collect::<Vec<_>>();
    let [error] = &errors[..] else {
        panic!("{errors:?}");
    };
    for (field, queue) in [("queue", "b"), ("other_queue", "a")] {
        let named = error[field].as_str().unwrap();
        assert!(named.ends_with(&format!("-{queue}")), "{error}");
    }
}

#[tokio::test]
async fn copies_are_counted_sent_or_not() {
    let stage = Stage::set().await;
    let lambda = stage
        .consumer(&[("CONSUMER_DIRECT_DEAD_LETTERING", "on")])
        .await;
    for (number, behaviour) in [SqsBehaviour::Willing, SqsBehaviour::Denying]
        .into_iter()
        .enumerate()
    {
        stage.sqs.turn_for("SendMessageBatch", behaviour);
        let event = batch([1, 2].map(|n| {
            let id = format!("{number}-{n}");
            stage.gateway.script(&id, [Reply::Status(402)]);
            received(&id, &order(&id), 1)
        }));
        lambda.invoke(event, TIME).await.response();
    }
    let batches = batches(&lambda, 2).await;
    let counts = |name: &str| [0, 1].map(|batch: usize| batches[batch].line[name].clone());
    assert_eq!(counts("PermanentFailures"), [json!(2), json!(2)]);
    assert_eq!(counts("DeadLettered"), [json!(2), Value::Null]);
    assert_eq!(counts("DeadLettersNotSent"), [Value::Null, json!(2)]);
}

#[tokio::test]
async fn age_of_oldest_message_is_from_its_sending() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    let sent = |message: &str, seconds: i64| {
        let mut record = record(message, &order(message));
        record["attributes"]["SentTimestamp"] = json!((now_ms() - 1000 * seconds).to_string());
        record
    };
    let event = batch([sent("m-1", 5), sent("m-2", 90), sent("m-3", -60)]);
    lambda.invoke(event, TIME).await.response();
    lambda
        .invoke(batch([sent("m-4", -60)]), TIME)
        .await
        .response();
    lambda.invoke(batch([]), TIME).await.response();
    let batches = batches(&lambda, 3).await;
    let age = batches[0].sum("OldestMessageAge");
    assert!((90.0..100.0).contains(&age), "{age}");
    assert_eq!(batches[1].line["OldestMessageAge"], 0.0);
    assert_eq!(batches[2].line.get("OldestMessageAge"), None);
    assert_eq!(batches[2].line["BatchSize"], 0);
}

#[tokio::test]
async fn takeover_of_killed_worker_is_counted() {
    let stage = Stage::set().await;
    stage.gateway.script("o-1", [Reply::Hang]);
    let victim = stage.consumer(&[]).await;
    let first = victim.invoke(
        batch([record("m-1", &order("o-1"))]),
        Duration::from_secs(1),
    );
    let (_, exit) = tokio::join!(first, async {
        stage.gateway.arrived("o-1", 1).await;
        victim.kill().await
    });
    assert_eq!(emf::batches(&lines(&exit.output)).len(), 0);

    stage.lease_ended("m-1").await;
    let lambda = stage.consumer(&[]).await;
    let event = batch([received("m-1", &order("o-1"), 2)]);
    lambda.invoke(event, TIME).await.response();
    let batch = batches(&lambda, 1).await.remove(0);
    assert_eq!(batch.outcomes(), counters(&[("Completed", 1)]));
    assert_eq!(batch.sum("Takeovers"), 1.0);
}

#[tokio::test]
async fn values_beyond_100_are_in_further_lines() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    let messages = (1..=230).map(|n| record(&format!("m-{n}"), &order(&format!("o-{n}"))));
    let response = lambda.invoke(batch(messages), 6 * TIME).await.response();
    assert_eq!(failed(&response), [""; 0]);
    let batch = batches(&lambda, 1).await.remove(0);
    assert_eq!(batch.sum("Completed"), 230.0);
    assert_eq!(batch.samples("HandlerDuration"), 230);
    assert_eq!(batch.samples("StoreLatency"), 460);
    let with_metrics = lambda.logged(5, |line| line.get("_aws").is_some()).await;
    assert_eq!(with_metrics.len(), 5);
    for further in &with_metrics[1..] {
        assert_eq!(further.get("Completed"), None, "{further}");
        assert_eq!(further["level"], "INFO");
        assert!(further["timestamp"].is_string());
    }
}

/// Eight invocations at a time in one process, with messages of each kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_invocations_count_exactly() {
    const INVOCATIONS: usize = 64;
    const MESSAGES: usize = 9;
    let stage = Stage::set().await;
    let settings = [
        ("AWS_LAMBDA_MAX_CONCURRENCY", "8"),
        ("IDEMPOTENCY_KEY", "body:/orderId"),
        // A request for each write, so that requests can be compared with samples.
        ("IDEMPOTENCY_BATCHED_WRITES", "off"),
    ];
    let lambda = stage.consumer(&settings).await;
    let event = |n: usize| {
        batch((0..MESSAGES).map(|m| {
            let (message, number) = (format!("m-{n}-{m}"), n * MESSAGES + m);
            match number % 7 {
                0 => record(&message, "{"),
                1 => {
                    let id = format!("declined-{number}");
                    stage.gateway.script(&id, [Reply::Status(402)]);
                    record(&message, &order(&id))
                }
                2 => {
                    let id = format!("busy-{number}");
                    stage.gateway.script(&id, [Reply::Status(503)]);
                    record(&message, &order(&id))
                }
                // The same orders in all invocations: duplicates and conflicts.
                3 | 4 => record(&message, &order(&format!("shared-{}", number % 40))),
                5 => in_group(record(&message, &order(&format!("o-{number}"))), "group"),
                _ => record(&message, &order(&format!("o-{number}"))),
            }
        }))
    };
    let invocations = (0..INVOCATIONS).map(|n| lambda.invoke(event(n), 6 * TIME));
    let answers = futures_util::future::join_all(invocations).await;
    let reported: usize = answers
        .into_iter()
        .map(|answer| failed(&answer.response()).len())
        .sum();
    assert_eq!(lambda.most_at_once(), 8);

    let batches = batches(&lambda, INVOCATIONS).await;
    let lines = lines(&lambda.output());
    assert_eq!(batches.len(), INVOCATIONS);
    let mut total: BTreeMap<String, usize> = BTreeMap::new();
    for batch in &batches {
        let counted = emf::counted(&lines, &batch.request_id);
        assert_eq!(batch.outcomes(), counted, "{batch:?}");
        assert_eq!(counted.values().sum::<usize>(), MESSAGES);
        for (name, count) in counted {
            *total.entry(name).or_default() += count;
        }
    }
    let sum = |name| batches.iter().map(|batch| batch.sum(name)).sum::<f64>() as usize;
    let samples = |name| batches.iter().map(|b| b.samples(name)).sum::<usize>();
    let acknowledged = total["Completed"] + total["Duplicates"];
    assert_eq!(acknowledged + reported, INVOCATIONS * MESSAGES);
    assert_eq!(sum("BatchSize"), INVOCATIONS * MESSAGES);
    assert_eq!(sum("ColdStart"), 1);
    assert_eq!(samples("HandlerDuration"), stage.gateway.calls().len());
    let requests: usize = stage.dynamo.counts().values().sum();
    // One request reads the table at start.
    assert_eq!(samples("StoreLatency") + 1, requests);
    assert!(total["Duplicates"] > 0, "{total:?}");
}

#[tokio::test]
async fn metrics_off_leaves_line_without_metrics() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[("CONSUMER_METRICS", "off")]).await;
    lambda
        .invoke(batch([record("m-1", &order("o-1"))]), TIME)
        .await
        .response();
    let line = lambda.logged(1, of_batch).await.remove(0);
    assert_eq!(line.get("_aws"), None);
    assert_eq!(line["messages"], 1);
    assert_eq!(line["completion_unrecorded"], 0);
    assert!(line["span"]["requestId"].is_string());
}

#[tokio::test]
async fn log_level_error_keeps_metrics() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[("RUST_LOG", "error")]).await;
    lambda
        .invoke(batch([record("m-1", &order("o-1"))]), TIME)
        .await
        .response();
    let batch = batches(&lambda, 1).await.remove(0);
    assert_eq!(batch.sum("Completed"), 1.0);
}

#[tokio::test]
async fn names_are_those_of_powertools() {
    let powertools = [
        ("POWERTOOLS_METRICS_NAMESPACE", "Shop"),
        ("POWERTOOLS_SERVICE_NAME", "payments"),
    ];
    let stage = Stage::set().await;
    let lambda = stage.consumer(&powertools).await;
    lambda.invoke(batch([]), TIME).await.response();
    let batch = batches(&lambda, 1).await.remove(0);
    let directive = &batch.line["_aws"]["CloudWatchMetrics"][0];
    assert_eq!(directive["Namespace"], "Shop");
    assert_eq!(directive["Dimensions"], json!([["service"]]));
    assert_eq!(batch.line["service"], "payments");
}

/// One message, as an observer saw it.
#[derive(Debug, PartialEq)]
struct Seen {
    message_id: String,
    outcome: &'static str,
    ran: bool,
    key: Option<String>,
}

#[tokio::test]
async fn observer_sees_each_message_once() {
    async fn handle(body: Value, _: Attempt) -> Result<(), Failure> {
        match body["act"].as_str() {
            Some("fail") => Err(Failure::retryable("busy")),
            Some("panic") => panic!("on request"),
            _ => Ok(()),
        }
    }
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let observed = Arc::clone(&seen);
    let once = Once::new(MemoryStore::default());
    let consumer = Consumer::without_aws(once, Namespace::new("test").unwrap(), handler_fn(handle));
    let consumer = consumer.on_outcome(move |message| {
        observed.lock().unwrap().push(Seen {
            message_id: message.message_id.to_owned(),
            outcome: message.outcome.name(),
            ran: message.handler_duration.is_some(),
            key: message.key.map(ToString::to_string),
        });
        assert!(message.duration >= message.handler_duration.unwrap_or_default());
        assert!(!message.dead_lettered);
        panic!("an observer's panic changes nothing");
    });
    let event = batch([
        record("m-1", r#"{"act":"succeed"}"#),
        record("m-2", r#"{"act":"fail"}"#),
        record("m-3", r#"{"act":"panic"}"#),
        record("m-4", "{"),
        record("m-1", r#"{"act":"succeed"}"#),
    ]);
    let event = serde_json::from_value(event).unwrap();
    let deadline = consumer.deadline(sqs_once::protocol::Timestamp::default());
    let response = consumer.process(event, deadline).await.unwrap();
    assert_eq!(response.batch_item_failures.len(), 3);
    let expected = [
        ("m-1", "completed", true),
        ("m-2", "retryable_failure", true),
        ("m-3", "panicked", true),
        // Decoding the body is part of the attempt.
        ("m-4", "invalid", true),
        ("m-1", "duplicate", false),
    ];
    let expected = expected.map(|(message_id, outcome, ran)| Seen {
        message_id: message_id.to_owned(),
        outcome,
        ran,
        key: Some(format!("test#{message_id}")),
    });
    assert_eq!(*seen.lock().unwrap(), expected);
}

/// A line that the check accepts.
fn good_line() -> Value {
    json!({
        "service": "s", "A": 1, "B": [1, 2.5],
        "_aws": {"Timestamp": 1, "CloudWatchMetrics": [{
            "Namespace": "n", "Dimensions": [["service"]],
            "Metrics": [{"Name": "A", "Unit": "Count"}, {"Name": "B"}],
        }]},
    })
}

const DIRECTIVE: &str = "/_aws/CloudWatchMetrics/0";

/// Asserts that the check rejects the good line with `value` at `place`, for `reason`.
#[track_caller]
fn rejected(place: &str, value: &Value, reason: &str) {
    let mut line = good_line();
    *line.pointer_mut(place).unwrap() = value.clone();
    let checked = emf::check(&line);
    let found = checked.as_ref().is_err_and(|error| error.contains(reason));
    assert!(found, "{place} = {value}: {checked:?}");
}

#[test]
fn lines_that_the_specification_allows_pass() {
    let allowed = |place: &str, value: Value| {
        let mut line = good_line();
        *line.pointer_mut(place).unwrap() = value;
        assert_eq!(emf::check(&line), Ok(()), "{line}");
    };
    allowed("/service", json!("s"));
    allowed("/B", json!(vec![0.5; 100]));
    for (place, value) in [
        ("Dimensions", json!([[]])),
        ("Dimensions", json!([["service"], []])),
        ("Metrics", json!([])),
        ("Metrics/0/Unit", json!("Bytes/Second")),
        ("Metrics/1", json!({"Name": "B", "StorageResolution": 1})),
    ] {
        allowed(&format!("{DIRECTIVE}/{place}"), value);
    }
}

#[test]
fn lines_that_break_the_schema_are_rejected() {
    let long = |length| json!("x".repeat(length));
    for (place, value, rule) in [
        ("", json!([]), "type"),
        ("/_aws", json!([]), "type"),
        ("/_aws", json!({"CloudWatchMetrics": []}), "required"),
        ("/_aws", json!({"Timestamp": 1}), "required"),
        ("/_aws/Timestamp", json!("1"), "type"),
        ("/_aws/Timestamp", json!(1.5), "type"),
        ("/_aws/CloudWatchMetrics", json!({}), "type"),
        ("/_aws/CloudWatchMetrics/0", json!("n"), "type"),
    ] {
        rejected(place, &value, rule);
    }
    for (place, value, rule) in [
        ("Namespace", json!(""), "minLength"),
        ("Namespace", long(1025), "maxLength"),
        ("Namespace", json!(1), "type"),
        ("Namespace", json!("two\nlines"), "pattern"),
        ("Dimensions", json!([]), "minItems"),
        ("Dimensions", json!({}), "type"),
        ("Dimensions/0", json!("service"), "type"),
        ("Dimensions/0", json!(vec!["service"; 31]), "maxItems"),
        ("Dimensions/0/0", json!(1), "type"),
        ("Dimensions/0/0", json!("two\nlines"), "pattern"),
        ("Dimensions/0/0", json!(""), "minLength"),
        ("Dimensions/0/0", long(251), "maxLength"),
        ("Metrics", json!({}), "type"),
        ("Metrics/0", json!("A"), "type"),
        ("Metrics/0", json!({"Unit": "Count"}), "required"),
        ("Metrics/0/Name", json!(1), "type"),
        ("Metrics/0/Name", json!("two\nlines"), "pattern"),
        ("Metrics/0/Name", json!(""), "minLength"),
        ("Metrics/0/Name", long(1025), "maxLength"),
        ("Metrics/0/Unit", json!(1), "type"),
        ("Metrics/0/Unit", json!("Counts"), "pattern"),
        ("Metrics/0/Unit", json!("count"), "pattern"),
        (
            "Metrics/0",
            json!({"Name": "A", "StorageResolution": "60"}),
            "type",
        ),
    ] {
        rejected(&format!("{DIRECTIVE}/{place}"), &value, rule);
    }
    for member in ["Namespace", "Dimensions", "Metrics"] {
        let mut line = good_line();
        let directive = line.pointer_mut(DIRECTIVE).unwrap();
        directive.as_object_mut().unwrap().remove(member);
        assert!(emf::check(&line).unwrap_err().contains("required"));
    }
    assert!(emf::check(&json!({"A": 1})).is_err());
}

#[test]
fn lines_that_break_the_text_are_rejected() {
    for (place, value, rule) in [
        ("/A", json!("1"), "has no value"),
        ("/A", json!({"A": 1}), "has no value"),
        ("/B", json!([]), "has no value"),
        ("/B", json!(["1"]), "has no value"),
        ("/B", json!(vec![1; 101]), "has no value, or more than 100"),
        ("/service", json!(1), "dimension"),
        ("/service", json!("x".repeat(1025)), "dimension"),
        ("/B", json!("x".repeat(256 * 1024)), "longer"),
    ] {
        rejected(place, &value, rule);
    }
    let metrics: Vec<_> = (0..101).map(|_| json!({"Name": "A"})).collect();
    for (place, value, rule) in [
        ("Dimensions/0/0", json!("absent"), "dimension"),
        ("Metrics/0/Name", json!("absent"), "has no value"),
        ("Metrics/0/Name", json!("B"), "defined twice"),
        ("Metrics", json!(metrics), "more than 100 metrics"),
        ("Metrics/0", json!({"Name": "A", "Value": 1}), "no member"),
        (
            "Metrics/0",
            json!({"Name": "A", "StorageResolution": 5}),
            "StorageResolution",
        ),
    ] {
        rejected(&format!("{DIRECTIVE}/{place}"), &value, rule);
    }
    for place in ["/_aws", DIRECTIVE] {
        let mut line = good_line();
        let object = line.pointer_mut(place).unwrap().as_object_mut();
        object.unwrap().insert("Unknown".into(), json!(1));
        assert!(emf::check(&line).unwrap_err().contains("no member"));
    }
}
