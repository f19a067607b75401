//! Builder of update and condition expressions, and of the updates and puts that contain them.

use std::{collections::HashMap, mem};

use aws_sdk_dynamodb::types::{
    AttributeValue, Put, ReturnValuesOnConditionCheckFailure::AllOld, Update,
};

use crate::dynamo::{
    item::Item,
    store::{field::Field, layout::Layout},
};

/// Builds update and condition expressions, with names and values of their placeholders.
///
/// A placeholder contains the attribute's native name: `#owner` for the attribute, and `:owner` for its new
/// value. A value that several parts share has a separate name: `:now`.
pub(super) struct Expression<'a> {
    pub(super) layout: &'a Layout,
    /// True for each field in `names`, by the field's number.
    named: [bool; Field::ALL.len()],
    pub(super) names: HashMap<String, String>,
    pub(super) values: HashMap<String, AttributeValue>,
    set: String,
    remove: String,
    add: String,
}

impl<'a> Expression<'a> {
    pub(super) fn new(layout: &'a Layout) -> Self {
        Self {
            layout,
            named: [false; Field::ALL.len()],
            // A claim has 13, a completion 10.
            names: HashMap::with_capacity(14),
            // A claim has 11, a completion 6. Space for 14 would exceed the sizes that malloc finds quickly.
            values: HashMap::with_capacity(7),
            set: String::with_capacity(384),
            remove: String::with_capacity(128),
            add: String::new(),
        }
    }

    pub(super) fn name(&mut self, field: Field) -> &'static str {
        let placeholder = field.name_placeholder();
        if !mem::replace(&mut self.named[field as usize], true) {
            let name = self.layout.name(field).to_owned();
            self.names.insert(placeholder.to_owned(), name);
        }
        placeholder
    }

    pub(super) fn names<const N: usize>(&mut self, fields: [Field; N]) {
        for field in fields {
            self.name(field);
        }
    }

    pub(super) fn value(&mut self, placeholder: &str, value: AttributeValue) {
        self.values.insert(placeholder.to_owned(), value);
    }

    pub(super) fn new_value(&mut self, field: Field, value: AttributeValue) -> &'static str {
        let placeholder = field.value_placeholder();
        self.value(placeholder, value);
        placeholder
    }

    pub(super) fn set(&mut self, field: Field, value: AttributeValue) {
        let placeholder = self.new_value(field, value);
        self.set_to(field, placeholder);
    }

    /// Sets an attribute to the value of a placeholder.
    pub(super) fn set_to(&mut self, field: Field, placeholder: &str) {
        let name = self.name(field);
        push(&mut self.set, "SET ", &[name, " = ", placeholder]);
    }

    pub(super) fn set_to_if_absent(&mut self, field: Field, placeholder: &str) {
        let name = self.name(field);
        let parts = [name, " = if_not_exists(", name, ", ", placeholder, ")"];
        push(&mut self.set, "SET ", &parts);
    }

    pub(super) fn remove(&mut self, field: Field) {
        let name = self.name(field);
        push(&mut self.remove, "REMOVE ", &[name]);
    }

    pub(super) fn set_or_remove(&mut self, field: Field, value: Option<AttributeValue>) {
        match value {
            Some(value) => self.set(field, value),
            None => self.remove(field),
        }
    }

    pub(super) fn add(&mut self, field: Field, value: AttributeValue) {
        let (name, value) = (self.name(field), self.new_value(field, value));
        push(&mut self.add, "ADD ", &[name, " ", value]);
    }

    fn update_expression(&self) -> String {
        let clauses = [&*self.set, &self.remove, &self.add];
        let mut expression = String::with_capacity(clauses.iter().map(|of| of.len() + 1).sum());
        for clause in clauses.into_iter().filter(|of| !of.is_empty()) {
            if !expression.is_empty() {
                expression.push(' ');
            }
            expression.push_str(clause);
        }
        expression
    }

    /// Returns the condition that these attributes are as in `found`.
    pub(super) fn unchanged(&mut self, found: &Item, fields: &[Field]) -> String {
        let unchanged = fields.iter().map(|&field| {
            let name = self.name(field);
            match found.get(self.layout.name(field)) {
                Some(value) => {
                    let placeholder = format!(":found_{}", field.native_name());
                    self.value(&placeholder, value.clone());
                    format!("{name} = {placeholder}")
                }
                None => format!("attribute_not_exists({name})"),
            }
        });
        unchanged.collect::<Vec<_>>().join(" AND ")
    }

    pub(super) fn into_update(self, table: &str, key: Item, condition: String) -> Update {
        Update::builder()
            .table_name(table)
            .set_key(Some(key))
            .update_expression(self.update_expression())
            .condition_expression(condition)
            .set_expression_attribute_names(Some(self.names))
            .set_expression_attribute_values(Some(self.values))
            .return_values_on_condition_check_failure(AllOld)
            .build()
            .expect("every required field is set")
    }

    pub(super) fn into_put(self, table: &str, item: Item, condition: String) -> Put {
        Put::builder()
            .table_name(table)
            .set_item(Some(item))
            .condition_expression(condition)
            .set_expression_attribute_names(Some(self.names))
            .set_expression_attribute_values(Some(self.values).filter(|values| !values.is_empty()))
            .return_values_on_condition_check_failure(AllOld)
            .build()
            .expect("every required field is set")
    }
}

/// Adds an action to a clause of an update expression.
fn push(clause: &mut String, keyword: &str, action: &[&str]) {
    clause.push_str(if clause.is_empty() { keyword } else { ", " });
    clause.extend(action.iter().copied());
}
