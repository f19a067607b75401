//! The table: the records, and the one item that effects in DynamoDB change.
//!
//! A transaction changes both or neither. As DynamoDB does, the table remembers a transaction's
//! token for ten minutes, and does not apply it again.

use sqs_once::{
    internal::Refused,
    protocol::{Key, Owner, RequestErrorKind},
    store::{StoreError, Swapped},
};

use crate::schedules::{flaw::Flaw, records::Records, refusal::refused, request::Commit};

/// Returns at once: `network.rs` adds the delays.
#[derive(Debug)]
pub struct Table {
    pub records: Records,
    flaw: Option<Flaw>,
    /// The item: the workers whose transactions have changed it.
    pub effects: Vec<usize>,
    /// The applied transactions.
    made: Vec<Made>,
}

#[derive(Debug)]
struct Made {
    token: String,
    owner: Owner,
}

/// Circumstances of a request beside the current record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// The condition of its writes is not met.
    pub sold_out: bool,
    /// It was made more than ten minutes ago.
    pub forgotten: bool,
}

impl Table {
    pub fn new(flaw: Option<Flaw>) -> Self {
        Self {
            records: Records { record: None, flaw },
            flaw,
            effects: Vec::new(),
            made: Vec::new(),
        }
    }

    /// True if a transaction with the same token was applied.
    pub fn knows(&self, commit: &Commit) -> bool {
        let token = self.token(commit);
        self.made.iter().any(|made| made.token == token)
    }

    /// Tokens of all applied transactions, oldest first: the worker, and the number of its
    /// transaction.
    pub fn made(&self) -> impl Iterator<Item = (&Owner, &str)> {
        self.made.iter().map(|made| {
            let round = made.token.strip_prefix(made.owner.as_str());
            (&made.owner, round.unwrap_or(&made.token))
        })
    }

    fn token(&self, commit: &Commit) -> String {
        match self.flaw {
            Some(Flaw::TokenOfTheKey) => commit.record.key.to_string(),
            _ => commit.token(),
        }
    }

    pub fn commit(
        &mut self,
        worker: usize,
        commit: &Commit,
        finds: Circumstances,
    ) -> Result<Swapped<Refused>, StoreError> {
        let token = self.token(commit);
        let owner = &commit.record.to.stamp.owner;
        let made = self.made.iter().find(|made| made.token == token);
        if let Some(made) = made.filter(|_| !finds.forgotten) {
            // Its parameters differ, at least in the owner.
            return if made.owner == *owner {
                Ok(Swapped::Applied)
            } else {
                Err(mismatch(&commit.record.key))
            };
        }
        if finds.sold_out && commit.record.admits(self.records.record.as_ref()) {
            return Ok(refused(&commit.record));
        }
        let answer = self.records.swap(&commit.record);
        let applied = answer == Swapped::Applied;
        if applied || self.flaw == Some(Flaw::WritesGoFirst) {
            self.effects.extend((0..commit.writes).map(|_| worker));
        }
        if applied {
            let owner = owner.clone();
            self.made.push(Made { token, owner });
        }
        Ok(answer)
    }
}

fn mismatch(key: &Key) -> StoreError {
    StoreError::Unavailable {
        kind: RequestErrorKind::Invalid,
        action: "commit",
        key: key.to_string(),
        store: "the table".into(),
        reason: "IdempotentParameterMismatchException".into(),
        source: "the token was another transaction's".into(),
    }
}
