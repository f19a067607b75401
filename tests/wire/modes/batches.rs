//! Each mode behind a [`Consumer`]: the batch's response, the log, and the calls to SQS.

use std::{sync::Arc, time::Duration};

use aws_sdk_dynamodb::types::Update;
use serde::Deserialize;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Change, Consumer, Done, Failure, Handler, Mode, Write, handler_fn,
    sqs::{FingerprintSource, KeySource, Visibility},
};
use support::{
    consumer::{namespace, process, within},
    event::{batch, in_group, received, record},
    faults::Fault,
    log,
    sqs::{Sqs, SqsBehaviour},
};
use tokio::time::Instant;

use super::world::{SECOND, THINGS, World, now};

#[derive(Deserialize)]
struct Entry {
    id: String,
    list: String,
    act: String,
}

impl Entry {
    /// Appends its id to its list.
    fn write(&self) -> Result<Write<Update>, Failure> {
        let append = "SET entries = list_append(if_not_exists(entries, :none), :entry)";
        match self.act.as_str() {
            "succeed" => Ok(Write::update(THINGS, append)
                .key("id", &self.list)
                .value(":none", Vec::<String>::new())
                .value(":entry", [&self.id])),
            "fail" => Err(Failure::retryable("scripted")),
            "decline" => Err(Failure::permanent("scripted")),
            "conflict" => Ok(Write::update(THINGS, "ADD n :n")
                .key("id", &self.list)
                .value(":n", 1)
                .when("attribute_exists(nothing)")),
            _ => panic!("scripted"),
        }
    }
}

async fn plan(entry: Entry, _: Attempt) -> Result<Done<String>, Failure> {
    let write = entry.write()?;
    Ok(Done::new(entry.id).with(write))
}

async fn change(entry: Entry, _: Attempt) -> Result<Change<String>, Failure> {
    let write = entry.write()?;
    Ok(Change::update(entry.id, write))
}

/// The message `id`, whose entry has the same name, for `list`.
fn entry(id: &str, list: &str, act: &str) -> Value {
    record(id, &body(id, list, act))
}

fn body(id: &str, list: &str, act: &str) -> Value {
    json!({"id": id, "list": list, "act": act})
}

/// An [`entry`] of a FIFO queue.
fn fifo(list: &str, name: &str, act: &str) -> Value {
    in_group(entry(&format!("{list} {name}"), list, act), "group")
}

impl World {
    async fn entries(&self, list: &str) -> Vec<String> {
        let item = self.dynamo.record(THINGS, list).await.unwrap();
        let entries = item["entries"].as_l().unwrap().iter();
        entries.map(|entry| entry.as_s().unwrap().clone()).collect()
    }

    /// Any mode: a success is written once and acknowledged, every other message is reported.
    async fn behind_a_consumer<M, H>(&self, mode: &str, consumer: impl Fn() -> Consumer<M, H>)
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        let list = |name: &str| format!("{mode} {name}");
        let consumer_of_ids = || consumer().key("body:/id".parse::<KeySource>().unwrap());
        self.one_fails(&list("mixed"), consumer_of_ids()).await;
        self.in_order(&list("fifo"), consumer()).await;
        self.behind_a_decline(mode, &list("decline"), consumer())
            .await;
        self.unknown(mode, &list("unknown"), consumer).await;
    }

    async fn one_fails<M: Mode<H::Output>, H: Handler>(
        &self,
        list: &str,
        consumer: Consumer<M, H>,
    ) {
        let consumer = Arc::new(consumer);
        let id = |name: &str| format!("{list} {name}");
        let message = |name: &str, act| entry(&id(name), list, act);
        let mut copy = message("1", "succeed");
        copy["messageId"] = json!("a copy");
        let event = batch([
            message("1", "succeed"),
            message("declined", "decline"),
            message("refused", "conflict"),
            record("malformed", "{"),
            message("panics", "panic"),
            message("busy", "fail"),
            copy,
            message("2", "succeed"),
        ]);
        let expected = [
            &id("declined"),
            &id("refused"),
            "malformed",
            &id("panics"),
            &id("busy"),
        ];
        // The failed messages fail again.
        for delivery in ["first", "second"] {
            let failed = process(&consumer, event.clone(), within(20 * SECOND)).await;
            assert_eq!(failed, expected, "{list}: {delivery} delivery");
            let mut entries = self.entries(list).await;
            entries.sort_unstable();
            assert_eq!(entries, [id("1"), id("2")], "{list}: {delivery} delivery");
        }
    }

    /// A FIFO group continues behind a permanent failure, unless the mode does not record it.
    async fn behind_a_decline<M, H>(&self, mode: &str, list: &str, consumer: Consumer<M, H>)
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        let event = || {
            batch([
                fifo(list, "1", "succeed"),
                fifo(list, "2", "decline"),
                fifo(list, "3", "succeed"),
            ])
        };
        let id = |n: u32| format!("{list} {n}");
        let (failed, done) = if mode == "on item" {
            (vec![id(2), id(3)], vec![id(1)])
        } else {
            (vec![id(2)], vec![id(1), id(3)])
        };
        let consumer = Arc::new(consumer);
        for delivery in ["first", "second"] {
            let reported = process(&consumer, event(), within(20 * SECOND)).await;
            assert_eq!(reported, failed, "{list}: {delivery} delivery");
            assert_eq!(
                self.entries(list).await,
                done,
                "{list}: {delivery} delivery"
            );
        }
    }

    async fn in_order<M: Mode<H::Output>, H: Handler>(&self, list: &str, consumer: Consumer<M, H>) {
        // The body controls the handler, and changes here.
        let consumer = Arc::new(consumer.fingerprint(FingerprintSource::Off));
        let fifo = |name: &str, act| fifo(list, name, act);
        let names = |ids: &[&str]| {
            ids.iter()
                .map(|id| format!("{list} {id}"))
                .collect::<Vec<_>>()
        };
        let event = batch(["1", "2", "3", "4"].map(|name| fifo(name, "succeed")));
        let mut failing = event.clone();
        failing["Records"][2] = fifo("3", "fail");
        let failed = process(&consumer, failing, within(20 * SECOND)).await;
        assert_eq!(failed, names(&["3", "4"]));
        assert_eq!(self.entries(list).await, names(&["1", "2"]));
        let failed = process(&consumer, event, within(20 * SECOND)).await;
        assert_eq!(failed, [""; 0]);
        assert_eq!(self.entries(list).await, names(&["1", "2", "3", "4"]));
    }

    /// The responses to the commits are lost. The messages return after a backoff, and are done.
    async fn unknown<M, H>(&self, mode: &str, list: &str, consumer: impl Fn() -> Consumer<M, H>)
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        let sqs = Sqs::start(SqsBehaviour::Willing).await;
        let visibility = Visibility::new(sqs.client()).jitter(|most| most);
        let consumer = Arc::new(consumer().visibility(visibility.backoff(7 * SECOND, 60 * SECOND)));
        let names = ["1", "2"].map(|n| format!("{list} {n}"));
        let event = |receive_count| {
            batch(
                [&names[0], &names[1]]
                    .map(|id| received(id, &body(id, list, "succeed"), receive_count)),
            )
        };
        let commit = if mode == "on item" {
            "UpdateItem"
        } else {
            "TransactWriteItems"
        };
        self.dynamo.fail_all(commit, Fault::CutAfter);
        log::start();
        // The commits are repeated until their time is over. The clock jumps there, so that a busy machine
        // has the rest of a long reserve for the visibility timeouts.
        let over = Instant::now() + 563 * SECOND;
        let jump = async {
            while self.dynamo.met(commit) < 6 {
                tokio::task::yield_now().await;
            }
            tokio::time::pause();
            tokio::time::advance(over - Instant::now()).await;
            tokio::time::resume();
        };
        let deliver = process(&consumer, event(2), within(600 * SECOND));
        let (failed, ()) = tokio::join!(deliver, jump);
        assert_eq!(failed, names, "{mode}");
        let lines = log::lines_of("message processed");
        assert_eq!(lines.len(), 2, "{mode}");
        for line in lines {
            assert_eq!(
                line["fields"]["outcome"], "commit_unknown",
                "{mode}: {line}"
            );
        }
        // Twice the base, after the second receive.
        let seconds: Vec<_> = sqs
            .changes()
            .into_iter()
            .map(|(_, seconds)| seconds)
            .collect();
        assert_eq!(seconds, [14, 14], "{mode}");

        assert!(!self.dynamo.heal().await.is_empty());
        let failed = process(&consumer, event(3), within(20 * SECOND)).await;
        assert_eq!(failed, [""; 0], "{mode}");
        let mut entries = self.entries(list).await;
        entries.sort_unstable();
        assert_eq!(entries, names, "{mode}: each once");
    }
}

#[tokio::test]
async fn consumer_claims_and_commits() {
    let world = World::start().await;
    let client = world.no_timeout_client();
    let consumer = || Consumer::without_aws(world.once(&client), namespace(), handler_fn(plan));
    world.behind_a_consumer("claim", consumer).await;
}

#[tokio::test]
async fn consumer_runs_inbox() {
    let world = World::start().await;
    let client = world.no_timeout_client();
    let consumer = || Consumer::without_aws(world.inbox(&client), namespace(), handler_fn(plan));
    world.behind_a_consumer("inbox", consumer).await;
}

#[tokio::test]
async fn consumer_changes_items() {
    let world = World::start().await;
    let client = world.no_timeout_client();
    let consumer =
        || Consumer::without_aws(world.item_mode(&client), namespace(), handler_fn(change));
    world.behind_a_consumer("on item", consumer).await;
}

#[tokio::test]
async fn clock_is_set_for_each_mode() {
    fn left<M: Mode<H::Output>, H: Handler>(consumer: &Consumer<M, H>) -> Duration {
        consumer.deadline(now() + 10 * SECOND).time_left()
    }
    let world = World::start().await;
    let client = world.no_timeout_client();
    for left in [
        left(&Consumer::without_aws(
            world.once(&client),
            namespace(),
            handler_fn(plan),
        )),
        left(&Consumer::without_aws(
            world.inbox(&client),
            namespace(),
            handler_fn(plan),
        )),
        left(&Consumer::without_aws(
            world.item_mode(&client),
            namespace(),
            handler_fn(change),
        )),
    ] {
        assert!(left <= 10 * SECOND, "{left:?}");
    }
}
