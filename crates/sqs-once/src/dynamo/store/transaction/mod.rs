//! Commits a record and other writes in one `TransactWriteItems`.

mod cancellation;

use std::collections::BTreeSet;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::transact_write_items::TransactWriteItemsError,
    types::TransactWriteItem,
};

use super::{
    DynamoStore, Request, expressions,
    size::{check_result, check_size},
};
use crate::{
    dynamo::{
        explain::{explain, kind},
        item::{self as items, Item},
        transactional::{Commit, CommitResponse, RecordWrite, TransactionalStore},
        write::table,
    },
    protocol::{
        ClaimRequest, Record, RequestErrorKind, Settlement, decision::may_claim,
        record::MAX_ITEM_BYTES,
    },
    store::{RequestContext, StoreError},
};
use cancellation::Cancelled;

/// Permissions of a commit. IAM has no separate permission for transactions.
const NEEDS: &str = "dynamodb:PutItem, UpdateItem, DeleteItem or ConditionCheckItem";

impl TransactionalStore for DynamoStore {
    async fn commit(
        &self,
        commit: &Commit,
        _: &RequestContext,
    ) -> Result<CommitResponse, StoreError> {
        if commit.sent_over.get().is_none() {
            let record = match commit.sent.get() {
                Some(sent) => sent.clone(),
                None => {
                    let built = self.record_write(&commit.record)?;
                    commit.sent.get_or_init(|| built).clone()
                }
            };
            match (self.send(commit, record, commit.token.clone())).await? {
                Sent::ConditionFailed(Some((found, item))) => {
                    match self.over(&commit.record, &found, &item)? {
                        Some(over) => commit.sent_over.get_or_init(|| over),
                        None => return Ok(CommitResponse::ConditionFailed(Some(found))),
                    }
                }
                sent => return Ok(sent.into()),
            };
        }
        let Some(over) = commit.sent_over.get() else {
            return Ok(CommitResponse::ConditionFailed(None));
        };
        // This is a different transaction, so it needs a different `ClientRequestToken`.
        let token = format!("{}o", commit.token);
        Ok(self.send(commit, over.clone(), token).await?.into())
    }
}

/// DynamoDB's response, with the unchanged item if the record's condition failed.
enum Sent {
    ConditionFailed(Option<(Record, Item)>),
    Other(CommitResponse),
}

impl From<Sent> for CommitResponse {
    fn from(sent: Sent) -> Self {
        match sent {
            Sent::ConditionFailed(found) => Self::ConditionFailed(found.map(|(record, _)| record)),
            Sent::Other(answer) => answer,
        }
    }
}

impl DynamoStore {
    async fn send(
        &self,
        commit: &Commit,
        record: TransactWriteItem,
        token: String,
    ) -> Result<Sent, StoreError> {
        let writes = commit.writes.iter().map(|write| write.action.clone());
        let sent = self
            .writing
            .transact_write_items()
            .set_transact_items(Some([record].into_iter().chain(writes).collect()))
            .client_request_token(token)
            .send();
        let _place = self.places.take(Request::Other).await;
        match sent.await {
            Ok(_) => Ok(Sent::Other(CommitResponse::Applied)),
            Err(error) => self.not_committed(commit, error),
        }
    }

    fn record_write(&self, record: &RecordWrite) -> Result<TransactWriteItem, StoreError> {
        let (layout, table) = (&self.layout, &self.table);
        let write = TransactWriteItem::builder();
        Ok(match record {
            RecordWrite::Settle {
                fence,
                settlement,
                now,
            } => {
                check_result(&fence.key, settlement)?;
                let update = expressions::settle(layout, table, fence, settlement, *now);
                match update {
                    Some(update) => write.update(update),
                    None => write.delete(expressions::delete(layout, table, fence)),
                }
            }
            RecordWrite::Insert {
                request,
                settlement:
                    Settlement::Fail {
                        error, expires_at, ..
                    },
            } => {
                let error = error.as_str();
                write.update(expressions::insert_failed(
                    layout,
                    table,
                    request,
                    error,
                    *expires_at,
                ))
            }
            RecordWrite::Insert {
                request,
                settlement,
            } => {
                check_result(&request.key, settlement)?;
                let record = inserted(request, settlement, None);
                let put = expressions::insert_completed(layout, table, request, &record);
                check_size(&request.key, items::size(&put.item), MAX_ITEM_BYTES)?;
                write.put(put)
            }
        }
        .build())
    }

    /// Builds a put to replace an update of the record whose condition failed. `None` if the rules protect
    /// the record `found`.
    fn over(
        &self,
        record: &RecordWrite,
        found: &Record,
        item: &Item,
    ) -> Result<Option<TransactWriteItem>, StoreError> {
        let RecordWrite::Insert {
            request,
            settlement,
        } = record
        else {
            return Ok(None);
        };
        if !may_claim(Some(found), request) {
            return Ok(None);
        }
        let live = Some(found).filter(|found| !found.is_expired(request.now));
        let record = inserted(request, settlement, live);
        let record = self.layout.item(&request.key, &record);
        check_size(&request.key, items::size(&record), MAX_ITEM_BYTES)?;
        let put = expressions::put_over(&self.layout, &self.table, item, record);
        Ok(Some(TransactWriteItem::builder().put(put).build()))
    }

    fn not_committed(
        &self,
        commit: &Commit,
        error: SdkError<TransactWriteItemsError>,
    ) -> Result<Sent, StoreError> {
        match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                match self.cancelled(commit, cancelled.cancellation_reasons())? {
                    Cancelled::Sent(sent) => Ok(sent),
                    Cancelled::Contended(why) => {
                        let why = why.unwrap_or_else(|| explain(&error, NEEDS));
                        Err(self.not_answered(commit, RequestErrorKind::Contended, why, error))
                    }
                }
            }
            Some(service) if service.code() == Some("ValidationException") => {
                Ok(Sent::Other(CommitResponse::Invalid(explain(&error, NEEDS))))
            }
            // The caller sends the same transaction again, after contention too.
            _ => {
                let (kind, why) = (kind(&error), explain(&error, NEEDS));
                Err(self.not_answered(commit, kind, why, error))
            }
        }
    }

    fn not_answered(
        &self,
        commit: &Commit,
        kind: RequestErrorKind,
        reason: String,
        error: SdkError<TransactWriteItemsError>,
    ) -> StoreError {
        let mut tables = BTreeSet::from([self.table.as_str()]);
        tables.extend(commit.writes.iter().map(|write| table(&write.action)));
        let names = Vec::from_iter(tables).join("`, `");
        StoreError::Unavailable {
            kind,
            action: "commit",
            key: commit.record.key().to_string(),
            store: format!("DynamoDB, tables `{names}`"),
            reason,
            source: error.into(),
        }
    }
}

/// Returns the record after an insert. `over` is the record before, or `None` if that was expired.
fn inserted(request: &ClaimRequest, settlement: &Settlement, over: Option<&Record>) -> Record {
    let claimed = request.record(over);
    let settled = settlement.apply(&claimed, request.now);
    Record {
        // An insert has no claim, so it opens no attempt.
        first_claimed_at: match settlement {
            Settlement::Fail { .. } => over.and_then(|record| record.first_claimed_at),
            _ => None,
        },
        ..settled.unwrap_or(claimed)
    }
}
