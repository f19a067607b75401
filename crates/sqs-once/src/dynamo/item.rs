//! Items: attributes by name.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::protocol::record::RecordValue;

pub(crate) type Item = HashMap<String, AttributeValue>;

pub(crate) fn string(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(crate) fn number(n: u64) -> AttributeValue {
    AttributeValue::N(n.to_string())
}

impl From<RecordValue<'_>> for AttributeValue {
    fn from(value: RecordValue<'_>) -> Self {
        match value {
            RecordValue::Text(text) => string(text),
            RecordValue::Number(n) => number(n),
        }
    }
}

pub(crate) fn owned<'a>(attributes: impl Iterator<Item = (&'a str, RecordValue<'a>)>) -> Item {
    attributes
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}
