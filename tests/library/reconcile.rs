//! Handlers with a lookup: when it runs, and what follows from its answer.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, BatchError, Consumer, Deadline, Failure, Handler, LookUp, LookedUp, Once, Operation,
    Outcome,
    internal::run_handler,
    protocol::{AttemptEnd, Key, Record, State, StoredResult},
    sqs::KeySource,
    store::MemoryStore,
};
use support::{
    consumer::{namespace, process},
    event::{batch, record},
};
use tokio::sync::Notify;

use crate::wall_clock::{advance, clock};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const QUARANTINE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// One answer of the lookup.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Found,
    NotFound,
    Error,
    Permanent,
    Panic,
    Silence,
    Death,
}

/// The behaviour of the handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Charge {
    #[default]
    Succeed,
    /// Its request gets no answer.
    Fail,
    /// It ends its process.
    Death,
}

#[derive(Clone, Default)]
struct World(Arc<Inner>);

#[derive(Default)]
struct Inner {
    death: Notify,
    charge: Mutex<Charge>,
    answers: Mutex<VecDeque<Answer>>,
    /// `charge` and `look up`, in order.
    calls: Mutex<Vec<&'static str>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn answers(&self, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.0.answers).extend(answers);
    }

    fn charges(&self, charge: Charge) {
        *lock(&self.0.charge) = charge;
    }

    /// Returns the calls since the last time.
    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut *lock(&self.0.calls))
    }

    fn call(&self, what: &'static str) {
        lock(&self.0.calls).push(what);
    }

    async fn die(&self) -> ! {
        self.0.death.notify_one();
        pending().await
    }

    /// Runs the operation `o-1` for this message in a new process. `None` if the process died.
    async fn run(&self, store: &MemoryStore, message_id: &str) -> Option<Outcome> {
        let once = Once::new(store.clone()).clock(clock);
        let deadline = Deadline::after(clock(), 20 * SECOND, SECOND);
        let mut operation = Operation::new(key(), None, message_id, deadline);
        operation.quarantine = Some(QUARANTINE);
        let run = run_handler(&once, (self, Some(self)), operation, json!({}));
        tokio::select! {
            outcome = run => Some(outcome),
            () = self.0.death.notified() => None,
        }
    }

    /// Leaves an open attempt whose request got no answer, and waits until it can be looked up.
    async fn fails_and_rests(&self, store: &MemoryStore) {
        self.charges(Charge::Fail);
        let outcome = self.run(store, "m-1").await.unwrap();
        assert!(matches!(outcome, Outcome::RetryableFailure(_)), "{outcome}");
        assert_eq!(self.calls(), ["charge"]);
        self.charges(Charge::Succeed);
        advance(32 * SECOND);
    }
}

impl Handler for World {
    type Message = Value;
    type Output = String;

    async fn handle(&self, _: Value, _: Attempt) -> Result<String, Failure> {
        self.call("charge");
        let charge = *lock(&self.0.charge);
        match charge {
            Charge::Succeed => Ok("charged".into()),
            Charge::Fail => Err("no answer".into()),
            Charge::Death => self.die().await,
        }
    }
}

impl LookUp<Value, String> for World {
    async fn look_up(&self, _: &Value, attempt: &Attempt) -> Result<LookedUp<String>, Failure> {
        assert!(
            attempt.prior().is_some(),
            "looks up without a prior attempt"
        );
        self.call("look up");
        let answer = lock(&self.0.answers).pop_front();
        match answer.expect("an answer for each lookup") {
            Answer::Found => Ok(LookedUp::Found("found".into())),
            Answer::NotFound => Ok(LookedUp::NotFound),
            Answer::Error => Err("503".into()),
            Answer::Permanent => Err(Failure::permanent("400")),
            Answer::Panic => std::panic::resume_unwind(Box::new("scripted")),
            Answer::Silence => pending().await,
            Answer::Death => self.die().await,
        }
    }
}

fn key() -> Key {
    Key::new(&namespace(), ["o-1"]).unwrap()
}

fn kept(store: &MemoryStore) -> Record {
    store.record(&key()).unwrap()
}

fn json_of(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Completed(StoredResult::Json(json))
        | Outcome::Reconciled(StoredResult::Json(json))
        | Outcome::Duplicate(StoredResult::Json(json)) => json,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn first_attempt_never_looks_up() {
    let (world, store) = (World::default(), MemoryStore::default());
    let outcome = world.run(&store, "m-1").await.unwrap();
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome}");
    assert_eq!(world.calls(), ["charge"]);
}

#[tokio::test]
async fn found_effect_is_recorded_without_running() {
    let (world, store) = (World::default(), MemoryStore::default());
    world.fails_and_rests(&store).await;
    world.answers([Answer::Found]);
    let outcome = world.run(&store, "m-1").await.unwrap();
    assert!(matches!(outcome, Outcome::Reconciled(_)), "{outcome}");
    assert_eq!(
        (json_of(&outcome), world.calls()),
        ("\"found\"", vec!["look up"])
    );
    let again = world.run(&store, "m-1").await.unwrap();
    assert!(matches!(again, Outcome::Duplicate(_)), "{again}");
    assert_eq!((json_of(&again), world.calls()), ("\"found\"", vec![]));
}

#[tokio::test]
async fn missing_effect_runs_handler() {
    let (world, store) = (World::default(), MemoryStore::default());
    world.fails_and_rests(&store).await;
    world.answers([Answer::NotFound]);
    let outcome = world.run(&store, "m-1").await.unwrap();
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome}");
    assert_eq!(world.calls(), ["look up", "charge"]);
}

#[tokio::test(start_paused = true)]
async fn unknown_effect_runs_nothing() {
    for answer in [
        Answer::Error,
        Answer::Permanent,
        Answer::Panic,
        Answer::Silence,
    ] {
        let (world, store) = (World::default(), MemoryStore::default());
        world.fails_and_rests(&store).await;
        let before = kept(&store);
        world.answers([answer]);
        let outcome = world.run(&store, "m-1").await.unwrap();
        assert!(
            matches!(outcome, Outcome::NoEffect(_)),
            "{answer:?}: {outcome}"
        );
        assert!(outcome.to_string().contains("the lookup"), "{outcome}");
        assert_eq!(world.calls(), ["look up"], "{answer:?}");
        let after = kept(&store);
        assert_eq!(
            after.first_claimed_at, before.first_claimed_at,
            "{answer:?}"
        );
        assert_eq!(after.last_end, Some(AttemptEnd::Retryable), "{answer:?}");
        // The next attempt looks up again.
        advance(MINUTE);
        world.answers([Answer::Found]);
        let outcome = world.run(&store, "m-1").await.unwrap();
        assert!(
            matches!(outcome, Outcome::Reconciled(_)),
            "{answer:?}: {outcome}"
        );
    }
}

#[tokio::test]
async fn look_up_waits_until_quarantine_ends() {
    let (world, store) = (World::default(), MemoryStore::default());
    world.charges(Charge::Fail);
    let _failed = world.run(&store, "m-1").await;
    let ended = kept(&store).updated_at;
    world.calls();
    for _ in 0..2 {
        let outcome = world.run(&store, "m-1").await.unwrap();
        let Outcome::Conflict { lease_until, .. } = outcome else {
            panic!("{outcome}")
        };
        // The margin of a second, and 30 seconds. Nothing moves that time.
        assert_eq!(lease_until, ended + 31 * SECOND);
        assert_eq!(world.calls(), [""; 0]);
        advance(15 * SECOND);
    }
    advance(2 * SECOND);
    world.answers([Answer::Found]);
    let outcome = world.run(&store, "m-1").await.unwrap();
    assert!(matches!(outcome, Outcome::Reconciled(_)), "{outcome}");
}

/// The message died in a crowd, and its lookup fails: it stays a suspect, with its count.
#[tokio::test]
async fn failed_look_up_keeps_count_of_attempts_alone() {
    let (world, store) = (World::default(), MemoryStore::default());
    world.charges(Charge::Death);
    assert!(world.run(&store, "m-1").await.is_none());
    advance(MINUTE);
    world.answers([Answer::NotFound]);
    assert!(world.run(&store, "m-1").await.is_none(), "dies alone");
    assert_eq!(kept(&store).exclusive_attempts, 1);
    advance(HOUR);
    world.answers([Answer::Error]);
    let outcome = world.run(&store, "m-1").await.unwrap();
    assert!(matches!(outcome, Outcome::NoEffect(_)), "{outcome}");
    let left = kept(&store);
    assert_eq!((left.exclusive_attempts, left.last_end), (1, None));
}

/// Lets the process die in a crowd and four times alone, each time after a lookup that found nothing.
async fn dies_five_times(world: &World, store: &MemoryStore) {
    world.charges(Charge::Death);
    assert!(world.run(store, "m-1").await.is_none());
    for _ in 0..4 {
        advance(11 * HOUR);
        world.answers([Answer::NotFound]);
        assert!(world.run(store, "m-1").await.is_none());
    }
    assert_eq!(kept(store).exclusive_attempts, 4);
    world.calls();
    advance(HOUR);
}

#[tokio::test]
async fn killer_is_looked_up_once_more_before_crashed() {
    for (answer, wanted, state) in [
        (Answer::Found, "reconciled", "COMPLETED"),
        (Answer::NotFound, "crashed", "FAILED"),
        (Answer::Error, "no_effect", "IN_PROGRESS"),
    ] {
        let (world, store) = (World::default(), MemoryStore::default());
        dies_five_times(&world, &store).await;
        world.answers([answer]);
        let outcome = world.run(&store, "m-1").await.unwrap();
        assert_eq!(outcome.name(), wanted, "{outcome}");
        assert_eq!(world.calls(), ["look up"]);
        assert_eq!(kept(&store).state.name(), state);
        if state == "IN_PROGRESS" {
            assert_eq!(kept(&store).exclusive_attempts, 4);
        }
    }
}

#[tokio::test]
async fn killer_whose_last_look_up_dies_is_crashed() {
    let (world, store) = (World::default(), MemoryStore::default());
    dies_five_times(&world, &store).await;
    world.answers([Answer::Death]);
    assert!(world.run(&store, "m-1").await.is_none());
    assert_eq!(world.calls(), ["look up"]);
    advance(HOUR);
    let outcome = world.run(&store, "m-1").await.unwrap();
    let Outcome::Crashed(why) = outcome else {
        panic!("{outcome}")
    };
    assert!(why.contains("may have happened"), "{why}");
    assert_eq!(world.calls(), [""; 0]);
    assert_eq!(kept(&store).state, State::Failed);
}

/// After a redrive the message has a new id, and the failed record still has the open attempt.
#[tokio::test]
async fn redriven_crashed_message_is_looked_up_first() {
    let (world, store) = (World::default(), MemoryStore::default());
    dies_five_times(&world, &store).await;
    world.answers([Answer::NotFound, Answer::Found]);
    assert_eq!(world.run(&store, "m-1").await.unwrap().name(), "crashed");
    world.charges(Charge::Succeed);
    // A request of the last attempt may still have its effect.
    let early = world.run(&store, "redriven").await.unwrap();
    assert_eq!(early.name(), "conflict");
    advance(32 * SECOND);
    let outcome = world.run(&store, "redriven").await.unwrap();
    assert_eq!(outcome.name(), "reconciled");
    assert_eq!(world.calls(), ["look up", "look up"]);
}

/// A process was frozen between the lookup and the charge, beyond its lease.
#[tokio::test(start_paused = true)]
async fn handler_is_not_polled_after_its_lease() {
    let store = MemoryStore::default();
    let once = Once::new(store.clone()).clock(clock);
    let deadline = Deadline::after(clock(), 20 * SECOND, SECOND);
    let operation = Operation::new(key(), None, "m-1", deadline);
    let charged = Mutex::new(false);
    let mut run = Box::pin(once.run(operation, async |_| -> Result<u32, Failure> {
        tokio::task::yield_now().await;
        *lock(&charged) = true;
        Ok(1)
    }));
    assert!(run.as_mut().now_or_never().is_none());
    advance(HOUR);
    assert_eq!(run.await.name(), "out_of_time");
    assert!(!*lock(&charged));
}

#[tokio::test]
async fn key_that_changes_on_redrive_is_refused() {
    let consumer = |key: KeySource| {
        let once = Once::new(MemoryStore::default());
        Consumer::without_aws(once, namespace(), World::default())
            .key(key)
            .look_up(World::default(), QUARANTINE)
    };
    let event = || serde_json::from_value(batch([record("m-1", "{\"id\":\"o-1\"}")])).unwrap();
    let deadline = || Deadline::after(clock(), 20 * SECOND, SECOND);
    for source in ["message-id", "deduplication-id"] {
        let refused = consumer(source.parse().unwrap());
        let error = refused.process(event(), deadline()).await.unwrap_err();
        assert!(
            matches!(error, BatchError::KeyChangesOnRedrive { .. }),
            "{error}"
        );
        let start = sqs_once::run(consumer(source.parse().unwrap())).await;
        assert!(
            start.unwrap_err().to_string().contains("IDEMPOTENCY_KEY"),
            "{source}"
        );
    }
    let suitable = Arc::new(consumer("body:/id".parse().unwrap()));
    let event = batch([record("m-1", "{\"id\":\"o-1\"}")]);
    assert_eq!(process(&suitable, event, deadline()).await, [""; 0]);
}

/// The called system has idempotency keys after all.
#[tokio::test]
async fn look_up_that_is_off_needs_no_key() {
    let (world, once) = (World::default(), Once::new(MemoryStore::default()));
    let consumer =
        Consumer::without_aws(once, namespace(), world.clone()).look_up(world.clone(), None);
    let event = batch([record("m-1", "{}")]);
    let deadline = Deadline::after(clock(), 20 * SECOND, SECOND);
    assert_eq!(process(&Arc::new(consumer), event, deadline).await, [""; 0]);
    assert_eq!(world.calls(), ["charge"]);
}

/// A decorator around the handler cannot lose the lookup.
#[tokio::test]
async fn decorated_handler_is_looked_up() {
    struct Timed(World);
    impl Handler for Timed {
        type Message = Value;
        type Output = String;
        async fn handle(&self, message: Value, attempt: Attempt) -> Result<String, Failure> {
            self.0.handle(message, attempt).await
        }
    }
    let (world, store) = (World::default(), MemoryStore::default());
    world.fails_and_rests(&store).await;
    world.answers([Answer::Found]);
    let once = Once::new(store.clone()).clock(clock);
    let consumer = Consumer::without_aws(once, namespace(), Timed(world.clone()))
        .key("body:/id".parse().unwrap())
        .look_up(world.clone(), QUARANTINE);
    let event = batch([record("m-1", "{\"id\":\"o-1\"}")]);
    let deadline = Deadline::after(clock(), 20 * SECOND, SECOND);
    assert_eq!(process(&Arc::new(consumer), event, deadline).await, [""; 0]);
    assert_eq!(world.calls(), ["look up"]);
}

/// A request of the failed attempt may still have its effect.
#[tokio::test]
async fn message_waits_for_quarantine_of_its_consumer() {
    let (world, once) = (World::default(), Once::new(MemoryStore::default()));
    let consumer = Consumer::without_aws(once.clock(clock), namespace(), world.clone())
        .key("body:/id".parse().unwrap())
        .look_up(world.clone(), QUARANTINE);
    let consumer = Arc::new(consumer);
    let receive = || {
        let event = batch([record("m-1", "{\"id\":\"o-1\"}")]);
        let deadline = Deadline::after(clock(), 20 * SECOND, SECOND);
        process(&consumer, event, deadline)
    };
    world.charges(Charge::Fail);
    assert_eq!(receive().await, ["m-1"]);
    advance(15 * SECOND);
    assert_eq!(receive().await, ["m-1"]);
    assert_eq!(world.calls(), ["charge"], "looked up too early");
    advance(17 * SECOND);
    world.answers([Answer::Found]);
    assert_eq!(receive().await, [""; 0]);
    assert_eq!(world.calls(), ["look up"]);
}

/// Otherwise TTL could delete the open attempt, and nobody would look up.
#[tokio::test]
async fn record_outlives_its_quarantine() {
    let store = MemoryStore::default();
    let once = Once::new(store.clone()).clock(clock).retention(SECOND);
    let deadline = Deadline::after(clock(), 20 * SECOND, SECOND);
    let mut operation = Operation::new(key(), None, "m-1", deadline);
    operation.quarantine = Some(72 * HOUR);
    let run = once.run(operation, async |_| -> Result<u32, Failure> {
        pending().await
    });
    let started = clock();
    assert!(run.now_or_never().is_none());
    assert!(kept(&store).expires_at > (started + 72 * HOUR).as_secs());
}
