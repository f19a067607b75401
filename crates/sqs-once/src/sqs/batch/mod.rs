//! [`Batch`]: workers that run the lanes of a batch until the deadline, and the result of each message.

mod progress;

use std::{
    collections::VecDeque,
    convert::Infallible,
    num::NonZeroUsize,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::{Either, select};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::JoinSet,
};
use tracing::Instrument as _;

use super::{
    lanes::{self, Lane, LaneInputs},
    message::Message,
    message_outcome::MessageOutcome,
    message_result::MessageResult,
    suspects::Suspects,
};
use crate::{
    deadline::Deadline,
    modes::Outcome,
    protocol::isolation::may_start_beside,
    system::{self, timeout_at},
};
use progress::HandlerRun;

pub(super) use progress::Progress;

/// How many messages that did not start are logged and named one by one. A batch may have ten thousand, and
/// Lambda waits for our response.
const NAMED: usize = 100;
/// How many messages of a batch hold a large body at a time.
const LARGE_BODIES: usize = 10;

/// The messages of one invocation, and the result of each.
pub(super) struct Batch {
    messages: Vec<Message>,
    progress: Vec<Progress>,
    deadline: Deadline,
    /// Number of lines logged so far about messages that did not start.
    not_started_lines: AtomicUsize,
    /// Slots for bodies from S3: they can be larger than an event, so their number decides
    /// how much memory the function needs.
    large_bodies: Arc<Semaphore>,
    suspects: Suspects,
    /// Asks for another worker, because one waits with a suspect.
    parked: OnceLock<mpsc::UnboundedSender<()>>,
    /// Time for handlers when the batch began.
    time: Duration,
}

impl Batch {
    pub(super) fn new(messages: Vec<Message>, deadline: Deadline) -> Self {
        Self {
            progress: messages.iter().map(|_| Progress::default()).collect(),
            messages,
            deadline,
            not_started_lines: AtomicUsize::new(0),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
            suspects: Suspects::default(),
            parked: OnceLock::new(),
            time: deadline.time_left(),
        }
    }

    pub(super) fn large_bodies(&self) -> &Arc<Semaphore> {
        &self.large_bodies
    }

    pub(super) fn suspects(&self) -> &Suspects {
        &self.suspects
    }

    /// Returns whether a handler may start beside others: there must be time, and while a suspect waits, only
    /// the first half of the time is available.
    pub(super) fn may_start(&self) -> bool {
        let (deadline, wait) = (self.deadline, self.suspects.wait());
        deadline.may_start() && may_start_beside(wait, self.time, deadline.time_left())
    }

    /// Waits until this suspect is the next of the batch and no lane runs. Meanwhile, another worker takes
    /// over the lanes.
    pub(super) async fn wait_for_others(&self, index: usize, exclusive_attempts: u64) -> bool {
        let parked = || {
            // Without a receiver, the response of the batch was already sent.
            let _sent = self.parked.get().map(|parked| parked.send(()));
        };
        let latest = self.deadline.start_by();
        let turn = (self.suspects).wait_for_others(index, exclusive_attempts, latest, parked);
        turn.await
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    pub(super) fn message(&self, index: usize) -> &Message {
        &self.messages[index]
    }

    pub(super) fn progress(&self, index: usize) -> &Progress {
        &self.progress[index]
    }

    /// Runs the lanes, at most `workers` at a time, until all have ended or it is time to respond. When no
    /// more handlers may start, leaves the remaining lanes to [`close`](Self::close).
    pub(super) async fn run<F>(
        self: &Arc<Self>,
        workers: NonZeroUsize,
        run_lane: impl Fn(Arc<Self>, Lane) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let lanes = VecDeque::from(self.lanes());
        self.suspects.begin(lanes.len());
        let lanes = Arc::new(Mutex::new(lanes));
        // The last worker drops it, so the whole batch causes one wake-up.
        let (working, done) = oneshot::channel::<Infallible>();
        let working = Arc::new(working);
        let (parked, mut parks) = mpsc::unbounded_channel();
        let _first = self.parked.set(parked);
        let mut running = JoinSet::new();
        let spawn = |running: &mut JoinSet<()>, working: Arc<oneshot::Sender<Infallible>>| {
            let (batch, run_lane) = (Arc::clone(self), run_lane.clone());
            let lanes = Arc::clone(&lanes);
            // Boxed, because otherwise each wrapper and the task would copy the future, about 10 KB.
            let worker = Box::pin(async move {
                let next = || {
                    let mut lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
                    if !batch.may_start() {
                        // `close` handles these lanes. A suspect that waits need not wait for them.
                        batch.suspects.lanes_ended(lanes.len());
                        lanes.clear();
                    }
                    lanes.pop_front()
                };
                while let Some(lane) = next() {
                    run_lane(Arc::clone(&batch), lane).await;
                    batch.suspects.lanes_ended(1);
                }
                drop(working);
            });
            system::spawn_in(running, worker.in_current_span());
        };
        for _ in 0..workers.get().min(self.messages.len()) {
            spawn(&mut running, Arc::clone(&working));
        }
        // The worker of a waiting suspect holds a clone too.
        let still_working = Arc::downgrade(&working);
        drop(working);
        let all_ended = async {
            let mut done = pin!(done);
            while let Either::Right((Some(()), _)) = select(done.as_mut(), pin!(parks.recv())).await
            {
                if let Some(working) = still_working.upgrade() {
                    spawn(&mut running, working);
                }
            }
        };
        // By now, handlers have been cut off and their outcomes written. Dropping the workers ends everything
        // that can be ended.
        let _in_time = timeout_at(self.deadline.respond_by(), all_ended).await;
    }

    fn lanes(&self) -> Vec<Lane> {
        let facts = self.messages.iter().map(|message| LaneInputs {
            key: message.key(),
            fifo_group: message.fifo_group(),
            receive_count: message.receive_count(),
        });
        lanes::plan(&facts.collect::<Vec<_>>())
    }

    /// Records the start of a message. A message is in one lane, so it starts once.
    pub(super) fn start(&self, index: usize) {
        let _first = self.progress[index].started.set(system::instant());
    }

    /// Logs and records the result of a message, in this order. So what another thread counts or answers has
    /// its line. If the message already has a result, as after [`close`](Self::close), does nothing and returns
    /// false.
    ///
    /// Keeps only part of the result's text, because the outputs of a whole batch may be larger than the
    /// function's memory.
    pub(super) fn end(&self, index: usize, processed: MessageResult) -> bool {
        let Progress { started, ended, .. } = &self.progress[index];
        let mut first = false;
        ended.get_or_init(|| {
            first = true;
            let detail = processed.detail();
            let duration = started
                .get()
                .map_or(Duration::ZERO, |started| system::elapsed(*started));
            let kept = processed.kept(duration);
            if self.is_logged(kept.outcome()) {
                kept.log(&self.messages[index], detail.as_deref());
            }
            kept
        });
        first
    }

    fn is_logged(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::NotStarted | Outcome::BehindFailure => {
                self.not_started_lines.fetch_add(1, Relaxed) < NAMED
            }
            _ => true,
        }
    }

    /// Ends the messages without a result, and names those that the deadline ended in one log line. The
    /// handlers of `blocking` messages did not yield, so they could not be cut off.
    pub(super) fn close(&self) {
        self.suspects.answered();
        let (mut cut_off, mut blocking, mut not_started) = (Vec::new(), Vec::new(), Vec::new());
        for (message, (index, progress)) in
            self.messages.iter().zip(self.progress.iter().enumerate())
        {
            let id = message.id().as_str();
            let open = if progress.started.get().is_some() {
                Outcome::OutOfTime
            } else {
                Outcome::NotStarted
            };
            let ends_here = self.end(index, open.into());
            let ended = progress.ended.get();
            match ended.map(MessageResult::outcome) {
                Some(Outcome::OutOfTime) if ends_here => blocking.push(id),
                Some(Outcome::OutOfTime) => cut_off.push(id),
                Some(Outcome::NotStarted) => not_started.push(id),
                _ => {}
            }
        }
        let unfinished = cut_off.len() + blocking.len() + not_started.len();
        if unfinished > 0 {
            tracing::warn!(
                unfinished,
                cut_off = ids(&cut_off),
                blocking = ids(&blocking),
                not_started = ids(&not_started),
                "messages did not finish before the deadline"
            );
        }
    }

    /// Returns how each message ended, in the order of the event.
    pub(super) fn outcomes(&self) -> Vec<MessageOutcome<'_>> {
        let all = self.messages.iter().zip(&self.progress);
        let ended = all.filter_map(|(message, progress)| {
            let processed = progress.ended.get()?;
            let run = progress.handler.get();
            Some(MessageOutcome {
                message_id: message.id().as_str(),
                key: message.key(),
                outcome: processed.outcome(),
                dead_lettered: false,
                receive_count: message.receive_count(),
                sent_at: message.sent_at(),
                duration: processed.duration(),
                handler_duration: run.map(HandlerRun::duration),
                message,
                processed,
                history: run.map(|run| &run.history),
                requests: progress.meter.readings(),
            })
        });
        ended.collect()
    }
}

/// Joins the first message ids for a log line. Logs name at most this many messages of a batch.
fn ids(ids: &[&str]) -> String {
    ids[..ids.len().min(NAMED)].join(" ")
}

#[cfg(test)]
pub(super) mod tests {
    use aws_lambda_events::sqs::SqsMessage;
    use tracing::{Event, Subscriber};
    use tracing_subscriber::{
        layer::{Context, Layer, SubscriberExt as _},
        registry,
    };

    use super::*;
    use crate::{protocol::Timestamp, sqs::envelope::Envelope};

    /// Notes at each log line how many messages of the batch have a result.
    struct Results {
        batch: Arc<Batch>,
        at_lines: Arc<Mutex<Vec<usize>>>,
    }

    impl<S: Subscriber> Layer<S> for Results {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            let results = self.batch.outcomes().len();
            self.at_lines.lock().unwrap().push(results);
        }
    }

    /// A batch of which nothing has run.
    pub(in crate::sqs) fn batch_of(records: impl IntoIterator<Item = SqsMessage>) -> Batch {
        let messages = records
            .into_iter()
            .map(|record| Message::new(record, None, Envelope::None, false).unwrap());
        let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(1), Duration::ZERO);
        Batch::new(messages.collect(), deadline)
    }

    /// Otherwise another thread may count it in the metrics and answer before its line is written.
    #[test]
    fn message_has_a_result_once_its_line_is_written() {
        let mut record = SqsMessage::default();
        record.message_id = Some("m-1".into());
        let batch = Arc::new(batch_of([record]));
        let at_lines = Arc::default();
        let results = Results {
            batch: Arc::clone(&batch),
            at_lines: Arc::clone(&at_lines),
        };
        tracing::subscriber::with_default(registry().with(results), || {
            assert!(batch.end(0, Outcome::OutOfTime.into()));
            assert!(!batch.end(0, Outcome::NotStarted.into()));
        });
        assert_eq!(*at_lines.lock().unwrap(), [0]);
        assert_eq!(batch.outcomes().len(), 1);
    }
}
