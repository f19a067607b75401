//! What lies between a worker and the table: requests and answers get lost, are sent twice, and
//! arrive when nobody waits for them any more.

use std::{future::poll_fn, io, task::Poll};

use sqs_once::{
    protocol::{ClaimRequest, Fence, Key, Settlement, Timestamp},
    store::{ClaimAnswer, SettleAnswer, Store, StoreError},
};

use crate::world::{Shared, World, lock};

/// What becomes of one call: what reaches the table, and what the caller sees of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Applied; answered.
    Answered,
    /// Never applied; an error. As a throttle, or a refused connection.
    RequestLost,
    /// Applied; an error.
    AnswerLost,
    /// Applied, its answer lost, applied again by the SDK's retry; that is answered.
    SentTwice,
    /// Applied at a later step, when its caller may be gone; answered then.
    Slow,
    /// Never applied; nothing, until the caller gives up.
    Silence,
    /// Applied; nothing, until the caller gives up.
    SilentAnswer,
    /// An error at once; applied at a later step.
    GivenUpArrivesLater,
    /// Applied and answered; the first try, taken for lost, is applied at a later step.
    CopyArrivesLater,
}

const FATES: [Fate; 9] = [
    Fate::Answered,
    Fate::RequestLost,
    Fate::AnswerLost,
    Fate::SentTwice,
    Fate::Slow,
    Fate::Silence,
    Fate::SilentAnswer,
    Fate::GivenUpArrivesLater,
    Fate::CopyArrivesLater,
];

/// One conditional write.
#[derive(Clone, Debug)]
pub enum Request {
    Claim(ClaimRequest),
    Settle(Fence, Settlement, Timestamp),
}

impl Request {
    pub fn key(&self) -> &Key {
        match self {
            Self::Claim(request) => &request.key,
            Self::Settle(fence, ..) => &fence.key,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Claim(_) => "claim",
            Self::Settle(_, settlement, _) => settlement.name(),
        }
    }

    fn unavailable(&self, reason: &str) -> StoreError {
        StoreError::Unavailable {
            action: self.name(),
            key: self.key().to_string(),
            store: "the table".into(),
            reason: reason.into(),
            source: Box::new(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Claim(ClaimAnswer),
    Settle(SettleAnswer),
}

/// A request under way. Its worker may have crashed or given up meanwhile.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub worker: usize,
    /// Which of the worker's calls waits for the answer, if one does.
    pub call: Option<usize>,
    pub request: Request,
}

/// One worker's line to the table: the [`Store`] that its `Once` is given.
#[derive(Clone, Debug)]
pub struct Line {
    pub world: Shared,
    pub worker: usize,
}

impl Line {
    /// Each call is an await of its worker, whatever its fate: there it can crash, be frozen, or
    /// see others go first.
    async fn call(&self, request: Request) -> Result<Answer, StoreError> {
        let (worker, world) = (self.worker, &self.world);
        let (fate, call, answer) = lock(world).meets_its_fate(worker, &request);
        match fate {
            Fate::Slow | Fate::Silence | Fate::SilentAnswer => {
                poll_fn(|_| match lock(world).answer_to(worker, call) {
                    Some(answer) => Poll::Ready(answer),
                    None => Poll::Pending,
                })
                .await
            }
            Fate::RequestLost | Fate::AnswerLost | Fate::GivenUpArrivesLater => {
                pause().await;
                Err(request.unavailable("the line is bad"))
            }
            Fate::Answered | Fate::SentTwice | Fate::CopyArrivesLater => {
                pause().await;
                answer.expect("applied, so answered")
            }
        }
    }
}

impl World {
    /// Chooses the fate of a call and does what it says to the table now.
    fn meets_its_fate(
        &mut self,
        worker: usize,
        request: &Request,
    ) -> (Fate, usize, Option<Result<Answer, StoreError>>) {
        if let Request::Claim(claim) = request {
            self.workers[worker].owner = Some(claim.owner.clone());
            self.promises.claims(worker);
        }
        let fate = FATES[self.choose(worker, FATES.len())];
        let call = self.workers[worker].calls;
        self.workers[worker].calls += 1;
        let name = request.name();
        let mut later = |call| {
            self.in_flight.push(InFlight {
                worker,
                call,
                request: request.clone(),
            });
        };
        match fate {
            Fate::Slow => later(Some(call)),
            Fate::GivenUpArrivesLater | Fate::CopyArrivesLater => later(None),
            _ => {}
        }
        let times = match fate {
            Fate::Answered | Fate::AnswerLost | Fate::SilentAnswer | Fate::CopyArrivesLater => 1,
            Fate::SentTwice => 2,
            _ => 0,
        };
        if times == 0 {
            self.log(worker, || format!("sends {name}: {fate:?}"));
        }
        let mut answer = None;
        for _ in 0..times {
            answer = Some(self.apply(worker, request, &format!("{fate:?}")));
        }
        (fate, call, answer)
    }

    /// A request that was under way reaches the table, and its answer whoever still waits.
    pub fn arrive(&mut self, index: usize) {
        let InFlight {
            worker,
            call,
            request,
        } = self.in_flight.remove(index);
        let answer = self.apply(worker, &request, "arrives now");
        if let Some(call) = call {
            let worker = &mut self.workers[worker];
            worker.answer = Some((call, answer));
            worker.waiting = false;
        }
    }

    fn answer_to(&mut self, worker: usize, call: usize) -> Option<Result<Answer, StoreError>> {
        let worker = &mut self.workers[worker];
        match worker.answer.take() {
            Some((answered, answer)) if answered == call => Some(answer),
            _ => {
                worker.waiting = true;
                None
            }
        }
    }
}

impl Store for Line {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        match self.call(Request::Claim(request.clone())).await? {
            Answer::Claim(answer) => Ok(answer),
            Answer::Settle(_) => unreachable!("a claim is answered as a claim"),
        }
    }

    async fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<SettleAnswer, StoreError> {
        let request = Request::Settle(fence.clone(), settlement.clone(), now);
        match self.call(request).await? {
            Answer::Settle(answer) => Ok(answer),
            Answer::Claim(_) => unreachable!("a settlement is answered as a settlement"),
        }
    }
}

/// An await at which others may go first.
pub async fn pause() {
    let mut passed = false;
    poll_fn(|_| {
        if std::mem::replace(&mut passed, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
