//! `sqs-once dlq redrive` while SQS refuses requests, loses answers, or the tool is killed.

use std::{
    process::Stdio,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Response},
};
use futures_util::future::join_all;
use serde_json::json;
use support::{
    PATIENCE,
    dynamo::{Counts, forward, forwarder, operation},
    faults::{Fault, Faults, Port},
};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    Ended,
    dead_letters::{World, attribute, ends, in_a_world},
    run, tool,
};

/// A proxy before the emulator, which refuses requests and loses answers.
struct Line {
    endpoint: String,
    wire: Arc<Wire>,
}

struct Wire {
    upstream: String,
    forwarder: reqwest::Client,
    faults: Faults,
    port: Port,
    arrived: watch::Sender<Counts>,
    /// Answer to `ListDeadLetterSourceQueues`, which the emulator does not know.
    sources: Mutex<Vec<String>>,
}

impl Line {
    async fn to(world: &World) -> Self {
        let wire = Arc::new(Wire {
            upstream: world.endpoint.clone(),
            forwarder: forwarder(),
            faults: Faults::default(),
            port: Port::reserve(),
            arrived: watch::Sender::default(),
            sources: Mutex::default(),
        });
        let app = Router::new().fallback(relay).with_state(wire.clone());
        let endpoint = format!("http://{}", support::serve(app).await);
        Self { endpoint, wire }
    }

    /// Waits for a request.
    async fn arrived(&self, operation: &str) {
        let mut arrived = self.wire.arrived.subscribe();
        let arrived = arrived.wait_for(|counts| counts.contains_key(operation));
        timeout(PATIENCE, arrived).await.unwrap().unwrap();
    }
}

async fn relay(State(wire): State<Arc<Wire>>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let name = operation(&headers);
    let note = |counts: &mut Counts| *counts.entry(name.clone()).or_default() += 1;
    wire.arrived.send_modify(note);
    if name == "ListDeadLetterSourceQueues" {
        let answer = json!({"queueUrls": *wire.sources.lock().unwrap()});
        return Response::new(Body::from(answer.to_string()));
    }
    let line = wire.clone();
    let forward =
        |body| async move { forward(&line.forwarder, &line.upstream, headers, body).await };
    wire.faults.pass(&name, &wire.port, body, forward).await
}

impl World {
    fn arguments<'a>(&'a self, journal: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let with = ["--all", "--yes", "--output", "json", "--to", &self.orders];
        let command = ["dlq", "redrive", &self.dead, "--journal", journal];
        [&command, &with[..], more].concat()
    }

    /// Moves all dead letters. `journal` distinguishes the journals of one test.
    async fn moves(&self, endpoint: &str, journal: &str) -> Ended {
        let journal = format!("{}{journal}", self.journal.display());
        let ended = run(endpoint, &self.arguments(&journal, &[])).await;
        if !journal.ends_with(".journal") {
            std::fs::remove_file(journal).unwrap();
        }
        ended
    }

    /// Runs the redrive until it receives this message, which is hidden at first.
    async fn resumes(&self, id: &str) -> Ended {
        let start = Instant::now();
        loop {
            let ended = self.moves(&self.endpoint, "").await;
            if ends(&ended).contains_key(id) {
                return ended;
            }
            assert!(start.elapsed() < PATIENCE, "{ended:?}");
        }
    }
}

/// Number of messages with this end.
fn with_end(ended: &Ended, wanted: &str) -> usize {
    let ends = ends(ended);
    ends.values().filter(|(end, _)| end == wanted).count()
}

async fn three_dead_letters(world: &World) -> Vec<String> {
    let mut ids = Vec::new();
    for key in ["p#1", "p#2", "p#3"] {
        ids.push(world.failed("permanent_failure", key).await);
    }
    ids
}

#[tokio::test]
async fn refused_sends_are_sent_by_the_next_run() {
    let refused = async |fault| {
        in_a_world(false, async |world| {
            let ids = three_dead_letters(world).await;
            let line = Line::to(world).await;
            line.wire.faults.fail("SendMessage", fault);
            let first = world.moves(&line.endpoint, "").await;
            assert_eq!(first.code, 1, "{fault:?}: {first:?}");
            assert_eq!(with_end(&first, "refused"), 1, "{fault:?}: {first:?}");
            assert_eq!(with_end(&first, "moved"), 2, "{fault:?}: {first:?}");
            let second = world.moves(&line.endpoint, "").await;
            assert_eq!(second.code, 0, "{fault:?}: {second:?}");
            world.moved_once(&ids).await;
        })
        .await;
    };
    join_all([Fault::Denied, Fault::Throttle].map(refused)).await;
}

#[tokio::test]
async fn unanswered_send_is_neither_lost_nor_repeated() {
    let unanswered = async |(fault, applied)| {
        in_a_world(false, async |world| {
            let ids = three_dead_letters(world).await;
            let line = Line::to(world).await;
            line.wire.faults.fail("SendMessage", fault);
            let first = world.moves(&line.endpoint, "").await;
            assert_eq!(first.code, 1, "{fault:?}: {first:?}");
            assert_eq!(with_end(&first, "unknown"), 1, "{fault:?}: {first:?}");
            assert_eq!(with_end(&first, "not_tried"), 2, "{fault:?}: {first:?}");
            let unknown = ends(&first);
            let unknown = unknown.iter().find(|(_, (end, _))| end == "unknown");
            let unknown = unknown.unwrap().0;

            // The same journal moves the others, and leaves the message.
            for others in [2, 0] {
                let next = world.moves(&line.endpoint, "").await;
                assert_eq!(next.code, 1, "{fault:?}: {next:?}");
                assert_eq!(with_end(&next, "moved"), others, "{fault:?}: {next:?}");
                assert_eq!(ends(&next)[unknown].0, "unknown", "{fault:?}: {next:?}");
            }
            assert_eq!(world.count(&world.dead).await, 1, "{fault:?}");
            let copies = 2 + usize::from(applied);
            assert_eq!(world.count(&world.orders).await, copies, "{fault:?}");

            // Another journal sends it: the second copy of the documented window.
            let last = world.moves(&line.endpoint, ".other").await;
            assert_eq!(last.code, 0, "{fault:?}: {last:?}");
            let arrived = world.take(&world.orders, copies + 1).await;
            for id in &ids {
                let of = |copy: &&_| attribute(copy, "SqsOnceRedriveOf") == Some(id);
                let copies = 1 + usize::from(applied && id == unknown);
                assert_eq!(arrived.iter().filter(of).count(), copies, "{fault:?}");
            }
            assert_eq!(world.count(&world.dead).await, 0, "{fault:?}");
        })
        .await;
    };
    let faults = [
        (Fault::CutBefore, false),
        (Fault::CutAfter, true),
        (Fault::HalfAnswer, true),
        (Fault::Garbage, true),
        (Fault::Empty, true),
        (Fault::GarbageInstead, false),
        (Fault::EmptyInstead, false),
        (Fault::InternalError, false),
        (Fault::Unavailable, false),
    ];
    join_all(faults.map(unanswered)).await;
}

#[tokio::test]
async fn unconfirmed_deletion_is_repeated_without_a_send() {
    let unconfirmed = async |fault| {
        in_a_world(false, async |world| {
            let ids = three_dead_letters(world).await;
            let line = Line::to(world).await;
            line.wire.faults.fail_all("DeleteMessage", fault);
            let first = world.moves(&line.endpoint, "").await;
            assert_eq!(first.code, 1, "{fault:?}: {first:?}");
            assert_eq!(with_end(&first, "sent_not_deleted"), 3, "{first:?}");
            line.wire.faults.heal().await;
            let second = world.moves(&line.endpoint, "").await;
            assert_eq!(second.code, 0, "{fault:?}: {second:?}");
            assert_eq!(with_end(&second, "deleted"), 3, "{second:?}");
            world.moved_once(&ids).await;
        })
        .await;
    };
    let faults = [Fault::CutBefore, Fault::Denied, Fault::Unavailable];
    join_all(faults.map(unconfirmed)).await;
}

#[tokio::test]
async fn killed_redrive_resumes_without_second_copy() {
    for (held, end, code) in [
        ("SendMessage", "unknown", 1),
        ("DeleteMessage", "deleted", 0),
    ] {
        in_a_world(false, async |world| {
            let id = world.failed("permanent_failure", "p#1").await;
            let line = Line::to(world).await;
            let fault = match held {
                "SendMessage" => Fault::HoldAnswer,
                _ => Fault::HoldRequest,
            };
            line.wire.faults.fail(held, fault);
            let journal = world.journal.to_str().unwrap();
            let mut redrive = tool(&line.endpoint, &world.arguments(journal, &["--hide", "2s"]));
            let redrive = redrive.stdout(Stdio::null()).stderr(Stdio::null());
            let mut redrive = redrive.spawn().unwrap();
            line.arrived(held).await;
            redrive.kill().await.unwrap();
            let resumed = world.resumes(&id).await;
            assert_eq!(resumed.code, code, "{held}: {resumed:?}");
            assert_eq!(ends(&resumed)[&id].0, end, "{held}: {resumed:?}");
            line.wire.faults.heal().await;
            assert_eq!(world.count(&world.orders).await, 1, "{held}");
            let left = world.count(&world.dead).await;
            assert_eq!(left, usize::from(end == "unknown"), "{held}");
        })
        .await;
    }
}

/// Attributes with which a message has no room for `SqsOnceRedriveOf`.
const FULL: [(&str, &str); 10] = [
    ("a0", "1"),
    ("a1", "1"),
    ("a2", "1"),
    ("a3", "1"),
    ("a4", "1"),
    ("a5", "1"),
    ("a6", "1"),
    ("a7", "1"),
    ("a8", "1"),
    ("a9", "1"),
];

async fn group(world: &World, group: &str, count: usize, refused: Option<usize>) {
    for index in 0..count {
        let attributes: &[_] = if refused == Some(index) { &FULL } else { &[] };
        let body = json!({"group": group, "index": index}).to_string();
        world.dead_letter(&body, attributes, Some(group)).await;
    }
}

/// Indexes of the messages of a group, in the order in which the queue returns them.
async fn indexes(world: &World, url: &str, name: &str, count: usize) -> Vec<u64> {
    let messages = world.take(url, count).await;
    let bodies = messages
        .iter()
        .map(|message| message.body.as_deref().unwrap());
    let bodies = bodies.map(|body| serde_json::from_str::<serde_json::Value>(body).unwrap());
    let of = bodies.filter(|body| body["group"] == name);
    of.map(|body| body["index"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn refused_message_stops_its_fifo_group_alone() {
    in_a_world(true, async |world| {
        group(world, "head", 3, Some(0)).await;
        group(world, "third", 5, Some(2)).await;
        // More than SQS shows of a group at a time.
        group(world, "whole", 12, None).await;
        let ended = world.moves(&world.endpoint, "").await;
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(
            ended.stderr.contains("no room for the attribute"),
            "{ended:?}"
        );
        assert_eq!(with_end(&ended, "refused"), 2, "{ended:?}");
        assert_eq!(with_end(&ended, "not_tried"), 4, "{ended:?}");
        assert_eq!(with_end(&ended, "moved"), 14, "{ended:?}");
        assert_eq!(world.count(&world.orders).await, 14);
        let mut arrived = world.take(&world.orders, 14).await;
        arrived.retain(|message| message.body.as_ref().unwrap().contains("whole"));
        let bodies = arrived.iter().map(|message| message.body.clone().unwrap());
        let wanted = (0..12).map(|index| json!({"group": "whole", "index": index}).to_string());
        assert!(bodies.eq(wanted));
        assert_eq!(world.count(&world.dead).await, 6);
        let left = world.take(&world.dead, 6).await;
        let left = |group: &str| {
            let of = left.iter().filter_map(|message| {
                let body: serde_json::Value =
                    serde_json::from_str(message.body.as_ref().unwrap()).unwrap();
                (body["group"] == group).then(|| body["index"].as_u64().unwrap())
            });
            of.collect::<Vec<_>>()
        };
        assert_eq!(
            (left("head"), left("third")),
            (vec![0, 1, 2], vec![2, 3, 4])
        );
    })
    .await;
}

#[tokio::test]
async fn unanswered_send_leaves_fifo_group_in_order() {
    in_a_world(true, async |world| {
        group(world, "orders", 5, None).await;
        let line = Line::to(world).await;
        // One lost answer: the send is repeated under its deduplication id. All lost: the group
        // stops before the second message.
        line.wire.faults.fail_all("SendMessage", Fault::CutAfter);
        let first = world.moves(&line.endpoint, "").await;
        assert_eq!(first.code, 1, "{first:?}");
        assert_eq!(with_end(&first, "unknown"), 1, "{first:?}");
        line.wire.faults.heal().await;
        let same = world.moves(&line.endpoint, "").await;
        assert_eq!((same.code, with_end(&same, "moved")), (1, 0), "{same:?}");
        line.wire.faults.fail("SendMessage", Fault::CutAfter);
        let other = world.moves(&line.endpoint, ".other").await;
        assert_eq!(other.code, 0, "{other:?}");
        let arrived = indexes(world, &world.orders, "orders", 5).await;
        assert_eq!(arrived, [0, 1, 2, 3, 4]);
        assert_eq!(world.count(&world.dead).await, 0);
    })
    .await;
}

/// The first copy arrived, so a send under another journal would be a second message.
#[tokio::test]
async fn refusal_after_an_unanswered_send_is_unknown() {
    in_a_world(true, async |world| {
        group(world, "orders", 2, None).await;
        let line = Line::to(world).await;
        line.wire.faults.fail("SendMessage", Fault::CutAfter);
        line.wire.faults.fail("SendMessage", Fault::Denied);
        let first = world.moves(&line.endpoint, "").await;
        assert_eq!(first.code, 1, "{first:?}");
        assert_eq!(with_end(&first, "unknown"), 1, "{first:?}");
        let same = world.moves(&line.endpoint, "").await;
        assert_eq!((same.code, with_end(&same, "moved")), (1, 0), "{same:?}");
        assert_eq!(world.count(&world.orders).await, 1);
    })
    .await;
}

const MORE: &str = "not all messages were received";

#[tokio::test]
async fn rest_of_a_named_group_is_not_forgotten() {
    in_a_world(true, async |world| {
        let mut ids = Vec::new();
        for group in ["a", "b", "a"] {
            ids.push(world.dead_letter("{}", &[], Some(group)).await);
        }
        let journal = world.journal.to_str().unwrap();
        let by_id = async |max: &str| {
            let (dead, orders) = (&*world.dead, &*world.orders);
            let queues = ["dlq", "redrive", dead, "--to", orders, "--yes"];
            let options = ["--journal", journal, "--message", &ids[0], "--max", max];
            run(&world.endpoint, &[queues, options].concat()).await
        };
        let one_at_a_time = by_id("1").await;
        assert_eq!(one_at_a_time.code, 1, "{one_at_a_time:?}");
        assert!(one_at_a_time.stderr.contains(MORE), "{one_at_a_time:?}");
    })
    .await;
}

/// Rounds end when the queue is empty, and `--max` holds for each.
#[tokio::test]
async fn group_is_moved_in_rounds() {
    in_a_world(true, async |world| {
        group(world, "orders", 3, None).await;
        let journal = world.journal.to_str().unwrap();
        let arguments = world.arguments(journal, &["--max", "1"]);
        let ended = run(&world.endpoint, &arguments).await;
        assert_eq!((ended.code, with_end(&ended, "moved")), (0, 3), "{ended:?}");
    })
    .await;
}

/// A group that the first round did not show is left.
#[tokio::test]
async fn group_beyond_the_maximum_is_not_forgotten() {
    in_a_world(true, async |world| {
        for group in ["a", "a", "b"] {
            world.dead_letter("{}", &[], Some(group)).await;
        }
        let journal = world.journal.to_str().unwrap();
        let arguments = world.arguments(journal, &["--max", "2"]);
        let first = run(&world.endpoint, &arguments).await;
        assert_eq!((first.code, with_end(&first, "moved")), (1, 2), "{first:?}");
        assert!(first.stderr.contains(MORE), "{first:?}");
        let second = run(&world.endpoint, &arguments).await;
        assert_eq!(
            (second.code, with_end(&second, "moved")),
            (0, 1),
            "{second:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn absent_message_may_be_beyond_the_maximum() {
    in_a_world(false, async |world| {
        three_dead_letters(world).await;
        let with_max = async |max: &str| {
            let queues = ["dlq", "redrive", &world.dead, "--to", &world.orders];
            let options = ["--dry-run", "--message", "no-such-id", "--max", max];
            run(&world.endpoint, &[queues, options].concat()).await
        };
        const HIDDEN: &str = "another receiver may hide it";
        for (max, told, not_told) in [("1", MORE, HIDDEN), ("10", HIDDEN, MORE)] {
            let ended = with_max(max).await;
            assert_eq!(ended.code, 1, "{ended:?}");
            assert!(ended.stderr.contains(told), "{ended:?}");
            assert!(!ended.stderr.contains(not_told), "{ended:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn failed_receive_leaves_report_of_moved_messages() {
    in_a_world(true, async |world| {
        group(world, "orders", 3, None).await;
        let line = Line::to(world).await;
        let outage = async {
            line.arrived("DeleteMessage").await;
            line.wire.faults.fail_all("ReceiveMessage", Fault::Denied);
        };
        let (ended, ()) = tokio::join!(world.moves(&line.endpoint, ""), outage);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert_eq!(with_end(&ended, "moved"), 3, "{ended:?}");
        assert!(ended.stderr.contains("sqs:ReceiveMessage"), "{ended:?}");
    })
    .await;
}

#[tokio::test]
async fn redrive_without_to_needs_one_source_queue() {
    in_a_world(false, async |world| {
        let id = world.failed("permanent_failure", "p#1").await;
        let line = Line::to(world).await;
        let journal = world.journal.to_str().unwrap();
        let redrive = async |sources: &[&str]| {
            *line.wire.sources.lock().unwrap() = sources.iter().map(ToString::to_string).collect();
            let dead = &world.dead;
            let arguments = [
                "dlq",
                "redrive",
                dead,
                "--all",
                "--yes",
                "--journal",
                journal,
            ];
            run(&line.endpoint, &arguments).await
        };
        let other = "http://127.0.0.1/000000000000/other-queue";
        let orders = &*world.orders;
        for (sources, reason) in [
            (&[][..], "no queue has this dead-letter queue"),
            (&[orders, other], "other-queue): name one of them with --to"),
        ] {
            let ended = redrive(sources).await;
            assert_eq!(ended.code, 2, "{ended:?}");
            assert!(ended.stderr.contains(reason), "{ended:?}");
            assert_eq!(world.count(&world.dead).await, 1);
        }
        let moved = redrive(&[orders]).await;
        assert_eq!(moved.code, 0, "{moved:?}");
        world.moved_once(&[id]).await;
    })
    .await;
}
