//! [`Attributes`]: how a [`Record`] is written, in DynamoDB and as JSON.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};

use super::{AttemptEnd, Owner, Record, Stamp, State, StoredResult, Timestamp};
use crate::protocol::Fingerprint;

type Text<'a> = Cow<'a, str>;

/// The attributes of a record. One that is `None` or 0 is left out.
#[derive(Serialize, Deserialize)]
pub(super) struct Attributes<'a> {
    status: Text<'a>,
    owner: Text<'a>,
    version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_until: Option<u64>,
    expires_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint_scheme: Option<Text<'a>>,
    message_id: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Text<'a>>,
    attempts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_claimed_at: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_end: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    exclusive_attempts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed_at: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result_in_s3: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result_omitted: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Text<'a>>,
    created_at: u64,
    updated_at: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

pub(crate) const IN_PROGRESS: &str = "IN_PROGRESS";
pub(crate) const COMPLETED: &str = "COMPLETED";
pub(crate) const FAILED: &str = "FAILED";

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
        let (status, result) = match &self.state {
            State::InProgress { .. } => (IN_PROGRESS, None),
            State::Completed { result } => (COMPLETED, Some(result)),
            State::Failed => (FAILED, None),
        };
        let mut attributes = Attributes {
            status: status.into(),
            owner: self.stamp.owner.as_str().into(),
            version: self.stamp.version,
            lease_until: millis(self.lease_until()),
            expires_at: self.expires_at,
            fingerprint: self.fingerprint.as_ref().map(|print| print.as_str().into()),
            fingerprint_scheme: (self.fingerprint.as_ref())
                .and_then(Fingerprint::scheme)
                .map(Text::from),
            message_id: self.message_id.as_str().into(),
            source: self.source.as_deref().map(Text::from),
            attempts: self.attempts,
            first_claimed_at: millis(self.first_claimed_at),
            last_end: self.last_end.map(|end| end.name().into()),
            exclusive_attempts: self.exclusive_attempts,
            failed_at: millis(self.failed_at),
            generation: self.generation,
            result: None,
            result_in_s3: None,
            result_omitted: None,
            error: self.error.as_deref().map(Text::from),
            created_at: self.created_at.as_millis(),
            updated_at: self.updated_at.as_millis(),
        };
        match result {
            None => {}
            Some(StoredResult::Json(json)) => attributes.result = Some(json.as_str().into()),
            Some(StoredResult::InS3(pointer)) => {
                attributes.result_in_s3 = Some(pointer.to_json().into());
            }
            Some(StoredResult::Omitted(why)) => {
                attributes.result_omitted = Some(why.as_str().into());
            }
        }
        attributes.serialize(serializer)
    }
}

/// Reads a record. The error names an attribute, never its value. A result that cannot be read is none, because the
/// operation is completed.
impl TryFrom<Attributes<'_>> for Record {
    type Error = String;

    fn try_from(read: Attributes<'_>) -> Result<Self, String> {
        let millis = |at: Option<u64>| at.map(Timestamp::from_millis);
        let text = |text: Option<Text<'_>>| text.map(Text::into_owned);
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
        let scheme = text(read.fingerprint_scheme);
        Ok(Self {
            stamp: Stamp {
                owner: Owner::from_stored(read.owner.into_owned()),
                version: read.version,
            },
            state,
            expires_at: read.expires_at,
            fingerprint: text(read.fingerprint)
                .map(|hex| Fingerprint::from_stored(hex).with_scheme(scheme)),
            message_id: read.message_id.into_owned(),
            source: text(read.source),
            attempts: read.attempts,
            first_claimed_at: millis(read.first_claimed_at),
            last_end,
            exclusive_attempts: read.exclusive_attempts,
            failed_at: millis(read.failed_at),
            generation: read.generation,
            error: text(read.error),
            created_at: Timestamp::from_millis(read.created_at),
            updated_at: Timestamp::from_millis(read.updated_at),
        })
    }
}

fn result(
    json: Option<Text<'_>>,
    in_s3: Option<Text<'_>>,
    omitted: Option<Text<'_>>,
) -> StoredResult {
    match (json, in_s3) {
        (Some(json), _) => StoredResult::Json(json.into_owned()),
        (None, Some(pointer)) => serde_json::from_str(&pointer).map_or_else(
            |_| StoredResult::Omitted("attribute `result_in_s3` is not a pointer to S3".to_owned()),
            StoredResult::InS3,
        ),
        (None, None) => StoredResult::Omitted(omitted.map_or_else(
            || "the record has no attribute `result`".to_owned(),
            Text::into_owned,
        )),
    }
}
