//! [`WritePlace`]: how errors name a write, by position, label and table.

use std::fmt;

use aws_sdk_dynamodb::types::{ConditionCheck, Delete, Put, TransactWriteItem, Update};

use super::Write;

pub(crate) fn table(action: &TransactWriteItem) -> &str {
    let put = action.put().map(Put::table_name);
    let update = || action.update().map(Update::table_name);
    let delete = || action.delete().map(Delete::table_name);
    let check = || action.condition_check().map(ConditionCheck::table_name);
    let table = put.or_else(update).or_else(delete).or_else(check);
    table.unwrap_or_default()
}

/// Shows a write by its position (counted from 0), label and table.
pub(crate) struct WritePlace<'a> {
    pub(crate) index: usize,
    pub(crate) label: Option<&'a str>,
    pub(crate) table: &'a str,
}

impl<'a> WritePlace<'a> {
    pub(crate) fn of(index: usize, write: &'a Write<TransactWriteItem>) -> Self {
        Self {
            index,
            label: write.label.as_deref(),
            table: table(&write.action),
        }
    }
}

impl fmt::Display for WritePlace<'_> {
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
