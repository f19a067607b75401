//! The consumer between real queues and a real table: SQS and DynamoDB wherever
//! `AWS_ENDPOINT_URL` points, an emulator or LocalStack.
//!
//! Nothing is deployed. The tests do what the event source mapping does: receive, invoke the
//! release binary, delete what was not reported as failed.

#![allow(
    clippy::unwrap_used,
    reason = "in a test, what cannot be set up is a failure"
)]

mod support;

use std::{
    collections::{BTreeSet, HashMap},
    panic::{AssertUnwindSafe, resume_unwind},
    time::Duration,
};

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName, QueueAttributeName};
use futures_util::FutureExt;
use serde_json::{Value, json};
use support::{
    PATIENCE,
    dynamo::{create_table, record, text},
    event::{batch, failed, order},
    gateway::{Gateway, Reply},
    runtime_api::{Answer, FUNCTION_NAME, Lambda},
};
use tokio::{
    join,
    time::{Instant, timeout},
};

/// The queue's visibility timeout: when a message is back whose worker was killed. A lease must
/// have ended by then.
const VISIBILITY: Duration = Duration::from_secs(3);
/// A visibility timeout that no test lives to see the end of.
const LONG: Duration = Duration::from_secs(60);
/// The function's timeout.
const TIME: Duration = Duration::from_secs(2);
/// Receives until a message is moved to the dead-letter queue.
const RECEIVES: usize = 3;

/// Queues and a table of one test's own.
struct World {
    endpoint: String,
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

/// Runs a test in a world of its own, and takes that down however the test ends.
async fn in_a_world(test: impl AsyncFnOnce(&World)) {
    in_a_world_that_hides(VISIBILITY, test).await;
}

/// With a visibility timeout of its queue's own.
async fn in_a_world_that_hides(visibility: Duration, test: impl AsyncFnOnce(&World)) {
    let world = World::create(visibility).await;
    let outcome = AssertUnwindSafe(test(&world)).catch_unwind().await;
    world.delete().await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

impl World {
    async fn create(visibility: Duration) -> Self {
        let endpoint = std::env::var("AWS_ENDPOINT_URL").unwrap_or_default();
        assert!(
            !endpoint.is_empty(),
            "AWS_ENDPOINT_URL is not set: `make test` starts an emulator and sets it, \
             `make test-localstack` takes one that is up"
        );
        let config = support::sdk_config(&endpoint);
        let sqs = aws_sdk_sqs::Client::new(&config);
        let dynamodb = aws_sdk_dynamodb::Client::new(&config);
        let name = format!("sqs-once-{}", uuid::Uuid::new_v4());
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
            queue: create_queue(&sqs, &name, attributes).await,
            dead_letters,
            table: name,
            gateway: Gateway::start().await,
            endpoint,
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
            ("AWS_ENDPOINT_URL", self.endpoint.as_str()),
            ("IDEMPOTENCY_TABLE_NAME", &self.table),
            ("IDEMPOTENCY_KEY", "body:/orderId"),
            // The lease then ends with the function's time, before the message is seen again.
            ("IDEMPOTENCY_LEASE_MARGIN", "0s"),
            ("CONSUMER_BACKOFF_BASE", "1s"),
            ("PAYMENT_GATEWAY_URL", self.gateway.url()),
        ];
        let env = env.iter().chain(settings);
        let env = env.map(|(name, value)| (name.to_string(), value.to_string()));
        Lambda::start(env.collect()).await
    }

    /// Sends a message and tells its id.
    async fn send(&self, body: impl Into<String>) -> String {
        let send = self.sqs.send_message().queue_url(&self.queue.url);
        let sent = send.message_body(body).send().await.unwrap();
        sent.message_id.unwrap()
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

    /// Receives until there is something.
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
        batch(messages.iter().map(|message| self.record(message)))
    }

    /// As the event source mapping writes it down.
    fn record(&self, message: &Message) -> Value {
        let attributes = message.attributes.iter().flatten();
        let attributes = attributes.map(|(name, value)| (name.as_str(), value.as_str()));
        json!({
            "messageId": message.message_id,
            "receiptHandle": message.receipt_handle,
            "body": message.body,
            "attributes": attributes.collect::<HashMap<_, _>>(),
            "messageAttributes": {},
            "md5OfBody": message.md5_of_body,
            "eventSource": "aws:sqs",
            "eventSourceARN": self.queue.arn,
            "awsRegion": support::REGION,
        })
    }

    /// Deletes what was processed; the rest comes back when the consumer said, or else when the
    /// queue's visibility timeout is over.
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

    /// Polls and invokes until nothing is left in the queue, in sight or out of it.
    async fn drain(&self, lambda: &Lambda) {
        let drained = async {
            while self.left().await > 0 {
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

    async fn status(&self, order: &str) -> String {
        let id = format!("{FUNCTION_NAME}#{order}");
        let record = record(&self.dynamodb, &self.table, &id).await.unwrap();
        text(&record, "status").to_owned()
    }

    fn charges(&self, order: &str) -> usize {
        self.gateway.calls_for(order).len()
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
async fn each_order_is_charged_once_and_only_what_failed_for_good_is_dead() {
    in_a_world(async |world| {
        let lambda = world.consumer().await;
        for n in 1..=12 {
            world.send(order(&format!("o-{n}")).to_string()).await;
        }
        for _ in 0..2 {
            world.send(order("twice").to_string()).await;
        }
        world
            .gateway
            .script("flaky", [Reply::Status(503), Reply::Status(500)]);
        world.send(order("flaky").to_string()).await;
        world.gateway.script("declined", [Reply::Status(402)]);
        let dead = BTreeSet::from([
            world.send(order("declined").to_string()).await,
            world.send("{\"orderId\": ").await,
        ]);

        world.drain(&lambda).await;

        for n in 1..=12 {
            let order = format!("o-{n}");
            assert_eq!(world.charges(&order), 1, "{order}");
            assert_eq!(world.status(&order).await, "COMPLETED", "{order}");
        }
        for (order, calls, status) in [
            ("twice", 1, "COMPLETED"),
            ("flaky", 3, "COMPLETED"),
            ("declined", 1, "FAILED"),
        ] {
            assert_eq!(world.charges(order), calls, "{order}");
            assert_eq!(world.status(order).await, status, "{order}");
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
async fn a_message_whose_deletion_was_lost_comes_again_and_is_charged_once() {
    in_a_world(async |world| {
        let lambda = world.consumer().await;
        world.send(order("o-1").to_string()).await;
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

#[tokio::test]
async fn a_message_whose_worker_was_killed_comes_again_and_its_charge_is_finished() {
    in_a_world(async |world| {
        world.gateway.script("o-1", [Reply::Hang]);
        world.send(order("o-1").to_string()).await;
        let victim = world.consumer().await;
        let messages = world.receive_some(&world.queue).await;
        let (answer, _) = join!(victim.invoke(world.event(&messages), TIME), async {
            world.gateway.arrived("o-1", 1).await;
            victim.kill().await
        });
        assert!(matches!(answer, Answer::Exited), "{answer:?}");
        assert_eq!(world.status("o-1").await, "IN_PROGRESS");

        world.drain(&world.consumer().await).await;
        assert_eq!(world.status("o-1").await, "COMPLETED");
        let calls = world.gateway.calls_for("o-1");
        assert_eq!(calls.len(), 2);
        assert_eq!(calls[0].key, calls[1].key);
    })
    .await;
}

#[tokio::test]
async fn what_failed_for_good_is_dead_within_seconds() {
    in_a_world_that_hides(LONG, async |world| {
        let lambda = world.consumer().await;
        world.gateway.script("declined", [Reply::Status(402)]);
        world.send(order("declined").to_string()).await;
        world.send("{\"orderId\": ").await;

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
async fn declined_order_is_dead_lettered_directly_with_its_reason() {
    in_a_world_that_hides(LONG, async |world| {
        let lambda = world.consumer_with(&[("CONSUMER_DEAD_LETTER", "on")]).await;
        world.gateway.script("declined", [Reply::Status(402)]);
        let body = order("declined").to_string();
        world.send(body.clone()).await;
        let messages = world.receive_some(&world.queue).await;
        let answer = lambda.invoke(world.event(&messages), TIME).await;
        assert_eq!(failed(&answer.response()), [""; 0]);

        let letters = world.receive_some(&world.dead_letters).await;
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].body.as_deref(), Some(body.as_str()));
        let attributes = letters[0].message_attributes.as_ref().unwrap();
        let text = |name: &str| attributes[name].string_value.as_deref().unwrap();
        assert_eq!(text("SqsOnceReason"), "permanent_failure");
        assert_eq!(text("SqsOnceKey"), format!("{FUNCTION_NAME}#declined"));
        assert!(text("SqsOnceError").contains("402"));
        assert_eq!(world.status("declined").await, "FAILED");
    })
    .await;
}

#[tokio::test]
async fn a_conflict_burns_one_receive_however_long_the_lease() {
    // Seen again every second, it would be dead before the lease is over.
    in_a_world_that_hides(Duration::from_secs(1), async |world| {
        world.gateway.script("o-1", [Reply::Hang]);
        world.send(order("o-1").to_string()).await;
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
        assert_eq!(of(1), (&json!(3), &json!("done")));
        assert_eq!(world.charges("o-1"), 2);
    })
    .await;
}

#[tokio::test]
async fn a_failing_gateway_sees_its_retries_spread_over_the_back_off() {
    in_a_world_that_hides(LONG, async |world| {
        let lambda = world
            .consumer_with(&[("CONSUMER_BACKOFF_BASE", "8s")])
            .await;
        let orders = (1..=8).map(|n| format!("o-{n}")).collect::<Vec<_>>();
        for name in &orders {
            world.gateway.script(name, [Reply::Status(503)]);
            world.send(order(name).to_string()).await;
        }
        let started = Instant::now();
        world.drain(&lambda).await;
        assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());

        let retries = lambda
            .logged(orders.len(), |line| line["receive_count"] == 2)
            .await;
        let times = retries.iter().map(|line| {
            let time = line["timestamp"].as_str().unwrap();
            humantime::parse_rfc3339(time).unwrap()
        });
        let (first, last) = (times.clone().min().unwrap(), times.max().unwrap());
        // By chance alone, once in eighty thousand runs, all eight wait equally long.
        assert!(last.duration_since(first).unwrap() >= Duration::from_millis(700));
        assert!(orders.iter().all(|order| world.charges(order) == 2));
    })
    .await;
}
