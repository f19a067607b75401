//! Commits a record and other writes in one `TransactWriteItems`.

mod cancellation;

use std::collections::BTreeSet;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::transact_write_items::TransactWriteItemsError,
};

use super::{DynamoStore, Request, swap::transact_item};
use crate::{
    dynamo::{
        explain::{explain, kind},
        transactional::{Commit, CommitResponse, TransactionalStore},
        write::table,
    },
    flawed::flawed,
    protocol::RequestErrorKind,
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
        self.check_swap(&commit.record)?;
        let build = || transact_item(&self.layout, &self.table, &commit.record);
        let record = commit.sent.get_or_init(build).clone();
        let record = Some(record).filter(|_| !flawed("a commit leaves out its record"));
        let writes = commit.writes.iter().map(|write| write.action.clone());
        let writes = writes.filter(|_| !flawed("a commit leaves out its writes"));
        let sent = self
            .writing
            .transact_write_items()
            .set_transact_items(Some(record.into_iter().chain(writes).collect()))
            .client_request_token(&commit.token)
            .send();
        let _place = self.places.take(Request::Other).await;
        match sent.await {
            Ok(_) => Ok(CommitResponse::Applied),
            Err(error) => self.not_committed(commit, error),
        }
    }
}

impl DynamoStore {
    fn not_committed(
        &self,
        commit: &Commit,
        error: SdkError<TransactWriteItemsError>,
    ) -> Result<CommitResponse, StoreError> {
        match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                match self.cancelled(commit, cancelled.cancellation_reasons())? {
                    Cancelled::Answered(answer) => Ok(answer),
                    Cancelled::Contended(why) => {
                        let why = why.unwrap_or_else(|| explain(&error, NEEDS));
                        Err(self.not_answered(commit, RequestErrorKind::Contended, why, error))
                    }
                }
            }
            Some(service) if service.code() == Some("ValidationException") => {
                Ok(CommitResponse::Invalid(explain(&error, NEEDS)))
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
            key: commit.record.key.to_string(),
            store: format!("DynamoDB, tables `{names}`"),
            reason,
            source: error.into(),
        }
    }
}
