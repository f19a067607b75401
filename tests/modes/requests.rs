//! What a message costs: the requests that cross the wire.

use serde_json::json;
use sqs_once::{Done, Write};

use super::{
    support::{dynamo::Counts, faults::Fault},
    world::{Attempt, THINGS, Way, World, ample, operation},
};

fn counted(counts: &Counts) -> Vec<String> {
    let counted = counts.iter().map(|(name, n)| format!("{n} {name}"));
    counted.collect()
}

#[tokio::test]
async fn requests_per_message_are_as_documented() {
    let world = World::start().await;
    let transaction = "1 TransactWriteItems";
    for (way, new, known) in [
        (
            Way::Claim,
            &["1 PutItem", transaction][..],
            &["1 PutItem"][..],
        ),
        (Way::Inbox, &[transaction], &[transaction]),
        (
            Way::InboxWithLook,
            &["1 GetItem", transaction],
            &["1 GetItem"],
        ),
        (Way::Create, &["1 PutItem"], &["1 PutItem"]),
        (Way::Update, &["1 UpdateItem"], &["1 UpdateItem"]),
        (
            Way::UpdateForATime,
            &["1 GetItem", "1 UpdateItem"],
            &["1 GetItem"],
        ),
        (Way::Modify, &["1 GetItem", "1 PutItem"], &["1 GetItem"]),
    ] {
        let id = &format!("{way:?}");
        for (name, expected) in [("done", new), ("duplicate", known), ("duplicate", known)] {
            world.dynamo.reset_counts();
            let outcome = world.deliver(way, id).await;
            assert_eq!(outcome.name(), name, "{id}: {outcome}");
            assert_eq!(
                counted(&world.dynamo.reset_counts()),
                expected,
                "{id}: {name}"
            );
        }
    }
}

#[tokio::test]
async fn a_known_duplicate_is_not_planned_where_the_inbox_looks_first() {
    let world = World::start().await;
    for (way, plans) in [(Way::Inbox, true), (Way::InboxWithLook, false)] {
        let id = &format!("{way:?}");
        assert_eq!(world.deliver(way, id).await.name(), "done");
        world.running.notified().await;
        assert_eq!(world.deliver(way, id).await.name(), "duplicate");
        // A permit is there if the handler ran.
        let planned = tokio::select! {
            biased;
            () = world.running.notified() => true,
            () = std::future::ready(()) => false,
        };
        assert_eq!(planned, plans, "{id}");
    }
}

/// The answer is lost, and the SDK sends the same bytes again: the same transaction, by its
/// token. Without it the record would refuse it.
#[tokio::test]
async fn a_transaction_that_is_sent_again_is_the_same_transaction() {
    let world = World::start().await;
    for way in [Way::Claim, Way::Inbox] {
        let (id, client) = (&format!("{way:?}"), &world.hurried());
        world.dynamo.reset_counts();
        world.dynamo.fail("TransactWriteItems", Fault::CutAfter);
        let outcome = world
            .run(&Attempt {
                way,
                id,
                client,
                deadline: ample(),
            })
            .await;
        assert_eq!(outcome.name(), "done", "{id}: {outcome}");
        assert_eq!(world.dynamo.reset_counts()["TransactWriteItems"], 2, "{id}");
        assert_eq!(world.effect(way, id).await, 1, "{id}");
    }
}

/// Two rounds of one message are two transactions, though one owner sends both.
#[tokio::test]
async fn another_answer_is_another_transaction() {
    let world = World::start().await;
    let client = &world.patient();
    let put = |id: &str| Write::put(THINGS, json!({"id": id})).when("attribute_not_exists(id)");
    let taken = serde_dynamo::to_item(json!({"id": "taken"})).unwrap();
    world.dynamo.put(THINGS, taken).await;
    let plan = async |_| {
        let third = move |_: &_| Ok(Done::new(3).with(put("free")));
        let second = move |_: &_| Ok(Done::new(2).with(put("taken")).on_refused(third));
        Ok(Done::new(1).with(put("taken")).on_refused(second))
    };
    world.dynamo.reset_counts();
    let outcome = world.inbox(client).run(operation("a", ample()), plan).await;
    assert_eq!(outcome.name(), "done", "{outcome}");
    assert_eq!(
        counted(&world.dynamo.reset_counts()),
        ["3 TransactWriteItems"]
    );
    assert!(world.dynamo.record(THINGS, "free").await.is_some());
}
