//! Changes of one item: composition with other expressions, the item's memory, and its expiry.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use aws_sdk_dynamodb::types::{AttributeValue, Update};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqs_once::{
    Change, Done, Failure, ItemMode, Outcome, Write,
    protocol::{Fingerprint, StoredResult, Timestamp},
};
use support::{
    dynamo::{Item, number, text},
    faults::Fault,
};

use super::world::{RETENTION, SECOND, THINGS, Thing, World, ample, now, operation, pass};

/// Runs the operation `key` with this change.
async fn run<O: Serialize>(item_mode: &ItemMode, key: &str, change: Change<O>) -> Outcome {
    let handler = async |_| Ok(change);
    item_mode.run(operation(key, ample()), handler).await
}

/// Adds to the thing `a` for each call.
fn add(n: i64, calls: &Arc<AtomicUsize>) -> Change<i64> {
    let calls = Arc::clone(calls);
    Change::modify(THINGS, json!({ "id": "a" }), move |thing| {
        calls.fetch_add(1, Ordering::SeqCst);
        let mut thing: Thing = thing.ok_or_else(|| Failure::permanent("there is no such thing"))?;
        thing.n += n;
        let sum = thing.n;
        Ok((thing, sum))
    })
}

fn update(expression: &str) -> Write<Update> {
    Write::update(THINGS, expression).key("id", "a")
}

fn one_more() -> Write<Update> {
    update("ADD n :one").value(":one", 1)
}

impl World {
    async fn has(&self, item: serde_json::Value) {
        self.dynamo
            .put(THINGS, serde_dynamo::to_item(item).unwrap())
            .await;
    }

    async fn delete_a(&self) {
        let delete = self.no_timeout_client().delete_item().table_name(THINGS);
        let delete = delete.key("id", AttributeValue::S("a".into()));
        delete.send().await.unwrap();
    }

    async fn a(&self) -> Item {
        self.dynamo.record(THINGS, "a").await.unwrap()
    }
}

fn events(item: &Item) -> Vec<String> {
    let mut events = item["processed_events"].as_ss().unwrap().clone();
    events.sort_unstable();
    events
}

fn ends(item: &Item) -> &HashMap<String, AttributeValue> {
    item["processed_until"].as_m().unwrap()
}

#[tokio::test]
async fn concurrent_operations_on_item_add_up() {
    const OPERATIONS: i64 = 10;
    let world = World::start().await;
    world.has(json!({"id": "a", "n": 1000})).await;
    let (item_mode, calls) = (world.item_mode(&world.no_timeout_client()), Arc::default());
    let mut open: Vec<i64> = (1..=OPERATIONS).collect();
    while !open.is_empty() {
        // Four workers have each operation.
        let deliveries = open.iter().cycle().take(4 * open.len());
        let runs = deliveries.map(|n| {
            let (item_mode, calls) = (&item_mode, &calls);
            async move { (*n, run(item_mode, &n.to_string(), add(*n, calls)).await) }
        });
        for (n, outcome) in futures_util::future::join_all(runs).await {
            assert!(
                outcome.is_success() || outcome.name() == "retryable_failure",
                "{outcome}"
            );
            open.retain(|open| *open != n || !outcome.is_success());
        }
    }
    let item = world.a().await;
    assert_eq!(number(&item, "n"), 1000 + (1..=OPERATIONS).sum::<i64>());
    assert_eq!(number(&item, "version"), OPERATIONS);
    assert_eq!(events(&item).len(), usize::try_from(OPERATIONS).unwrap());
}

#[tokio::test]
async fn modification_restarts_from_newer_item() {
    let world = World::start().await;
    world.has(json!({"id": "a", "n": 0})).await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let (first, second) = (Arc::default(), Arc::default());
    world.dynamo.reset_counts();
    world.dynamo.fail("PutItem", Fault::HoldRequest);
    let mut held = Box::pin(run(&item_mode, "first", add(1, &first)));
    tokio::select! {
        outcome = &mut held => panic!("it ended: {outcome}"),
        () = world.met("PutItem") => {}
    }
    let outcome = run(&item_mode, "second", add(10, &second)).await;
    assert_eq!(outcome.name(), "completed", "{outcome}");
    let (outcome, _met) = tokio::join!(held, world.dynamo.heal());
    assert_eq!(outcome.name(), "completed", "{outcome}");
    assert_eq!(number(&world.a().await, "n"), 11);
    assert_eq!(first.load(Ordering::SeqCst), 2);
    // The refused put returned the item, so no second read was sent.
    let counts = world.dynamo.reset_counts();
    assert_eq!((counts["GetItem"], counts["PutItem"]), (2, 3));

    let outcome = run(&item_mode, "second", add(10, &second)).await;
    assert_eq!(outcome.name(), "duplicate", "{outcome}");
    assert_eq!(
        second.load(Ordering::SeqCst),
        1,
        "a known key runs no closure"
    );
}

#[tokio::test]
async fn modification_sees_version_attribute() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let calls = Arc::default();
    world.has(json!({"id": "a", "n": 0})).await;
    for (key, theirs, n) in [
        (
            "had no version",
            json!({"id": "a", "n": 100, "version": 1}),
            101,
        ),
        ("had one", json!({"id": "a", "n": 200, "version": 7}), 201),
    ] {
        world.dynamo.reset_counts();
        world.dynamo.fail("PutItem", Fault::HoldRequest);
        let mut held = Box::pin(run(&item_mode, key, add(1, &calls)));
        tokio::select! {
            outcome = &mut held => panic!("{key}: it ended: {outcome}"),
            () = world.met("PutItem") => {}
        }
        // Another program writes, and keeps the memory attribute.
        let mut theirs: Item = serde_dynamo::to_item(theirs).unwrap();
        if let Some(events) = world.a().await.remove("processed_events") {
            theirs.insert("processed_events".into(), events);
        }
        world.dynamo.put(THINGS, theirs).await;
        let (outcome, _met) = tokio::join!(held, world.dynamo.heal());
        assert_eq!(outcome.name(), "completed", "{key}: {outcome}");
        assert_eq!(number(&world.a().await, "n"), n, "{key}");
    }
}

#[tokio::test]
async fn modification_keeps_unknown_attributes() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let calls = Arc::default();
    let outcome = run(&item_mode, "1", add(1, &calls)).await;
    assert_eq!(
        outcome.to_string(),
        "permanent failure: there is no such thing"
    );
    assert!(world.dynamo.record(THINGS, "a").await.is_none());

    world
        .has(json!({"id": "a", "n": 1, "owner": "Ada", "sizes": [1, 2]}))
        .await;
    assert_eq!(
        run(&item_mode, "1", add(1, &calls)).await.name(),
        "completed"
    );
    let item = world.a().await;
    assert_eq!((number(&item, "n"), text(&item, "owner")), (2, "Ada"));
    assert_eq!(item["sizes"].as_l().unwrap().len(), 2);
}

/// A type that declares the memory attribute with another meaning.
#[derive(Default, Deserialize, Serialize)]
struct OwnMemoryField {
    id: String,
    n: i64,
    #[serde(default)]
    version: u64,
    #[serde(default)]
    processed_events: Vec<String>,
    #[serde(default)]
    processed_until: HashMap<String, u64>,
}

#[tokio::test]
async fn modification_keeps_memory_of_item() {
    let world = World::start().await;
    world.has(json!({"id": "a", "n": 0})).await;
    let nosy = || {
        Change::modify(
            THINGS,
            json!({ "id": "a" }),
            |found: Option<OwnMemoryField>| {
                let OwnMemoryField { id, n, .. } = found.unwrap();
                Ok((
                    OwnMemoryField {
                        id,
                        n: n + 1,
                        ..OwnMemoryField::default()
                    },
                    (),
                ))
            },
        )
    };
    let item_mode = world.item_mode(&world.no_timeout_client());
    let for_a_time = item_mode.clone().retention(RETENTION);
    for (item_mode, key) in [
        (&item_mode, "1"),
        (&item_mode, "2"),
        (&for_a_time, "3"),
        (&for_a_time, "4"),
    ] {
        let outcome = run(item_mode, key, nosy()).await;
        assert_eq!(outcome.name(), "completed", "{key}: {outcome}");
    }
    for key in ["1", "2", "3", "4"] {
        let outcome = run(&item_mode, key, nosy()).await;
        assert_eq!(outcome.name(), "duplicate", "{key}: {outcome}");
    }
    let item = world.a().await;
    assert_eq!((number(&item, "n"), number(&item, "version")), (4, 4));
}

#[tokio::test]
async fn modification_keeps_concurrent_update() {
    let world = World::start().await;
    for retention in [None, Some(RETENTION)] {
        world.has(json!({"id": "a", "n": 0})).await;
        let mut item_mode = world.item_mode(&world.no_timeout_client());
        if let Some(retention) = retention {
            item_mode = item_mode.retention(retention);
        }
        let calls = Arc::default();
        for before in ["", "an item with a memory: "] {
            let key = |name: &str| format!("{before}{name}");
            let n = number(&world.a().await, "n");
            world.dynamo.reset_counts();
            world.dynamo.fail("PutItem", Fault::HoldRequest);
            let modified = key("modified");
            let mut held = Box::pin(run(&item_mode, &modified, add(10, &calls)));
            tokio::select! {
                outcome = &mut held => panic!("it ended: {outcome}"),
                () = world.met("PutItem") => {}
            }
            let updated = run(&item_mode, &key("updated"), Change::update((), one_more())).await;
            assert_eq!(updated.name(), "completed", "{updated}");
            let (outcome, _met) = tokio::join!(held, world.dynamo.heal());
            assert_eq!(outcome.name(), "completed", "{outcome}");
            assert_eq!(
                number(&world.a().await, "n"),
                n + 11,
                "{retention:?} {before}"
            );
            let again = run(&item_mode, &key("updated"), Change::update((), one_more())).await;
            assert_eq!(again.name(), "duplicate", "{retention:?} {before} {again}");
        }
    }
}

#[tokio::test]
async fn update_composes_with_user_expression() {
    let world = World::start().await;
    let client = world.no_timeout_client();
    let set = world.item_mode(&client);
    let map = world.item_mode(&client).retention(RETENTION);
    let whole = || {
        update("SET #name = :name, seen = if_not_exists(seen, :none) REMOVE former ADD n :n DELETE tags :tags")
            .name("#name", "name")
            .value(":name", "Ada")
            .value(":none", 0)
            .value(":n", 5)
            .value(":tags", serde_dynamo::string_set::StringSet(vec!["x"]))
            .when("attribute_exists(id)")
            .when("n < :most OR vip = :yes")
            .value(":most", 6)
            .value(":yes", true)
            .label("room")
    };
    for (name, item_mode) in [("set", &set), ("map", &map)] {
        let mut item: Item =
            serde_dynamo::to_item(json!({"id": "a", "n": 1, "former": 1})).unwrap();
        let tags = AttributeValue::Ss(vec!["x".into(), "y".into()]);
        item.insert("tags".into(), tags);
        world.dynamo.put(THINGS, item).await;

        let outcome = run(item_mode, "1", Change::update((), whole())).await;
        assert_eq!(outcome.name(), "completed", "{name}: {outcome}");
        let item = world.a().await;
        assert_eq!(
            (text(&item, "name"), number(&item, "n")),
            ("Ada", 6),
            "{name}"
        );
        assert_eq!(
            (number(&item, "seen"), item.get("former")),
            (0, None),
            "{name}"
        );
        assert_eq!(item["tags"].as_ss().unwrap(), &["y".to_owned()], "{name}");

        let outcome = run(item_mode, "2", Change::update((), whole())).await;
        let why =
            "permanent failure: condition check failed for write 0, `room`, to table `things`";
        assert_eq!(outcome.to_string(), why, "{name}");
        assert_eq!(
            world.a().await,
            item,
            "{name}: a refused update changes nothing"
        );
        // A known operation is a duplicate, even if its own effect makes its condition fail now.
        let outcome = run(item_mode, "1", Change::update((), whole())).await;
        assert_eq!(outcome.name(), "duplicate", "{name}: {outcome}");

        // Each other way to begin a first update of an item.
        for expression in ["SET b = :v", "ADD b :v", "set b = :v remove c", "REMOVE c"] {
            let id = format!("{name} {expression}");
            let mut write = Write::update(THINGS, expression).key("id", &id);
            if expression != "REMOVE c" {
                write = write.value(":v", 1);
            }
            for expected in ["completed", "duplicate"] {
                let outcome = run(item_mode, &id, Change::update((), write.clone())).await;
                assert_eq!(outcome.name(), expected, "{id}: {outcome}");
            }
        }
    }
}

#[tokio::test]
async fn conditions_in_parentheses_hold() {
    let world = World::start().await;
    let client = world.no_timeout_client();
    let set = world.item_mode(&client);
    let map = world.item_mode(&client).retention(RETENTION);
    for (n, condition) in [
        "(n = :seven OR vip = :yes)",
        " ( (n = :seven) OR (vip = :yes) ) ",
        "((n = :seven OR vip = :yes))",
        "(n = :seven) OR (vip = :yes)",
    ]
    .into_iter()
    .enumerate()
    {
        let values = |write: Write<Update>| write.value(":seven", 7).value(":yes", true);
        let once_more = || values(one_more().when(condition));
        for (item, expected) in [
            (json!({"id": "a", "n": 7}), "completed"),
            (json!({"id": "a", "n": 1, "vip": true}), "completed"),
            (json!({"id": "a", "n": 1}), "permanent_failure"),
        ] {
            for (name, item_mode) in [("set", &set), ("map", &map)] {
                world.has(item.clone()).await;
                let change = Change::update((), once_more());
                let outcome = run(item_mode, "1", change).await;
                assert_eq!(outcome.name(), expected, "{condition} {name}: {outcome}");
                assert!(
                    outcome.is_success() || outcome.to_string().contains("condition check failed"),
                    "{condition} {name}: {outcome}"
                );
            }
            // The same among the writes of a transaction, alone and with another condition.
            for (name, write) in [
                ("alone", once_more()),
                ("first", once_more().when("(attribute_exists(id))")),
                (
                    "second",
                    values(one_more().when("(attribute_exists(id))").when(condition)),
                ),
            ] {
                world.has(item.clone()).await;
                let key = format!("{n} {name} {item}");
                let done = async |_| Ok(Done::new(()).with(write));
                let outcome = world
                    .inbox(&client)
                    .run(operation(&key, ample()), done)
                    .await;
                assert_eq!(outcome.name(), expected, "{condition} {name}: {outcome}");
            }
        }
    }
}

#[derive(Deserialize, Serialize)]
struct Sets {
    id: String,
    #[serde(with = "serde_dynamo::string_set", default)]
    texts: Vec<String>,
    #[serde(with = "serde_dynamo::number_set", default)]
    numbers: Vec<u64>,
    #[serde(default)]
    nested: Vec<Nested>,
}

#[derive(Deserialize, Serialize)]
struct Nested {
    name: String,
    #[serde(with = "serde_dynamo::string_set", default)]
    texts: Vec<String>,
}

#[tokio::test]
async fn sets_that_become_empty_are_removed() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let set_to = |n: u64| {
        Change::modify(THINGS, json!({ "id": "a" }), move |sets: Option<Sets>| {
            let had = sets.map_or(0, |sets| {
                let nested = sets.nested.iter().map(|nested| nested.texts.len());
                sets.texts.len() + sets.numbers.len() + nested.sum::<usize>()
            });
            let texts: Vec<_> = (0..n).map(|n| n.to_string()).collect();
            let sets = Sets {
                id: "a".into(),
                texts: texts.clone(),
                numbers: (0..n).collect(),
                nested: vec![Nested {
                    name: "in a list".into(),
                    texts,
                }],
            };
            Ok((sets, had))
        })
    };
    for (key, n, had) in [("1", 2, 0), ("2", 0, 6), ("3", 0, 0), ("4", 1, 0)] {
        let outcome = run(&item_mode, key, set_to(n)).await;
        let Outcome::Completed(StoredResult::Json(result)) = &outcome else {
            panic!("{key}: {outcome}")
        };
        assert_eq!(result, &had.to_string(), "{key}");
        let item = world.a().await;
        let nested = item["nested"].as_l().unwrap()[0].as_m().unwrap();
        assert_eq!(text(nested, "name"), "in a list");
        let kept = ["texts", "numbers"].map(|name| item.contains_key(name));
        assert_eq!(kept, [n > 0; 2], "{key}");
        assert_eq!(nested.contains_key("texts"), n > 0, "{key}");
    }
}

#[tokio::test]
async fn refused_change_may_be_replaced() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    world.has(json!({"id": "a", "n": 7})).await;
    let taken = || {
        let put = Write::put(THINGS, json!({"id": "a", "n": 0})).label("id taken");
        Change::create("made", "id", put).on_condition_failed(|failed| {
            let item = failed.get("id taken").unwrap().item.as_ref().unwrap();
            assert_eq!(number(item, "n"), 7);
            Ok(Change::update("counted", one_more()))
        })
    };
    for expected in ["completed", "duplicate", "duplicate"] {
        let outcome = run(&item_mode, "1", taken()).await;
        assert_eq!(outcome.name(), expected, "{outcome}");
    }
    assert_eq!(number(&world.a().await, "n"), 8);
}

/// The next delivery would read the first item, not the other one, and change it.
#[tokio::test]
async fn refused_change_cannot_move_to_other_item() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    world.has(json!({"id": "a", "n": 0})).await;
    world.has(json!({"id": "b", "n": 0})).await;
    let other = || {
        let more = Write::update(THINGS, "ADD n :one").key("id", "b");
        Change::update("b", more.value(":one", 1))
    };
    let enough = || one_more().when("n >= :one");
    let taken = || Write::put(THINGS, json!({"id": "a"}));
    for (name, change) in [
        (
            "an update",
            Change::update("a", enough()).on_condition_failed(move |_| Ok(other())),
        ),
        (
            "a creation",
            Change::create("a", "id", taken()).on_condition_failed(move |_| Ok(other())),
        ),
        (
            "a creation into a creation",
            Change::create("a", "id", taken())
                .on_condition_failed(move |_| Ok(Change::create("a", "id", taken()))),
        ),
        (
            "the third",
            Change::update("a", enough()).on_condition_failed(move |_| {
                Ok(Change::update("a", enough()).on_condition_failed(move |_| Ok(other())))
            }),
        ),
        (
            "another table",
            Change::update("a", enough()).on_condition_failed(|_| {
                Ok(Change::update(
                    "?",
                    Write::update("others", "ADD n :one").key("id", "a"),
                ))
            }),
        ),
    ] {
        let outcome = run(&item_mode, name, change).await;
        assert_eq!(outcome.name(), "permanent_failure", "{name}: {outcome}");
        assert!(outcome.to_string().contains("another"), "{name}: {outcome}");
    }
    for id in ["a", "b"] {
        let item = world.dynamo.record(THINGS, id).await.unwrap();
        assert_eq!(number(&item, "n"), 0, "{id}");
    }
}

/// Conditional on the absence of another attribute, it would replace items.
#[tokio::test]
async fn item_without_key_is_not_created() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    world.has(json!({"id": "a", "n": 7})).await;
    let put = Write::put(THINGS, json!({"id": "a", "n": 0}));
    let outcome = run(&item_mode, "1", Change::create((), "Id", put)).await;
    assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
    assert!(outcome.to_string().contains("`Id`"), "{outcome}");
    assert_eq!(number(&world.a().await, "n"), 7);
}

/// An attribute that only looks like a memory could not detect a duplicate.
#[tokio::test]
async fn item_with_foreign_memory_is_not_changed() {
    let world = World::start().await;
    let set = world.item_mode(&world.no_timeout_client());
    let map = set.clone().retention(RETENTION);
    let events = || json!({"id": "a", "n": 0, "processed_events": ["1"]});
    let until = || json!({"id": "a", "n": 0, "processed_until": "1"});
    for (foreign, item_mode, change) in [
        (events(), &set, Change::update(0, one_more())),
        (events(), &map, Change::update(0, one_more())),
        (events(), &set, add(1, &Arc::default())),
        (events(), &map, add(1, &Arc::default())),
        (until(), &map, Change::update(0, one_more())),
        (until(), &set, add(1, &Arc::default())),
        (until(), &map, add(1, &Arc::default())),
    ] {
        world.has(foreign).await;
        let before = world.a().await;
        let outcome = run(item_mode, "1", change).await;
        assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
        assert!(!outcome.to_string().contains("400 KB"), "{outcome}");
        assert_eq!(world.a().await, before, "{outcome}");
    }
}

#[tokio::test]
async fn memory_counts_with_and_without_retention() {
    let world = World::start().await;
    let set = world.item_mode(&world.no_timeout_client());
    let map = set.clone().retention(RETENTION);
    let calls = Arc::default();
    for (name, first, then) in [("set, then map", &set, &map), ("map, then set", &map, &set)] {
        world.has(json!({"id": "a", "n": 0})).await;
        for (item_mode, expected) in [
            (first, "completed"),
            (then, "duplicate"),
            (first, "duplicate"),
        ] {
            let outcome = run(item_mode, "update", Change::update((), one_more())).await;
            assert_eq!(outcome.name(), expected, "{name}: {outcome}");
            let outcome = run(item_mode, "modify", add(10, &calls)).await;
            assert_eq!(outcome.name(), expected, "{name}: {outcome}");
        }
        assert_eq!(number(&world.a().await, "n"), 11, "{name}");
    }
}

/// Runs the operation `key` for a message with this payload.
async fn run_payload<'a, O: Serialize>(
    item_mode: &ItemMode,
    key: &str,
    payload: impl Into<Option<&'a Fingerprint>>,
    change: Change<O>,
) -> Outcome {
    let mut operation = operation(key, ample());
    operation.fingerprint = payload.into().cloned();
    item_mode.run(operation, async |_| Ok(change)).await
}

/// Each change of `a`, by its name. A creation requires that the item is absent.
fn each_change() -> [(&'static str, Change<i64>); 3] {
    let put = Write::put(THINGS, json!({"id": "a", "n": 1}));
    [
        ("create", Change::create(1, "id", put)),
        ("update", Change::update(1, one_more())),
        ("modify", add(1, &Arc::default())),
    ]
}

#[tokio::test]
async fn differing_checked_payload_is_key_reused() {
    let world = World::start().await;
    let checked = world.item_mode(&world.no_timeout_client()).check_payload();
    // As decimal digits, the last two differ in zeros alone.
    let payloads = ["1796af01bc", "", "000000000000000a", "0000000000000064"]
        .map(|print| Fingerprint::from_stored(format!("{print:0<64}")));
    for item_mode in [checked.clone(), checked.retention(RETENTION)] {
        for (n, payload) in payloads.iter().enumerate() {
            for way in 0..3 {
                let change = || each_change().into_iter().nth(way).unwrap();
                let (name, first) = change();
                world.delete_a().await;
                if name != "create" {
                    world.has(json!({"id": "a", "n": 0})).await;
                }
                let outcome = run_payload(&item_mode, "1", payload, first).await;
                assert_eq!(outcome.name(), "completed", "{name}: {outcome}");
                let before = world.a().await;
                for (other, again) in payloads.iter().enumerate() {
                    let outcome = run_payload(&item_mode, "1", again, change().1).await;
                    let expected = if n == other {
                        "duplicate"
                    } else {
                        "key_reused"
                    };
                    assert_eq!(outcome.name(), expected, "{name} {n} {other}: {outcome}");
                }
                assert_eq!(world.a().await, before, "{name}: the item is unchanged");
                assert_eq!(number(&before, "n"), 1, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn checked_payload_costs_16_hex_digits_per_key() {
    let world = World::start().await;
    let plain = world.item_mode(&world.no_timeout_client());
    let checked = plain.clone().check_payload();
    let digits = async |item_mode: &ItemMode| {
        world.has(json!({"id": "a", "n": 0})).await;
        let update = Change::update((), one_more());
        assert_eq!(run(item_mode, "1", update).await.name(), "completed");
        let item = world.a().await;
        assert!(!item.contains_key("processed_events"));
        ends(&item)["test#1"].as_n().unwrap().len()
    };
    let without = digits(&plain.retention(RETENTION)).await;
    for checked in [checked.clone(), checked.retention(RETENTION)] {
        // DynamoDB stores two digits in a byte, and at most 38 digits.
        let more = digits(&checked).await - without;
        assert!(more.div_ceil(2) <= 16 && without + more <= 38, "{more}");
    }
}

#[tokio::test]
async fn unchecked_key_is_duplicate_for_checked_payload() {
    let world = World::start().await;
    let plain = world.item_mode(&world.no_timeout_client());
    let [one, other] = [b"1", b"2"].map(|body| Fingerprint::of(body));
    for unchecked in [plain.clone(), plain.retention(RETENTION)] {
        let checked = unchecked.clone().check_payload();
        for (first, then) in [(&unchecked, &checked), (&checked, &unchecked)] {
            world.has(json!({"id": "a", "n": 0})).await;
            for (key, way) in [("update", 1), ("modify", 2)] {
                for (item_mode, payload, expected) in [
                    (first, &one, "completed"),
                    (then, &one, "duplicate"),
                    (then, &other, "duplicate"),
                ] {
                    let (name, change) = each_change().into_iter().nth(way).unwrap();
                    let outcome = run_payload(item_mode, key, payload, change).await;
                    assert_eq!(outcome.name(), expected, "{name}: {outcome}");
                }
            }
            assert_eq!(number(&world.a().await, "n"), 2);
        }
    }
    // Without a fingerprint the payload cannot be compared.
    world.has(json!({"id": "a", "n": 0})).await;
    let checked = world.item_mode(&world.no_timeout_client()).check_payload();
    for expected in ["completed", "duplicate"] {
        let change = Change::update((), one_more());
        let outcome = run_payload(&checked, "1", None, change).await;
        assert_eq!(outcome.name(), expected, "{outcome}");
    }
    assert_eq!(events(&world.a().await), ["test#1"]);
}

#[tokio::test]
async fn checked_payload_detects_concurrent_reuse() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client()).check_payload();
    let [one, other] = [b"1", b"2"].map(|body| Fingerprint::of(body));
    for (way, request) in [(0, "PutItem"), (1, "UpdateItem"), (2, "PutItem")] {
        world.delete_a().await;
        if way != 0 {
            world.has(json!({"id": "a", "n": 0})).await;
        }
        let change = || each_change().into_iter().nth(way).unwrap();
        let (name, late) = change();
        world.dynamo.reset_counts();
        world.dynamo.fail(request, Fault::HoldRequest);
        let mut held = Box::pin(run_payload(&item_mode, "1", &one, late));
        tokio::select! {
            outcome = &mut held => panic!("{name}: it ended: {outcome}"),
            () = world.met(request) => {}
        }
        let outcome = run_payload(&item_mode, "1", &other, change().1).await;
        assert_eq!(outcome.name(), "completed", "{name}: {outcome}");
        let (outcome, _met) = tokio::join!(held, world.dynamo.heal());
        assert_eq!(outcome.name(), "key_reused", "{name}: {outcome}");
        assert_eq!(number(&world.a().await, "n"), 1, "{name}");
    }
}

#[tokio::test]
async fn checked_payload_expires_with_key() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client()).check_payload();
    let item_mode = item_mode.retention(RETENTION);
    world.has(json!({"id": "a", "n": 0})).await;
    let again = async |key: &str, payload: &[u8]| {
        let payload = Fingerprint::of(payload);
        run_payload(&item_mode, key, &payload, Change::update((), one_more())).await
    };
    assert_eq!(again("1", b"1").await.name(), "completed");
    assert_eq!(again("2", b"1").await.name(), "completed");
    assert_eq!(again("1", b"2").await.name(), "key_reused");
    pass(RETENTION + 2 * SECOND);
    assert_eq!(again("1", b"2").await.name(), "completed");
    assert_eq!(ends(&world.a().await).len(), 1, "the other key is removed");
    assert_eq!(again("1", b"1").await.name(), "key_reused");
    assert_eq!(number(&world.a().await, "n"), 3);
}

#[tokio::test]
async fn change_is_retried_after_sdk_gives_up() {
    const THROTTLED: usize = 5;
    let world = World::start().await;
    let item_mode = world.item_mode(&world.short_timeout_client());
    world.has(json!({"id": "a", "n": 0})).await;
    for _ in 0..THROTTLED {
        world.dynamo.fail("UpdateItem", Fault::Throttle);
    }
    let outcome = run(&item_mode, "1", Change::update((), one_more())).await;
    assert_eq!(outcome.name(), "completed", "{outcome}");
    assert_eq!(world.dynamo.heal().await["UpdateItem"], THROTTLED);
    assert_eq!(number(&world.a().await, "n"), 1);
}

#[tokio::test]
async fn key_counts_until_retention_ends() {
    const NOON: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    let world = World::start().await;
    let item_mode = world
        .item_mode(&world.no_timeout_client())
        .retention(RETENTION);
    let item_mode = item_mode.clock(|| NOON);
    for (end, expected) in [
        (NOON.as_secs(), "duplicate"),
        (NOON.as_secs() - 1, "completed"),
    ] {
        let ends = json!({"test#1": end});
        for change in [Change::update(0, one_more()), add(1, &Arc::default())] {
            world
                .has(json!({"id": "a", "n": 0, "processed_until": ends}))
                .await;
            let outcome = run(&item_mode, "1", change).await;
            assert_eq!(outcome.name(), expected, "{end}: {outcome}");
        }
    }
}

#[tokio::test]
async fn expired_keys_are_removed() {
    let world = World::start().await;
    let item_mode = world
        .item_mode(&world.no_timeout_client())
        .retention(RETENTION);
    let over = |many: usize| {
        let end = now().as_secs() - 1;
        let ends: HashMap<_, _> = (0..many).map(|n| (format!("over-{n}"), end)).collect();
        json!({"id": "a", "n": 0, "processed_until": ends})
    };
    let calls = Arc::default();
    world.has(over(250)).await;
    assert_eq!(
        run(&item_mode, "1", add(1, &calls)).await.name(),
        "completed"
    );
    assert_eq!(ends(&world.a().await).len(), 1, "a modification clears all");

    // With any space that the user's own expressions leave.
    let names: Vec<_> = (0..200).map(|n| format!("attr_{n:02} = :one")).collect();
    let long_update = format!("ADD n :one SET {}", names.join(", "));
    let long_condition = format!(
        "attribute_exists(id) AND ({})",
        vec!["n < :most"; 200].join(" OR ")
    );
    for (name, write) in [
        ("short", one_more()),
        ("long update", update(&long_update).value(":one", 1)),
        (
            "long condition",
            one_more().when(&long_condition).value(":most", 1000),
        ),
    ] {
        world.has(over(250)).await;
        let (mut left, mut n) = (250, 0);
        while left > 0 {
            let outcome = run(
                &item_mode,
                &n.to_string(),
                Change::update((), write.clone()),
            )
            .await;
            assert_eq!(outcome.name(), "completed", "{name} {n}: {outcome}");
            n += 1;
            let still_left = ends(&world.a().await).len() - n;
            assert!(still_left < left, "{name}: {still_left} of {left} are left");
            left = still_left;
        }
        assert_eq!(
            usize::try_from(number(&world.a().await, "n")).unwrap(),
            n,
            "{name}"
        );
    }
}

#[tokio::test]
async fn cleanup_keeps_key_renewed_meanwhile() {
    let world = World::start().await;
    let item_mode = world
        .item_mode(&world.no_timeout_client())
        .retention(RETENTION);
    world.has(json!({"id": "a", "n": 0})).await;
    let again = || Change::update((), one_more());
    assert_eq!(run(&item_mode, "old", again()).await.name(), "completed");
    pass(RETENTION + 2 * SECOND);

    world.dynamo.reset_counts();
    world.dynamo.fail("UpdateItem", Fault::HoldRequest);
    let mut held = Box::pin(run(&item_mode, "new", again()));
    tokio::select! {
        outcome = &mut held => panic!("it ended: {outcome}"),
        () = world.met("UpdateItem") => {}
    }
    // Its retention has ended, so the operation is new and happens once.
    assert_eq!(run(&item_mode, "old", again()).await.name(), "completed");
    let (outcome, _met) = tokio::join!(held, world.dynamo.heal());
    assert_eq!(outcome.name(), "completed", "{outcome}");
    assert_eq!(run(&item_mode, "old", again()).await.name(), "duplicate");
    assert_eq!(run(&item_mode, "new", again()).await.name(), "duplicate");
    assert_eq!(number(&world.a().await, "n"), 3);
}

#[tokio::test]
async fn full_item_error_names_memory() {
    let world = World::start().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let full: Item = HashMap::from([
        ("id".to_owned(), AttributeValue::S("a".into())),
        ("n".to_owned(), AttributeValue::N("0".into())),
        (
            "processed_events".to_owned(),
            AttributeValue::Ss((0..400).map(|n| format!("{n:01022}")).collect()),
        ),
    ]);
    world.dynamo.put(THINGS, full.clone()).await;
    let key = "k".repeat(1000);
    let calls = Arc::default();
    let create = || {
        let put = Write::put(THINGS, json!({"id": "b", "text": "x".repeat(410_000)}));
        Change::create((), "id", put)
    };
    for (name, outcome, grew) in [
        (
            "update",
            run(&item_mode, &key, Change::update((), one_more())).await,
            "processed_events",
        ),
        (
            "modify",
            run(&item_mode, &key, add(1, &calls)).await,
            "processed_events",
        ),
        ("create", run(&item_mode, &key, create()).await, "text"),
    ] {
        assert_eq!(outcome.name(), "permanent_failure", "{name}: {outcome}");
        let text = outcome.to_string();
        assert!(text.contains("table `things`"), "{name}: {text}");
        assert!(text.contains(&format!("(`{grew}` has 4")), "{name}: {text}");
    }
    assert_eq!(world.a().await["n"], full["n"]);
}
