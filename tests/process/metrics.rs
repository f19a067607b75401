//! Metrics in the batch's log line, written by the release binary.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use support::{
    emf::{self, BatchMetrics},
    event::{QUEUE_ARN, batch, failed, order, received, record},
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
    for absent in ["Conflicts", "DuplicateAge", "Takeovers", "DeadLettered"] {
        assert_eq!(first.line.get(absent), None, "{absent}");
    }
    assert_eq!(second.line.get("ColdStart"), None);
    assert_eq!(first.line["Duplicates"], 0);
    // The order was completed by the batch before.
    let age = second.sum("DuplicateAge");
    assert!((0.0..TIME.as_secs_f64()).contains(&age), "{age}");
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

/// Asserts that the check refuses a line with this value in place of another, for this reason.
#[track_caller]
fn rejected(place: &str, value: Value, reason: &str) {
    let mut line = json!({
        "service": "s", "A": 1, "B": [1, 2.5],
        "_aws": {"Timestamp": 1, "CloudWatchMetrics": [{
            "Namespace": "n", "Dimensions": [["service"]],
            "Metrics": [{"Name": "A", "Unit": "Count"}, {"Name": "B"}],
        }]},
    });
    assert_eq!(emf::check(&line), Ok(()));
    *line.pointer_mut(place).unwrap() = value;
    let checked = emf::check(&line);
    let found = checked.as_ref().is_err_and(|error| error.contains(reason));
    assert!(found, "{place}: {checked:?}");
}

#[test]
fn lines_that_break_the_format_are_rejected() {
    let long = |length| json!("x".repeat(length));
    let metrics: Vec<_> = (0..101).map(|_| json!({"Name": "A"})).collect();
    for (place, value, reason) in [
        (
            "/_aws",
            json!({"CloudWatchMetrics": []}),
            "missing field `Timestamp`",
        ),
        (
            "/_aws",
            json!({"Timestamp": 1, "CloudWatchMetrics": [], "a": 1}),
            "unknown field",
        ),
        ("/_aws/Timestamp", json!(1.5), "invalid type"),
        (
            "/_aws/CloudWatchMetrics/0",
            json!({"Namespace": "n"}),
            "missing field",
        ),
        ("/A", json!("1"), "has no value"),
        ("/B", json!([]), "has no value"),
        ("/B", json!(vec![1; 101]), "has no value, or more than 100"),
        ("/B", long(256 * 1024), "longer"),
        ("/service", json!(1), "dimension"),
        ("/service", long(1025), "dimension"),
    ] {
        rejected(place, value, reason);
    }
    for (place, value, reason) in [
        ("Namespace", json!(""), "namespace"),
        ("Namespace", long(1025), "namespace"),
        ("Namespace", json!("two\nlines"), "namespace"),
        ("Dimensions", json!([]), "dimensions"),
        ("Dimensions/0", json!(vec!["service"; 31]), "dimensions"),
        ("Dimensions/0/0", long(251), "dimension"),
        ("Dimensions/0/0", json!("absent"), "dimension"),
        ("Metrics", json!(metrics), "more than 100 metrics"),
        ("Metrics/0/Name", long(1025), "metric"),
        ("Metrics/0/Name", json!("absent"), "has no value"),
        ("Metrics/0/Name", json!("B"), "defined twice"),
        ("Metrics/0/Unit", json!("Counts"), "unit"),
        (
            "Metrics/0",
            json!({"Name": "A", "Value": 1}),
            "unknown field",
        ),
        (
            "Metrics/0",
            json!({"Name": "A", "StorageResolution": 5}),
            "StorageResolution",
        ),
    ] {
        rejected(&format!("/_aws/CloudWatchMetrics/0/{place}"), value, reason);
    }
}
