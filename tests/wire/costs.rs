//! Costs of a message in the claim mode: requests, and the units that DynamoDB counts for those that it accepts. The
//! rows are those of `docs/sizing.md`.

use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::{BeforeSerializationInterceptorContextMut, FinalizerInterceptorContextRef},
    },
    error::BoxError,
    operation::{
        batch_execute_statement::{BatchExecuteStatementInput, BatchExecuteStatementOutput},
        get_item::{GetItemInput, GetItemOutput},
        put_item::{PutItemInput, PutItemOutput},
        update_item::{UpdateItemInput, UpdateItemOutput},
    },
    types::{ConsumedCapacity, ReturnConsumedCapacity::Total},
};
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once,
    protocol::Timestamp,
    store::{AnyStore, Batched, DynamoStore},
};
use support::{
    clock,
    consumer::{namespace, process},
    dynamo::Dynamo,
    event::{batch, received, sent_at},
};

use crate::modes::world::{SECOND, now, pass, use_paused_clock};

const TABLE: &str = "idempotency";

/// Units of the requests that DynamoDB accepted: of reads, and of writes.
#[derive(Clone, Debug, Default)]
struct Units(Arc<Mutex<(f64, f64)>>);

impl Units {
    fn take(&self) -> (f64, f64) {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn add(&self, is_read: bool, used: Option<&ConsumedCapacity>) {
        let units = used.and_then(ConsumedCapacity::capacity_units).unwrap();
        let (reads, writes) = &mut *self.0.lock().unwrap();
        *(if is_read { reads } else { writes }) += units;
    }
}

impl Intercept for Units {
    fn name(&self) -> &'static str {
        "units"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let input = context.input_mut();
        if let Some(get) = input.downcast_mut::<GetItemInput>() {
            get.return_consumed_capacity = Some(Total);
        } else if let Some(put) = input.downcast_mut::<PutItemInput>() {
            put.return_consumed_capacity = Some(Total);
        } else if let Some(update) = input.downcast_mut::<UpdateItemInput>() {
            update.return_consumed_capacity = Some(Total);
        } else if let Some(batch) = input.downcast_mut::<BatchExecuteStatementInput>() {
            batch.return_consumed_capacity = Some(Total);
        }
        Ok(())
    }

    fn read_after_execution(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(Ok(output)) = context.output_or_error() else {
            return Ok(());
        };
        if let Some(get) = output.downcast_ref::<GetItemOutput>() {
            self.add(true, get.consumed_capacity());
        } else if let Some(put) = output.downcast_ref::<PutItemOutput>() {
            self.add(false, put.consumed_capacity());
        } else if let Some(update) = output.downcast_ref::<UpdateItemOutput>() {
            self.add(false, update.consumed_capacity());
        } else if let Some(batch) = output.downcast_ref::<BatchExecuteStatementOutput>() {
            for used in batch.consumed_capacity() {
                self.add(false, Some(used));
            }
        }
        Ok(())
    }
}

/// What the handler does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Succeed,
    Fail,
    Decline,
    Hang,
}
use Act::{Decline, Fail, Hang, Succeed};

#[derive(Clone)]
struct Scripted(Act);

impl Handler for Scripted {
    type Message = Value;
    type Output = ();

    async fn handle(&self, _: Value, _: Attempt) -> Result<(), Failure> {
        match self.0 {
            Succeed => Ok(()),
            Fail => Err(Failure::retryable("busy")),
            Decline => Err(Failure::permanent("declined")),
            Hang => std::future::pending().await,
        }
    }
}

struct World {
    dynamo: Dynamo,
    client: Client,
    units: Units,
}

impl World {
    async fn start() -> Self {
        use_paused_clock();
        let (dynamo, units) = (Dynamo::in_memory(), Units::default());
        dynamo.create_table(TABLE).await;
        let client = dynamo.worker(None);
        let config = client.config().to_builder().interceptor(units.clone());
        Self {
            client: Client::from_conf(config.build()),
            dynamo,
            units,
        }
    }

    /// Processes messages in a process of their own. A handler that hangs ends with its process.
    async fn deliver(&self, act: Act, messages: impl IntoIterator<Item = Value>) -> Vec<String> {
        let messages: Vec<_> = messages.into_iter().collect();
        let store = DynamoStore::new(self.client.clone(), TABLE);
        let store = match messages.len() {
            1 => AnyStore::DynamoDb(store),
            _ => AnyStore::Batched(Batched::new(store)),
        };
        let once = Once::new(store).clock(now);
        let consumer = Consumer::without_aws(once, namespace(), Scripted(act))
            .concurrency(messages.len().try_into().unwrap());
        let consumer = Arc::new(consumer.key("body:/id".parse().unwrap()));
        let deadline = Deadline::after(now(), 60 * SECOND, SECOND);
        let processed = process(&consumer, batch(messages), deadline);
        match act {
            Hang => tokio::select! {
                failed = processed => panic!("{failed:?}"),
                () = tokio::time::sleep(SECOND) => Vec::new(),
            },
            _ => processed.await,
        }
    }

    /// Requests and units since the last look: `1 Claim + 1 UpdateItem: 0 read, 2 written`.
    fn cost(&self) -> String {
        let counts = self.dynamo.reset_counts().into_iter();
        let requests = counts.map(|(name, n)| format!("{n} {name}"));
        let (read, written) = self.units.take();
        let requests: Vec<_> = requests.collect();
        format!("{}: {read} read, {written} written", requests.join(" + "))
    }

    #[track_caller]
    fn assert_cost(&self, row: &str, expected: &str) {
        assert_eq!(self.cost(), expected, "{row}");
    }
}

/// The message `id` of the operation `key`, received for the `n`th time.
fn message(key: &str, id: &str, n: u32) -> Value {
    received(id, &json!({ "id": key }), n)
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_message_match_the_page_of_costs() {
    const FRESH: &str = "1 Claim + 1 UpdateItem: 0 read, 2 written";
    const AFTER_A_READ: &str = "1 Claim + 1 GetItem + 1 UpdateItem: 1 read, 2 written";
    const READ: &str = "1 GetItem: 1 read, 0 written";
    // The condition of the write failed: DynamoDB counts a unit, and the answer has none.
    const REFUSED: &str = "1 Claim: 0 read, 0 written";
    let world = World::start().await;
    let none = [""; 0];

    assert_eq!(world.deliver(Succeed, [message("a", "a", 1)]).await, none);
    world.assert_cost("new", FRESH);
    assert_eq!(world.deliver(Succeed, [message("a", "a", 2)]).await, none);
    world.assert_cost("duplicate at a later receive", READ);
    assert_eq!(world.deliver(Succeed, [message("a", "a-2", 1)]).await, none);
    world.assert_cost("second message of a completed key", REFUSED);

    assert_eq!(world.deliver(Succeed, [message("b", "b", 2)]).await, none);
    world.assert_cost("not run before, at a later receive", AFTER_A_READ);

    assert_eq!(world.deliver(Fail, [message("c", "c", 1)]).await, ["c"]);
    world.assert_cost("failed", FRESH);
    pass(SECOND);
    assert_eq!(world.deliver(Succeed, [message("c", "c", 2)]).await, none);
    world.assert_cost("retry", AFTER_A_READ);

    world.deliver(Hang, [message("d", "d", 1)]).await;
    world.assert_cost("dies", "1 Claim: 0 read, 1 written");
    assert_eq!(
        world.deliver(Succeed, [message("d", "d-2", 1)]).await,
        ["d-2"]
    );
    world.assert_cost("conflict at its first receive", REFUSED);
    assert_eq!(world.deliver(Succeed, [message("d", "d", 2)]).await, ["d"]);
    world.assert_cost("conflict at a later receive", READ);
    pass(120 * SECOND);
    assert_eq!(world.deliver(Succeed, [message("d", "d", 3)]).await, none);
    // It waits until it may run alone, and reads again then.
    let alone = "1 Claim + 2 GetItem + 1 UpdateItem: 2 read, 2 written";
    world.assert_cost("taken over after a crash", alone);

    assert_eq!(world.deliver(Decline, [message("e", "e", 1)]).await, ["e"]);
    world.assert_cost("declined", FRESH);
    assert_eq!(world.deliver(Succeed, [message("e", "e", 2)]).await, ["e"]);
    world.assert_cost("failed before", READ);
    // Later than the failure, which is never before its message.
    let later = Timestamp::from_millis(1_796_000_000_000).max(clock::now()) + 3600 * SECOND;
    let mut redriven = sent_at(message("e", "e-2", 1), later);
    redriven["messageAttributes"] = json!({"SqsOnceRedriveOf": {
        "stringValue": "e", "dataType": "String", "stringListValues": [], "binaryListValues": [],
    }});
    assert_eq!(world.deliver(Succeed, [redriven]).await, none);
    world.assert_cost("redriven", AFTER_A_READ);

    let second = |n: u32| message(&format!("f-{n}"), &format!("f-{n} again"), 1);
    let first = |n: u32| message(&format!("f-{n}"), &format!("f-{n}"), 1);
    assert_eq!(world.deliver(Succeed, (0..25).map(first)).await, none);
    let batched = "1 ClaimGroup + 1 SettlementGroup: 0 read, 50 written";
    world.assert_cost("new, batched", batched);
    assert_eq!(world.deliver(Succeed, (0..25).map(second)).await, none);
    let batched = "1 ClaimGroup + 25 GetItem: 25 read, 0 written";
    world.assert_cost("second messages of completed keys, batched", batched);
}
