//! `sqs-once record`.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use axum::{Json, Router, routing::get};
use serde_json::{Value, json};
use sqs_once::{
    protocol::{Fingerprint, Key, Timestamp},
    store::DynamoStore,
};
use support::dynamo::{Dynamo, Item, number, text};

use crate::{Ended, run, tool};

pub(crate) const TABLE: &str = "records";
pub(crate) const KEY: &str = "payments#order-1";
pub(crate) const SECRET: &str = "4111-1111-1111-1111";

pub(crate) struct World {
    pub(crate) dynamo: Dynamo,
}

impl World {
    pub(crate) async fn new() -> Self {
        let dynamo = Dynamo::start().await;
        dynamo.create_table(TABLE).await;
        Self { dynamo }
    }

    pub(crate) async fn put(&self, key: &str, status: &str, more: &[(&str, AttributeValue)]) {
        self.dynamo.put(TABLE, item(key, status, more)).await;
    }

    async fn record(&self, arguments: &[&str]) -> Ended {
        let all = [&["record"], arguments, &["--table", TABLE]].concat();
        run(self.dynamo.endpoint(), &all).await
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--output", "json"]].concat();
        self.record(&arguments).await.json_of_success()
    }

    fn store(&self) -> DynamoStore {
        DynamoStore::new(self.dynamo.client(), TABLE)
    }
}

pub(crate) fn n(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub(crate) fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(crate) fn after(span: u64) -> AttributeValue {
    n((Timestamp::now() + Duration::from_secs(span)).as_millis())
}

pub(crate) fn before(span: u64) -> AttributeValue {
    n(Timestamp::now().as_millis() - span * 1000)
}

pub(crate) fn item(key: &str, status: &str, more: &[(&str, AttributeValue)]) -> Item {
    let mut item = Item::from([
        ("id".to_owned(), s(key)),
        ("status".to_owned(), s(status)),
        ("owner".to_owned(), s("owner-1")),
        ("version".to_owned(), n(3)),
        ("message_id".to_owned(), s("message-1")),
        ("attempts".to_owned(), n(2)),
        (
            "expires_at".to_owned(),
            n(Timestamp::now().as_secs() + 86_400),
        ),
        ("updated_at".to_owned(), before(30)),
    ]);
    item.extend(
        more.iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone())),
    );
    item
}

/// A recorded failure, at this time.
pub(crate) fn failures(at: u64) -> (&'static str, AttributeValue) {
    let failure = json!([{"at": at, "error": "declined", "message_id": "m-1"}]);
    ("failures", s(&failure.to_string()))
}

#[tokio::test]
async fn show_explains_lease_history_and_next_message() {
    let world = World::new().await;
    let lease = [
        ("lease_until", before(125)),
        ("first_claimed_at", before(155)),
        ("last_end", s("panic")),
    ];
    world.put(KEY, "IN_PROGRESS", &lease).await;
    let shown = world.record(&["show", KEY]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    for wanted in [
        "\"status\": \"IN_PROGRESS\"",
        "\"owner\": \"owner-1\"",
        "\"last_end\": \"panic\"",
        "The next message: the handler runs; an earlier attempt",
    ] {
        assert!(shown.stdout.contains(wanted), "{wanted}: {}", shown.stdout);
    }
    let shown = world.json(&["show", KEY]).await;
    assert_eq!(shown["next_message"], "runs_with_prior_attempt");
    assert_eq!(
        (&shown["attempts"], &shown["lease_left_s"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(shown["open_attempt"], true);

    world
        .put(KEY, "IN_PROGRESS", &[("lease_until", after(600))])
        .await;
    let shown = world.json(&["show", KEY]).await;
    assert_eq!(shown["next_message"], "waits");
    let left = shown["lease_left_s"].as_u64().unwrap();
    assert!((540..=600).contains(&left), "{left}");
}

/// Gateways forget keys after a day, or sooner.
#[tokio::test]
async fn show_knows_what_is_too_old_to_repeat() {
    let world = World::new().await;
    let open = [
        ("lease_until", before(2800)),
        ("first_claimed_at", before(2800)),
        ("last_end", s("deadline")),
    ];
    world.put(KEY, "IN_PROGRESS", &open).await;
    let shown = world.record(&["show", KEY]).await;
    for wanted in [
        "the handler runs; an earlier attempt",
        "the defaults; --function reads those of a function: CONSUMER_CALL_KEY_LIFETIME 20h",
    ] {
        assert!(shown.stdout.contains(wanted), "{wanted}: {}", shown.stdout);
    }
    let shown = world.json(&["show", KEY]).await;
    assert_eq!(shown["next_message"], "runs_with_prior_attempt");

    let configuration = json!({
        "FunctionName": "charge-cards",
        "Timeout": 900,
        "Environment": {"Variables": {"CONSUMER_CALL_KEY_LIFETIME": "1h"}},
    });
    let lambda = Router::new().route(
        "/2015-03-31/functions/charge-cards/configuration",
        get(async move || Json(configuration)),
    );
    let lambda = format!("http://{}", support::serve(lambda).await);
    let show = async |format| {
        let arguments = [
            "record",
            "show",
            KEY,
            "--table",
            TABLE,
            "--function",
            "charge-cards",
            "--output",
            format,
        ];
        let mut command = tool(world.dynamo.endpoint(), &arguments);
        command.env("AWS_ENDPOINT_URL_LAMBDA", &lambda);
        Ended::of(command.output().await.unwrap())
    };
    let shown = show("json").await.json_of_success();
    assert_eq!(shown["next_message"], "too_old");
    let settings = "those of function charge-cards: CONSUMER_CALL_KEY_LIFETIME 1h, CONSUMER_CRASH_ISOLATION on";
    assert_eq!(shown["settings"], settings);
    let shown = show("text").await;
    for wanted in ["too old to repeat", settings] {
        assert!(shown.stdout.contains(wanted), "{wanted}: {}", shown.stdout);
    }
}

#[tokio::test]
async fn show_explains_failure_and_who_still_gets_it() {
    let world = World::new().await;
    let at = Timestamp::now().as_millis() - 125_000;
    let failed = [failures(at), ("generation", n(2)), ("source", s("orders"))];
    world.put(KEY, "FAILED", &failed).await;
    let call_key = Key::from_stored(KEY).call_key(2);
    let shown = world.record(&["show", KEY]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    for wanted in [
        "\"error\": \"declined\"",
        "the handler runs; one with a payload that failed, sent before that, finds the stored error",
    ] {
        assert!(shown.stdout.contains(wanted), "{wanted}: {}", shown.stdout);
    }
    let shown = world.json(&["show", KEY]).await;
    let at = Timestamp::from_millis(at).to_string();
    let failure = json!([{"failed_at": at, "message_id": "m-1", "error": "declined"}]);
    for (name, wanted) in [
        ("version", json!(3)),
        ("source", json!("orders")),
        ("failures", failure),
        ("generation", json!(2)),
        ("call_key", json!(call_key)),
        ("next_message", json!("runs")),
    ] {
        assert_eq!(shown[name], wanted, "{name}");
    }
}

/// docs/settings.md says so of the consumer, which has the same client. Nothing listens at the proxy.
#[tokio::test]
async fn sdk_connects_past_a_proxy() {
    let world = World::new().await;
    world.put(KEY, "FAILED", &[]).await;
    let arguments = ["record", "show", KEY, "--table", TABLE];
    let mut command = tool(world.dynamo.endpoint(), &arguments);
    command
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("http_proxy", "http://127.0.0.1:1");
    let ended = Ended::of(command.output().await.unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[tokio::test]
async fn unreadable_record_is_shown_and_not_released() {
    let world = World::new().await;
    world.put(KEY, "DONE", &[]).await;
    let shown = world.record(&["show", KEY]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    let raw = r#""status": "DONE""#;
    assert!(shown.stdout.contains(raw), "{}", shown.stdout);
    let shown = world.json(&["show", KEY]).await;
    assert!(shown["unreadable"].as_str().unwrap().contains("`status`"));
    assert_eq!(shown["raw"]["status"], "DONE");
    let released = world.record(&["release", KEY, "--yes"]).await;
    assert_eq!(released.code, 1, "{released:?}");
    assert!(released.stderr.contains("no valid record"), "{released:?}");
    let deleted = world.record(&["delete", KEY, "--yes"]).await;
    assert_eq!(deleted.code, 0, "{deleted:?}");
}

#[tokio::test]
async fn result_is_shown_only_if_asked_for() {
    let world = World::new().await;
    let result = json!({ "card": SECRET }).to_string();
    world.put(KEY, "COMPLETED", &[("result", s(&result))]).await;
    for format in ["text", "json"] {
        let shown = world.record(&["show", KEY, "--output", format]).await;
        assert!(!shown.stdout.contains(SECRET), "{}", shown.stdout);
        assert!(
            shown.stdout.contains(&result.len().to_string()),
            "{}",
            shown.stdout
        );
        let shown = world
            .record(&["show", KEY, "--result", "--output", format])
            .await;
        assert!(shown.stdout.contains(SECRET), "{}", shown.stdout);
    }
}

#[tokio::test]
async fn result_in_s3_is_shown_with_its_place() {
    let world = World::new().await;
    let pointer =
        json!({"bucket": "outputs", "key": "results/k/o/d", "sha256": "d0", "bytes": 70_000});
    let pointer = s(&pointer.to_string());
    world
        .put(KEY, "COMPLETED", &[("result_in_s3", pointer)])
        .await;
    let shown = world.json(&["show", KEY]).await;
    assert_eq!(shown["result_bytes"], 70_000);
    assert_eq!(shown["result_in_s3"], "s3://outputs/results/k/o/d");
    assert_eq!(shown["result_sha256"], "d0");
}

#[tokio::test]
async fn absent_record_ends_with_1_and_no_table_with_3() {
    let world = World::new().await;
    for command in ["show", "release", "delete"] {
        let yes: &[&str] = if command == "show" { &[] } else { &["--yes"] };
        let ended = world.record(&[&[command, "absent"], yes].concat()).await;
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(
            ended.stderr.contains("no record under the key `absent`"),
            "{ended:?}"
        );
    }
    let arguments = ["record", "show", KEY, "--table", "other"];
    let ended = run(world.dynamo.endpoint(), &arguments).await;
    assert_eq!(ended.code, 3, "{ended:?}");
    assert!(ended.stderr.contains("check the table name"), "{ended:?}");
}

#[tokio::test]
async fn release_ends_lease_and_keeps_record() {
    let world = World::new().await;
    let after_a_death_alone = [("lease_until", after(600)), ("exclusive_attempts", n(1))];
    world.put(KEY, "IN_PROGRESS", &after_a_death_alone).await;
    let unasked = world.record(&["release", KEY]).await;
    assert_eq!(unasked.code, 2, "{unasked:?}");
    assert!(unasked.stderr.contains("pass --yes"), "{unasked:?}");
    let unchanged = world.dynamo.record(TABLE, KEY).await.unwrap();
    assert!(
        number(&unchanged, "lease_until") > i64::try_from(Timestamp::now().as_millis()).unwrap()
    );

    let released = world.json(&["release", KEY, "--yes"]).await;
    assert_eq!(released, json!({"key": KEY, "done": "released"}));
    let record = world.dynamo.record(TABLE, KEY).await.unwrap();
    assert!(number(&record, "lease_until") <= i64::try_from(Timestamp::now().as_millis()).unwrap());
    assert_eq!(
        (text(&record, "owner"), number(&record, "attempts")),
        ("owner-1", 2)
    );
    let kept = ["version", "exclusive_attempts"].map(|name| number(&record, name));
    assert_eq!(kept, [3, 1]);

    let again = world.record(&["release", KEY, "--yes"]).await;
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.stderr.contains("the lease ended"), "{again:?}");
    world.put(KEY, "COMPLETED", &[]).await;
    let completed = world.record(&["release", KEY, "--yes"]).await;
    assert_eq!(completed.code, 1, "{completed:?}");
    assert!(completed.stderr.contains("has no lease"), "{completed:?}");
}

#[tokio::test]
async fn decline_closes_the_open_attempt() {
    let world = World::new().await;
    let open = [
        ("lease_until", before(125)),
        ("first_claimed_at", before(155)),
        ("exclusive_attempts", n(2)),
        ("fingerprint", s("00:body")),
        ("open_other", n(1)),
    ];
    world.put(KEY, "IN_PROGRESS", &open).await;
    let unasked = world.record(&["decline", KEY]).await;
    assert_eq!(unasked.code, 2, "{unasked:?}");
    let declined = world.json(&["decline", KEY, "--yes"]).await;
    assert_eq!(declined, json!({"key": KEY, "done": "declined"}));
    let shown = world.json(&["show", KEY]).await;
    for (name, wanted) in [
        ("open_attempt", json!(false)),
        ("open_other", json!(false)),
        ("last_end", json!("no_effect")),
        ("exclusive_attempts", json!(0)),
        ("generation", json!(1)),
        ("version", json!(4)),
        ("next_message", json!("runs")),
    ] {
        assert_eq!(shown[name], wanted, "{name}");
    }
    assert_ne!(shown["owner"], "owner-1");
    let left = world.dynamo.record(TABLE, KEY).await.unwrap();
    assert!(!left.contains_key("fingerprint"), "{left:?}");

    for (status, more, why) in [
        (
            "IN_PROGRESS",
            Some(("lease_until", after(600))),
            "holds the lease",
        ),
        ("COMPLETED", None, "is completed"),
    ] {
        let more: Vec<_> = more.into_iter().collect();
        world.put(KEY, status, &more).await;
        let refused = world.record(&["decline", KEY, "--yes"]).await;
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}

#[tokio::test]
async fn delete_removes_the_record() {
    let world = World::new().await;
    let declined = [failures(1), ("generation", n(1))];
    world.put(KEY, "FAILED", &declined).await;
    let unasked = world.record(&["delete", KEY]).await;
    assert_eq!(unasked.code, 2, "{unasked:?}");
    let call_key = Key::from_stored(KEY).call_key(1);
    for wanted in [
        "\"error\": \"declined\"",
        &format!("under the call key {call_key}"),
    ] {
        assert!(unasked.stderr.contains(wanted), "{unasked:?}");
    }
    assert!(world.dynamo.record(TABLE, KEY).await.is_some());
    let deleted = world.json(&["delete", KEY, "--yes"]).await;
    assert_eq!(deleted, json!({"key": KEY, "done": "deleted"}));
    assert!(world.dynamo.record(TABLE, KEY).await.is_none());
}

#[tokio::test]
async fn changed_record_is_neither_released_nor_deleted() {
    let world = World::new().await;
    let store = world.store();
    let found = item(KEY, "IN_PROGRESS", &[("lease_until", after(600))]);
    for (attribute, value) in [("owner", s("owner-2")), ("version", n(4))] {
        let mut change = found.clone();
        change.insert(attribute.to_owned(), value);
        world.dynamo.put(TABLE, found.clone()).await;
        let shown = store.show(KEY).await.unwrap().unwrap();
        world.dynamo.put(TABLE, change.clone()).await;
        assert!(
            !store
                .replace(
                    &shown,
                    shown.record.clone().unwrap().released(Timestamp::now())
                )
                .await
                .unwrap(),
            "{attribute}"
        );
        assert!(!store.delete_record(&shown).await.unwrap(), "{attribute}");
        assert_eq!(world.dynamo.record(TABLE, KEY).await, Some(change));
    }
}

#[tokio::test]
async fn renamed_attributes_and_sort_key_are_read() {
    let dynamo = Dynamo::start().await;
    dynamo.create_table_keyed(TABLE, &["pk", "sk"]).await;
    // The table has a hash of it, which gives no call key.
    let long = "l#".repeat(600);
    let hashed = format!("\\sha256:{}", Fingerprint::of(long.as_bytes()));
    for (partition, key, status) in [
        ("shared", &*hashed, "FAILED"),
        ("shared", "a#1", "COMPLETED"),
        ("shared", "b#3", "FAILED"),
        ("other", "b#3", "FAILED"),
    ] {
        let keys = [("pk", s(partition)), ("sk", s(key)), ("generation", n(1))];
        let mut item = item(key, status, &keys);
        item.remove("id");
        dynamo.put(TABLE, item).await;
    }
    let layout = ["--attributes", "id=pk", "--sort-key", "sk=shared"];
    for (key, status) in [("a#1", "COMPLETED"), ("b#3", "FAILED"), (&long, "FAILED")] {
        let show = ["record", "show", key, "--table", TABLE, "--output", "json"];
        let shown = run(dynamo.endpoint(), &[&show, &layout[..]].concat()).await;
        assert_eq!(shown.json()["status"], status);
        assert_eq!(shown.json()["call_key"].is_null(), key == long, "{key}");
    }
    for key in ["b#3", &long] {
        let delete = ["record", "delete", key, "--table", TABLE, "--yes"];
        let deleted = run(dynamo.endpoint(), &[&delete, &layout[..]].concat()).await;
        assert_eq!(deleted.code, 0, "{deleted:?}");
        let warned = deleted.stderr.contains("the call key in its log lines");
        assert_eq!(warned, key == long, "{deleted:?}");
    }
    assert_eq!(dynamo.records(TABLE).await.len(), 2);
}
