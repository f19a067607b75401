//! [`StoredResult`]: a handler's output in the record, or the pointer to it in S3.

use std::{fmt, mem};

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::stamp::Owner;
use crate::protocol::key::{Key, hex};

/// Maximum size of a DynamoDB item in bytes, attribute names and values together (*Amazon DynamoDB
/// Developer Guide*, "Constraints in Amazon DynamoDB").
pub const MAX_ITEM_BYTES: usize = 400 * 1024;

/// Maximum size of a handler's output in a record, in bytes of JSON.
///
/// We leave the rest of [`MAX_ITEM_BYTES`] for the key (at most 2 KB), a message id and the other attributes.
pub const MAX_RESULT_BYTES: usize = MAX_ITEM_BYTES - 8 * 1024;

/// A handler's output as the record stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredResult {
    /// The output, as JSON text.
    Json(String),
    /// The output is an object in S3.
    InS3(Box<ResultPointer>),
    /// The output is not stored. The text says why, and how large the output was.
    ///
    /// The record is `COMPLETED` nevertheless, because the effect has happened. A consumer also replaces an
    /// output with this value when its message has ended, so that a batch does not keep all outputs in memory.
    Omitted(String),
}

/// The object in S3 that holds a handler's output, as JSON text.
///
/// ```
/// use sqs_once::protocol::{Key, Namespace, Owner, ResultPointer};
///
/// let key = Key::new(&Namespace::new("reports")?, ["2026-11"])?;
/// let pointer = ResultPointer::new("outputs", &key, &Owner::fresh(), b"[1,2]");
/// assert!(pointer.key.starts_with("results/"));
/// assert!(pointer.is_of(b"[1,2]"));
/// assert!(!pointer.is_of(b"[1,3]"));
/// # Ok::<(), sqs_once::protocol::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ResultPointer {
    /// Name of the bucket.
    pub bucket: String,
    /// Key of the object: `results/`, the SHA-256 of the idempotency key, the owner of the claim, and the
    /// SHA-256 of the output.
    ///
    /// Each attempt has a different owner, so a late write of one attempt never replaces the object of
    /// another.
    pub key: String,
    /// SHA-256 of the output, lower-case hex.
    pub sha256: String,
    /// Length of the output in bytes.
    pub bytes: usize,
}

impl ResultPointer {
    /// Creates the pointer to the output of the operation `key`, written by the attempt of `owner`.
    #[must_use]
    pub fn new(bucket: impl Into<String>, key: &Key, owner: &Owner, output: &[u8]) -> Self {
        Self::of_digest(bucket, key, owner, &Sha256::digest(output), output.len())
    }

    /// Creates the pointer to an output with this SHA-256 and length.
    pub fn of_digest(
        bucket: impl Into<String>,
        key: &Key,
        owner: &Owner,
        digest: &[u8],
        bytes: usize,
    ) -> Self {
        let sha256 = hex(digest);
        let operation = hex(&Sha256::digest(key.as_str().as_bytes()));
        Self {
            bucket: bucket.into(),
            key: format!("results/{operation}/{owner}/{sha256}"),
            sha256,
            bytes,
        }
    }

    /// Returns whether `output` is the output that was stored, judging by its digest.
    #[must_use]
    pub fn is_of(&self, output: &[u8]) -> bool {
        hex(&Sha256::digest(output)) == self.sha256
    }

    /// Returns the pointer as JSON, the form in which a record stores it.
    pub fn to_json(&self) -> String {
        let Self {
            bucket,
            key,
            sha256,
            bytes,
        } = self;
        json!({"bucket": bucket, "key": key, "sha256": sha256, "bytes": bytes}).to_string()
    }
}

/// Displays the URI of the object: `s3://bucket/key`.
impl fmt::Display for ResultPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}

/// The reason for an output that the settings don't store.
const NOT_WANTED: &str = "Results::none()";

/// The reason for an output that we dropped from memory because the record has it.
const IN_RECORD: &str = "the output is in the record";

impl StoredResult {
    /// Returns the result of an operation whose output the settings do not store.
    pub(crate) fn not_wanted() -> Self {
        Self::Omitted(NOT_WANTED.to_owned())
    }

    /// Returns why an output that should have been stored is missing.
    pub fn missing(&self) -> Option<&str> {
        match self {
            Self::Omitted(why) if why != NOT_WANTED && why != IN_RECORD => Some(why),
            _ => None,
        }
    }

    /// Takes the output out, and leaves a value that says where it is.
    pub fn take(&mut self) -> Self {
        match self {
            Self::Json(_) => mem::replace(self, Self::Omitted(IN_RECORD.to_owned())),
            Self::InS3(_) | Self::Omitted(_) => self.clone(),
        }
    }

    /// Returns `json` if it has at most [`MAX_RESULT_BYTES`], otherwise [`StoredResult::Omitted`].
    ///
    /// ```
    /// use sqs_once::protocol::{MAX_RESULT_BYTES, StoredResult};
    ///
    /// assert_eq!(StoredResult::fit("1".into()), StoredResult::Json("1".into()));
    /// let long = "x".repeat(MAX_RESULT_BYTES + 1);
    /// assert!(matches!(StoredResult::fit(long), StoredResult::Omitted(_)));
    /// ```
    #[must_use]
    pub fn fit(json: String) -> Self {
        if json.len() <= MAX_RESULT_BYTES {
            Self::Json(json)
        } else {
            Self::Omitted(format!(
                "output of {} bytes not stored: a record holds at most {MAX_RESULT_BYTES}",
                json.len()
            ))
        }
    }
}
