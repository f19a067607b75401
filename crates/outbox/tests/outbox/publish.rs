//! Events commit with the record, or not at all.

use std::time::Duration;

use serde_json::json;
use sqs_once::{
    Consumer, Deadline, Done, Event, Failure, Handler, Mode, Once, Operation, Outcome, Settings,
    Write, handler_fn,
    protocol::{Key, Timestamp},
    store::{Batched, DynamoStore},
};
use support::{
    consumer::namespace,
    dynamo::{Dynamo, Item, number, text},
    event::{batch, order, record},
};

use super::stream::create_outbox;

const RECORDS: &str = "idempotency";
const OUTBOX: &str = "outbox";
const THINGS: &str = "things";

async fn start() -> Dynamo {
    let dynamo = Dynamo::start().await;
    dynamo.create_table(RECORDS).await;
    dynamo.create_table(THINGS).await;
    create_outbox(&dynamo.client(), OUTBOX).await;
    dynamo
}

fn claims(dynamo: &Dynamo) -> Once<DynamoStore> {
    let store = DynamoStore::new(dynamo.worker(None), RECORDS);
    Once::new(store.outbox(OUTBOX.to_owned()))
}

fn operation(id: &str) -> Operation {
    let key = Key::new(&namespace(), [id]).unwrap();
    let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(20), Duration::ZERO);
    Operation::new(key, None, format!("message of {id}"), deadline)
}

fn placed(n: u32) -> Event {
    Event::new("order-placed", &json!({ "n": n })).group("customer-7")
}

type Answer = Result<Done<()>, Failure>;

/// Runs an operation in both modes.
async fn in_both_modes(
    dynamo: &Dynamo,
    id: &str,
    answer: impl Fn() -> Answer + Send + Sync,
) -> [Outcome; 2] {
    let claims = claims(dynamo);
    let claimed = operation(&format!("{id}-claim"));
    let claimed = claims.run(claimed, async |_| answer()).await;
    let inbox = claims.inbox();
    let planned = inbox.run(operation(&format!("{id}-inbox")), async |_| answer());
    [claimed, planned.await]
}

/// Number of events in these items.
fn count(items: &[Item]) -> usize {
    let events = |item: &Item| match item.get("events") {
        Some(events) => events.as_l().unwrap().len(),
        None => 1,
    };
    items.iter().map(events).sum()
}

fn ids(items: &[Item]) -> Vec<&str> {
    let mut ids: Vec<_> = items.iter().map(|item| text(item, "id")).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn event_commits_with_the_record() {
    let dynamo = start().await;
    let before = Timestamp::now();
    let outcomes = in_both_modes(&dynamo, "o", || Ok(Done::new(()).publish(placed(1)))).await;
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Completed(_))),
        "{outcomes:?}"
    );
    let items = dynamo.records(OUTBOX).await;
    let expected = ["o-claim", "o-inbox"].map(|id| format!("{}#{id}#00", namespace().as_str()));
    assert_eq!(ids(&items), expected);
    for item in &items {
        assert_eq!(text(item, "group"), "customer-7");
        assert_eq!(text(item, "name"), "order-placed");
        assert_eq!(text(item, "body"), r#"{"n":1}"#);
        let published_at = number(item, "published_at");
        assert!(published_at >= before.as_millis().try_into().unwrap());
        let week = 7 * 24 * 3600;
        assert!((0..=1).contains(&(number(item, "expires_at") - published_at / 1000 - week)));
    }
    assert_eq!(dynamo.records(RECORDS).await.len(), 2);
}

#[tokio::test]
async fn refused_commit_publishes_nothing() {
    let dynamo = start().await;
    let refused = || Write::check(THINGS, "attribute_exists(id)").key("id", "absent");
    let answer = || Ok(Done::new(()).with(refused()).publish(placed(1)));
    for outcome in in_both_modes(&dynamo, "o", answer).await {
        assert!(
            matches!(outcome, Outcome::PermanentFailure(_)),
            "{outcome:?}"
        );
    }
    assert!(dynamo.records(OUTBOX).await.is_empty());
}

#[tokio::test]
async fn other_answer_publishes_under_the_same_id() {
    let dynamo = start().await;
    let refused = || Write::check(THINGS, "attribute_exists(id)").key("id", "absent");
    let answer = || {
        let first = Done::new(()).with(refused()).publish(placed(1));
        Ok(first.on_condition_failed(|_| Ok(Done::new(()).publish(placed(2)))))
    };
    for outcome in in_both_modes(&dynamo, "o", answer).await {
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
    let items = dynamo.records(OUTBOX).await;
    assert!(
        items.iter().all(|item| text(item, "body") == r#"{"n":2}"#),
        "{items:?}"
    );
    assert!(
        ids(&items).iter().all(|id| id.ends_with("#00")),
        "{items:?}"
    );
}

#[tokio::test]
async fn repeated_commit_publishes_the_same_id() {
    let dynamo = start().await;
    let inbox = claims(&dynamo).inbox();
    for deleted in [true, false] {
        for _ in 0..2 {
            let _outcome = inbox
                .run(operation("o"), async |_| {
                    Ok(Done::new(()).publish(placed(1)))
                })
                .await;
        }
        if deleted {
            // The retention of the record has ended.
            let id = format!("{}#o", namespace().as_str());
            dynamo.delete(RECORDS, &id).await;
        }
    }
    let items = dynamo.records(OUTBOX).await;
    assert_eq!(items.len(), 2, "a duplicate published");
    assert_eq!(text(&items[0], "id"), text(&items[1], "id"));
    assert_ne!(text(&items[0], "sequence"), text(&items[1], "sequence"));
}

#[tokio::test]
async fn events_count_towards_the_writes() {
    let dynamo = start().await;
    let events = |count| {
        let done = (0..count).fold(Done::new(()), |done, n| done.publish(placed(n)));
        Ok(done.with(Write::put(THINGS, json!({ "id": "t" }))))
    };
    for outcome in in_both_modes(&dynamo, "fits", || events(98)).await {
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
    assert_eq!(count(&dynamo.records(OUTBOX).await), 2 * 98);
    for outcome in in_both_modes(&dynamo, "more", || events(99)).await {
        let Outcome::PermanentFailure(why) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(
            why.contains("1 writes and 99 events: a transaction holds at most 99"),
            "{why}"
        );
    }
    assert_eq!(count(&dynamo.records(OUTBOX).await), 2 * 98);
}

/// The stream may have the items of a transaction in any order.
#[tokio::test]
async fn events_of_a_group_are_one_item_in_order() {
    let dynamo = start().await;
    let answer = || {
        let other = Event::new("order-noted", &2).group("other");
        let done = Done::new(()).publish(placed(1)).publish(other);
        Ok(done.publish(placed(3)).publish(Event::new("alone", &4)))
    };
    for outcome in in_both_modes(&dynamo, "o", answer).await {
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
    let items = dynamo.records(OUTBOX).await;
    assert_eq!((items.len(), count(&items)), (6, 8));
    let (several, single): (Vec<_>, Vec<_>) =
        items.iter().partition(|item| item.contains_key("events"));
    for item in several {
        assert_eq!(text(item, "group"), "customer-7");
        let events = item["events"].as_l().unwrap().iter();
        let events: Vec<_> = events.map(|event| event.as_m().unwrap()).collect();
        let bodies: Vec<_> = events.iter().map(|event| text(event, "body")).collect();
        assert_eq!(bodies, [r#"{"n":1}"#, r#"{"n":3}"#]);
        let positions = events
            .iter()
            .map(|event| text(event, "id").rsplit_once('#'));
        let positions: Vec<_> = positions.map(|id| id.unwrap().1).collect();
        assert_eq!(positions, ["00", "02"]);
        // An older relay sends the only event of an item, and would lose the others.
        for attribute in ["id", "name", "body"] {
            assert!(!item.contains_key(attribute), "{item:?}");
        }
    }
    for item in single {
        for attribute in ["id", "name", "body"] {
            assert!(item.contains_key(attribute), "{item:?}");
        }
    }
}

#[tokio::test]
async fn events_of_a_group_fit_into_one_item() {
    let dynamo = start().await;
    let large = |group: &str| Event::new("large", &"x".repeat(194 * 1024)).group(group);
    let fits = || {
        Ok(Done::new(())
            .publish(large("a"))
            .publish(large("a"))
            .publish(large("b")))
    };
    for outcome in in_both_modes(&dynamo, "fits", fits).await {
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
    let exceeds = || {
        Ok(Done::new(())
            .publish(large("a"))
            .publish(large("a"))
            .publish(placed(1).group("a"))
            .publish(Event::new("large", &"x".repeat(8 * 1024)).group("a")))
    };
    for outcome in in_both_modes(&dynamo, "exceeds", exceeds).await {
        let Outcome::PermanentFailure(why) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(why.starts_with("the events of one group have"), "{why}");
    }
}

#[tokio::test]
async fn event_beyond_a_limit_is_a_permanent_failure() {
    let dynamo = start().await;
    let answer = || {
        Ok(Done::new(())
            .publish(placed(1))
            .publish(Event::new("order placed", &1)))
    };
    for outcome in in_both_modes(&dynamo, "o", answer).await {
        let Outcome::PermanentFailure(why) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(why.starts_with("event 1: the name must have"), "{why}");
    }
    assert!(dynamo.records(OUTBOX).await.is_empty());
}

/// The message returns to the queue: a setting is missing, and the message is not the cause.
#[tokio::test]
async fn missing_outbox_fails_retryably_by_name() {
    let dynamo = start().await;
    let store = || DynamoStore::new(dynamo.worker(None), RECORDS);
    let publish = async |_| Ok(Done::new(()).publish(placed(1)));
    let claimed = Once::new(store()).run(operation("o-1"), publish).await;
    let planned = Once::new(store())
        .inbox()
        .run(operation("o-2"), publish)
        .await;
    for (outcome, name) in [
        (claimed, "completion_unrecorded"),
        (planned, "store_unavailable"),
    ] {
        assert_eq!(outcome.name(), name, "{outcome:?}");
        assert!(
            outcome.to_string().contains("OUTBOX_TABLE_NAME"),
            "{outcome}"
        );
    }
}

/// Also of a store that the program makes.
#[tokio::test]
async fn setting_names_the_outbox() {
    let dynamo = start().await;
    let settings = |table: &[_]| {
        let of_each = [
            ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:1"),
            ("IDEMPOTENCY_NAMESPACE", "orders"),
            ("OUTBOX_TABLE_NAME", OUTBOX),
            ("CONSUMER_VISIBILITY", "off"),
            ("CONSUMER_METRICS", "off"),
        ];
        let variables = of_each.iter().chain(table).copied();
        Settings::from_vars(variables).sdk_config(dynamo.sdk_config())
    };
    let publish = || {
        Ok(handler_fn(async |_: serde_json::Value, _| {
            Ok::<_, Failure>(Done::new(()).publish(placed(1)))
        }))
    };
    let table = [("IDEMPOTENCY_TABLE_NAME", RECORDS)];
    let inbox = settings(&table).inbox(publish()).await.unwrap();
    publishes(&inbox, "m-1").await;
    let store = Batched::new(DynamoStore::new(dynamo.worker(None), RECORDS));
    let once = settings(&[]).once_in(store, publish()).await.unwrap();
    publishes(&once, "m-2").await;
    let expected = ["orders#m-1#00", "orders#m-2#00"];
    assert_eq!(ids(&dynamo.records(OUTBOX).await), expected);
}

async fn publishes<M: Mode<H::Output>, H: Handler>(consumer: &Consumer<M, H>, id: &str) {
    let Ok(event) = serde_json::from_value(batch([record(id, &order("o-1"))])) else {
        unreachable!("the event is valid");
    };
    let deadline = consumer.deadline(Timestamp::now() + Duration::from_secs(20));
    let response = consumer.process(event, deadline).await;
    assert!(
        response.is_ok_and(|of| of.batch_item_failures.is_empty()),
        "{id}"
    );
}
