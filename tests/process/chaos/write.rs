//! Swaps of records: a request as the relay reads it, and its events in the ledger.

use std::collections::HashMap;

use axum::http::HeaderMap;
use serde_json::Value;
use sqs_once::protocol::Timestamp;
use support::dynamo::request_name;

use crate::chaos::{
    groups,
    ledger::{Event, Settled, Worker},
};

/// Attributes of an item, by name.
pub(super) type Attributes = HashMap<String, Value>;

fn text(of: &Attributes, name: &str) -> Option<String> {
    of.get(name)?["S"].as_str().map(ToOwned::to_owned)
}

fn number(of: &Attributes, name: &str) -> Option<u64> {
    let digits = of.get(name)?["N"].as_str()?;
    Some(digits.parse().unwrap())
}

/// A swap, as far as this relay reads it.
pub(super) struct Write {
    pub(super) worker: Worker,
    pub(super) key: String,
    /// The attributes that it sets.
    pub(super) set: Attributes,
    /// The owner that it expects. `None` over nothing.
    pub(super) expected: Option<String>,
}

impl Write {
    /// The swaps of a request: none, one, or those of a group.
    pub(super) fn all_of(worker: Worker, headers: &HeaderMap, body: &[u8]) -> Vec<Self> {
        let operation = request_name(headers, body);
        let Ok(body) = serde_json::from_slice(body) else {
            return Vec::new();
        };
        match &*operation {
            "ClaimGroup" | "SettlementGroup" => groups::writes(worker, &body),
            "Claim" | "UpdateItem" => Self::of(worker, &body).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn of(worker: Worker, body: &Value) -> Option<Self> {
        let attributes = |of: &Value| -> Attributes {
            let members = of.as_object().into_iter().flatten();
            members
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        if let Some(key) = body["Item"]["id"]["S"].as_str() {
            return Some(Self {
                worker,
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
            worker,
            key: body["Key"]["id"]["S"].as_str()?.to_owned(),
            expected: expected["S"].as_str().map(ToOwned::to_owned),
            set,
        })
    }

    fn text(&self, name: &str) -> Option<String> {
        text(&self.set, name)
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

    /// The time of a claim over `before`, by its worker's clock.
    pub(super) fn made_ms(&self, before: &Attributes) -> Option<u64> {
        self.is_claim().then_some(())?;
        number(&self.record(before), "updated_at")
    }

    /// The events of a swap that the table applied over `before`, whose time to live ended at `expired`.
    pub(super) fn taken(&self, expired: Option<u64>, before: &Attributes) -> Vec<Event> {
        let key = self.key.clone();
        let owner = self.text("owner").or_else(|| self.expected.clone());
        let owner = owner.unwrap();
        let lease_until_ms = self.number("lease_until");
        if let Some(made_ms) = self.made_ms(before) {
            let message = text(&self.record(before), "message_id").unwrap();
            let claimed = Event::Claimed {
                key: key.clone(),
                owner: owner.clone(),
                message,
                worker: self.worker,
                made_ms,
                at_ms: Timestamp::now().as_millis(),
                lease_until_ms: lease_until_ms.unwrap(),
                over_expired: expired.is_some_and(|end| end < made_ms / 1000),
            };
            let alone = self.number("exclusive_attempts").map(|_| Event::Alone {
                key,
                owner,
                worker: self.worker,
                lease_until_ms: lease_until_ms.unwrap(),
            });
            return [claimed].into_iter().chain(alone).collect();
        }
        let last_end = self.text("last_end");
        let failed_at_ms = self.number("failed_at");
        let as_what = match (self.text("status").as_deref(), last_end.as_deref()) {
            (Some("COMPLETED"), _) => Settled::Completed,
            // Over a record that failed before, an undone claim makes it failed again, with the time of that failure.
            (Some("FAILED"), _) if self.number("generation").is_some() => Settled::Declined,
            (Some("FAILED"), _) if failed_at_ms.is_some() => Settled::Failed,
            (None, Some("retryable" | "panic" | "deadline")) => Settled::LeaseEnded,
            _ => Settled::Restored,
        };
        vec![Event::Settled {
            key,
            owner,
            as_what,
            lease_until_ms,
            failed_at_ms,
        }]
    }
}
