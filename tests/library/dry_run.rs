//! Dry runs of handlers: the outcomes of the modes, and nothing sent.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use sqs_once::testing::{DryRun, Message, event, output, process};
use sqs_once::{
    Attempt, Change, ConditionFailed, Consumer, Done, Failure, Outcome, Write, handler_fn,
    protocol::Namespace,
};

fn message(id: &str) -> Message {
    Message::new(id, &json!({ "id": id }))
}

fn put(order: &Value) -> Done<&'static str> {
    Done::new("placed").with(Write::put("orders", order).label("order"))
}

async fn place(order: Value, _: Attempt) -> Result<Done<&'static str>, Failure> {
    let stock = Write::update("products", "SET n = n - :one").key("id", 1);
    Ok(put(&order).with(stock.value(":one", 1)))
}

async fn rename(user: Value, _: Attempt) -> Result<Change<u64>, Failure> {
    let update = Write::update("users", "SET n = :n").key("id", &user["id"]);
    let change = Change::update(1, update.value(":n", 1).label("user"));
    let update = Write::update("users", "SET n = :n").key("id", &user["other"]);
    let other = update.value(":n", 2);
    Ok(
        change.on_condition_failed(move |failed| match &failed.writes()[0].item {
            Some(_) => Ok(Change::update(2, other)),
            None => Err(Failure::retryable("there is no such user yet")),
        }),
    )
}

#[tokio::test]
async fn planned_writes_are_recorded_in_order() {
    let dry_run = DryRun::new();
    let outcome = dry_run.run(&handler_fn(place), message("o-1")).await;
    assert_eq!(output::<String>(&outcome).as_deref(), Some("placed"));
    let writes = dry_run.writes();
    let places: Vec<_> = writes
        .iter()
        .map(|write| (write.label.as_deref(), write.table.as_str()))
        .collect();
    assert_eq!(places, [(Some("order"), "orders"), (None, "products")]);
    let order: Value = writes[0].put_item().unwrap();
    assert_eq!(order, json!({ "id": "o-1" }));
    assert_eq!(writes[1].put_item::<Value>(), None);
    assert!(writes[1].action.update().is_some());
}

#[tokio::test]
async fn duplicate_plans_nothing() {
    let dry_run = DryRun::new();
    for _ in 0..2 {
        let outcome = dry_run.run(&handler_fn(place), message("o-1")).await;
        assert_eq!(output::<String>(&outcome).as_deref(), Some("placed"));
    }
    assert_eq!(dry_run.writes().len(), 2);
    let changes = DryRun::new();
    let first = changes.run(&handler_fn(rename), message("u-1")).await;
    assert_eq!(output::<u64>(&first), Some(1));
    let second = changes.run(&handler_fn(rename), message("u-1")).await;
    assert!(matches!(second, Outcome::Duplicate(_)), "{second}");
    assert_eq!(changes.writes().len(), 1);
}

#[tokio::test]
async fn refused_write_fails_whole_transaction() {
    let dry_run = DryRun::new();
    dry_run.fail_condition("products");
    let outcome = dry_run.run(&handler_fn(place), message("o-1")).await;
    let Outcome::PermanentFailure(why) = outcome else {
        panic!("{outcome}")
    };
    assert_eq!(
        why,
        "condition check failed for write 1, to table `products`"
    );
    assert!(dry_run.writes().is_empty());
    let again = dry_run.run(&handler_fn(place), message("o-1")).await;
    assert!(matches!(again, Outcome::FailedBefore(_)), "{again}");
}

#[tokio::test]
async fn refusal_holds_for_one_write() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let handler = handler_fn(move |order: Value, _: Attempt| {
        let counter = Arc::clone(&counter);
        let again = put(&order);
        let decide = move |failed: &ConditionFailed| {
            counter.fetch_add(failed.writes().len(), Ordering::SeqCst);
            Ok(again)
        };
        async move { Ok::<_, Failure>(put(&order).on_condition_failed(decide)) }
    });
    let dry_run = DryRun::new();
    dry_run.fail_condition("order");
    let outcome = dry_run.run(&handler, message("o-1")).await;
    assert_eq!(output::<String>(&outcome).as_deref(), Some("placed"));
    assert_eq!(
        (asked.load(Ordering::SeqCst), dry_run.writes().len()),
        (1, 1)
    );
}

#[tokio::test]
async fn refused_change_sees_item() {
    let dry_run = DryRun::new();
    dry_run.fail_condition("user");
    let outcome = dry_run.run(&handler_fn(rename), message("u-1")).await;
    let Outcome::RetryableFailure(why) = outcome else {
        panic!("{outcome}")
    };
    assert_eq!(why.text, "there is no such user yet");

    dry_run.fail_condition_with("user", json!({ "id": "u-1", "n": 1 }));
    let same = Message::new("m-2", &json!({ "id": "u-1", "other": "u-1" }));
    let outcome = dry_run.run(&handler_fn(rename), same).await;
    assert_eq!(output::<u64>(&outcome), Some(2));

    dry_run.fail_condition_with("user", json!({ "id": "u-1", "n": 1 }));
    let other = Message::new("m-3", &json!({ "id": "u-1", "other": "u-2" }));
    let outcome = dry_run.run(&handler_fn(rename), other).await;
    assert!(
        matches!(&outcome, Outcome::PermanentFailure(why) if why.contains("another item")),
        "{outcome}"
    );
}

#[tokio::test]
async fn invalid_change_or_body_never_runs() {
    let dry_run = DryRun::new();
    let unkeyed = handler_fn(async |_: Value, _: Attempt| {
        Ok::<_, Failure>(Change::create(
            (),
            "email",
            Write::put("users", json!({ "id": 1 })),
        ))
    });
    let outcome = dry_run.run(&unkeyed, message("u-1")).await;
    assert!(
        matches!(&outcome, Outcome::PermanentFailure(why) if why.contains("`email`")),
        "{outcome}"
    );
    let unserializable = handler_fn(async |_: Value, _: Attempt| {
        Ok::<_, Failure>(Change::update(
            (),
            Write::update("users", "")
                .key("id", json!({ "a": 1 }))
                .value(":n", Unserializable),
        ))
    });
    let outcome = dry_run.run(&unserializable, message("u-1")).await;
    assert!(
        matches!(&outcome, Outcome::PermanentFailure(why) if why.contains(":n can't be")),
        "{outcome}"
    );
    let outcome = dry_run
        .run(&handler_fn(place), Message::text("m-1", "{"))
        .await;
    assert!(
        matches!(&outcome, Outcome::Invalid(why) if why.contains("not valid JSON")),
        "{outcome}"
    );
}

struct Unserializable;

impl serde::Serialize for Unserializable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("never"))
    }
}

#[tokio::test]
async fn panic_of_handler_is_an_outcome() {
    let dry_run = DryRun::new();
    let output =
        handler_fn(async |(): (), _: Attempt| -> Result<(), Failure> { panic!("told to") });
    let outcome = dry_run.run(&output, Message::new("m-1", &())).await;
    assert!(matches!(outcome, Outcome::Panicked), "{outcome}");
    let change =
        handler_fn(async |(): (), _: Attempt| -> Result<Change<()>, Failure> { panic!("told to") });
    let outcome = dry_run.run(&change, Message::new("m-2", &())).await;
    assert!(matches!(outcome, Outcome::Panicked), "{outcome}");
}

#[tokio::test]
async fn event_reaches_handler_as_sqs_sends_it() {
    let seen = handler_fn(async |body: String, attempt: Attempt| {
        let tenant = attempt.attribute("tenant");
        match (body.as_str(), tenant, attempt.receive_count()) {
            ("first", Some("acme"), 3) => Ok(()),
            other => Err(Failure::retryable(format!("{other:?}"))),
        }
    });
    let consumer = Arc::new(Consumer::without_aws(
        DryRun::new(),
        Namespace::new("test").unwrap(),
        seen,
    ));
    let in_group = |id| Message::new(id, &"first").group("g").receive_count(3);
    let batch = event([
        Message::new("m-1", &"first")
            .attribute("tenant", "acme")
            .receive_count(3),
        in_group("m-2").attribute("tenant", "acme"),
        in_group("m-3"),
        in_group("m-4").attribute("tenant", "acme"),
    ]);
    assert_eq!(process(&consumer, batch).await.unwrap(), ["m-3", "m-4"]);
}
