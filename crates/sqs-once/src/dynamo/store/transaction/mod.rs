//! Commits a record and other writes in one `TransactWriteItems`.

mod cancellation;

use std::collections::BTreeSet;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::transact_write_items::TransactWriteItemsError,
    types::TransactWriteItem,
};

use super::{DynamoStore, Request, swap::transact_item};
use crate::{
    dynamo::{
        explain::{explain, kind},
        write::{Write, table},
        writes::{RecordTransaction, Refused, Writes},
    },
    flawed::flawed,
    protocol::{Key, RequestErrorKind, Swap},
    store::{StoreError, Swapped},
};
use cancellation::Cancelled;

/// The permissions that a commit needs. IAM has no separate permission for transactions.
const NEEDS: &str = "dynamodb:PutItem, UpdateItem, DeleteItem or ConditionCheckItem";

impl DynamoStore {
    /// Swaps the record, and makes the writes that commit with it.
    pub(super) async fn transact(
        &self,
        swap: &Swap,
        with: &Writes,
    ) -> Result<Swapped<Refused>, StoreError> {
        let transaction = with.transaction(swap, |token| {
            Ok(RecordTransaction {
                token,
                record: transact_item(&self.layout, &self.table, swap),
                puts: with.puts(swap, self.outbox.as_deref())?,
            })
        })?;
        let _place = self.slots.take(Request::Other).await;
        let record = Some(transaction.record.clone());
        let record = record.filter(|_| !flawed("a commit leaves out its record"));
        let writes = with.all(&transaction.puts);
        let actions = writes.iter().map(|write| write.action.clone());
        let actions = actions.filter(|_| !flawed("a commit leaves out its writes"));
        let sent = self
            .writing
            .transact_write_items()
            .set_transact_items(Some(record.into_iter().chain(actions).collect()))
            .client_request_token(&transaction.token)
            .send();
        let error = match sent.await {
            Ok(_) => return Ok(Swapped::Applied),
            Err(error) => error,
        };
        let (kind, why) = match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                let reasons = cancelled.cancellation_reasons();
                match self.cancelled(&swap.key, &writes, reasons)? {
                    Cancelled::Answered(answer) => return Ok(answer),
                    Cancelled::Contended(why) => (RequestErrorKind::Contended, why),
                }
            }
            Some(service) if service.code() == Some("ValidationException") => {
                return Ok(Swapped::Refused(Refused::Invalid(explain(&error, NEEDS))));
            }
            // The caller decides by the kind whether to send the same transaction again.
            _ => (kind(&error), None),
        };
        let why = why.unwrap_or_else(|| explain(&error, NEEDS));
        Err(self.commit_failed(&swap.key, &writes, kind, why, error))
    }

    fn commit_failed(
        &self,
        key: &Key,
        writes: &[&Write<TransactWriteItem>],
        kind: RequestErrorKind,
        reason: String,
        error: SdkError<TransactWriteItemsError>,
    ) -> StoreError {
        let mut tables = BTreeSet::from([self.table.as_str()]);
        tables.extend(writes.iter().map(|write| table(&write.action)));
        let names = Vec::from_iter(tables).join("`, `");
        StoreError::Unavailable {
            kind,
            action: "commit",
            key: key.to_string(),
            store: format!("DynamoDB, tables `{names}`"),
            reason,
            source: error.into(),
        }
    }
}
