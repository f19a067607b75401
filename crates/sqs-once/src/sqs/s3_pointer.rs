//! [`S3Pointer`]: says where in S3 the Amazon SQS Extended Client stored the body of a message.

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{handler::InvalidMessage, modes::Outcome};

/// Reads the bodies that pointers name. `S3Bodies` of the feature `s3` implements it.
pub trait ReadBodies: Debug + Send + Sync {
    /// Reads the body behind a pointer.
    ///
    /// # Errors
    ///
    /// The outcome of the message. Its text should not contain payload.
    fn read<'a>(&'a self, pointer: &'a S3Pointer) -> BoxFuture<'a, Result<String, Outcome>>;
}

/// Bucket and key of an object in S3, as the extended clients of SQS and SNS write them:
/// `["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "...", "s3Key": "..."}]`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct S3Pointer {
    /// The bucket.
    #[serde(rename = "s3BucketName")]
    pub bucket: String,
    /// The key, without the segments `.` and `..`.
    #[serde(rename = "s3Key")]
    pub key: String,
}

/// Name of the Java class. Jackson puts it before an object whose class is not final.
#[derive(Deserialize)]
enum PointerClass {
    #[serde(rename = "software.amazon.payloadoffloading.PayloadS3Pointer")]
    PayloadS3Pointer,
    /// Used before version 1.1 of the Java library. Other clients write it on request.
    #[serde(rename = "com.amazon.sqs.javamessaging.MessageS3Pointer")]
    MessageS3Pointer,
}

impl S3Pointer {
    /// Parses a body that is a pointer. `None` for other bodies.
    ///
    /// The clients add the attribute `ExtendedPayloadSize` or `SQSLargePayloadSize`. We look only for the
    /// class name, which survives services that drop attributes.
    pub(super) fn find(body: &str) -> Option<Result<Self, InvalidMessage>> {
        // Parsing stops at the first character that a pointer cannot have.
        let (_class, place) = serde_json::from_str::<(PointerClass, &RawValue)>(body).ok()?;
        let pointer = serde_json::from_str::<Self>(place.get())
            .ok()
            .filter(Self::is_sound);
        Some(pointer.ok_or_else(|| {
            InvalidMessage(
                "the pointer to S3 is invalid: it needs an s3BucketName, and an s3Key without the \
                 segments `.` and `..`"
                    .into(),
            )
        }))
    }

    /// Returns whether the key is safe to request. A request without a key would list the bucket, and a proxy
    /// may resolve `..` into a different bucket.
    fn is_sound(&self) -> bool {
        let mut segments = self.key.split('/');
        !self.key.is_empty() && segments.all(|segment| segment != "." && segment != "..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(bucket: &str, key: &str) -> Option<Result<S3Pointer, InvalidMessage>> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        Some(Ok(S3Pointer { bucket, key }))
    }

    #[test]
    fn pointers_of_every_client_are_found() {
        for (body, key) in [
            // amazon-sqs-java-extended-client-lib 2: Jackson without white space.
            (
                r#"["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"bodies","s3Key":"3f0b8a0e-7d2d-4f0a-9b54-5d1d2c9d7c11"}]"#,
                "3f0b8a0e-7d2d-4f0a-9b54-5d1d2c9d7c11",
            ),
            // Version 1.0 of the same library.
            (
                r#"["com.amazon.sqs.javamessaging.MessageS3Pointer",{"s3BucketName":"bodies","s3Key":"o-1"}]"#,
                "o-1",
            ),
            // The extended clients in Python, for SQS and SNS: `json.dumps` with white space.
            (
                r#"["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "bodies", "s3Key": "orders/o-1"}]"#,
                "orders/o-1",
            ),
            // Jackson ignores members that it does not know.
            (
                r#" ["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3Key":"a..b","more":1,"s3BucketName":"bodies"}] "#,
                "a..b",
            ),
        ] {
            assert_eq!(S3Pointer::find(body), pointer("bodies", key), "{body}");
        }
    }

    #[test]
    fn other_bodies_are_no_pointers() {
        for body in [
            "",
            "{}",
            "[]",
            "not JSON",
            r#"{"s3BucketName":"b","s3Key":"k"}"#,
            r#"["java.util.ArrayList",[]]"#,
            r#"["software.amazon.payloadoffloading.PayloadS3Pointer"]"#,
            r#"["software.amazon.payloadoffloading.PayloadS3Pointer",{},{}]"#,
        ] {
            assert_eq!(S3Pointer::find(body), None, "{body}");
        }
    }

    #[test]
    fn unsound_pointer_is_invalid_without_payload() {
        for place in [
            "{}",
            "7",
            r#"{"s3BucketName":"SECRET"}"#,
            r#"{"s3BucketName":"SECRET","s3Key":7}"#,
            r#"{"s3BucketName":"SECRET","s3Key":""}"#,
            r#"{"s3BucketName":"SECRET","s3Key":"../other/o-1"}"#,
            r#"{"s3BucketName":"SECRET","s3Key":"a/./b"}"#,
        ] {
            let body = format!(r#"["software.amazon.payloadoffloading.PayloadS3Pointer",{place}]"#);
            let InvalidMessage(error) = S3Pointer::find(&body).unwrap().unwrap_err();
            assert!(error.contains("s3Key"), "{error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
    }
}
