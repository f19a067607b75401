//! Changes of one item: composition with other expressions, and the item's memory.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use aws_sdk_dynamodb::types::{AttributeValue, Update};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqs_once::{Change, Done, Failure, ItemMode, Outcome, Write, protocol::StoredResult};
use support::{
    dynamo::{Item, number, text},
    faults::Fault,
};

use super::world::{RETENTION, THINGS, Thing, World, ample, now, operation, until};

/// Runs the operation `key` with this change.
async fn run<O: Serialize + Send + 'static>(
    item_mode: &ItemMode,
    key: &str,
    change: Change<O>,
) -> Outcome {
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

    async fn a(&self) -> Item {
        self.dynamo.record(THINGS, "a").await.unwrap()
    }
}

/// The processed keys of an item, the oldest first.
fn keys(item: &Item) -> Vec<&str> {
    let events = item["processed_events"].as_l().unwrap();
    assert!(
        events.iter().step_by(2).all(AttributeValue::is_n),
        "{events:?}"
    );
    let keys = events.iter().skip(1).step_by(2);
    keys.map(|key| key.as_s().unwrap().as_str()).collect()
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
    assert_eq!(keys(&item).len(), usize::try_from(OPERATIONS).unwrap());
}

#[tokio::test(start_paused = true)]
async fn modification_restarts_from_newer_item() {
    let world = World::start_paused().await;
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

#[tokio::test(start_paused = true)]
async fn modification_sees_version_attribute() {
    let world = World::start_paused().await;
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

#[tokio::test(start_paused = true)]
async fn modification_keeps_unknown_attributes() {
    let world = World::start_paused().await;
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
    processed_events: Vec<serde_json::Value>,
}

#[tokio::test(start_paused = true)]
async fn modification_keeps_memory_of_item() {
    let world = World::start_paused().await;
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
    for expected in ["completed", "duplicate"] {
        for key in ["1", "2"] {
            let outcome = run(&item_mode, key, nosy()).await;
            assert_eq!(outcome.name(), expected, "{key}: {outcome}");
        }
    }
    let item = world.a().await;
    assert_eq!((number(&item, "n"), number(&item, "version")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn modification_keeps_concurrent_update() {
    let world = World::start_paused().await;
    world.has(json!({"id": "a", "n": 0})).await;
    let item_mode = world.item_mode(&world.no_timeout_client());
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
        assert_eq!(number(&world.a().await, "n"), n + 11, "{before}");
        let again = run(&item_mode, &key("updated"), Change::update((), one_more())).await;
        assert_eq!(again.name(), "duplicate", "{before} {again}");
    }
}

#[tokio::test(start_paused = true)]
async fn update_composes_with_user_expression() {
    let world = World::start_paused().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
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
    let mut item: Item = serde_dynamo::to_item(json!({"id": "a", "n": 1, "former": 1})).unwrap();
    let tags = AttributeValue::Ss(vec!["x".into(), "y".into()]);
    item.insert("tags".into(), tags);
    world.dynamo.put(THINGS, item).await;

    let outcome = run(&item_mode, "1", Change::update((), whole())).await;
    assert_eq!(outcome.name(), "completed", "{outcome}");
    let item = world.a().await;
    assert_eq!((text(&item, "name"), number(&item, "n")), ("Ada", 6));
    assert_eq!((number(&item, "seen"), item.get("former")), (0, None));
    assert_eq!(item["tags"].as_ss().unwrap(), &["y".to_owned()]);

    let outcome = run(&item_mode, "2", Change::update((), whole())).await;
    let why = "permanent failure: condition check failed for write 0, `room`, to table `things`";
    assert_eq!(outcome.to_string(), why);
    assert_eq!(world.a().await, item, "a refused update changes nothing");
    // A known operation is a duplicate, even if its own effect makes its condition fail now.
    let outcome = run(&item_mode, "1", Change::update((), whole())).await;
    assert_eq!(outcome.name(), "duplicate", "{outcome}");

    // Each other way to begin a first update of an item.
    for expression in ["SET b = :v", "ADD b :v", "set b = :v remove c", "REMOVE c"] {
        let mut write = Write::update(THINGS, expression).key("id", expression);
        if expression != "REMOVE c" {
            write = write.value(":v", 1);
        }
        for expected in ["completed", "duplicate"] {
            let outcome = run(&item_mode, expression, Change::update((), write.clone())).await;
            assert_eq!(outcome.name(), expected, "{expression}: {outcome}");
        }
    }
    let late = update("ADD n :v SET b = :v").value(":v", 1);
    let outcome = run(&item_mode, "late", Change::update((), late)).await;
    assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
    assert!(
        outcome.to_string().contains("must be the first clause"),
        "{outcome}"
    );
}

#[tokio::test(start_paused = true)]
async fn conditions_in_parentheses_hold() {
    let world = World::start_paused().await;
    let client = world.no_timeout_client();
    let item_mode = world.item_mode(&client);
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
            world.has(item.clone()).await;
            let outcome = run(&item_mode, "1", Change::update((), once_more())).await;
            assert_eq!(outcome.name(), expected, "{condition}: {outcome}");
            assert!(
                outcome.is_success() || outcome.to_string().contains("condition check failed"),
                "{condition}: {outcome}"
            );
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

#[tokio::test(start_paused = true)]
async fn sets_that_become_empty_are_removed() {
    let world = World::start_paused().await;
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

#[tokio::test(start_paused = true)]
async fn refused_change_may_be_replaced() {
    let world = World::start_paused().await;
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
#[tokio::test(start_paused = true)]
async fn refused_change_cannot_move_to_other_item() {
    let world = World::start_paused().await;
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
#[tokio::test(start_paused = true)]
async fn item_without_key_is_not_created() {
    let world = World::start_paused().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    world.has(json!({"id": "a", "n": 7})).await;
    let put = Write::put(THINGS, json!({"id": "a", "n": 0}));
    let outcome = run(&item_mode, "1", Change::create((), "Id", put)).await;
    assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
    assert!(outcome.to_string().contains("`Id`"), "{outcome}");
    assert_eq!(number(&world.a().await, "n"), 7);
}

/// An attribute that only looks like a memory could not detect a duplicate.
#[tokio::test(start_paused = true)]
async fn item_with_foreign_memory_is_not_changed() {
    let world = World::start_paused().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let changes = [|| Change::update(0, one_more()), || add(1, &Arc::default())];
    for change in changes {
        for foreign in [json!("1"), json!("test#1"), json!({"test#1": 1})] {
            world
                .has(json!({"id": "a", "n": 0, "processed_events": foreign}))
                .await;
            let before = world.a().await;
            let outcome = run(&item_mode, "1", change()).await;
            assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
            assert!(!outcome.to_string().contains("400 KB"), "{outcome}");
            assert_eq!(world.a().await, before, "{outcome}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn change_is_retried_after_sdk_gives_up() {
    const THROTTLED: usize = 5;
    let world = World::start_paused().await;
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

/// An item with a key past its retention, and a younger one.
fn outdated() -> serde_json::Value {
    let now = now().as_secs();
    let old = now - RETENTION.as_secs() - 3601;
    json!({"id": "a", "n": 0, "processed_events": [old, "old", now, "young"]})
}

#[tokio::test(start_paused = true)]
async fn change_removes_old_keys_alone() {
    let world = World::start_paused().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let item_mode = item_mode.retention(RETENTION);
    for (change, requests) in [
        (
            Change::update(0, one_more()),
            [("UpdateItem", 2)].as_slice(),
        ),
        (add(1, &Arc::default()), &[("GetItem", 1), ("PutItem", 1)]),
    ] {
        world.has(outdated()).await;
        world.dynamo.reset_counts();
        let outcome = run(&item_mode, "1", change).await;
        assert_eq!(outcome.name(), "completed", "{outcome}");
        let counts = world.dynamo.reset_counts();
        assert_eq!(counts.len(), requests.len(), "{counts:?}");
        for (name, count) in requests {
            assert_eq!(counts[*name], *count, "{counts:?}");
        }
        let item = world.a().await;
        assert_eq!(
            (number(&item, "n"), keys(&item)),
            (1, vec!["young", "test#1"])
        );
    }
    // A condition of the update fails, not the one on the keys.
    world.has(outdated()).await;
    let before = world.a().await;
    let refused = one_more().when("n > :one");
    let outcome = run(&item_mode, "1", Change::update(0, refused)).await;
    assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
    assert_eq!(world.a().await, before);
}

#[tokio::test(start_paused = true)]
async fn removal_of_old_keys_keeps_concurrent_change() {
    let world = World::start_paused().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let item_mode = item_mode.retention(RETENTION);
    let again = || Change::update((), one_more());
    // The first request finds an outdated item, and the second is held.
    world.has(outdated()).await;
    let mut first = Box::pin(run(&item_mode, "1", again()));
    world.dynamo.reset_counts();
    let held = async {
        world.met("UpdateItem").await;
        world.dynamo.fail("UpdateItem", Fault::HoldRequest);
        until(|| world.dynamo.met("UpdateItem") > 0).await;
    };
    tokio::select! {
        outcome = &mut first => panic!("it ended: {outcome}"),
        () = held => {}
    }
    assert_eq!(run(&item_mode, "2", again()).await.name(), "completed");
    let (outcome, _met) = tokio::join!(first, world.dynamo.heal());
    assert_eq!(outcome.name(), "completed", "{outcome}");
    for key in ["1", "2"] {
        assert_eq!(run(&item_mode, key, again()).await.name(), "duplicate");
    }
    let item = world.a().await;
    assert_eq!(number(&item, "n"), 2);
    assert_eq!(keys(&item), ["young", "test#2", "test#1"]);
}

#[tokio::test(start_paused = true)]
async fn full_item_error_names_memory() {
    let world = World::start_paused().await;
    let item_mode = world.item_mode(&world.no_timeout_client());
    let text = "x".repeat(409_000);
    world.has(json!({"id": "a", "n": 0, "text": text})).await;
    let key = "k".repeat(1000);
    let put = Write::put(THINGS, json!({"id": "b", "text": text}));
    for change in [
        Change::update(0, one_more()),
        add(1, &Arc::default()),
        Change::create(0, "id", put),
    ] {
        let outcome = run(&item_mode, &key, change).await;
        assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
        let text = outcome.to_string();
        assert!(text.contains("table `things`"), "{text}");
        assert!(text.contains("`processed_events`"), "{text}");
    }
    assert_eq!(number(&world.a().await, "n"), 0);
}
