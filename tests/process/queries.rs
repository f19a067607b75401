//! The queries of docs/runbook.md for CloudWatch Logs Insights: the lines of the release binary have their fields and
//! values. The sample lines of docs/telemetry.md are compared with them too.

use std::{collections::BTreeSet, time::Duration};

use regex_lite::Regex;
use serde_json::{Value, json};
use support::{
    dynamo::record_of_another,
    emf::documented_outcomes,
    event::{batch, order, received, record},
    faults::Fault,
    gateway::Reply,
    runtime_api::{Lambda, of_batch},
    stage::{Stage, TABLE, TIME, now_ms},
};
use tokio::sync::OnceCell;

const PAGE: &str = include_str!("../../docs/runbook.md");
const LOGS: &str = include_str!("../../docs/telemetry.md");
/// Fields that CloudWatch adds to each line.
const OF_INSIGHTS: [&str; 3] = ["@timestamp", "@message", "@requestId"];
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
    let item = record_of_another(&format!("payments#{key}"), &members);
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
    let crashed = json!({"lease_until": 1, "first_claimed_at": now_ms() - 60_000});
    put(&stage, "crashed", crashed).await;
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
    (0..2).for_each(|_| stage.dynamo.fail("Claim", Fault::Denied));
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

    let lambda = stage.obedient(&[]).await;
    lambda
        .invoke(batch([record("m-panic", r#"{"panic":true}"#)]), TIME)
        .await
        .response();
    lines.extend(output(lambda, 1).await);
    lines.extend(OF_LAMBDA.map(|line| serde_json::from_str(line).unwrap()));
    lines
}

/// Words of the query language that are not fields (Amazon CloudWatch Logs User Guide, "CloudWatch Logs Insights
/// language query syntax").
const WORDS: [&str; 24] = [
    "and",
    "as",
    "asc",
    "avg",
    "bin",
    "by",
    "count",
    "count_distinct",
    "desc",
    "display",
    "fields",
    "filter",
    "in",
    "ispresent",
    "like",
    "limit",
    "max",
    "min",
    "not",
    "or",
    "pct",
    "sort",
    "stats",
    "sum",
];

/// The member at a path such as `span.requestId`.
fn field<'a>(line: &'a Value, path: &str) -> Option<&'a Value> {
    let member = path
        .split('.')
        .try_fold(line, |value, name| value.get(name));
    member.filter(|value| !value.is_null())
}

/// Returns whether a text of a line, at any depth, matches.
fn has_text(line: &Value, matches: &impl Fn(&str) -> bool) -> bool {
    match line {
        Value::String(text) => matches(text),
        Value::Array(items) => items.iter().any(|item| has_text(item, matches)),
        Value::Object(members) => members.values().any(|member| has_text(member, matches)),
        _ => false,
    }
}

/// A query with another name for a field, or another word for an outcome, would find nothing.
#[tokio::test]
async fn queries_name_fields_and_values_of_real_lines() {
    let lines = lines().await;
    let token = Regex::new(r#""([^"]*)"|/([^/]*)/|as (\w+)|[0-9]\w*|@?[A-Za-z_][\w.]*"#).unwrap();
    let outcomes = documented_outcomes();
    for (heading, query) in queries() {
        let tokens: Vec<_> = token.captures_iter(query).collect();
        let group = |n: usize| tokens.iter().filter_map(move |token| token.get(n));
        for text in group(1).map(|text| text.as_str()) {
            let seen = lines
                .iter()
                .any(|line| has_text(line, &|seen| seen == text));
            let is_known = seen || outcomes.contains_key(text);
            assert!(is_known, "{heading}: no line has the value {text}");
        }
        for pattern in group(2) {
            let regex = Regex::new(pattern.as_str()).unwrap();
            let seen = lines
                .iter()
                .any(|line| has_text(line, &|seen| regex.is_match(seen)));
            assert!(seen, "{heading}: no line matches {}", regex.as_str());
        }
        let aliases: BTreeSet<_> = group(3).map(|alias| alias.as_str()).collect();
        let names = tokens
            .iter()
            .filter(|token| token.iter().skip(1).all(|group| group.is_none()));
        for name in names.map(|token| token.get(0).unwrap().as_str()) {
            let is_known = WORDS.contains(&name)
                || name.starts_with(|first: char| first.is_ascii_digit())
                || aliases.contains(name)
                || OF_INSIGHTS.contains(&name)
                || lines.iter().any(|line| field(line, name).is_some());
            assert!(is_known, "{heading}: no line has the field {name}");
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
