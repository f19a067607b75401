//! Group commit: claims and settlements of concurrent messages in one `BatchExecuteStatement`.
//!
//! ```text
//! call ── one turn of the runtime ──┬── alone: the ordinary request
//!                                   └── group: applied, refused or failed, or else the ordinary request
//! ```
//!
//! Each statement of a group makes the same write as the ordinary request, on the same or stricter
//! conditions. To the protocol, a group followed by an ordinary request looks like a request that was
//! sent twice.
//!
//! If DynamoDB does not answer a group, all its calls fail together. Their callers retry in the same turn
//! of the runtime, so the calls form a group again. If that group gets no answer either, each caller
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

use aws_sdk_dynamodb::{
    Client,
    types::{BatchStatementRequest, ReturnConsumedCapacity},
};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use tracing::Instrument as _;

use super::answer::{Answer, Answers, EndOfGroups};
use crate::{
    item::Item,
    store::{DynamoStore, Place, Places, Request},
};
use sqs_once_core::{protocol::Unavailability, store::RequestContext};

/// Maximum number of statements in one `BatchExecuteStatement` (*Amazon DynamoDB API Reference*).
const MAX_STATEMENTS: usize = 25;
/// While this many requests are in flight, a partial group and a lone request wait for more writes to
/// join them.
const MOST_FOR_PART: usize = 4;
/// Longest such wait, because the requests in flight may never be answered.
const MAX_WAIT_FOR_OTHERS: Duration = Duration::from_millis(100);
/// Longest that a call waits for its group: longer than the client of `aws::config` waits.
const MAX_WAIT: Duration = Duration::from_secs(6);
/// So many responses without the item cannot all be races.
const MANY_MISSING: u32 = 3;
/// How long writes are not grouped after DynamoDB left two groups in a row unanswered.
const REST: Duration = Duration::from_secs(10);

/// The groups of one store. Clones share the groups.
#[derive(Clone)]
pub(super) struct Groups(Arc<Shared>);

struct Shared {
    /// Client without the SDK's retries.
    client: Client,
    table: String,
    capacity: Option<ReturnConsumedCapacity>,
    /// Calls fewer than this go as ordinary requests.
    smallest: usize,
    queue: Mutex<Queue>,
    places: Places,
    silence: Mutex<Silence>,
    /// True after the last group.
    off: AtomicBool,
    /// Failed condition checks without their items.
    missing_items: AtomicU32,
}

/// Calls that wait for a group, in the order of their arrival.
#[derive(Default)]
struct Queue(VecDeque<Call>);

/// One statement, and the caller that waits for its turn.
struct Call {
    key: String,
    kind: Request,
    statement: BatchStatementRequest,
    /// End of the caller's wait.
    until: Instant,
    turn: oneshot::Sender<Turn>,
}

/// The result of a call's wait.
enum Turn {
    /// The caller sends the ordinary request, in this place.
    Alone(Place),
    /// The statement's answer, its share of the write units, and whether it was in the last group.
    Answered(Answer, f64, bool),
}

/// The end of a call.
pub(super) enum Tried {
    Applied,
    /// The condition check failed because of this item.
    Refused(Item),
    /// The condition check failed, and no item came with the answer. The ordinary request follows.
    RefusedWithoutItem,
    /// The ordinary request follows, in this place if the call has one.
    Ordinary(Option<Place>),
    /// The call failed, for this reason.
    Failed(Unavailability, Arc<str>),
}

/// When a group got no answer.
#[derive(Default)]
struct Silence {
    /// Since then no group got an answer.
    since: Option<Instant>,
    /// End of the time without groups.
    until: Option<Instant>,
}

impl fmt::Debug for Groups {
    /// Without the calls, which hold payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

impl Groups {
    /// Creates groups of statements on the table of `store`. Calls fewer than `smallest` go as ordinary
    /// requests.
    pub(super) fn new(store: &DynamoStore, smallest: usize) -> Self {
        Self(Arc::new(Shared {
            client: store.writing.clone(),
            table: store.table.clone(),
            capacity: store.capacity.clone(),
            smallest,
            queue: Mutex::default(),
            places: store.places.clone(),
            silence: Mutex::default(),
            off: AtomicBool::new(false),
            missing_items: AtomicU32::new(0),
        }))
    }

    /// Sends a statement with those of other calls, and waits at most half of the time left.
    pub(super) async fn send(
        &self,
        kind: Request,
        key: &str,
        statement: BatchStatementRequest,
        context: &RequestContext,
    ) -> Tried {
        if self.0.off.load(Relaxed) || self.0.silence().is_rest() {
            return Tried::Ordinary(None);
        }
        let until = Instant::now() + wait(context);
        let (turn, mut answer) = oneshot::channel();
        self.0.queue().0.push_back(Call {
            key: key.to_owned(),
            kind,
            statement,
            until,
            turn,
        });
        // Calls of the same turn share a group. Each of them starts groups, so that none depends on
        // another, which may be dropped.
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
            Ok(Some(Turn::Alone(place))) => Tried::Ordinary(Some(place)),
            Ok(Some(Turn::Answered(answer, units, is_last))) => {
                context.add_write_units(units);
                if is_last {
                    context.batches_ended();
                }
                match answer {
                    Answer::Applied => Tried::Applied,
                    Answer::Refused(item) => Tried::Refused(item),
                    Answer::RefusedWithoutItem => Tried::RefusedWithoutItem,
                    Answer::NotApplied => Tried::Ordinary(None),
                    Answer::Failed(kind, why) => Tried::Failed(kind, why),
                }
            }
            // No answer in time, or the group's task ended without one.
            Ok(None) | Err(_) => {
                Tried::Failed(Unavailability::Unanswered, "no answer in time".into())
            }
        }
    }

    /// Counts a failed condition check whose response lacks the item, although the item exists. The first
    /// may be a race: the record was deleted, and a different worker then claimed the key. After a few, the
    /// other side must be an emulator that omits items, and writes are no longer grouped.
    pub(super) fn item_is_missing(&self, context: &RequestContext) {
        if self.0.missing_items.fetch_add(1, Relaxed) + 1 < MANY_MISSING {
            return;
        }
        let why = "no item of a failed condition check".into();
        if self.0.end(&EndOfGroups::UnknownAnswer(why)) {
            context.batches_ended();
        }
    }

    /// Starts the groups that waited for the end of another request.
    pub(super) fn dispatch(&self) {
        self.0.dispatch(MOST_FOR_PART);
    }
}

/// Time that a call waits for its group: at most half of the time left.
fn wait(context: &RequestContext) -> Duration {
    let left = context.time_left();
    left.map_or(MAX_WAIT, |left| MAX_WAIT.min(left / 2))
}

impl Silence {
    fn is_rest(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// Notes a group that was sent then and got no answer.
    fn unanswered(&mut self, sent: Instant) {
        let now = Instant::now();
        match self.since {
            // It is the second copy of a group, or was sent after one that got no answer.
            Some(since) if sent >= since => self.until = Some(now + REST),
            Some(_) => {}
            None => self.since = Some(now),
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

    /// Takes the next group and its place. After the last group, each call is alone.
    fn next_group(&self, most_for_part: usize) -> Option<(Place, Vec<Call>)> {
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

    /// Starts groups while calls wait and places are free. A partial group waits while
    /// `most_for_part` requests are in flight.
    fn dispatch(self: &Arc<Self>, most_for_part: usize) {
        while let Some((place, mut group)) = self.next_group(most_for_part) {
            if group.len() >= self.smallest {
                // A task of its own: a caller may be dropped, and the others need their answers.
                // Without a runtime the calls are dropped, and count as unanswered.
                if let Ok(runtime) = Handle::try_current() {
                    let shared = Arc::clone(self);
                    let sent = async move {
                        shared.send(group).await;
                        drop(place);
                        shared.dispatch(MOST_FOR_PART);
                    };
                    // In a trace, the group is part of the message that started it.
                    runtime.spawn(sent.in_current_span());
                }
            } else if let Some(call) = group.pop() {
                // A caller that is gone drops the place.
                let _gone = call.turn.send(Turn::Alone(place));
            }
        }
    }

    async fn send(&self, group: Vec<Call>) {
        let sent = Instant::now();
        // No caller waits longer.
        let until = group
            .iter()
            .map(|call| call.until)
            .max()
            .unwrap_or_else(Instant::now);
        let (turns, statements): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|call| (call.turn, call.statement))
            .unzip();
        let request = self
            .client
            .batch_execute_statement()
            .set_statements(Some(statements))
            .set_return_consumed_capacity(self.capacity.clone());
        let Answers {
            answers,
            units,
            end,
        } = match timeout_at(until, request.send()).await {
            Ok(Ok(output)) => Answers::of(output, turns.len()),
            Ok(Err(error)) => Answers::of_failure(&error, turns.len()),
            Err(_elapsed) => Answers::unanswered("no answer in time", turns.len()),
        };
        let is_unanswered =
            |answer: &Answer| matches!(answer, Answer::Failed(Unavailability::Unanswered, _));
        if answers.iter().all(is_unanswered) {
            self.silence().unanswered(sent);
        } else {
            self.silence().answered();
        }
        // One call tells the metrics.
        let mut is_last = end.is_some_and(|end| self.end(&end));
        for (turn, answer) in turns.into_iter().zip(answers) {
            // A caller that is gone needs no answer.
            let told = turn.send(Turn::Answered(answer, units, is_last)).is_ok();
            is_last &= !told;
        }
    }

    /// Ends the groups of this store, and says so once. Returns true at the first call.
    fn end(&self, why: &EndOfGroups) -> bool {
        if self.off.swap(true, Relaxed) {
            return false;
        }
        match why {
            EndOfGroups::Denied => tracing::warn!(
                table = self.table,
                needs = "dynamodb:PartiQLInsert and dynamodb:PartiQLUpdate",
                "DynamoDB denied access to a batch of writes: each write is sent alone until this process ends"
            ),
            EndOfGroups::UnknownAnswer(answer) => tracing::warn!(
                table = self.table,
                answer = &**answer,
                "DynamoDB answered a batch of writes in an unknown way: each write is sent alone until this process ends"
            ),
        }
        true
    }
}

impl Queue {
    /// Takes the next group, of distinct keys. Claims stay in the queue if only places for other
    /// requests are free.
    fn next(&mut self, place: Request, most: usize) -> Option<Vec<Call>> {
        let mut group: Vec<Call> = Vec::new();
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
    use sqs_once_core::meter::Meter;

    use super::*;

    fn groups() -> Groups {
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
            .build();
        let client = Client::from_conf(config);
        Groups::new(&DynamoStore::new(client, "table"), 2)
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

    fn call(queue: &mut Queue, kind: Request, key: &str) -> oneshot::Receiver<Turn> {
        let (turn, answer) = oneshot::channel();
        let statement = BatchStatementRequest::builder().statement("");
        queue.0.push_back(Call {
            key: key.into(),
            kind,
            statement: statement.build().unwrap(),
            until: Instant::now(),
            turn,
        });
        answer
    }

    fn keys(group: Option<Vec<Call>>) -> Option<Vec<String>> {
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
        let Groups(shared) = groups();
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
        let Groups(shared) = groups();
        let _callers = ["a", "b"].map(|key| call(&mut shared.queue(), Request::Other, key));
        assert!(shared.end(&EndOfGroups::Denied));
        for key in ["a", "b"] {
            let (_place, group) = shared.next_group(MOST_FOR_PART).unwrap();
            assert_eq!(keys(Some(group)).unwrap(), [key]);
        }
        assert!(shared.next_group(MOST_FOR_PART).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn groups_rest_after_two_without_answer() {
        let mut silence = Silence::default();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        // Of one turn.
        silence.unanswered(sent);
        silence.unanswered(sent);
        assert!(!silence.is_rest());
        silence.unanswered(Instant::now());
        assert!(silence.is_rest());
        tokio::time::advance(REST).await;
        assert!(!silence.is_rest());
        silence.answered();
        silence.unanswered(Instant::now());
        assert!(!silence.is_rest());
    }
}
