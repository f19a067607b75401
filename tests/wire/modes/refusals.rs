//! Refused writes of a handler, and the outcome of their messages.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use aws_sdk_dynamodb::types::{AttributeValue, Put, ReturnValuesOnConditionCheckFailure, Update};
use serde_json::json;
use sqs_once::{
    Attempt, Change, Done, Failure, Once, Operation, Outcome, Write,
    internal::Delivery,
    protocol::{Key, StoredResult},
    store::{DynamoStore, Layout},
};
use support::{
    consumer::namespace,
    dynamo::{attempts, error, number, text},
    faults::Fault,
};

use super::{
    crashes::LEASE,
    world::{RECORDS, THINGS, World, ample, operation, pass, short},
};

/// Modes whose writes commit with a record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Claim,
    Inbox,
}

const MODES: [Mode; 2] = [Mode::Claim, Mode::Inbox];

impl World {
    /// Runs the operation `key` of the message `key` with this answer, and counts the runs.
    async fn answer(
        &self,
        mode: Mode,
        key: &str,
        ran: &AtomicUsize,
        answer: impl FnOnce() -> Result<Done<&'static str>, Failure> + Send,
    ) -> Outcome {
        let client = &self.no_timeout_client();
        let handler = async |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            answer()
        };
        let operation = operation(key, ample());
        match mode {
            Mode::Claim => self.once(client).run(operation, handler).await,
            Mode::Inbox => self.inbox(client).run(operation, handler).await,
        }
    }

    /// Answer of a handler that runs once.
    async fn once_answered(
        &self,
        mode: Mode,
        key: &str,
        answer: impl FnOnce() -> Result<Done<&'static str>, Failure> + Send,
    ) -> Outcome {
        self.answer(mode, key, &AtomicUsize::new(0), answer).await
    }

    /// Final state of a record, and its error.
    pub async fn ended(&self, key: &str) -> Option<(String, Option<String>)> {
        let key = Key::new(&namespace(), [key]).unwrap();
        let record = self.dynamo.record(RECORDS, key.as_str()).await?;
        let failed = record.contains_key("failures");
        let error = failed.then(|| error(&record));
        Some((text(&record, "status").to_owned(), error))
    }

    /// Stock of the product.
    async fn stock(&self, n: i64) {
        let item = serde_dynamo::to_item(json!({"id": "product", "n": n})).unwrap();
        self.dynamo.put(THINGS, item).await;
    }

    async fn left(&self) -> i64 {
        number(&self.dynamo.record(THINGS, "product").await.unwrap(), "n")
    }
}

/// Takes one of the product, and writes an order that says so.
fn order(id: &str) -> Done<&'static str> {
    let write = Write::put(THINGS, json!({"id": id, "secret": "s3cret"}));
    Done::new("ordered").with(write).with(take())
}

fn take() -> Write<Update> {
    Write::update(THINGS, "SET n = n - :one")
        .key("id", "product")
        .when("n >= :one")
        .value(":one", 1)
        .label("stock")
}

#[tokio::test(start_paused = true)]
async fn refused_condition_is_recorded_as_failure() {
    let world = World::start_paused().await;
    world.stock(0).await;
    for mode in MODES {
        let (key, ran) = (&format!("{mode:?}"), AtomicUsize::new(0));
        let outcome = world.answer(mode, key, &ran, || Ok(order(key))).await;
        let why = "condition check failed for write 1, `stock`, to table `things`";
        assert_eq!(
            outcome.to_string(),
            format!("permanent failure: {why}"),
            "{key}"
        );
        let ended = Some(("FAILED".to_owned(), Some(why.to_owned())));
        assert_eq!(world.ended(key).await, ended, "{key}");
        assert!(
            world.dynamo.record(THINGS, key).await.is_none(),
            "{key}: no partial order"
        );

        world.stock(1).await;
        let again = world.answer(mode, key, &ran, || Ok(order(key))).await;
        assert_eq!(
            again.to_string(),
            format!("this message failed permanently before; the handler did not run: {why}"),
            "{key}"
        );
        // An inbox plans before it knows of duplicates.
        let runs = if mode == Mode::Claim { 1 } else { 2 };
        assert_eq!((ran.into_inner(), world.left().await), (runs, 1), "{key}");
        world.stock(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn handler_interprets_refused_condition() {
    let world = World::start_paused().await;
    world.stock(0).await;
    for mode in MODES {
        let key = |name: &str| format!("{mode:?} {name}");
        let refused = |name: &str, decide: fn() -> Result<Done<&'static str>, Failure>| {
            let name = key(name);
            let (world, done) = (&world, order(&name));
            async move {
                let decide = move |failed: &sqs_once::ConditionFailed| {
                    assert_eq!(failed.get("stock").map(|write| write.index), Some(1));
                    assert_eq!(failed.get("stock").unwrap().table, THINGS);
                    assert!(failed.get("order").is_none() && failed.writes().len() == 1);
                    decide()
                };
                let outcome = world
                    .once_answered(mode, &name, || Ok(done.on_condition_failed(decide)))
                    .await;
                let order = world.dynamo.record(THINGS, &name).await;
                assert!(
                    order.is_none(),
                    "{name}: no write of the first answer is applied"
                );
                (outcome.to_string(), world.ended(&name).await)
            }
        };
        let in_progress = Some(("IN_PROGRESS".to_owned(), None));
        let ended = |status: &str, error: Option<&str>| {
            Some((status.to_owned(), error.map(ToOwned::to_owned)))
        };

        let said = refused("own words", || Err(Failure::permanent("sold out"))).await;
        let expected = (
            "permanent failure: sold out".into(),
            ended("FAILED", Some("sold out")),
        );
        assert_eq!(said, expected, "{mode:?}");

        let said = refused("retryable", || Err(Failure::retryable("restocked soon"))).await;
        let left = in_progress.clone().filter(|_| mode == Mode::Claim);
        let expected = ("retryable failure: restocked soon".into(), left);
        assert_eq!(said, expected, "{mode:?}");

        let said = refused("panic", || panic!("scripted")).await;
        let left = in_progress.filter(|_| mode == Mode::Claim);
        assert_eq!(said, ("the handler panicked".into(), left), "{mode:?}");

        let said = refused("no writes", || Ok(Done::new("declined"))).await;
        assert_eq!(
            said,
            ("completed".into(), ended("COMPLETED", None)),
            "{mode:?}"
        );

        let waiting = refused("other writes", || {
            let note = Write::put(THINGS, json!({"id": "waiting list"}));
            Ok(Done::new("waiting").with(note))
        });
        assert_eq!(
            waiting.await,
            ("completed".into(), ended("COMPLETED", None)),
            "{mode:?}"
        );
        assert!(world.dynamo.record(THINGS, "waiting list").await.is_some());
        let again = world
            .once_answered(mode, &key("other writes"), || Ok(Done::new("?")))
            .await;
        let Outcome::Duplicate(StoredResult::Json(result)) = &again else {
            panic!("{mode:?}: {again}");
        };
        assert_eq!(result, "\"waiting\"", "the committed result is kept");

        let too_many = refused("too many", || {
            let write = |n: usize| Write::put(THINGS, json!({"id": n.to_string()}));
            Ok(Done::new("?").with_all((0..100).map(write)))
        });
        let (said, _) = too_many.await;
        assert!(
            said.starts_with("permanent failure: 100 writes"),
            "{mode:?}: {said}"
        );
    }
    assert_eq!(world.left().await, 0);
}

#[tokio::test(start_paused = true)]
async fn refusal_holds_item_if_requested() {
    let world = World::start_paused().await;
    world.stock(0).await;
    for mode in MODES {
        let built = || {
            Write::update(THINGS, "SET n = n - :one")
                .key("id", "product")
                .when("n >= :one")
                .value(":one", 1)
                .return_item()
        };
        let sdks = || {
            Update::builder()
                .table_name(THINGS)
                .key("id", AttributeValue::S("product".into()))
                .update_expression("SET n = n - :one")
                .condition_expression("n >= :one")
                .expression_attribute_values(":one", AttributeValue::N("1".into()))
                .return_values_on_condition_check_failure(
                    ReturnValuesOnConditionCheckFailure::AllOld,
                )
                .build()
                .unwrap()
        };
        for (name, done) in [
            ("built", Done::new("?").with(built())),
            ("the SDK's", Done::new("?").with(sdks())),
        ] {
            let done = done.on_condition_failed(|failed| {
                let item = failed.writes()[0].item.as_ref().unwrap();
                let left = number(item, "n");
                Err(Failure::permanent(format!("{left} are left")))
            });
            let key = &format!("{mode:?} {name}");
            let outcome = world.once_answered(mode, key, || Ok(done)).await;
            assert_eq!(outcome.to_string(), "permanent failure: 0 are left");
        }
    }
}

/// The plan of a second delivery meets the effect of the first.
#[tokio::test(start_paused = true)]
async fn duplicate_failing_its_own_plan_is_duplicate() {
    let world = World::start_paused().await;
    for mode in MODES {
        world.stock(1).await;
        let (by_plan, by_write) = (format!("{mode:?} plan"), format!("{mode:?} write"));
        let outcome = world
            .once_answered(mode, &by_plan, || Ok(order(&by_plan)))
            .await;
        assert_eq!(outcome.name(), "completed", "{outcome}");
        let sold_out = || Err(Failure::permanent("sold out"));
        let again = world.once_answered(mode, &by_plan, sold_out).await;
        assert_eq!(again.name(), "duplicate", "{by_plan}: {again}");

        world.stock(1).await;
        for expected in ["completed", "duplicate"] {
            let outcome = world
                .once_answered(mode, &by_write, || Ok(order(&by_write)))
                .await;
            assert_eq!(outcome.name(), expected, "{by_write}: {outcome}");
        }
        for key in [&by_plan, &by_write] {
            let ended = Some(("COMPLETED".to_owned(), None));
            assert_eq!(world.ended(key).await, ended, "{key}");
        }
        assert_eq!(world.left().await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn unrecorded_failure_is_not_final() {
    let world = World::start_paused().await;
    let denied = || Err(Failure::permanent("declined"));
    let handler = async |_| Err::<Done<()>, _>(Failure::permanent("declined"));
    let inbox = world.inbox(&world.no_timeout_client());
    for fault in [Fault::CutBefore, Fault::Throttle] {
        world.dynamo.fail_all("PutItem", fault);
        let outcome = inbox.run(operation("a", short()), handler).await;
        assert_eq!(outcome.name(), "failure_unrecorded", "{outcome}");
        world.dynamo.heal().await;
        assert_eq!(world.ended("a").await, None);
    }
    let outcome = world.once_answered(Mode::Inbox, "a", denied).await;
    assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
    let ended = Some(("FAILED".to_owned(), Some("declined".to_owned())));
    assert_eq!(world.ended("a").await, ended);
}

/// A table with another key schema refuses every record. The operator must fix the table, so the
/// messages return to the queue.
#[tokio::test(start_paused = true)]
async fn failure_refused_by_table_is_not_final() {
    let world = World::start_paused().await;
    let layout = Layout::native().rename([("id", "pk")]);
    let store = DynamoStore::new(world.no_timeout_client(), RECORDS).layout(layout.unwrap());
    let inbox = Once::new(store).inbox();
    let denied = async |_| Err::<Done<()>, _>(Failure::permanent("declined"));
    let placed = async |_| Ok(order("b"));
    let denied = inbox.run(operation("a", ample()), denied).await;
    assert_eq!(denied.name(), "failure_unrecorded", "{denied}");
    let placed = inbox.run(operation("b", ample()), placed).await;
    assert_eq!(placed.name(), "failure_unrecorded", "{placed}");
}

/// No claim has been refused before.
#[tokio::test(start_paused = true)]
async fn record_too_large_for_an_inbox_is_a_failure() {
    let world = World::start_paused().await;
    let inbox = world.inbox(&world.no_timeout_client());
    let key = Key::new(&namespace(), ["a"]).unwrap();
    let operation = Operation::new(key, None, "m".repeat(400 << 10), ample());
    let outcome = inbox.run(operation, async |_| Ok(order("a"))).await;
    assert_eq!(outcome.name(), "failure_unrecorded", "{outcome}");
    assert_eq!(world.ended("a").await, None);
}

/// The commit was sent before its message failed, and arrives after another message has failed too.
#[tokio::test(start_paused = true)]
async fn late_commit_after_two_failures_is_refused() {
    let world = World::start_paused().await;
    world.stock(1).await;
    world.dynamo.fail("TransactWriteItems", Fault::HoldRequest);
    let client = world.no_timeout_client();
    let inbox = world.inbox(&client);
    let placed = async |_| Ok(order("a"));
    tokio::select! {
        outcome = inbox.run(operation("a", ample()), placed) => panic!("{outcome}"),
        () = world.met("TransactWriteItems") => {}
    }
    for message in ["a", "b"] {
        let mut operation = operation("a", ample());
        operation.delivery = Delivery::new(message);
        let declined = async |_| Err::<Done<()>, _>(Failure::permanent(message));
        let outcome = inbox.run(operation, declined).await;
        assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
    }
    assert!(!world.dynamo.heal().await.is_empty());
    let failed = Some(("FAILED".to_owned(), Some("b".to_owned())));
    assert_eq!(world.ended("a").await, failed);
    assert_eq!(world.left().await, 1);
}

impl World {
    /// A record of the operation "a" that has expired and that DynamoDB's TTL has not deleted yet.
    async fn expired(&self) {
        let record = json!({"status": "COMPLETED", "result": "1", "expires_at": 1});
        self.record(7, record).await;
    }

    /// Writes a record of the operation "a" by another worker.
    async fn record(&self, version: u64, mut record: serde_json::Value) {
        let fields = json!({
            "id": "test#a",
            "owner": "another",
            "version": version,
            "message_id": "another",
            "attempts": 7,
            "updated_at": 1,
        });
        let record = record.as_object_mut().unwrap();
        record.extend(fields.as_object().unwrap().clone());
        let item = serde_dynamo::to_item(record).unwrap();
        self.dynamo.put(RECORDS, item).await;
    }
}

#[tokio::test(start_paused = true)]
async fn failure_over_expired_record_is_recorded() {
    let world = World::start_paused().await;
    world.expired().await;
    let declined = || Err(Failure::permanent("declined"));
    for expected in ["permanent_failure", "failed_before"] {
        let outcome = world.once_answered(Mode::Inbox, "a", declined).await;
        assert_eq!(outcome.name(), expected, "{outcome}");
    }
    let failed = Some(("FAILED".to_owned(), Some("declined".to_owned())));
    assert_eq!(world.ended("a").await, failed);
}

/// Nothing of an expired record matters but its stamp: a claim over it updates the item.
#[tokio::test(start_paused = true)]
async fn expired_record_is_replaced_by_an_update() {
    let world = World::start_paused().await;
    world.expired().await;
    world.dynamo.reset_counts();
    let handler = async |attempt: Attempt| {
        assert!(attempt.prior().is_none());
        Err::<(), _>(Failure::retryable("busy"))
    };
    let once = world.once(&world.no_timeout_client());
    let outcome = once.run(operation("a", ample()), handler).await;
    assert_eq!(outcome.name(), "retryable_failure", "{outcome}");
    // The insert is refused with the record, and the claim over it follows.
    let sent: Vec<_> = world.dynamo.reset_counts().into_iter().collect();
    assert_eq!(
        sent,
        [("Claim".to_owned(), 2), ("UpdateItem".to_owned(), 1)]
    );
    let record = world.dynamo.record(RECORDS, "test#a").await.unwrap();
    assert_eq!((attempts(&record), number(&record, "version")), (1, 9));
    assert!(!record.contains_key("result"), "{record:?}");
}

/// Another worker was first to replace the expired record, and its message failed.
#[tokio::test(start_paused = true)]
async fn claim_is_repeated_over_admitting_record() {
    let world = World::start_paused().await;
    world.expired().await;
    world.dynamo.fail("Claim", Fault::HoldRequest);
    let client = world.no_timeout_client();
    let once = world.once(&client);
    let handler = async |_: Attempt| Ok::<_, Failure>("done");
    let mut operation = operation("a", ample());
    operation.delivery = Delivery::new("a").receive_count(2);
    let claim = once.run(operation, handler);
    let other = async {
        world.met("Claim").await;
        let failed = json!({
            "status": "FAILED",
            "failures": r#"[{"at": 1, "error": "declined", "message_id": "m-1"}]"#,
            "expires_at": 9_999_999_999_u64,
        });
        world.record(8, failed).await;
        world.dynamo.heal().await;
    };
    let (outcome, ()) = tokio::join!(claim, other);
    assert_eq!(outcome.name(), "completed", "{outcome}");
}

/// Its handler may have had effects elsewhere too.
#[tokio::test(start_paused = true)]
async fn attempt_after_unanswered_commit_is_informed() {
    let world = World::start_paused().await;
    let client = &world.no_timeout_client();
    const COMMIT: &str = "TransactWriteItems";
    let attempt = async |key: &str, informed, deadline| {
        let handler = async |attempt: Attempt| {
            assert_eq!(attempt.prior().is_some(), informed, "{key}");
            Ok(order(key).on_condition_failed(|_| panic!("there is stock")))
        };
        world.stock(1).await;
        let operation = operation(key, deadline);
        world.once(client).run(operation, handler).await
    };
    for fault in [Fault::CutBefore, Fault::InternalError] {
        let key = &format!("{fault:?}");
        world.dynamo.fail_all(COMMIT, fault);
        let outcome = attempt(key, false, short()).await;
        assert_eq!(outcome.name(), "commit_unknown", "{key}: {outcome}");
        world.dynamo.heal().await;
        pass(LEASE);
        let outcome = attempt(key, true, ample()).await;
        assert_eq!(outcome.name(), "completed", "{key}: {outcome}");
    }
}

/// The library detects each before sending, and explains it.
#[tokio::test(start_paused = true)]
async fn unwritable_plan_is_not_sent() {
    let world = World::start_paused().await;
    let no_item = || Done::new("?").with(Write::put(THINGS, "s3cret").label("audit"));
    let no_value =
        || Done::new("?").with(take().value(":map", HashMap::from([((1, 2), "s3cret")])));
    let many = |mode: Mode, n: usize| {
        let id = |n| format!("{mode:?} {n}");
        let write = |n: usize| Write::put(THINGS, json!({"id": id(n), "secret": "s3cret"}));
        Done::new("?").with_all((0..n).map(write))
    };
    let mut written = 0;
    for mode in MODES {
        for (name, done, words) in [
            (
                "100 writes",
                many(mode, 100),
                "100 writes: a transaction holds at most 99 beside the record",
            ),
            (
                "no item",
                no_item(),
                "write 0 (audit): the item can't be an attribute",
            ),
            (
                "no value",
                no_value(),
                "write 0 (stock): :map can't be an attribute",
            ),
        ] {
            let key = &format!("{mode:?} {name}");
            world.dynamo.reset_counts();
            let outcome = world.once_answered(mode, key, || Ok(done)).await;
            let said = outcome.to_string();
            assert!(
                said.starts_with(&format!("permanent failure: {words}")),
                "{key}: {said}"
            );
            assert!(!said.contains("s3cret"), "{key}: {said}");
            assert_eq!(world.ended(key).await.unwrap().0, "FAILED", "{key}");
            // Only the record's own writes.
            let sent: Vec<_> = world.dynamo.reset_counts().into_iter().collect();
            let expected = match mode {
                Mode::Claim => vec![("Claim".to_owned(), 1), ("UpdateItem".to_owned(), 1)],
                Mode::Inbox => vec![("PutItem".to_owned(), 1)],
            };
            assert_eq!(sent, expected, "{key}");
        }
        assert_eq!(
            world.dynamo.records(THINGS).await.len(),
            written,
            "{mode:?}"
        );
        let most = || Ok(many(mode, 99));
        let outcome = world
            .once_answered(mode, &format!("{mode:?} 99"), most)
            .await;
        assert_eq!(outcome.name(), "completed", "{mode:?}: {outcome}");
        written += 99;
        assert_eq!(
            world.dynamo.records(THINGS).await.len(),
            written,
            "{mode:?}"
        );
    }

    world.dynamo.reset_counts();
    let item_mode = world.item_mode(&world.no_timeout_client());
    let create = Change::create((), "id", Write::put(THINGS, "s3cret"));
    let update = Change::update((), take().value(":map", HashMap::from([((1, 2), 3)])));
    for change in [create, update] {
        let outcome = item_mode
            .run(operation("c", ample()), async |_| Ok(change))
            .await;
        let said = outcome.to_string();
        assert!(
            said.contains("can't be an attribute") && !said.contains("s3cret"),
            "{said}"
        );
        assert_eq!(outcome.name(), "permanent_failure");
    }
    assert!(world.dynamo.reset_counts().is_empty());
}

/// A validation error of DynamoDB is permanent, and its stored text holds no payload.
#[tokio::test(start_paused = true)]
async fn validation_error_is_permanent_without_payload() {
    let world = World::start_paused().await;
    let secret = || Write::put(THINGS, json!({"id": "s3cret", "secret": "s3cret"}));
    let to = |expression: &str| {
        Write::update(THINGS, expression)
            .key("id", "s3cret")
            .value(":v", "s3cret")
    };
    world.stock(1).await;
    let cases = || {
        [
            (
                "two writes to one item",
                Done::new("?").with(secret()).with(to("SET a = :v")),
            ),
            (
                "a malformed expression",
                Done::new("?").with(to("SET a : = :v")),
            ),
            (
                "an unknown placeholder",
                Done::new("?").with(to("SET a = :v + :unknown")),
            ),
            ("a type that does not fit", {
                let write = Write::update(THINGS, "ADD n :v")
                    .key("id", "product")
                    .value(":v", "s3cret");
                Done::new("?").with(write)
            }),
            ("a number that is none", {
                let put = Put::builder()
                    .table_name(THINGS)
                    .item("id", AttributeValue::S("a".into()))
                    .item("n", AttributeValue::N("s3cret".into()));
                Done::new("?").with(put.build().unwrap())
            }),
            ("a set with the same value twice", {
                let put = Put::builder()
                    .table_name(THINGS)
                    .item("id", AttributeValue::S("a".into()))
                    .item("n", AttributeValue::Ss(vec!["s3cret".into(); 2]));
                Done::new("?").with(put.build().unwrap())
            }),
            ("an operand that does not fit", {
                let write = Write::update(THINGS, "SET n = n + :v")
                    .key("id", "product")
                    .value(":v", "s3cret");
                Done::new("?").with(write)
            }),
            (
                "no key",
                Done::new("?").with(Write::put(THINGS, json!({"secret": "s3cret"}))),
            ),
            (
                "an empty key",
                Done::new("?").with(Write::put(THINGS, json!({"id": "", "secret": "s3cret"}))),
            ),
            (
                "a key of another type",
                Done::new("?").with(Write::put(THINGS, json!({"id": 1, "secret": "s3cret"}))),
            ),
            ("too large", {
                let text = "s3cret".repeat(70_000);
                Done::new("?").with(Write::put(THINGS, json!({"id": "large", "text": text})))
            }),
        ]
    };
    for mode in MODES {
        for (name, done) in cases() {
            let key = &format!("{mode:?} {name}");
            let outcome = world.once_answered(mode, key, || Ok(done)).await;
            let said = outcome.to_string();
            assert_eq!(outcome.name(), "permanent_failure", "{key}: {said}");
            assert!(said.contains("Validation"), "{key}: {said}");
            assert!(!said.contains("s3cret"), "{key}: {said}");
            let (status, error) = world.ended(key).await.unwrap();
            assert_eq!(status, "FAILED", "{key}");
            assert!(!error.unwrap().contains("s3cret"), "{key}");
        }
    }
    assert_eq!(world.left().await, 1);
}

#[tokio::test(start_paused = true)]
async fn missing_table_is_named_and_message_fails() {
    let world = World::start_paused().await;
    let missing = || Write::put("no-such-table", json!({"id": "a"}));
    let mut outcomes = Vec::new();
    for mode in MODES {
        let key = format!("{mode:?}");
        let done = || Ok(order(&key).with(missing()));
        outcomes.push(world.once_answered(mode, &key, done).await);
    }
    let item_mode = world.item_mode(&world.no_timeout_client());
    let create = async |_| Ok(Change::create((), "id", missing()));
    outcomes.push(item_mode.run(operation("c", ample()), create).await);
    let mut names = Vec::new();
    for outcome in outcomes {
        let said = outcome.to_string();
        assert!(said.contains("no-such-table"), "{said}");
        assert!(said.contains("there is no such table"), "{said}");
        names.push(outcome.name());
    }
    assert_eq!(
        names,
        [
            "completion_unrecorded",
            "store_unavailable",
            "store_unavailable"
        ]
    );
    assert!(world.dynamo.records(THINGS).await.is_empty());
}

/// A reused key runs no handler and leaves the record unchanged.
#[tokio::test(start_paused = true)]
async fn key_reused_for_other_payload_is_refused() {
    let world = World::start_paused().await;
    world.stock(2).await;
    let client = &world.no_timeout_client();
    for mode in MODES {
        let key = format!("{mode:?}");
        assert_eq!(
            world
                .once_answered(mode, &key, || Ok(order(&key)))
                .await
                .name(),
            "completed"
        );
        let mut reused = operation(&key, ample());
        reused.fingerprint = Some(sqs_once::protocol::Fingerprint::of(b"another"));
        let handler = async |_| Ok(order("other"));
        let outcome = match mode {
            Mode::Claim => world.once(client).run(reused, handler).await,
            Mode::Inbox => world.inbox(client).run(reused, handler).await,
        };
        assert_eq!(outcome.name(), "key_reused", "{outcome}");
        assert!(world.dynamo.record(THINGS, "other").await.is_none());
    }
    assert_eq!(world.left().await, 0);
}
