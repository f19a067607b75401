//! Requests of workers to the table, and its responses.

use std::{
    hash::{Hash, Hasher},
    io,
};

use sqs_once::{
    internal::{Refused, token},
    protocol::{Key, Owner, Record, RequestErrorKind, Swap},
    store::{StoreError, Swapped},
};

use crate::schedules::{records, world::KEY};

/// A swap with writes.
#[derive(Clone, Debug)]
pub struct Commit {
    pub record: Swap,
    /// Their number.
    pub writes: usize,
}

impl Commit {
    /// Its `ClientRequestToken`.
    pub fn token(&self) -> String {
        token(&self.record)
    }
}

#[derive(Clone, Debug)]
pub enum Request {
    Commit(Box<Commit>),
    Get,
    Swap(Box<Swap>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Got(Option<Record>),
    Swapped(Swapped<Refused>),
}

impl Request {
    pub fn key(&self) -> &Key {
        match self {
            Self::Commit(commit) => &commit.record.key,
            Self::Get => &KEY,
            Self::Swap(swap) => &swap.key,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Commit(_) => "commit",
            Self::Get => "read",
            Self::Swap(swap) => swap.to.action(),
        }
    }

    /// Owner of the request, if the request is the first to reveal it.
    pub fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Commit(commit) => Some(&commit.record.to.stamp.owner),
            Self::Swap(swap) => Some(&swap.to.stamp.owner),
            Self::Get => None,
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
    pub fn hash_of_its_worker(
        &self,
        worker_of: impl Fn(&Owner) -> Option<usize>,
        hasher: &mut impl Hasher,
    ) {
        self.name().hash(hasher);
        match self {
            Self::Commit(commit) => {
                commit.writes.hash(hasher);
                records::hash_swap(&commit.record, worker_of, hasher);
            }
            Self::Get => {}
            Self::Swap(swap) => records::hash_swap(swap, worker_of, hasher),
        }
    }
}

impl Answer {
    /// The outcome of the request, in a word, and the record returned with it.
    pub fn tells(&self) -> (&'static str, Option<&Record>) {
        match self {
            Self::Got(found) => ("answered", found.as_ref()),
            Self::Swapped(Swapped::Applied) => ("applied", None),
            Self::Swapped(Swapped::Found(found)) => ("refused", found.as_ref()),
            Self::Swapped(Swapped::Refused(Refused::Conditions(_))) => ("cancelled", None),
            Self::Swapped(Swapped::Refused(Refused::Invalid(_))) => ("invalid", None),
        }
    }
}
