//! [`Action`]: what the SDK's types for one action of a transaction have in common.

use std::{collections::HashMap, fmt};

use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, Put, ReturnValuesOnConditionCheckFailure::AllOld,
    TransactWriteItem, Update,
};

use super::condition::and;
use crate::dynamo::item::Item;

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
