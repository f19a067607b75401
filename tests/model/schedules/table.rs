//! The table: the records, and the one item that effects in DynamoDB change.
//!
//! A transaction changes both or neither. As DynamoDB does, the table remembers a transaction's
//! token for ten minutes, and does not apply it again.

use sqs_once::{
    internal::{Commit, CommitResponse, RecordWrite},
    protocol::{
        Key, Owner, Record, RequestErrorKind,
        decision::{may_claim, may_settle},
    },
    store::{ClaimResponse, SettleResponse, StoreError},
};

use crate::schedules::{flaw::Flaw, records::Records, refusal::refused};

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
            records: Records::new(flaw),
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
            Some(Flaw::TokenOfTheKey) => commit.record.key().to_string(),
            _ => commit.token.clone(),
        }
    }

    pub fn commit(
        &mut self,
        worker: usize,
        commit: &Commit,
        finds: Circumstances,
    ) -> Result<CommitResponse, StoreError> {
        let (token, owner) = (self.token(commit), owner(commit));
        let made = self.made.iter().find(|made| made.token == token);
        if let Some(made) = made.filter(|_| !finds.forgotten) {
            // Its parameters differ, at least in the owner.
            return if made.owner == *owner {
                Ok(CommitResponse::Applied)
            } else {
                Err(mismatch(commit.record.key()))
            };
        }
        let record = self.records.record(commit.record.key());
        if finds.sold_out && admits(record.as_ref(), &commit.record) {
            return Ok(refused(commit));
        }
        let answer = self.write_record(&commit.record);
        let applied = answer == CommitResponse::Applied;
        if applied || self.flaw == Some(Flaw::WritesGoFirst) {
            self.effects.extend(commit.writes.iter().map(|_| worker));
        }
        if applied {
            let owner = owner.clone();
            self.made.push(Made { token, owner });
        }
        Ok(answer)
    }

    fn write_record(&mut self, write: &RecordWrite) -> CommitResponse {
        let settled = match write {
            RecordWrite::Settle {
                fence,
                settlement,
                now,
            } => self.records.settle(fence, settlement, *now),
            RecordWrite::Insert {
                request,
                settlement,
            } => match self.records.claim(request) {
                Ok(ClaimResponse::ConditionFailed(record)) => {
                    Ok(SettleResponse::ConditionFailed(Some(record)))
                }
                Ok(ClaimResponse::Applied { .. }) => {
                    let fence = request.fence();
                    self.records.settle(&fence, settlement, request.now)
                }
                Err(error) => Err(error),
            },
        };
        match settled {
            Ok(SettleResponse::Applied) => CommitResponse::Applied,
            Ok(SettleResponse::ConditionFailed(record)) => CommitResponse::ConditionFailed(record),
            // The flaw of a response without the record.
            Err(_) => CommitResponse::ConditionFailed(None),
        }
    }
}

/// The owner of a transaction.
pub fn owner(commit: &Commit) -> &Owner {
    match &commit.record {
        RecordWrite::Settle { fence, .. } => &fence.owner,
        RecordWrite::Insert { request, .. } => &request.owner,
    }
}

/// The record that a transaction leaves.
pub fn left_as(commit: &Commit) -> &'static str {
    match &commit.record {
        RecordWrite::Settle { settlement, .. } | RecordWrite::Insert { settlement, .. } => {
            settlement.name()
        }
    }
}

fn admits(record: Option<&Record>, write: &RecordWrite) -> bool {
    match write {
        RecordWrite::Settle { fence, .. } => may_settle(record, fence),
        RecordWrite::Insert { request, .. } => may_claim(record, request),
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
