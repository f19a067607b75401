//! [`Write`]: one write to an application's item, alone or in a transaction.

use std::{borrow::Cow, collections::HashMap, fmt};

use aws_sdk_dynamodb::{
    Client,
    operation::{
        delete_item::builders::DeleteItemFluentBuilder, put_item::builders::PutItemFluentBuilder,
        update_item::builders::UpdateItemFluentBuilder,
    },
    types::{
        AttributeValue, ConditionCheck, ConsumedCapacity, Delete, Put,
        ReturnValuesOnConditionCheckFailure::AllOld, TransactWriteItem, Update,
    },
};
use serde::Serialize;

use super::item::Item;

/// Maximum number of writes that commit together with a record.
///
/// A DynamoDB transaction has at most 100 actions (*Amazon DynamoDB Developer Guide*, "Amazon
/// DynamoDB Transactions: How it works"). One of them writes the record.
pub const MAX_WRITES: usize = 99;

/// One write to an item: the SDK's [`Put`], [`Update`], [`Delete`] or [`ConditionCheck`], with an
/// optional label.
///
/// The constructors accept any value that serde can serialize. A value that serde cannot serialize
/// causes a permanent failure, and no request is sent.
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
    /// [`Done::on_refused`](crate::done::Done::on_refused) when its condition check fails.
    #[must_use]
    pub fn label(self, label: impl Into<Cow<'static, str>>) -> Self {
        Self {
            label: Some(label.into()),
            ..self
        }
    }

    /// Returns the serialized value. If serialization failed, stores an error text with `subject`.
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

    /// Requests the existing item when the condition check fails. The item is then in
    /// [`RefusedWrite::item`](crate::refused::RefusedWrite::item).
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
        let delete = Delete::builder().table_name(table);
        let delete = delete.set_key(Some(Item::new())).build();
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

    /// Names the item under `key`, and demands nothing of it.
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

/// The SDK's types for one action of a transaction: [`Put`], [`Update`], [`Delete`] and
/// [`ConditionCheck`].
pub trait Action: sealed::Action {}

/// Actions that identify their item by its primary key: all except [`Put`].
pub trait Keyed: Action + sealed::Keyed {}

mod sealed {
    use super::{AttributeValue, HashMap, Item, TransactWriteItem, fmt};

    pub trait Action: fmt::Debug {
        fn table(&self) -> &str;
        fn add_condition(&mut self, condition: &str);
        fn names(&mut self) -> &mut Option<HashMap<String, String>>;
        fn values(&mut self) -> &mut Option<HashMap<String, AttributeValue>>;
        fn return_item(&mut self);
        fn into_item(self) -> TransactWriteItem;
    }

    pub trait Keyed {
        fn key(&mut self) -> &mut Item;
    }
}

/// Joins two conditions with `AND`.
fn and(first: Option<&str>, second: &str) -> String {
    let second = without_outer_parentheses(second);
    match first.map(without_outer_parentheses) {
        None => second.to_owned(),
        Some(first) => format!("({first}) AND ({second})"),
    }
}

/// Removes parentheses around a whole condition.
///
/// DynamoDB rejects two pairs of parentheses around the same condition as redundant.
fn without_outer_parentheses(condition: &str) -> &str {
    let condition = condition.trim();
    parenthesised(condition).map_or(condition, without_outer_parentheses)
}

/// Returns the text between a first `(` and a last `)` that match each other.
fn parenthesised(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let mut depth = 0_usize;
    for c in inner.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    (depth == 0).then_some(inner)
}

/// Removes empty sets, which DynamoDB rejects, from an item and its nested maps and lists.
///
/// An empty set that is an element of a list stays, because its removal would shift the elements
/// after it.
fn remove_empty_sets(item: &mut Item) {
    item.retain(|_, value| !is_empty_set(value));
    item.values_mut().for_each(remove_nested_empty_sets);
}

fn remove_nested_empty_sets(value: &mut AttributeValue) {
    match value {
        AttributeValue::M(map) => remove_empty_sets(map),
        AttributeValue::L(list) => list.iter_mut().for_each(remove_nested_empty_sets),
        _ => {}
    }
}

const fn is_empty_set(value: &AttributeValue) -> bool {
    match value {
        AttributeValue::Ss(set) | AttributeValue::Ns(set) => set.is_empty(),
        AttributeValue::Bs(set) => set.is_empty(),
        _ => false,
    }
}

macro_rules! actions {
    ($($action:ident $field:ident)+) => {$(
        impl Action for $action {}

        impl sealed::Action for $action {
            fn table(&self) -> &str {
                &self.table_name
            }

            fn add_condition(&mut self, condition: &str) {
                let both = and(ConditionText::text(&self.condition_expression), condition);
                self.condition_expression = both.into();
            }

            fn names(&mut self) -> &mut Option<HashMap<String, String>> {
                &mut self.expression_attribute_names
            }

            fn values(&mut self) -> &mut Option<HashMap<String, AttributeValue>> {
                &mut self.expression_attribute_values
            }

            fn return_item(&mut self) {
                self.return_values_on_condition_check_failure = Some(AllOld);
            }

            fn into_item(self) -> TransactWriteItem {
                TransactWriteItem::builder().$field(self).build()
            }
        }
    )+};
}

actions! { Put put Update update Delete delete ConditionCheck condition_check }

/// The condition of an SDK action: mandatory in a [`ConditionCheck`], optional in all others.
trait ConditionText {
    fn text(&self) -> Option<&str>;
}

impl ConditionText for Option<String> {
    fn text(&self) -> Option<&str> {
        self.as_deref()
    }
}

impl ConditionText for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

macro_rules! keyed {
    ($($action:ident)+) => {$(
        impl Keyed for $action {}

        impl sealed::Keyed for $action {
            fn key(&mut self) -> &mut Item {
                &mut self.key
            }
        }
    )+};
}

keyed! { Update Delete ConditionCheck }

/// Returns the name of the table that an action writes to.
pub(crate) fn table(action: &TransactWriteItem) -> &str {
    let put = action.put().map(Put::table_name);
    let update = || action.update().map(Update::table_name);
    let delete = || action.delete().map(Delete::table_name);
    let check = || action.condition_check().map(ConditionCheck::table_name);
    let table = put.or_else(update).or_else(delete).or_else(check);
    table.unwrap_or_default()
}

/// Displays a write by its position (from 0), label and table.
pub(crate) struct Place<'a> {
    pub(crate) index: usize,
    pub(crate) label: Option<&'a str>,
    pub(crate) table: &'a str,
}

impl<'a> Place<'a> {
    pub(crate) fn of(index: usize, write: &'a Write<TransactWriteItem>) -> Self {
        Self {
            index,
            label: write.label.as_deref(),
            table: table(&write.action),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index,
            label,
            table,
        } = self;
        match label {
            Some(label) => write!(f, "write {index}, `{label}`, to table `{table}`"),
            None => write!(f, "write {index}, to table `{table}`"),
        }
    }
}

/// Builds a single `PutItem` request.
pub(crate) fn put_item(client: &Client, put: Put) -> PutItemFluentBuilder {
    client
        .put_item()
        .table_name(put.table_name)
        .set_item(Some(put.item))
        .set_condition_expression(put.condition_expression)
        .set_expression_attribute_names(put.expression_attribute_names)
        .set_expression_attribute_values(put.expression_attribute_values)
        .set_return_values_on_condition_check_failure(put.return_values_on_condition_check_failure)
}

/// Builds a single `UpdateItem` request.
pub(crate) fn update_item(client: &Client, update: Update) -> UpdateItemFluentBuilder {
    client
        .update_item()
        .table_name(update.table_name)
        .set_key(Some(update.key))
        .update_expression(update.update_expression)
        .set_condition_expression(update.condition_expression)
        .set_expression_attribute_names(update.expression_attribute_names)
        .set_expression_attribute_values(update.expression_attribute_values)
        .set_return_values_on_condition_check_failure(
            update.return_values_on_condition_check_failure,
        )
}

/// Builds a single `DeleteItem` request.
pub(crate) fn delete_item(client: &Client, delete: Delete) -> DeleteItemFluentBuilder {
    client
        .delete_item()
        .table_name(delete.table_name)
        .set_key(Some(delete.key))
        .set_condition_expression(delete.condition_expression)
        .set_expression_attribute_names(delete.expression_attribute_names)
        .set_expression_attribute_values(delete.expression_attribute_values)
        .set_return_values_on_condition_check_failure(
            delete.return_values_on_condition_check_failure,
        )
}

/// Adds the consumed capacity of a write. Does nothing outside of [`Meter::scope`](sqs_once_core::meter::Meter::scope).
pub(crate) fn add_write_units<'a>(consumed: impl IntoIterator<Item = &'a ConsumedCapacity>) {
    let units = consumed.into_iter();
    sqs_once_core::meter::add_units(units.filter_map(ConsumedCapacity::capacity_units).sum());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_is_joined_to_existing_one() {
        let write = Write::put("t", HashMap::from([("id", "1")]));
        let write = write.when("a = :a OR b = :b").when("c = :c");
        let condition = write.action.condition_expression.unwrap();
        assert_eq!(condition, "(a = :a OR b = :b) AND (c = :c)");
        let check = Write::check("t", "a = :a").when("b = :b");
        assert_eq!(check.action.condition_expression, "(a = :a) AND (b = :b)");
    }

    #[test]
    fn parenthesised_condition_is_not_wrapped_again() {
        for (first, second, both) in [
            ("(a OR b)", "(c)", "(a OR b) AND (c)"),
            (" ( a OR b ) ", "((c))", "(a OR b) AND (c)"),
            (
                "(a) OR (b)",
                "((a) OR (b))",
                "((a) OR (b)) AND ((a) OR (b))",
            ),
            ("((a)) OR b", "f(a)", "(((a)) OR b) AND (f(a))"),
        ] {
            assert_eq!(and(Some(first), second), both);
        }
        for (alone, bare) in [("(a)", "a"), ("((a))", "a"), ("(a) OR (b)", "(a) OR (b)")] {
            assert_eq!(and(None, alone), bare);
        }
    }

    #[test]
    fn empty_sets_are_left_out_of_items() {
        let sets = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.into()).collect();
            let bytes = texts.iter().map(|text| text.as_bytes().into());
            Item::from([
                ("bytes".to_owned(), AttributeValue::Bs(bytes.collect())),
                ("numbers".to_owned(), AttributeValue::Ns(texts.clone())),
                ("texts".to_owned(), AttributeValue::Ss(texts)),
                ("list".to_owned(), AttributeValue::L(Vec::new())),
            ])
        };
        let nested = |sets: &dyn Fn() -> Item| {
            let mut item = sets();
            item.insert("map".into(), AttributeValue::M(sets()));
            let list = vec![AttributeValue::M(sets()), AttributeValue::Ss(Vec::new())];
            item.insert("maps".into(), AttributeValue::L(list));
            item
        };
        let put = |item| Write::put_item("t", item).action.item;
        let without = || Item::from([("list".to_owned(), AttributeValue::L(Vec::new()))]);
        assert_eq!(put(nested(&|| sets(&[]))), nested(&without));
        assert_eq!(put(nested(&|| sets(&["1"]))), nested(&|| sets(&["1"])));
    }

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
