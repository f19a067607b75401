//! Items: attributes by name, and their size by DynamoDB's rules.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

/// Attributes by name.
pub(crate) type Item = HashMap<String, AttributeValue>;

pub(crate) fn string(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(crate) fn number(n: u64) -> AttributeValue {
    AttributeValue::N(n.to_string())
}

/// Returns an upper bound of the item's size in bytes, by DynamoDB's rules (*Amazon DynamoDB Developer
/// Guide*, "DynamoDB item sizes and formats").
///
/// Names and strings have the size of their UTF-8. For a number we assume 21 bytes, the largest size.
pub(crate) fn size(item: &Item) -> usize {
    item.iter()
        .map(|(name, value)| name.len() + value_size(value))
        .sum()
}

fn value_size(value: &AttributeValue) -> usize {
    const NUMBER: usize = 21;
    const NESTED: usize = 3;
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(_) => NUMBER,
        AttributeValue::B(blob) => blob.as_ref().len(),
        AttributeValue::Ss(texts) => texts.iter().map(String::len).sum(),
        AttributeValue::Ns(numbers) => numbers.len() * NUMBER,
        AttributeValue::Bs(blobs) => blobs.iter().map(|blob| blob.as_ref().len()).sum(),
        AttributeValue::L(values) => {
            NESTED + values.iter().map(|v| 1 + value_size(v)).sum::<usize>()
        }
        AttributeValue::M(item) => NESTED + item.len() + size(item),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand from the Developer Guide's rules.
    #[test]
    fn item_size_matches_dynamodb_count() {
        use AttributeValue::{B, Bool, Bs, L, M, N, Ns, Null, Ss};
        let texts = || vec!["ab".to_owned(), "cde".to_owned()];
        for (value, bytes) in [
            (string("é"), 2),
            (N("7".into()), 21),
            (B(vec![1, 2, 3].into()), 3),
            (Ss(texts()), 5),
            (Ns(vec!["1".into(), "2".into()]), 42),
            (Bs(vec![vec![1].into(), vec![2, 3].into()]), 3),
            (Null(true), 1),
            (Bool(false), 1),
            (L(vec![]), 3),
            (L(vec![string("ab"), Null(true)]), 3 + (1 + 2) + (1 + 1)),
            (M(Item::new()), 3),
            (M(Item::from([("key".into(), string("ab"))])), 3 + 1 + 3 + 2),
        ] {
            let item = Item::from([("name".to_owned(), value)]);
            assert_eq!(size(&item), 4 + bytes, "{item:?}");
        }
    }
}
