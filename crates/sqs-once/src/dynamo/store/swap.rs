//! [`DynamoStore`] as a compare-and-swap store. Each form of a swap is built in one function: [`Written::of`] for a
//! single request and a transaction, [`statement`] for a batch.

use std::collections::HashMap;

use aws_sdk_dynamodb::{
    operation::{put_item::PutItemError, update_item::UpdateItemError},
    types::{
        AttributeValue, BatchStatementRequest, Put, ReturnValuesOnConditionCheckFailure::AllOld,
        TransactWriteItem, Update,
    },
};

use super::{
    DynamoStore, Layout, Request, Slot,
    layout::{NUMBERS, attributes},
};
use crate::{
    dynamo::{
        item::{self as items, Item},
        write::{put_item, update_item},
        writes::{Refused, Writes},
    },
    protocol::{
        Expect, Key, MAX_ITEM_BYTES, MAX_RESULT_BYTES, Record, Stamp, State, Swap,
        record::RecordValue,
    },
    store::{RequestContext, Store, StoreError, Swapped, With as _},
};

/// The attributes that a swap over a record sets and removes, by their native names.
struct Difference<'a> {
    set: Vec<(&'static str, RecordValue<'a>)>,
    remove: Vec<&'static str>,
}

impl<'a> Difference<'a> {
    /// An operator's release changes the lease but not the stamp, so a swap always writes the lease.
    fn of(expected: &'a Record, to: &'a Record) -> Self {
        let before = expected.attributes();
        let mut set = to.attributes();
        let names = before.iter().map(|(name, _)| *name);
        let remove = names
            .filter(|name| set.iter().all(|(written, _)| written != name))
            .collect();
        set.retain(|attribute| attribute.0 == "lease_until" || !before.contains(attribute));
        Self { set, remove }
    }
}

/// Returns the attributes by which a swap finds the record that it expects.
fn stamp(stamp: &Stamp) -> [(&'static str, RecordValue<'_>); 2] {
    [
        ("owner", RecordValue::Text(stamp.owner.as_str().into())),
        ("version", RecordValue::Number(stamp.version)),
    ]
}

/// A swap as the write of a single request or of a transaction.
enum Written {
    /// Creates the record.
    Put(Put),
    /// Changes the record that has the expected stamp.
    Update(Update),
}

impl Written {
    fn of(layout: &Layout, table: &str, swap: &Swap) -> Self {
        let Expect::Unchanged(expected) = &swap.expect else {
            return Self::Put(insert(layout, table, swap));
        };
        let Difference { set, remove } = Difference::of(expected, &swap.to);
        let mut names = HashMap::new();
        let mut values = HashMap::new();
        let mut expression = String::new();
        for (n, (native, value)) in set.into_iter().enumerate() {
            expression += if n == 0 { "SET " } else { ", " };
            expression += &format!("#{native} = :{native}");
            values.insert(format!(":{native}"), value.into());
            names.insert(format!("#{native}"), layout.named(native).to_owned());
        }
        for (n, native) in remove.into_iter().enumerate() {
            expression += if n == 0 { " REMOVE " } else { ", " };
            expression += &format!("#{native}");
            names.insert(format!("#{native}"), layout.named(native).to_owned());
        }
        for (native, value) in stamp(&expected.stamp) {
            names.insert(format!("#{native}"), layout.named(native).to_owned());
            values.insert(format!(":expected_{native}"), value.into());
        }
        let update = Update::builder()
            .table_name(table)
            .set_key(Some(layout.primary_key(swap.key.as_str())))
            .update_expression(expression)
            .condition_expression("#owner = :expected_owner AND #version = :expected_version")
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .return_values_on_condition_check_failure(AllOld);
        #[expect(clippy::expect_used, reason = "the required fields are set")]
        Self::Update(update.build().expect("table, key and expression are set"))
    }
}

/// Returns the attributes of a new record, including its key.
fn item<'a>(
    layout: &'a Layout,
    key: &'a Key,
    record: &'a Record,
) -> impl Iterator<Item = (&'a str, RecordValue<'a>)> {
    let attributes = record.attributes().into_iter();
    let named = attributes.map(|(native, value)| (layout.named(native), value));
    layout.key_attributes(key.as_str()).chain(named)
}

/// Returns an upper bound for the size of these attributes in bytes, by DynamoDB's rules (*Amazon DynamoDB Developer
/// Guide*, "DynamoDB item sizes and formats").
///
/// Names and strings have the size of their UTF-8. For a number, we assume the maximum of 21 bytes.
fn size<'a>(attributes: impl Iterator<Item = (&'a str, RecordValue<'a>)>) -> usize {
    let bytes = attributes.map(|(name, value)| match value {
        RecordValue::Text(text) => name.len() + text.len(),
        RecordValue::Number(_) => name.len() + 21,
    });
    bytes.sum()
}

fn insert(layout: &Layout, table: &str, swap: &Swap) -> Put {
    let put = Put::builder()
        .table_name(table)
        .set_item(Some(items::owned(item(layout, &swap.key, &swap.to))))
        .condition_expression("attribute_not_exists(#id)")
        .expression_attribute_names("#id", layout.named("id"))
        .return_values_on_condition_check_failure(AllOld);
    #[expect(clippy::expect_used, reason = "the required fields are set")]
    put.build().expect("table and item are set")
}

/// Returns a swap as the write of a transaction.
#[must_use]
pub fn transact_item(layout: &Layout, table: &str, swap: &Swap) -> TransactWriteItem {
    let item = TransactWriteItem::builder();
    match Written::of(layout, table, swap) {
        Written::Put(put) => item.put(put),
        Written::Update(update) => item.update(update),
    }
    .build()
}

/// Returns a swap as the statement of a batch.
#[must_use]
pub fn statement(layout: &Layout, table: &str, swap: &Swap) -> BatchStatementRequest {
    let mut values = Vec::with_capacity(24);
    let mut text = String::with_capacity(512);
    match &swap.expect {
        Expect::Absent => {
            text += "INSERT INTO ";
            push_quoted(&mut text, '"', table);
            text += " VALUE ";
            for (n, (name, value)) in item(layout, &swap.key, &swap.to).enumerate() {
                text.push(if n == 0 { '{' } else { ',' });
                // Here attribute names are keys of a tuple, so PartiQL wants string literals.
                push_quoted(&mut text, '\'', name);
                text += ":?";
                values.push(value.into());
            }
            text.push('}');
        }
        Expect::Unchanged(expected) => {
            let Difference { set, remove } = Difference::of(expected, &swap.to);
            text += "UPDATE ";
            push_quoted(&mut text, '"', table);
            for (native, value) in set {
                text += " SET ";
                push_quoted(&mut text, '"', layout.named(native));
                text += "=?";
                values.push(value.into());
            }
            for native in remove {
                text += " REMOVE ";
                push_quoted(&mut text, '"', layout.named(native));
            }
            let key = layout.key_attributes(swap.key.as_str());
            let stamp = stamp(&expected.stamp).map(|(native, value)| (layout.named(native), value));
            for (n, (name, value)) in key.chain(stamp).enumerate() {
                text += if n == 0 { " WHERE " } else { " AND " };
                push_quoted(&mut text, '"', name);
                text += "=?";
                values.push(value.into());
            }
        }
    }
    // The response to an `INSERT` never has the item.
    let is_update = matches!(swap.expect, Expect::Unchanged(_));
    let statement = BatchStatementRequest::builder()
        .statement(text)
        .set_parameters(Some(values))
        .set_return_values_on_condition_check_failure(is_update.then_some(AllOld));
    #[expect(clippy::expect_used, reason = "the one required field is set")]
    statement.build().expect("the statement has a text")
}

/// Quotes a name, and doubles each quote inside it.
fn push_quoted(text: &mut String, quote: char, name: &str) {
    text.push(quote);
    for part in name.split_inclusive(quote) {
        text.push_str(part);
        if part.ends_with(quote) {
            text.push(quote);
        }
    }
    text.push(quote);
}

impl Layout {
    /// Reads a record. The error names an attribute, never its value.
    pub(super) fn read(&self, item: &Item) -> Result<Record, String> {
        let mut read = HashMap::new();
        for native in attributes() {
            let name = self.named(native);
            let Some(value) = item.get(name) else {
                continue;
            };
            match (NUMBERS.contains(&native), value) {
                (true, AttributeValue::N(_)) | (false, AttributeValue::S(_)) => {}
                (true, _) => return Err(format!("attribute `{name}` must be a number")),
                (false, _) => return Err(format!("attribute `{name}` must be a string")),
            }
            read.insert(native.to_owned(), value.clone());
        }
        for (native, value) in &read {
            if let AttributeValue::N(digits) = value
                && digits.parse::<u64>().is_err()
            {
                let name = self.named(native);
                return Err(format!("attribute `{name}` must be a whole number from 0"));
            }
        }
        serde_dynamo::from_item(read).map_err(|error: serde_dynamo::Error| error.to_string())
    }
}

impl DynamoStore {
    /// Rejects a record that is too large. A claim must leave room for the result, because that has to fit once the effect has
    /// happened.
    pub(super) fn check_swap(&self, swap: &Swap) -> Result<(), StoreError> {
        let attributes = item(&self.layout, &swap.key, &swap.to);
        let bytes = size(attributes);
        let (bytes, limit) = match swap.to.state {
            State::InProgress { .. } => {
                // The failures don't count, because a completion removes them.
                let failures = swap.to.failures_json().map_or(0, |json| json.len());
                (bytes - failures, MAX_ITEM_BYTES - MAX_RESULT_BYTES)
            }
            State::Completed { .. } | State::Failed => (bytes, MAX_ITEM_BYTES),
        };
        if bytes <= limit {
            return Ok(());
        }
        Err(StoreError::ItemTooLarge {
            key: swap.key.to_string(),
            bytes,
            limit,
        })
    }

    /// Reads the item in a response. If the response has none, there is no record.
    pub(super) fn found(
        &self,
        key: &Key,
        item: Option<&Item>,
    ) -> Result<Option<Record>, StoreError> {
        let Some(item) = item.filter(|item| !item.is_empty()) else {
            return Ok(None);
        };
        let read = self.layout.read(item).map(Some);
        read.map_err(|reason| StoreError::Unreadable {
            key: key.to_string(),
            store: self.place(),
            reason,
        })
    }

    /// Sends a swap in the slot `place`, or in the next free one.
    ///
    /// The SDK's futures are 5 KB and larger, and would become a part of each message's future. So we box them.
    pub(super) async fn swap_in(
        &self,
        place: Option<Slot>,
        swap: &Swap,
    ) -> Result<Swapped<Refused>, StoreError> {
        let _place = self.slots.or_take(place, Request::of(swap)).await;
        let (key, action) = (&swap.key, swap.to.action());
        match Written::of(&self.layout, &self.table, swap) {
            Written::Put(put) => match Box::pin(put_item(&self.writing, put).send()).await {
                Ok(_) => Ok(Swapped::Applied),
                Err(error) => match error.as_service_error() {
                    Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                        Ok(Swapped::Found(self.found(key, failed.item())?))
                    }
                    _ => Err(self.unavailable(action, "dynamodb:PutItem", key, error)),
                },
            },
            Written::Update(update) => {
                match Box::pin(update_item(&self.writing, update).send()).await {
                    Ok(_) => Ok(Swapped::Applied),
                    Err(error) => match error.as_service_error() {
                        Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                            Ok(Swapped::Found(self.found(key, failed.item())?))
                        }
                        _ => Err(self.unavailable(action, "dynamodb:UpdateItem", key, error)),
                    },
                }
            }
        }
    }
}

impl Request {
    /// Returns which kind of request a swap makes, which decides what slot it takes.
    pub(super) fn of(swap: &Swap) -> Self {
        match swap.to.state {
            State::InProgress { .. } if swap.to.is_claim() => Self::Claim,
            State::InProgress { .. } => Self::Lease,
            State::Completed { .. } | State::Failed => Self::Other,
        }
    }
}

impl Store for DynamoStore {
    type With = Writes;

    fn with_outbox(self, table: Option<String>) -> Self {
        Self {
            outbox: self.outbox.or(table),
            ..self
        }
    }

    async fn get(&self, key: &Key, _: &RequestContext) -> Result<Option<Record>, StoreError> {
        let _place = self.slots.take(Request::Claim).await;
        let read = self
            .writing
            .get_item()
            .table_name(&self.table)
            .set_key(Some(self.layout.primary_key(key.as_str())))
            .consistent_read(true);
        match Box::pin(read.send()).await {
            Ok(answer) => self.found(key, answer.item()),
            Err(error) => Err(self.unavailable("read", "dynamodb:GetItem", key, error)),
        }
    }

    async fn swap(
        &self,
        swap: &Swap,
        with: &Writes,
        _: &RequestContext,
    ) -> Result<Swapped<Refused>, StoreError> {
        self.check_swap(swap)?;
        if with.is_empty() {
            self.swap_in(None, swap).await
        } else {
            // A transaction's future is large, and every message's future would hold it, so we box it.
            Box::pin(self.transact(swap, with)).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// We computed the sizes by hand from the Developer Guide's rules.
    #[test]
    fn item_size_matches_dynamodb_count() {
        let attributes = [
            ("name", RecordValue::Text("é".into())),
            ("n", RecordValue::Number(7)),
        ];
        assert_eq!(size(attributes.into_iter()), (4 + 2) + (1 + 21));
    }
}
