//! Batches in, failures out: the SQS side of a Lambda function.
//!
//! | module | task |
//! | --- | --- |
//! | `event` | reads the messages of an event, even oddly shaped ones |
//! | `message` | one message: its ids, its body, its delivery |
//! | `envelope` | the JSON of SNS, EventBridge or S3 around a message |
//! | `content` | what an envelope holds |
//! | `s3_notification` | the records of an S3 event notification |
//! | `read_message` | reads one message without a batch, for tests of handlers |
//! | `identity` | key and fingerprint of a message |
//! | `key_source` | which messages are the same operation |
//! | `fingerprint_source` | which part of a message must not change under one key |
//! | `pointer` | JSON pointers into a body |
//! | `document` | finds what a pointer names in the text of a body |
//! | `canonical` | the canonical form of JSON |
//! | `s3_pointer` | where in S3 an extended client stored a body |
//! | `s3_bodies` | reads these bodies |
//! | `consumer` | the type [`Consumer`] |
//! | `consumer_settings` | its settings |
//! | `process` | what the invocations of a process share: circuit breaker, turns, memory |
//! | `invocation` | reads a batch, and builds the response |
//! | `batch_error` | why a whole batch goes back to the queue |
//! | `chains` | which messages run one after the other, and what a group does after a permanent failure |
//! | `batch` | runs the chains until the deadline, and keeps how each message ended |
//! | `run` | one message: admit, claim, decode, look up, call the handler, finish |
//! | `body` | its body, which may come from S3 |
//! | `long_polls` | finds handlers that block their thread |
//! | `callback` | functions of the application |
//! | `on_duplicate` | the function that is called for duplicates |
//! | `ended` | how a message ended, and its log line |
//! | `message_outcome` | the same, with the facts of the message, for the response, metrics and observers |
//! | `report` | the log line of a batch, with metrics |
//! | `visibility` | visibility timeouts of failed messages, and direct dead-lettering |
//! | `visibility::change` | the calls that change visibility timeouts |
//! | `lambda` | the consumer as a `tower` service, and the loop that asks Lambda for batches |

mod batch;
mod batch_error;
mod body;
mod callback;
mod canonical;
mod chains;
mod consumer;
mod consumer_settings;
mod content;
mod document;
mod ended;
mod envelope;
mod event;
mod fingerprint_source;
pub(crate) mod identity;
mod invocation;
mod key_source;
mod lambda;
mod long_polls;
mod message;
mod message_outcome;
mod on_duplicate;
mod options;
mod pointer;
mod process;
#[cfg(feature = "testing")]
mod read_message;
mod report;
mod run;
#[cfg(feature = "s3")]
mod s3_bodies;
mod s3_notification;
mod s3_pointer;
mod visibility;

pub use batch_error::BatchError;
pub use chains::FifoAfterPermanent;
pub use consumer::Consumer;
pub use envelope::Envelope;
pub use fingerprint_source::FingerprintSource;
pub use key_source::KeySource;
pub use lambda::run;
pub use message_outcome::MessageOutcome;
pub(crate) use options::{Concurrency, LEAST, Options};
#[cfg(feature = "s3")]
pub use s3_bodies::S3Bodies;
pub use s3_pointer::{ReadBodies, S3Pointer};
pub use visibility::Visibility;
#[doc(hidden)]
pub use visibility::delay::{LEAST_OUTAGE, survived_outage};
