//! How a [`Record`] stands in the table: the names of its attributes, and their types.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::protocol::{
    ClaimRequest, Fingerprint, Key, Owner, Record, State, StoredResult, Timestamp,
};

pub(super) const ID: &str = "id";
pub(super) const STATUS: &str = "status";
pub(super) const OWNER: &str = "owner";
pub(super) const LEASE_UNTIL: &str = "lease_until";
pub(super) const EXPIRES_AT: &str = "expires_at";
pub(super) const FINGERPRINT: &str = "fingerprint";
pub(super) const MESSAGE_ID: &str = "message_id";
pub(super) const RESULT: &str = "result";
pub(super) const RESULT_OMITTED: &str = "result_omitted";
pub(super) const ERROR: &str = "error";
pub(super) const CREATED_AT: &str = "created_at";
pub(super) const UPDATED_AT: &str = "updated_at";

pub(super) const IN_PROGRESS: &str = "IN_PROGRESS";
pub(super) const COMPLETED: &str = "COMPLETED";
pub(super) const FAILED: &str = "FAILED";

pub(super) type Item = HashMap<String, AttributeValue>;

pub(super) fn string(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(super) fn number(n: u64) -> AttributeValue {
    AttributeValue::N(n.to_string())
}

pub(super) fn millis(at: Timestamp) -> AttributeValue {
    number(at.as_millis())
}

/// The primary key of a record.
pub(super) fn primary_key(key: &Key) -> Item {
    HashMap::from([(ID.into(), string(key.as_str()))])
}

/// The item that a claim puts.
pub(super) fn claim_item(request: &ClaimRequest) -> Item {
    let mut item = HashMap::with_capacity(9);
    item.insert(ID.into(), string(request.key.as_str()));
    item.insert(STATUS.into(), string(IN_PROGRESS));
    item.insert(OWNER.into(), string(request.owner.as_str()));
    item.insert(LEASE_UNTIL.into(), millis(request.lease_until));
    item.insert(EXPIRES_AT.into(), number(request.expires_at));
    item.insert(MESSAGE_ID.into(), string(&request.message_id));
    item.insert(CREATED_AT.into(), millis(request.now));
    item.insert(UPDATED_AT.into(), millis(request.now));
    if let Some(fingerprint) = &request.fingerprint {
        item.insert(FINGERPRINT.into(), string(fingerprint.as_str()));
    }
    item
}

/// The size of an item as DynamoDB counts it, never too low: names and strings by their
/// bytes, and a number at its largest, 21 bytes (*Amazon DynamoDB Developer Guide*,
/// "DynamoDB item sizes and formats"). We write strings and numbers only.
pub(super) fn size(item: &Item) -> usize {
    let value = |value: &AttributeValue| value.as_s().map_or(21, String::len);
    item.iter().map(|(name, v)| name.len() + value(v)).sum()
}

/// Reads an item back.
///
/// Fails with the reason, which names the attribute and never its value.
pub(super) fn record(item: &Item) -> Result<Record, String> {
    let status = get_string(item, STATUS)?;
    let state = match status.as_str() {
        IN_PROGRESS => State::InProgress {
            lease_until: get_millis(item, LEASE_UNTIL)?,
        },
        COMPLETED => State::Completed {
            result: get_result(item)?,
        },
        FAILED => State::Failed {
            error: get_string(item, ERROR)?,
        },
        _ => {
            return Err(format!(
                "`{STATUS}` is none of {IN_PROGRESS}, {COMPLETED}, {FAILED}"
            ));
        }
    };
    Ok(Record {
        state,
        owner: Owner::from_stored(get_string(item, OWNER)?),
        expires_at: get_number(item, EXPIRES_AT)?,
        fingerprint: match item.get(FINGERPRINT) {
            None => None,
            Some(AttributeValue::S(hex)) => Some(Fingerprint::from_stored(hex.clone())),
            Some(_) => return Err(format!("`{FINGERPRINT}` is not a string")),
        },
        message_id: get_string(item, MESSAGE_ID)?,
        created_at: get_millis(item, CREATED_AT)?,
        updated_at: get_millis(item, UPDATED_AT)?,
    })
}

fn get_result(item: &Item) -> Result<StoredResult, String> {
    match item.get(RESULT_OMITTED) {
        Some(AttributeValue::S(why)) => Ok(StoredResult::Omitted(why.clone())),
        Some(_) => Err(format!("`{RESULT_OMITTED}` is not a string")),
        None => get_string(item, RESULT).map(StoredResult::Json),
    }
}

fn get_string(item: &Item, name: &str) -> Result<String, String> {
    match item.get(name) {
        Some(AttributeValue::S(text)) => Ok(text.clone()),
        Some(_) => Err(format!("`{name}` is not a string")),
        None => Err(format!("it has no `{name}`")),
    }
}

fn get_number(item: &Item, name: &str) -> Result<u64, String> {
    let not_one = || format!("`{name}` is not a whole number from 0");
    match item.get(name) {
        Some(AttributeValue::N(digits)) => digits.parse().map_err(|_| not_one()),
        Some(_) => Err(not_one()),
        None => Err(format!("it has no `{name}`")),
    }
}

fn get_millis(item: &Item, name: &str) -> Result<Timestamp, String> {
    get_number(item, name).map(Timestamp::from_millis)
}
