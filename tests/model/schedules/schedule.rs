//! One execution: workers start, take steps, crash and end; messages return until they are settled;
//! time passes.
//!
//! Without deviations a message is delivered, and its worker takes step after step to its end. Then
//! the next message is delivered, until all are settled. A worker that did not settle its message
//! sees it delivered again, after every lease. That is always the first option. So an execution
//! without further deviations ends, or breaks the promise to end.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::Range,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use sqs_once::{DeliveryMetadata, Outcome, internal::Delivery, protocol::Timestamp};

use crate::schedules::{
    chooser::{Chooser, Visited},
    clock::{self, Clocks, from_now, wall},
    handler::{BUDGET, MARGIN, RESERVE},
    records::failed_messages,
    scenario::{Freeze, Scenario},
    timeline::Timeline,
    world::{Shared, Worker, World, lock},
};

const MILLISECOND: Duration = Duration::from_millis(1);

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("a short span")
}

/// Maximum number of workers at a time; any number may follow.
const AT_WORK: usize = 3;

/// Many times the steps of any schedule within the bounds.
const TOO_MANY_STEPS: usize = 100;

/// One possible next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A worker is polled once: to its next await.
    Poll(usize),
    /// A request in flight arrives.
    Arrive(usize),
    /// A charge on its way arrives at the gateway.
    ChargeArrives(usize),
    /// A message is delivered, to a worker that takes its first step.
    Deliver(usize),
    /// The same, after every lease has expired: conflicts wait for that.
    DeliverLater(usize),
    /// A worker's future is dropped.
    Crash(usize),
    /// All workers are frozen until the lease in the record has expired.
    LeaseEnds,
    /// An operator ends the lease in the record.
    Release,
    /// An operator, or DynamoDB after the retention, deletes the record: once.
    Delete,
    /// Time passes until the next worker is cut off.
    TimeIsUp,
    /// All messages are settled, and nothing is in flight.
    End,
}

/// How an execution ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// All promises kept, all messages settled.
    Well,
    /// In a state that was fully explored before, or when no shorter schedule was possible.
    Visited,
    /// With a promise broken, after so many steps.
    Broken(String, usize),
}

type Work = Pin<Box<dyn Future<Output = Outcome>>>;

struct Execution<'a> {
    scenario: &'a Scenario,
    clocks: &'a Clocks,
    world: Shared,
    work: Vec<Option<Work>>,
    /// The worker that took the last step, and continues by default.
    current: Option<usize>,
    settled: Vec<bool>,
    deliveries: Vec<u32>,
}

fn message_id(message: usize) -> String {
    format!("m-{message}")
}

/// Runs one schedule.
pub fn execute(
    scenario: &Scenario,
    clocks: &Clocks,
    seen: &mut Visited,
    chooser: Chooser,
    timeline: Timeline,
) -> (Ended, Chooser, Timeline) {
    let _guard = clocks.enter();
    let world = World::new(chooser, scenario, timeline);
    let mut execution = Execution {
        scenario,
        clocks,
        world: Arc::new(Mutex::new(world)),
        work: Vec::new(),
        current: None,
        settled: vec![false; scenario.payloads.len()],
        deliveries: vec![0; scenario.payloads.len()],
    };
    let ended = execution.run(seen);
    execution.work.clear();
    let mut world = lock(&execution.world);
    let chooser = std::mem::take(&mut world.chooser);
    (ended, chooser, std::mem::take(&mut world.timeline))
}

impl Execution<'_> {
    fn run(&mut self, seen: &mut Visited) -> Ended {
        for steps in 1..=TOO_MANY_STEPS {
            if seen.no_shorter(steps) || self.seen_before(seen, steps) {
                return Ended::Visited;
            }
            let (free, deviations) = self.options();
            let of = free.len() + deviations.len();
            let taken = lock(&self.world).chooser.choose(free.len(), of);
            let step = *free.iter().chain(&deviations).nth(taken).unwrap();
            if step == Step::End {
                return Ended::Well;
            }
            if let Some(outcome) = self.take(step) {
                seen.outcome(outcome);
            }
            if let Some(promise) = lock(&self.world).promises.broken() {
                return Ended::Broken(promise.into(), steps);
            }
        }
        let how = format!("ends: not all messages are settled after {TOO_MANY_STEPS} steps");
        Ended::Broken(how, TOO_MANY_STEPS)
    }

    /// Possible next events: in the ordinary course, and as deviations.
    fn options(&self) -> (Vec<Step>, Vec<Step>) {
        let world = lock(&self.world);
        let (mut free, mut deviations) = (Vec::new(), Vec::new());
        let live = || (0..world.workers.len()).filter(|w| world.workers[*w].live);
        let able = || live().filter(|w| !world.workers[*w].waiting);
        let current = self.current.filter(|current| able().any(|w| w == *current));

        // The running worker continues. To let another go first is a deviation.
        free.extend(current.map(Step::Poll));
        let others = able().filter(|w| Some(*w) != current).map(Step::Poll);
        match current {
            Some(_) => deviations.extend(others),
            None => free.extend(others),
        }
        let unsettled = self.next_unsettled(&world);
        if free.is_empty() {
            free.extend(if live().next().is_some() {
                Some(Step::TimeIsUp)
            } else if let Some(message) = unsettled {
                Some(Step::DeliverLater(message))
            } else if world.in_flight.is_empty() && world.on_their_way.is_empty() {
                Some(Step::End)
            } else {
                None
            });
        }
        free.extend((0..world.in_flight.len()).map(Step::Arrive));
        free.extend((0..world.on_their_way.len()).map(Step::ChargeArrives));

        // A crash of another worker equals a crash right after that worker's own last step.
        let last = self.current.filter(|last| live().any(|w| w == *last));
        deviations.extend(last.map(Step::Crash));
        if live().count() < AT_WORK {
            deviations.extend(self.deliverable().map(Step::Deliver));
        }
        if world.no_takeover_until().is_some() {
            deviations.push(Step::LeaseEnds);
            if self.scenario.operated {
                deviations.push(Step::Release);
            }
        }
        if self.scenario.deleted && !world.deleted && world.record.is_some() {
            deviations.push(Step::Delete);
        }
        if !free.contains(&Step::TimeIsUp) && self.next_cut(&world).is_some() {
            deviations.push(Step::TimeIsUp);
        }
        (free, deviations)
    }

    /// Messages that the queue may deliver. Those of a FIFO group wait for the ones before them.
    fn deliverable(&self) -> Range<usize> {
        let unsettled = self.settled.iter().position(|settled| !settled);
        let last = unsettled
            .filter(|_| self.scenario.fifo)
            .map(|next| next + 1);
        0..last.unwrap_or(self.settled.len())
    }

    /// The message that comes next in the ordinary course. Where a conflict may wait for another message, they take turns.
    fn next_unsettled(&self, world: &World) -> Option<usize> {
        let mut unsettled = (0..self.settled.len()).filter(|message| !self.settled[*message]);
        let first = unsettled.next()?;
        let last = world.workers.last().map(|worker| worker.message);
        if !self.scenario.returns || self.scenario.fifo || last != Some(first) {
            return Some(first);
        }
        unsettled.next().or(Some(first))
    }

    /// Takes a step. Returns the outcome if it was a worker's last step.
    fn take(&mut self, step: Step) -> Option<&'static str> {
        match step {
            Step::Poll(worker) => return self.poll(worker),
            Step::Deliver(message) => return self.deliver(message),
            Step::DeliverLater(message) => {
                self.lease_ends();
                return self.deliver(message);
            }
            Step::Arrive(index) => lock(&self.world).arrive(index),
            Step::ChargeArrives(index) => lock(&self.world).charge_on_its_way_arrives(index),
            Step::Crash(worker) => {
                self.work[worker] = None;
                let mut world = lock(&self.world);
                world.workers[worker].live = false;
                world.promises.gone(worker);
                world.log(worker, || "crashes".into());
            }
            Step::LeaseEnds => self.lease_ends(),
            Step::Release => lock(&self.world).release(),
            Step::Delete => lock(&self.world).delete(),
            Step::TimeIsUp => {
                let cut = self.next_cut(&lock(&self.world)).expect("it was an option");
                self.pass(cut);
                lock(&self.world).note("a worker's time is up");
            }
            Step::End => {}
        }
        None
    }

    fn deliver(&mut self, message: usize) -> Option<&'static str> {
        self.deliveries[message] += 1;
        let worker = self.work.len();
        let delivery = self.delivery(message);
        let payload = self.scenario.payloads[message];
        lock(&self.world).promises.delivered(payload);
        lock(&self.world).workers.push(Worker {
            message,
            live: true,
            started: self.clocks.elapsed(),
            ..Worker::default()
        });
        let work = (self.scenario.work)(Arc::clone(&self.world), worker, delivery);
        self.work.push(Some(work));
        self.poll(worker)
    }

    fn delivery(&self, message: usize) -> Delivery {
        let mut world = lock(&self.world);
        if world.messages[message].sent.is_none() {
            drop(world);
            // A message that is sent later has a later time.
            self.pass(MILLISECOND);
            world = lock(&self.world);
            world.messages[message].sent = Some(wall());
            // By a clock that is ahead, a failure is later than it is.
            let failed = world
                .record
                .as_ref()
                .map(|record| failed_messages(record, &world.messages));
            world.promises.fail(failed.unwrap_or_default());
        }
        Delivery::from(DeliveryMetadata {
            message_id: message_id(message),
            receive_count: self.deliveries[message],
            sent_at: world.messages[message].sent,
            ..DeliveryMetadata::default()
        })
    }

    fn poll(&mut self, worker: usize) -> Option<&'static str> {
        self.current = Some(worker);
        let ahead = self.scenario.clocks_differ && worker % 2 == 1;
        clock::set_ahead(if ahead { MARGIN } else { Duration::ZERO });
        let pause = lock(&self.world).workers[worker].pause();
        if let Some(pause) = pause {
            self.pass(pause);
        }
        let elapsed = self.clocks.elapsed();
        {
            let state = &mut lock(&self.world).workers[worker];
            state.waiting = false;
            state.receives_answer(elapsed - state.started);
        }
        let work = self.work[worker].as_mut().expect("a live worker has work");
        let waker = Waker::noop();
        let Poll::Ready(outcome) = work.as_mut().poll(&mut Context::from_waker(waker)) else {
            return None;
        };
        self.work[worker] = None;
        let mut world = lock(&self.world);
        world.workers[worker].live = false;
        let record = world.record.clone();
        let message = message_id(world.workers[worker].message);
        (world.promises).ended(worker, &message, &outcome, record.as_ref());
        world.log(worker, || format!("ends: {}", outcome.name()));
        // An unrecorded failure returns, as every other message does.
        let failed = matches!(
            outcome,
            Outcome::PermanentFailure(_) | Outcome::FailedBefore(_) | Outcome::KeyReused
        );
        let message = world.workers[worker].message;
        let was_settled = self.settled[message] && !self.scenario.returns;
        self.settled[message] = was_settled || outcome.is_success() || failed;
        Some(outcome.name())
    }

    fn lease_ends(&self) {
        let Some(until) = lock(&self.world).no_takeover_until() else {
            return;
        };
        let mut over = until + MILLISECOND;
        // First for the workers whose clock is ahead.
        let early = Timestamp::from_millis(over.as_millis() - millis(MARGIN));
        if self.scenario.clocks_differ && wall() < early {
            over = early;
        }
        match self.scenario.freeze {
            Freeze::Timed => self.pass(wall().until(over)),
            Freeze::Untimed => {
                lock(&self.world).charges_arrive_before(over);
                self.clocks.freeze_until(over);
            }
        }
        lock(&self.world).note("the lease is over");
    }

    /// Time passes for all workers, and waiting workers may see their time run out.
    fn pass(&self, span: Duration) {
        lock(&self.world).charges_arrive_before(wall() + span);
        self.clocks.pass(span);
        for worker in &mut lock(&self.world).workers {
            worker.waiting = false;
        }
    }

    /// Time until the next worker is cut off, in its handler or its last write.
    fn next_cut(&self, world: &World) -> Option<Duration> {
        let now = self.clocks.elapsed();
        let cuts = world.workers.iter().filter(|worker| worker.live);
        cuts.flat_map(|worker| [RESERVE, RESERVE / 4].map(|left| worker.started + BUDGET - left))
            // Tokio rounds timers up.
            .map(|cut| cut + MILLISECOND)
            .filter(|cut| *cut > now)
            .min()
            .map(|cut| cut - now)
    }

    /// True if this state of the whole world was visited, and all its successors explored.
    ///
    /// Times are relative to now, since nothing looks further back. The hash leaves out the
    /// record's `expires_at`, a day away, and its time of writing, which has no influence. It
    /// includes the number of deliveries, so a world that goes in circles is not taken for one that
    /// ends.
    fn seen_before(&self, seen: &mut Visited, steps: usize) -> bool {
        let world = lock(&self.world);
        if !world.chooser.past_given_choices() {
            return false;
        }
        let mut state = DefaultHasher::new();
        for (index, worker) in world.workers.iter().enumerate() {
            if worker.live {
                let age = self.clocks.elapsed() - worker.started;
                let lease = from_now(world.promises.lease(index));
                (index, worker.message, worker.waiting, worker.received).hash(&mut state);
                (age, lease).hash(&mut state);
                // A late claim was applied, or found its own first copy.
                let answer = worker.answer.as_ref();
                let answer = answer.map(|(_, answer)| world.hash_of_answer(answer));
                answer.hash(&mut state);
            }
        }
        world.hash_table(&mut state);
        world.promises.hash(&mut state);
        (self.current, &self.settled, world.workers.len()).hash(&mut state);
        if self.scenario.returns {
            let last = world.workers.last().map(|worker| worker.message);
            last.hash(&mut state);
        }
        // A later receive begins with a read.
        let received = self.deliveries.iter().map(|receives| *receives > 0);
        received.for_each(|received| received.hash(&mut state));
        seen.way_there(steps).hash(&mut state);
        seen.before(state.finish(), world.chooser.spent())
    }
}
