//! [`HandlerOutput`]: the types that a handler can return.

use serde::Serialize;

use crate::{handler::Failure, protocol::StoredResult, store::With};

/// A type that a handler can return. `sqs-once` does not export this trait: outputs and the return types of
/// the modes implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the output of a handler: it does not implement `serde::Serialize`",
    label = "the output is recorded as JSON, so it must implement `serde::Serialize`",
    note = "add `#[derive(serde::Serialize)]` to `{Self}`, or return `()` where there is nothing to record"
)]
pub trait HandlerOutput: Send {
    /// The result that the record stores as JSON.
    type Result: Serialize + Send;
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> HandlerOutput for O {
    type Result = O;
}

/// Returns the output as JSON that fits into an item.
pub(crate) fn to_result<O: Serialize>(output: &O) -> StoredResult {
    match to_output(output) {
        StoredResult::Json(json) => StoredResult::fit(json),
        omitted => omitted,
    }
}

/// Returns the output as JSON of any length. The effect has happened, so this must not fail.
pub fn to_output<O: Serialize>(output: &O) -> StoredResult {
    match serde_json::to_string(output) {
        Ok(json) => StoredResult::Json(json),
        // The error may quote the output.
        Err(_) => StoredResult::Omitted("the output can't be written as JSON".into()),
    }
}

/// A handler's output with its type erased. Of the handler's code, only `on_refused` can still run.
pub struct Answer<W: With> {
    /// Output of any length.
    pub output: StoredResult,
    /// The writes that commit with the record.
    pub with: W,
    /// Asks the handler for another answer if the store refuses `with`.
    pub on_refused: Box<dyn FnOnce(W::Refused) -> Result<Self, Failure> + Send>,
}

impl<W: With> Answer<W> {
    /// Creates an answer with only an output.
    pub(crate) fn of(output: StoredResult) -> Self {
        Self {
            output,
            with: W::default(),
            on_refused: Box::new(|_| Err(Failure::permanent("the store refused a record"))),
        }
    }
}
