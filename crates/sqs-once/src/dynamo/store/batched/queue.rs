//! The queue of batched writes: claims and completions of concurrent messages in one `BatchExecuteStatement`.
//!
//! ```text
//! call ── one turn of the runtime ──┬── alone: the ordinary request
//!                                   └── batch: applied, condition failed or failed, or else the ordinary request
//! ```
//!
//! There is no dispatcher. Each call waits for a permit and a slot, and the first call to get both sends all calls that are
//! waiting by then. So no call depends on another one, whose caller may be dropped, or on another runtime.
//!
//! Each statement makes the same write as the ordinary request, with the same or a stricter condition. To the
//! protocol, a batched write followed by an ordinary request looks like a duplicate request, and the explorer
//! already covers duplicates.
//!
//! If DynamoDB does not respond to a batch, all its calls fail together. Their callers retry in the same turn
//! of the runtime, so the calls become one batch again. If that batch gets no response either, each caller
//! sends its third try as an ordinary request.

use std::{
    collections::HashSet,
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{Client, types::BatchStatementRequest};
use futures_util::future::{Either, select};
use tokio::{
    sync::{Semaphore, oneshot},
    task::yield_now,
};
use tracing::Instrument as _;

use super::{
    response::{BatchResponse, BatchResult},
    state::{BatchingEnd, BatchingState},
};
use crate::{
    dynamo::store::{DynamoStore, Request, Slot, Slots},
    protocol::{RequestErrorKind, Timestamp},
    store::RequestContext,
    system::{self, Instant, timeout, timeout_at},
};

/// Maximum number of statements in one `BatchExecuteStatement` (*Amazon DynamoDB API Reference*).
const MAX_STATEMENTS: usize = 25;
/// While this many requests of one kind are in flight, new calls of that kind wait until they fill a batch.
const PERMITS: usize = 4;
/// The longest time that a call waits for requests in flight, which may never get a response.
const MAX_WAIT_FOR_OTHERS: Duration = Duration::from_millis(100);
/// A call with less time left than this is sent on its own.
const MIN_TIME_LEFT: Duration = MAX_WAIT_FOR_OTHERS.saturating_mul(4);
/// Longest time that a call waits for its batch. The client of `aws::config` gives up earlier.
const MAX_WAIT: Duration = Duration::from_secs(6);
/// Batching ends once DynamoDB has refused this many batches or statements in a row, but accepted the same writes as
/// ordinary requests.
const MANY_REFUSED: u32 = 3;

/// The batches of one store. Clones share them.
#[derive(Clone)]
pub(super) struct Batcher(Arc<BatcherState>);

struct BatcherState {
    /// A client without the SDK's retries.
    client: Client,
    table: String,
    /// Fewer calls than this go out as ordinary requests.
    smallest: usize,
    slots: Slots,
    claims: Lane,
    completions: Lane,
    standing: Mutex<BatchingState>,
}

/// The calls of one kind. Each kind has a lane of its own, so that no completion waits behind a claim.
struct Lane {
    kind: Request,
    queue: Mutex<WaitingCalls>,
    permits: Arc<Semaphore>,
    /// How many batches or statements DynamoDB refused in a row, but accepted as ordinary requests.
    refused: AtomicU32,
}

/// Waiting calls, in the order of their arrival.
#[derive(Default)]
struct WaitingCalls {
    calls: Vec<QueuedStatement>,
    last: u64,
}

/// One statement, and where its response goes.
struct QueuedStatement {
    number: u64,
    key: String,
    statement: BatchStatementRequest,
    /// When the caller stops waiting.
    until: Instant,
    answer: oneshot::Sender<BatchResult>,
}

impl fmt::Debug for Batcher {
    /// Leaves out the calls, which contain payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").finish_non_exhaustive()
    }
}

impl Batcher {
    /// Creates the batcher for the table of `store`. Fewer calls than `smallest` go out as ordinary requests.
    pub(super) fn new(store: &DynamoStore, smallest: usize) -> Self {
        Self(Arc::new(BatcherState {
            client: store.writing.clone(),
            table: store.table.clone(),
            smallest,
            slots: store.slots.clone(),
            claims: Lane::of(Request::Claim),
            completions: Lane::of(Request::Other),
            standing: Mutex::default(),
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
        let Some(wait) = wait(context) else {
            return BatchResult::Ordinary(None);
        };
        if self.0.rests() {
            return BatchResult::Ordinary(None);
        }
        let until = system::instant() + wait;
        let lane = self.0.lane(kind);
        let (number, answer) = lane.queue().push(key, statement, until);
        // The calls of one turn of the runtime share a batch.
        yield_now().await;
        let answered = timeout_at(until, async {
            match select(answer, pin!(self.lead(lane, number))).await {
                Either::Left((answer, _)) => Either::Left(answer),
                Either::Right((Some(place), _)) => Either::Right(place),
                Either::Right((None, answer)) => Either::Left(answer.await),
            }
        });
        let answer = match answered.await {
            Ok(Either::Left(Ok(answer))) => answer,
            Ok(Either::Right(place)) => return BatchResult::Ordinary(Some(place)),
            // The call is still in the queue, so it was never sent.
            Err(_elapsed) if lane.queue().remove(number).is_some() => {
                return BatchResult::Ordinary(None);
            }
            // There was no response in time, or the batch's task ended early.
            Ok(Either::Left(Err(_))) | Err(_) => {
                let why = "no answer in time".into();
                return BatchResult::Failed(RequestErrorKind::Unanswered, why);
            }
        };
        self.0.report_end(context);
        answer
    }

    /// Waits until the call may go out, and sends it with the calls that are waiting by then. Returns the slot if the call
    /// is alone, or `None` if it is in a batch, which this call or another one sent.
    async fn lead(&self, lane: &Lane, number: u64) -> Option<Slot> {
        let shared = &self.0;
        let is_full = lane.queue().waiting_with(number)? >= MAX_STATEMENTS;
        let permit = if is_full {
            None
        } else {
            let permit = Arc::clone(&lane.permits).acquire_owned();
            timeout(MAX_WAIT_FOR_OTHERS, permit)
                .await
                .ok()
                .and_then(Result::ok)
        };
        let place = shared.slots.take(lane.kind).await.with_pace(permit);
        let most = if shared.rests() { 1 } else { MAX_STATEMENTS };
        let batch = lane.queue().take(number, most)?;
        if batch.len() < shared.smallest {
            return Some(place);
        }
        // This is a separate task, because this caller may be dropped while the others still need their responses. In a trace,
        // the batch is part of the message that started it.
        let (batcher, kind) = (self.clone(), lane.kind);
        let sent = async move {
            batcher.0.send(kind, batch).await;
            drop(place);
        };
        system::spawn(sent.in_current_span());
        None
    }

    /// Records that DynamoDB refused a statement for this reason, but accepted its ordinary request.
    pub(super) fn refused(&self, kind: Request, why: Arc<str>, context: &RequestContext) {
        if self.0.lane(kind).refused.fetch_add(1, Relaxed) + 1 >= MANY_REFUSED {
            self.0.end(&BatchingEnd::Refused(why));
        }
        self.0.report_end(context);
    }
}

/// Returns how long a call waits for its batch: at most half of the time left, or `None` if too little is left.
fn wait(context: &RequestContext) -> Option<Duration> {
    match context.time_left() {
        None => Some(MAX_WAIT),
        Some(left) if left < MIN_TIME_LEFT => None,
        Some(left) => Some(MAX_WAIT.min(left / 2)),
    }
}

impl BatcherState {
    fn lane(&self, kind: Request) -> &Lane {
        match kind {
            Request::Claim => &self.claims,
            Request::Lease | Request::Other => &self.completions,
        }
    }

    fn standing(&self) -> MutexGuard<'_, BatchingState> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether batching is paused, so that each write is sent on its own.
    fn rests(&self) -> bool {
        self.standing().is_pause(Timestamp::now())
    }

    async fn send(&self, kind: Request, batch: Vec<QueuedStatement>) {
        let sent = system::instant();
        // No caller waits longer than this.
        let until = batch.iter().map(|call| call.until).max().unwrap_or(sent);
        let (callers, statements): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|call| (call.answer, call.statement))
            .unzip();
        let request = self
            .client
            .batch_execute_statement()
            .set_statements(Some(statements));
        let BatchResponse { answers, end } = match timeout_at(until, request.send()).await {
            Ok(Ok(output)) => BatchResponse::of(output, callers.len()),
            Ok(Err(error)) => BatchResponse::of_failure(&error, callers.len()),
            Err(_elapsed) => BatchResponse::unanswered("no answer in time", callers.len()),
        };
        if answers.iter().all(BatchResult::is_unanswered) {
            self.standing().unanswered(sent, Timestamp::now());
        } else {
            self.standing().answered();
        }
        if answers.iter().any(BatchResult::is_accepted) {
            self.lane(kind).refused.store(0, Relaxed);
        }
        if let Some(end) = end {
            self.end(&end);
        }
        for (caller, answer) in callers.into_iter().zip(answers) {
            // A caller that is gone needs no response.
            drop(caller.send(answer));
        }
    }

    /// Stops batching, and logs that once.
    fn end(&self, why: &BatchingEnd) {
        if self.standing().end(Timestamp::now()) {
            why.log(&self.table);
            for lane in [&self.claims, &self.completions] {
                lane.refused.store(0, Relaxed);
            }
        }
    }

    /// Reports the end of batching to the metrics, once.
    fn report_end(&self, context: &RequestContext) {
        if self.standing().take_unreported_end() {
            context.batches_ended();
        }
    }
}

impl Lane {
    fn of(kind: Request) -> Self {
        Self {
            kind,
            queue: Mutex::default(),
            permits: Arc::new(Semaphore::new(PERMITS)),
            refused: AtomicU32::new(0),
        }
    }

    fn queue(&self) -> MutexGuard<'_, WaitingCalls> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingCalls {
    /// Adds a call. Returns its number, and where its response arrives.
    fn push(
        &mut self,
        key: &str,
        statement: BatchStatementRequest,
        until: Instant,
    ) -> (u64, oneshot::Receiver<BatchResult>) {
        let (answer, answered) = oneshot::channel();
        self.last += 1;
        self.calls.push(QueuedStatement {
            number: self.last,
            key: key.to_owned(),
            statement,
            until,
            answer,
        });
        (self.last, answered)
    }

    /// Returns how many calls are waiting, or `None` if this one is not among them.
    fn waiting_with(&self, number: u64) -> Option<usize> {
        let is_waiting = self.calls.iter().any(|call| call.number == number);
        is_waiting.then_some(self.calls.len())
    }

    fn remove(&mut self, number: u64) -> Option<QueuedStatement> {
        let place = self.calls.iter().position(|call| call.number == number)?;
        Some(self.calls.remove(place))
    }

    /// Takes this call and others with different keys, up to `most` in all. Returns `None` if another batch has taken this call.
    fn take(&mut self, number: u64, most: usize) -> Option<Vec<QueuedStatement>> {
        let first = self.remove(number)?;
        self.calls.retain(|call| !call.answer.is_closed());
        let mut keys = HashSet::from([first.key.clone()]);
        let joins = |call: &mut QueuedStatement| keys.len() < most && keys.insert(call.key.clone());
        let mut batch = vec![first];
        batch.extend(self.calls.extract_if(.., joins));
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use crate::meter::Meter;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_is_at_most_half_of_the_time_left() {
        assert_eq!(wait(&RequestContext::default()), Some(MAX_WAIT));
        for (left, expected) in [
            (MAX_WAIT / 2, Some(MAX_WAIT / 4)),
            (10 * MAX_WAIT, Some(MAX_WAIT)),
            (MIN_TIME_LEFT, Some(MIN_TIME_LEFT / 2)),
            (MIN_TIME_LEFT / 2, None),
            (Duration::ZERO, None),
        ] {
            let context = RequestContext::until(Instant::now() + left, &Meter::default());
            assert_eq!(wait(&context), expected);
        }
    }

    #[tokio::test]
    async fn batch_has_distinct_keys_of_callers_present() {
        let mut queue = WaitingCalls::default();
        let mut call = |key| {
            let statement = BatchStatementRequest::builder().statement("");
            queue.push(key, statement.build().unwrap(), Instant::now())
        };
        let mut callers: Vec<_> = ["a", "b", "a", "c", "a", "b"].map(&mut call).into();
        drop(callers.remove(3));
        let mut take = |number, most| {
            let batch = queue.take(number, most)?;
            Some(batch.into_iter().map(|call| call.key).collect::<Vec<_>>())
        };
        assert_eq!(take(3, MAX_STATEMENTS).unwrap(), ["a", "b"]);
        assert_eq!(take(3, MAX_STATEMENTS), None);
        assert_eq!(take(1, 1).unwrap(), ["a"]);
        assert_eq!(take(6, MAX_STATEMENTS).unwrap(), ["b", "a"]);
        assert!(queue.calls.is_empty());
    }
}
