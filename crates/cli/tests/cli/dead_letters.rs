//! `sqs-once dlq`, on the emulator at `AWS_ENDPOINT_URL`.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, resume_unwind},
    path::PathBuf,
};

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::{
    Message, MessageAttributeValue, MessageSystemAttributeName, QueueAttributeName,
};
use futures_util::FutureExt;
use serde_json::{Value, json};
use sqs_once::protocol::Timestamp;
use support::{PATIENCE, dynamo::create_table, prerequisite::report_skipped};
use tokio::time::Instant;

use crate::{Ended, run};

const SECRET: &str = "4111-1111-1111-1111";

/// A queue, its dead-letter queue and a table of a single test.
pub(crate) struct World {
    pub(crate) endpoint: String,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) dynamodb: aws_sdk_dynamodb::Client,
    pub(crate) name: String,
    pub(crate) orders: String,
    pub(crate) dead: String,
    pub(crate) journal: PathBuf,
}

/// Runs a test in a world, which is deleted also if the test panics.
pub(crate) async fn in_a_world(fifo: bool, test: impl AsyncFn(&World)) {
    let endpoint = std::env::var("AWS_ENDPOINT_URL").unwrap_or_default();
    if endpoint.is_empty() {
        report_skipped("AWS_ENDPOINT_URL names no emulator");
        return;
    }
    let world = World::create(endpoint, fifo).await;
    let outcome = AssertUnwindSafe(test(&world)).catch_unwind().await;
    world.delete().await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

impl World {
    async fn create(endpoint: String, fifo: bool) -> Self {
        let config = support::sdk_config(&endpoint);
        let sqs = aws_sdk_sqs::Client::new(&config);
        let dynamodb = aws_sdk_dynamodb::Client::new(&config);
        let name = format!("sqs-once-cli-{}", uuid::Uuid::new_v4());
        create_table(&dynamodb, &name).await;
        let suffix = if fifo { ".fifo" } else { "" };
        let queue = async |name: String, redrive: Option<String>| {
            let mut create = sqs.create_queue().queue_name(format!("{name}{suffix}"));
            if fifo {
                create = create.attributes(QueueAttributeName::FifoQueue, "true");
            }
            if let Some(redrive) = redrive {
                create = create.attributes(QueueAttributeName::RedrivePolicy, redrive);
            }
            create.send().await.unwrap().queue_url.unwrap()
        };
        let dead = queue(format!("{name}-dead"), None).await;
        let arn = QueueAttributeName::QueueArn;
        let read = sqs
            .get_queue_attributes()
            .queue_url(&dead)
            .attribute_names(arn.clone());
        let attributes = read.send().await.unwrap().attributes.unwrap();
        let redrive = json!({"deadLetterTargetArn": attributes[&arn], "maxReceiveCount": "3"});
        let orders = queue(name.clone(), Some(redrive.to_string())).await;
        let journal = std::env::temp_dir().join(format!("{name}.journal"));
        Self {
            endpoint,
            sqs,
            dynamodb,
            name,
            orders,
            dead,
            journal,
        }
    }

    async fn delete(&self) {
        for url in [&self.orders, &self.dead] {
            self.sqs.delete_queue().queue_url(url).send().await.unwrap();
        }
        let delete = self.dynamodb.delete_table().table_name(&self.name);
        delete.send().await.unwrap();
        let _may_be_absent = std::fs::remove_file(&self.journal);
    }

    /// Sends a dead letter, and returns its id.
    pub(crate) async fn dead_letter(
        &self,
        body: &str,
        attributes: &[(&str, &str)],
        group: Option<&str>,
    ) -> String {
        let mut send = self
            .sqs
            .send_message()
            .queue_url(&self.dead)
            .message_body(body);
        for (name, value) in attributes {
            let value = MessageAttributeValue::builder()
                .data_type("String")
                .string_value(*value);
            send = send.message_attributes(*name, value.build().unwrap());
        }
        if let Some(group) = group {
            let id = uuid::Uuid::new_v4().to_string();
            send = send.message_group_id(group).message_deduplication_id(id);
        }
        send.send().await.unwrap().message_id.unwrap()
    }

    pub(crate) async fn failed(&self, reason: &str, key: &str) -> String {
        let body = json!({ "card": SECRET }).to_string();
        let attributes = [
            ("SqsOnceReason", reason),
            ("SqsOnceError", "declined"),
            ("SqsOnceKey", key),
            ("tenant", "t-1"),
        ];
        self.dead_letter(&body, &attributes, None).await
    }

    async fn record(&self, key: &str, status: &str, message: &str, failures: usize) {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let kept = Timestamp::now().as_secs() + 3600;
        let mut put = self
            .dynamodb
            .put_item()
            .table_name(&self.name)
            .item("id", text(key))
            .item("status", text(status))
            .item("owner", text("owner"))
            .item("message_id", text(message))
            .item("expires_at", AttributeValue::N(kept.to_string()));
        if failures > 0 {
            let ids = (0..failures).map(|id| id.to_string()).collect();
            put = put.item("failed_message_ids", AttributeValue::Ss(ids));
        }
        put.send().await.unwrap();
    }

    /// Receives and deletes until `n` messages arrived, in their order.
    pub(crate) async fn take(&self, url: &str, n: usize) -> Vec<Message> {
        let (mut messages, start) = (Vec::new(), Instant::now());
        while messages.len() < n {
            assert!(
                start.elapsed() < PATIENCE,
                "{} of {n} messages",
                messages.len()
            );
            let receive = self
                .sqs
                .receive_message()
                .queue_url(url)
                .wait_time_seconds(1)
                .max_number_of_messages(10)
                .message_system_attribute_names(MessageSystemAttributeName::All)
                .message_attribute_names("All");
            for message in receive.send().await.unwrap().messages.unwrap_or_default() {
                self.sqs
                    .delete_message()
                    .queue_url(url)
                    .set_receipt_handle(message.receipt_handle.clone())
                    .send()
                    .await
                    .unwrap();
                messages.push(message);
            }
        }
        messages
    }

    /// Takes the dead letter with this id, after which both queues are empty.
    async fn takes_last_dead_letter(&self, id: String) {
        let left = self.take(&self.dead, 1).await;
        assert_eq!(left[0].message_id, Some(id));
        assert_eq!(
            (self.count(&self.dead).await, self.count(&self.orders).await),
            (0, 0)
        );
    }

    /// Takes one copy of each dead letter, after which both queues are empty.
    pub(crate) async fn moved_once(&self, ids: &[String]) {
        let arrived = self.take(&self.orders, ids.len()).await;
        let copies: BTreeSet<_> = arrived
            .iter()
            .map(|copy| attribute(copy, "SqsOnceRedriveOf").unwrap())
            .collect();
        assert_eq!(copies, ids.iter().map(String::as_str).collect());
        assert_eq!(
            (self.count(&self.dead).await, self.count(&self.orders).await),
            (0, 0)
        );
    }

    /// Number of messages in a queue, hidden ones too.
    pub(crate) async fn count(&self, url: &str) -> usize {
        let names = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
        ];
        let read = self.sqs.get_queue_attributes().queue_url(url);
        let read = read.set_attribute_names(Some(names.to_vec())).send().await;
        let attributes = read.unwrap().attributes.unwrap();
        names
            .iter()
            .map(|name| attributes[name].parse::<usize>().unwrap())
            .sum()
    }

    async fn dlq(&self, command: &str, arguments: &[&str]) -> Ended {
        run(
            &self.endpoint,
            &[&["dlq", command, &self.dead], arguments].concat(),
        )
        .await
    }

    pub(crate) async fn redrive(&self, arguments: &[&str]) -> Ended {
        let journal = self.journal.to_str().unwrap();
        let with = [
            "--journal",
            journal,
            "--to",
            &self.orders,
            "--table",
            &self.name,
            "--output",
            "json",
        ];
        self.dlq("redrive", &[&with, arguments].concat()).await
    }
}

pub(crate) fn attribute<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    let attributes = message.message_attributes.as_ref()?;
    attributes.get(name)?.string_value()
}

/// Id, end and effect of each message.
pub(crate) fn ends(ended: &Ended) -> BTreeMap<String, (String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let json = ended.json();
    let messages = json["messages"].as_array().unwrap().iter();
    let end = |m: &Value| {
        (
            text(&m["message_id"]),
            (text(&m["end"]), text(&m["when_moved"])),
        )
    };
    messages.map(end).collect()
}

#[tokio::test]
async fn list_groups_by_reason_and_leaves_messages_visible() {
    in_a_world(false, async |world| {
        for index in 0..12 {
            world
                .failed("permanent_failure", &format!("payments#{index}"))
                .await;
        }
        world.failed("key_reused", "payments#13").await;
        world.dead_letter("{}", &[], None).await;
        world.dead_letter("no json", &[], None).await;
        let listed = world.dlq("list", &["--output", "json", "--messages"]).await;
        assert_eq!(listed.code, 0, "{listed:?}");
        assert!(!listed.stdout.contains(SECRET), "{listed:?}");
        let listed = listed.json();
        let groups: Vec<_> = listed["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|g| {
                (
                    g["reason"].as_str().unwrap(),
                    g["error"].as_str().unwrap(),
                    g["count"].as_u64().unwrap(),
                )
            })
            .collect();
        let wanted = [
            ("permanent_failure", "declined", 12),
            ("key_reused", "declined", 1),
            ("moved_by_sqs", "the body is no JSON", 1),
            ("moved_by_sqs", "unknown; the body is JSON", 1),
        ];
        assert_eq!(groups, wanted);
        let keys = listed["groups"][0]["messages"].as_array().unwrap().iter();
        assert!(
            keys.clone()
                .all(|m| m["key"].as_str().unwrap().starts_with("payments#"))
        );
        // All are visible again: the next list finds them without waiting for the minute of --hide.
        let again = world.dlq("list", &["--messages"]).await;
        assert!(again.stdout.contains("15 messages received"), "{again:?}");
        assert!(!again.stdout.contains(SECRET), "{again:?}");
    })
    .await;
}

#[tokio::test]
async fn redrive_moves_selected_messages_and_no_others() {
    in_a_world(false, async |world| {
        let moved = [
            world.failed("permanent_failure", "payments#1").await,
            world.failed("permanent_failure", "payments#2").await,
        ];
        let stays = world.failed("key_reused", "payments#3").await;
        let named = world.dead_letter("no json", &[], None).await;
        let unasked = world.redrive(&["--reason", "permanent_failure"]).await;
        assert_eq!(unasked.code, 2, "{unasked:?}");
        assert_eq!(
            (
                world.count(&world.dead).await,
                world.count(&world.orders).await
            ),
            (4, 0)
        );

        let arguments = [
            "--reason",
            "permanent_failure",
            "--message",
            &named,
            "--yes",
        ];
        let redriven = world.redrive(&arguments).await;
        assert_eq!(redriven.code, 0, "{redriven:?}");
        let ends = ends(&redriven);
        assert_eq!(ends.len(), 3);
        assert!(ends.values().all(|(end, _)| end == "moved"), "{ends:?}");
        let arrived = world.take(&world.orders, 3).await;
        let of = |id: &str| {
            let copy = arrived
                .iter()
                .find(|m| attribute(m, "SqsOnceRedriveOf") == Some(id));
            copy.unwrap_or_else(|| panic!("{id} did not arrive"))
        };
        for id in &moved {
            let copy = of(id);
            assert_eq!(
                copy.body.as_deref(),
                Some(&*json!({ "card": SECRET }).to_string())
            );
            assert_eq!(attribute(copy, "tenant"), Some("t-1"));
            assert_eq!(attribute(copy, "SqsOnceReason"), None);
        }
        assert_eq!(of(&named).body.as_deref(), Some("no json"));
        world.takes_last_dead_letter(stays).await;
    })
    .await;
}

#[tokio::test]
async fn redrive_says_which_messages_run_again() {
    in_a_world(false, async |world| {
        world.record("p#completed", "COMPLETED", "m", 0).await;
        world.record("p#failed", "FAILED", "m", 1).await;
        world.record("p#full", "FAILED", "m", 20).await;
        world.record("p#own-id", "COMPLETED", "own-id", 0).await;
        let mut wanted = BTreeMap::new();
        for (key, next_delivery) in [
            ("p#absent", "runs"),
            ("p#completed", "duplicate"),
            ("p#failed", "runs"),
            ("p#full", "stored_failure"),
            ("p#own-id", "runs"),
            ("hashed", "unknown"),
        ] {
            wanted.insert(
                world.failed("failed_before", key).await,
                ("not_tried".to_owned(), next_delivery.to_owned()),
            );
        }
        let planned = world.redrive(&["--all", "--dry-run"]).await;
        assert_eq!(planned.code, 0, "{planned:?}");
        assert_eq!(ends(&planned), wanted);
        assert!(planned.stdout.contains("\"key\":\"p#full\""), "{planned:?}");
        assert_eq!(
            (
                world.count(&world.dead).await,
                world.count(&world.orders).await
            ),
            (6, 0)
        );
        let replayed = world
            .redrive(&["--all", "--dry-run", "--after-failure", "replay"])
            .await;
        let stored = ends(&replayed);
        assert_eq!(
            stored
                .values()
                .filter(|(_, next_delivery)| next_delivery == "stored_failure")
                .count(),
            2
        );
    })
    .await;
}

#[tokio::test]
async fn resumed_redrive_deletes_what_was_sent_before() {
    in_a_world(false, async |world| {
        let sent = world.failed("permanent_failure", "payments#1").await;
        let unknown = world.failed("permanent_failure", "payments#2").await;
        let refused = world.failed("permanent_failure", "payments#3").await;
        let lines = [
            json!({"queues": {"from": world.dead, "to": world.orders}}),
            json!({"send": {"message": sent}}),
            json!({"sent": {"message": sent, "new": "new"}}),
            json!({"send": {"message": refused}}),
            json!({"refused": {"message": refused}}),
            json!({"send": {"message": unknown}}),
        ];
        let journal: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&world.journal, journal).unwrap();
        let resumed = world.redrive(&["--all", "--yes"]).await;
        assert_eq!(resumed.code, 1, "{resumed:?}");
        let ends = ends(&resumed);
        let end = |id: &String| ends[id].0.as_str();
        assert_eq!(
            (end(&sent), end(&unknown), end(&refused)),
            ("deleted", "unknown", "moved")
        );
        assert!(resumed.stderr.contains(&unknown), "{resumed:?}");
        let arrived = world.take(&world.orders, 1).await;
        assert_eq!(attribute(&arrived[0], "SqsOnceRedriveOf"), Some(&*refused));
        world.takes_last_dead_letter(unknown).await;
    })
    .await;
}

#[tokio::test]
async fn redrive_moves_fifo_group_whole_and_in_order() {
    in_a_world(true, async |world| {
        for index in 0..23 {
            let reason = if index == 4 {
                "permanent_failure"
            } else {
                "failed_before"
            };
            let body = index.to_string();
            world
                .dead_letter(&body, &[("SqsOnceReason", reason)], Some("moves"))
                .await;
        }
        world.dead_letter("other", &[], Some("stays")).await;
        let dry_run = ["--to", &world.orders, "--all", "--dry-run"];
        let shown = world.dlq("redrive", &dry_run).await.stdout;
        let whole = "and all further messages of their groups would be moved.";
        assert!(shown.contains(whole), "{shown}");
        let arguments = ["--reason", "permanent_failure", "--yes"];
        let redriven = world.redrive(&arguments).await;
        assert_eq!(redriven.code, 0, "{redriven:?}");
        assert_eq!(ends(&redriven).len(), 23);
        let arrived = world.take(&world.orders, 23).await;
        let bodies: Vec<_> = arrived
            .iter()
            .map(|message| message.body.clone().unwrap())
            .collect();
        assert_eq!(
            bodies,
            (0..23).map(|index| index.to_string()).collect::<Vec<_>>()
        );
        for message in &arrived {
            let attributes = message.attributes.as_ref().unwrap();
            assert_eq!(
                attributes[&MessageSystemAttributeName::MessageGroupId],
                "moves"
            );
        }
        let left = world.take(&world.dead, 1).await;
        assert_eq!(left[0].body.as_deref(), Some("other"));
    })
    .await;
}

#[tokio::test]
async fn message_that_is_not_there_ends_with_1() {
    in_a_world(false, async |world| {
        let ended = world.redrive(&["--message", "absent", "--yes"]).await;
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(
            ended.stderr.contains("message absent was not received"),
            "{ended:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn redrive_to_its_own_queue_is_refused() {
    in_a_world(false, async |world| {
        world.failed("permanent_failure", "payments#1").await;
        let name = format!("{}-dead", world.name);
        for to in [&world.dead, &name] {
            let ended = world
                .dlq("redrive", &["--to", to, "--all", "--dry-run"])
                .await;
            assert_eq!(ended.code, 2, "{ended:?}");
            assert!(
                ended.stderr.contains("the dead-letter queue itself"),
                "{ended:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn limit_of_messages_is_reported() {
    in_a_world(false, async |world| {
        for key in ["p#1", "p#2", "p#3"] {
            world.failed("permanent_failure", key).await;
        }
        let listed = world.dlq("list", &["--max", "2", "--output", "json"]).await;
        let listed = listed.json();
        assert_eq!(
            (&listed["received"], &listed["more"]),
            (&json!(2), &json!(true))
        );
        let listed = world.dlq("list", &["--max", "2"]).await;
        assert!(listed.stdout.contains("there may be more"), "{listed:?}");
        let first = world.redrive(&["--all", "--yes", "--max", "2"]).await;
        assert_eq!((first.code, ends(&first).len()), (1, 2), "{first:?}");
        assert!(first.stderr.contains("there may be more"), "{first:?}");
        let rest = world.redrive(&["--all", "--yes", "--max", "2"]).await;
        assert_eq!((rest.code, ends(&rest).len()), (0, 1), "{rest:?}");
    })
    .await;
}

#[tokio::test]
async fn queue_of_another_region_is_refused() {
    let arn = "arn:aws:sqs:ap-south-1:123456789012:orders-dead";
    let ended = run("http://127.0.0.1:1", &["dlq", "list", arn]).await;
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(
        ended.stderr.contains("set AWS_REGION=ap-south-1"),
        "{ended:?}"
    );
}
