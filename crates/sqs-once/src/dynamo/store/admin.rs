//! Records in DynamoDB as an operator reads and changes them, with the command-line tool `sqs-once`.

use std::{collections::HashMap, sync::Arc};

use aws_sdk_dynamodb::{
    operation::delete_item::DeleteItemError,
    types::{AttributeValue, ReturnConsumedCapacity},
};

use super::{DynamoStore, Field, Layout};
use crate::{
    dynamo::item::{Item, number, string},
    protocol::{
        Expect, Key, Record, Swap, Timestamp,
        record::{COMPLETED, FAILED, IN_PROGRESS},
    },
    store::{
        StoreError, Swapped,
        admin::{RecordFilter, RecordPage, RecordStatus, StoredRecord, UnreadableRecord},
    },
};

impl DynamoStore {
    /// Reads a record with strong consistency.
    pub async fn show(&self, key: &str) -> Result<Option<StoredRecord>, StoreError> {
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
        let with = listing(&self.layout, filter, now);
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

    /// Replaces a record that is not completed. If it has changed since it was read, changes nothing and returns false.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The record may have been replaced nevertheless.
    pub async fn replace(&self, shown: &StoredRecord, to: Record) -> Result<bool, StoreError> {
        let Ok(record) = &shown.record else {
            return Ok(false);
        };
        let swap = Swap {
            key: Key::from_stored(&shown.key),
            expect: Expect::Unchanged(record.clone()),
            to,
        };
        Ok(self.swap_in(None, &swap).await? == Swapped::Applied)
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
        let mut delete = self
            .writing
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(self.layout.primary_key_of(item)));
        // An item that is no record may have no stamp.
        let mut condition = Vec::new();
        for (field, name, value) in [
            (Field::Owner, "#owner", ":owner"),
            (Field::Version, "#version", ":version"),
        ] {
            delete = delete.expression_attribute_names(name, self.layout.name(field));
            condition.push(match item.get(self.layout.name(field)) {
                None => format!("attribute_not_exists({name})"),
                Some(found) => {
                    delete = delete.expression_attribute_values(value, found.clone());
                    format!("{name} = {value}")
                }
            });
        }
        let delete = delete.condition_expression(condition.join(" AND "));
        match delete.send().await {
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
            record: self.layout.read(&item).map_err(|reason| UnreadableRecord {
                reason,
                raw: raw(&item),
            }),
            locked_by: None,
            version: Arc::new(item),
        }
    }

    fn key_of(&self, item: &Item) -> Option<String> {
        let key = item.get(self.layout.key_name());
        key.and_then(|key| key.as_s().ok()).cloned()
    }
}

/// Returns an item as JSON.
fn raw(item: &Item) -> String {
    let json = serde_dynamo::from_item::<_, serde_json::Value>(item.clone());
    json.map_or_else(|_| format!("{item:?}"), |json| json.to_string())
}

/// Expressions for a page of records.
struct Listing {
    /// Condition on the primary key. `None` for a scan.
    key_condition: Option<String>,
    filter: String,
    projection: String,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

/// Builds the expressions that find records by `filter`. They leave out results.
fn listing(layout: &Layout, filter: &RecordFilter, now: Timestamp) -> Listing {
    let mut names = HashMap::new();
    let mut name = |field: Field| {
        let placeholder = format!("#{}", field.native_name());
        names.insert(placeholder.clone(), layout.name(field).to_owned());
        placeholder
    };
    let mut values = HashMap::from([(":now_s".to_owned(), number(now.as_secs()))]);
    let mut conditions = vec![format!("{} >= :now_s", name(Field::ExpiresAt))];
    let status = name(Field::Status);
    conditions.push(match filter.status {
        Some(status_of) => {
            let word = match status_of {
                RecordStatus::InProgress => IN_PROGRESS,
                RecordStatus::Completed => COMPLETED,
                RecordStatus::Failed => FAILED,
            };
            values.insert(":status".to_owned(), string(word));
            format!("{status} = :status")
        }
        // Items that are not records have no status.
        None => format!("attribute_exists({status})"),
    });
    if filter.expired_lease {
        conditions.push(format!("{} < :now", name(Field::LeaseUntil)));
        values.insert(":now".to_owned(), number(now.as_millis()));
    }
    let results = [Field::Result, Field::ResultInS3, Field::ResultOmitted];
    let fields = Field::ALL
        .into_iter()
        .filter(|field| !results.contains(field));
    let mut projection: Vec<_> = fields.map(&mut name).collect();
    let mut id = name(Field::Id);
    let mut key_condition = None;
    if let Some((sort, partition)) = layout.sort() {
        values.insert(":partition".to_owned(), string(partition));
        key_condition = Some(format!("{id} = :partition"));
        id = "#sort".to_owned();
        names.insert(id.clone(), sort.to_owned());
        projection.push(id.clone());
    }
    if let Some(prefix) = &filter.prefix {
        values.insert(":prefix".to_owned(), string(prefix));
        let begins = format!("begins_with({id}, :prefix)");
        match &mut key_condition {
            Some(condition) => *condition = format!("{condition} AND {begins}"),
            None => conditions.push(begins),
        }
    }
    Listing {
        key_condition,
        filter: conditions.join(" AND "),
        projection: projection.join(", "),
        names,
        values,
    }
}
