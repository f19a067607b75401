//! The memory of an item: the keys of the operations that changed it.

use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, Put, Update};

use crate::{
    dynamodb::{
        item::{Item, number, string},
        write::Write,
    },
    protocol::{Fingerprint, Key, Timestamp},
};

/// Every key, in a string set.
const EVENTS: &str = "processed_events";
/// Or, where they are kept for a time or payloads are compared: each key with its end, in seconds
/// since the epoch. Behind the end's point are the digits of the payload's [`print`]. They are less
/// than a second, and the ends are compared with whole seconds, so they move no end.
const UNTIL: &str = "processed_until";

/// The end of what is kept for ever: in the year 2286.
const NEVER: u64 = 9_999_999_999;

/// An expression has at most 4 KB, and 300 operators (*Amazon DynamoDB Developer Guide*,
/// "Constraints in Amazon DynamoDB").
const MAX_EXPRESSION_BYTES: usize = 4096;
/// The most ends that one update clears away, at three operators each.
const MOST_PRUNED: usize = 50;

/// How an item remembers one operation.
#[derive(Clone, Copy)]
pub(super) struct ProcessedKeys<'a> {
    pub(super) key: &'a Key,
    pub(super) now: Timestamp,
    /// For how long; `None` is for ever.
    pub(super) retention: Option<Duration>,
    /// The payload's, if payloads are compared.
    pub(super) fingerprint: Option<&'a Fingerprint>,
}

/// The memory that an item has of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Recall {
    Nothing,
    /// The operation, as far as its payload is known.
    Operation,
    /// The key, for another payload.
    OtherPayload,
}

/// Facts about an item that an update of it needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// True if the item has [`UNTIL`].
    pub(super) has_map: bool,
    /// The keys whose time is over.
    over: Vec<String>,
}

impl ProcessedKeys<'_> {
    pub(super) fn recall(&self, item: &Item) -> Recall {
        let in_set = item.get(EVENTS).and_then(|keys| keys.as_ss().ok());
        let end = item.get(UNTIL).and_then(|ends| ends.as_m().ok());
        let end = end.and_then(|ends| ends.get(self.key.as_str()));
        match end.filter(|end| !self.is_over(end)) {
            Some(end) if self.is_of_other_payload(end) => Recall::OtherPayload,
            Some(_) => Recall::Operation,
            None if in_set.is_some_and(|keys| keys.iter().any(|key| key == self.key.as_str())) => {
                Recall::Operation
            }
            None => Recall::Nothing,
        }
    }

    /// Why the item's memory is none, if so: another program's attribute has its name.
    pub(super) fn fault(item: &Item) -> Option<String> {
        let (name, kind) = if item.get(EVENTS).is_some_and(|keys| !keys.is_ss()) {
            (EVENTS, "string set")
        } else if item.get(UNTIL).is_some_and(|ends| !ends.is_m()) {
            (UNTIL, "map")
        } else {
            return None;
        };
        Some(format!(
            "the item's `{name}` is no {kind}, so what the item has seen can't be known; nothing was written"
        ))
    }

    fn is_over(&self, end: &AttributeValue) -> bool {
        let whole = end.as_n().ok().and_then(|end| end.split('.').next());
        let end = whole.and_then(|seconds| seconds.parse::<u64>().ok());
        end.is_some_and(|end| end < self.now.as_secs())
    }

    fn is_of_other_payload(&self, end: &AttributeValue) -> bool {
        let kept = end.as_n().ok().and_then(|end| end.split_once('.'));
        match (self.fingerprint, kept) {
            (Some(fingerprint), Some((_, kept))) => print(fingerprint) != kept,
            // One side has none.
            _ => false,
        }
    }

    /// The value of the key in the map; `None` where the key goes into the set.
    fn end(&self) -> Option<AttributeValue> {
        let end = match (self.retention, self.fingerprint) {
            (None, None) => return None,
            (None, Some(_)) => NEVER,
            (Some(retention), _) => (self.now + retention).as_secs_ceil(),
        };
        Some(match self.fingerprint {
            None => number(end),
            Some(fingerprint) => AttributeValue::N(format!("{end}.{}", print(fingerprint))),
        })
    }

    /// Gives an item that a handler made of `found` the memory of `found`, whatever the
    /// handler's type makes of it.
    pub(super) fn keep(&self, found: Option<&Item>, item: &mut Item) {
        for name in [EVENTS, UNTIL] {
            match found.and_then(|found| found.get(name)) {
                Some(kept) => item.insert(name.to_owned(), kept.clone()),
                None => item.remove(name),
            };
        }
    }

    /// Demands that the item remembers what `found` does: an update since then counts no version.
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

    /// Notes the operation in an item that is about to be put, and forgets what is over.
    pub(super) fn note(&self, item: &mut Item) {
        let key = self.key.as_str().to_owned();
        let Some(end) = self.end() else {
            let keys = item.entry(EVENTS.to_owned());
            let keys = keys.or_insert_with(|| AttributeValue::Ss(Vec::new()));
            match keys {
                AttributeValue::Ss(keys) => keys.push(key),
                other => *other = AttributeValue::Ss(vec![key]),
            }
            return;
        };
        let ends = item.entry(UNTIL.to_owned());
        let ends = ends.or_insert_with(|| AttributeValue::M(Item::new()));
        if let AttributeValue::M(ends) = ends {
            ends.retain(|_, end| !self.is_over(end));
            ends.insert(key, end);
        } else {
            *ends = AttributeValue::M(Item::from([(key, end)]));
        }
    }

    /// Returns whether an update has to read the item first.
    pub(super) const fn looks_first(&self) -> bool {
        self.retention.is_some() || self.fingerprint.is_some()
    }

    /// Reads the facts that an update needs.
    pub(super) fn see(&self, item: Option<&Item>) -> Seen {
        let Some(ends) = item.and_then(|item| item.get(UNTIL)?.as_m().ok()) else {
            return Seen::default();
        };
        let over = ends
            .iter()
            .filter(|(key, end)| self.is_over(end) && key.as_str() != self.key.as_str());
        Seen {
            has_map: true,
            over: over.map(|(key, _)| key.clone()).take(MOST_PRUNED).collect(),
        }
    }

    /// Returns whether these facts hold for this item. Else a refusal says nothing of the
    /// update's own condition.
    pub(super) fn holds(&self, seen: &Seen, item: Option<&Item>) -> bool {
        let ends = item.and_then(|item| item.get(UNTIL)?.as_m().ok());
        let is_over = |key| {
            let end = ends.and_then(|ends| ends.get(key));
            end.is_none_or(|end| self.is_over(end))
        };
        ends.is_some() == seen.has_map && seen.over.iter().all(is_over)
    }

    /// The projection of what [`see`](Self::see) and [`recall`](Self::recall) look at.
    pub(super) const PROJECTION: &'static str = "processed_events, processed_until";

    /// Adds to an update that it notes the operation, and is made only if the item has not seen
    /// it.
    pub(super) fn compose(&self, mut update: Write<Update>, seen: &Seen) -> Write<Update> {
        let key = self.key.as_str();
        // Both, since a retention may have been set, or taken back, since the item was changed.
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
        if !seen.has_map {
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
        prune(update, &seen.over)
    }

    /// Demands that a put makes a new item; `key` is an attribute of its primary key.
    pub(super) fn compose_create(&self, put: Write<Put>, key: &str) -> Write<Put> {
        let mut put = put
            .when("attribute_not_exists(#sqs_once_id)")
            .name("#sqs_once_id", key);
        self.note(&mut put.action.item);
        put
    }
}

/// The first 16 hex digits of a fingerprint, as decimal digits to stand behind a point: always 21,
/// the last of them not 0, as DynamoDB drops zeros from the end of a number.
fn print(fingerprint: &Fingerprint) -> String {
    let digits = fingerprint.as_str().chars().filter_map(|c| c.to_digit(16));
    let print = digits
        .take(16)
        .fold(0_u64, |n, digit| n << 4 | u64::from(digit));
    format!("{print:020}1")
}

/// Clears away these keys, as many as there is room for: on condition that they are still over, as
/// an operation whose time is over may come as a new one meanwhile.
fn prune(mut update: Write<Update>, over: &[String]) -> Write<Update> {
    let condition = update.action.condition_expression.as_deref();
    let mut room = [
        // And what joins them to what is there.
        MAX_EXPRESSION_BYTES.saturating_sub(update.action.update_expression.len() + 20),
        MAX_EXPRESSION_BYTES.saturating_sub(condition.map_or(0, str::len) + 20),
    ];
    let (mut paths, mut still_over) = (Vec::new(), Vec::new());
    for (n, key) in over.iter().enumerate() {
        let path = format!("#sqs_once_until.#sqs_once_{n}");
        // Also of a key that is gone: a comparison with nothing is false.
        let is_over = format!("NOT {path} >= :sqs_once_now");
        let needed = [path.len() + ", ".len(), is_over.len() + " AND ".len()];
        if room[0] < needed[0] || room[1] < needed[1] {
            break;
        }
        room = [room[0] - needed[0], room[1] - needed[1]];
        update = update.name(format!("#sqs_once_{n}"), key);
        paths.push(path);
        still_over.push(is_over);
    }
    if paths.is_empty() {
        return update;
    }
    extend(update, "REMOVE", &paths.join(", ")).when(&still_over.join(" AND "))
}

/// Adds to a clause of an update expression, which may have each clause once.
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

/// Where a clause's keyword ends. Words behind `#`, `:` or `.` are no keywords, and an attribute's
/// name can't be one: they are reserved.
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
        let over: Vec<_> = (0..MOST_PRUNED).map(|n| format!("key-{n}")).collect();
        let pruned = |update: usize, condition: usize| {
            let update = Write::update("t", format!("SET {}", "a".repeat(update)));
            let pruned = prune(update.when(&"c".repeat(condition)), &over).action;
            let condition = pruned.condition_expression.unwrap();
            let many = condition.matches("NOT #").count();
            assert_eq!(
                pruned.update_expression.matches("#sqs_once_until").count(),
                many
            );
            (many, pruned.update_expression.len(), condition.len())
        };
        let most = |size| size <= MAX_EXPRESSION_BYTES;
        // One more would not have fitted: its longest text, and the space reserved for joining.
        let full = |size: usize| size + 80 > MAX_EXPRESSION_BYTES;
        assert_eq!(pruned(1, 1).0, MOST_PRUNED);
        for length in (0..4000).step_by(7) {
            let (many, update, condition) = pruned(length, 1);
            assert!(
                most(update) && (many == MOST_PRUNED || full(update)),
                "{length}: {many}"
            );
            let (many, _, longest) = pruned(1, length);
            assert!(
                most(longest) && (many == MOST_PRUNED || full(longest)),
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
