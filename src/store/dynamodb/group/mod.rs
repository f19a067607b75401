//! Group commit: claims and settlements of concurrent messages in one `BatchExecuteStatement`.
//!
//! ```text
//! call ── one turn of the runtime ──┬── alone: the ordinary request
//!                                   └── group: applied, or else the ordinary request
//! ```
//!
//! A group only adds a first try. Its statements make the writes of the ordinary requests, on the
//! same or stricter conditions. To the protocol, a group and an ordinary request behind it are one
//! request that was sent twice.

mod answer;
mod statement;

use std::{
    collections::VecDeque,
    fmt,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    types::{BatchStatementRequest, ReturnConsumedCapacity},
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::yield_now,
    time::{Instant, sleep, timeout, timeout_at},
};

pub(super) use statement::{claim, settle};

use answer::{Answer, Answers};

use crate::{deadline, dynamodb::item::Item, meter::add_units, system::random_fraction};

/// Maximum number of statements in one `BatchExecuteStatement` (*Amazon DynamoDB API Reference*).
const MAX_STATEMENTS: usize = 25;
/// Maximum number of requests in flight: groups, lone requests, and ordinary requests that follow a
/// group. It bounds the connections to DynamoDB.
const MOST_IN_FLIGHT: usize = 8;
/// A group that is not full, and a lone request, wait while so many requests are in flight: others
/// may join them.
const MOST_FOR_PART: usize = 4;
/// Maximum number of ordinary requests in flight that follow a group.
const MOST_FALLBACKS: usize = 4;
/// A request that takes longer gives up its place in flight, so that a request without an answer
/// does not hold up the others.
const SLOW: Duration = Duration::from_millis(100);
/// Maximum time that a call waits for its group, as the timeout of one try in `aws::config`.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Upper limit of the random pause before an ordinary request that follows a group.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The groups of one store. Clones share the groups.
#[derive(Clone)]
pub(super) struct Groups(Arc<Shared>);

struct Shared {
    /// Client without the SDK's retries: the ordinary request is the retry.
    client: Client,
    table: String,
    capacity: Option<ReturnConsumedCapacity>,
    /// Calls fewer than this go as ordinary requests.
    smallest: usize,
    queue: Mutex<Queue>,
    places: Arc<Semaphore>,
    fallbacks: Semaphore,
    /// True after DynamoDB denied access to a group.
    off: AtomicBool,
}

/// Calls that wait for a group, in the order of their arrival.
#[derive(Default)]
struct Queue(VecDeque<Call>);

/// One statement, and the caller that waits for its turn.
struct Call {
    key: String,
    statement: BatchStatementRequest,
    /// End of the caller's wait.
    until: Instant,
    turn: oneshot::Sender<Turn>,
}

/// The result of a call's wait.
enum Turn {
    /// The caller sends the ordinary request, in this place.
    Alone(Place),
    /// The statement's answer, and its share of the write units.
    Answered(Answer, f64),
}

/// The end of a call's first try.
pub(super) enum Tried {
    Applied,
    /// The condition check failed because of this item.
    Refused(Item),
    /// The ordinary request follows.
    Single(Single),
}

/// How the ordinary request of a call is sent.
pub(super) struct Single {
    way: Way,
    /// True if a group without an answer may have applied the statement.
    pub(super) may_have_been_applied: bool,
}

enum Way {
    /// Without a limit: grouping is off.
    Unlimited,
    Alone(Place, Groups),
    Fallback(Groups),
}

/// A place among the requests in flight. When it is dropped, the next group goes.
struct Place {
    shared: Arc<Shared>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // The next group needs it.
        drop(self.permit.take());
        self.shared.dispatch();
    }
}

impl fmt::Debug for Groups {
    /// Without the calls, which hold payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

impl Groups {
    /// Creates groups of statements on `table`. Calls fewer than `smallest` go as ordinary requests.
    pub(super) fn new(
        client: Client,
        table: String,
        capacity: Option<ReturnConsumedCapacity>,
        smallest: usize,
    ) -> Self {
        Self(Arc::new(Shared {
            client,
            table,
            capacity,
            smallest,
            queue: Mutex::default(),
            places: Arc::new(Semaphore::new(MOST_IN_FLIGHT)),
            fallbacks: Semaphore::new(MOST_FALLBACKS),
            off: AtomicBool::new(false),
        }))
    }

    /// Sends a statement with those of other calls, and waits at most half of the time left.
    pub(super) async fn send(&self, key: &str, statement: BatchStatementRequest) -> Tried {
        if self.0.off.load(Relaxed) {
            return Tried::Single(Single::unlimited());
        }
        let until = Instant::now() + wait();
        let (turn, answer) = oneshot::channel();
        self.0.queue().0.push_back(Call {
            key: key.to_owned(),
            statement,
            until,
            turn,
        });
        // Calls of the same turn share a group. Each of them starts groups, so that none depends on
        // another, which may be dropped.
        yield_now().await;
        self.0.dispatch();
        let answered = match timeout_at(until, answer).await {
            Ok(Ok(Turn::Alone(place))) => {
                return Tried::Single(Single {
                    way: Way::Alone(place, self.clone()),
                    may_have_been_applied: false,
                });
            }
            Ok(Ok(Turn::Answered(answer, units))) => {
                add_units(units);
                answer
            }
            // No answer in time, or the group's task ended without one.
            Ok(Err(_)) | Err(_) => Answer::Unknown,
        };
        let may_have_been_applied = match answered {
            Answer::Applied => return Tried::Applied,
            Answer::Refused(item) => return Tried::Refused(item),
            // No sign of trouble, so no pause.
            Answer::Duplicate => false,
            Answer::Denied | Answer::NotApplied | Answer::Unknown => {
                sleep(pause()).await;
                matches!(answered, Answer::Unknown)
            }
        };
        Tried::Single(Single {
            way: Way::Fallback(self.clone()),
            may_have_been_applied,
        })
    }
}

impl Single {
    /// An ordinary request without groups.
    pub(super) const fn unlimited() -> Self {
        Self {
            way: Way::Unlimited,
            may_have_been_applied: false,
        }
    }

    /// Sends an ordinary request, when there is a place for it. Takes the request by reference,
    /// because the SDK's futures are large, and a wrapper would copy them.
    pub(super) async fn run<T>(&mut self, request: Pin<&mut impl Future<Output = T>>) -> T {
        match std::mem::replace(&mut self.way, Way::Unlimited) {
            Way::Unlimited => request.await,
            Way::Alone(place, groups) => {
                self.way = Way::Fallback(groups);
                in_place(place, request).await
            }
            Way::Fallback(groups) => {
                let answer = {
                    // The semaphores are never closed.
                    let fallback = groups.0.fallbacks.acquire().await.ok();
                    let permit = Arc::clone(&groups.0.places).acquire_owned().await.ok();
                    let shared = Arc::clone(&groups.0);
                    in_place((Place { shared, permit }, fallback), request).await
                };
                self.way = Way::Fallback(groups);
                answer
            }
        }
    }
}

/// Runs a request that gives up its `place` when it is slow.
async fn in_place<P, T>(place: P, mut request: Pin<&mut impl Future<Output = T>>) -> T {
    match timeout(SLOW, request.as_mut()).await {
        Ok(answer) => answer,
        Err(_slow) => {
            drop(place);
            request.await
        }
    }
}

/// Time that a call waits for its group: at most half of the time left.
fn wait() -> Duration {
    deadline::time_left_of_request().map_or(MAX_WAIT, |left| MAX_WAIT.min(left / 2))
}

/// A random pause, with full jitter.
fn pause() -> Duration {
    let left = deadline::time_left_of_request().unwrap_or(MAX_WAIT);
    LONGEST_PAUSE.min(left / 4).mul_f64(random_fraction())
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next group and its place. The lock is not held when a place is dropped.
    fn next_group(self: &Arc<Self>) -> Option<(Place, Vec<Call>)> {
        let mut queue = self.queue();
        let in_flight = MOST_IN_FLIGHT.saturating_sub(self.places.available_permits());
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let group = queue.next(in_flight)?;
        let shared = Arc::clone(self);
        let permit = Some(permit);
        Some((Place { shared, permit }, group))
    }

    /// Starts groups while calls wait and places are free.
    fn dispatch(self: &Arc<Self>) {
        while let Some((place, mut group)) = self.next_group() {
            if group.len() >= self.smallest {
                // A task of its own: a caller may be dropped, and the others need their answers.
                // Without a runtime the calls are dropped, and count as unanswered.
                if let Ok(runtime) = Handle::try_current() {
                    let shared = Arc::clone(self);
                    runtime.spawn(async move {
                        in_place(place, pin!(shared.send(group))).await;
                    });
                }
            } else if let Some(call) = group.pop() {
                // A caller that is gone drops the place.
                let _gone = call.turn.send(Turn::Alone(place));
            }
        }
    }

    async fn send(&self, group: Vec<Call>) {
        // No caller waits longer.
        let until = group.iter().map(|call| call.until).max();
        let until = until.unwrap_or_else(Instant::now);
        let (turns, statements): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|call| (call.turn, call.statement))
            .unzip();
        let request = self
            .client
            .batch_execute_statement()
            .set_statements(Some(statements))
            .set_return_consumed_capacity(self.capacity.clone());
        let Answers { answers, units } = match timeout_at(until, request.send()).await {
            Ok(Ok(output)) => Answers::of(output, turns.len()),
            Ok(Err(error)) => Answers::of_failure(&error, turns.len()),
            // Every caller has stopped waiting.
            Err(_elapsed) => return,
        };
        if answers
            .iter()
            .any(|answer| matches!(answer, Answer::Denied))
        {
            self.turn_off();
        }
        for (turn, answer) in turns.into_iter().zip(answers) {
            // A caller that is gone needs no answer.
            let _gone = turn.send(Turn::Answered(answer, units));
        }
    }

    /// Ends grouping for this store, and says so once.
    fn turn_off(&self) {
        if !self.off.swap(true, Relaxed) {
            tracing::warn!(
                table = self.table,
                needs = "dynamodb:PartiQLInsert and dynamodb:PartiQLUpdate",
                "DynamoDB denied access to a group of writes: grouping is off until this process ends"
            );
        }
    }
}

impl Queue {
    /// Takes the next group, of distinct keys. `None` if it should wait for further calls, while so
    /// many requests are in flight.
    fn next(&mut self, in_flight: usize) -> Option<Vec<Call>> {
        if self.0.len() < MAX_STATEMENTS && in_flight >= MOST_FOR_PART {
            return None;
        }
        let mut group: Vec<Call> = Vec::new();
        let mut left = VecDeque::new();
        while let Some(call) = self.0.pop_front() {
            if group.len() == MAX_STATEMENTS {
                self.0.push_front(call);
                break;
            }
            if call.turn.is_closed() {
                // Its caller is gone.
            } else if group.iter().any(|other| other.key == call.key) {
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
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::join_all;

    use super::*;

    fn groups() -> Groups {
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
            .build();
        Groups::new(Client::from_conf(config), "table".into(), None, 2)
    }

    fn single(way: Way) -> Single {
        Single {
            way,
            may_have_been_applied: false,
        }
    }

    /// Runs `requests` ordinary requests of this duration after a group. Returns the largest number
    /// in flight, and the time of all.
    async fn in_flight_at_most(requests: usize, takes: Duration) -> (usize, Duration) {
        let (groups, started) = (groups(), Instant::now());
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        join_all((0..requests).map(|_| async {
            let request = async {
                most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                sleep(takes).await;
                now.fetch_sub(1, Relaxed);
            };
            single(Way::Fallback(groups.clone()))
                .run(pin!(request))
                .await;
        }))
        .await;
        (most.into_inner(), started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn requests_after_a_group_are_bounded() {
        let takes = SLOW / 2;
        let (most, time) = in_flight_at_most(10 * MOST_FALLBACKS, takes).await;
        assert_eq!((most, time), (MOST_FALLBACKS, 10 * takes));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_request_gives_up_its_place() {
        let takes = 100 * SLOW;
        let (most, time) = in_flight_at_most(3 * MOST_FALLBACKS, takes).await;
        assert_eq!(most, 3 * MOST_FALLBACKS);
        // The last wait for two others, and tokio rounds timers up.
        let last = 2 * (SLOW + Duration::from_millis(1)) + takes;
        assert!(time <= last, "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn wait_is_at_most_half_of_the_time_left() {
        assert_eq!(wait(), MAX_WAIT);
        for (left, expected) in [
            (MAX_WAIT / 2, MAX_WAIT / 4),
            (10 * MAX_WAIT, MAX_WAIT),
            (Duration::ZERO, Duration::ZERO),
        ] {
            let waited = deadline::until(Instant::now() + left, async { wait() });
            assert_eq!(waited.await.unwrap(), expected);
        }
    }

    fn call(queue: &mut Queue, key: &str) -> oneshot::Receiver<Turn> {
        let (turn, answer) = oneshot::channel();
        let statement = BatchStatementRequest::builder().statement("");
        queue.0.push_back(Call {
            key: key.into(),
            statement: statement.build().unwrap(),
            until: Instant::now(),
            turn,
        });
        answer
    }

    fn next(queue: &mut Queue, in_flight: usize) -> Option<Vec<String>> {
        let group = queue.next(in_flight)?;
        Some(group.into_iter().map(|call| call.key).collect())
    }

    #[tokio::test]
    async fn group_has_distinct_keys_of_callers_present() {
        let mut queue = Queue::default();
        let mut callers: Vec<_> = ["a", "b", "a", "c", "a", "b"]
            .into_iter()
            .map(|key| call(&mut queue, key))
            .collect();
        drop(callers.remove(3));
        assert_eq!(next(&mut queue, 0).unwrap(), ["a", "b"]);
        assert_eq!(next(&mut queue, 0).unwrap(), ["a", "b"]);
        assert_eq!(next(&mut queue, 0).unwrap(), ["a"]);
        assert_eq!(next(&mut queue, 0), None);
    }

    #[tokio::test]
    async fn part_of_a_group_waits_for_others() {
        let mut queue = Queue::default();
        let keys: Vec<_> = (0..30).map(|n| n.to_string()).collect();
        let _callers: Vec<_> = keys.iter().map(|key| call(&mut queue, key)).collect();
        assert_eq!(next(&mut queue, MOST_FOR_PART).unwrap(), keys[..25]);
        assert_eq!(next(&mut queue, MOST_FOR_PART), None);
        assert_eq!(next(&mut queue, MOST_FOR_PART - 1).unwrap(), keys[25..]);
    }

    #[tokio::test]
    async fn requests_in_flight_are_bounded() {
        let Groups(shared) = groups();
        let keys: Vec<_> = (0..500).map(|n| n.to_string()).collect();
        let mut queue = shared.queue();
        let _callers: Vec<_> = keys.iter().map(|key| call(&mut queue, key)).collect();
        drop(queue);
        let mut places = Vec::new();
        while let Some((place, group)) = shared.next_group() {
            assert_eq!(group.len(), MAX_STATEMENTS);
            places.push(place);
        }
        assert_eq!(places.len(), MOST_IN_FLIGHT);
        assert_eq!(shared.queue().0.len(), 500 - 25 * MOST_IN_FLIGHT);
        shared.queue().0.clear();
        drop(places);
        assert_eq!(shared.places.available_permits(), MOST_IN_FLIGHT);
    }
}
