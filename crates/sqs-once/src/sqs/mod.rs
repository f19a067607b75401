//! Batches in, failures out: the SQS side of a Lambda function.
//!
//! | module | task |
//! | --- | --- |
//! | `message` | one record of the event: its ids, its body, its delivery |
//! | `envelope` | the JSON of SNS, EventBridge or S3 around a message |
//! | `encoding` | base64 and gzip around a body |
//! | `read_message` | one message, without a batch |
//! | `reading` | from the body in the queue to content and identity |
//! | `identity` | key and fingerprint of a message |
//! | `key_fn` | a key by code |
//! | `pointer` | JSON pointers into a body |
//! | [`powertools`] | hashes of Powertools for AWS Lambda |
//! | `s3_pointer` | the place in S3 of a body that an extended client stored there |
//! | `s3_bodies` | reads such bodies |
//! | `lanes` | order of messages: which run one after the other |
//! | `long_polls` | finds handlers that block their thread |
//! | `batch` | workers that run lanes until the deadline |
//! | `consumer` | its settings |
//! | `process` | a batch, and the response |
//! | `run` | one lane, and each message of it |
//! | `gate` | when the handler of a message starts |
//! | `observer` | a function that sees the result of each message |
//! | `processed` | result of a message, and its log line |
//! | `breaker` | the circuit breaker of the process |
//! | `suspects` | messages of a batch that run alone after a crash |
//! | `visibility` | visibility timeouts of failed messages, and direct dead-lettering |
//! | `lambda` | the consumer as a `tower` service, and the loop that asks Lambda for batches |

mod batch;
mod breaker;
mod consumer;
mod document;
mod encoding;
mod envelope;
mod gate;
mod identity;
mod key_fn;
mod lambda;
mod lanes;
mod long_polls;
mod message;
mod observer;
mod pointer;
pub mod powertools;
mod process;
mod processed;
mod read_message;
mod reading;
mod run;
#[cfg(feature = "s3")]
mod s3_bodies;
mod s3_pointer;
mod suspects;
mod visibility;

pub use consumer::{Consumer, FifoAfterPermanent};
pub use encoding::Encoding;
pub use envelope::Envelope;
pub use identity::{FingerprintSource, KeySource};
pub use key_fn::Received;
pub use lambda::run;
pub use process::BatchError;
pub use read_message::read_message;
#[cfg(feature = "s3")]
pub use s3_bodies::S3Bodies;
pub use s3_pointer::{ReadBodies, S3Pointer};
pub use visibility::Visibility;
