//! [`ProcessedKeys`]: the keys of the operations that changed an item, stored on the item.

use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, Put, Update};

use crate::{
    item::{Item, number, string},
    write::Write,
};
use sqs_once_core::protocol::{Fingerprint, Key, Timestamp};

/// String set of all keys, used if there is neither a retention nor a payload comparison.
const EVENTS: &str = "processed_events";
/// Map from each key to the end of its retention in seconds since the epoch, used with a retention or a
/// payload comparison.
///
/// The decimals of the number are the [`fingerprint_digits`] of the payload. Conditions compare the number
/// with whole seconds, so the decimals do not change the end.
const UNTIL: &str = "processed_until";

/// End of the retention of a key that is kept forever: in the year 2286.
const NEVER: u64 = 9_999_999_999;

/// Maximum size of an expression, in bytes. An expression has at most 300 operators (*Amazon
/// DynamoDB Developer Guide*, "Constraints in Amazon DynamoDB").
const MAX_EXPRESSION_BYTES: usize = 4096;
/// Maximum number of expired keys that one update removes, with three operators for each key.
const MAX_PRUNED: usize = 50;

/// Reads and writes the processed keys of an item for one operation.
#[derive(Clone, Copy)]
pub(super) struct ProcessedKeys<'a> {
    pub(super) key: &'a Key,
    pub(super) now: Timestamp,
    /// Retention of a key. `None` keeps all keys.
    pub(super) retention: Option<Duration>,
    /// Fingerprint of the payload. `None` if payloads are not compared.
    pub(super) fingerprint: Option<&'a Fingerprint>,
}

/// The result of looking up an operation's key on an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Lookup {
    Absent,
    /// The item has the key, with the same payload or without a fingerprint.
    Processed,
    /// The item has the key, with a different payload.
    OtherPayload,
}

/// Facts about an item that the expressions of an update depend on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct UpdateFacts {
    /// True if the item has the map [`UNTIL`].
    pub(super) has_map: bool,
    /// Keys past the end of their retention.
    expired: Vec<String>,
}

impl ProcessedKeys<'_> {
    /// Looks up the key on an item.
    pub(super) fn lookup(&self, item: &Item) -> Lookup {
        let in_set = item.get(EVENTS).and_then(|keys| keys.as_ss().ok());
        let ends = item.get(UNTIL).and_then(|ends| ends.as_m().ok());
        let end = ends.and_then(|ends| ends.get(self.key.as_str()));
        match end.filter(|end| !self.is_expired(end)) {
            Some(end) if self.is_of_other_payload(end) => Lookup::OtherPayload,
            Some(_) => Lookup::Processed,
            None if in_set.is_some_and(|keys| keys.iter().any(|key| key == self.key.as_str())) => {
                Lookup::Processed
            }
            None => Lookup::Absent,
        }
    }

    /// Returns an error text if an attribute for processed keys has the wrong type, because a different
    /// program wrote it.
    pub(super) fn type_error(item: &Item) -> Option<String> {
        let (name, kind) = if item.get(EVENTS).is_some_and(|keys| !keys.is_ss()) {
            (EVENTS, "string set")
        } else if item.get(UNTIL).is_some_and(|ends| !ends.is_m()) {
            (UNTIL, "map")
        } else {
            return None;
        };
        Some(format!(
            "attribute `{name}` of the item must be a {kind} of processed keys; nothing was written"
        ))
    }

    fn is_expired(&self, end: &AttributeValue) -> bool {
        let whole = end.as_n().ok().and_then(|end| end.split('.').next());
        let end = whole.and_then(|seconds| seconds.parse::<u64>().ok());
        end.is_some_and(|end| end < self.now.as_secs())
    }

    fn is_of_other_payload(&self, end: &AttributeValue) -> bool {
        let kept = end.as_n().ok().and_then(|end| end.split_once('.'));
        match (self.fingerprint, kept) {
            (Some(fingerprint), Some((_, kept))) => fingerprint_digits(fingerprint) != kept,
            // The item or the operation has no fingerprint.
            _ => false,
        }
    }

    /// Returns the key's value in the map [`UNTIL`], or `None` if the key belongs in the set
    /// [`EVENTS`].
    fn end(&self) -> Option<AttributeValue> {
        let end = match (self.retention, self.fingerprint) {
            (None, None) => return None,
            (None, Some(_)) => NEVER,
            (Some(retention), _) => (self.now + retention).as_secs_ceil(),
        };
        Some(match self.fingerprint {
            None => number(end),
            Some(fingerprint) => {
                AttributeValue::N(format!("{end}.{}", fingerprint_digits(fingerprint)))
            }
        })
    }

    /// Copies the processed keys of `found` to an item that a handler made from `found`, and replaces any
    /// keys that the handler's type has written.
    pub(super) fn copy(&self, found: Option<&Item>, item: &mut Item) {
        for name in [EVENTS, UNTIL] {
            match found.and_then(|found| found.get(name)) {
                Some(kept) => item.insert(name.to_owned(), kept.clone()),
                None => item.remove(name),
            };
        }
    }

    /// Adds the condition that the item still has the processed keys of `found`. A concurrent update changes
    /// the keys but not the version.
    pub(super) fn compose_unchanged(&self, mut put: Write<Put>, found: &Item) -> Write<Put> {
        for (name, placeholder) in [(EVENTS, "sqs_once_events"), (UNTIL, "sqs_once_until")] {
            put = put.name(format!("#{placeholder}"), name);
            put = match found.get(name) {
                None => put.when(&format!("attribute_not_exists(#{placeholder})")),
                Some(found) => put
                    .when(&format!("#{placeholder} = :{placeholder}"))
                    .raw_value(format!(":{placeholder}"), found.clone()),
            };
        }
        put
    }

    /// Inserts the key into an item before its put, and removes expired keys.
    pub(super) fn insert(&self, item: &mut Item) {
        let key = self.key.as_str().to_owned();
        let Some(end) = self.end() else {
            let keys = item
                .entry(EVENTS.to_owned())
                .or_insert_with(|| AttributeValue::Ss(Vec::new()));
            match keys {
                AttributeValue::Ss(keys) => keys.push(key),
                other => *other = AttributeValue::Ss(vec![key]),
            }
            return;
        };
        let ends = item
            .entry(UNTIL.to_owned())
            .or_insert_with(|| AttributeValue::M(Item::new()));
        if let AttributeValue::M(ends) = ends {
            ends.retain(|_, end| !self.is_expired(end));
            ends.insert(key, end);
        } else {
            *ends = AttributeValue::M(Item::from([(key, end)]));
        }
    }

    /// Returns whether an update must read the item first.
    pub(super) const fn reads_before_update(&self) -> bool {
        self.retention.is_some() || self.fingerprint.is_some()
    }

    /// Returns the facts about an item that the expressions of an update depend on.
    pub(super) fn update_facts(&self, item: Option<&Item>) -> UpdateFacts {
        let Some(ends) = item.and_then(|item| item.get(UNTIL)?.as_m().ok()) else {
            return UpdateFacts::default();
        };
        let expired = ends
            .iter()
            .filter(|(key, end)| self.is_expired(end) && key.as_str() != self.key.as_str())
            .map(|(key, _)| key.clone())
            .take(MAX_PRUNED)
            .collect();
        UpdateFacts {
            has_map: true,
            expired,
        }
    }

    /// Returns whether the facts are true of this item. If not, the condition check may have failed because
    /// of the facts, and not because of the update's own condition.
    pub(super) fn facts_hold(&self, facts: &UpdateFacts, item: Option<&Item>) -> bool {
        let ends = item.and_then(|item| item.get(UNTIL)?.as_m().ok());
        let is_expired = |key| {
            let end = ends.and_then(|ends| ends.get(key));
            end.is_none_or(|end| self.is_expired(end))
        };
        ends.is_some() == facts.has_map && facts.expired.iter().all(is_expired)
    }

    /// Projection expression with the attributes for [`update_facts`](Self::update_facts) and
    /// [`lookup`](Self::lookup).
    pub(super) const PROJECTION: &'static str = "processed_events, processed_until";

    /// Extends an update so that it stores the key, on the condition that the item does not have the key.
    pub(super) fn compose(&self, mut update: Write<Update>, facts: &UpdateFacts) -> Write<Update> {
        let key = self.key.as_str();
        // Checks both attributes, because the options may have changed since the item was last changed.
        update = update
            .when("NOT contains(#sqs_once_events, :sqs_once_key)")
            .when(
                "attribute_not_exists(#sqs_once_until.#sqs_once_key) \
                 OR #sqs_once_until.#sqs_once_key < :sqs_once_now",
            )
            .name("#sqs_once_events", EVENTS)
            .name("#sqs_once_until", UNTIL)
            .name("#sqs_once_key", key)
            .raw_value(":sqs_once_key", string(key))
            .raw_value(":sqs_once_now", number(self.now.as_secs()));
        let Some(end) = self.end() else {
            return extend(update, "ADD", "#sqs_once_events :sqs_once_keys")
                .raw_value(":sqs_once_keys", AttributeValue::Ss(vec![key.to_owned()]));
        };
        if !facts.has_map {
            let ends = Item::from([(key.to_owned(), end)]);
            return extend(update, "SET", "#sqs_once_until = :sqs_once_ends")
                .when("attribute_not_exists(#sqs_once_until)")
                .raw_value(":sqs_once_ends", AttributeValue::M(ends));
        }
        update = extend(
            update,
            "SET",
            "#sqs_once_until.#sqs_once_key = :sqs_once_end",
        )
        .when("attribute_exists(#sqs_once_until)")
        .raw_value(":sqs_once_end", end);
        prune(update, &facts.expired)
    }

    /// Extends a put so that it stores the key, on the condition that no item exists. `key` is the name of an
    /// attribute of the primary key.
    pub(super) fn compose_create(&self, put: Write<Put>, key: &str) -> Write<Put> {
        let mut put = put
            .when("attribute_not_exists(#sqs_once_id)")
            .name("#sqs_once_id", key);
        self.insert(&mut put.action.item);
        put
    }
}

/// Returns the first 16 hex digits of a fingerprint as decimals of a number.
///
/// The result always has 21 digits. The last one is 1, because DynamoDB drops trailing zeros.
fn fingerprint_digits(fingerprint: &Fingerprint) -> String {
    let digits = fingerprint.as_str().chars().filter_map(|c| c.to_digit(16));
    let number = digits
        .take(16)
        .fold(0_u64, |n, digit| n << 4 | u64::from(digit));
    format!("{number:020}1")
}

/// Extends an update so that it removes expired keys, as far as the expressions have room.
///
/// The update's condition requires that the keys are still expired, because a new operation may have stored
/// one of them again.
fn prune(mut update: Write<Update>, expired: &[String]) -> Write<Update> {
    let condition = update.action.condition_expression.as_deref();
    let mut room = [
        // We reserve 20 bytes for the text that joins the parts.
        MAX_EXPRESSION_BYTES.saturating_sub(update.action.update_expression.len() + 20),
        MAX_EXPRESSION_BYTES.saturating_sub(condition.map_or(0, str::len) + 20),
    ];
    let (mut paths, mut still_expired) = (Vec::new(), Vec::new());
    for (n, key) in expired.iter().enumerate() {
        let path = format!("#sqs_once_until.#sqs_once_{n}");
        // This is true of an absent key too, because DynamoDB's comparison with an absent attribute is false.
        let is_expired = format!("NOT {path} >= :sqs_once_now");
        let needed = [path.len() + ", ".len(), is_expired.len() + " AND ".len()];
        if room[0] < needed[0] || room[1] < needed[1] {
            break;
        }
        room = [room[0] - needed[0], room[1] - needed[1]];
        update = update.name(format!("#sqs_once_{n}"), key);
        paths.push(path);
        still_expired.push(is_expired);
    }
    if paths.is_empty() {
        return update;
    }
    extend(update, "REMOVE", &paths.join(", ")).when(&still_expired.join(" AND "))
}

/// Adds an action to a clause of an update expression, which may contain each clause only once.
fn extend(mut update: Write<Update>, clause: &str, action: &str) -> Write<Update> {
    let expression = &mut update.action.update_expression;
    match end_of_keyword(expression, clause) {
        Some(end) => expression.insert_str(end, &format!(" {action},")),
        None => {
            *expression = format!("{expression} {clause} {action}")
                .trim_start()
                .to_owned()
        }
    }
    update
}

/// Returns the end of a clause's keyword in an expression.
///
/// Words after `#`, `:` or `.` are not keywords. An attribute name cannot be a keyword, because
/// keywords are reserved words.
fn end_of_keyword(expression: &str, keyword: &str) -> Option<usize> {
    let part_of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '#' | ':' | '.');
    let mut end = 0;
    for word in expression.split_inclusive(|c| !part_of_word(c)) {
        let trimmed = word.trim_end_matches(|c| !part_of_word(c));
        if trimmed.eq_ignore_ascii_case(keyword) {
            return Some(end + trimmed.len());
        }
        end += word.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extended(expression: &str, clause: &str) -> String {
        let update = extend(Write::update("t", expression), clause, "x");
        update.action.update_expression
    }

    #[test]
    fn clause_is_found_or_added() {
        assert_eq!(extended("", "ADD"), "ADD x");
        assert_eq!(extended("SET a = :a", "ADD"), "SET a = :a ADD x");
        assert_eq!(
            extended("SET a = :a add b :b", "ADD"),
            "SET a = :a add x, b :b"
        );
        assert_eq!(
            extended("ADD b :b SET a = :a", "SET"),
            "ADD b :b SET x, a = :a"
        );
        assert_eq!(extended("SET\n  a = :a", "SET"), "SET x,\n  a = :a");
    }

    #[test]
    fn cleanup_fits_expression_size() {
        let expired: Vec<_> = (0..MAX_PRUNED).map(|n| format!("key-{n}")).collect();
        let pruned = |update: usize, condition: usize| {
            let update = Write::update("t", format!("SET {}", "a".repeat(update)));
            let pruned = prune(update.when(&"c".repeat(condition)), &expired).action;
            let condition = pruned.condition_expression.unwrap();
            let many = condition.matches("NOT #").count();
            assert_eq!(
                pruned.update_expression.matches("#sqs_once_until").count(),
                many
            );
            (many, pruned.update_expression.len(), condition.len())
        };
        let most = |size| size <= MAX_EXPRESSION_BYTES;
        // True if another key would not fit, even the longest one with the text that joins it.
        let full = |size: usize| size + 80 > MAX_EXPRESSION_BYTES;
        assert_eq!(pruned(1, 1).0, MAX_PRUNED);
        for length in (0..4000).step_by(7) {
            let (many, update, condition) = pruned(length, 1);
            assert!(
                most(update) && (many == MAX_PRUNED || full(update)),
                "{length}: {many}"
            );
            let (many, _, longest) = pruned(1, length);
            assert!(
                most(longest) && (many == MAX_PRUNED || full(longest)),
                "{length}: {many}"
            );
            assert!(most(condition));
        }
    }

    #[test]
    fn keyword_inside_name_is_not_a_clause() {
        let words = "SET #ADD = :add, a.add = :b, added = :c";
        assert_eq!(extended(words, "ADD"), format!("{words} ADD x"));
        let function = "SET a = if_not_exists(#set,:set)";
        assert_eq!(end_of_keyword(function, "SET"), Some(3));
    }
}
