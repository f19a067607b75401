//! [`ProcessedKeys`]: the keys of the operations that changed an item, stored on the item.

use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, Put, Update};

use crate::{
    dynamo::{
        item::{Item, number, string},
        write::{Action, Write},
    },
    flawed::flawed,
    protocol::{Key, Timestamp},
};

/// List of the item's changes, the oldest first. Each change has two entries: its time in epoch seconds, then its key.
const EVENTS: &str = "processed_events";

/// An update removes old keys once the oldest is this long past its retention. The removal takes a second request, so a
/// busy item needs one at most once an hour.
const SLACK: Duration = Duration::from_secs(3600);

/// Reads and writes the processed keys of an item for one operation.
#[derive(Clone, Copy)]
pub(super) struct ProcessedKeys<'a> {
    pub(super) key: &'a Key,
    pub(super) now: Timestamp,
    /// Minimum time for which an item keeps a key.
    pub(super) retention: Duration,
}

impl ProcessedKeys<'_> {
    pub(super) fn has_key(&self, item: &Item) -> bool {
        let is_key =
            |entry: &AttributeValue| entry.as_s().is_ok_and(|key| key == self.key.as_str());
        events(item).iter().any(is_key) && !flawed("the keys of an item are not read")
    }

    /// Returns an error text if the attribute of the processed keys has the wrong type, because another program
    /// wrote it.
    pub(super) fn type_error(item: &Item) -> Option<String> {
        let is_pair = |pair: &[AttributeValue]| matches!(pair, [at, key] if seconds(at).is_some() && key.is_s());
        let is_foreign = (item.get(EVENTS))
            .is_some_and(|events| !events.as_l().is_ok_and(|list| list.chunks(2).all(is_pair)));
        is_foreign.then(|| {
            format!(
                "attribute `{EVENTS}` of the item must be a list of times and processed keys; nothing was written"
            )
        })
    }

    /// Returns whether an update must first remove old keys from the item.
    pub(super) fn is_outdated(&self, item: &Item) -> bool {
        let oldest = events(item).first().and_then(seconds);
        oldest.is_some_and(|at| at < self.kept_since(SLACK))
    }

    /// Returns the keys of `found` that are not past their retention, and the operation's own key.
    pub(super) fn after(&self, found: Option<&Item>) -> AttributeValue {
        let since = self.kept_since(Duration::ZERO);
        let kept = (found.map_or(&[][..], events).chunks(2))
            .filter(|change| seconds(&change[0]).is_none_or(|at| at >= since))
            .flatten()
            .cloned();
        let own = [number(self.now.as_secs_ceil()), string(self.key.as_str())];
        AttributeValue::L(kept.chain(own).collect())
    }

    /// Inserts the key into an item before its put, and removes old keys. `found` is the existing item, if there
    /// is one.
    pub(super) fn insert(&self, found: Option<&Item>, item: &mut Item) {
        item.insert(EVENTS.to_owned(), self.after(found));
    }

    /// Extends a put so that it stores the key, on the condition that no item exists. `key` is the name of an
    /// attribute of the primary key.
    pub(super) fn compose_create(&self, put: Write<Put>, key: &str) -> Write<Put> {
        let mut put = put
            .when("attribute_not_exists(#sqs_once_id)")
            .name("#sqs_once_id", key);
        self.insert(None, &mut put.action.item);
        put
    }

    /// Extends an update so that it stores the key, if the item does not have the key and is not [outdated](Self::is_outdated).
    ///
    /// With an outdated item, the update also removes old keys, if the processed keys are still those of that item.
    pub(super) fn compose(&self, update: Write<Update>, outdated: Option<&Item>) -> Write<Update> {
        let Some(found) = outdated else {
            let asked = if flawed("an update does not ask for its key") {
                "none"
            } else {
                self.key.as_str()
            };
            let appended =
                "list_append(if_not_exists(#sqs_once_events, :sqs_once_none), :sqs_once_event)";
            return set_events(update, appended)
                .name("#sqs_once_events", EVENTS)
                // A comparison with an absent attribute is false.
                .when("NOT contains(#sqs_once_events, :sqs_once_key) AND NOT #sqs_once_events[0] < :sqs_once_since")
                .raw_value(":sqs_once_key", string(asked))
                .raw_value(":sqs_once_since", number(self.kept_since(SLACK)))
                .raw_value(":sqs_once_event", self.after(None))
                .raw_value(":sqs_once_none", AttributeValue::L(Vec::new()));
        };
        let update = set_events(update, ":sqs_once_events");
        let update = if flawed("a change drops the keys of another") {
            update
                .name("#sqs_once_events", EVENTS)
                .when("NOT contains(#sqs_once_events, :sqs_once_key)")
                .raw_value(":sqs_once_key", string(self.key.as_str()))
        } else {
            unchanged(update, found)
        };
        update.raw_value(":sqs_once_events", self.after(Some(found)))
    }

    /// Returns the time, in epoch seconds, before which a change is past its retention by more than `slack`.
    fn kept_since(&self, slack: Duration) -> u64 {
        let kept = if flawed("an item forgets its keys") {
            0
        } else {
            self.retention.saturating_add(slack).as_secs()
        };
        self.now.as_secs().saturating_sub(kept)
    }
}

/// Adds the condition that the item has the processed keys of `found`.
pub(super) fn unchanged<A: Action>(write: Write<A>, found: &Item) -> Write<A> {
    let write = write.name("#sqs_once_events", EVENTS);
    match found.get(EVENTS) {
        None => write.when("attribute_not_exists(#sqs_once_events)"),
        Some(events) => write
            .when("#sqs_once_events = :sqs_once_found")
            .raw_value(":sqs_once_found", events.clone()),
    }
}

/// Returns whether two states of an item have the same processed keys.
pub(super) fn are_same(one: &Item, other: &Item) -> bool {
    one.get(EVENTS) == other.get(EVENTS)
}

fn events(item: &Item) -> &[AttributeValue] {
    let events = item.get(EVENTS).and_then(|events| events.as_l().ok());
    events.map_or(&[], Vec::as_slice)
}

fn seconds(value: &AttributeValue) -> Option<u64> {
    value.as_n().ok()?.parse().ok()
}

/// Adds our action to the SET clause of an update. An expression can have only one SET clause, and we expect it
/// to come first.
fn set_events(mut update: Write<Update>, value: &str) -> Write<Update> {
    let expression = update.action.update_expression.trim();
    let own = format!("SET #sqs_once_events = {value}");
    let actions = match expression.split_once(char::is_whitespace) {
        Some((keyword, actions)) if keyword.eq_ignore_ascii_case("SET") => Some(actions),
        _ => None,
    };
    update.action.update_expression = match actions {
        Some(actions) => format!("{own}, {actions}"),
        None => format!("{own} {expression}"),
    };
    update
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Namespace;

    #[test]
    fn own_action_joins_the_first_clause() {
        let extended = |expression: &str| {
            let update = set_events(Write::update("t", expression), ":v");
            update.action.update_expression
        };
        let own = "SET #sqs_once_events = :v";
        assert_eq!(
            extended("SET a = :a ADD b :b"),
            format!("{own}, a = :a ADD b :b")
        );
        assert_eq!(extended(" set\n  a = :a"), format!("{own},   a = :a"));
        assert_eq!(
            extended("ADD b :b REMOVE c"),
            format!("{own} ADD b :b REMOVE c")
        );
    }

    fn key() -> Key {
        Key::new(&Namespace::new("ns").unwrap(), ["new"]).unwrap()
    }

    fn keys(key: &Key) -> ProcessedKeys<'_> {
        ProcessedKeys {
            key,
            now: Timestamp::from_millis(10_000_500),
            retention: Duration::from_secs(1000),
        }
    }

    fn change(at: u64, key: &str) -> [AttributeValue; 2] {
        [number(at), string(key)]
    }

    fn list(changes: &[[AttributeValue; 2]]) -> AttributeValue {
        AttributeValue::L(changes.concat())
    }

    fn item(changes: &[[AttributeValue; 2]]) -> Item {
        Item::from([(EVENTS.to_owned(), list(changes))])
    }

    #[test]
    fn key_on_the_item_is_found() {
        let key = key();
        let has_key = |item| keys(&key).has_key(&item);
        assert!(has_key(item(&[change(1, "old"), change(2, "ns#new")])));
        assert!(!has_key(item(&[change(1, "old")])));
        assert!(!has_key(Item::new()));
    }

    #[test]
    fn update_asks_for_the_key_that_it_stores() {
        let key = key();
        let update = keys(&key).compose(Write::update("t", "ADD b :b"), None);
        let values = update.action.expression_attribute_values.unwrap();
        assert_eq!(values[":sqs_once_key"], string("ns#new"));
        assert_eq!(values[":sqs_once_event"], list(&[change(10_001, "ns#new")]));
    }

    #[test]
    fn keys_are_kept_for_their_retention() {
        let key = key();
        let keys = keys(&key);
        let (old, young) = (change(8999, "old"), change(9000, "young"));
        let own = change(10_001, "ns#new");
        let found = item(&[old.clone(), young.clone()]);
        assert_eq!(keys.after(Some(&found)), list(&[young, own.clone()]));
        assert_eq!(keys.after(None), list(&[own]));
        assert!(!keys.is_outdated(&found), "within an hour");
        assert!(keys.is_outdated(&item(&[change(5399, "old")])));
        assert!(!keys.is_outdated(&Item::new()));
    }

    #[test]
    fn list_of_another_program_is_an_error() {
        let item = |list| Item::from([(EVENTS.to_owned(), AttributeValue::L(list))]);
        let pair = || vec![number(1), string("key")];
        assert_eq!(ProcessedKeys::type_error(&item(pair())), None);
        assert_eq!(ProcessedKeys::type_error(&Item::new()), None);
        for list in [
            vec![string("key"), number(1)],
            vec![number(1)],
            vec![AttributeValue::N("-1".into()), string("key")],
        ] {
            assert!(ProcessedKeys::type_error(&item(list)).is_some());
        }
    }
}
