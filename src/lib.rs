//! lib
pub mod aws;
mod deadline;
mod handler;
pub mod once;
pub mod protocol;
pub mod sqs;
pub mod store;
pub mod telemetry;

pub use deadline::Deadline;
pub use handler::{
    Attempt, Attribute, Delivery, Failure, FnHandler, Handler, History, IntoHandler, OrPermanent,
    ViaFn, ViaHandler,
};
pub use once::{Once, Operation, Outcome};
pub use sqs::{BatchError, Consumer, run};
