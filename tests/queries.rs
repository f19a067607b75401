//! The queries of docs/runbook.md for CloudWatch Logs Insights: each is parsed, and its filters are
//! applied to the lines of the release binary. The sample lines of docs/logs.md are compared with them.

#![allow(
    clippy::unwrap_used,
    reason = "in a test, what cannot be set up is a failure"
)]

#[path = "queries/insights.rs"]
mod insights;

use std::{collections::BTreeSet, time::Duration};

use insights::{Query, field};
use serde_json::{Value, json};
use support::{
    event::{batch, order, received, record},
    faults::Fault,
    gateway::Reply,
    runtime_api::{Lambda, consumer_missing, of_batch, program},
    stage::{Stage, TABLE, TIME, now_ms},
};
use tokio::sync::OnceCell;

const PAGE: &str = include_str!("../docs/runbook.md");
const LOGS: &str = include_str!("../docs/logs.md");
/// Lines of Lambda itself, in the form of AWS's documentation of JSON logs.
const OF_LAMBDA: [&str; 2] = [
    r#"{"time":"2026-11-21T10:50:00.000Z","type":"platform.report","record":{"requestId":"r-1","metrics":{"durationMs":30000.0,"billedDurationMs":30000,"memorySizeMB":256,"maxMemoryUsedMB":40},"status":"timeout"}}"#,
    r#"{"time":"2026-11-21T10:50:00.000Z","type":"platform.report","record":{"requestId":"r-2","metrics":{"durationMs":13.6,"billedDurationMs":14,"memorySizeMB":256,"maxMemoryUsedMB":40},"status":"success"}}"#,
];

/// The queries of the page, with their headings.
fn queries() -> Vec<(&'static str, &'static str)> {
    let sections = PAGE.split("\n### ").skip(1);
    let query = |section: &'static str| {
        let (heading, rest) = section.split_once('\n')?;
        let (_, query) = rest.split_once("```insights\n")?;
        Some((heading, query.split_once("```")?.0))
    };
    let queries: Vec<_> = sections.filter_map(query).collect();
    assert_eq!(queries.len(), PAGE.matches("```insights").count());
    queries
}

/// A record that another worker wrote.
async fn put(stage: &Stage, key: &str, members: Value) {
    let mut record = json!({
        "id": format!("payments#{key}"),
        "owner": "another",
        "status": "IN_PROGRESS",
        "lease_until": 4_000_000_000_000_u64,
        "expires_at": 4_000_000_000_u64,
    });
    for (name, value) in members.as_object().unwrap() {
        record[name] = value.clone();
    }
    let item = serde_dynamo::to_item(record).unwrap();
    stage.dynamo.put(TABLE, item).await;
}

/// Invokes without killing the process at the deadline: on a busy machine, its answer may arrive after it.
async fn within(seconds: u64, lambda: &Lambda, event: Value) {
    let time = Duration::from_secs(seconds);
    let deadline_ms = now_ms() as u64 + time.as_millis() as u64;
    lambda.invoke_until(event, deadline_ms, time + TIME).await;
}

/// All that the lambda wrote in these batches.
async fn output(lambda: Lambda, batches: usize) -> Vec<Value> {
    lambda.logged(batches, of_batch).await;
    let lines = lambda.kill().await.output;
    let lines = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Lines of the release binary for all outcomes that it has, and of Lambda. One run serves all tests.
async fn lines() -> &'static [Value] {
    static LINES: OnceCell<Vec<Value>> = OnceCell::const_new();
    LINES.get_or_init(run).await
}

async fn run() -> Vec<Value> {
    let settings = [
        ("IDEMPOTENCY_NAMESPACE", "payments"),
        ("IDEMPOTENCY_KEY", "body:/orderId"),
        ("CONSUMER_CONCURRENCY", "2"),
    ];
    let stage = Stage::set().await;
    let lambda = stage.consumer(&settings).await;
    stage.gateway.script("busy", [Reply::Status(503)]);
    stage.gateway.script("declined", [Reply::Status(402)]);
    let mut dearer = order("o-1");
    dearer["amount"] = json!(149);
    put(&stage, "held", json!({})).await;
    let other = json!({"lease_until": 1, "fingerprint": "00", "first_claimed_at": 1});
    put(&stage, "two-payloads", other).await;
    put(&stage, "crashed", json!({"lease_until": 1})).await;
    for n in 1..=2 {
        let again = if n == 1 { "059f36b4" } else { "m-again" };
        let event = batch([
            received(again, &order("o-1"), 1),
            received("m-busy", &order("busy"), n),
            received("m-declined", &order("declined"), n),
            received("m-malformed", "{", n),
        ]);
        lambda.invoke(event, TIME).await.response();
    }
    let event = batch([
        record("m-dearer", &dearer),
        record("m-held", &order("held")),
        record("m-two-payloads", &order("two-payloads")),
        record("m-crashed", &order("crashed")),
    ]);
    lambda.invoke(event, TIME).await.response();

    // The gateway answers two messages too late, so that the third has no time left.
    let slow = ["slow-1", "slow-2", "late"];
    for id in &slow[..2] {
        stage.gateway.script(id, [Reply::Hang]);
    }
    let event = batch(slow.map(|id| record(&format!("m-{id}"), &order(id))));
    within(2, &lambda, event).await;
    // Another worker completes the operation meanwhile.
    stage.gateway.script("lost", [Reply::Hang]);
    let lost = batch([record("m-lost", &order("lost"))]);
    tokio::join!(lambda.invoke(lost, TIME), async {
        stage.gateway.arrived("lost", 1).await;
        put(
            &stage,
            "lost",
            json!({"status": "COMPLETED", "result": "1"}),
        )
        .await;
        stage.gateway.release();
    });
    // Claims pass, settlements do not.
    stage.gateway.script("u-2", [Reply::Status(402)]);
    for settlement in ["UpdateItem", "SettlementGroup"] {
        stage.dynamo.fail_all(settlement, Fault::ThrottleLate);
    }
    let event = batch(["u-1", "u-2"].map(|id| record(&format!("m-{id}"), &order(id))));
    within(4, &lambda, event).await;
    stage.dynamo.heal().await;
    stage.dynamo.fail("Claim", Fault::Denied);
    lambda
        .invoke(batch([record("m-denied", &order("denied"))]), TIME)
        .await;
    let mut lines = output(lambda, 7).await;

    stage.gateway.close().await;
    let lambda = stage.consumer(&settings).await;
    lambda
        .invoke(batch([record("m-refused", &order("refused"))]), TIME)
        .await
        .response();
    lines.extend(output(lambda, 1).await);

    let lambda = Lambda::start_binary(&program("panicking"), stage.env(&[])).await;
    lambda
        .invoke(batch([record("m-panic", r#"{"panic":true}"#)]), TIME)
        .await
        .response();
    lines.extend(output(lambda, 1).await);
    lines.extend(OF_LAMBDA.map(|line| serde_json::from_str(line).unwrap()));
    lines
}

/// Outcomes that an operator should look at.
const TROUBLE: [&str; 13] = [
    "completion_unrecorded",
    "failed_before",
    "failure_unrecorded",
    "invalid",
    "key_reused",
    "lease_lost",
    "no_effect",
    "out_of_time",
    "panicked",
    "permanent_failure",
    "retryable_failure",
    "store_unavailable",
    "conflict",
];

/// Returns whether the query under a heading is meant for a line.
fn meant(heading: &str, line: &Value) -> bool {
    let text = |name: &str| line[name].as_str().unwrap_or_default();
    let (outcome, level, message) = (text("outcome"), text("level"), text("message"));
    match heading {
        "Count of outcomes" | "Times" => !outcome.is_empty(),
        "Failures by reason" => {
            let is_known = ["conflict", "failed_before"].contains(&outcome) && level == "INFO";
            TROUBLE.contains(&outcome) && !is_known
        }
        "One message" => text("message_id") == "059f36b4",
        "One key" => text("key") == "payments#o-1",
        "Effects that may be repeated" => {
            ["completion_unrecorded", "lease_lost"].contains(&outcome)
        }
        "Trouble with the table" => {
            outcome.ends_with("_unrecorded") || outcome.starts_with("store")
        }
        "Two payloads" => text("message_id") == "m-two-payloads" && !outcome.is_empty(),
        "Attempts after a crash" => outcome.is_empty() && text("key") == "payments#crashed",
        "Messages cut off" => message.contains("did not finish"),
        "Batches" => line["failed"].is_u64(),
        "Warnings of the consumer" => {
            ["WARN", "ERROR"].contains(&level)
                && outcome.is_empty()
                && text("key") != "payments#crashed"
        }
        "Crashed invocations" => line["record"]["requestId"] == "r-1",
        other => panic!("no lines are named for the query `{other}`"),
    }
}

#[tokio::test]
async fn queries_match_the_lines_they_are_meant_for() {
    if consumer_missing() {
        return;
    }
    let lines = lines().await;
    let outcomes: BTreeSet<_> = lines
        .iter()
        .filter_map(|line| line["outcome"].as_str())
        .collect();
    for outcome in TROUBLE {
        assert!(outcomes.contains(outcome), "no line with {outcome}");
    }
    for (heading, text) in queries() {
        let query = Query::parse(text).unwrap_or_else(|problem| panic!("{heading}: {problem}"));
        let mut matched = 0;
        for line in lines {
            let matches = query.matches(line);
            let matches = matches.unwrap_or_else(|problem| panic!("{heading}: {problem}"));
            assert_eq!(matches, meant(heading, line), "{heading}: {line}");
            matched += usize::from(matches);
        }
        assert!(matched > 0, "{heading}: no line");
        for name in query.fields {
            let present = lines.iter().any(|line| field(line, &name).is_some());
            assert!(present, "{heading}: no line has the field {name}");
        }
    }
}

/// The members of a line with the type of each, those of members included.
fn shape(line: &Value) -> Value {
    match line {
        Value::Object(members) => (members.iter())
            .map(|(name, value)| (name.clone(), shape(value)))
            .collect(),
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        Value::String(_) => json!("text"),
        Value::Number(_) => json!(0),
        other => other.clone(),
    }
}

/// The parts of a line that are the same in each run.
fn fixed(line: &Value) -> [&Value; 4] {
    ["level", "outcome", "target", "message"].map(|name| &line[name])
}

#[tokio::test]
async fn samples_of_docs_are_real_lines() {
    if consumer_missing() {
        return;
    }
    let samples = LOGS.lines().filter(|line| line.starts_with('{'));
    let samples: Vec<Value> = samples
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(samples.len() > 3);
    let lines = lines().await;
    for sample in samples {
        let same = |line: &&Value| fixed(line) == fixed(&sample) && shape(line) == shape(&sample);
        let of_message = |line: &&Value| line["message"] == sample["message"];
        assert!(
            lines.iter().any(|line| same(&line)),
            "{sample}\nis like none of {:#?}",
            lines.iter().filter(of_message).collect::<Vec<_>>()
        );
    }
}

#[test]
fn wrong_queries_are_refused() {
    for (query, problem) in [
        ("select outcome", "unknown command select"),
        (
            "filter outcome = \"completed\" | top 5",
            "unknown command top",
        ),
        ("filter exists(outcome)", "unknown function exists"),
        ("stats median(duration_ms)", "unknown function median"),
        ("stats pct(duration_ms) by bin(5m)", "expected `,`"),
        ("stats count(*) by bin(5 minutes)", "expected a name"),
        ("stats count(*) by bin(5x)", "unknown period 5x"),
        ("fields @requestID", "unknown field @requestID"),
        ("filter outcome == \"completed\"", "expected a value"),
        ("filter outcome in (\"completed\")", "expected `[`"),
        ("filter outcome = completed", "expected a value"),
        ("filter outcome like /(/", "open group"),
        ("filter outcome = \"completed\" limit 5", "unexpected"),
        ("limit all", "expected a number"),
        ("filter outcome = \"a\" |", "ends too early"),
        ("filter outcome = 'a'", "unknown character"),
    ] {
        let refused = Query::parse(query).unwrap_err();
        assert!(refused.contains(problem), "{query}: {refused}");
    }
}

#[test]
fn filters_follow_the_rules_of_insights() {
    let line = json!({"level": "WARN", "ms": 12.5, "span": {"id": "r-1"}, "key": "a#b"});
    for (filter, expected) in [
        ("level = \"WARN\"", true),
        ("level = \"INFO\" or ms > 12", true),
        ("level = \"INFO\" and ms > 12 or ms < 13", true),
        ("level = \"INFO\" and (ms > 12 or ms < 13)", false),
        ("level in [\"INFO\", \"WARN\"] and not ms >= 13", true),
        ("level not in [\"INFO\", \"WARN\"]", false),
        ("span.id like /^r-[0-9]$/", true),
        ("key like \"a#\" and key not like \"a.b\"", true),
        ("ispresent(span.id) and not ispresent(outcome)", true),
        ("outcome = \"completed\"", false),
    ] {
        let query = Query::parse(&format!("filter {filter}")).unwrap();
        assert_eq!(query.matches(&line), Ok(expected), "{filter}");
    }
    let missing = Query::parse("filter outcome != \"completed\"").unwrap();
    assert!(
        missing
            .matches(&line)
            .unwrap_err()
            .contains("without outcome")
    );
}
