//! The records: the `MemoryStore` that ships, or a store with a flaw.

use futures_util::FutureExt as _;
use sqs_once::{
    protocol::{
        ClaimRequest, FencingToken, Key, Record, Settlement, State, Timestamp,
        decision::{may_claim, may_settle},
    },
    store::{ClaimResponse, MemoryStore, SettleResponse, Store as _, StoreError},
};

use support::CONTEXT;

use crate::schedules::flaw::Flaw;

/// Returns at once: `network.rs` adds the delays.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "an execution has one")]
pub enum Records {
    Sound(MemoryStore),
    Flawed { flaw: Flaw, record: Option<Record> },
}

impl Records {
    pub fn new(flaw: Option<Flaw>) -> Self {
        match flaw {
            None => Self::Sound(MemoryStore::default()),
            Some(flaw) => Self::Flawed { flaw, record: None },
        }
    }

    pub fn record(&self, key: &Key) -> Option<Record> {
        match self {
            Self::Sound(store) => store.get(key),
            Self::Flawed { record, .. } => record.clone(),
        }
    }

    pub fn claim(&mut self, request: &ClaimRequest) -> Result<ClaimResponse, StoreError> {
        let (flaw, record) = match self {
            Self::Sound(store) => return at_once(store.claim(request, &CONTEXT)),
            Self::Flawed { flaw, record } => (*flaw, record),
        };
        let overlooked = record.as_ref().is_some_and(|record| match record.state {
            State::InProgress { .. } => flaw == Flaw::ClaimIgnoresLease,
            State::Completed { .. } => flaw == Flaw::ClaimIgnoresCompleted,
            State::Failed => false,
        });
        if overlooked || may_claim(record.as_ref(), request) {
            let mut claimed = request.record(record.as_ref());
            match flaw {
                Flaw::ClaimForgetsFailures => claimed.failed_message_ids.clear(),
                Flaw::ClaimForgetsOpenAttempts => claimed.first_claimed_at = Some(request.now),
                _ => {}
            }
            let replaced = record.replace(claimed);
            return Ok(ClaimResponse::Applied {
                replaced: replaced.filter(|_| flaw != Flaw::TakeoverNotReturned),
            });
        }
        match record {
            Some(record) if flaw != Flaw::RefusedClaimWithoutRecord => {
                Ok(ClaimResponse::ConditionFailed(record.clone()))
            }
            _ => Err(StoreError::Unreadable {
                key: request.key.to_string(),
                store: "a flawed table".into(),
                reason: "the condition failed, without a record".into(),
            }),
        }
    }

    /// A claim that is applied only if there is no record, as an `INSERT`.
    pub fn insert(&mut self, request: &ClaimRequest) -> Result<ClaimResponse, StoreError> {
        if let Self::Flawed { flaw, record } = self
            && *flaw == Flaw::InsertOverRecord
        {
            *record = Some(request.record(None));
            return Ok(ClaimResponse::Applied { replaced: None });
        }
        match self.record(&request.key) {
            Some(record) => Ok(ClaimResponse::ConditionFailed(record)),
            None => self.claim(request),
        }
    }

    pub fn settle(
        &mut self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<SettleResponse, StoreError> {
        let (flaw, record) = match self {
            Self::Sound(store) => return at_once(store.settle(fence, settlement, now, &CONTEXT)),
            Self::Flawed { flaw, record } => (*flaw, record),
        };
        let in_progress = record
            .as_ref()
            .is_some_and(|record| matches!(record.state, State::InProgress { .. }));
        let overlooked = match (flaw, settlement) {
            (Flaw::CompletionWithoutOwner, Settlement::Complete { .. })
            | (Flaw::RestoreWithoutOwner, Settlement::Restore(_)) => in_progress,
            (Flaw::CompletionWithoutCondition, Settlement::Complete { .. })
            | (Flaw::ReleaseWithoutCondition, Settlement::Release { .. }) => record.is_some(),
            _ => false,
        };
        if !overlooked && !may_settle(record.as_ref(), fence) {
            return Ok(SettleResponse::ConditionFailed(record.clone()));
        }
        let deletes =
            flaw == Flaw::ReleaseDeletes && matches!(settlement, Settlement::Release { .. });
        let ended = record.take().filter(|_| !deletes);
        *record = ended.and_then(|record| settlement.apply(&record, now));
        Ok(SettleResponse::Applied)
    }
}

fn at_once<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("memory is never awaited")
}
