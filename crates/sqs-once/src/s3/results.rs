//! [`S3Results`]: outputs in an S3 bucket.

use std::{sync::Arc, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_s3::Client;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::future::BoxFuture;
use sha2::{Digest as _, Sha256};

use super::{Bucket, ReadError, client};
use crate::{
    protocol::{Key, Owner, ResultPointer, StoredResult},
    store::ResultStore,
    system::{self, Instant, timeout, timeout_at},
};

/// Longest output in S3. The whole output is in memory while we write or read it.
const MAX_BYTES: usize = 10 << 20;

/// How long storing an output in S3 may take.
const MAX_PUT_TIME: Duration = Duration::from_secs(2);

/// Stores outputs as objects in an S3 bucket, for [`Results::outside`](crate::store::Results::outside). Does
/// not store outputs of more than 10 MiB.
///
/// The role needs `s3:PutObject` and `s3:GetObject` on `results/*` in the bucket. It also needs `s3:ListBucket`
/// on the bucket, because otherwise S3 answers 403 instead of 404 for a lost object. A bucket with a KMS key
/// needs `kms:GenerateDataKey` and `kms:Decrypt`.
///
/// ```no_run
/// use sqs_once::{Once, aws, store::{DynamoStore, Results, S3Results}};
///
/// # async fn run() {
/// let config = aws::config().await;
/// let store = DynamoStore::new(aws_sdk_dynamodb::Client::new(&config), "idempotency");
/// let outputs = S3Results::new(&config, "order-outputs");
/// let once = Once::new(store).results(Results::outside(outputs));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct S3Results {
    client: Client,
    bucket: Arc<str>,
}

impl S3Results {
    /// Stores outputs in this bucket.
    #[must_use]
    pub fn new(config: &SdkConfig, bucket: impl Into<String>) -> Self {
        Self {
            client: client(config),
            bucket: bucket.into().into(),
        }
    }

    fn bucket<'a>(&'a self, name: &'a str) -> Bucket<'a> {
        Bucket {
            client: &self.client,
            name,
            setting: "IDEMPOTENCY_RESULT_BUCKET",
        }
    }
}

impl ResultStore for S3Results {
    fn store<'a>(
        &'a self,
        key: &'a Key,
        owner: &'a Owner,
        json: String,
        end: Instant,
    ) -> BoxFuture<'a, StoredResult> {
        Box::pin(async move {
            let bytes = json.len();
            let omitted = |why: &str| {
                StoredResult::Omitted(format!("output of {bytes} bytes not stored: {why}"))
            };
            if bytes > MAX_BYTES {
                return omitted(&format!("an output in S3 has at most {MAX_BYTES}"));
            }
            let digest = Sha256::digest(json.as_bytes());
            let pointer = ResultPointer::of_digest(&*self.bucket, key, owner, &digest, bytes);
            let sha256 = BASE64_STANDARD.encode(digest);
            // The other half of the time left is for the record.
            let left = end.saturating_duration_since(system::instant());
            let limit = system::instant() + MAX_PUT_TIME.min(left / 2);
            let bucket = self.bucket(&self.bucket);
            match timeout_at(limit, bucket.put(&pointer.key, sha256, json)).await {
                Ok(Ok(())) => StoredResult::InS3(Box::new(pointer)),
                Ok(Err(why)) => omitted(&why),
                Err(_elapsed) => omitted("S3 did not take it in time"),
            }
        })
    }

    fn read_within<'a>(
        &'a self,
        time: Duration,
        pointer: &'a ResultPointer,
    ) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move {
            const ALTERED: &str = "the object was altered: its SHA-256 is not the record's";
            if pointer.bytes > MAX_BYTES {
                return Err(format!("an output in S3 has at most {MAX_BYTES} bytes"));
            }
            let bucket = self.bucket(&pointer.bucket);
            let read = bucket.read(&pointer.key, pointer.bytes);
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
        })
    }
}
