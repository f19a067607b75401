//! [`Answer`]: the type of a handler's answer.

use serde::Serialize;

use crate::protocol::StoredResult;

/// The type of a handler's answer. `sqs-once` does not export it: the answers are outputs, and those of the modes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the output of a handler: it does not implement `serde::Serialize`",
    label = "the output is recorded as JSON, so it must implement `serde::Serialize`",
    note = "add `#[derive(serde::Serialize)]` to `{Self}`, or return `()` where there is nothing to record"
)]
pub trait Answer: Send {
    /// The result that is stored, as JSON.
    type Result: Serialize + Send;
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> Answer for O {
    type Result = O;
}

/// The output as JSON that fits into an item.
pub fn to_result<O: Serialize>(output: &O) -> StoredResult {
    match to_output(output) {
        StoredResult::Json(json) => StoredResult::fit(json),
        omitted => omitted,
    }
}

/// The output as JSON, of any length. The effect has occurred, so this must not fail.
pub fn to_output<O: Serialize>(output: &O) -> StoredResult {
    match serde_json::to_string(output) {
        Ok(json) => StoredResult::Json(json),
        // The error may quote the output.
        Err(_) => StoredResult::Omitted("the output can't be written as JSON".into()),
    }
}
