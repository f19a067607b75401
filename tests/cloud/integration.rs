//! The consumer between real queues and a real table: SQS and DynamoDB at `AWS_ENDPOINT_URL`, an
//! emulator or LocalStack, or with `make test-aws` those of AWS.
//!
//! Nothing is deployed. The tests act as the event source mapping: receive, invoke the release
//! binary, delete the messages not reported as failed. Each test runs with both choices of key:
//! `message-id`, the default, and `body:/orderId`, the business key.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, resume_unwind},
    time::Duration,
};

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName, QueueAttributeName};
use futures_util::FutureExt;
use serde_json::{Value, json};
use support::{
    PATIENCE,
    cloud::Cloud,
    dynamo::{create_table, record, text},
    event::{batch, failed, order, polled},
    gateway::{Gateway, Reply},
    prerequisite::{NO_EMULATOR, missing},
    runtime_api::{Answer, Lambda, NAMESPACE},
};
use tokio::{
    join,
    process::Command,
    time::{Instant, timeout},
};

/// Visibility timeout of the queue, after which the message of a killed worker returns. The lease
/// must end before that.
const VISIBILITY: Duration = Duration::from_secs(3);
/// A visibility timeout longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// Timeout of the function.
const TIME: Duration = Duration::from_secs(2);
/// Receives until SQS moves a message to the dead-letter queue.
const RECEIVES: usize = 3;

/// Source of the idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    MessageId,
    OrderId,
}

impl Key {
    /// The value of `IDEMPOTENCY_KEY`.
    fn source(self) -> &'static str {
        match self {
            Self::MessageId => "message-id",
            Self::OrderId => "body:/orderId",
        }
    }
}

/// Queues and a table of a single test.
struct World {
    key: Key,
    cloud: Cloud,
    sqs: aws_sdk_sqs::Client,
    dynamodb: aws_sdk_dynamodb::Client,
    table: String,
    queue: Queue,
    dead_letters: Queue,
    gateway: Gateway,
}

struct Queue {
    url: String,
    arn: String,
}

/// An order that was sent.
struct Sent {
    order: String,
    message_id: String,
}

/// Runs a test once for each choice of key, each time in a new world.
async fn in_each_world(test: impl AsyncFn(&World)) {
    in_each_world_that_hides(VISIBILITY, test).await;
}

/// Sets the visibility timeout of the queue.
async fn in_each_world_that_hides(visibility: Duration, test: impl AsyncFn(&World)) {
    let run = async |key| in_a_world(key, visibility, &test).await;
    join!(run(Key::MessageId), run(Key::OrderId));
}

/// Deletes the world, even if the test panics.
async fn in_a_world(key: Key, visibility: Duration, test: &impl AsyncFn(&World)) {
    let world = World::create(key, visibility).await;
    let outcome = AssertUnwindSafe(test(&world)).catch_unwind().await;
    world.delete().await;
    if let Err(panic) = outcome {
        eprintln!("with the key {}:", key.source());
        resume_unwind(panic);
    }
}

impl World {
    async fn create(key: Key, visibility: Duration) -> Self {
        let Some(cloud) = Cloud::named().await else {
            missing(NO_EMULATOR);
        };
        let sqs = aws_sdk_sqs::Client::new(&cloud.config);
        let dynamodb = aws_sdk_dynamodb::Client::new(&cloud.config);
        let name = cloud.new_name();
        create_table(&dynamodb, &name).await;
        let dead_letters = create_queue(&sqs, &format!("{name}-dlq"), []).await;
        let redrive = json!({
            "deadLetterTargetArn": dead_letters.arn,
            "maxReceiveCount": RECEIVES.to_string(),
        });
        let attributes = [
            (QueueAttributeName::RedrivePolicy, redrive.to_string()),
            (
                QueueAttributeName::VisibilityTimeout,
                visibility.as_secs().to_string(),
            ),
        ];
        Self {
            key,
            queue: create_queue(&sqs, &name, attributes).await,
            dead_letters,
            table: name,
            gateway: Gateway::start().await,
            cloud,
            sqs,
            dynamodb,
        }
    }

    async fn delete(self) {
        for queue in [self.queue, self.dead_letters] {
            let delete = self.sqs.delete_queue().queue_url(queue.url);
            delete.send().await.unwrap();
        }
        let delete = self.dynamodb.delete_table().table_name(self.table);
        delete.send().await.unwrap();
    }

    async fn consumer(&self) -> Lambda {
        self.consumer_with(&[]).await
    }

    async fn consumer_with(&self, settings: &[(&str, &str)]) -> Lambda {
        let env = [
            ("IDEMPOTENCY_TABLE_NAME", self.table.as_str()),
            ("IDEMPOTENCY_NAMESPACE", NAMESPACE),
            ("IDEMPOTENCY_KEY", self.key.source()),
            ("CONSUMER_BACKOFF_BASE", "1s"),
            ("PAYMENT_GATEWAY_URL", self.gateway.url()),
        ];
        let env = env.iter().chain(settings);
        let env = env.map(|(name, value)| (name.to_string(), value.to_string()));
        let env = self.cloud.environment.iter().cloned().chain(env);
        Lambda::start(env.collect()).await
    }

    async fn send(&self, id: &str) -> Sent {
        Sent {
            order: id.to_owned(),
            message_id: self.send_body(order(id).to_string()).await,
        }
    }

    /// Sends a message and returns its id.
    async fn send_body(&self, body: impl Into<String>) -> String {
        let send = self.sqs.send_message().queue_url(&self.queue.url);
        let sent = send.message_body(body).send().await.unwrap();
        sent.message_id.unwrap()
    }

    /// Redrives the messages of the dead-letter queue, once it holds any. Each gets a new message
    /// id, as on AWS.
    async fn redrive(&self) {
        for letter in self.receive_some(&self.dead_letters).await {
            self.send_body(letter.body.unwrap()).await;
            let delete = (self.sqs.delete_message()).queue_url(&self.dead_letters.url);
            let delete = delete.set_receipt_handle(letter.receipt_handle);
            delete.send().await.unwrap();
        }
    }

    async fn receive(&self, queue: &Queue) -> Vec<Message> {
        let receive = self
            .sqs
            .receive_message()
            .queue_url(&queue.url)
            .max_number_of_messages(10)
            .wait_time_seconds(1)
            .message_system_attribute_names(MessageSystemAttributeName::All)
            .message_attribute_names("All");
        receive.send().await.unwrap().messages.unwrap_or_default()
    }

    /// Receives until a message arrives.
    async fn receive_some(&self, queue: &Queue) -> Vec<Message> {
        let some = async {
            loop {
                let messages = self.receive(queue).await;
                if !messages.is_empty() {
                    return messages;
                }
            }
        };
        timeout(PATIENCE, some).await.unwrap()
    }

    fn event(&self, messages: &[Message]) -> Value {
        batch(
            messages
                .iter()
                .map(|message| polled(message, &self.queue.arn)),
        )
    }

    /// Deletes the processed messages. The rest return at their visibility timeout, which the
    /// consumer or else the queue has set.
    async fn settle(&self, messages: Vec<Message>, answer: Answer) {
        let Answer::Response(response) = answer else {
            return;
        };
        let failed = failed(&response);
        for message in messages {
            if failed.contains(message.message_id.as_ref().unwrap()) {
                continue;
            }
            let delete = self.sqs.delete_message().queue_url(&self.queue.url);
            let delete = delete.set_receipt_handle(message.receipt_handle);
            delete.send().await.unwrap();
        }
    }

    /// Polls and invokes until the queue is empty, in-flight messages included.
    async fn drain(&self, lambda: &Lambda) {
        let drained = async {
            let mut empty = 0;
            loop {
                empty = if self.left().await == 0 { empty + 1 } else { 0 };
                if empty == self.cloud.empty_reads {
                    return;
                }
                let messages = self.receive(&self.queue).await;
                if !messages.is_empty() {
                    let answer = lambda.invoke(self.event(&messages), TIME).await;
                    self.settle(messages, answer).await;
                }
            }
        };
        timeout(VISIBILITY * 4 + PATIENCE, drained).await.unwrap();
    }

    async fn left(&self) -> usize {
        use QueueAttributeName::{
            ApproximateNumberOfMessages as Visible, ApproximateNumberOfMessagesNotVisible as Hidden,
        };
        let get = self.sqs.get_queue_attributes().queue_url(&self.queue.url);
        let get = get.attribute_names(Visible).attribute_names(Hidden);
        let attributes = get.send().await.unwrap().attributes.unwrap();
        attributes
            .values()
            .map(|n| n.parse::<usize>().unwrap())
            .sum()
    }

    /// The id of an order's record.
    fn record_id(&self, sent: &Sent) -> String {
        let key = match self.key {
            Key::MessageId => &sent.message_id,
            Key::OrderId => &sent.order,
        };
        format!("{NAMESPACE}#{key}")
    }

    async fn status(&self, sent: &Sent) -> String {
        let record = record(&self.dynamodb, &self.table, &self.record_id(sent)).await;
        text(&record.unwrap(), "status").to_owned()
    }

    fn charges(&self, order: &str) -> usize {
        self.gateway.calls_for(order).len()
    }

    /// Distinct `Idempotency-Key`s of an order's charges. A gateway that honours the header charges
    /// once for each.
    fn charge_keys(&self, order: &str) -> usize {
        let calls = self.gateway.calls_for(order).into_iter();
        calls
            .map(|call| call.key.unwrap())
            .collect::<BTreeSet<_>>()
            .len()
    }
}

async fn create_queue(
    sqs: &aws_sdk_sqs::Client,
    name: &str,
    attributes: impl IntoIterator<Item = (QueueAttributeName, String)>,
) -> Queue {
    let mut create = sqs.create_queue().queue_name(name);
    for (name, value) in attributes {
        create = create.attributes(name, value);
    }
    let url = create.send().await.unwrap().queue_url.unwrap();
    let get = sqs.get_queue_attributes().queue_url(&url);
    let get = get.attribute_names(QueueAttributeName::QueueArn);
    let attributes = get.send().await.unwrap().attributes.unwrap();
    let arn = attributes[&QueueAttributeName::QueueArn].clone();
    Queue { url, arn }
}

#[tokio::test]
async fn orders_charge_once_and_failures_are_dead_lettered() {
    in_each_world(async |world| {
        // SQS moves the failures. The consumer would send copies with new ids.
        let lambda = world
            .consumer_with(&[("CONSUMER_DIRECT_DEAD_LETTERING", "off")])
            .await;
        let mut good = Vec::new();
        for n in 1..=12 {
            good.push(world.send(&format!("o-{n}")).await);
        }
        world
            .gateway
            .script("flaky", [Reply::Status(503), Reply::Status(500)]);
        let flaky = world.send("flaky").await;
        world.gateway.script("declined", [Reply::Status(402)]);
        let declined = world.send("declined").await;
        let undecodable = world.send_body("{\"orderId\": ").await;
        let dead = BTreeSet::from([declined.message_id.clone(), undecodable]);

        world.drain(&lambda).await;

        for sent in &good {
            assert_eq!(world.charges(&sent.order), 1, "{}", sent.order);
            assert_eq!(world.status(sent).await, "COMPLETED", "{}", sent.order);
        }
        for (sent, calls, status) in [(flaky, 3, "COMPLETED"), (declined, 1, "FAILED")] {
            assert_eq!(world.charges(&sent.order), calls, "{}", sent.order);
            assert_eq!(world.status(&sent).await, status, "{}", sent.order);
        }
        let mut found = BTreeSet::new();
        while found.len() < dead.len() {
            let letters = world.receive_some(&world.dead_letters).await;
            found.extend(letters.into_iter().map(|letter| letter.message_id.unwrap()));
        }
        assert_eq!(found, dead);
    })
    .await;
}

#[tokio::test]
async fn order_sent_twice_is_charged_once_by_order_id() {
    in_each_world(async |world| {
        let lambda = world.consumer().await;
        // Two messages that may share a batch, and a third after the first is recorded.
        let twice = [world.send("o-1").await, world.send("o-1").await];
        world.drain(&lambda).await;
        let thrice = world.send("o-1").await;
        world.drain(&lambda).await;

        let charges = match world.key {
            Key::OrderId => 1,
            Key::MessageId => 3,
        };
        assert_eq!(world.charges("o-1"), charges);
        assert_eq!(world.charge_keys("o-1"), charges);
        for sent in twice.iter().chain([&thrice]) {
            assert_eq!(world.status(sent).await, "COMPLETED");
        }
    })
    .await;
}

/// The gateway takes the charge and returns 500, and then refuses the order: the call key stays.
#[tokio::test]
async fn redriven_order_is_charged_once_by_order_id() {
    in_each_world(async |world| {
        let lambda = world.consumer().await;
        let replies = [Reply::Status(500), Reply::Status(422)];
        world.gateway.script("o-1", replies);
        let sent = world.send("o-1").await;
        world.drain(&lambda).await;
        assert_eq!(world.charges("o-1"), 2);
        assert_eq!(world.charge_keys("o-1"), 1);
        assert_eq!(world.status(&sent).await, "FAILED");

        world.redrive().await;
        world.drain(&lambda).await;
        assert_eq!(world.charges("o-1"), 3);
        let (keys, status) = match world.key {
            Key::OrderId => (1, "COMPLETED"),
            // The new message id has its own record.
            Key::MessageId => (2, "FAILED"),
        };
        assert_eq!(world.charge_keys("o-1"), keys);
        assert_eq!(world.status(&sent).await, status);
    })
    .await;
}

#[tokio::test]
async fn lost_delete_message_charges_once() {
    in_each_world(async |world| {
        let lambda = world.consumer().await;
        world.send("o-1").await;
        let messages = world.receive_some(&world.queue).await;
        let answer = lambda.invoke(world.event(&messages), TIME).await;
        assert_eq!(failed(&answer.response()), [""; 0]);

        world.drain(&lambda).await;
        let deliveries = |line: &Value| line["message_id"].is_string();
        let lines = lambda.logged(2, deliveries).await;
        assert_eq!(lines[1]["receive_count"], 2);
        assert_eq!(world.charges("o-1"), 1);
    })
    .await;
}

/// Without this, a mistaken profile would write to the wrong account.
#[tokio::test]
async fn other_account_is_refused_before_first_write() {
    let Some(cloud) = Cloud::named().await else {
        missing(NO_EMULATOR);
    };
    let run = format!("sqs-once-test-{}", uuid::Uuid::new_v4());
    let refused = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "integration::lost_delete_message_charges_once"])
        .envs(cloud.environment)
        .env("SQS_ONCE_TEST_ACCOUNT", "123456789012")
        .env("SQS_ONCE_TEST_RUN", &run)
        .output();
    let output = refused.await.unwrap();
    assert!(!output.status.success());
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("123456789012"), "{stdout}");

    let dynamodb = aws_sdk_dynamodb::Client::new(&cloud.config);
    let tables = dynamodb.list_tables().into_paginator().items().send();
    let tables: Vec<String> = tables.try_collect().await.unwrap();
    assert!(!tables.iter().any(|table| table.starts_with(&run)));
}

#[tokio::test]
async fn permanent_failure_is_dead_lettered_fast() {
    in_each_world_that_hides(LONG, async |world| {
        let lambda = world.consumer().await;
        world.gateway.script("declined", [Reply::Status(402)]);
        world.send("declined").await;
        world.send_body("{\"orderId\": ").await;

        let started = Instant::now();
        world.drain(&lambda).await;
        assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
        assert_eq!(world.charges("declined"), 1);
        let mut dead = 0;
        while dead < 2 {
            dead += world.receive_some(&world.dead_letters).await.len();
        }
    })
    .await;
}

#[tokio::test]
async fn direct_dead_lettering_copies_reason() {
    in_each_world_that_hides(LONG, async |world| {
        let lambda = world
            .consumer_with(&[("CONSUMER_DIRECT_DEAD_LETTERING", "on")])
            .await;
        world.gateway.script("declined", [Reply::Status(402)]);
        let sent = world.send("declined").await;
        let messages = world.receive_some(&world.queue).await;
        let answer = lambda.invoke(world.event(&messages), TIME).await;
        assert_eq!(failed(&answer.response()), [""; 0]);

        let letters = world.receive_some(&world.dead_letters).await;
        assert_eq!(letters.len(), 1);
        let body = order("declined").to_string();
        assert_eq!(letters[0].body.as_deref(), Some(body.as_str()));
        let attributes = letters[0].message_attributes.as_ref().unwrap();
        let text = |name: &str| attributes[name].string_value.as_deref().unwrap();
        assert_eq!(text("SqsOnceReason"), "permanent_failure");
        assert_eq!(text("SqsOnceKey"), world.record_id(&sent));
        assert!(text("SqsOnceError").contains("402"));
        assert_eq!(world.status(&sent).await, "FAILED");
    })
    .await;
}

#[tokio::test]
async fn conflict_costs_one_receive() {
    // With a visibility timeout of one second, the message would be dead-lettered before the lease
    // ends.
    in_each_world_that_hides(Duration::from_secs(1), async |world| {
        world.gateway.script("o-1", [Reply::Hang]);
        world.send("o-1").await;
        let victim = world.consumer().await;
        let messages = world.receive_some(&world.queue).await;
        let lease = Duration::from_secs(6);
        let _exited = join!(victim.invoke(world.event(&messages), lease), async {
            world.gateway.arrived("o-1", 1).await;
            victim.kill().await
        });

        let survivor = world.consumer().await;
        world.drain(&survivor).await;
        let deliveries = survivor
            .logged(2, |line| line["message_id"].is_string())
            .await;
        let of = |n: usize| (&deliveries[n]["receive_count"], &deliveries[n]["outcome"]);
        assert_eq!(of(0), (&json!(2), &json!("conflict")));
        assert_eq!(of(1), (&json!(3), &json!("completed")));
        assert_eq!(world.charges("o-1"), 2);
        assert_eq!(world.charge_keys("o-1"), 1);
    })
    .await;
}
