//! Writes to the table: a request as the relay reads it, and its event in the ledger.

use axum::http::HeaderMap;
use serde_json::Value;
use sqs_once::protocol::Timestamp;
use support::dynamo::request_name;

use crate::chaos::{
    groups,
    ledger::{Event, Settled, Worker},
};

/// A write request, as far as this relay reads it.
pub(super) struct Write {
    pub(super) worker: Worker,
    pub(super) key: String,
    pub(super) operation: String,
    body: Value,
}

impl Write {
    /// The writes of a request: none, one, or those of a group.
    pub(super) fn all_of(worker: Worker, headers: &HeaderMap, body: &[u8]) -> Vec<Self> {
        if !request_name(headers, body).ends_with("Group") {
            return Self::of(worker, headers, body).into_iter().collect();
        }
        let writes = groups::writes(&serde_json::from_slice(body).unwrap());
        let write = |(operation, key, body): (&str, _, _)| Self {
            worker,
            key,
            operation: operation.to_owned(),
            body,
        };
        writes.into_iter().map(write).collect()
    }

    fn of(worker: Worker, headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        let operation = request_name(headers, body);
        let body: Value = serde_json::from_slice(body).unwrap();
        let place = match &*operation {
            "PutItem" => "Item",
            "Claim" | "UpdateItem" | "DeleteItem" => "Key",
            _ => return None,
        };
        let key = body[place]["id"]["S"].as_str()?.to_owned();
        Some(Self {
            worker,
            key,
            operation,
            body,
        })
    }

    /// The end of the time to live that it writes, in seconds.
    pub(super) fn expires_at(&self) -> Option<u64> {
        let item = &self.body["Item"]["expires_at"];
        let values = &self.body["ExpressionAttributeValues"][":expires_at"];
        let of = |value: &Value| value["N"].as_str().map(|n| n.parse().unwrap());
        of(item).or_else(|| of(values))
    }

    /// The time of a claim, by its worker's clock.
    pub(super) fn made_ms(&self) -> Option<u64> {
        let made = match &*self.operation {
            "PutItem" => &self.body["Item"]["first_claimed_at"],
            "Claim" => &self.body["ExpressionAttributeValues"][":now"],
            _ => return None,
        };
        made["N"].as_str().map(|n| n.parse().unwrap())
    }

    /// The event for a write that the table applied, over a record whose time to live ended at `expired`.
    pub(super) fn taken(&self, expired: Option<u64>) -> Event {
        let key = self.key.clone();
        let values = &self.body["ExpressionAttributeValues"];
        let text = |of: &Value| of["S"].as_str().map(ToOwned::to_owned);
        let number = |of: &Value| of["N"].as_str().map(|n| n.parse().unwrap());
        // A claim over an expired record is a put, as is one in a group, a claim over any other an
        // update.
        let claim = match &*self.operation {
            "PutItem" => {
                let item = &self.body["Item"];
                Some(["owner", "lease_until", "message_id", "first_claimed_at"].map(|n| &item[n]))
            }
            "Claim" => {
                let names = [":owner", ":lease_until", ":message_id", ":now"];
                Some(names.map(|n| &values[n]))
            }
            _ => None,
        };
        if let Some([owner, lease_until, message, made]) = claim {
            return Event::Claimed {
                key,
                owner: text(owner).unwrap(),
                message: text(message).unwrap(),
                worker: self.worker,
                made_ms: number(made).unwrap(),
                at_ms: Timestamp::now().as_millis(),
                lease_until_ms: number(lease_until).unwrap(),
                over_expired: number(made)
                    .zip(expired)
                    .is_some_and(|(made, end): (u64, u64)| end < made / 1000),
            };
        }
        if let Some(lease_until_ms) = self.renewal_of_an_attempt_alone() {
            return Event::Alone {
                key,
                owner: text(&values[":me"]).unwrap(),
                worker: self.worker,
                lease_until_ms,
            };
        }
        let as_what = if values[":failed_message_ids"].is_object() {
            Settled::Failed
        } else if text(&values[":status"]).is_some_and(|s| s == "COMPLETED") {
            Settled::Completed
        } else if self.operation == "DeleteItem"
            || values[":status"].is_object()
            || values[":exclusive_attempts"].is_object()
            || self.forgets()
        {
            Settled::Restored
        } else {
            Settled::LeaseEnded
        };
        Event::Settled {
            key,
            owner: text(&values[":me"]).unwrap(),
            as_what,
            lease_until_ms: number(&values[":lease_until"]),
        }
    }

    /// The lease of an attempt that is about to run alone. A restore writes the count too, and the last
    /// end with it.
    fn renewal_of_an_attempt_alone(&self) -> Option<u64> {
        let values = &self.body["ExpressionAttributeValues"];
        let update = self.body["UpdateExpression"].as_str()?;
        if values[":exclusive_attempts"].is_null() || update.contains("#last_end") {
            return None;
        }
        values[":lease_until"]["N"].as_str()?.parse().ok()
    }

    /// A restore removes the time of the earliest open attempt. The end of a lease may name it in its
    /// condition.
    fn forgets(&self) -> bool {
        let update = self.body["UpdateExpression"].as_str().unwrap_or_default();
        update.contains("#first_claimed_at")
    }
}
