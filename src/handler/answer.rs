//! The answer of a handler: an output, alone or with writes ([`Done`]).

use std::fmt;

use aws_sdk_dynamodb::types::TransactWriteItem;
use serde::Serialize;

use super::Failure;
use crate::{
    dynamodb::{
        refused::Refused,
        write::{IntoWrite, MAX_WRITES, Write},
    },
    protocol::StoredResult,
};

/// The type of a handler's answer. Not exported, so that no other crate implements it.
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

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> Answer for Done<O> {
    type Result = O;
}

/// An output, and the writes that commit together with the record of it: all of them exactly
/// once, whatever crashes.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use sqs_once::{Attempt, Done, Failure, Write};
///
/// #[derive(Deserialize)]
/// struct Order { id: String, product: String }
///
/// #[derive(Serialize)]
/// struct Placed { order: String, declined: bool }
///
/// async fn place(order: Order, _: Attempt) -> Result<Done<Placed>, Failure> {
///     let declined = Placed { order: order.id.clone(), declined: true };
///     Ok(Done::new(Placed { order: order.id.clone(), declined: false })
///         .with(Write::put("orders", serde_json::json!({ "id": order.id })))
///         .with(
///             Write::update("products", "SET quantity = quantity - :one")
///                 .key("product", &order.product)
///                 .when("quantity >= :one")
///                 .value(":one", 1)
///                 .label("stock"),
///         )
///         .on_refused(move |refused| match refused.get("stock") {
///             Some(_) => Ok(Done::new(declined)),
///             None => Err(Failure::permanent(refused.to_string())),
///         }))
/// }
/// ```
///
/// # Limits
///
/// [`MAX_WRITES`], each to another item, 4 MB in all. A transaction costs twice the write units of
/// its writes.
///
/// # Writes that are refused
///
/// The record decides first: if the operation is done already, nothing is written. If a
/// write's own condition is not met, the operation has failed permanently, unless
/// [`on_refused`](Self::on_refused) says otherwise. Collisions with other transactions and
/// throttling are tried again while there is time.
#[must_use = "the writes are made only if the handler returns this"]
pub struct Done<O> {
    output: O,
    writes: Vec<Write<TransactWriteItem>>,
    on_refused: Option<OnRefused<Done<O>>>,
}

pub(crate) type OnRefused<T> = Box<dyn FnOnce(&Refused) -> Result<T, Failure> + Send>;

impl<O> Done<O> {
    /// An output, so far without writes.
    pub fn new(output: O) -> Self {
        Self {
            output,
            writes: Vec::new(),
            on_refused: None,
        }
    }

    /// One write more: a [`Write`], or a `Put`, `Update`, `Delete` or `ConditionCheck` of the
    /// SDK's.
    pub fn with(mut self, write: impl IntoWrite) -> Self {
        self.writes.push(write.into_write().into_item());
        self
    }

    /// Some writes more.
    pub fn with_all(self, writes: impl IntoIterator<Item = impl IntoWrite>) -> Self {
        writes.into_iter().fold(self, Self::with)
    }

    /// Decides what follows from conditions of the writes that are not met: a failure, or another answer in
    /// place of this one. Without it, the operation has failed permanently.
    ///
    /// Nothing was written when this is asked. It is for deciding, not for effects: it may be
    /// asked again for the same message.
    pub fn on_refused(
        self,
        decide: impl FnOnce(&Refused) -> Result<Self, Failure> + Send + 'static,
    ) -> Self {
        Self {
            on_refused: Some(Box::new(decide)),
            ..self
        }
    }
}

impl<O: fmt::Debug> fmt::Debug for Done<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done")
            .field("output", &self.output)
            .field("writes", &self.writes)
            .finish_non_exhaustive()
    }
}

/// An answer that was taken from the user's code: what is left of it to run is `on_refused`.
pub(crate) struct Plan {
    pub(crate) result: StoredResult,
    pub(crate) writes: Vec<Write<TransactWriteItem>>,
    pub(crate) on_refused: Option<OnRefused<Plan>>,
}

impl<O: Serialize + Send + 'static> TryFrom<Done<O>> for Plan {
    type Error = Failure;

    fn try_from(done: Done<O>) -> Result<Self, Failure> {
        let count = done.writes.len();
        if count > MAX_WRITES {
            return Err(Failure::permanent(format!(
                "{count} writes: a transaction holds {MAX_WRITES} beside the record; nothing was written"
            )));
        }
        for (index, write) in done.writes.iter().enumerate() {
            if let Some(fault) = &write.fault {
                let label = write.label.as_deref().unwrap_or("without a label");
                return Err(Failure::permanent(format!(
                    "write {index} ({label}): {fault}; nothing was written"
                )));
            }
        }
        let plan = |decide: OnRefused<Done<O>>| -> OnRefused<Self> {
            Box::new(|refused| decide(refused)?.try_into())
        };
        Ok(Self {
            result: to_result(&done.output),
            writes: done.writes,
            on_refused: done.on_refused.map(plan),
        })
    }
}

/// An output as the record keeps it. What it stands for has happened, or is about to, so
/// nothing here may fail.
pub(crate) fn to_result<O: Serialize>(output: &O) -> StoredResult {
    match serde_json::to_string(output) {
        Ok(json) => StoredResult::fit(json),
        // The error is the user's words, and may quote the output.
        Err(_) => StoredResult::Omitted("the output can't be written as JSON".into()),
    }
}
