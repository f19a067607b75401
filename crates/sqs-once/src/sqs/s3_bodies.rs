//! [`S3Bodies`]: reads the bodies that the Amazon SQS Extended Client stored in S3.

use std::{num::NonZeroU32, sync::Arc};

use aws_config::SdkConfig;
use aws_sdk_s3::Client;
use futures_util::future::BoxFuture;

use super::s3_pointer::{ReadBodies, S3Pointer};
use crate::{
    flawed::flawed,
    modes::Outcome,
    s3::{Bucket, ReadError, client},
};

/// The consumer reads ten bodies of this size at a time. These, and what handlers make of them, fit into the memory that
/// template.yaml sets.
const DEFAULT_MAX_BYTES: NonZeroU32 = const { NonZeroU32::new(2 << 20).unwrap() };

/// Reads the body of a message from S3, if the message is a pointer like those that the Amazon SQS Extended Client sends:
///
/// ```json
/// ["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "order-bodies", "s3Key": "..."}]
/// ```
///
/// The class name of older clients, `com.amazon.sqs.javamessaging.MessageS3Pointer`, also works. With an
/// [`Envelope`](super::Envelope), the pointer is inside the envelope. The key and the fingerprint
/// are computed from the body in S3, and the handler gets that body. A copy in a dead-letter queue carries the pointer.
///
/// The consumer reads a body when its message runs, before the claim. A message that waits to run alone drops the
/// body and reads it again. The bodies of all messages in progress take at most 20 MiB together, or the limit for one
/// body if that is more. A message waits until there is memory for the longest body allowed, so with a limit of 2
/// MiB, ten are read at a time.
///
/// | result of the read | outcome |
/// | --- | --- |
/// | longer than the limit, not UTF-8 | [`Invalid`](Outcome::Invalid) |
/// | no such object (`NoSuchKey`) | what the record says became of this message, if the key needs no body and there is a record; otherwise [`Invalid`](Outcome::Invalid). Nothing is claimed |
/// | pointer to another bucket, access denied, no such bucket, no response in time, every other error | [`NoEffect`](Outcome::NoEffect) |
///
/// The role needs `s3:GetObject` on the buckets' objects. It also needs `s3:ListBucket` on the buckets, because
/// otherwise S3 answers 403 instead of 404 for an object that does not exist. A bucket with a KMS key needs
/// `kms:Decrypt`. The consumer never deletes objects, so give the bucket a lifecycle rule.
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
    /// Reads bodies only from these buckets. A pointer to any other bucket causes no request.
    ///
    /// If the configuration sets an endpoint, as for an emulator, the bucket's name goes into the path of the
    /// request.
    #[must_use]
    pub fn new<B: Into<String>>(config: &SdkConfig, buckets: impl IntoIterator<Item = B>) -> Self {
        Self {
            client: client(config),
            buckets: buckets.into_iter().map(Into::into).collect(),
            max_bytes: DEFAULT_MAX_BYTES,
        }
    }

    /// Sets the longest body in bytes, 2 MiB by default. A longer body fails permanently, and the consumer stops reading at
    /// the limit.
    ///
    /// Each message in progress may hold a body of this size, and what the handler makes of it.
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
}

impl ReadBodies for S3Bodies {
    fn max_bytes(&self) -> u32 {
        self.max_bytes.get()
    }

    fn read<'a>(
        &'a self,
        pointer: &'a S3Pointer,
    ) -> BoxFuture<'a, Result<Option<String>, Outcome>> {
        Box::pin(async move {
            let allowed = self.buckets.iter().find(|name| **name == pointer.bucket);
            let bucket = allowed.ok_or_else(|| {
                // The setting may be wrong, which is not the message's fault, so the message is retried.
                Outcome::NoEffect(
                    "the body is a pointer to a bucket that CONSUMER_S3_BUCKETS does not name; nothing \
                     was read"
                        .into(),
                )
            })?;
            let limit = usize::try_from(self.max_bytes.get()).unwrap_or(usize::MAX);
            let objects = Bucket {
                client: &self.client,
                name: bucket,
                setting: "CONSUMER_S3_BUCKETS",
            };
            let read = objects.read(&pointer.key, limit).await;
            let error = match read {
                Ok(body) => {
                    return String::from_utf8(body).map(Some).map_err(|_| {
                        Outcome::Invalid(format!(
                            "the object in the bucket {bucket} is not UTF-8 text, so it is no message body"
                        ))
                    });
                }
                Err(error) => error,
            };
            Err(match error {
                ReadError::Missing => return Ok(None),
                ReadError::TooLong => Outcome::Invalid(format!(
                    "the body in the bucket {bucket} has more than {limit} bytes: \
                     CONSUMER_MAX_BODY_BYTES is {limit}"
                )),
                ReadError::Failed(why) if flawed("a body that S3 refuses is invalid") => {
                    Outcome::Invalid(why)
                }
                ReadError::Failed(why) => {
                    Outcome::NoEffect(format!("no body from the bucket {bucket}: {why}").into())
                }
            })
        })
    }
}
