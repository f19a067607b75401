//! The queue of batched writes: claims and settlements of concurrent messages in one `BatchExecuteStatement`.
//!
//! ```text
//! call ── one turn of the runtime ──┬── alone: the ordinary request
//!                                   └── batch: applied, condition failed or failed, or else the ordinary request
//! ```
//!
//! Each statement makes the same write as the ordinary request, with the same or a stricter condition. To the
//! protocol, a batched write followed by an ordinary request looks like a duplicate request, and the explorer
//! already covers duplicates.
//!
//! If DynamoDB does not respond to a batch, all its calls fail together. Their callers retry in the same turn
//! of the runtime, so the calls become one batch again. If that batch gets no response either, each caller
//! sends its third try as an ordinary request.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{Client, types::BatchStatementRequest};
use tokio::{sync::oneshot, task::yield_now};

use tracing::Instrument as _;

use super::response::{BatchResponse, BatchingEnd, StatementResponse};
use crate::{
    dynamo::{
        item::Item,
        store::{DynamoStore, Place, Places, Request},
    },
    protocol::{RequestErrorKind, Timestamp},
    store::RequestContext,
    system::{self, Instant, timeout, timeout_at},
};

/// Maximum number of statements in one `BatchExecuteStatement` (*Amazon DynamoDB API Reference*).
const MAX_STATEMENTS: usize = 25;
/// While this many requests are in flight, a batch that is not full and a single call wait for more writes to
/// join them.
const MOST_FOR_PART: usize = 4;
/// Longest such wait, because the requests in flight may never get a response.
const MAX_WAIT_FOR_OTHERS: Duration = Duration::from_millis(100);
/// Longest time that a call waits for its batch: longer than the client of `aws::config` waits.
const MAX_WAIT: Duration = Duration::from_secs(6);
/// After this many responses without the item, a race can no longer explain them.
const MANY_MISSING: u32 = 3;
/// How long writes are not batched after DynamoDB did not respond to two batches in a row.
const REST: Duration = Duration::from_secs(10);

/// The batches of one store. Clones share them.
#[derive(Clone)]
pub(super) struct Batcher(Arc<Shared>);

struct Shared {
    /// Client without the SDK's retries.
    client: Client,
    table: String,
    /// Fewer calls than this go out as ordinary requests.
    smallest: usize,
    queue: Mutex<Queue>,
    places: Places,
    silence: Mutex<Silence>,
    /// True after the last batch.
    off: AtomicBool,
    /// How many failed condition checks came without their items.
    missing_items: AtomicU32,
}

/// Calls that wait for a batch, in the order of their arrival.
#[derive(Default)]
struct Queue(VecDeque<PendingWrite>);

/// One statement, and the caller that waits for its turn.
struct PendingWrite {
    key: String,
    kind: Request,
    statement: BatchStatementRequest,
    /// When the caller stops waiting.
    until: Instant,
    turn: oneshot::Sender<WaitEnd>,
}

/// How a call's wait ended.
enum WaitEnd {
    /// The caller sends the ordinary request, in this slot.
    Alone(Place),
    /// The statement's response, and whether it was in the last batch.
    Answered(StatementResponse, bool),
}

/// How a call ended.
pub(super) enum BatchResult {
    Applied,
    /// The condition check failed because of this item.
    ConditionFailed(Item),
    /// The condition check failed, and the response has no item. The ordinary request follows.
    ConditionFailedWithoutItem,
    /// The ordinary request follows, in this slot if the call has one.
    Ordinary(Option<Place>),
    /// The call failed, for this reason.
    Failed(RequestErrorKind, Arc<str>),
}

/// When batches got no response.
#[derive(Default)]
struct Silence {
    /// Since then, no batch got a response.
    since: Option<Instant>,
    /// Until then, writes are not batched. By the wall clock: [`Timestamp::is_in_pause`].
    until: Option<Timestamp>,
}

impl fmt::Debug for Batcher {
    /// Leaves out the calls, which contain payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").finish_non_exhaustive()
    }
}

impl Batcher {
    /// Creates the batches for the table of `store`. Fewer calls than `smallest` go out as ordinary requests.
    pub(super) fn new(store: &DynamoStore, smallest: usize) -> Self {
        Self(Arc::new(Shared {
            client: store.writing.clone(),
            table: store.table.clone(),
            smallest,
            queue: Mutex::default(),
            places: store.places.clone(),
            silence: Mutex::default(),
            off: AtomicBool::new(false),
            missing_items: AtomicU32::new(0),
        }))
    }

    /// Sends a statement together with those of other calls. Waits at most half of the time left.
    pub(super) async fn send(
        &self,
        kind: Request,
        key: &str,
        statement: BatchStatementRequest,
        context: &RequestContext,
    ) -> BatchResult {
        if self.0.off.load(Relaxed) || self.0.silence().is_rest(Timestamp::now()) {
            return BatchResult::Ordinary(None);
        }
        let until = system::instant() + wait(context);
        let (turn, mut answer) = oneshot::channel();
        self.0.queue().0.push_back(PendingWrite {
            key: key.to_owned(),
            kind,
            statement,
            until,
            turn,
        });
        // Calls of the same turn share a batch. Each of them starts batches, so that none depends on another
        // call, which may be dropped.
        yield_now().await;
        self.0.dispatch(MOST_FOR_PART);
        let turn = timeout_at(until, async {
            loop {
                match timeout(MAX_WAIT_FOR_OTHERS, &mut answer).await {
                    Ok(turn) => break turn.ok(),
                    Err(_elapsed) => self.0.dispatch(usize::MAX),
                }
            }
        });
        match turn.await {
            Ok(Some(WaitEnd::Alone(place))) => BatchResult::Ordinary(Some(place)),
            Ok(Some(WaitEnd::Answered(answer, is_last))) => {
                if is_last {
                    context.batches_ended();
                }
                match answer {
                    StatementResponse::Applied => BatchResult::Applied,
                    StatementResponse::ConditionFailed(item) => BatchResult::ConditionFailed(item),
                    StatementResponse::ConditionFailedWithoutItem => {
                        BatchResult::ConditionFailedWithoutItem
                    }
                    StatementResponse::NotApplied => BatchResult::Ordinary(None),
                    StatementResponse::Failed(kind, why) => BatchResult::Failed(kind, why),
                }
            }
            // There was no response in time, or the batch's task ended without one.
            Ok(None) | Err(_) => {
                BatchResult::Failed(RequestErrorKind::Unanswered, "no answer in time".into())
            }
        }
    }

    /// Counts a failed condition check whose response lacks the item, although the item exists. The first one
    /// may be a race: the record was deleted, and then another worker claimed the key. After a few, we must
    /// be talking to an emulator that leaves out items, and writes are no longer batched.
    pub(super) fn item_is_missing(&self, context: &RequestContext) {
        if self.0.missing_items.fetch_add(1, Relaxed) + 1 < MANY_MISSING {
            return;
        }
        let why = "no item of a failed condition check".into();
        if self.0.end(&BatchingEnd::UnknownAnswer(why)) {
            context.batches_ended();
        }
    }

    /// Starts the batches that waited for the end of a request.
    pub(super) fn dispatch(&self) {
        self.0.dispatch(MOST_FOR_PART);
    }
}

/// Returns how long a call waits for its batch: at most half of the time left.
fn wait(context: &RequestContext) -> Duration {
    let left = context.time_left();
    left.map_or(MAX_WAIT, |left| MAX_WAIT.min(left / 2))
}

impl Silence {
    fn is_rest(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| now.is_in_pause(REST, until))
    }

    /// Records that a batch sent at this time got no response.
    fn unanswered(&mut self, sent: Instant, now: Timestamp) {
        match self.since {
            // This is the second copy of a batch, or it was sent after one that got no response.
            Some(since) if sent >= since => self.until = Some(now + REST),
            Some(_) => {}
            None => self.since = Some(system::instant()),
        }
    }

    fn answered(&mut self) {
        *self = Self::default();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next batch and its slot. After the last batch, each call is alone.
    fn next_group(&self, most_for_part: usize) -> Option<(Place, Vec<PendingWrite>)> {
        let mut queue = self.queue();
        if queue.0.len() < MAX_STATEMENTS && self.places.in_flight() >= most_for_part {
            return None;
        }
        let (kind, place) = self.places.try_take()?;
        let most = if self.off.load(Relaxed) {
            1
        } else {
            MAX_STATEMENTS
        };
        let group = queue.next(kind, most)?;
        let claims = group.iter().any(|call| call.kind == Request::Claim);
        let place = if claims { place } else { place.without_claim() };
        Some((place, group))
    }

    /// Starts batches while calls wait and slots are free. While `most_for_part` requests are in flight, a
    /// batch that is not full waits.
    fn dispatch(self: &Arc<Self>, most_for_part: usize) {
        while let Some((place, mut group)) = self.next_group(most_for_part) {
            if group.len() >= self.smallest {
                // A separate task, because a caller may be dropped while the others still need their
                // responses. Without a runtime, the calls are dropped and treated as if they got no response.
                let shared = Arc::clone(self);
                let sent = async move {
                    shared.send(group).await;
                    drop(place);
                    shared.dispatch(MOST_FOR_PART);
                };
                // In a trace, the batch is part of the message that started it.
                system::spawn(sent.in_current_span());
            } else if let Some(call) = group.pop() {
                // If the caller is gone, this drops the slot.
                let _gone = call.turn.send(WaitEnd::Alone(place));
            }
        }
    }

    async fn send(&self, group: Vec<PendingWrite>) {
        let sent = system::instant();
        // No caller waits longer than this.
        let until = group
            .iter()
            .map(|call| call.until)
            .max()
            .unwrap_or_else(system::instant);
        let (turns, statements): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|call| (call.turn, call.statement))
            .unzip();
        let request = self
            .client
            .batch_execute_statement()
            .set_statements(Some(statements));
        let BatchResponse { answers, end } = match timeout_at(until, request.send()).await {
            Ok(Ok(output)) => BatchResponse::of(output, turns.len()),
            Ok(Err(error)) => BatchResponse::of_failure(&error, turns.len()),
            Err(_elapsed) => BatchResponse::unanswered("no answer in time", turns.len()),
        };
        let is_unanswered = |answer: &StatementResponse| {
            matches!(
                answer,
                StatementResponse::Failed(RequestErrorKind::Unanswered, _)
            )
        };
        if answers.iter().all(is_unanswered) {
            self.silence().unanswered(sent, Timestamp::now());
        } else {
            self.silence().answered();
        }
        // One call reports it to the metrics.
        let mut is_last = end.is_some_and(|end| self.end(&end));
        for (turn, answer) in turns.into_iter().zip(answers) {
            // If the caller is gone, it needs no response.
            let told = turn.send(WaitEnd::Answered(answer, is_last)).is_ok();
            is_last &= !told;
        }
    }

    /// Stops batching for this store, and logs that once. Returns true at the first call.
    fn end(&self, why: &BatchingEnd) -> bool {
        if self.off.swap(true, Relaxed) {
            return false;
        }
        match why {
            BatchingEnd::Denied => tracing::warn!(
                table = self.table,
                needs = "dynamodb:PartiQLInsert and dynamodb:PartiQLUpdate",
                "DynamoDB denied access to batched writes: each write is sent alone until this process ends"
            ),
            BatchingEnd::UnknownAnswer(answer) => tracing::warn!(
                table = self.table,
                answer = &**answer,
                "DynamoDB's response to a batched write has an unknown form: each write is sent alone until this process ends"
            ),
        }
        true
    }
}

impl Queue {
    /// Takes the next batch, whose keys are distinct. If only slots for other requests are free, claims stay
    /// in the queue.
    fn next(&mut self, place: Request, most: usize) -> Option<Vec<PendingWrite>> {
        let mut group: Vec<PendingWrite> = Vec::new();
        let mut left = VecDeque::new();
        while let Some(call) = self.0.pop_front() {
            if group.len() == most {
                self.0.push_front(call);
                break;
            }
            if call.turn.is_closed() {
                // Its caller is gone.
            } else if call.kind == Request::Claim && place == Request::Other
                || group.iter().any(|other| other.key == call.key)
            {
                left.push_back(call);
            } else {
                group.push(call);
            }
        }
        while let Some(call) = left.pop_back() {
            self.0.push_front(call);
        }
        Some(group).filter(|group| !group.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use crate::meter::Meter;

    use super::*;

    fn groups() -> Batcher {
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
            .build();
        let client = Client::from_conf(config);
        Batcher::new(&DynamoStore::new(client, "table"), 2)
    }

    #[tokio::test(start_paused = true)]
    async fn wait_is_at_most_half_of_the_time_left() {
        assert_eq!(wait(&RequestContext::default()), MAX_WAIT);
        for (left, expected) in [
            (MAX_WAIT / 2, MAX_WAIT / 4),
            (10 * MAX_WAIT, MAX_WAIT),
            (Duration::ZERO, Duration::ZERO),
        ] {
            let context = RequestContext::until(Instant::now() + left, &Meter::default());
            assert_eq!(wait(&context), expected);
        }
    }

    fn call(queue: &mut Queue, kind: Request, key: &str) -> oneshot::Receiver<WaitEnd> {
        let (turn, answer) = oneshot::channel();
        let statement = BatchStatementRequest::builder().statement("");
        queue.0.push_back(PendingWrite {
            key: key.into(),
            kind,
            statement: statement.build().unwrap(),
            until: Instant::now(),
            turn,
        });
        answer
    }

    fn keys(group: Option<Vec<PendingWrite>>) -> Option<Vec<String>> {
        Some(group?.into_iter().map(|call| call.key).collect())
    }

    #[tokio::test]
    async fn group_has_distinct_keys_of_callers_present() {
        let mut queue = Queue::default();
        let mut callers: Vec<_> = ["a", "b", "a", "c", "a", "b"]
            .into_iter()
            .map(|key| call(&mut queue, Request::Claim, key))
            .collect();
        drop(callers.remove(3));
        let mut next = || keys(queue.next(Request::Claim, MAX_STATEMENTS));
        assert_eq!(next().unwrap(), ["a", "b"]);
        assert_eq!(next().unwrap(), ["a", "b"]);
        assert_eq!(next().unwrap(), ["a"]);
        assert_eq!(next(), None);
    }

    #[tokio::test]
    async fn settlements_pass_claims_without_a_place() {
        let mut queue = Queue::default();
        let _claim = call(&mut queue, Request::Claim, "a");
        let _settlement = call(&mut queue, Request::Other, "b");
        assert_eq!(
            keys(queue.next(Request::Other, MAX_STATEMENTS)).unwrap(),
            ["b"]
        );
        assert_eq!(keys(queue.next(Request::Other, MAX_STATEMENTS)), None);
        assert_eq!(
            keys(queue.next(Request::Claim, MAX_STATEMENTS)).unwrap(),
            ["a"]
        );
    }

    #[tokio::test]
    async fn part_of_a_group_waits_for_others() {
        let Batcher(shared) = groups();
        let numbers: Vec<_> = (0..30).map(|n| n.to_string()).collect();
        let callers = |queue: &mut Queue| {
            let calls = numbers.iter();
            let calls = calls.map(|key| call(queue, Request::Other, key));
            calls.collect::<Vec<_>>()
        };
        let _callers = callers(&mut shared.queue());
        let mut places = Vec::new();
        let (place, group) = shared.next_group(MOST_FOR_PART).unwrap();
        places.push(place);
        assert_eq!(keys(Some(group)).unwrap(), numbers[..25]);
        while places.len() < MOST_FOR_PART {
            places.push(shared.places.try_take().unwrap().1);
        }
        assert!(shared.next_group(MOST_FOR_PART).is_none());
        let (_, group) = shared.next_group(usize::MAX).unwrap();
        assert_eq!(keys(Some(group)).unwrap(), numbers[25..]);
    }

    #[tokio::test]
    async fn calls_that_wait_at_the_end_of_groups_go_alone() {
        let Batcher(shared) = groups();
        let _callers = ["a", "b"].map(|key| call(&mut shared.queue(), Request::Other, key));
        assert!(shared.end(&BatchingEnd::Denied));
        for key in ["a", "b"] {
            let (_place, group) = shared.next_group(MOST_FOR_PART).unwrap();
            assert_eq!(keys(Some(group)).unwrap(), [key]);
        }
        assert!(shared.next_group(MOST_FOR_PART).is_none());
    }

    /// The monotonic clock stands still during the rest, as in a process that Lambda has frozen.
    #[tokio::test(start_paused = true)]
    async fn groups_rest_after_two_without_answer() {
        let mut silence = Silence::default();
        let (sent, now) = (Instant::now(), Timestamp::from_millis(1_000_000));
        tokio::time::advance(Duration::from_secs(1)).await;
        // Two in one turn.
        silence.unanswered(sent, now);
        silence.unanswered(sent, now);
        assert!(!silence.is_rest(now));
        silence.unanswered(Instant::now(), now);
        assert!(silence.is_rest(now));
        assert!(!silence.is_rest(now + REST));
        assert!(!silence.is_rest(Timestamp::default()), "set back");
        silence.answered();
        silence.unanswered(Instant::now(), now);
        assert!(!silence.is_rest(now));
    }
}
