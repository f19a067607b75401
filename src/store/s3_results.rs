//! [`S3Results`]: outputs in a bucket of S3.

use std::{sync::Arc, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_s3::Client;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    protocol::{Key, Owner, ResultPointer, StoredResult, record::MAX_RESULT_BYTES},
    s3::{Bucket, ReadError, client},
};

/// Longest output in a record. A record of 64 KB costs 64 write units.
const DEFAULT_INLINE_LIMIT: usize = 64 * 1024;

/// Longest output in S3. It is in memory as a whole when it is written, and when it is read.
const MAX_BYTES: usize = 10 << 20;

/// Maximum time for an output's way to S3. A lease that a heartbeat renewed lasts longer.
const MAX_PUT_TIME: Duration = Duration::from_secs(2);

/// Outputs over a limit as objects in a bucket.
#[derive(Clone, Debug)]
pub(super) struct S3Results {
    client: Client,
    bucket: Arc<str>,
    inline_limit: usize,
}

impl S3Results {
    pub(super) fn new(config: &SdkConfig, bucket: String) -> Self {
        Self {
            client: client(config),
            bucket: bucket.into(),
            inline_limit: DEFAULT_INLINE_LIMIT,
        }
    }

    pub(super) fn inline_limit(self, bytes: usize) -> Self {
        Self {
            inline_limit: bytes.min(MAX_RESULT_BYTES),
            ..self
        }
    }

    /// Stores an output. If S3 does not take it in time, the result says that it is omitted.
    pub(super) async fn keep(
        &self,
        key: &Key,
        owner: &Owner,
        json: String,
        end: Instant,
    ) -> StoredResult {
        let bytes = json.len();
        if bytes <= self.inline_limit {
            return StoredResult::Json(json);
        }
        let omitted =
            |why: &str| StoredResult::Omitted(format!("output of {bytes} bytes not stored: {why}"));
        if bytes > MAX_BYTES {
            return omitted(&format!("an output in S3 has at most {MAX_BYTES}"));
        }
        let digest = Sha256::digest(json.as_bytes());
        let pointer = ResultPointer::of_digest(&*self.bucket, key, owner, &digest, bytes);
        let sha256 = BASE64_STANDARD.encode(digest);
        // Half of the time left is for the record.
        let left = end.saturating_duration_since(Instant::now());
        let limit = Instant::now() + MAX_PUT_TIME.min(left / 2);
        let bucket = self.bucket(&self.bucket);
        // Boxed: the SDK's future is large, and few outputs need it.
        match timeout_at(limit, Box::pin(bucket.put(&pointer.key, sha256, json))).await {
            Ok(Ok(())) => StoredResult::InS3(Box::new(pointer)),
            Ok(Err(why)) => omitted(&why),
            Err(_elapsed) => omitted("S3 did not take it in time"),
        }
    }

    /// Reads an output, and compares its digest with the record's.
    pub(super) async fn read_within(
        &self,
        time: Duration,
        pointer: &ResultPointer,
    ) -> Result<String, String> {
        const ALTERED: &str = "the object was altered: its SHA-256 is not the record's";
        if pointer.bytes > MAX_BYTES {
            return Err(format!("an output in S3 has at most {MAX_BYTES} bytes"));
        }
        let bucket = self.bucket(&pointer.bucket);
        let read = Box::pin(bucket.read(&pointer.key, pointer.bytes));
        let output = match timeout(time, read).await {
            Ok(Ok(output)) if pointer.is_of(&output) => output,
            Ok(Ok(_) | Err(ReadError::TooLong)) => return Err(ALTERED.to_owned()),
            Ok(Err(ReadError::Missing)) => {
                return Err(
                    "NoSuchKey: the object is lost; keep objects longer than records".into(),
                );
            }
            Ok(Err(ReadError::Failed(why))) => return Err(why),
            Err(_elapsed) => return Err("S3 did not return the object in time".to_owned()),
        };
        String::from_utf8(output).map_err(|_| ALTERED.to_owned())
    }

    fn bucket<'a>(&'a self, name: &'a str) -> Bucket<'a> {
        Bucket {
            client: &self.client,
            name,
            setting: "IDEMPOTENCY_RESULT_BUCKET",
        }
    }
}
