//! Objects in S3: the client, bounded reads, and errors that name the remedy.

mod results;

use std::{error::Error, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_s3::{
    Client,
    config::{Builder, StalledStreamProtectionConfig, http::HttpResponse},
    error::{ProvideErrorMetadata, SdkError},
    operation::get_object::GetObjectOutput,
};

pub use results::S3Results;

use crate::aws::explain::{causes, explain};

/// How long a read of an object may wait for the next bytes.
const LONGEST_STALL: Duration = Duration::from_secs(2);

/// Creates an S3 client. If the configuration sets an endpoint, as for an emulator, the bucket's name goes into the request's path.
pub(crate) fn client(config: &SdkConfig) -> Client {
    let stalls = StalledStreamProtectionConfig::enabled().grace_period(LONGEST_STALL);
    let config = Builder::from(config)
        .force_path_style(config.endpoint_url().is_some())
        .stalled_stream_protection(stalls.build());
    Client::from_conf(config.build())
}

/// A bucket and the setting that names it.
#[derive(Clone, Copy)]
pub(crate) struct Bucket<'a> {
    pub(crate) client: &'a Client,
    pub(crate) name: &'a str,
    pub(crate) setting: &'static str,
}

/// Why an object could not be read.
pub(crate) enum ReadError {
    /// `NoSuchKey`.
    Missing,
    /// The object is longer than the limit, so we did not read all of it.
    TooLong,
    /// Any other reason, and what to do. The text contains neither the object nor its key.
    Failed(String),
}

impl Bucket<'_> {
    /// Reads an object of at most `max_bytes` bytes.
    pub(crate) async fn read(&self, key: &str, max_bytes: usize) -> Result<Vec<u8>, ReadError> {
        let get = self.client.get_object().bucket(self.name).key(key);
        let object = get.send().await.map_err(|error| {
            if code(&error) == Some("NoSuchKey") {
                return ReadError::Missing;
            }
            ReadError::Failed(self.refused(
                &error,
                "the role may not read the object; grant s3:GetObject, kms:Decrypt if the bucket \
                 has a KMS key, and s3:ListBucket, without which a missing object is denied too",
            ))
        })?;
        collect(object, max_bytes).await
    }

    /// Writes JSON text as an object. S3 compares the bytes that arrive with this SHA-256, which is in base64.
    ///
    /// The error says what failed and what to do.
    pub(crate) async fn put(&self, key: &str, sha256: String, json: String) -> Result<(), String> {
        let put = self
            .client
            .put_object()
            .bucket(self.name)
            .key(key)
            .content_type("application/json")
            .checksum_sha256(sha256)
            .body(json.into_bytes().into());
        let stored = put.send().await.map_err(|error| {
            self.refused(
                &error,
                "the role may not write the object; grant s3:PutObject, and kms:GenerateDataKey \
                 if the bucket has a KMS key",
            )
        })?;
        // Not every 200 comes from S3. A proxy's login page, for example, has no ETag.
        match stored.e_tag {
            Some(_) => Ok(()),
            None => Err("the response did not come from S3".to_owned()),
        }
    }

    /// Explains a failed request. Leaves out S3's texts, because they may quote the object key, which can be payload.
    fn refused<E>(&self, error: &SdkError<E, HttpResponse>, denied: &'static str) -> String
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let status = error.raw_response().map(|answer| answer.status().as_u16());
        explain(error, |code, _| {
            Some(match (code, status) {
                ("NoSuchBucket", _) => format!("there is no such bucket; check {}", self.setting),
                (_, Some(403)) => denied.to_owned(),
                (_, Some(301 | 400)) => {
                    "check the Region of the bucket and the credentials".to_owned()
                }
                _ => "S3 failed".to_owned(),
            })
        })
    }
}

fn code<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Option<&str> {
    error.as_service_error().and_then(E::code)
}

async fn collect(object: GetObjectOutput, max_bytes: usize) -> Result<Vec<u8>, ReadError> {
    let announced: usize = object
        .content_length
        .and_then(|size| size.try_into().ok())
        .unwrap_or(0);
    if announced > max_bytes {
        return Err(ReadError::TooLong);
    }
    let mut body = Vec::with_capacity(announced);
    let mut stream = object.body;
    while let Some(bytes) = stream.try_next().await.map_err(|error| {
        ReadError::Failed(format!("the response is incomplete: {}", causes(&error)))
    })? {
        if body.len() + bytes.len() > max_bytes {
            return Err(ReadError::TooLong);
        }
        body.extend_from_slice(&bytes);
    }
    Ok(body)
}
