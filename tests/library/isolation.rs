//! Messages that end their process run alone, rest after each death, and end as `crashed`.
//!
//! A death is played by dropping the batch's future, and with it its tasks: nothing is recorded any more.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once, Operation, Outcome,
    protocol::{AttemptEnd, CrashWaits, Key, Record, State, StoredResult, Timestamp},
    sqs::FingerprintSource,
    store::{MemoryStore, Store},
};
use support::{
    consumer::{namespace, process, within as from_now},
    dynamo::Dynamo,
    event::{batch, in_group, received, record, sent_at},
    log,
    lossy::{Fate, Lossy},
};
use tokio::sync::Notify;

use crate::wall_clock::{advance, clock};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn within(budget: Duration) -> Deadline {
    Deadline::after(clock(), budget, budget / 4)
}

/// The script of a test's handlers, and a log of their runs.
#[derive(Clone, Default)]
struct World(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Ends the process.
    death: Notify,
    /// Messages whose handlers began, in that order, with the number of handlers then running.
    began: Mutex<Vec<(String, usize)>>,
    running: AtomicUsize,
    deaths: AtomicU64,
}

/// Does what the message says: `{"do": "succeed" | "kill" | "refuse" | "slow"}`.
struct Scripted(World);

impl Handler for Scripted {
    type Message = Value;
    type Output = u32;

    async fn handle(&self, order: Value, attempt: Attempt) -> Result<u32, Failure> {
        struct Running<'a>(&'a AtomicUsize);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        let world = &self.0.0;
        let others = world.running.fetch_add(1, SeqCst);
        let _running = Running(&world.running);
        let began = (attempt.message_id().to_owned(), others);
        world.began.lock().unwrap().push(began);
        tokio::task::yield_now().await;
        match order["do"].as_str().unwrap() {
            "kill" => {
                world.deaths.fetch_add(1, SeqCst);
                world.death.notify_one();
                std::future::pending().await
            }
            "refuse" => Err(Failure::no_effect("connection refused")),
            "decline" => Err(Failure::declined("the card is declined")),
            "fail" => Err(Failure::retryable("scripted")),
            "block" => {
                std::thread::sleep(2 * SECOND);
                Ok(1)
            }
            "slow" => {
                tokio::time::sleep(200 * Duration::from_millis(1)).await;
                Ok(1)
            }
            _ => Ok(1),
        }
    }
}

impl World {
    fn consumer<S: Store>(&self, store: S) -> Consumer<Once<S>, Scripted> {
        // These messages rest for days.
        let once = Once::new(store).clock(clock).call_key_lifetime(None);
        // The same message does something else later: its bug is corrected.
        Consumer::without_aws(once, namespace(), Scripted(self.clone()))
            .fingerprint(FingerprintSource::Off)
            .circuit_breaker(false)
    }

    /// Processes a batch in a new process. `None` if it died.
    async fn receive<S: Store + Clone>(
        &self,
        store: &S,
        messages: Vec<Value>,
    ) -> Option<Vec<String>> {
        self.receive_by(self.consumer(store.clone()), messages)
            .await
    }

    /// The same with the order as key, and the body as fingerprint.
    async fn receive_orders(
        &self,
        store: &MemoryStore,
        messages: Vec<Value>,
    ) -> Option<Vec<String>> {
        let consumer = self
            .consumer(store.clone())
            .key("body:/id".parse().unwrap());
        self.receive_by(consumer.fingerprint(FingerprintSource::Body), messages)
            .await
    }

    async fn receive_by<S: Store>(
        &self,
        consumer: Consumer<Once<S>, Scripted>,
        messages: Vec<Value>,
    ) -> Option<Vec<String>> {
        let consumer = Arc::new(consumer);
        let answer = process(&consumer, batch(messages), within(20 * SECOND));
        tokio::select! {
            answer = answer => Some(answer),
            () = self.0.death.notified() => None,
        }
    }

    fn began(&self) -> Vec<String> {
        let began = std::mem::take(&mut *self.0.began.lock().unwrap());
        began.into_iter().map(|(id, _)| id).collect()
    }

    fn deaths(&self) -> u64 {
        self.0.deaths.load(SeqCst)
    }
}

fn order(id: &str, what: &str) -> Value {
    record(id, &json!({"do": what}))
}

fn key(id: &str) -> Key {
    Key::new(&namespace(), [id]).unwrap()
}

fn kept(store: &MemoryStore, id: &str) -> Record {
    store.record(&key(id)).unwrap()
}

/// Leaves an open attempt without an end: its process died in a crowd.
async fn died_in_a_crowd(store: &MemoryStore, ids: &[String]) {
    for id in ids {
        let once = Once::new(store.clone()).clock(clock);
        let operation = Operation::new(key(id), None, id.as_str(), within(SECOND));
        let run = once.run(operation, async |_| -> Result<u32, Failure> {
            std::future::pending().await
        });
        assert!(run.now_or_never().is_none(), "{id} ended");
    }
    advance(MINUTE);
}

#[tokio::test]
async fn nine_neighbours_succeed_and_killer_is_crashed() {
    let (world, store) = (World::default(), MemoryStore::default());
    let ids: Vec<_> = (0..10).map(|n| format!("m-{n}")).collect();
    let mut waiting: Vec<_> = ids.iter().map(String::as_str).collect();
    let start = clock();
    for _receive in 0..200 {
        let what = |id: &str| if id == "m-4" { "kill" } else { "succeed" };
        let messages = waiting.iter().map(|id| order(id, what(id))).collect();
        if let Some(failed) = world.receive(&store, messages).await {
            waiting.retain(|id| failed.iter().any(|failed| failed == id));
        }
        if waiting == ["m-4"] && kept(&store, "m-4").state == State::Failed {
            break;
        }
        advance(6 * MINUTE);
    }
    assert_eq!(world.deaths(), 5);
    let crashed = kept(&store, "m-4");
    assert_eq!(
        (&crashed.state, crashed.exclusive_attempts),
        (&State::Failed, 0)
    );
    let error = crashed.last_error().unwrap();
    let reason = "the process ended 4 times while the handler of this message ran alone";
    assert!(error.starts_with(reason), "{error}");
    for id in ids.iter().filter(|id| *id != "m-4") {
        assert!(
            matches!(kept(&store, id).state, State::Completed { .. }),
            "{id}"
        );
    }
    let took = start.until(clock());
    assert!(12 * HOUR < took && took < 14 * HOUR, "{took:?}");
}

/// A message of the order `o`, or of another.
fn message(id: &str, order: &str, card: u32) -> Value {
    let what = if card == 0 { "decline" } else { "succeed" };
    let body = json!({"id": order, "card": card, "do": what});
    sent_at(record(id, &body), Timestamp::from_millis(1))
}

/// [A, B] of one group and key: A is declined, B is claimed and its process dies. A comes back first, because no copy of it can
/// be made.
#[tokio::test]
async fn group_goes_on_when_a_failure_returns_before_a_death() {
    let (world, store) = (World::default(), MemoryStore::default());
    let a = in_group(message("a", "o", 0), "g");
    let mut killer = in_group(message("b", "o", 1), "g");
    killer["body"] = json!(json!({"id": "o", "card": 1, "do": "kill"}).to_string());
    let both = vec![a, killer.clone()];
    assert_eq!(world.receive_orders(&store, both.clone()).await, None);
    for _receive in 0..5 {
        advance(11 * HOUR);
        let _died = world.receive_orders(&store, both.clone()).await;
    }
    let record = kept(&store, "o");
    assert_eq!((record.state, record.failures.len()), (State::Failed, 2));
    assert_eq!(world.deaths(), 5);
    // Both fail for good now, each with its own answer.
    let failed = world.receive_orders(&store, both).await;
    assert_eq!(failed, Some(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(world.began().iter().filter(|id| *id == "a").count(), 1);
}

/// The message behind it may be the only one that can end the attempt that is in the way.
#[tokio::test]
async fn message_behind_a_conflict_of_payloads_is_claimed() {
    for fifo in [false, true] {
        let (world, store) = (World::default(), MemoryStore::default());
        let placed = |message: Value| {
            if fifo {
                in_group(message, "g")
            } else {
                message
            }
        };
        let mut open = message("first", "o", 1);
        open["body"] = json!(json!({"id": "o", "card": 1, "do": "kill"}).to_string());
        let mut again = placed(message("first", "o", 1));
        again["body"] = open["body"].clone();
        assert_eq!(world.receive_orders(&store, vec![open]).await, None);
        advance(MINUTE);
        world.began();
        let mut corrected = message("corrected", "o", 2);
        corrected["attributes"]["ApproximateReceiveCount"] = json!("3");
        let messages = [corrected, message("other", "p", 2), again];
        let messages = messages.map(placed).into();
        assert_eq!(world.receive_orders(&store, messages).await, None);
        let expected: &[_] = if fifo {
            &["first"]
        } else {
            &["other", "first"]
        };
        assert_eq!(world.began(), expected, "fifo: {fifo}");
    }
}

/// It goes ahead only to end that attempt. Those behind it have to keep the order of the group.
#[tokio::test]
async fn message_behind_a_conflict_of_payloads_is_the_last_of_its_group() {
    let (world, store) = (World::default(), MemoryStore::default());
    let receive = async |messages: Vec<Value>| {
        let consumer = world.consumer(store.clone());
        let consumer = consumer.key("body:/id".parse().unwrap());
        let consumer = consumer.fingerprint("body:/card".parse().unwrap());
        world.receive_by(consumer, messages).await.unwrap()
    };
    let order = |message_id: &str, card: u32, what: &str| {
        let mut order = in_group(message(message_id, "o", 1), "g");
        order["body"] = json!(json!({"id": "o", "card": card, "do": what}).to_string());
        order
    };
    assert_eq!(receive(vec![order("first", 1, "fail")]).await, ["first"]);
    advance(MINUTE);
    let corrected = [order("b", 2, "succeed"), order("d", 2, "succeed")];
    let [b, d] = corrected.clone();
    let messages = vec![b, order("c", 1, "decline"), d];
    assert_eq!(receive(messages).await, ["b", "c", "d"]);
    assert_eq!(world.began(), ["first", "c"]);
    assert_eq!(receive(corrected.into()).await, [""; 0]);
    assert_eq!(world.began(), ["b"]);
}

/// Its claim alone is counted, and stays unless it is undone: then the message would rest for twenty minutes, as after a death.
#[tokio::test(start_paused = true)]
async fn claim_alone_without_an_answer_is_no_death() {
    let world = World::default();
    let fates = [
        // In the batch, and in its turn.
        &[Fate::Answered; 2][..],
        // The claim, and its two repetitions.
        &[Fate::AnswerLost; 3],
        // It is undone, as soon as the store can.
        &[Fate::Contended; 3],
    ];
    let store = Lossy::fates(fates.concat());
    died_in_a_crowd(&store.store, &["m".to_owned()]).await;
    let messages = vec![received("m", &json!({"do": "succeed"}), 2)];
    assert_eq!(
        world.receive(&store, messages).await,
        Some(vec!["m".to_owned()])
    );
    assert_eq!(world.began(), [""; 0]);
    assert_eq!(kept(&store.store, "m").exclusive_attempts, 0);
    advance(MINUTE);
    let messages = vec![received("m", &json!({"do": "succeed"}), 2)];
    assert_eq!(world.receive(&store, messages).await, Some(vec![]));
    assert_eq!(world.began(), ["m"]);
}

/// With ten workers, suspects that waited for the rest in a worker's place would wait for ever.
#[tokio::test]
async fn twenty_suspects_first_in_batch_of_100_finish() {
    let (world, store) = (World::default(), MemoryStore::default());
    let suspects: Vec<_> = (0..20).map(|n| format!("s-{n}")).collect();
    died_in_a_crowd(&store, &suspects).await;
    let others = (0..80).map(|n| format!("m-{n}"));
    let messages = suspects.iter().cloned().chain(others);
    let messages = messages.map(|id| order(&id, "succeed")).collect();
    let failed = world.receive(&store, messages).await;
    assert_eq!(failed, Some(vec![]));
    let began = world.0.began.lock().unwrap();
    assert_eq!(began.len(), 100);
    assert!(began[..80].iter().all(|(id, _)| id.starts_with("m-")));
    assert!(
        began[80..].iter().all(|(_, others)| *others == 0),
        "{began:?}"
    );
}

#[tokio::test]
async fn suspects_with_fewest_deaths_alone_start_first() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["twice".into(), "never".into(), "once".into()]).await;
    for (id, deaths, rest) in [("twice", 2, 3 * HOUR), ("once", 1, HOUR)] {
        for _ in 0..deaths {
            assert_eq!(world.receive(&store, vec![order(id, "kill")]).await, None);
            advance(rest);
        }
    }
    world.began();
    let ids = ["twice", "never", "once"];
    let messages = ids.map(|id| order(id, "succeed")).into();
    assert_eq!(world.receive(&store, messages).await, Some(vec![]));
    assert_eq!(world.began(), ["never", "once", "twice"]);
}

#[tokio::test]
async fn suspects_of_two_invocations_in_a_process_run_alone() {
    let (world, store) = (World::default(), MemoryStore::default());
    let suspects = ["s-1".to_owned(), "s-2".to_owned()];
    died_in_a_crowd(&store, &suspects).await;
    let consumer = Arc::new(world.consumer(store.clone()));
    // The first suspect could start while the others of the second batch still run.
    let batch_of = |n: u32| {
        let what = if n == 1 { "succeed" } else { "slow" };
        let others = (0..5).map(|m| order(&format!("m-{n}-{m}"), what));
        let suspect = order(&format!("s-{n}"), "slow");
        batch(others.chain([suspect]))
    };
    let invocation = |n| process(&consumer, batch_of(n), within(20 * SECOND));
    let (one, other) = tokio::join!(invocation(1), invocation(2));
    assert_eq!((one, other), (vec![], vec![]));
    let began = world.0.began.lock().unwrap();
    assert_eq!(began.len(), 12);
    for (id, others) in began.iter().filter(|(id, _)| id.starts_with("s-")) {
        assert_eq!(*others, 0, "{id} ran beside others");
    }
    drop(began);
    for id in suspects {
        assert!(matches!(kept(&store, &id).state, State::Completed { .. }));
    }
}

/// The handler still blocks its thread when its batch is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn blocked_handler_keeps_no_turn_after_the_answer() {
    struct Blocking;
    impl Handler for Blocking {
        type Message = Value;
        type Output = ();
        async fn handle(&self, order: Value, _: Attempt) -> Result<(), Failure> {
            if order["do"] == "block" {
                std::thread::sleep(3 * SECOND);
            }
            Ok(())
        }
    }
    let store = MemoryStore::default();
    let once = Once::new(store.clone());
    let consumer = Arc::new(
        Consumer::without_aws(once, namespace(), Blocking).fingerprint(FingerprintSource::Off),
    );
    let blocked = process(
        &consumer,
        batch([order("m-1", "block")]),
        Deadline::after(Timestamp::now(), SECOND / 2, SECOND / 4),
    );
    assert_eq!(blocked.await, ["m-1"]);
    assert_eq!(kept(&store, "m-1").last_end, None);
    // Its lease of half a second and the margin end.
    tokio::time::sleep(SECOND + SECOND * 7 / 10).await;
    let again = process(
        &consumer,
        batch([order("m-1", "succeed")]),
        Deadline::after(Timestamp::now(), SECOND, SECOND / 4),
    );
    assert_eq!(again.await, [""; 0], "the suspect got no turn");
}

#[tokio::test]
async fn outage_between_attempts_alone_crashes_nobody() {
    let dynamo = Dynamo::start().await;
    dynamo.create_table("idempotency").await;
    let store = sqs_once::store::DynamoStore::new(dynamo.client(), "idempotency");
    let world = World::default();
    let kill = || vec![order("m-1", "kill")];
    for _ in 0..4 {
        assert_eq!(world.receive(&store, kill()).await, None);
        advance(11 * HOUR);
    }
    // A table that is not there answers no claim. Nothing is recorded.
    let away = sqs_once::store::DynamoStore::new(dynamo.client(), "another-table");
    for _ in 0..20 {
        let failed = world.receive(&away, vec![order("m-1", "succeed")]).await;
        assert_eq!(failed, Some(vec!["m-1".to_owned()]));
        advance(HOUR);
    }
    let done = world.receive(&store, vec![order("m-1", "succeed")]).await;
    assert_eq!(done, Some(vec![]));
}

#[tokio::test]
async fn suspect_without_time_keeps_its_count() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["m-1".into()]).await;
    assert_eq!(
        world.receive(&store, vec![order("m-1", "kill")]).await,
        None
    );
    assert_eq!(kept(&store, "m-1").exclusive_attempts, 1);
    advance(HOUR);
    world.began();
    // The other message takes all of the time.
    let consumer = world.consumer(store.clone());
    let consumer = Arc::new(consumer.concurrency(NonZeroUsize::new(2).unwrap()));
    let messages = batch([order("m-1", "succeed"), order("m-2", "slow")]);
    let budget = 100 * Duration::from_millis(1);
    let failed = process(&consumer, messages, within(budget)).await;
    assert_eq!(failed, ["m-1", "m-2"]);
    assert_eq!(world.began(), ["m-2"]);
    let left = kept(&store, "m-1");
    assert_eq!((left.exclusive_attempts, left.last_end), (1, None));
}

/// Otherwise it would starve beside handlers that last nearly as long as the invocation.
#[tokio::test(start_paused = true)]
async fn suspect_needs_no_minimum_of_time_from_its_tenth_receive() {
    for (receives, began) in [("9", vec!["m-2"]), ("10", vec!["m-2", "m-1"])] {
        let (world, store) = (World::default(), MemoryStore::default());
        died_in_a_crowd(&store, &["m-1".into()]).await;
        let mut suspect = order("m-1", "succeed");
        suspect["attributes"]["ApproximateReceiveCount"] = json!(receives);
        let consumer = Arc::new(world.consumer(store.clone()));
        // 100 ms are left to start, and the other handler takes 200.
        let deadline = within(20 * SECOND);
        let deadline = deadline.min_time_to_start(deadline.time_left() - SECOND / 10);
        process(&consumer, batch([suspect, order("m-2", "slow")]), deadline).await;
        assert_eq!(world.began(), began, "{receives}");
    }
}

/// While it waits, nothing else starts then. In its turn, it waits for nobody.
#[tokio::test(start_paused = true)]
async fn suspect_starts_in_the_second_half_of_the_time() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["m-1".into()]).await;
    let consumer = Arc::new(world.consumer(store));
    let messages = batch([order("m-1", "succeed"), order("m-2", "slow")]);
    let failed = process(&consumer, messages, within(SECOND / 3)).await;
    assert_eq!(failed, [""; 0]);
    assert_eq!(world.began(), ["m-2", "m-1"]);
}

/// A handler takes 200 ms of the 750.
#[tokio::test(start_paused = true)]
async fn others_start_in_the_first_half_while_a_suspect_waits() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["m-1".into()]).await;
    let consumer = Arc::new(world.consumer(store).concurrency(NonZeroUsize::MIN));
    let slow = ["m-2", "m-3", "m-4"].map(|id| order(id, "slow"));
    let messages = batch([order("m-1", "succeed")].into_iter().chain(slow));
    process(&consumer, messages, within(SECOND)).await;
    assert_eq!(world.began(), ["m-2", "m-3", "m-1", "m-4"]);
}

#[tokio::test(start_paused = true)]
async fn message_behind_a_suspect_without_time_is_behind_a_failure() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["m-1".into()]).await;
    let consumer = Arc::new(world.consumer(store));
    let of_group = ["m-1", "m-2"].map(|id| in_group(order(id, "succeed"), "g"));
    let other = in_group(order("m-3", "slow"), "h");
    log::start();
    let messages = batch(of_group.into_iter().chain([other]));
    let failed = process(&consumer, messages, within(SECOND / 5)).await;
    assert_eq!(failed, ["m-1", "m-2", "m-3"]);
    let lines = log::lines();
    let fields_where = |field: &str, value: &str| {
        let mut fields = lines.iter().map(|line| &line["fields"]);
        fields.find(|fields| fields[field] == value).unwrap()
    };
    assert_eq!(fields_where("message_id", "m-1")["key"], "test#m-1");
    let unfinished = fields_where("message", "messages did not finish before the deadline");
    assert_eq!(unfinished["not_started"], "m-1", "{unfinished}");
}

#[tokio::test]
async fn failure_without_effect_alone_removes_the_count() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["m-1".into()]).await;
    assert_eq!(
        world.receive(&store, vec![order("m-1", "kill")]).await,
        None
    );
    advance(HOUR);
    // A gateway that refuses connections for a day: its process never ends.
    for _ in 0..30 {
        let failed = world.receive(&store, vec![order("m-1", "refuse")]).await;
        assert_eq!(failed, Some(vec!["m-1".to_owned()]));
        let left = kept(&store, "m-1");
        let end = Some(AttemptEnd::NoEffect);
        assert_eq!((left.exclusive_attempts, left.last_end), (0, end));
        advance(HOUR);
    }
    let done = world.receive(&store, vec![order("m-1", "succeed")]).await;
    assert_eq!(done, Some(vec![]));
}

#[tokio::test]
async fn redriven_crashed_message_runs_after_the_fix() {
    let (world, store) = (World::default(), MemoryStore::default());
    let sent = clock();
    let of_order = |id: &str, what: &str| {
        let order = record(id, &json!({"do": what, "order": "o-1"}));
        sent_at(order, if id == "m-1" { sent } else { clock() })
    };
    let receive = async |message: Value| {
        let consumer = world
            .consumer(store.clone())
            .key("body:/order".parse().unwrap());
        let consumer = Arc::new(consumer);
        let answer = process(&consumer, batch([message]), within(20 * SECOND));
        tokio::select! {
            answer = answer => Some(answer),
            () = world.0.death.notified() => None,
        }
    };
    for _ in 0..5 {
        assert_eq!(receive(of_order("m-1", "kill")).await, None);
        advance(11 * HOUR);
    }
    let crashed = receive(of_order("m-1", "kill")).await;
    assert_eq!(crashed, Some(vec!["m-1".to_owned()]));
    let failed = kept(&store, "o-1");
    assert_eq!(
        (failed.state, failed.exclusive_attempts),
        (State::Failed, 0)
    );
    assert!(
        failed.first_claimed_at.is_some(),
        "the attempts may have had their effect"
    );
    assert_eq!(failed.last_end, None, "no handler has returned");
    advance(HOUR);
    // The redriven message starts anew. The same bug kills again, and then it runs alone.
    for deaths_alone in [0, 1] {
        assert_eq!(receive(of_order("m-2", "kill")).await, None);
        assert_eq!(kept(&store, "o-1").exclusive_attempts, deaths_alone);
        advance(HOUR);
    }
    assert_eq!(receive(of_order("m-2", "succeed")).await, Some(vec![]));
}

#[tokio::test]
async fn retry_after_recorded_end_runs_beside_others() {
    let (world, store) = (World::default(), MemoryStore::default());
    let failed = world.receive(&store, vec![order("m-1", "fail")]).await;
    assert_eq!(failed, Some(vec!["m-1".to_owned()]));
    advance(MINUTE);
    let others = (0..3).map(|n| order(&format!("n-{n}"), "slow"));
    let messages = [order("m-1", "slow")].into_iter().chain(others).collect();
    assert_eq!(world.receive(&store, messages).await, Some(vec![]));
    let began = world.0.began.lock().unwrap();
    assert!(began.iter().any(|(_, others)| *others == 3), "{began:?}");
}

#[tokio::test]
async fn fifo_group_of_suspect_comes_last_and_in_order() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["a-1".into()]).await;
    let fifo = |id: &str, group: &str| in_group(order(id, "succeed"), group);
    let messages = vec![
        fifo("a-1", "a"),
        fifo("a-2", "a"),
        fifo("b-1", "b"),
        fifo("b-2", "b"),
    ];
    assert_eq!(world.receive(&store, messages).await, Some(vec![]));
    assert_eq!(world.began(), ["b-1", "b-2", "a-1", "a-2"]);
}

#[tokio::test]
async fn body_that_kills_its_decoder_is_isolated() {
    /// Decoding a hostile body ends the process.
    struct Hostile(bool);
    impl<'de> serde::Deserialize<'de> for Hostile {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let value = Value::deserialize(deserializer)?;
            assert_ne!(value["do"], "kill", "played by a panic");
            Ok(Self(true))
        }
    }
    async fn handle(message: Hostile, _: Attempt) -> Result<bool, Failure> {
        Ok(message.0)
    }
    let store = MemoryStore::default();
    let once = Once::new(store.clone()).clock(clock);
    let consumer = Consumer::without_aws(once, namespace(), sqs_once::handler_fn(handle));
    let messages = batch([order("m-1", "kill"), order("m-2", "succeed")]);
    let failed = process(&Arc::new(consumer), messages, within(20 * SECOND)).await;
    assert_eq!(failed, ["m-1"]);
    // The body was decoded under a claim: a death would have left it.
    assert_eq!(kept(&store, "m-1").attempts, 1);
}

#[tokio::test]
async fn without_waits_nobody_is_isolated() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["m-1".into()]).await;
    let once = Once::new(store.clone())
        .clock(clock)
        .crash_waits(CrashWaits::off());
    let consumer = Arc::new(Consumer::without_aws(
        once,
        namespace(),
        Scripted(world.clone()),
    ));
    let messages = batch([order("m-1", "slow"), order("m-2", "slow")]);
    assert_eq!(
        process(&consumer, messages, within(20 * SECOND)).await,
        [""; 0]
    );
    let began = world.0.began.lock().unwrap();
    assert!(began.iter().any(|(_, others)| *others == 1), "{began:?}");
}

/// Without a queue: an HTTP handler, say.
#[tokio::test]
async fn suspect_outside_of_batches_runs_alone() {
    let store = MemoryStore::default();
    died_in_a_crowd(&store, &["s-1".into()]).await;
    let once = Once::new(store.clone()).clock(clock);
    let running = AtomicUsize::new(0);
    let run = async |id: &'static str| {
        let operation = Operation::new(key(id), None, id, within(20 * SECOND));
        let work = async |_| {
            let others = running.fetch_add(1, SeqCst);
            tokio::time::sleep(50 * Duration::from_millis(1)).await;
            running.fetch_sub(1, SeqCst);
            Ok(others)
        };
        match once.run(operation, work).await {
            Outcome::Completed(result) => format!("{result:?}"),
            other => panic!("{other:?}"),
        }
    };
    let (_, suspect, _) = tokio::join!(run("m-1"), run("s-1"), run("m-2"));
    assert!(suspect.contains("\"0\""), "{suspect}");
}

/// Both turns would wait for each other, and after a crash inside the inner operation would never run again.
#[tokio::test]
async fn run_inside_itself_is_not_started() {
    let store = MemoryStore::default();
    let once = Once::new(store.clone()).clock(clock);
    let operation = |id: &str| Operation::new(key(id), None, id, within(20 * SECOND));
    let nested = async |outer: &'static str, inner: &'static str, other: &Once<MemoryStore>| {
        let work = async |_| {
            let inner = other.run(operation(inner), async |_| Ok(1)).await;
            Ok(inner.name())
        };
        match once.run(operation(outer), work).await {
            Outcome::Completed(StoredResult::Json(inner)) => inner.trim_matches('"').to_owned(),
            outcome => panic!("{outcome:?}"),
        }
    };
    log::start();
    assert_eq!(nested("o-1", "i-1", &once.clone()).await, "not_started");
    assert!(store.record(&key("i-1")).is_none());
    let errors = log::lines_containing("inside itself");
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0]["level"], "ERROR");
    let fields = &errors[0]["fields"];
    assert_eq!(
        (&fields["key"], &fields["outer_key"]),
        (&json!("test#i-1"), &json!("test#o-1"))
    );
    // Two of them don't share their turns.
    let another = Once::new(store.clone()).clock(clock);
    assert_eq!(nested("o-2", "i-2", &another).await, "completed");
    // One after the other is no nesting.
    assert_eq!(
        once.run(operation("i-1"), async |_| Ok(1)).await.name(),
        "completed"
    );
}

/// A client that asks again must not wait until the suspect of another client has ended.
#[tokio::test(start_paused = true)]
async fn answer_without_a_handler_waits_for_no_turn() {
    let store = MemoryStore::default();
    let once = Once::new(store.clone()).clock(clock);
    let run = async |id: &str, lasts: Duration| {
        let operation = Operation::new(key(id), None, id, within(60 * SECOND));
        let work = async |_| {
            tokio::time::sleep(lasts).await;
            Ok(1)
        };
        once.run(operation, work).await.name()
    };
    assert_eq!(run("done", Duration::ZERO).await, "completed");
    died_in_a_crowd(&store, &["suspect".into()]).await;
    let again = async {
        tokio::time::sleep(SECOND).await;
        let asked = tokio::time::Instant::now();
        (run("done", Duration::ZERO).await, asked.elapsed())
    };
    let (suspect, again) = tokio::join!(run("suspect", 10 * SECOND), again);
    assert_eq!(suspect, "completed");
    assert_eq!(again.0, "duplicate");
    assert!(again.1 < SECOND, "{again:?}");
}

/// An hour ago.
fn earlier() -> Timestamp {
    let hour = u64::try_from(HOUR.as_millis()).unwrap();
    Timestamp::from_millis(Timestamp::now().as_millis() - hour)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspect_behind_a_blocked_thread_is_not_started() {
    let (world, store) = (World::default(), MemoryStore::default());
    for id in ["m-1", "m-2"] {
        let once = Once::new(store.clone()).clock(earlier);
        let deadline = Deadline::after(earlier(), SECOND, SECOND / 4);
        let operation = Operation::new(key(id), None, id, deadline);
        let dies = once.run(operation, |_| {
            std::future::pending::<Result<u32, Failure>>()
        });
        assert!(dies.now_or_never().is_none());
    }
    let once = Once::new(store.clone());
    let consumer = Consumer::without_aws(once, namespace(), Scripted(world.clone()));
    let consumer = Arc::new(consumer.fingerprint(FingerprintSource::Off));
    let event = batch([order("m-1", "block"), order("m-2", "succeed")]);
    log::start();
    let failed = process(&consumer, event, from_now(SECOND)).await;
    assert_eq!(failed, ["m-1", "m-2"]);
    assert_eq!(world.began(), ["m-1"]);
    let lines = log::lines();
    let outcome = |id: &str| {
        let line = lines.iter().find(|line| line["fields"]["message_id"] == id);
        line.unwrap()["fields"]["outcome"].clone()
    };
    assert_eq!(
        (outcome("m-1"), outcome("m-2")),
        ("out_of_time".into(), "not_started".into())
    );
    let unfinished = "messages did not finish before the deadline";
    let mut fields = lines.iter().map(|line| &line["fields"]);
    let fields = fields.find(|fields| fields["message"] == unfinished);
    let fields = fields.unwrap();
    assert_eq!(
        (&fields["blocking"], &fields["not_started"]),
        (&json!("m-1"), &json!("m-2"))
    );
}

/// Two workers have a copy of a message whose process died. The second copy gets its turn when the first is done.
#[tokio::test]
async fn duplicate_in_the_turn_of_a_suspect_gets_its_reply() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["m-1".into()]).await;
    let replies = Arc::new(AtomicUsize::new(0));
    let replied = Arc::clone(&replies);
    let consumer = world.consumer(store).on_duplicate(move |_, _, _| {
        replied.fetch_add(1, SeqCst);
        async { Ok(()) }
    });
    let consumer = Arc::new(consumer);
    let receive = || {
        process(
            &consumer,
            batch([order("m-1", "slow")]),
            within(20 * SECOND),
        )
    };
    let failed = tokio::join!(receive(), receive());
    assert_eq!(failed, (vec![], vec![]));
    assert_eq!(world.began(), ["m-1"]);
    assert_eq!(replies.load(SeqCst), 1);
}

/// It is claimed beside others, read and claimed alone, and ended.
#[tokio::test]
async fn outcome_of_a_suspect_has_all_its_requests() {
    let (world, store) = (World::default(), MemoryStore::default());
    died_in_a_crowd(&store, &["m-1".into()]).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let consumer = world.consumer(store).on_outcome(move |message| {
        let requests = message.store_latencies().len();
        sees.lock().unwrap().push((message.key.cloned(), requests));
    });
    let messages = batch([order("m-1", "succeed")]);
    let failed = process(&Arc::new(consumer), messages, within(20 * SECOND)).await;
    assert_eq!(failed, [""; 0]);
    assert_eq!(*seen.lock().unwrap(), [(Some(key("m-1")), 4)]);
}

/// A healthy message sends two requests, as before.
#[tokio::test]
async fn healthy_message_sends_two_requests() {
    let dynamo = Dynamo::start().await;
    dynamo.create_table("idempotency").await;
    let store = sqs_once::store::DynamoStore::new(dynamo.client(), "idempotency");
    let world = World::default();
    dynamo.reset_counts();
    let messages = (0..10)
        .map(|n| order(&format!("m-{n}"), "succeed"))
        .collect();
    assert_eq!(world.receive(&store, messages).await, Some(vec![]));
    let sent: usize = dynamo.reset_counts().values().sum();
    assert_eq!(sent, 20);
}
