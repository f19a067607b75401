//! `sqs-once dlq redrive` while SQS refuses requests or loses answers.

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
use serde_json::{Value, json};
use support::{
    PATIENCE,
    dynamo::{Counts, forward, forwarder, operation},
    faults::{Fault, Faults, Port},
};
use tokio::{sync::watch, time::timeout};

use crate::{
    Ended,
    dead_letters::{World, attribute, ends, in_a_world},
    message_move::signal,
    run, tool,
};

/// Refuses one message.
const REFUSED: Fault = Fault::Code("InvalidMessageContents");

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

    fn count_of(&self, operation: &str) -> usize {
        let arrived = self.wire.arrived.borrow();
        arrived.get(operation).copied().unwrap_or_default()
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
    /// Moves all dead letters through this endpoint.
    async fn moves(&self, endpoint: &str) -> Ended {
        run(endpoint, &self.redrive_of_all()).await
    }

    fn redrive_of_all(&self) -> [&str; 9] {
        let (dead, orders) = (&*self.dead, &*self.orders);
        [
            "dlq", "redrive", dead, "--to", orders, "--all", "--yes", "--output", "json",
        ]
    }
}

/// Number of messages with this end.
fn with_end(ended: &Ended, wanted: &str) -> usize {
    ends(ended).values().filter(|end| *end == wanted).count()
}

/// The counts of sent, not sent and unknown messages.
fn counts(ended: &Ended) -> (Value, Value, Value) {
    let json = ended.json();
    let of = |name: &str| json[name].clone();
    (of("sent"), of("not_sent"), of("unknown"))
}

async fn three_dead_letters(world: &World) -> Vec<String> {
    let mut ids = Vec::new();
    for key in ["p#1", "p#2", "p#3"] {
        ids.push(world.failed("permanent_failure", key).await);
    }
    ids
}

/// A message that is too large for its queue says nothing about the next.
#[tokio::test]
async fn refused_send_is_sent_by_the_next_run() {
    in_a_world(false, async |world| {
        let ids = three_dead_letters(world).await;
        let line = Line::to(world).await;
        line.wire.faults.fail("SendMessage", REFUSED);
        let first = world.moves(&line.endpoint).await;
        assert_eq!(first.code, 1, "{first:?}");
        assert_eq!(counts(&first), (json!(2), json!(1), json!(0)));
        let second = world.moves(&line.endpoint).await;
        assert_eq!(second.code, 0, "{second:?}");
        world.moved_once(&ids).await;
    })
    .await;
}

#[tokio::test]
async fn throttled_send_is_repeated() {
    in_a_world(false, async |world| {
        let ids = three_dead_letters(world).await;
        let line = Line::to(world).await;
        line.wire.faults.fail("SendMessage", Fault::Throttle);
        line.wire
            .faults
            .fail("SendMessage", Fault::Code("RequestThrottled"));
        let ended = world.moves(&line.endpoint).await;
        assert_eq!(ended.code, 0, "{ended:?}");
        world.moved_once(&ids).await;
    })
    .await;
}

/// Each further message would be hidden for nothing.
#[tokio::test]
async fn refusal_that_will_repeat_ends_the_redrive() {
    let refused = async |fault| {
        in_a_world(false, async |world| {
            let ids = three_dead_letters(world).await;
            let line = Line::to(world).await;
            line.wire.faults.fail_all("SendMessage", fault);
            let first = world.moves(&line.endpoint).await;
            assert_eq!(first.code, 1, "{fault:?}: {first:?}");
            let (sent, _, unknown) = counts(&first);
            assert_eq!(
                (sent, unknown),
                (json!(0), json!(0)),
                "{fault:?}: {first:?}"
            );
            assert_eq!(line.wire.faults.met("SendMessage"), 1, "{fault:?}");
            assert_eq!(line.count_of("ReceiveMessage"), 1, "{fault:?}");
            line.wire.faults.heal().await;
            let second = world.moves(&line.endpoint).await;
            assert_eq!(second.code, 0, "{fault:?}: {second:?}");
            world.moved_once(&ids).await;
        })
        .await;
    };
    let faults = [Fault::Denied, Fault::Code("ExpiredTokenException")];
    join_all(faults.map(refused)).await;
}

/// Between a send and its deletion, a message is in both queues.
#[tokio::test]
async fn signal_ends_redrive_after_the_current_message() {
    let interrupted = async |name| {
        in_a_world(false, async |world| {
            three_dead_letters(world).await;
            let line = Line::to(world).await;
            line.wire.faults.fail("SendMessage", Fault::HoldAnswer);
            let process = tool(&line.endpoint, &world.redrive_of_all())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            line.arrived("SendMessage").await;
            signal(&process, name).await;
            line.wire.faults.heal().await;
            let ended = Ended::of(process.wait_with_output().await.unwrap());
            assert_eq!(ended.code, 1, "{name}: {ended:?}");
            assert!(ended.stderr.contains("interrupted"), "{ended:?}");
            assert_eq!(with_end(&ended, "moved"), 1, "{ended:?}");
            assert_eq!(world.count(&world.orders).await, 1);
            // The others are visible.
            let rest = world.moves(&line.endpoint).await;
            assert_eq!((rest.code, with_end(&rest, "moved")), (0, 2), "{rest:?}");
        })
        .await;
    };
    join_all(["-INT", "-TERM"].map(interrupted)).await;
}

#[tokio::test]
async fn hidden_messages_are_said() {
    in_a_world(false, async |world| {
        three_dead_letters(world).await;
        world.hide(2).await;
        let ended = world.redrive(&["--all", "--yes"]).await;
        assert_eq!((ended.code, with_end(&ended, "moved")), (1, 1), "{ended:?}");
        let told = "about 2 messages were not received: another receiver hides them";
        assert!(ended.stderr.contains(told), "{ended:?}");
        let nothing = world
            .redrive(&["--reason", "permanent_failure", "--yes"])
            .await;
        assert_eq!(nothing.code, 1, "{nothing:?}");
        let previewed = world.redrive(&["--all", "--dry-run"]).await;
        assert_eq!(previewed.code, 1, "{previewed:?}");
    })
    .await;
}

/// The copy of such a message has no room for SqsOnceRedriveOf.
#[tokio::test]
async fn full_message_that_fails_again_at_once_is_moved_once() {
    in_a_world(false, async |world| {
        world.full_dead_letter().await;
        let line = Line::to(world).await;
        line.wire.faults.fail("DeleteMessage", Fault::HoldAnswer);
        let fails_again = async {
            line.arrived("DeleteMessage").await;
            world.take(&world.orders, 1).await;
            world.full_dead_letter().await;
            line.wire.faults.heal().await;
        };
        let (ended, ()) = tokio::join!(world.moves(&line.endpoint), fails_again);
        assert_eq!(counts(&ended).0, json!(1), "{ended:?}");
        assert!(
            ended.stderr.contains("1 message arrived after the start"),
            "{ended:?}"
        );
        assert_eq!(world.count(&world.dead).await, 1);
    })
    .await;
}

/// The message stays, and no further one is sent. The next redrive sends it, which is a second copy if the
/// first one arrived.
#[tokio::test]
async fn unanswered_send_is_unknown_and_ends_the_redrive() {
    let unanswered = async |(fault, applied)| {
        in_a_world(false, async |world| {
            let ids = three_dead_letters(world).await;
            let line = Line::to(world).await;
            line.wire.faults.fail("SendMessage", fault);
            let first = world.moves(&line.endpoint).await;
            assert_eq!(first.code, 1, "{fault:?}: {first:?}");
            let (sent, _, unknown) = counts(&first);
            assert_eq!(
                (sent, unknown),
                (json!(0), json!(1)),
                "{fault:?}: {first:?}"
            );
            assert_eq!(world.count(&world.dead).await, 3, "{fault:?}");
            let copies = usize::from(applied);
            assert_eq!(world.count(&world.orders).await, copies, "{fault:?}");
            let second = world.moves(&line.endpoint).await;
            assert_eq!(second.code, 0, "{fault:?}: {second:?}");
            let arrived = world.take(&world.orders, copies + 3).await;
            for id in &ids {
                let of = |copy: &&_| attribute(copy, "SqsOnceRedriveOf") == Some(id);
                let is_unknown = ends(&first).get(id).is_some_and(|end| end == "unknown");
                let copies = 1 + usize::from(applied && is_unknown);
                assert_eq!(arrived.iter().filter(of).count(), copies, "{fault:?}");
            }
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

/// With each further message, the next redrive would send one more a second time.
#[tokio::test]
async fn unconfirmed_deletion_is_counted_as_sent_and_ends_the_redrive() {
    let unconfirmed = async |fault| {
        in_a_world(false, async |world| {
            three_dead_letters(world).await;
            let line = Line::to(world).await;
            line.wire.faults.fail_all("DeleteMessage", fault);
            let ended = world.moves(&line.endpoint).await;
            assert_eq!(ended.code, 1, "{fault:?}: {ended:?}");
            assert_eq!(counts(&ended).0, json!(1), "{fault:?}");
            assert_eq!(with_end(&ended, "sent_not_deleted"), 1, "{ended:?}");
            line.wire.faults.heal().await;
            assert_eq!(world.count(&world.orders).await, 1, "{fault:?}");
        })
        .await;
    };
    let faults = [Fault::CutBefore, Fault::Denied, Fault::Unavailable];
    join_all(faults.map(unconfirmed)).await;
}

async fn group(world: &World, group: &str, count: usize) {
    for index in 0..count {
        world
            .dead_letter(&index.to_string(), &[], Some(group))
            .await;
    }
}

/// The second redrive sends the message again, and SQS drops the copy by its deduplication id.
#[tokio::test]
async fn unanswered_send_to_fifo_queue_has_no_second_copy() {
    in_a_world(true, async |world| {
        group(world, "orders", 5).await;
        let line = Line::to(world).await;
        line.wire.faults.fail("SendMessage", Fault::CutAfter);
        let first = world.moves(&line.endpoint).await;
        assert_eq!(first.code, 1, "{first:?}");
        assert_eq!(with_end(&first, "unknown"), 1, "{first:?}");
        assert_eq!(world.count(&world.orders).await, 1);
        let second = world.moves(&line.endpoint).await;
        assert_eq!(second.code, 0, "{second:?}");
        let arrived = world.take(&world.orders, 5).await;
        let bodies = arrived.iter().map(|message| message.body.clone().unwrap());
        assert!(bodies.eq((0..5).map(|index| index.to_string())));
        let counts = (
            world.count(&world.dead).await,
            world.count(&world.orders).await,
        );
        assert_eq!(counts, (0, 0));
    })
    .await;
}

#[tokio::test]
async fn refused_send_stops_its_fifo_group_alone() {
    in_a_world(true, async |world| {
        group(world, "a", 3).await;
        group(world, "b", 3).await;
        let line = Line::to(world).await;
        line.wire.faults.fail("SendMessage", REFUSED);
        let ended = world.moves(&line.endpoint).await;
        assert_eq!(ended.code, 1, "{ended:?}");
        assert_eq!(counts(&ended), (json!(3), json!(3), json!(0)), "{ended:?}");
        let again = world.moves(&line.endpoint).await;
        assert_eq!((again.code, counts(&again).0), (0, json!(3)), "{again:?}");
    })
    .await;
}

#[tokio::test]
async fn failed_receive_leaves_report_of_moved_messages() {
    in_a_world(true, async |world| {
        group(world, "orders", 3).await;
        let line = Line::to(world).await;
        let outage = async {
            line.arrived("DeleteMessage").await;
            line.wire.faults.fail_all("ReceiveMessage", Fault::Denied);
        };
        let (ended, ()) = tokio::join!(world.moves(&line.endpoint), outage);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert_eq!(with_end(&ended, "moved"), 3, "{ended:?}");
        assert!(ended.stderr.contains("sqs:ReceiveMessage"), "{ended:?}");
        let nothing = world.moves(&line.endpoint).await;
        assert_eq!((nothing.code, &*nothing.stdout), (3, ""), "{nothing:?}");
    })
    .await;
}

#[tokio::test]
async fn absent_message_may_be_beyond_the_maximum() {
    in_a_world(false, async |world| {
        three_dead_letters(world).await;
        const MORE: &str = "not all messages were received";
        const HIDDEN: &str = "another receiver may hide it";
        for (max, told, not_told) in [("1", MORE, HIDDEN), ("10", HIDDEN, MORE)] {
            let arguments = ["--dry-run", "--message", "no-such-id", "--max", max];
            let ended = world.redrive(&arguments).await;
            assert_eq!(ended.code, 1, "{ended:?}");
            assert!(ended.stderr.contains(told), "{ended:?}");
            assert!(!ended.stderr.contains(not_told), "{ended:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn redrive_without_to_needs_one_source_queue() {
    in_a_world(false, async |world| {
        let id = world.failed("permanent_failure", "p#1").await;
        let line = Line::to(world).await;
        let redrive = async |sources: &[&str]| {
            *line.wire.sources.lock().unwrap() = sources.iter().map(ToString::to_string).collect();
            let dead = &world.dead;
            let arguments = ["dlq", "redrive", dead, "--all", "--yes"];
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
