//! Batches in, failures out: the SQS side of a Lambda.
//!
//! | module | what it does |
//! | --- | --- |
//! | `message` | one record of the event: what names it, what the handler is given of it |
//! | `identity` | what makes two messages the same operation |
//! | `pointer` | what JSON pointers find in a body |
//! | `lanes` | what runs side by side, and what one after the other |
//! | `consumer` | the batch: deadline, panics, response |
//! | `processed` | what became of a message, and its line in the log |
//! | `visibility` | visibility timeouts of failed messages: the rule |
//! | `changes` | and the calls that set them |
//! | `dead_letter` | copies of messages that failed permanently |
//! | `attributes` | a queue's redrive policy and retention |
//! | `queues` | calls to SQS, each bounded, none under a lock |
//! | `lambda` | the loop that asks Lambda for batches |

mod attributes;
mod changes;
mod consumer;
mod dead_letter;
mod identity;
mod lambda;
mod lanes;
mod message;
mod pointer;
mod processed;
mod queues;
#[cfg(test)]
mod survival;
mod visibility;

pub use changes::Visibility;
pub use consumer::{BatchError, Consumer, FifoAfterPermanent, FifoAfterPermanentError};
pub use identity::{FingerprintSource, KeySource, SourceError};
pub use lambda::run;
pub use pointer::Pointers;
