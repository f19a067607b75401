//! One worker's line to the table: the store that its `Once` is given.

use std::{future::poll_fn, task::Poll};

use sqs_once::{
    internal::{Refused, Writes},
    protocol::{Expect, Key, Record, RequestErrorKind, Swap},
    store::{RequestContext, Store, StoreError, Swapped, With as _},
};

use crate::schedules::{
    network::Fate,
    request::{Answer, Commit, Request},
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
                let mut world = lock(world);
                world.contended(worker);
                // A worker counts these, and those of contention.
                world.workers[worker].receives_answer("none");
                drop(world);
                Err(request.unavailable(RequestErrorKind::Unanswered))
            }
            Fate::Contended => {
                pause().await;
                let mut world = lock(world);
                world.contended(worker);
                world.workers[worker].receives_answer("contended");
                drop(world);
                Err(request.unavailable(RequestErrorKind::Contended))
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

const ANSWERED_AS_ASKED: &str = "a request is answered as what it is";

impl Store for Line {
    type With = Writes;

    async fn get(&self, _: &Key, _: &RequestContext) -> Result<Option<Record>, StoreError> {
        match self.call(Request::Get).await? {
            Answer::Got(found) => Ok(found),
            _ => unreachable!("{ANSWERED_AS_ASKED}"),
        }
    }

    async fn swap(
        &self,
        swap: &Swap,
        with: &Writes,
        context: &RequestContext,
    ) -> Result<Swapped<Refused>, StoreError> {
        let groups = lock(&self.world).groups;
        let request = if with.is_empty() {
            Request::Swap(Box::new(swap.clone()))
        } else {
            Request::Commit(Box::new(Commit {
                record: swap.clone(),
                writes: with.count(),
            }))
        };
        match self.call(request).await? {
            // A refused `INSERT` never returns the item.
            Answer::Swapped(Swapped::Found(_))
                if groups && with.is_empty() && swap.expect == Expect::Absent =>
            {
                Ok(Swapped::Found(self.get(&swap.key, context).await?))
            }
            Answer::Swapped(answer) => Ok(answer),
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
