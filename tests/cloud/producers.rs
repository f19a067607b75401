//! The producers of docs/keys.md: a message that is sent again has the same key, and runs once.
//!
//! Needs the local cloud of `make test`, or another at `AWS_ENDPOINT_URL`.

#[path = "../../examples/send_order.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has its own main")]
mod send_order;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName, QueueAttributeName};
use serde_json::{Value, json};
use sqs_once::{Attempt, Consumer, Failure, Once, handler_fn, store::MemoryStore};
use support::{
    PATIENCE,
    consumer::{namespace, process, within},
    event::{QUEUE_ARN, batch, order, polled},
    prerequisite::{emulator, missing},
};
use tokio::{process::Command, time::timeout};

/// A queue of a test's own.
struct Queue {
    endpoint: String,
    sqs: aws_sdk_sqs::Client,
    url: String,
}

impl Queue {
    /// Creates a queue; a suffix of `.fifo` makes a FIFO queue.
    async fn create(suffix: &str) -> Self {
        let endpoint = emulator();
        let sqs = aws_sdk_sqs::Client::new(&support::sdk_config(&endpoint));
        let name = format!("producers-{}{suffix}", uuid::Uuid::new_v4());
        let mut create = sqs.create_queue().queue_name(name);
        if suffix == ".fifo" {
            create = create.attributes(QueueAttributeName::FifoQueue, "true");
        }
        let url = create.send().await.unwrap().queue_url.unwrap();
        Self { endpoint, sqs, url }
    }

    /// The first `n` messages to arrive.
    async fn messages(&self, n: usize) -> Vec<Message> {
        let arrived = async {
            let mut arrived = Vec::new();
            while arrived.len() < n {
                let receive = self.sqs.receive_message().queue_url(&self.url);
                let receive = receive.max_number_of_messages(10).wait_time_seconds(1);
                let receive = receive.message_attribute_names("All");
                let receive =
                    receive.message_system_attribute_names(MessageSystemAttributeName::All);
                arrived.extend(receive.send().await.unwrap().messages.unwrap_or_default());
            }
            arrived
        };
        timeout(PATIENCE, arrived).await.unwrap()
    }

    async fn delete(self) {
        let delete = self.sqs.delete_queue().queue_url(self.url);
        delete.send().await.unwrap();
    }
}

fn key(message: &Message) -> &str {
    let attributes = message.message_attributes.as_ref().unwrap();
    attributes["idempotencyKey"].string_value().unwrap()
}

/// Record in the form that the event source mapping sends.
fn record(message: &Message) -> Value {
    let mut record = polled(message, QUEUE_ARN);
    record["messageAttributes"]["idempotencyKey"] = json!({
        "stringValue": key(message), "dataType": "String",
        "stringListValues": [], "binaryListValues": [],
    });
    record
}

/// Asserts that two messages have one key, a UUIDv7, and that a consumer runs its handler once for both.
async fn assert_runs_once(messages: &[Message]) {
    let [first, second] = messages else {
        panic!("{} messages", messages.len());
    };
    assert_ne!(first.message_id, second.message_id);
    assert_eq!(first.body, second.body);
    assert_eq!(key(first), key(second));
    let key = uuid::Uuid::parse_str(key(first)).unwrap();
    assert_eq!(key.get_version_num(), 7, "{key}");
    assert_eq!(key.get_variant(), uuid::Variant::RFC4122, "{key}");

    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let charge = handler_fn(move |_: Value, _: Attempt| {
        counter.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Failure>("charged") }
    });
    let consumer = Consumer::without_aws(Once::new(MemoryStore::default()), namespace(), charge);
    let consumer = Arc::new(consumer.key("attribute:idempotencyKey".parse().unwrap()));
    for message in messages {
        let failed = process(&consumer, batch([record(message)]), within(PATIENCE)).await;
        assert_eq!(failed, [""; 0]);
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

mod rust {
    use super::*;

    /// Sends an order, and again as after a crash before [`send_order::mark_as_sent`].
    async fn send_twice(queue: &Queue) -> String {
        let dynamo = support::dynamo::Dynamo::start().await;
        dynamo.create_table_keyed("orders", &["orderId"]).await;
        let orders = aws_sdk_dynamodb::Client::new(&dynamo.sdk_config());
        let mut keys = Vec::new();
        for _ in 0..2 {
            let body = order("o-1").to_string();
            let pending = send_order::store(&orders, "orders", "o-1", &body)
                .await
                .unwrap();
            send_order::send(&queue.sqs, &queue.url, &pending)
                .await
                .unwrap();
            keys.push(pending.idempotency_key);
        }
        assert_eq!(keys[0], keys[1]);
        let other = send_order::store(&orders, "orders", "o-2", "{}")
            .await
            .unwrap();
        assert!(other.idempotency_key > keys[0], "keys sort by age");
        keys.remove(0)
    }

    #[tokio::test]
    async fn order_sent_again_runs_once() {
        let queue = Queue::create("").await;
        send_twice(&queue).await;
        assert_runs_once(&queue.messages(2).await).await;
        queue.delete().await;
    }

    #[tokio::test]
    async fn fifo_queue_drops_order_sent_again() {
        let queue = Queue::create(".fifo").await;
        let sent = send_twice(&queue).await;
        // A later message of the same group arrives behind all copies of the first.
        let last = queue
            .sqs
            .send_message()
            .queue_url(&queue.url)
            .message_body("last");
        let last = last
            .message_group_id("o-1")
            .message_deduplication_id("last");
        last.send().await.unwrap();
        let messages = queue.messages(2).await;
        let ids = messages.iter().map(|message| {
            let attributes = message.attributes.as_ref().unwrap();
            attributes[&MessageSystemAttributeName::MessageDeduplicationId].as_str()
        });
        assert!(ids.eq([sent.as_str(), "last"]), "{messages:?}");
        assert_eq!(key(&messages[0]), sent);
        queue.delete().await;
    }
}

mod python {
    use super::*;

    /// A Python with boto3.
    #[track_caller]
    fn python() -> PathBuf {
        let python = root().join(".venv/bin/python");
        if !python.exists() {
            missing("there is no .venv with boto3");
        }
        python
    }

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    /// Runs the producer and returns whether it succeeded.
    async fn run(database: &Path, endpoint: &str, queue_url: &str) -> bool {
        let mut command = Command::new(python());
        command
            .arg(root().join("examples/send_order.py"))
            .args(["o-1", "9999"])
            .env("ORDERS_DATABASE", database)
            .env("QUEUE_URL", queue_url)
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_DEFAULT_REGION", support::REGION)
            .env("AWS_ACCESS_KEY_ID", support::ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", support::ACCESS_KEY)
            .env("AWS_MAX_ATTEMPTS", "1");
        let ended = timeout(PATIENCE, command.output()).await.unwrap().unwrap();
        let problem = String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success() || problem.contains("EndpointConnectionError"),
            "{problem}"
        );
        ended.status.success()
    }

    #[tokio::test]
    async fn order_sent_after_failure_and_crash_runs_once() {
        let queue = Queue::create("").await;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let database = folder.join(format!("orders-{}.sqlite", std::process::id()));
        let before = database.with_extension("before");
        // The order and its key are stored, the message is not sent: no server has port 1.
        assert!(!run(&database, "http://127.0.0.1:1", &queue.url).await);
        fs::copy(&database, &before).unwrap();
        assert!(run(&database, &queue.endpoint, &queue.url).await);
        // As after a crash before the message was deleted from the outbox.
        fs::copy(&before, &database).unwrap();
        assert!(run(&database, &queue.endpoint, &queue.url).await);
        assert_runs_once(&queue.messages(2).await).await;
        // The outbox is empty: a last message is the only further one.
        assert!(run(&database, &queue.endpoint, &queue.url).await);
        let last = queue
            .sqs
            .send_message()
            .queue_url(&queue.url)
            .message_body("last");
        last.send().await.unwrap();
        let messages = queue.messages(1).await;
        assert_eq!(messages[0].body.as_deref(), Some("last"));
        for path in [database, before] {
            fs::remove_file(path).unwrap();
        }
        queue.delete().await;
    }
}
