//! One operation: what runs, what is recorded, what the next attempt is told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

#[path = "support/lossy.rs"]
#[allow(unreachable_pub, reason = "shared between test crates")]
mod lossy;

use std::{
    cell::Cell,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use lossy::{Fate, Lossy};
use sqs_once::{
    Attempt, Deadline, Delivery, Failure, History, Once, Operation, Outcome, ResultExt,
    protocol::{
        AfterFailure, Fingerprint, Key, Namespace, Owner, Record, State, StoredResult, Timestamp,
    },
    store::Store,
};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

thread_local! {
    static CLOCK: Cell<Timestamp> = const { Cell::new(Timestamp::from_millis(1_800_000_000_000)) };
}

/// The wall clock of the test's thread: it moves when the test says so.
fn now() -> Timestamp {
    CLOCK.get()
}

fn pass(span: Duration) {
    CLOCK.set(now() + span);
}

fn once<S: Store + Clone>(store: &S) -> Once<S> {
    Once::new(store.clone()).clock(now)
}

fn key() -> Key {
    Key::new(&Namespace::new("test").unwrap(), ["key"]).unwrap()
}

fn operation(message_id: &str, payload: &str) -> Operation {
    Operation::new(
        key(),
        Some(Fingerprint::of(payload.as_bytes())),
        Delivery::new(message_id),
        Deadline::after(now(), 10 * SECOND, SECOND),
    )
}

/// What the handler was told, per time it ran.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<History>>>);

impl Runs {
    fn note(&self, attempt: &Attempt) {
        self.0.lock().unwrap().push(attempt.history().clone());
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn last(&self) -> History {
        self.0.lock().unwrap().last().cloned().unwrap()
    }
}

/// Runs the operation with a handler that answers `answer`.
async fn run<S: Store + Clone, T: serde::Serialize + Send>(
    store: &S,
    operation: Operation,
    runs: &Runs,
    answer: Result<T, Failure>,
) -> Outcome {
    let work = |attempt: Attempt| async move {
        runs.note(&attempt);
        answer
    };
    once(store).run(operation, work).await
}

fn declined() -> Result<(), Failure> {
    Err(Failure::permanent("declined"))
}

fn busy() -> Result<(), Failure> {
    Err(Failure::retryable("busy"))
}

/// Leaves a claim behind as a crash does: nothing is written after it.
async fn crash(store: &Lossy, message_id: &str) -> Owner {
    let once = once(store);
    let mut dying = Box::pin(once.run(operation(message_id, "p"), |_| {
        std::future::pending::<Result<(), Failure>>()
    }));
    assert!(futures_util::poll!(&mut dying).is_pending());
    drop(dying);
    store.store.get(&key()).unwrap().owner.unwrap()
}

fn record(store: &Lossy) -> Record {
    store.store.get(&key()).unwrap()
}

fn lease_until(store: &Lossy) -> Timestamp {
    match record(store).state {
        State::InProgress { lease_until } => lease_until,
        other => panic!("not in progress: {other:?}"),
    }
}

#[tokio::test]
async fn a_second_delivery_runs_nothing_and_gets_the_result() {
    let (store, runs) = (Lossy::default(), Runs::default());
    let first = run(&store, operation("m-1", "p"), &runs, Ok(41)).await;
    let second = run(&store, operation("m-1", "p"), &runs, Ok(42)).await;
    assert!(matches!(first, Outcome::Done(StoredResult::Json(json)) if json == "41"));
    assert!(matches!(second, Outcome::Duplicate(StoredResult::Json(json)) if json == "41"));
    assert_eq!(runs.count(), 1);
    assert_eq!(store.sent(), ["claim", "complete", "claim"]);
}

#[tokio::test]
async fn an_outcome_is_forgotten_after_the_retention() {
    let (store, runs) = (Lossy::default(), Runs::default());
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    pass(24 * 3600 * SECOND);
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert_eq!(runs.count(), 1);
    pass(2 * SECOND);
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert_eq!(runs.count(), 2);
    assert_eq!(runs.last(), History::Fresh);
}

#[tokio::test]
async fn a_permanent_failure_never_runs_again_for_its_message() {
    let (store, runs) = (Lossy::default(), Runs::default());
    let first = run(&store, operation("m-1", "p"), &runs, declined()).await;
    let second = run(&store, operation("m-1", "p"), &runs, declined()).await;
    assert!(matches!(first, Outcome::PermanentFailure(error) if error == "declined"));
    assert!(matches!(second, Outcome::FailedBefore(error) if error == "declined"));
    assert_eq!(runs.count(), 1);
    assert_eq!(store.sent(), ["claim", "fail", "claim"]);

    // Sent anew, with a mended payload, it may.
    let resent = run(&store, operation("m-2", "mended"), &runs, Ok(1)).await;
    assert!(matches!(resent, Outcome::Done(_)));
    assert_eq!(runs.last(), History::Fresh);
}

#[tokio::test]
async fn a_permanent_failure_is_replayed_to_every_message_where_that_is_asked_for() {
    let (store, runs) = (Lossy::default(), Runs::default());
    run(&store, operation("m-1", "p"), &runs, declined()).await;
    let strict = once(&store).after_failure(AfterFailure::Replay);
    let never = |_| async { unreachable!("it failed before") as Result<(), Failure> };
    let outcome = strict.run(operation("m-2", "p"), never).await;
    assert!(matches!(outcome, Outcome::FailedBefore(error) if error == "declined"));
}

#[tokio::test]
async fn a_retryable_failure_leaves_nothing_behind() {
    let (store, runs) = (Lossy::default(), Runs::default());
    let outcome = run(&store, operation("m-1", "p"), &runs, busy()).await;
    assert!(matches!(outcome, Outcome::RetryableFailure(error) if error == "busy"));
    assert!(store.store.is_empty());
    assert_eq!(store.sent(), ["claim", "release"]);
}

#[tokio::test]
async fn a_key_reused_for_another_payload_runs_nothing_and_leaves_the_record() {
    let (store, runs) = (Lossy::default(), Runs::default());
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    let before = record(&store);
    let reused = run(&store, operation("m-2", "another"), &runs, Ok(2)).await;
    assert!(matches!(reused, Outcome::KeyReused));
    assert_eq!(record(&store), before);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn after_a_crash_the_key_is_a_conflict_until_the_lease_ends_and_then_a_takeover() {
    let (store, runs) = (Lossy::default(), Runs::default());
    let claimed_at = now();
    let owner = crash(&store, "m-1").await;
    // The invocation's ten seconds and the margin.
    assert_eq!(lease_until(&store), now() + 11 * SECOND);

    pass(11 * SECOND);
    let early = run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(early, Outcome::Conflict { owner: by, lease_until }
        if by == Some(owner.clone()) && lease_until == now()));
    assert_eq!(runs.count(), 0);

    pass(Duration::from_millis(1));
    let later = run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(later, Outcome::Done(_)));
    assert_eq!(
        runs.last(),
        History::Takeover {
            owner: Some(owner),
            claimed_at: Some(claimed_at)
        }
    );
}

#[tokio::test]
async fn a_lease_has_the_margin_and_a_record_the_retention_that_were_set() {
    let store = Lossy::default();
    let once = Once::new(store.clone()).clock(now);
    let once = once.lease_margin(5 * SECOND).retention(3600 * SECOND);
    let work = async |_| Ok::<_, Failure>(lease_until(&store).as_millis());
    let started = now();
    let outcome = once.run(operation("m-1", "p"), work).await;
    let Outcome::Done(StoredResult::Json(lease_until)) = outcome else {
        panic!("{outcome}")
    };
    let wanted = started + 15 * SECOND;
    assert_eq!(lease_until, wanted.as_millis().to_string());
    let wanted = started + 3600 * SECOND;
    assert_eq!(record(&store).expires_at, wanted.as_secs());
}

/// Its timers may not have told it: they can stand still too.
#[tokio::test(start_paused = true)]
async fn a_worker_that_was_frozen_until_its_lease_was_over_does_not_begin() {
    for (frozen_for, begins) in [(11 * SECOND, true), (11 * SECOND + MILLISECOND, false)] {
        let store = Lossy::fates([Fate::Late(MILLISECOND)]);
        let runs = Runs::default();
        let mut frozen = Box::pin(run(&store, operation("m-1", "p"), &runs, Ok(1)));
        assert!(futures_util::poll!(&mut frozen).is_pending());
        pass(frozen_for);
        let outcome = frozen.await;
        let expected = if begins { "done" } else { "not_started" };
        assert_eq!(outcome.name(), expected);
        assert_eq!(runs.count(), usize::from(begins));
        assert_eq!(
            store.store.is_empty(),
            !begins,
            "the next attempt is a fresh one"
        );
    }
}

#[tokio::test]
async fn a_record_outlives_its_lease_however_short_the_retention() {
    let store = Lossy::default();
    let once = Once::new(store.clone()).clock(now).retention(SECOND);
    let mut dying = Box::pin(once.run(operation("m-1", "p"), |_| {
        std::future::pending::<Result<(), Failure>>()
    }));
    assert!(futures_util::poll!(&mut dying).is_pending());
    assert!(record(&store).expires_at * 1000 >= lease_until(&store).as_millis());
}

#[tokio::test]
async fn a_panic_is_caught_and_the_next_attempt_is_told() {
    let (store, runs) = (Lossy::default(), Runs::default());
    let work = |_| async { panic!("told to") as Result<(), Failure> };
    let outcome = once(&store).run(operation("m-1", "p"), work).await;
    assert!(matches!(outcome, Outcome::Panicked));
    assert_eq!(
        lease_until(&store),
        now(),
        "it ends, and no older claim passes"
    );
    assert_eq!(store.sent(), ["claim", "abandon"]);

    pass(MILLISECOND);
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(runs.last(), History::Takeover { .. }));
}

#[tokio::test]
async fn a_panic_while_the_output_is_written_is_caught_too() {
    struct Bomb;
    impl serde::Serialize for Bomb {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("told to")
        }
    }
    let store = Lossy::default();
    let outcome = run(&store, operation("m-1", "p"), &Runs::default(), Ok(Bomb)).await;
    assert!(matches!(outcome, Outcome::Panicked));
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_cut_off_when_the_reserve_begins_and_the_next_attempt_is_told() {
    let (store, runs) = (Lossy::default(), Runs::default());
    let started = tokio::time::Instant::now();
    let work = |attempt: Attempt| async move {
        assert_eq!(attempt.time_left(), 9 * SECOND);
        std::future::pending::<Result<(), Failure>>().await
    };
    let outcome = once(&store).run(operation("m-1", "p"), work).await;
    assert!(matches!(outcome, Outcome::OutOfTime));
    assert_eq!(started.elapsed(), 9 * SECOND);
    assert_eq!(lease_until(&store), now());

    pass(MILLISECOND);
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(runs.last(), History::Takeover { .. }));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_when_the_claim_took_the_time_that_the_handler_needs() {
    let (store, runs) = (Lossy::fates([Fate::Late(3 * SECOND)]), Runs::default());
    let mut operation = operation("m-1", "p");
    operation.deadline = operation.deadline.time_needed(7 * SECOND);
    let outcome = run(&store, operation.clone(), &runs, Ok(1)).await;
    assert!(matches!(outcome, Outcome::NotStarted));
    assert!(store.store.is_empty(), "the next attempt is a fresh one");
    assert_eq!(store.sent(), ["claim", "release"]);

    let outcome = run(&store, operation, &runs, Ok(1)).await;
    assert!(matches!(outcome, Outcome::NotStarted));
    assert_eq!(store.sent(), ["claim", "release"], "not even claimed");
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn a_lost_answer_to_the_claim_does_not_lock_its_own_worker_out() {
    let (store, runs) = (Lossy::fates([Fate::SentTwice]), Runs::default());
    let outcome = run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(outcome, Outcome::Done(_)));
    // Whether it took over from somebody was in the lost answer.
    assert_eq!(runs.last(), History::Unknown);
}

#[tokio::test]
async fn lost_answers_to_what_ends_a_claim_change_nothing() {
    for answer in [Ok(()), declined(), busy()] {
        let store = Lossy::fates([Fate::Answered, Fate::SentTwice]);
        let outcome = run(&store, operation("m-1", "p"), &Runs::default(), answer).await;
        assert!(
            matches!(
                outcome,
                Outcome::Done(_) | Outcome::PermanentFailure(_) | Outcome::RetryableFailure(_)
            ),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn an_unanswered_claim_runs_nothing_and_locks_nobody_out() {
    for fate in [Fate::RequestLost, Fate::AnswerLost] {
        let (store, runs) = (Lossy::fates([fate]), Runs::default());
        let outcome = run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
        assert!(matches!(outcome, Outcome::StoreUnavailable(_)));
        assert_eq!(runs.count(), 0);
        assert_eq!(store.sent(), ["claim", "abandon"]);

        pass(MILLISECOND);
        let again = run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
        assert!(matches!(again, Outcome::Done(_)), "{fate:?}: {again:?}");
    }
}

#[tokio::test]
async fn an_unanswered_takeover_does_not_hide_the_attempt_before_it() {
    let (store, runs) = (
        Lossy::fates([Fate::Answered, Fate::AnswerLost]),
        Runs::default(),
    );
    crash(&store, "m-1").await;
    pass(12 * SECOND);
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert_eq!(runs.count(), 0);
    pass(MILLISECOND);
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(runs.last(), History::Takeover { .. }));
}

#[tokio::test]
async fn a_takeover_that_fails_retryably_does_not_hide_the_attempt_before_it() {
    let (store, runs) = (Lossy::default(), Runs::default());
    crash(&store, "m-1").await;
    pass(12 * SECOND);
    run(&store, operation("m-1", "p"), &runs, busy()).await;
    assert!(matches!(runs.last(), History::Takeover { .. }));
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(runs.last(), History::Takeover { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_given_up_before_the_deadline() {
    let store = Lossy::fates([Fate::Silence, Fate::Silence]);
    let started = tokio::time::Instant::now();
    let outcome = run(&store, operation("m-1", "p"), &Runs::default(), Ok(1)).await;
    assert!(matches!(outcome, Outcome::StoreUnavailable(_)));
    assert!(started.elapsed() < 10 * SECOND);

    let store = Lossy::fates([Fate::Answered, Fate::Silence]);
    let started = tokio::time::Instant::now();
    let outcome = run(&store, operation("m-1", "p"), &Runs::default(), Ok(1)).await;
    assert!(matches!(outcome, Outcome::CompletionUnrecorded(_)));
    assert!(started.elapsed() < 10 * SECOND);
}

#[tokio::test]
async fn a_completion_that_cannot_be_written_keeps_the_claim() {
    let (store, runs) = (
        Lossy::fates([Fate::Answered, Fate::RequestLost]),
        Runs::default(),
    );
    let outcome = run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(outcome, Outcome::CompletionUnrecorded(_)));
    assert!(!outcome.is_success());
    assert_eq!(store.sent(), ["claim", "complete"]);

    let during = run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(during, Outcome::Conflict { .. }));
    pass(12 * SECOND);
    run(&store, operation("m-1", "p"), &runs, Ok(1)).await;
    assert!(matches!(runs.last(), History::Takeover { .. }));
}

#[tokio::test]
async fn a_late_completion_overwrites_nothing_and_acknowledges_nothing() {
    for answer in [
        Ok("slow"),
        Err(Failure::permanent("slow")),
        Err(Failure::retryable("slow")),
    ] {
        let (store, runs) = (Lossy::default(), Runs::default());
        let (go, wait) = tokio::sync::oneshot::channel();
        let once = once(&store);
        let slow = once.run(operation("m-1", "p"), |_| async {
            wait.await.unwrap();
            answer
        });
        let mut slow = Box::pin(slow);
        assert!(futures_util::poll!(&mut slow).is_pending());
        pass(12 * SECOND);
        run(&store, operation("m-1", "p"), &runs, Ok("quick")).await;
        let quick = record(&store);

        go.send(()).unwrap();
        let outcome = slow.await;
        assert!(matches!(outcome, Outcome::LeaseLost), "{outcome:?}");
        assert!(!outcome.is_success());
        assert_eq!(record(&store), quick);
    }
}

#[tokio::test]
async fn an_output_too_large_to_store_does_not_undo_the_effect() {
    let (store, runs) = (Lossy::default(), Runs::default());
    let output = "x".repeat(500_000);
    let first = run(&store, operation("m-1", "p"), &runs, Ok(output.clone())).await;
    assert!(matches!(first, Outcome::Done(StoredResult::Omitted(note)) if note.contains("500002")));
    let second = run(&store, operation("m-1", "p"), &runs, Ok(output)).await;
    assert!(matches!(
        second,
        Outcome::Duplicate(StoredResult::Omitted(_))
    ));
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn outputs_that_look_like_nothing_are_replayed_as_they_are() {
    for output in ["0", "false", "null", "\"\"", "[]"] {
        let (store, runs) = (Lossy::default(), Runs::default());
        let value: serde_json::Value = serde_json::from_str(output).unwrap();
        run(&store, operation("m-1", "p"), &runs, Ok(value)).await;
        let again = run(
            &store,
            operation("m-1", "p"),
            &runs,
            Ok(serde_json::json!(1)),
        )
        .await;
        assert!(matches!(again, Outcome::Duplicate(StoredResult::Json(json)) if json == output));
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn the_handlers_words_are_kept_with_their_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("the ledger is shut")]
    struct Shut(#[source] io::Error);

    let store = Lossy::default();
    let answer: Result<(), Failure> = Err(Shut(io::Error::other("disk full"))).permanent();
    let outcome = run(&store, operation("m-1", "p"), &Runs::default(), answer).await;
    assert!(matches!(outcome, Outcome::PermanentFailure(_)));
    assert_eq!(
        record(&store).state,
        State::Failed {
            error: "the ledger is shut: disk full".into()
        }
    );
}
