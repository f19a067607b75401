//! Removes empty sets from items.

use aws_sdk_dynamodb::types::AttributeValue;

use crate::dynamo::item::Item;

/// Removes empty sets, which DynamoDB rejects, from an item and its nested maps and lists.
///
/// An empty set that is an element of a list stays, because removing it would shift the elements after it.
pub(super) fn remove_empty_sets(item: &mut Item) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamo::write::Write;

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
}
