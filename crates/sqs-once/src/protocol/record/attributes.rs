//! How a [`Record`] is written, in DynamoDB and as JSON.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{AttemptEnd, Owner, Record, Stamp, State, StoredResult, Timestamp};
use crate::protocol::Fingerprint;

/// The attributes of a record, as they are read.
#[derive(Deserialize)]
struct ReadRecord<'a> {
    status: Cow<'a, str>,
    owner: Cow<'a, str>,
    version: u64,
    lease_until: Option<u64>,
    expires_at: u64,
    fingerprint: Option<Cow<'a, str>>,
    message_id: Cow<'a, str>,
    source: Option<Cow<'a, str>>,
    attempts: Option<u64>,
    first_claimed_at: Option<u64>,
    last_end: Option<Cow<'a, str>>,
    #[serde(default)]
    exclusive_attempts: u64,
    failures: Option<Cow<'a, str>>,
    #[serde(default)]
    open_other: u64,
    #[serde(default)]
    generation: u64,
    result: Option<Cow<'a, str>>,
    result_in_s3: Option<Cow<'a, str>>,
    result_omitted: Option<Cow<'a, str>>,
    updated_at: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum RecordValue<'a> {
    Text(Cow<'a, str>),
    Number(u64),
}

const IN_PROGRESS: &str = "IN_PROGRESS";
const COMPLETED: &str = "COMPLETED";
const FAILED: &str = "FAILED";

impl Record {
    /// Returns the failures as JSON for the record, if there are any.
    pub(crate) fn failures_json(&self) -> Option<String> {
        if self.failures.is_empty() {
            return None;
        }
        #[expect(clippy::expect_used, reason = "a failure has texts and a number")]
        let json = serde_json::to_string(&self.failures).expect("failures are JSON");
        Some(json)
    }

    /// Returns the attributes to write, sorted by name. Leaves out optional ones that are `None`, 0 or empty, and `attempts` if
    /// it is 1.
    pub(crate) fn attributes(&self) -> Vec<(&'static str, RecordValue<'_>)> {
        let text = |text| Some(RecordValue::Text(Cow::Borrowed(text)));
        let number = |number| Some(RecordValue::Number(number));
        let above_0 = |n| number(n).filter(|_| n > 0);
        let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis).and_then(number);
        let (status, result) = match &self.state {
            State::InProgress { .. } => (IN_PROGRESS, None),
            State::Completed { result } => (COMPLETED, Some(result)),
            State::Failed => (FAILED, None),
        };
        let (mut json, mut in_s3, mut omitted) = (None, None, None);
        match result {
            None => {}
            Some(StoredResult::Json(output)) => json = text(output),
            Some(StoredResult::InS3(pointer)) => {
                in_s3 = Some(RecordValue::Text(pointer.to_json().into()));
            }
            Some(StoredResult::Omitted(why)) => omitted = text(why),
        }
        // If both times are equal, as after a first claim, we write only one of them.
        let updated_at =
            Some(self.updated_at).filter(|_| self.first_claimed_at != Some(self.updated_at));
        let fingerprint = self.fingerprint.as_ref();
        let failures = self
            .failures_json()
            .map(|json| RecordValue::Text(json.into()));
        let attributes = [
            (
                "attempts",
                number(self.attempts).filter(|_| self.attempts != 1),
            ),
            ("exclusive_attempts", above_0(self.exclusive_attempts)),
            ("expires_at", number(self.expires_at)),
            ("failures", failures),
            (
                "fingerprint",
                fingerprint.map(Fingerprint::as_str).and_then(text),
            ),
            ("first_claimed_at", millis(self.first_claimed_at)),
            ("generation", above_0(self.generation)),
            (
                "last_end",
                self.last_end.map(AttemptEnd::name).and_then(text),
            ),
            ("lease_until", millis(self.lease_until())),
            ("message_id", text(&self.message_id)),
            ("open_other", above_0(u64::from(self.open_other))),
            ("owner", text(self.stamp.owner.as_str())),
            ("result", json),
            ("result_in_s3", in_s3),
            ("result_omitted", omitted),
            ("source", self.source.as_deref().and_then(text)),
            ("status", text(status)),
            ("updated_at", millis(updated_at)),
            ("version", number(self.stamp.version)),
        ];
        let mut written = Vec::with_capacity(attributes.len());
        written.extend((attributes.into_iter()).filter_map(|(name, value)| Some((name, value?))));
        written
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.attributes())
    }
}

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = ReadRecord::deserialize(deserializer)?;
        Self::try_from(read).map_err(D::Error::custom)
    }
}

/// Reads a record. The error names an attribute, never its value. A result that can't be read becomes `Omitted`, because
/// the operation is completed nevertheless.
impl TryFrom<ReadRecord<'_>> for Record {
    type Error = String;

    fn try_from(read: ReadRecord<'_>) -> Result<Self, String> {
        let millis = |at: Option<u64>| at.map(Timestamp::from_millis);
        let text = |text: Option<Cow<'_, str>>| text.map(Cow::into_owned);
        let state = match &*read.status {
            IN_PROGRESS => State::InProgress {
                lease_until: millis(read.lease_until)
                    .ok_or("attribute `lease_until` is missing")?,
            },
            COMPLETED => State::Completed {
                result: result(read.result, read.result_in_s3, read.result_omitted),
            },
            FAILED => State::Failed,
            _ => {
                let why = "attribute `status` must be IN_PROGRESS, COMPLETED or FAILED";
                return Err(why.to_owned());
            }
        };
        let last_end = match read.last_end {
            None => None,
            Some(name) => Some(
                AttemptEnd::from_name(&name).ok_or("attribute `last_end` has an unknown value")?,
            ),
        };
        let failures = match read.failures {
            None => Vec::new(),
            Some(json) => serde_json::from_str(&json)
                .map_err(|_| "attribute `failures` is not a list of failures")?,
        };
        Ok(Self {
            stamp: Stamp {
                owner: Owner::from_stored(read.owner.into_owned()),
                version: read.version,
            },
            state,
            expires_at: read.expires_at,
            fingerprint: text(read.fingerprint).map(Fingerprint::from_stored),
            message_id: read.message_id.into_owned(),
            source: text(read.source),
            attempts: read.attempts.unwrap_or(1),
            first_claimed_at: millis(read.first_claimed_at),
            last_end,
            exclusive_attempts: read.exclusive_attempts,
            failures,
            generation: read.generation,
            open_other: read.open_other > 0,
            updated_at: millis(read.updated_at.or(read.first_claimed_at))
                .ok_or("attribute `updated_at` is missing")?,
        })
    }
}

fn result(
    json: Option<Cow<'_, str>>,
    in_s3: Option<Cow<'_, str>>,
    omitted: Option<Cow<'_, str>>,
) -> StoredResult {
    match (json, in_s3) {
        (Some(json), _) => StoredResult::Json(json.into_owned()),
        (None, Some(pointer)) => serde_json::from_str(&pointer).map_or_else(
            |_| StoredResult::Omitted("attribute `result_in_s3` is not a pointer to S3".to_owned()),
            StoredResult::InS3,
        ),
        (None, None) => StoredResult::Omitted(omitted.map_or_else(
            || "the record has no attribute `result`".to_owned(),
            Cow::into_owned,
        )),
    }
}
