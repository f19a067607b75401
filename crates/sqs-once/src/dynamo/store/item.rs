//! Conversion between a [`Record`] and its item in the table, by the [`Layout`].

use std::{borrow::Cow, collections::BTreeSet};

use aws_sdk_dynamodb::types::AttributeValue;

use super::{field::Field, layout::Layout};
use crate::{
    dynamo::item::{Item, number, string},
    protocol::{AttemptEnd, Fingerprint, Key, Owner, Record, State, StoredResult, Timestamp},
};

/// Values of the attribute `status`.
pub(super) const IN_PROGRESS: &str = "IN_PROGRESS";
pub(super) const COMPLETED: &str = "COMPLETED";
pub(super) const FAILED: &str = "FAILED";

/// Returns the attribute of a result, and its text.
pub(super) fn result_field(result: &StoredResult) -> (Field, Cow<'_, str>) {
    match result {
        StoredResult::Json(json) => (Field::Result, json.into()),
        StoredResult::InS3(pointer) => (Field::ResultInS3, pointer.to_json().into()),
        StoredResult::Omitted(why) => (Field::ResultOmitted, why.into()),
    }
}

impl Layout {
    /// Converts a record into an item.
    pub(super) fn item(&self, key: &Key, record: &Record) -> Item {
        let mut item = self.primary_key(key.as_str());
        let mut set = |field, value| item.insert(self.name(field).to_owned(), value);
        match &record.state {
            State::InProgress { lease_until } => {
                set(Field::Status, string(IN_PROGRESS));
                set(Field::LeaseUntil, millis(*lease_until));
            }
            State::Completed { result } => {
                set(Field::Status, string(COMPLETED));
                let (field, text) = result_field(result);
                set(field, string(text));
            }
            State::Failed => {
                set(Field::Status, string(FAILED));
            }
        }
        set(Field::ExpiresAt, number(record.expires_at));
        let texts = [
            (Field::Owner, record.owner.as_ref().map(Owner::as_str)),
            (
                Field::Fingerprint,
                record.fingerprint.as_ref().map(Fingerprint::as_str),
            ),
            (
                Field::FingerprintScheme,
                record.fingerprint.as_ref().and_then(Fingerprint::scheme),
            ),
            (Field::MessageId, record.message_id.as_deref()),
            (Field::LastEnd, record.last_end.map(AttemptEnd::name)),
            (Field::Error, record.error.as_deref()),
        ];
        for (field, text) in texts {
            if let Some(text) = text {
                set(field, string(text));
            }
        }
        let times = [
            (Field::FirstClaimedAt, record.first_claimed_at),
            (Field::CreatedAt, record.created_at),
            (Field::UpdatedAt, record.updated_at),
        ];
        for (field, at) in times {
            if let Some(at) = at {
                set(field, millis(at));
            }
        }
        let counts = [
            (Field::Attempts, record.attempts),
            (Field::ExclusiveAttempts, record.exclusive_attempts),
        ];
        for (field, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            set(field, number(count));
        }
        // DynamoDB has no empty sets.
        if !record.failed_message_ids.is_empty() {
            let ids = record.failed_message_ids.iter().cloned().collect();
            set(Field::FailedMessageIds, AttributeValue::Ss(ids));
        }
        item
    }

    /// Converts an item into a record. Only the status and `expires_at` are required.
    ///
    /// The error text contains the attribute's name, but never its value.
    pub(super) fn record(&self, item: &Item) -> Result<Record, String> {
        let required = |field| format!("attribute `{}` is missing", self.name(field));
        let status = self
            .string(item, Field::Status)?
            .ok_or_else(|| required(Field::Status))?;
        let expires_at = self
            .number(item, Field::ExpiresAt)?
            .ok_or_else(|| required(Field::ExpiresAt))?;
        let lease_until = self.millis(item, Field::LeaseUntil)?;
        let state = match status.as_str() {
            COMPLETED => State::Completed {
                result: self.result(item)?,
            },
            FAILED => State::Failed,
            IN_PROGRESS => State::InProgress {
                // A lease without an end lasts as long as the record.
                lease_until: lease_until.unwrap_or_else(|| {
                    Timestamp::from_millis(expires_at.saturating_mul(1000).saturating_add(999))
                }),
            },
            _ => {
                return Err(format!(
                    "attribute `{}` must be {IN_PROGRESS}, {COMPLETED} or {FAILED}",
                    self.name(Field::Status)
                ));
            }
        };
        let failed_message_ids = match item.get(self.name(Field::FailedMessageIds)) {
            None => BTreeSet::new(),
            Some(AttributeValue::Ss(ids)) => ids.iter().cloned().collect(),
            Some(_) => {
                let name = self.name(Field::FailedMessageIds);
                return Err(format!("attribute `{name}` must be a string set"));
            }
        };
        let last_end = self.string(item, Field::LastEnd)?;
        let hex = self.string(item, Field::Fingerprint)?;
        let scheme = self.string(item, Field::FingerprintScheme)?;
        let fingerprint = hex.map(|hex| Fingerprint::from_stored(hex).with_scheme(scheme));
        Ok(Record {
            owner: self.string(item, Field::Owner)?.map(Owner::from_stored),
            expires_at,
            fingerprint,
            message_id: self.string(item, Field::MessageId)?,
            attempts: self.number(item, Field::Attempts)?.unwrap_or(0),
            first_claimed_at: self.millis(item, Field::FirstClaimedAt)?,
            last_end: last_end.as_deref().and_then(AttemptEnd::from_name),
            exclusive_attempts: self.number(item, Field::ExclusiveAttempts)?.unwrap_or(0),
            error: self.string(item, Field::Error)?,
            failed_message_ids,
            created_at: self.millis(item, Field::CreatedAt)?,
            updated_at: self.millis(item, Field::UpdatedAt)?,
            state,
        })
    }

    /// Reads the result. If it cannot be read, the call does not fail, because the operation is completed.
    fn result(&self, item: &Item) -> Result<StoredResult, String> {
        let name = self.name(Field::Result);
        Ok(match item.get(name) {
            Some(AttributeValue::S(json)) => StoredResult::Json(json.clone()),
            Some(_) => StoredResult::Omitted(format!("attribute `{name}` is not JSON text")),
            None => match self.string(item, Field::ResultInS3)? {
                Some(pointer) => self.pointer(&pointer),
                None => StoredResult::Omitted(
                    self.string(item, Field::ResultOmitted)?
                        .unwrap_or_else(|| format!("the record has no attribute `{name}`")),
                ),
            },
        })
    }

    fn pointer(&self, json: &str) -> StoredResult {
        let pointer = serde_json::from_str(json).map(StoredResult::InS3);
        pointer.unwrap_or_else(|_| {
            let name = self.name(Field::ResultInS3);
            StoredResult::Omitted(format!("attribute `{name}` is not a pointer to S3"))
        })
    }

    fn string(&self, item: &Item, field: Field) -> Result<Option<String>, String> {
        match item.get(self.name(field)) {
            None => Ok(None),
            Some(AttributeValue::S(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("attribute `{}` must be a string", self.name(field))),
        }
    }

    fn number(&self, item: &Item, field: Field) -> Result<Option<u64>, String> {
        let Some(value) = item.get(self.name(field)) else {
            return Ok(None);
        };
        let number = value.as_n().ok().and_then(|digits| digits.parse().ok());
        let error = || format!("attribute `{}` must be a number from 0", self.name(field));
        number.map(Some).ok_or_else(error)
    }

    fn millis(&self, item: &Item, field: Field) -> Result<Option<Timestamp>, String> {
        Ok(self.number(item, field)?.map(Timestamp::from_millis))
    }
}

pub(super) fn millis(at: Timestamp) -> AttributeValue {
    number(at.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Namespace, ResultPointer};

    fn key() -> Key {
        Key::new(&Namespace::new("orders").unwrap(), ["1"]).unwrap()
    }

    fn states() -> Vec<State> {
        let lease_until = Timestamp::from_millis(1_800_000_000_123);
        let omitted = StoredResult::Omitted("too large".into());
        vec![
            State::InProgress { lease_until },
            State::Completed {
                result: StoredResult::Json("null".into()),
            },
            State::Completed { result: omitted },
            State::Completed {
                result: StoredResult::InS3(Box::new(ResultPointer {
                    bucket: "outputs".into(),
                    key: "results/a/b".into(),
                    sha256: "c0".into(),
                    bytes: 70_000,
                })),
            },
            State::Failed,
        ]
    }

    fn in_state(state: State) -> Record {
        Record {
            state,
            owner: Some(Owner::from_stored("o".into())),
            expires_at: 1_800_086_400,
            fingerprint: Some(Fingerprint::from_stored("f".into()).with_scheme("s".to_owned())),
            message_id: Some("m".into()),
            attempts: 3,
            first_claimed_at: Some(Timestamp::default()),
            last_end: Some(AttemptEnd::Deadline),
            exclusive_attempts: 2,
            error: None,
            failed_message_ids: BTreeSet::from(["m-1".to_owned(), "m-2".to_owned()]),
            created_at: Some(Timestamp::from_millis(1)),
            updated_at: Some(Timestamp::from_millis(2)),
        }
    }

    fn failed() -> Record {
        Record {
            error: Some("no".into()),
            ..in_state(State::Failed)
        }
    }

    #[test]
    fn record_survives_write_and_read() {
        let lease_until = Timestamp::from_millis(1);
        let after_failure = Record {
            error: Some("no".into()),
            ..in_state(State::InProgress { lease_until })
        };
        let records = states().into_iter().map(in_state);
        for record in records.chain([failed(), after_failure]) {
            let item = Layout::native().item(&key(), &record);
            assert_eq!(Layout::native().record(&item), Ok(record), "{item:?}");
        }
    }

    #[test]
    fn record_needs_status_and_end_of_retention_alone() {
        let read = |more: &[(&str, AttributeValue)]| {
            let mut item = Item::from([("expires_at".to_owned(), number(1_800_000_000))]);
            item.extend(more.iter().map(|(name, v)| ((*name).to_owned(), v.clone())));
            Layout::native().record(&item).map(|record| record.state)
        };
        let completed = ("status", string("COMPLETED"));
        for result in [None, Some(("result", AttributeValue::M(Item::new())))] {
            let more: Vec<_> = result.into_iter().chain([completed.clone()]).collect();
            let State::Completed { result } = read(&more).unwrap() else {
                panic!("not completed")
            };
            assert!(matches!(result, StoredResult::Omitted(_)), "{result:?}");
        }
        let lease_until = Timestamp::from_millis(1_800_000_000_999);
        assert_eq!(
            read(&[("status", string("IN_PROGRESS"))]),
            Ok(State::InProgress { lease_until })
        );
        assert!(read(&[]).is_err());
    }

    #[test]
    fn unknown_status_is_an_error() {
        let read = |status: &str, error: Option<&str>| {
            let mut item = Item::from([
                ("status".to_owned(), string(status)),
                ("expires_at".to_owned(), number(1_800_000_000)),
            ]);
            item.extend(error.map(|error| ("error".to_owned(), string(error))));
            Layout::native().record(&item).map(|record| record.state)
        };
        let unknown = "attribute `status` must be IN_PROGRESS, COMPLETED or FAILED";
        assert_eq!(read("DONE", None).unwrap_err(), unknown);
        assert_eq!(read("DONE", Some("no")).unwrap_err(), unknown);
        assert_eq!(read("FAILED", None), Ok(State::Failed));
    }
}
