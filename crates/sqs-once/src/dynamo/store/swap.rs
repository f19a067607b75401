//! [`DynamoStore`] as a store that compares and swaps. Each form of a swap is built in one function: [`Written::of`] for a
//! single request and a transaction, [`statement`] for a batch.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::{
    operation::{put_item::PutItemError, update_item::UpdateItemError},
    types::{
        AttributeValue, BatchStatementRequest, Put, ReturnValuesOnConditionCheckFailure::AllOld,
        TransactWriteItem, Update,
    },
};

use super::{DynamoStore, Layout, Place, Request};
use crate::{
    dynamo::{
        item::{self as items, Item},
        write::{put_item, update_item},
    },
    protocol::{Expect, Key, MAX_ITEM_BYTES, MAX_RESULT_BYTES, Record, Stamp, State, Swap},
    store::{RequestContext, Store, StoreError, Swapped},
};

/// Attributes of type N. All others are of type S.
const NUMBERS: [&str; 10] = [
    "version",
    "lease_until",
    "expires_at",
    "attempts",
    "first_claimed_at",
    "exclusive_attempts",
    "failed_at",
    "generation",
    "created_at",
    "updated_at",
];

/// The attributes of a record by their native names, in order, so that equal swaps are equal requests.
type Attributes = BTreeMap<String, AttributeValue>;

fn attributes(record: &Record) -> Attributes {
    #[expect(clippy::expect_used, reason = "a record has text and numbers only")]
    let item: HashMap<_, _> = serde_dynamo::to_item(record).expect("a record is an item");
    item.into_iter().collect()
}

/// The attributes that a swap over a record sets and removes.
struct Difference {
    set: Attributes,
    remove: Vec<String>,
}

impl Difference {
    /// An operator's release changes the lease and not the stamp, so the lease is always written.
    fn of(expected: &Record, to: &Record) -> Self {
        let before = attributes(expected);
        let mut set = attributes(to);
        let remove = before
            .keys()
            .filter(|name| !set.contains_key(*name))
            .cloned();
        let remove = remove.collect();
        set.retain(|name, value| name == "lease_until" || before.get(name) != Some(value));
        Self { set, remove }
    }
}

/// The write of a single request or a transaction.
enum Written {
    /// Over nothing.
    Put(Put),
    /// Over the record with the expected stamp.
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
            values.insert(format!(":{native}"), value);
            names.insert(format!("#{native}"), layout.named(&native).to_owned());
        }
        for (n, native) in remove.iter().enumerate() {
            expression += if n == 0 { " REMOVE " } else { ", " };
            expression += &format!("#{native}");
            names.insert(format!("#{native}"), layout.named(native).to_owned());
        }
        let Stamp { owner, version } = &expected.stamp;
        for (native, value) in [
            ("owner", items::string(owner.as_str())),
            ("version", items::number(*version)),
        ] {
            names.insert(format!("#{native}"), layout.named(native).to_owned());
            values.insert(format!(":expected_{native}"), value);
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

/// The item of a first record.
fn item(layout: &Layout, key: &Key, record: &Record) -> Item {
    let mut item = layout.primary_key(key.as_str());
    let named = attributes(record).into_iter();
    item.extend(named.map(|(native, value)| (layout.named(&native).to_owned(), value)));
    item
}

fn insert(layout: &Layout, table: &str, swap: &Swap) -> Put {
    let put = Put::builder()
        .table_name(table)
        .set_item(Some(item(layout, &swap.key, &swap.to)))
        .condition_expression("attribute_not_exists(#id)")
        .expression_attribute_names("#id", layout.named("id"))
        .return_values_on_condition_check_failure(AllOld);
    #[expect(clippy::expect_used, reason = "the required fields are set")]
    put.build().expect("table and item are set")
}

/// The write of a swap in a transaction.
#[must_use]
pub fn transact_item(layout: &Layout, table: &str, swap: &Swap) -> TransactWriteItem {
    let item = TransactWriteItem::builder();
    match Written::of(layout, table, swap) {
        Written::Put(put) => item.put(put),
        Written::Update(update) => item.update(update),
    }
    .build()
}

/// The statement of a swap in a batch.
#[must_use]
pub fn statement(layout: &Layout, table: &str, swap: &Swap) -> BatchStatementRequest {
    let mut values = Vec::with_capacity(24);
    let mut text = String::with_capacity(512);
    match &swap.expect {
        Expect::Absent => {
            text += "INSERT INTO ";
            push_quoted(&mut text, '"', table);
            text += " VALUE ";
            let item: BTreeMap<_, _> = item(layout, &swap.key, &swap.to).into_iter().collect();
            for (n, (name, value)) in item.into_iter().enumerate() {
                text += if n == 0 { "{" } else { ", " };
                // Attribute names are keys of a tuple here, so they are string literals.
                push_quoted(&mut text, '\'', &name);
                text += ": ?";
                values.push(value);
            }
            text += "}";
        }
        Expect::Unchanged(expected) => {
            let Difference { set, remove } = Difference::of(expected, &swap.to);
            text += "UPDATE ";
            push_quoted(&mut text, '"', table);
            for (native, value) in set {
                text += " SET ";
                push_quoted(&mut text, '"', layout.named(&native));
                text += " = ?";
                values.push(value);
            }
            for native in &remove {
                text += " REMOVE ";
                push_quoted(&mut text, '"', layout.named(native));
            }
            let key: BTreeMap<_, _> = layout.primary_key(swap.key.as_str()).into_iter().collect();
            let Stamp { owner, version } = &expected.stamp;
            let stamp = [
                ("owner", items::string(owner.as_str())),
                ("version", items::number(*version)),
            ];
            let stamp = stamp.map(|(native, value)| (layout.named(native).to_owned(), value));
            for (n, (name, value)) in key.into_iter().chain(stamp).enumerate() {
                text += if n == 0 { " WHERE " } else { " AND " };
                push_quoted(&mut text, '"', &name);
                text += " = ?";
                values.push(value);
            }
        }
    }
    let statement = BatchStatementRequest::builder()
        .statement(text)
        .set_parameters(Some(values))
        .return_values_on_condition_check_failure(AllOld);
    #[expect(clippy::expect_used, reason = "the one required field is set")]
    statement.build().expect("the statement has a text")
}

/// Quotes a name. A quote inside the name is doubled.
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
        for (native, name) in self.natives() {
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
    /// Rejects a record that is too large. A claim must leave room for a result, which must fit once the effect has happened.
    pub(super) fn check_swap(&self, swap: &Swap) -> Result<(), StoreError> {
        let bytes = items::size(&item(&self.layout, &swap.key, &swap.to));
        let (bytes, limit) = match swap.to.state {
            State::InProgress { .. } => {
                let error = swap.to.error.as_ref().map_or(0, String::len);
                (bytes - error, MAX_ITEM_BYTES - MAX_RESULT_BYTES)
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

    /// Reads the item of an answer. Without one, there is no record.
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

    /// Swaps in `place`, or in the next free slot.
    pub(super) async fn swap_in(
        &self,
        place: Option<Place>,
        swap: &Swap,
    ) -> Result<Swapped, StoreError> {
        let _place = self.places.or_take(place, Request::of(swap)).await;
        let (key, action) = (&swap.key, swap.to.action());
        match Written::of(&self.layout, &self.table, swap) {
            Written::Put(put) => match put_item(&self.writing, put).send().await {
                Ok(_) => Ok(Swapped::Applied),
                Err(error) => match error.as_service_error() {
                    Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                        Ok(Swapped::Found(self.found(key, failed.item())?))
                    }
                    _ => Err(self.unavailable(action, "dynamodb:PutItem", key, error)),
                },
            },
            Written::Update(update) => match update_item(&self.writing, update).send().await {
                Ok(_) => Ok(Swapped::Applied),
                Err(error) => match error.as_service_error() {
                    Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                        Ok(Swapped::Found(self.found(key, failed.item())?))
                    }
                    _ => Err(self.unavailable(action, "dynamodb:UpdateItem", key, error)),
                },
            },
        }
    }
}

impl Request {
    /// The kind of a swap.
    pub(super) fn of(swap: &Swap) -> Self {
        match swap.to.state {
            State::InProgress { .. } if swap.to.is_claim() => Self::Claim,
            State::InProgress { .. } => Self::Lease,
            State::Completed { .. } | State::Failed => Self::Other,
        }
    }
}

impl Store for DynamoStore {
    async fn get(&self, key: &Key, _: &RequestContext) -> Result<Option<Record>, StoreError> {
        let _place = self.places.take(Request::Claim).await;
        let read = self
            .writing
            .get_item()
            .table_name(&self.table)
            .set_key(Some(self.layout.primary_key(key.as_str())))
            .consistent_read(true);
        match read.send().await {
            Ok(answer) => self.found(key, answer.item()),
            Err(error) => Err(self.unavailable("read", "dynamodb:GetItem", key, error)),
        }
    }

    async fn swap(&self, swap: &Swap, _: &RequestContext) -> Result<Swapped, StoreError> {
        self.check_swap(swap)?;
        self.swap_in(None, swap).await
    }
}
