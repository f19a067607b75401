//! Costs of a message: the requests on the wire.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use aws_sdk_dynamodb::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents, interceptors::BeforeTransmitInterceptorContextRef,
    },
    error::BoxError,
};
use serde_json::json;
use sqs_once::{Done, Write};
use support::{
    dynamo::{Counts, number, text},
    faults::Fault,
};

use super::world::{Attempt, EffectMode, RECORDS, THINGS, World, ample, operation};

fn counted(counts: &Counts) -> Vec<String> {
    let counted = counts.iter().map(|(name, n)| format!("{n} {name}"));
    counted.collect()
}

#[tokio::test(start_paused = true)]
async fn requests_per_message_match_documents() {
    let world = World::start_paused().await;
    let transaction = "1 TransactWriteItems";
    for (way, new, known) in [
        (
            EffectMode::Claim,
            &["1 Claim", transaction][..],
            &["1 Claim"][..],
        ),
        (
            EffectMode::BatchedClaim,
            &["1 ClaimGroup", transaction],
            &["1 ClaimGroup", "1 GetItem"],
        ),
        (EffectMode::Inbox, &[transaction], &[transaction]),
        (EffectMode::Create, &["1 PutItem"], &["1 PutItem"]),
        (EffectMode::Update, &["1 UpdateItem"], &["1 UpdateItem"]),
        (
            EffectMode::Modify,
            &["1 GetItem", "1 PutItem"],
            &["1 GetItem"],
        ),
    ] {
        let id = &format!("{way:?}");
        for (name, expected) in [
            ("completed", new),
            ("duplicate", known),
            ("duplicate", known),
        ] {
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

/// Collects the transactions that a client sends.
#[derive(Clone, Debug, Default)]
struct Transactions(Arc<Mutex<Vec<Bytes>>>);

/// Body of a transaction.
type Bytes = Vec<u8>;

fn token(body: &Bytes) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    body["ClientRequestToken"].as_str().unwrap().to_owned()
}

impl Transactions {
    fn of(&self, client: &Client) -> Client {
        let config = client.config().to_builder().interceptor(self.clone());
        Client::from_conf(config.build())
    }

    fn take(&self) -> Vec<Bytes> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Intercept for Transactions {
    fn name(&self) -> &'static str {
        "transactions"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let request = context.request();
        if request.headers().get("x-amz-target") == Some("DynamoDB_20120810.TransactWriteItems") {
            let body = request.body().bytes().unwrap();
            self.0.lock().unwrap().push(body.to_owned());
        }
        Ok(())
    }
}

/// Every repetition, by the SDK or by the library, is the same transaction by its token: owner and version of the
/// record are in it.
#[tokio::test(start_paused = true)]
async fn resent_transaction_is_identical() {
    let world = World::start_paused().await;
    for way in [EffectMode::Claim, EffectMode::Inbox] {
        for fault in [
            Fault::CutAfter,
            Fault::TransactionInProgress,
            Fault::Canceled(&["None", "TransactionConflict"]),
            Fault::Canceled(&["TransactionConflict", "None"]),
            Fault::Canceled(&["None", "ThrottlingError"]),
            Fault::Canceled(&["ProvisionedThroughputExceeded", "None"]),
            // The transaction conflicted, so its conditions will be evaluated again.
            Fault::Canceled(&["TransactionConflict", "ConditionalCheckFailed"]),
        ] {
            let id = &format!("{way:?} {fault:?}");
            let sent = Transactions::default();
            let client = &sent.of(&world.short_timeout_client());
            world.dynamo.fail("TransactWriteItems", fault);
            let deadline = ample();
            let attempt = Attempt {
                way,
                id,
                client,
                deadline,
            };
            let outcome = world.run(&attempt).await;
            assert_eq!(outcome.name(), "completed", "{id}: {outcome}");
            assert_eq!(world.effect(way, id).await, 1, "{id}");
            let key = operation(id, deadline).key;
            let record = world.dynamo.record(RECORDS, key.as_str()).await.unwrap();
            let sent = sent.take();
            assert!(sent.len() > 1, "{id}");
            let stamp = format!("{}{}", text(&record, "owner"), number(&record, "version"));
            assert_eq!(token(&sent[0]), stamp);
            // On a busy machine a request may also run out of time.
            let is_identical = sent.iter().all(|repeated| repeated == &sent[0]);
            assert!(is_identical, "{id}: identical bytes");
        }
    }
}

/// The copy without an answer can arrive when it is valid, so nothing is known yet.
#[tokio::test(start_paused = true)]
async fn invalid_answer_behind_unanswered_copy_is_unknown() {
    let world = World::start_paused().await;
    let invalid = Fault::Code("ValidationException");
    world.dynamo.fail("PutItem", invalid);
    let outcome = world.deliver(EffectMode::Create, "invalid").await;
    assert_eq!(outcome.name(), "permanent_failure", "{outcome}");
    world.dynamo.fail("PutItem", Fault::CutBefore);
    world.dynamo.fail("PutItem", invalid);
    let outcome = world.deliver(EffectMode::Create, "unknown").await;
    assert_eq!(outcome.name(), "commit_unknown", "{outcome}");
}

/// Three answers to one message are three transactions, though one owner sends them.
#[tokio::test(start_paused = true)]
async fn changed_plan_is_another_transaction() {
    let world = World::start_paused().await;
    let put = |id: &str| Write::put(THINGS, json!({"id": id})).when("attribute_not_exists(id)");
    let taken = serde_dynamo::to_item(json!({"id": "taken"})).unwrap();
    world.dynamo.put(THINGS, taken).await;
    for mode in [EffectMode::Claim, EffectMode::Inbox] {
        let free = &format!("free of {mode:?}");
        let plan = async |_| {
            let last = put(free);
            let third = move |_: &_| Ok(Done::new(3).with(last));
            let second =
                move |_: &_| Ok(Done::new(2).with(put("taken")).on_condition_failed(third));
            Ok(Done::new(1).with(put("taken")).on_condition_failed(second))
        };
        let sent = Transactions::default();
        let client = sent.of(&world.no_timeout_client());
        let operation = operation(free, ample());
        let outcome = match mode {
            EffectMode::Claim => world.once(&client).run(operation, plan).await,
            _ => world.inbox(&client).run(operation, plan).await,
        };
        assert_eq!(outcome.name(), "completed", "{outcome}");
        assert!(world.dynamo.record(THINGS, free).await.is_some());
        let tokens: BTreeSet<_> = sent.take().iter().map(token).collect();
        assert_eq!(tokens.len(), 3, "{tokens:?}");
    }
}
