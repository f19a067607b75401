//! [`S3Pointer`]: says where in S3 the Amazon SQS Extended Client stored the body of a message.

use std::{collections::HashMap, fmt::Debug};

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    handler::{Attribute, InvalidMessage, without_bom},
    modes::Outcome,
};

/// Message attribute that the extended clients add: its newer and its older name.
const SIZE_ATTRIBUTES: [&str; 2] = ["ExtendedPayloadSize", "SQSLargePayloadSize"];

/// Reads the bodies that pointers name. `S3Bodies`, from the `s3` feature, implements it.
pub trait ReadBodies: Debug + Send + Sync {
    /// Returns how many bytes a body may have. Before the consumer reads a body, it waits for that much memory, or for all
    /// of its 20 MiB if that is less.
    fn max_bytes(&self) -> u32;

    /// Reads the body behind a pointer. Returns `None` if S3 has no such object.
    ///
    /// # Errors
    ///
    /// Returns the message's outcome. The outcome's text should not contain payload.
    fn read<'a>(&'a self, pointer: &'a S3Pointer)
    -> BoxFuture<'a, Result<Option<String>, Outcome>>;
}

/// Bucket and key of an object in S3, as the extended clients of SQS and SNS write them:
/// `["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "...", "s3Key": "..."}]`.
///
/// Clients in other languages may leave out the name of the Java class. Their pointer is just the object, and
/// the message has the attribute `ExtendedPayloadSize` or `SQSLargePayloadSize`.
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
    /// Parses a body that is a pointer. Returns `None` for other bodies.
    ///
    /// With the class name, we require no attribute, because services drop attributes on the way.
    pub(super) fn find(
        body: &str,
        attributes: &HashMap<String, Attribute>,
    ) -> Option<Result<Self, InvalidMessage>> {
        let json = without_bom(body).trim();
        let place = if json.starts_with('[') {
            // Parsing stops at the first character that a pointer can't have.
            let (_class, place) = serde_json::from_str::<(PointerClass, &RawValue)>(json).ok()?;
            place.get()
        } else {
            let has_size = SIZE_ATTRIBUTES
                .iter()
                .any(|name| attributes.contains_key(*name));
            let is_pointer = || json.starts_with('{') && json.contains("\"s3Key\"");
            (has_size && is_pointer()).then_some(json)?
        };
        let pointer = serde_json::from_str::<Self>(place)
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

    /// Creates the error of a message whose body is gone.
    pub(super) fn gone(&self) -> String {
        format!(
            "NoSuchKey: the bucket {} has no object under the key of the pointer, and the message may have been \
             processed: check whether its operation is done, and keep objects longer than messages of the queue and \
             its dead-letter queue",
            self.bucket
        )
    }

    /// Creates the error of a pointer that the consumer does not follow, so that no handler takes the pointer for the message.
    pub(super) fn not_read() -> InvalidMessage {
        "the body is in S3, where an Amazon SQS extended client put it: set CONSUMER_S3_BUCKETS, which \
         needs the feature `s3`"
            .into()
    }

    /// Returns whether the key is safe to request. A request without a key would list the bucket, and a proxy
    /// may resolve `..` into another bucket.
    fn is_sound(&self) -> bool {
        let mut segments = self.key.split('/');
        !self.key.is_empty() && segments.all(|segment| segment != "." && segment != "..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::AttributeValue;

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
            let found = S3Pointer::find(body, &HashMap::new());
            assert_eq!(found, pointer("bodies", key), "{body}");
        }
    }

    fn size(name: &str) -> HashMap<String, Attribute> {
        let size = Attribute {
            data_type: "Number".to_owned(),
            value: AttributeValue::Text("300000".to_owned()),
        };
        HashMap::from([(name.to_owned(), size)])
    }

    #[test]
    fn pointer_without_class_needs_the_size_attribute() {
        let body = r#" {"s3BucketName": "bodies", "s3Key": "o-1"}"#;
        for name in SIZE_ATTRIBUTES {
            assert_eq!(S3Pointer::find(body, &size(name)), pointer("bodies", "o-1"));
            for other in ["", "[]", "7", "{}", "{", r#"{"orderId":"o-1"}"#] {
                assert_eq!(S3Pointer::find(other, &size(name)), None, "{other}");
            }
            let unsound = S3Pointer::find(r#"{"s3Key":7}"#, &size(name));
            assert!(matches!(unsound, Some(Err(_))));
        }
        assert_eq!(S3Pointer::find(body, &size("size")), None);
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
            assert_eq!(S3Pointer::find(body, &HashMap::new()), None, "{body}");
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
            let found = S3Pointer::find(&body, &HashMap::new());
            let InvalidMessage(error) = found.unwrap().unwrap_err();
            assert!(error.contains("s3Key"), "{error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
    }
}
