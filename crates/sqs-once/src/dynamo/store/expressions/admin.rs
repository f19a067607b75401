//! Expressions of an operator's requests: to release, delete and list records.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{AttributeValue, Delete, Update};

use super::builder::Expression;
use crate::{
    dynamo::{
        item::{Item, number, string},
        store::{
            field::Field,
            item::{COMPLETED, millis},
            layout::Layout,
        },
    },
    protocol::Timestamp,
    store::admin::{RecordFilter, RecordStatus},
};

/// The attributes that claims and settlements change.
const CHANGING: [Field; 6] = [
    Field::Status,
    Field::Owner,
    Field::LeaseUntil,
    Field::ExpiresAt,
    Field::Attempts,
    Field::UpdatedAt,
];

/// Builds the update with which an operator ends the lease of `found`, if the record is unchanged.
pub(in crate::dynamo::store) fn release(
    layout: &Layout,
    table: &str,
    found: &Item,
    now: Timestamp,
) -> Update {
    let mut with = Expression::new(layout);
    with.set(Field::LeaseUntil, millis(now));
    with.set(Field::UpdatedAt, millis(now));
    with.remove(Field::ExclusiveAttempts);
    let condition = with.unchanged(found, &CHANGING);
    with.into_update(table, layout.primary_key_of(found), condition)
}

/// Builds the delete with which an operator removes the record `found`, if the record is unchanged.
pub(in crate::dynamo::store) fn delete_record(
    layout: &Layout,
    table: &str,
    found: &Item,
) -> Delete {
    let mut with = Expression::new(layout);
    let condition = with.unchanged(found, &CHANGING);
    Delete::builder()
        .table_name(table)
        .set_key(Some(layout.primary_key_of(found)))
        .condition_expression(condition)
        .set_expression_attribute_names(Some(with.names))
        .set_expression_attribute_values(Some(with.values).filter(|values| !values.is_empty()))
        .build()
        .expect("every required field is set")
}

/// Expressions for a page of records.
pub(in crate::dynamo::store) struct Listing {
    /// Condition on the primary key. `None` for a scan.
    pub(in crate::dynamo::store) key_condition: Option<String>,
    pub(in crate::dynamo::store) filter: String,
    pub(in crate::dynamo::store) projection: String,
    pub(in crate::dynamo::store) names: HashMap<String, String>,
    pub(in crate::dynamo::store) values: HashMap<String, AttributeValue>,
}

/// Builds the expressions that find records by `filter`. They leave out results.
pub(in crate::dynamo::store) fn list(
    layout: &Layout,
    filter: &RecordFilter,
    now: Timestamp,
) -> Listing {
    let mut with = Expression::new(layout);
    let mut conditions = vec![format!("{} >= :now_s", with.name(Field::ExpiresAt))];
    with.value(":now_s", number(now.as_secs()));
    match filter.status {
        Some(RecordStatus::InProgress) => conditions.push(with.in_progress()),
        Some(RecordStatus::Failed) => conditions.push(with.failed()),
        Some(RecordStatus::Completed) => {
            conditions.push(format!("{} = :completed", with.name(Field::Status)));
            with.value(":completed", string(COMPLETED));
        }
        // Items that are not records have no status.
        None => conditions.push(format!("attribute_exists({})", with.name(Field::Status))),
    }
    if filter.expired_lease {
        conditions.push(format!("{} < :now", with.name(Field::LeaseUntil)));
        with.value(":now", millis(now));
    }
    let mut key_condition = None;
    let id = match layout.sort() {
        None => with.name(Field::Id),
        Some((sort, partition)) => {
            with.names.insert("#sort".into(), sort.to_owned());
            with.value(":partition", string(partition));
            key_condition = Some(format!("{} = :partition", with.name(Field::Id)));
            "#sort"
        }
    };
    if let Some(prefix) = &filter.prefix {
        with.value(":prefix", string(prefix));
        let begins = format!("begins_with({id}, :prefix)");
        match &mut key_condition {
            Some(condition) => *condition = format!("{condition} AND {begins}"),
            None => conditions.push(begins),
        }
    }
    let results = [Field::Result, Field::ResultInS3, Field::ResultOmitted];
    let mut projection: Vec<_> = Field::ALL
        .into_iter()
        .filter(|field| !results.contains(field))
        .map(|field| with.name(field))
        .collect();
    if layout.sort().is_some() {
        projection.push(id);
    }
    Listing {
        key_condition,
        filter: conditions.join(" AND "),
        projection: projection.join(", "),
        names: with.names,
        values: with.values,
    }
}
