//! Swaps of records: a request as the relay reads it, and its event in the ledger.

use std::collections::HashMap;

use axum::http::HeaderMap;
use serde_json::Value;
use support::dynamo::request_name;

use crate::chaos::{groups, ledger::Event};

/// Attributes of an item, by name.
pub(super) type Attributes = HashMap<String, Value>;

fn number(of: &Attributes, name: &str) -> Option<u64> {
    let digits = of.get(name)?["N"].as_str()?;
    Some(digits.parse().unwrap())
}

/// A swap, as far as this relay reads it.
pub(super) struct Write {
    pub(super) key: String,
    /// The attributes that it sets.
    pub(super) set: Attributes,
    /// The owner that it expects. `None` over nothing.
    pub(super) expected: Option<String>,
}

impl Write {
    /// The swaps of a request: none, one, or those of a group.
    pub(super) fn all_of(headers: &HeaderMap, body: &[u8]) -> Vec<Self> {
        let operation = request_name(headers, body);
        let Ok(body) = serde_json::from_slice(body) else {
            return Vec::new();
        };
        match &*operation {
            "ClaimGroup" | "SettlementGroup" => groups::writes(&body),
            "Claim" | "UpdateItem" => Self::of(&body).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn of(body: &Value) -> Option<Self> {
        let attributes = |of: &Value| -> Attributes {
            let members = of.as_object().into_iter().flatten();
            members
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        if let Some(key) = body["Item"]["id"]["S"].as_str() {
            return Some(Self {
                key: key.to_owned(),
                set: attributes(&body["Item"]),
                expected: None,
            });
        }
        let values = attributes(&body["ExpressionAttributeValues"]).into_iter();
        let set = values.map(|(name, value)| (name.trim_start_matches(':').to_owned(), value));
        let mut set: HashMap<_, _> = set.collect();
        set.remove("expected_version");
        let expected = set.remove("expected_owner")?;
        Some(Self {
            key: body["Key"]["id"]["S"].as_str()?.to_owned(),
            expected: expected["S"].as_str().map(ToOwned::to_owned),
            set,
        })
    }

    fn number(&self, name: &str) -> Option<u64> {
        number(&self.set, name)
    }

    /// The end of the time to live that it writes, in seconds.
    pub(super) fn expires_at(&self) -> Option<u64> {
        self.number("expires_at")
    }

    /// The record after this swap of `before`.
    pub(super) fn record(&self, before: &Attributes) -> Attributes {
        let mut record = match self.expected {
            Some(_) => before.clone(),
            None => Attributes::new(),
        };
        record.extend(self.set.clone());
        record
    }

    /// How often the called system had declined before a claim.
    pub(super) fn generation(&self, before: &Attributes) -> Option<u64> {
        self.is_claim()
            .then(|| number(&self.record(before), "generation").unwrap_or(0))
    }

    /// Only a claim names a new owner.
    fn is_claim(&self) -> bool {
        self.set.contains_key("owner")
    }

    /// The event of a claim that the table applied over `before`, whose time to live ended at `expired`.
    pub(super) fn claimed(&self, expired: Option<u64>, before: &Attributes) -> Option<Event> {
        let made_ms = self
            .is_claim()
            .then(|| number(&self.record(before), "updated_at"))?;
        Some(Event::Claimed {
            key: self.key.clone(),
            over_expired: expired.is_some_and(|end| end < made_ms.unwrap() / 1000),
        })
    }
}
