//! [`Batch`]: runs the chains of a batch until the deadline, and keeps the result of each message.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    mem,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Either, select},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::{JoinError, JoinSet},
};
use tracing::Instrument as _;

use super::{
    chains::{Chain, ChainInputs, FifoAfterPermanent, chains},
    consumer::Consumer,
    ended::{Began, Ended, HandlerRun},
    message::Message,
    options::MEMORY_OF_OUTPUT,
    run::{OfBatch, Ran, Suspect},
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::Handler,
    modes::{Mode, Outcome, Turn, Turns},
    protocol::Key,
    system::{self, Instant, timeout_at},
};

/// How many unstarted messages we log and name one by one. A batch may have ten thousand of them, and Lambda waits for our
/// response.
const NAMED: usize = 100;
/// From this receive on, a suspect may start with less than the minimum time left. Otherwise handlers that last
/// nearly as long as the invocation could starve it.
const RECEIVE_WITHOUT_MINIMUM: u32 = 10;

/// The messages of one invocation, and how far each has come. A message's task returns the message's result. The task sees
/// nothing of the other messages, except whether a suspect waits.
///
/// 1. The chains run in parallel. A chain that meets a suspect stops there.
/// 2. The suspects run alone, one after the other. The rest of their chains then starts again at step 1.
pub(super) struct Batch<M: Mode<H::Output>, H: Handler> {
    consumer: Arc<Consumer<M, H>>,
    messages: Arc<[Message]>,
    deadline: Deadline,
    /// Declared before `running`, so that dropping a batch aborts the tasks before it gives back their turns.
    tasks: JoinSet<(usize, Ran)>,
    /// The messages that are running, by their place in the batch.
    running: HashMap<usize, Running>,
    /// Chains whose next message may start.
    ready: VecDeque<Chain>,
    suspects: Vec<Waiting>,
    /// The part of the batch that the task of each message can see.
    shown: OfBatch,
    /// Tells which handlers began, in case we never learn how they end.
    began: UnboundedReceiver<Began>,
    ended: Vec<Option<Ended>>,
    /// Number of log lines so far about messages that did not start.
    not_started_lines: usize,
}

/// A message that is running, or that is waiting to run alone.
struct Running {
    started: Instant,
    /// The messages behind it.
    chain: Chain,
    /// Kept here so that the turn is given back when the batch responds, even if a handler still blocks its thread.
    _turn: Option<Turn>,
    began: Option<Began>,
}

/// A suspect that waits for its turn.
struct Waiting {
    index: usize,
    suspect: Suspect,
    running: Running,
}

impl<M: Mode<H::Output>, H: Handler> Batch<M, H> {
    /// Runs the messages until all are done or it is time to respond. Returns their results, in the order of the event.
    ///
    /// Boxed here. To prove that a future which holds a batch is `Send`, the compiler would need the type that the handler
    /// returns, and can't find it for an async closure.
    pub(super) fn run(
        consumer: Arc<Consumer<M, H>>,
        messages: Arc<[Message]>,
        deadline: Deadline,
    ) -> BoxFuture<'static, Vec<Ended>> {
        let (sender, began) = unbounded_channel();
        let batch = Self {
            ready: plan(&messages),
            ended: messages.iter().map(|_| None).collect(),
            shown: OfBatch {
                index: 0,
                began: sender,
                suspects_wait: Arc::default(),
                half: system::instant() + deadline.time_left() / 2,
            },
            began,
            consumer,
            messages,
            deadline,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            suspects: Vec::new(),
            not_started_lines: 0,
        };
        Box::pin(batch.run_until_response())
    }

    async fn run_until_response(mut self) -> Vec<Ended> {
        // By then, handlers have been cut off and their outcomes written.
        let respond_by = self.deadline.respond_by();
        let _in_time = timeout_at(respond_by, self.run_chains()).await;
        while let Some(joined) = self.tasks.try_join_next() {
            self.note(joined);
        }
        self.close()
    }

    async fn run_chains(&mut self) {
        loop {
            self.run_beside().await;
            if self.suspects.is_empty() {
                return;
            }
            self.run_suspects().await;
        }
    }

    /// Runs chains in parallel until nothing runs and nothing can start.
    async fn run_beside(&mut self) {
        let turns = self.consumer.process.turns.clone();
        loop {
            while self.may_start_next()
                && let Some(turn) = turns.shared_now()
            {
                self.start_next(turn);
            }
            if self.may_start_next() {
                // A suspect of another invocation has its turn, or waits for it.
                let turn = turns.shared(self.shown.start_by(self.deadline));
                let turn = if self.tasks.is_empty() {
                    turn.await
                } else {
                    match select(pin!(turn), pin!(self.wait_for_end())).await {
                        Either::Left((turn, _)) => turn,
                        Either::Right(_) => None,
                    }
                };
                if let Some(turn) = turn.filter(|_| self.may_start_next()) {
                    self.start_next(turn);
                }
            } else if !self.wait_for_end().await {
                return;
            }
        }
    }

    /// Waits until a message's task ends. Returns false if nothing runs.
    async fn wait_for_end(&mut self) -> bool {
        let Some(joined) = self.tasks.join_next().await else {
            return false;
        };
        self.note(joined);
        true
    }

    /// Returns whether the next chain may start its message while others run.
    fn may_start_next(&self) -> bool {
        let Some(next) = self.ready.front().and_then(Chain::next) else {
            return false;
        };
        let in_s3 = &self.consumer.options.s3_bodies;
        let largest_in_s3 = (in_s3.as_ref()).map_or(0, |bodies| bodies.max_bytes());
        let largest_in_s3 = usize::try_from(largest_in_s3).unwrap_or(usize::MAX);
        let memory = |index: &usize| memory_of(&self.messages[*index], largest_in_s3);
        let running = self.running.keys().map(memory);
        let needed = running.fold(memory(&next), usize::saturating_add);
        let needed = needed * usize::from(!flawed("memory limits no handlers"));
        let limit = self.consumer.options.concurrency;
        limit.admits(self.running.len(), needed)
            && system::instant() < self.shown.start_by(self.deadline)
    }

    /// Starts the first message of the next chain. The message gets its turn before it claims. If it waits behind a suspect that
    /// kills the process, it then holds no claim.
    fn start_next(&mut self, turn: Turn) {
        let Some((index, chain)) = self.ready.pop_front().and_then(Chain::split) else {
            return;
        };
        let running = Running {
            started: system::instant(),
            chain,
            _turn: Some(turn).filter(|_| !flawed("a turn ends at once")),
            began: None,
        };
        let (deadline, of_batch) = (self.deadline, self.shown.at(index));
        self.start(index, running, move |consumer, messages| async move {
            let message = &messages[index];
            consumer.run_beside(message, deadline, of_batch).await
        });
    }

    /// Runs the suspects one after the other. Those with the fewest attempts alone go first, because they are the
    /// least likely to kill the process.
    async fn run_suspects(&mut self) {
        // Sorted backwards, because `pop` takes the last.
        self.suspects
            .sort_by_key(|next| Reverse((next.suspect.exclusive_attempts, next.index)));
        while let Some(next) = self.suspects.pop() {
            let mut deadline = self.deadline;
            if self.messages[next.index].receive_count() >= RECEIVE_WITHOUT_MINIMUM {
                deadline = deadline.without_min_time();
            }
            let own = flawed("a turn is of one batch").then(Turns::default);
            let turns = own.as_ref().unwrap_or(&self.consumer.process.turns);
            let turn = if deadline.may_start() {
                turns.alone(deadline.start_by()).await
            } else {
                None
            };
            if turn.is_none() {
                self.not_started(next);
                continue;
            }
            let Waiting {
                index,
                suspect,
                running,
            } = next;
            let running = Running {
                _turn: turn,
                ..running
            };
            // A suspect doesn't have to make room for the suspects behind it.
            let mut of_batch = self.shown.at(index);
            if !flawed("a suspect waits for suspects") {
                of_batch.suspects_wait = Arc::default();
            }
            self.start(index, running, move |consumer, messages| async move {
                let message = &messages[index];
                (consumer.run_alone(message, suspect, deadline, of_batch)).await
            });
            while self.running.contains_key(&index) && self.wait_for_end().await {}
        }
        self.shown.suspects_wait.store(false, Relaxed);
    }

    /// Gives a result to a suspect that doesn't run in this batch, and to its chain.
    fn not_started(&mut self, suspect: Waiting) {
        let Waiting {
            index,
            suspect,
            running,
        } = suspect;
        let mut ended = suspect.not_started(self.shown.at(index));
        ended.duration = system::elapsed(running.started);
        self.keep_end(index, ended);
        self.continue_chain(true, running.chain);
    }

    fn start<F>(
        &mut self,
        index: usize,
        running: Running,
        run: impl FnOnce(Arc<Consumer<M, H>>, Arc<[Message]>) -> F,
    ) where
        F: Future<Output = Ran> + Send + 'static,
    {
        self.running.insert(index, running);
        let run = run(Arc::clone(&self.consumer), Arc::clone(&self.messages));
        let run = AssertUnwindSafe(run).catch_unwind();
        // Boxed, because otherwise each wrapper and the task would copy the future, about 10 KB.
        let run = Box::pin(run.map(move |ran| {
            let panicked = |_| Ran::Ended(Outcome::Panicked.into());
            (index, ran.unwrap_or_else(panicked))
        }));
        system::spawn_in(&mut self.tasks, run.in_current_span());
    }

    /// Takes the result of a message's task: the message is done, or a suspect.
    fn note(&mut self, joined: Result<(usize, Ran), JoinError>) {
        self.note_began();
        // If a message's task was cut off, `close` ends the message.
        let Ok((index, ran)) = joined else { return };
        let Some(running) = self.running.remove(&index) else {
            return;
        };
        match ran {
            Ran::Ended(mut ended) => {
                ended.duration = system::elapsed(running.started);
                if ended.outcome.is_permanent()
                    && let Some(visibility) = &self.consumer.options.visibility
                {
                    visibility.expect(&self.messages[index]);
                }
                let mut behind = running.chain;
                let waits_for_other = matches!(ended.outcome, Outcome::PayloadConflict { .. });
                // A message that overtakes does so only to end the attempt that blocks the key. The message that waited for this
                // runs before any other.
                let stops = behind.overtakes || self.stops(&ended, behind.is_fifo_group);
                if waits_for_other {
                    behind.overtakes = behind.is_fifo_group;
                }
                if waits_for_other && !flawed("a group goes on behind another payload") {
                    self.keep_key(&mut behind, ended.key.as_ref());
                }
                self.keep_end(index, ended);
                self.continue_chain(stops && !waits_for_other, behind);
            }
            Ran::Suspect(suspect) => {
                self.shown.suspects_wait.store(true, Relaxed);
                let running = Running {
                    _turn: None,
                    ..running
                };
                self.suspects.push(Waiting {
                    index,
                    suspect,
                    running,
                });
            }
        }
    }

    fn note_began(&mut self) {
        while let Ok(began) = self.began.try_recv() {
            if let Some(running) = self.running.get_mut(&began.index) {
                running.began = Some(began);
            }
        }
    }

    /// Keeps only the chain's messages with this key. The others get the outcome `BehindFailure`. An attempt with another
    /// payload blocks the key, and perhaps only a message further back can end that attempt.
    fn keep_key(&mut self, chain: &mut Chain, key: Option<&Key>) {
        let behind = mem::take(&mut chain.messages).into_iter();
        let (of_key, others) = behind.partition(|index| self.messages[*index].key() == key);
        chain.messages = of_key;
        self.continue_chain(
            true,
            Chain {
                messages: others,
                ..*chain
            },
        );
    }

    /// Lets the messages behind one that is done run next. If the chain `stops`, they get the outcome `BehindFailure` instead.
    fn continue_chain(&mut self, stops: bool, behind: Chain) {
        if !stops && behind.next().is_some() {
            self.ready.push_front(behind);
            return;
        }
        for index in behind.messages {
            let behind = Ended::without_run(Outcome::BehindFailure, &self.messages[index]);
            self.keep_end(index, behind);
        }
    }

    /// Returns whether the messages behind this one in its chain must not run.
    fn stops(&self, ended: &Ended, is_fifo_group: bool) -> bool {
        let goes_on = match self.consumer.options.fifo_after_permanent {
            // A different message under the key may succeed.
            _ if !is_fifo_group => ended.is_permanent(),
            FifoAfterPermanent::Continue => {
                ended.is_recorded_failure(self.consumer.mode.records_failures())
            }
            FifoAfterPermanent::Stop => flawed("a stopped group goes on") && ended.is_permanent(),
        };
        !(ended.is_success() || goes_on || flawed("a group does not stop"))
    }

    /// Logs and keeps a message's result.
    fn keep_end(&mut self, index: usize, mut ended: Ended) {
        if ended.is_not_started() {
            self.not_started_lines += 1;
        }
        if !ended.is_not_started() || self.not_started_lines <= NAMED {
            ended.log(&self.messages[index]);
        }
        self.ended[index] = Some(ended);
    }

    /// Gives a result to each message that has none, and names those that ran out of time in one log line. The handlers of
    /// `blocking` messages did not yield, so they could not be cut off.
    fn close(mut self) -> Vec<Ended> {
        self.tasks.abort_all();
        self.note_began();
        // This also gives a result to the rest of each suspect's chain.
        for suspect in mem::take(&mut self.suspects) {
            self.not_started(suspect);
        }
        let mut blocking = Vec::new();
        for index in 0..self.messages.len() {
            if self.ended[index].is_some() {
                continue;
            }
            let message = &self.messages[index];
            let ended = match self.running.remove(&index) {
                Some(running) => {
                    blocking.push(index);
                    running.cut_off(message)
                }
                None => Ended::without_run(Outcome::NotStarted, message),
            };
            self.keep_end(index, ended);
        }
        let ended: Vec<_> = mem::take(&mut self.ended).into_iter().flatten().collect();
        self.log_unfinished(&ended, &blocking);
        ended
    }

    fn log_unfinished(&self, ended: &[Ended], blocking: &[usize]) {
        let places = |is: fn(&Outcome) -> bool| {
            let all = ended.iter().enumerate();
            let places = all.filter(move |(_, ended)| is(&ended.outcome));
            places.map(|(index, _)| index)
        };
        let out_of_time = places(|outcome| matches!(outcome, Outcome::OutOfTime));
        let cut_off: Vec<_> = out_of_time
            .filter(|index| !blocking.contains(index))
            .collect();
        let not_started: Vec<_> =
            places(|outcome| matches!(outcome, Outcome::NotStarted)).collect();
        let unfinished = cut_off.len() + blocking.len() + not_started.len();
        if unfinished > 0 {
            tracing::warn!(
                unfinished,
                cut_off = self.ids(&cut_off),
                blocking = self.ids(blocking),
                not_started = self.ids(&not_started),
                "messages did not finish before the deadline"
            );
        }
    }

    /// Joins the first message ids for a log line.
    fn ids(&self, places: &[usize]) -> String {
        let named = places.iter().take(NAMED);
        let ids: Vec<_> = named
            .map(|index| self.messages[*index].id.as_str())
            .collect();
        ids.join(" ")
    }
}

/// Returns the memory that a message may need while it runs, in bytes: its body, its handler's message, and an output. A body
/// in S3 may have `largest_in_s3` bytes.
fn memory_of(message: &Message, largest_in_s3: usize) -> usize {
    let body = match message.s3_pointer {
        Some(_) => largest_in_s3,
        None => message.body().map_or(0, str::len),
    };
    MEMORY_OF_OUTPUT.saturating_add(body.saturating_mul(5) / 2)
}

fn plan(messages: &[Message]) -> VecDeque<Chain> {
    let inputs = messages.iter().map(|message| ChainInputs {
        key: message.key(),
        fifo_group: message.fifo_group(),
        receive_count: message.receive_count(),
    });
    chains(&inputs.collect::<Vec<_>>())
}

impl Running {
    /// Returns the outcome of a message whose handler did not yield until it was time to respond.
    fn cut_off(self, message: &Message) -> Ended {
        let mut ended = Ended::without_run(Outcome::OutOfTime, message);
        ended.duration = system::elapsed(self.started);
        if let Some(began) = self.began {
            ended.handler = Some(HandlerRun {
                duration: system::elapsed(began.at),
                history: began.history,
            });
            ended.requests = began.meter.readings();
            ended.key = Some(began.key);
        }
        ended
    }
}
