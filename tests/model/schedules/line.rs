//! One worker's line to the table: the store that its `Once` is given.

use std::{future::poll_fn, task::Poll};

use sqs_once::{
    internal::{Commit, CommitResponse, TransactionalStore},
    protocol::{ClaimRequest, FencingToken, RequestErrorKind, Settlement, Timestamp},
    store::{ClaimResponse, RequestContext, SettleResponse, Store, StoreError},
};

use crate::schedules::{
    network::Fate,
    request::{Answer, Request},
    world::{Shared, lock},
};

#[derive(Clone, Debug)]
pub struct Line {
    pub world: Shared,
    pub worker: usize,
}

impl Line {
    /// Each call is an await of its worker, with any fate. There the worker can crash, be
    /// frozen, or let others go first.
    pub async fn call(&self, request: Request) -> Result<Answer, StoreError> {
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
                if !request.reads() {
                    let mut world = lock(world);
                    world.contended(worker);
                    // A worker counts these, and those of contention.
                    world.workers[worker].receives_answer("none");
                }
                Err(request.unavailable(RequestErrorKind::Unanswered))
            }
            Fate::Contended => {
                pause().await;
                let mut world = lock(world);
                world.contended(worker);
                world.workers[worker].receives_answer("contended");
                drop(world);
                request.contended()
            }
            Fate::Answered
            | Fate::SentTwice
            | Fate::CopyArrivesLater
            | Fate::Cancelled
            | Fate::CancelledCopyArrivesLater => {
                pause().await;
                answer.expect("applied, so answered")
            }
        }
    }
}

impl Line {
    /// A claim or settlement in a group. `None`: the ordinary request follows.
    async fn in_group(&self, request: Request) -> Result<Option<Answer>, StoreError> {
        if !lock(&self.world).groups {
            return Ok(None);
        }
        Ok(match self.call(request).await? {
            // An `INSERT` never returns the item. A refused `UPDATE` does, if there is one.
            Answer::Claim(ClaimResponse::ConditionFailed(_))
            | Answer::Settle(SettleResponse::ConditionFailed(None)) => None,
            answer => Some(answer),
        })
    }
}

const ANSWERED_AS_ASKED: &str = "a request is answered as what it is";

impl Store for Line {
    async fn claim(
        &self,
        request: &ClaimRequest,
        _: &RequestContext,
    ) -> Result<ClaimResponse, StoreError> {
        let answer = match self.in_group(Request::Insert(request.clone())).await? {
            Some(answer) => answer,
            None => self.call(Request::Claim(request.clone())).await?,
        };
        match answer {
            Answer::Claim(answer) => Ok(answer),
            _ => unreachable!("{ANSWERED_AS_ASKED}"),
        }
    }

    async fn settle(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
        _: &RequestContext,
    ) -> Result<SettleResponse, StoreError> {
        let (fence, of_a_group) = (fence.clone(), settlement.clone());
        let grouped = matches!(
            settlement,
            Settlement::Complete { .. } | Settlement::Fail { .. }
        );
        let first = match grouped {
            true => {
                let update = Request::Update(fence.clone(), of_a_group, now);
                self.in_group(update).await?
            }
            false => None,
        };
        let answer = match first {
            Some(answer) => answer,
            None => {
                self.call(Request::Settle(fence, settlement.clone(), now))
                    .await?
            }
        };
        match answer {
            Answer::Settle(answer) => Ok(answer),
            _ => unreachable!("{ANSWERED_AS_ASKED}"),
        }
    }
}

impl TransactionalStore for Line {
    async fn commit(
        &self,
        commit: &Commit,
        _: &RequestContext,
    ) -> Result<CommitResponse, StoreError> {
        match self.call(Request::Commit(Box::new(commit.clone()))).await? {
            Answer::Commit(answer) => Ok(answer),
            _ => unreachable!("{ANSWERED_AS_ASKED}"),
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
