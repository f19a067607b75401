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
//! | `visibility` | when what goes back to the queue is seen again |
//! | `queues` | and how SQS is told |
//! | `lambda` | the loop that asks Lambda for batches |

mod consumer;
mod identity;
mod lambda;
mod lanes;
mod message;
mod pointer;
mod processed;
mod queues;
mod visibility;

pub use consumer::{BatchError, Consumer};
pub use identity::{FingerprintSource, KeySource, SourceError};
pub use lambda::run;
pub use pointer::Pointers;
pub use queues::Visibility;
