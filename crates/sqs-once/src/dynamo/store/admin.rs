//! Records in DynamoDB as an operator reads and changes them, with the command-line tool `sqs-once`.

use std::sync::Arc;

use aws_sdk_dynamodb::{
    operation::{delete_item::DeleteItemError, update_item::UpdateItemError},
    types::ReturnConsumedCapacity,
};

use super::{DynamoStore, expressions};
use crate::{
    dynamo::{
        item::Item,
        write::{delete_item, update_item},
    },
    protocol::{Key, Timestamp},
    store::{
        StoreError,
        admin::{RecordFilter, RecordPage, StoredRecord},
    },
};

impl DynamoStore {
    /// Reads a record with strong consistency.
    pub async fn get(&self, key: &str) -> Result<Option<StoredRecord>, StoreError> {
        let read = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(self.layout.primary_key(key)))
            .consistent_read(true);
        match read.send().await {
            Ok(answer) => Ok(answer.item.map(|item| self.stored(item))),
            Err(error) => {
                let key = Key::from_stored(key);
                Err(self.unavailable("read", "dynamodb:GetItem", &key, error))
            }
        }
    }

    /// Reads at most `limit` items and returns the records among them that pass the filter. Does not read the
    /// results of records.
    ///
    /// Scans the table, or queries the partition of a layout with a sort key.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the table could not be read.
    pub async fn list(
        &self,
        filter: &RecordFilter,
        after: Option<&str>,
        limit: i32,
        now: Timestamp,
    ) -> Result<RecordPage, StoreError> {
        let with = expressions::list(&self.layout, filter, now);
        let start = after.map(|key| self.layout.primary_key(key));
        let unavailable = Key::from_stored(filter.prefix.as_deref().unwrap_or("*"));
        let (items, read, capacity, last) = if let Some(condition) = with.key_condition {
            let page = self
                .client
                .query()
                .table_name(&self.table)
                .key_condition_expression(condition)
                .filter_expression(with.filter)
                .projection_expression(with.projection)
                .set_expression_attribute_names(Some(with.names))
                .set_expression_attribute_values(Some(with.values))
                .set_exclusive_start_key(start)
                .limit(limit)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|error| self.unavailable("list", "dynamodb:Query", &unavailable, error))?;
            let last = page.last_evaluated_key;
            (page.items, page.scanned_count, page.consumed_capacity, last)
        } else {
            let page = self
                .client
                .scan()
                .table_name(&self.table)
                .filter_expression(with.filter)
                .projection_expression(with.projection)
                .set_expression_attribute_names(Some(with.names))
                .set_expression_attribute_values(Some(with.values))
                .set_exclusive_start_key(start)
                .limit(limit)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|error| self.unavailable("list", "dynamodb:Scan", &unavailable, error))?;
            let last = page.last_evaluated_key;
            (page.items, page.scanned_count, page.consumed_capacity, last)
        };
        let found = items.unwrap_or_default().into_iter();
        Ok(RecordPage {
            records: found.map(|item| self.stored(item)).collect(),
            read: usize::try_from(read).unwrap_or(0),
            units: Some(capacity.and_then(|used| used.capacity_units).unwrap_or(0.0)),
            next: last.and_then(|last| self.key_of(&last)),
        })
    }

    /// Ends the lease of a record in progress, so that the next delivery takes over. If the record has
    /// changed since it was read, changes nothing and returns false.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The lease may have been ended nevertheless.
    pub async fn release(&self, shown: &StoredRecord, now: Timestamp) -> Result<bool, StoreError> {
        let Some(item) = shown.version::<Item>() else {
            return Ok(false);
        };
        let update = expressions::release(&self.layout, &self.table, item, now);
        match update_item(&self.writing, update).send().await {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(_)) => Ok(false),
                _ => {
                    let key = Key::from_stored(&shown.key);
                    Err(self.unavailable("release", "dynamodb:UpdateItem", &key, error))
                }
            },
        }
    }

    /// Deletes a record. If the record has changed since it was read, changes nothing and returns false.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The record may have been deleted nevertheless.
    pub async fn delete_record(&self, shown: &StoredRecord) -> Result<bool, StoreError> {
        let Some(item) = shown.version::<Item>() else {
            return Ok(false);
        };
        let delete = expressions::delete_record(&self.layout, &self.table, item);
        match delete_item(&self.writing, delete).send().await {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(_)) => Ok(false),
                _ => {
                    let key = Key::from_stored(&shown.key);
                    Err(self.unavailable("delete", "dynamodb:DeleteItem", &key, error))
                }
            },
        }
    }

    fn stored(&self, item: Item) -> StoredRecord {
        StoredRecord {
            key: self.key_of(&item).unwrap_or_default(),
            record: self.layout.record(&item),
            locked_by: None,
            version: Arc::new(item),
        }
    }

    fn key_of(&self, item: &Item) -> Option<String> {
        let key = item.get(self.layout.key_name());
        key.and_then(|key| key.as_s().ok()).cloned()
    }
}
