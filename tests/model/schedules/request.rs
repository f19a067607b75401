//! Requests of workers to the table, and its responses.

use std::{
    hash::{Hash, Hasher},
    io,
};

use sqs_once::{
    internal::{Commit, CommitResponse},
    protocol::{
        ClaimRequest, FencingToken, Key, Owner, PreviousRecord, Record, RequestErrorKind,
        Settlement, State, Timestamp,
    },
    store::{ClaimResponse, SettleResponse, StoreError},
};

use crate::schedules::{
    clock::from_now,
    items::{ItemAnswer, ItemRequest},
    table::{left_as, owner},
    world::KEY,
};

#[derive(Clone, Debug)]
pub enum Request {
    Claim(ClaimRequest),
    /// The claim's statement in a group, which is applied over nothing alone.
    Insert(ClaimRequest),
    Settle(FencingToken, Settlement, Timestamp),
    /// The settlement's statement in a group.
    Update(FencingToken, Settlement, Timestamp),
    Commit(Box<Commit>),
    Item(ItemRequest),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Claim(ClaimResponse),
    Settle(SettleResponse),
    Commit(CommitResponse),
    Item(ItemAnswer),
}

impl Request {
    pub fn key(&self) -> &Key {
        match self {
            Self::Claim(request) | Self::Insert(request) => &request.key,
            Self::Settle(fence, ..) | Self::Update(fence, ..) => &fence.key,
            Self::Commit(commit) => commit.record.key(),
            Self::Item(_) => &KEY,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Item(_) if self.reads() => "get",
            Self::Item(_) => "change",
            Self::Claim(_) => "claim",
            Self::Insert(_) => "insert",
            Self::Update(..) => "update",
            Self::Settle(_, settlement, _) => settlement.name(),
            Self::Commit(_) => "commit",
        }
    }

    /// Owner of the request, if the request is the first to reveal it.
    pub fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Claim(request) | Self::Insert(request) => Some(&request.owner),
            Self::Commit(commit) => Some(owner(commit)),
            Self::Settle(..) | Self::Update(..) | Self::Item(_) => None,
        }
    }

    pub fn unavailable(&self, kind: RequestErrorKind) -> StoreError {
        StoreError::Unavailable {
            kind,
            action: self.name(),
            key: self.key().to_string(),
            store: "the table".into(),
            reason: "the line is bad".into(),
            source: Box::new(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    /// Hashes all that distinguishes the request from others of its worker.
    pub fn hash_of_its_worker(&self, hasher: &mut impl Hasher) {
        self.name().hash(hasher);
        match self {
            // The claim's time decides whether a lease has expired.
            Self::Claim(claim) | Self::Insert(claim) => from_now(claim.now).hash(hasher),
            Self::Commit(commit) => {
                let round = commit.token.strip_prefix(owner(commit).as_str());
                (round, left_as(commit), commit.writes.len()).hash(hasher);
            }
            // The settlement's time becomes the end of a lease.
            Self::Settle(fence, settlement, now) | Self::Update(fence, settlement, now) => {
                (settlement.name(), from_now(*now)).hash(hasher);
                fence.first_claimed_at.map(from_now).hash(hasher);
                match settlement {
                    Settlement::Fail { first_open, .. } => first_open.hash(hasher),
                    Settlement::Release { last_end } => last_end.hash(hasher),
                    Settlement::Renew {
                        lease_until,
                        exclusive_attempts,
                        ..
                    } => (from_now(*lease_until), exclusive_attempts).hash(hasher),
                    Settlement::Restore(claimed) => {
                        let before = match &claimed.before {
                            PreviousRecord::Nothing => 0,
                            PreviousRecord::Unknown => 1,
                            PreviousRecord::Record(record) if record.state == State::Failed => 2,
                            PreviousRecord::Record(_) => 3,
                        };
                        let since = claimed.open_since.map(from_now);
                        let count = claimed.exclusive_attempts;
                        (before, since, claimed.last_end, count).hash(hasher);
                    }
                    _ => {}
                }
            }
            Self::Item(request) => request.hash(hasher),
        }
    }

    pub fn reads(&self) -> bool {
        match self {
            Self::Item(request) => request.reads(),
            Self::Claim(_) | Self::Settle(..) | Self::Commit(_) => false,
            Self::Insert(_) | Self::Update(..) => false,
        }
    }

    /// Response of a conflict or of throttling.
    pub fn contended(&self) -> Result<Answer, StoreError> {
        match self {
            Self::Item(_) => Ok(Answer::Item(ItemAnswer::throttled())),
            _ => Err(self.unavailable(RequestErrorKind::Contended)),
        }
    }
}

impl Answer {
    /// The outcome of the request, in a word, and the record returned with it.
    pub fn tells(&self) -> (&'static str, Option<&Record>) {
        match self {
            Self::Claim(ClaimResponse::Applied { replaced }) => ("admitted", replaced.as_ref()),
            Self::Settle(SettleResponse::Applied) | Self::Commit(CommitResponse::Applied) => {
                ("applied", None)
            }
            Self::Claim(ClaimResponse::ConditionFailed(record)) => ("refused", Some(record)),
            Self::Settle(SettleResponse::ConditionFailed(record))
            | Self::Commit(CommitResponse::ConditionFailed(record)) => ("refused", record.as_ref()),
            Self::Commit(CommitResponse::Cancelled(_)) => ("cancelled", None),
            Self::Commit(CommitResponse::Invalid(_)) => ("invalid", None),
            Self::Item(answer) if answer.is_refusal() => ("refused", None),
            Self::Item(answer) if answer.said.is_ok() => ("answered", None),
            Self::Item(_) => ("failed", None),
        }
    }
}
