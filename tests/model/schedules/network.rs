//! The network between a worker and the table. Requests and responses get lost, are sent twice, and
//! arrive after the sender has given up.

use sqs_once::store::StoreError;

use crate::schedules::{
    request::{Answer, Request},
    table::Circumstances,
    world::World,
};

/// Fate of one call: its effect on the table, and the response that the caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Applied; answered.
    Answered,
    /// Never applied; an error, such as a throttle or a refused connection.
    RequestLost,
    /// Applied; an error.
    AnswerLost,
    /// Applied, the response lost, applied again by the SDK's retry, whose response arrives.
    SentTwice,
    /// Applied at a later step, when its caller may be gone; then answered.
    Slow,
    /// Never applied; no response, until the caller gives up.
    Silence,
    /// Applied; no response, until the caller gives up.
    SilentAnswer,
    /// An error at once; applied at a later step.
    GivenUpArrivesLater,
    /// Applied and answered; the first try, taken for lost, is applied at a later step.
    CopyArrivesLater,
    /// Conflict with a transaction, or throttling.
    Contended,
    /// The user's own condition is not met just now.
    Cancelled,
    /// The same; the first try, taken for lost, arrives later, when the condition is met.
    CancelledCopyArrivesLater,
}

use Fate::*;

const OF_A_WRITE: [Fate; 12] = [
    Answered,
    RequestLost,
    AnswerLost,
    SentTwice,
    Slow,
    Silence,
    SilentAnswer,
    GivenUpArrivesLater,
    CopyArrivesLater,
    Contended,
    // If the user's write has its own condition.
    Cancelled,
    CancelledCopyArrivesLater,
];

const OF_A_GET: [Fate; 4] = [Answered, RequestLost, Silence, Contended];

impl Fate {
    /// True if the table answers the caller at once.
    fn answers(self) -> bool {
        let unanswered = [RequestLost, AnswerLost, Slow, Silence, SilentAnswer];
        !unanswered.contains(&self) && !matches!(self, GivenUpArrivesLater | Contended)
    }
}

/// A request in flight. Its worker may have crashed or given up meanwhile.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub worker: usize,
    /// The worker's call that waits for the response, if any.
    pub call: Option<usize>,
    pub request: Request,
}

impl World {
    /// Chooses the fate of a call and applies its immediate effect to the table.
    pub fn meets_its_fate(
        &mut self,
        worker: usize,
        request: &Request,
    ) -> (Fate, usize, Option<Result<Answer, StoreError>>) {
        if let Some(owner) = request.owner() {
            self.workers[worker].owner = Some(owner.clone());
        }
        let claimed_at = match request {
            Request::Swap(swap) if swap.to.is_claim() => Some(swap.to.updated_at),
            _ => None,
        };
        if let Some(at) = claimed_at {
            self.promises.claims(worker, at, self.clocks_differ);
        }
        let fates = match request {
            Request::Swap(_) => &OF_A_WRITE[..10],
            Request::Get => &OF_A_GET,
            Request::Commit(_) => &OF_A_WRITE,
        };
        let fate = fates[self.choose(worker, fates.len())];
        if matches!(request, Request::Commit(_)) && !fate.answers() {
            self.promises.unanswered(worker);
        }
        let call = self.workers[worker].calls;
        self.workers[worker].calls += 1;
        self.workers[worker].pausing = false;
        let name = request.name();
        let mut later = |call| {
            self.in_flight.push(InFlight {
                worker,
                call,
                request: request.clone(),
            });
        };
        match fate {
            Slow => later(Some(call)),
            GivenUpArrivesLater | CopyArrivesLater | CancelledCopyArrivesLater => later(None),
            _ => {}
        }
        let times = match fate {
            RequestLost | Slow | Silence | GivenUpArrivesLater | Contended => 0,
            SentTwice => 2,
            _ => 1,
        };
        if times == 0 {
            self.log(worker, || format!("sends {name}: {fate:?}"));
        }
        let finds = Circumstances {
            sold_out: matches!(fate, Cancelled | CancelledCopyArrivesLater),
            forgotten: false,
        };
        let mut answer = None;
        for _ in 0..times {
            answer = Some(self.apply(worker, request, finds, &format!("{fate:?}")));
        }
        (fate, call, answer)
    }

    /// A request in flight reaches the table, and its response reaches a waiting caller.
    pub fn arrive(&mut self, index: usize) {
        let InFlight {
            worker,
            call,
            request,
        } = self.in_flight.remove(index);
        let answer = self.apply(worker, &request, Circumstances::default(), "arrives now");
        let worker = &mut self.workers[worker];
        // A call that its worker gave up has no receiver.
        if let Some(call) = call.filter(|call| call + 1 == worker.calls) {
            worker.answer = Some((call, answer));
            worker.waiting = false;
        }
    }

    /// The response that this call waits for, if it has come.
    pub fn answer_to(&mut self, worker: usize, call: usize) -> Option<Result<Answer, StoreError>> {
        let worker = &mut self.workers[worker];
        match worker.answer.take() {
            Some((answered, answer)) if answered == call => Some(answer),
            _ => {
                worker.waiting = true;
                None
            }
        }
    }

    /// Advises a worker to retry, after a pause.
    pub fn contended(&mut self, worker: usize) {
        // The pause is random, and must be the same when the schedule is repeated.
        fastrand::seed(0);
        self.workers[worker].collisions += 1;
        self.workers[worker].pausing = true;
    }
}
