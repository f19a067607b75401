//! [`Writes`]: what a DynamoDB store commits together with a record.

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::types::TransactWriteItem;

use crate::{
    dynamo::{
        condition_failed::{ConditionFailed, OnConditionFailed},
        outbox,
        write::Write,
    },
    event::{Event, Published},
    flawed::flawed,
    handler::Failure,
    protocol::Swap,
    store::{StoreError, With},
};

/// Writes and events that commit together with a record: up to [`MAX_WRITES`](crate::dynamo::write::MAX_WRITES) in all.
#[derive(Debug, Default)]
pub struct Writes {
    pub(crate) writes: Vec<Write<TransactWriteItem>>,
    pub(crate) events: Vec<Event>,
    /// The last transaction sent.
    sent: Mutex<Option<Arc<RecordTransaction>>>,
}

/// Why the writes can't be committed.
#[derive(Clone, Debug, PartialEq)]
pub enum Refused {
    /// Condition checks of these writes failed.
    Conditions(ConditionFailed),
    /// The writes are invalid. A retry would fail again.
    Invalid(String),
}

impl Refused {
    /// Asks the handler's `decide` what to write instead. Without `decide`, and after an invalid write, the operation fails
    /// permanently.
    pub(crate) fn ask<T>(self, decide: Option<OnConditionFailed<T>>) -> Result<T, Failure> {
        match (self, decide) {
            (Self::Conditions(failed), Some(decide)) => decide(&failed),
            (Self::Conditions(failed), None) => Err(Failure::permanent(failed.to_string())),
            (Self::Invalid(why), _) => Err(Failure::permanent(why)),
        }
    }
}

impl With for Writes {
    type Refused = Refused;

    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.events.is_empty()
    }
}

impl Writes {
    pub(crate) fn new(writes: Vec<Write<TransactWriteItem>>, events: Vec<Event>) -> Self {
        Self {
            writes,
            events,
            sent: Mutex::default(),
        }
    }

    /// Returns the number of writes, without the events.
    pub const fn count(&self) -> usize {
        self.writes.len()
    }

    /// Returns the puts of the events into the table `outbox`, one for each group.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Rejected`] if there are events but no outbox.
    pub(crate) fn puts(
        &self,
        swap: &Swap,
        outbox: Option<&str>,
    ) -> Result<Vec<Write<TransactWriteItem>>, StoreError> {
        if self.events.is_empty() || flawed("a commit leaves out its events") {
            return Ok(Vec::new());
        }
        let table = outbox.ok_or_else(|| StoreError::Rejected {
            action: "commit",
            key: swap.key.to_string(),
            reason: "the handler publishes an event, and no outbox is set: set OUTBOX_TABLE_NAME, or call `DynamoStore::outbox`".to_owned(),
        })?;
        let publish =
            |(index, event): (usize, &Event)| Published::new(&swap.key, index, event.clone());
        let published = self.events.iter().enumerate().map(publish).collect();
        let puts = outbox::puts(table, published, swap.to.updated_at, &token(swap));
        Ok(puts.into_iter().map(Write::into_item).collect())
    }

    /// Returns all writes other than the record: the handler's, and then these [`puts`](Self::puts).
    pub(crate) fn all<'a>(
        &'a self,
        puts: &'a [Write<TransactWriteItem>],
    ) -> Vec<&'a Write<TransactWriteItem>> {
        self.writes.iter().chain(puts).collect()
    }

    /// Returns the transaction of a swap. If the worker repeats the swap, it sends the same bytes again. A rebuilt map of
    /// names would have another order, and DynamoDB refuses a different request under the same token.
    pub(crate) fn transaction(
        &self,
        swap: &Swap,
        build: impl FnOnce(String) -> Result<RecordTransaction, StoreError>,
    ) -> Result<Arc<RecordTransaction>, StoreError> {
        let token = token(swap);
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        match &*sent {
            Some(sent) if sent.token == token => Ok(sent.clone()),
            _ => Ok(sent.insert(Arc::new(build(token)?)).clone()),
        }
    }
}

/// The `TransactWriteItems` of one swap, without the handler's writes.
#[derive(Debug)]
pub(crate) struct RecordTransaction {
    /// The `ClientRequestToken`.
    pub(crate) token: String,
    pub(crate) record: TransactWriteItem,
    pub(crate) puts: Vec<Write<TransactWriteItem>>,
}

/// Returns the `ClientRequestToken` of a swap: the owner's 22 characters and the version's last digits, which tell the few
/// swaps of a claim apart. DynamoDB allows 36 characters.
#[must_use]
pub fn token(swap: &Swap) -> String {
    let stamp = &swap.to.stamp;
    format!("{}{:x}", stamp.owner, stamp.version & 0xFFFF)
}
