//! [`Write`]: one write to an application's item, alone or in a transaction.

mod action;
mod condition;
mod empty_sets;
mod place;
mod request;

use std::borrow::Cow;

use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, Put, TransactWriteItem, Update,
};
use serde::Serialize;

pub(crate) use action::{Action, Keyed};
use empty_sets::remove_empty_sets;
pub(crate) use place::{WritePlace, table};
pub(crate) use request::{put_item, update_item};

use crate::dynamo::item::Item;

/// Maximum number of writes that commit together with a record.
///
/// A DynamoDB transaction has at most 100 actions (*Amazon DynamoDB Developer Guide*, "Amazon
/// DynamoDB Transactions: How it works"). One of them writes the record.
pub const MAX_WRITES: usize = 99;

/// One write to an item: the SDK's [`Put`], [`Update`], [`Delete`] or [`ConditionCheck`], with an optional
/// label.
///
/// The constructors accept any value that implements `Serialize`. If serde cannot serialize it, the operation
/// fails permanently and no request is sent.
///
/// ```
/// use aws_sdk_dynamodb::types::{AttributeValue, Delete};
/// use serde::Serialize;
/// use sqs_once::{Done, Write};
///
/// #[derive(Serialize)]
/// struct Order { id: String, product: String, quantity: u32 }
///
/// let order = Order { id: "o-1".into(), product: "p-1".into(), quantity: 2 };
/// // Existing values of the SDK's types work too.
/// let cart = Delete::builder().table_name("carts").key("id", AttributeValue::S("c-1".into())).build()?;
/// let done = Done::new("placed")
///     .with(Write::put("orders", &order))
///     .with(
///         Write::update("products", "SET quantity = quantity - :n")
///             .key("product", &order.product)
///             .when("quantity >= :n")
///             .value(":n", order.quantity)
///             .label("stock"),
///     )
///     .with(cart);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Write<A> {
    pub(crate) action: A,
    pub(crate) label: Option<Cow<'static, str>>,
    /// Error text for a value that could not be serialized.
    pub(crate) fault: Option<String>,
}

impl<A> Write<A> {
    fn new(action: A) -> Self {
        Self {
            action,
            label: None,
            fault: None,
        }
    }

    /// Labels the write. The label identifies the write in errors and in
    /// [`Done::on_condition_failed`](crate::dynamo::done::Done::on_condition_failed) when its condition check fails.
    #[must_use]
    pub fn label(self, label: impl Into<Cow<'static, str>>) -> Self {
        Self {
            label: Some(label.into()),
            ..self
        }
    }

    /// Returns the serialized value. If serialization failed, stores an error text about `subject`.
    fn serialized<T>(&mut self, subject: &str, value: Result<T, serde_dynamo::Error>) -> Option<T> {
        value
            // serde's error may quote the value, which is payload.
            .map_err(|_| {
                self.fault = Some(format!(
                    "{subject} can't be an attribute: serde_dynamo can't serialize the value"
                ))
            })
            .ok()
    }
}

impl<A: Action> Write<A> {
    /// Adds a condition to the write. All conditions of a write must be true.
    #[must_use]
    pub fn when(mut self, condition: &str) -> Self {
        self.action.add_condition(condition);
        self
    }

    /// Sets the attribute name of a `#placeholder` in the expressions.
    #[must_use]
    pub fn name(mut self, placeholder: impl Into<String>, attribute: impl Into<String>) -> Self {
        let names = self.action.names().get_or_insert_default();
        names.insert(placeholder.into(), attribute.into());
        self
    }

    /// Sets the value of a `:placeholder` in the expressions.
    #[must_use]
    pub fn value(mut self, placeholder: impl Into<String>, value: impl Serialize) -> Self {
        let placeholder = placeholder.into();
        let value = serde_dynamo::to_attribute_value(value);
        if let Some(value) = self.serialized(&placeholder, value) {
            self = self.raw_value(placeholder, value);
        }
        self
    }

    /// Asks DynamoDB for the existing item if the condition check fails. You find it in
    /// [`FailedWrite::item`](crate::dynamo::condition_failed::FailedWrite::item).
    #[must_use]
    pub fn return_item(mut self) -> Self {
        self.action.return_item();
        self
    }

    pub(crate) fn raw_value(
        mut self,
        placeholder: impl Into<String>,
        value: AttributeValue,
    ) -> Self {
        let values = self.action.values().get_or_insert_default();
        values.insert(placeholder.into(), value);
        self
    }

    pub(crate) fn table(&self) -> &str {
        self.action.table()
    }

    pub(crate) fn into_item(self) -> Write<TransactWriteItem> {
        Write {
            action: self.action.into_item(),
            label: self.label,
            fault: self.fault,
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "a builder fails only where a required field is missing, and all are set"
)]
impl Write<Put> {
    /// Puts an item, and replaces an existing item with the same key.
    ///
    /// Omits empty sets, because DynamoDB stores none. To read the item back, mark fields that are
    /// sets with `#[serde(default)]`.
    #[must_use]
    pub fn put(table: impl Into<String>, item: impl Serialize) -> Self {
        let mut write = Self::put_item(table, Item::new());
        if let Some(mut item) = write.serialized("the item", serde_dynamo::to_item(item)) {
            remove_empty_sets(&mut item);
            write.action.item = item;
        }
        write
    }

    pub(crate) fn put_item(table: impl Into<String>, mut item: Item) -> Self {
        remove_empty_sets(&mut item);
        let put = Put::builder().table_name(table).set_item(Some(item));
        Self::new(put.build().expect("table and item are set"))
    }
}

#[expect(
    clippy::expect_used,
    reason = "a builder fails only where a required field is missing, and all are set"
)]
impl Write<Update> {
    /// Updates the item with the primary key [`key`](Self::key). DynamoDB creates the item if none
    /// exists.
    #[must_use]
    pub fn update(table: impl Into<String>, expression: impl Into<String>) -> Self {
        let update = Update::builder()
            .table_name(table)
            .set_key(Some(Item::new()))
            .update_expression(expression);
        Self::new(update.build().expect("table, key and expression are set"))
    }
}

#[expect(
    clippy::expect_used,
    reason = "a builder fails only where a required field is missing, and all are set"
)]
impl Write<Delete> {
    /// Deletes the item with the primary key [`key`](Self::key).
    #[must_use]
    pub fn delete(table: impl Into<String>) -> Self {
        let delete = Delete::builder()
            .table_name(table)
            .set_key(Some(Item::new()))
            .build();
        Self::new(delete.expect("table and key are set"))
    }
}

#[expect(
    clippy::expect_used,
    reason = "a builder fails only where a required field is missing, and all are set"
)]
impl Write<ConditionCheck> {
    /// Checks `condition` on the item with the primary key [`key`](Self::key), and writes nothing.
    #[must_use]
    pub fn check(table: impl Into<String>, condition: impl Into<String>) -> Self {
        let check = ConditionCheck::builder()
            .table_name(table)
            .set_key(Some(Item::new()))
            .condition_expression(condition);
        Self::new(check.build().expect("table, key and condition are set"))
    }

    /// Names the item with the primary key `key`, without a condition.
    pub(crate) fn item(table: impl Into<String>, key: impl Serialize) -> Self {
        let mut write = Self::check(table, "");
        if let Some(key) = write.serialized("the key", serde_dynamo::to_item(key)) {
            write.action.key = key;
        }
        write
    }
}

impl<A: Keyed> Write<A> {
    /// Sets an attribute of the item's primary key. Call it twice if the table has a sort key.
    #[must_use]
    pub fn key(mut self, attribute: impl Into<String>, value: impl Serialize) -> Self {
        let attribute = attribute.into();
        let value = serde_dynamo::to_attribute_value(value);
        if let Some(value) = self.serialized(&attribute, value) {
            self.action.key().insert(attribute, value);
        }
        self
    }
}

/// Conversion into a [`Write`], from a write or from one of the SDK's types.
pub trait IntoWrite {
    /// The SDK's type.
    type Action: Action;

    /// Converts the value into a write.
    fn into_write(self) -> Write<Self::Action>;
}

impl<A: Action> IntoWrite for Write<A> {
    type Action = A;

    fn into_write(self) -> Self {
        self
    }
}

impl<A: Action> IntoWrite for A {
    type Action = A;

    fn into_write(self) -> Write<A> {
        Write::new(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn unserializable_attribute_error_names_place() {
        let no_item = Write::put("t", 7);
        assert!(no_item.fault.unwrap().starts_with("the item "));
        let no_key = Write::delete("t").key("id", HashMap::from([((), 1)]));
        assert!(no_key.fault.unwrap().starts_with("id "));
        let no_value = Write::check("t", "a = :a").value(":a", HashMap::from([((), 1)]));
        assert!(no_value.fault.unwrap().starts_with(":a "));
    }
}
