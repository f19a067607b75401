//! A record and other writes in one `TransactWriteItems`.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::transact_write_items::TransactWriteItemsError,
    types::{CancellationReason, TransactWriteItem},
};

use super::{
    DynamoStore, check_result, check_size,
    explain::{explain, without_quotes},
    expressions, item,
};
use crate::{
    protocol::{Key, Record, record::MAX_ITEM_BYTES},
    store::{
        Commit, CommitAnswer, RecordWrite, Refused, RefusedWrite, StoreError, TransactionalStore,
        write::{Place, table},
    },
};

/// There is no permission for transactions.
const NEEDS: &str = "dynamodb:PutItem, UpdateItem, DeleteItem or ConditionCheckItem";

impl TransactionalStore for DynamoStore {
    async fn look(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let get = self.client.get_item().table_name(&self.table);
        let get = get.set_key(Some(self.layout.primary_key(key.as_str())));
        match get.send().await {
            Ok(found) => found.item().map(|item| self.read(key, item)).transpose(),
            Err(error) => Err(self.unavailable("look for", "dynamodb:GetItem", key, error)),
        }
    }

    async fn commit(&self, commit: &Commit) -> Result<CommitAnswer, StoreError> {
        let record = match commit.sent.get() {
            Some(sent) => sent.clone(),
            None => {
                let built = self.record_write(&commit.record)?;
                commit.sent.get_or_init(|| built).clone()
            }
        };
        let writes = commit.writes.iter().map(|write| write.action.clone());
        let sent = self
            .client
            .transact_write_items()
            .set_transact_items(Some([record].into_iter().chain(writes).collect()))
            .client_request_token(&commit.token)
            .send()
            .await;
        match sent {
            Ok(_) => Ok(CommitAnswer::Applied),
            Err(error) => self.not_committed(commit, error),
        }
    }
}

impl DynamoStore {
    fn record_write(&self, record: &RecordWrite) -> Result<TransactWriteItem, StoreError> {
        let write = TransactWriteItem::builder();
        Ok(match record {
            RecordWrite::Settle {
                fence,
                settlement,
                now,
            } => {
                check_result(&fence.key, settlement)?;
                write.update(expressions::update(
                    &self.layout,
                    &self.table,
                    fence,
                    settlement,
                    *now,
                ))
            }
            RecordWrite::Insert { request, record } => {
                let put = expressions::put(&self.layout, &self.table, request, record);
                check_size(&request.key, item::size(&put.item), MAX_ITEM_BYTES)?;
                write.put(put)
            }
        }
        .build())
    }

    fn not_committed(
        &self,
        commit: &Commit,
        error: SdkError<TransactWriteItemsError>,
    ) -> Result<CommitAnswer, StoreError> {
        let explained = || explain(&error, NEEDS);
        match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                let answer = self.cancelled(commit, cancelled.cancellation_reasons())?;
                // Without reasons, nothing is known but that nothing was written.
                Ok(answer.unwrap_or_else(|| CommitAnswer::Contended(explained())))
            }
            // Sent again it is the same transaction, so the answer to that will tell.
            Some(
                TransactWriteItemsError::TransactionInProgressException(_)
                | TransactWriteItemsError::ProvisionedThroughputExceededException(_)
                | TransactWriteItemsError::RequestLimitExceeded(_)
                | TransactWriteItemsError::ThrottlingException(_),
            ) => Ok(CommitAnswer::Contended(explained())),
            Some(service) if service.code() == Some("ValidationException") => {
                Ok(CommitAnswer::Invalid(explained()))
            }
            _ => {
                let writes = commit.writes.iter();
                let tables = [self.table.as_str()].into_iter();
                let tables: BTreeSet<_> = tables
                    .chain(writes.map(|write| table(&write.action)))
                    .collect();
                let tables = tables.into_iter().collect::<Vec<_>>().join("`, `");
                Err(StoreError::Unavailable {
                    action: "commit",
                    key: commit.record.key().to_string(),
                    store: format!("DynamoDB, tables `{tables}`"),
                    reason: explained(),
                    source: error.into(),
                })
            }
        }
    }

    /// Reasons stand in the order of the actions, so the first is the record's.
    fn cancelled(
        &self,
        commit: &Commit,
        reasons: &[CancellationReason],
    ) -> Result<Option<CommitAnswer>, StoreError> {
        let Some((record, others)) = reasons.split_first() else {
            return Ok(None);
        };
        if Verdict::of(record) == Verdict::ConditionNotMet {
            let item = record.item().filter(|item| !item.is_empty());
            let item = item.map(|item| self.read(commit.record.key(), item));
            return Ok(Some(CommitAnswer::Refused(item.transpose()?)));
        }
        let first = |verdict| {
            let mut reasons = reasons.iter().enumerate();
            let (index, reason) = reasons.find(|(_, reason)| Verdict::of(reason) == verdict)?;
            let write = index.checked_sub(1).and_then(|n| commit.writes.get(n));
            Some(match write {
                None => format!("{} on the record", words(reason)),
                Some(write) => format!("{} on {}", words(reason), Place::of(index - 1, write)),
            })
        };
        // A collision may be with the very write that an unmet condition asks about, so it goes
        // first: tried again, the answer will be clear.
        if let Some(why) = first(Verdict::Contended) {
            return Ok(Some(CommitAnswer::Contended(why)));
        }
        if let Some(why) = first(Verdict::Invalid) {
            return Ok(Some(CommitAnswer::Invalid(why)));
        }
        let refused = commit.writes.iter().zip(others).enumerate();
        let refused = refused.filter(|(_, (_, why))| Verdict::of(why) == Verdict::ConditionNotMet);
        let refused = refused.map(|(index, (write, reason))| RefusedWrite {
            index,
            label: write.label.clone(),
            table: table(&write.action).to_owned(),
            item: reason.item().cloned().filter(|item| !item.is_empty()),
        });
        let refused: Vec<_> = refused.collect();
        Ok((!refused.is_empty()).then(|| CommitAnswer::Cancelled(Refused::new(refused))))
    }
}

/// What one reason says (*Amazon DynamoDB API Reference*, "TransactWriteItems", cancellation
/// reasons).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    NoObjection,
    ConditionNotMet,
    /// It may pass.
    Contended,
    /// It never will.
    Invalid,
}

impl Verdict {
    fn of(reason: &CancellationReason) -> Self {
        match reason.code() {
            None | Some("None") => Self::NoObjection,
            Some("ConditionalCheckFailed") => Self::ConditionNotMet,
            Some("ValidationError" | "ItemCollectionSizeLimitExceeded") => Self::Invalid,
            // TransactionConflict, ThrottlingError, ProvisionedThroughputExceeded. And what is
            // not known yet: the message stays in the queue.
            Some(_) => Self::Contended,
        }
    }
}

fn words(reason: &CancellationReason) -> String {
    let code = reason.code().unwrap_or("no code");
    match reason.message() {
        None => code.to_owned(),
        Some(message) => format!("{code}: {}", without_quotes(message)),
    }
}
