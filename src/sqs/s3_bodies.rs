//! [`S3Bodies`]: reads the bodies that the Amazon SQS Extended Client stored in S3.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_s3::{
    Client,
    config::{Builder, StalledStreamProtectionConfig},
    error::{ProvideErrorMetadata as _, SdkError},
    operation::{
        RequestId as _,
        get_object::{GetObjectError, GetObjectOutput},
    },
};

use super::s3_pointer::S3Pointer;
use crate::{
    dynamodb::explain::{causes, explain},
    once::Outcome,
};

/// Ten such bodies and the handlers' types fit into the memory of template.yaml.
const DEFAULT_MAX_BYTES: NonZeroU32 = const { NonZeroU32::new(2 << 20).unwrap() };

/// Longest time without a byte of a body.
const LONGEST_STALL: Duration = Duration::from_secs(2);

/// Reads the body of a message from S3 where the message is a pointer, as the Amazon SQS Extended
/// Client sends it:
///
/// ```json
/// ["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "order-bodies", "s3Key": "..."}]
/// ```
///
/// The class name of older clients, `com.amazon.sqs.javamessaging.MessageS3Pointer`, works too. With an
/// [`Envelope`](super::Envelope), the pointer is inside of the envelope. Key, fingerprint and handler
/// see the body from S3. Copies in a dead-letter queue have the pointer.
///
/// A message is read when it runs, before its claim. Its body stays in memory until the message ends.
/// At most [`Consumer::concurrency`](crate::Consumer::concurrency) bodies of one batch are in memory.
///
/// | result of the read | outcome |
/// | --- | --- |
/// | longer than the limit, not UTF-8, no such object (`NoSuchKey`) | [`Invalid`](Outcome::Invalid) |
/// | pointer to another bucket, access denied, no such bucket, no answer in time, every other error | [`NoEffect`](Outcome::NoEffect) |
///
/// The role needs `s3:GetObject` on the objects of the buckets. It needs `s3:ListBucket` on the buckets
/// too: without it, S3 answers 403 in place of 404 for an object that does not exist. A bucket with a
/// KMS key needs `kms:Decrypt`. The consumer never deletes objects: give the bucket a lifecycle rule.
///
/// ```no_run
/// use sqs_once::{Consumer, Handler, Mode, sqs::S3Bodies};
///
/// # async fn run<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) {
/// let config = sqs_once::aws::config().await;
/// let consumer = consumer.s3_bodies(S3Bodies::new(&config, ["order-bodies"]));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct S3Bodies {
    client: Client,
    buckets: Arc<[String]>,
    max_bytes: NonZeroU32,
}

impl S3Bodies {
    /// Reads bodies from these buckets alone. A pointer to another bucket leads to no request.
    ///
    /// A configuration with an endpoint of its own, such as an emulator's, has the bucket's name in
    /// the path of the request.
    #[must_use]
    pub fn new<B: Into<String>>(config: &SdkConfig, buckets: impl IntoIterator<Item = B>) -> Self {
        let stalls = StalledStreamProtectionConfig::enabled().grace_period(LONGEST_STALL);
        let config = Builder::from(config)
            .force_path_style(config.endpoint_url().is_some())
            .stalled_stream_protection(stalls.build());
        Self {
            client: Client::from_conf(config.build()),
            buckets: buckets.into_iter().map(Into::into).collect(),
            max_bytes: DEFAULT_MAX_BYTES,
        }
    }

    /// Sets the longest body in bytes, 2 MiB by default. A longer one is a permanent failure, and is
    /// not read to its end.
    ///
    /// Each message in progress may hold a body of this size, and its parsed form.
    ///
    /// ```no_run
    /// # use sqs_once::sqs::S3Bodies;
    /// # fn large(bodies: S3Bodies) -> S3Bodies {
    /// bodies.max_bytes(const { std::num::NonZeroU32::new(20 << 20).unwrap() })
    /// # }
    /// ```
    #[must_use]
    pub fn max_bytes(self, max_bytes: NonZeroU32) -> Self {
        Self { max_bytes, ..self }
    }

    /// Reads the body behind a pointer.
    pub(super) async fn read(&self, pointer: &S3Pointer) -> Result<String, Outcome> {
        let bucket = self.buckets.iter().find(|name| **name == pointer.bucket);
        let bucket = bucket.ok_or_else(|| {
            // A missing name in the setting is no verdict on the message.
            Outcome::NoEffect(
                "the body is a pointer to a bucket that CONSUMER_S3_BUCKETS does not name; nothing \
                 was read"
                    .into(),
            )
        })?;
        let get = self.client.get_object().bucket(bucket).key(&pointer.key);
        let object = get.send().await;
        let object = object.map_err(|error| refused(bucket, &error))?;
        let body = self.collect(bucket, object).await?;
        String::from_utf8(body).map_err(|_| {
            Outcome::Invalid(format!(
                "the object in the bucket {bucket} is not UTF-8 text, so it is no message body"
            ))
        })
    }

    /// Reads at most `max_bytes` bytes.
    async fn collect(&self, bucket: &str, object: GetObjectOutput) -> Result<Vec<u8>, Outcome> {
        let announced = object.content_length.and_then(|size| size.try_into().ok());
        let announced = announced.unwrap_or(0);
        self.check_size(bucket, announced)?;
        let mut body = Vec::with_capacity(announced);
        let mut stream = object.body;
        while let Some(bytes) = stream.try_next().await.map_err(|error| {
            Outcome::NoEffect(format!(
                "the body from the bucket {bucket} is incomplete: {}",
                causes(&error)
            ))
        })? {
            self.check_size(bucket, body.len() + bytes.len())?;
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    fn check_size(&self, bucket: &str, size: usize) -> Result<(), Outcome> {
        let limit = self.max_bytes;
        match u32::try_from(size) {
            Ok(size) if size <= limit.get() => Ok(()),
            _ => Err(Outcome::Invalid(format!(
                "the body in the bucket {bucket} has more than {limit} bytes: \
                 CONSUMER_S3_MAX_BYTES is {limit}"
            ))),
        }
    }
}

/// The outcome of a message whose object S3 did not return. The texts of S3 may quote the object key,
/// which is payload.
fn refused(bucket: &str, error: &SdkError<GetObjectError>) -> Outcome {
    let Some(service) = error.as_service_error() else {
        let why = explain(error, "s3:GetObject");
        return Outcome::NoEffect(format!("no body from the bucket {bucket}: {why}"));
    };
    let code = service.code().unwrap_or("unknown error");
    let status = error
        .raw_response()
        .map(|response| response.status().as_u16());
    let why = match (code, status) {
        ("NoSuchKey", _) => {
            return Outcome::Invalid(format!(
                "NoSuchKey: the bucket {bucket} has no object under the key of the pointer; keep \
                 objects longer than messages of the queue and its dead-letter queue"
            ));
        }
        ("NoSuchBucket", _) => "there is no such bucket; check CONSUMER_S3_BUCKETS",
        (_, Some(403)) => {
            "the role may not read the object; grant s3:GetObject, kms:Decrypt if the bucket has a \
             KMS key, and s3:ListBucket, without which a missing object is denied too"
        }
        (_, Some(301 | 400)) => "check the Region of the bucket and the credentials",
        _ => "S3 failed",
    };
    let request_id = error.request_id().unwrap_or("none");
    Outcome::NoEffect(format!(
        "no body from the bucket {bucket}: {code}: {why} (request id {request_id})"
    ))
}
