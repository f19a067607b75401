//! `sqs-once dlq`, on the emulator at `AWS_ENDPOINT_URL`.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, resume_unwind},
};

use aws_sdk_sqs::types::{
    Message, MessageAttributeValue, MessageSystemAttributeName, QueueAttributeName,
};
use futures_util::FutureExt;
use serde_json::{Value, json};
use support::{PATIENCE, prerequisite::emulator};
use tokio::time::Instant;

use crate::{Ended, run};

const SECRET: &str = "4111-1111-1111-1111";

/// A queue and its dead-letter queue of a single test.
pub(crate) struct World {
    pub(crate) endpoint: String,
    sqs: aws_sdk_sqs::Client,
    name: String,
    pub(crate) orders: String,
    pub(crate) dead: String,
}

/// Runs a test in a world, which is deleted also if the test panics.
pub(crate) async fn in_a_world(fifo: bool, test: impl AsyncFn(&World)) {
    let world = World::create(emulator(), fifo).await;
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
        let name = format!("sqs-once-cli-{}", uuid::Uuid::new_v4());
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
        Self {
            endpoint,
            sqs,
            name,
            orders,
            dead,
        }
    }

    async fn delete(&self) {
        for url in [&self.orders, &self.dead] {
            self.sqs.delete_queue().queue_url(url).send().await.unwrap();
        }
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

    /// Sends a dead letter with as many attributes as SQS allows.
    pub(crate) async fn full_dead_letter(&self) -> String {
        let names = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"];
        let attributes = names.map(|name| (name, "1"));
        self.dead_letter("{}", &attributes, None).await
    }

    /// Receives so many dead letters, which hides them.
    pub(crate) async fn hide(&self, n: i32) {
        let receive = self.sqs.receive_message().queue_url(&self.dead);
        let receive = receive.max_number_of_messages(n).visibility_timeout(600);
        let received = receive.send().await.unwrap().messages.unwrap();
        assert_eq!(received.len(), n as usize);
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

    /// Number of hidden dead letters.
    pub(crate) async fn count_hidden(&self) -> usize {
        let name = QueueAttributeName::ApproximateNumberOfMessagesNotVisible;
        let read = self.sqs.get_queue_attributes().queue_url(&self.dead);
        let read = read.attribute_names(name.clone()).send().await;
        read.unwrap().attributes.unwrap()[&name].parse().unwrap()
    }

    async fn dlq(&self, command: &str, arguments: &[&str]) -> Ended {
        run(
            &self.endpoint,
            &[&["dlq", command, &self.dead], arguments].concat(),
        )
        .await
    }

    pub(crate) async fn redrive(&self, arguments: &[&str]) -> Ended {
        let with = ["--to", &self.orders, "--output", "json"];
        self.dlq("redrive", &[&with, arguments].concat()).await
    }
}

pub(crate) fn attribute<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    let attributes = message.message_attributes.as_ref()?;
    attributes.get(name)?.string_value()
}

/// The end of each message, by its id.
pub(crate) fn ends(ended: &Ended) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let json = ended.json();
    let messages = json["messages"].as_array().unwrap().iter();
    let end = |message: &Value| (text(&message["message_id"]), text(&message["end"]));
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
        // All are visible again: the next list finds them without waiting for the minute for which they were hidden.
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
        assert!(ends.values().all(|end| end == "moved"), "{ends:?}");
        let json = redriven.json();
        assert_eq!((&json["sent"], &json["not_sent"]), (&json!(3), &json!(0)));
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
async fn dry_run_names_messages_and_moves_none() {
    in_a_world(false, async |world| {
        let selected = world.failed("permanent_failure", "payments#1").await;
        world.failed("key_reused", "payments#2").await;
        let arguments = ["--reason", "permanent_failure", "--dry-run"];
        let planned = world.redrive(&arguments).await;
        assert_eq!(planned.code, 0, "{planned:?}");
        let wanted = BTreeMap::from([(selected.clone(), "selected".to_owned())]);
        assert_eq!(ends(&planned), wanted);
        let json = planned.json();
        assert_eq!(json["messages"][0]["key"], "payments#1");
        assert_eq!(json["sent"], 0);
        let arguments = ["--to", &world.orders, "--message", &selected, "--dry-run"];
        let planned = world.dlq("redrive", &arguments).await;
        assert!(
            planned.stdout.contains("1 message would be moved."),
            "{planned:?}"
        );
        let counts = (
            world.count(&world.dead).await,
            world.count(&world.orders).await,
        );
        assert_eq!(counts, (2, 0));
    })
    .await;
}

#[tokio::test]
async fn redrive_moves_fifo_groups_in_order() {
    in_a_world(true, async |world| {
        // More than SQS shows of a group at a time.
        for index in 0..23 {
            world
                .dead_letter(&index.to_string(), &[], Some("moves"))
                .await;
        }
        world.dead_letter("other", &[], Some("other")).await;
        let arguments = ["--to", &world.orders, "--all", "--dry-run"];
        let shown = world.dlq("redrive", &arguments).await.stdout;
        assert!(
            shown.contains("Of each group, SQS shows at most"),
            "{shown}"
        );
        let redriven = world.redrive(&["--all", "--yes"]).await;
        assert_eq!(redriven.code, 0, "{redriven:?}");
        assert_eq!(ends(&redriven).len(), 24);
        let mut arrived = world.take(&world.orders, 24).await;
        arrived.retain(|message| message.body.as_deref() != Some("other"));
        let bodies = arrived.iter().map(|message| message.body.clone().unwrap());
        assert!(bodies.eq((0..23).map(|index| index.to_string())));
        for message in &arrived {
            let attributes = message.attributes.as_ref().unwrap();
            let group = &attributes[&MessageSystemAttributeName::MessageGroupId];
            assert_eq!(group, "moves");
        }
        assert_eq!(world.count(&world.dead).await, 0);
    })
    .await;
}

/// No message overtakes an earlier one of its group that stays.
/// A consumer that is faster than the command would otherwise keep it busy for ever.
#[tokio::test]
async fn message_that_fails_again_meanwhile_stays() {
    in_a_world(true, async |world| {
        let moved = world.dead_letter("1", &[], Some("orders")).await;
        let of_moved = [("SqsOnceRedriveOf", moved.as_str())];
        world.dead_letter("2", &of_moved, Some("orders")).await;
        let ended = world.redrive(&["--all", "--yes"]).await;
        // The rest of its group may be hidden behind it.
        assert_eq!(ended.code, 1, "{ended:?}");
        assert_eq!(ends(&ended).len(), 1);
        assert_eq!(world.count(&world.dead).await, 1);
        let arrived = world.take(&world.orders, 1).await;
        assert_eq!(arrived[0].body.as_deref(), Some("1"));
    })
    .await;
}

#[tokio::test]
async fn message_that_is_not_selected_holds_back_its_group() {
    in_a_world(true, async |world| {
        let send = async |body, reason, group| {
            let attributes = [("SqsOnceReason", reason)];
            world.dead_letter(body, &attributes, Some(group)).await
        };
        send("a1", "permanent_failure", "a").await;
        send("a2", "failed_before", "a").await;
        send("a3", "permanent_failure", "a").await;
        send("b1", "permanent_failure", "b").await;
        let redriven = world
            .redrive(&["--reason", "permanent_failure", "--yes"])
            .await;
        assert_eq!(redriven.code, 1, "{redriven:?}");
        let moved = ends(&redriven).into_values().filter(|end| end == "moved");
        assert_eq!(moved.count(), 2, "{redriven:?}");
        let arrived = world.take(&world.orders, 2).await;
        let bodies: BTreeSet<_> = arrived
            .iter()
            .map(|of| of.body.as_deref().unwrap())
            .collect();
        assert_eq!(bodies, BTreeSet::from(["a1", "b1"]));
        let left = world.take(&world.dead, 2).await;
        let left: Vec<_> = left.iter().map(|of| of.body.as_deref().unwrap()).collect();
        assert_eq!(left, ["a2", "a3"]);
    })
    .await;
}

/// SQS takes ten attributes.
#[tokio::test]
async fn message_full_of_attributes_is_moved() {
    in_a_world(false, async |world| {
        world.full_dead_letter().await;
        let redriven = world.redrive(&["--all", "--yes"]).await;
        assert_eq!(redriven.code, 0, "{redriven:?}");
        // The emulator does not move messages itself.
        for told in [
            "Moving one by one",
            "(InvalidAction)",
            "1 of about 1 message",
        ] {
            assert!(redriven.stderr.contains(told), "{redriven:?}");
        }
        let arrived = world.take(&world.orders, 1).await;
        assert_eq!(attribute(&arrived[0], "SqsOnceRedriveOf"), None);
        assert_eq!(attribute(&arrived[0], "a9"), Some("1"));
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
async fn named_messages_end_the_search() {
    in_a_world(false, async |world| {
        let mut ids = Vec::new();
        for key in ["p#1", "p#2"] {
            ids.push(world.failed("permanent_failure", key).await);
        }
        let ended = world
            .redrive(&[
                "--message",
                &ids[0],
                "--message",
                &ids[1],
                "--yes",
                "--max",
                "2",
            ])
            .await;
        assert_eq!((ended.code, ends(&ended).len()), (0, 2), "{ended:?}");
        world.moved_once(&ids).await;
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
