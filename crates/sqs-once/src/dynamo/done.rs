//! [`Done`]: what a handler returns to commit DynamoDB writes together with the record.

use std::fmt;

use aws_sdk_dynamodb::types::TransactWriteItem;
use serde::Serialize;

use crate::{
    dynamo::{
        condition_failed::{ConditionFailed, OnConditionFailed},
        outbox,
        write::{IntoWrite, MAX_WRITES, Write},
        writes::Writes,
    },
    event::{Event, first_fault},
    handler::{Answer, Failure, HandlerOutput, to_output},
};

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> HandlerOutput for Done<O> {
    type Result = O;
}

/// An output, and writes that commit together with its record. All writes are applied exactly once, even if
/// workers crash or responses are lost.
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
///         .on_condition_failed(move |failed| match failed.get("stock") {
///             Some(_) => Ok(Done::new(declined)),
///             None => Err(Failure::permanent(failed.to_string())),
///         }))
/// }
/// ```
///
/// # Limits
///
/// A `Done` can have up to [`MAX_WRITES`] writes and events, with 4 MB in total, and each write must be to a
/// different item. A transaction consumes twice the write units of its writes.
///
/// # Failed condition checks
///
/// If the operation is already completed, nothing is written. If the condition of a write fails, the operation fails
/// permanently, unless [`on_condition_failed`](Self::on_condition_failed) returns a replacement. After throttling and conflicts
/// with other transactions, the worker retries the commit until the deadline.
#[must_use = "the writes are made only if the handler returns this"]
pub struct Done<O> {
    output: O,
    writes: Vec<Write<TransactWriteItem>>,
    events: Vec<Event>,
    on_condition_failed: Option<OnConditionFailed<Done<O>>>,
}

impl<O> Done<O> {
    /// Creates an output without writes.
    pub fn new(output: O) -> Self {
        Self {
            output,
            writes: Vec::new(),
            events: Vec::new(),
            on_condition_failed: None,
        }
    }

    /// Adds a write: a [`Write`], or the SDK's `Put`, `Update`, `Delete` or `ConditionCheck`.
    pub fn with(mut self, write: impl IntoWrite) -> Self {
        self.writes.push(write.into_write().into_item());
        self
    }

    /// Adds several writes.
    pub fn with_all(self, writes: impl IntoIterator<Item = impl IntoWrite>) -> Self {
        writes.into_iter().fold(self, Self::with)
    }

    /// Publishes an event when the operation is recorded. The event is one more item in the same transaction,
    /// in the outbox table ([`DynamoStore::outbox`](crate::store::DynamoStore::outbox)). The relay then sends it at least
    /// once: see `docs/outbox.md`.
    ///
    /// The relay sends events with the same group in the order in which you publish them.
    ///
    /// ```
    /// use sqs_once::{Done, Event};
    ///
    /// let done = Done::new(()).publish(Event::new("order-placed", &"o-1").group("customer-7"));
    /// ```
    pub fn publish(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }

    /// Sets what to do after a failed condition check: fail, or return a replacement. By default, the
    /// operation fails permanently.
    ///
    /// When the worker calls `decide`, nothing has been written. The function must have no effect, because a
    /// later delivery may call it again.
    pub fn on_condition_failed(
        self,
        decide: impl FnOnce(&ConditionFailed) -> Result<Self, Failure> + Send + 'static,
    ) -> Self {
        Self {
            on_condition_failed: Some(Box::new(decide)),
            ..self
        }
    }
}

impl<O: fmt::Debug> fmt::Debug for Done<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done")
            .field("output", &self.output)
            .field("writes", &self.writes)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

/// Checks what can be checked before the commit.
fn check<O>(done: &Done<O>) -> Result<(), Failure> {
    let (writes, events) = (done.writes.len(), done.events.len());
    if writes + events > MAX_WRITES {
        let events = if events == 0 {
            String::new()
        } else {
            format!(" and {events} events")
        };
        return Err(Failure::permanent(format!(
            "{writes} writes{events}: a transaction holds at most {MAX_WRITES} beside the record; nothing was written"
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
    match first_fault(&done.events).or_else(|| outbox::first_fault(&done.events)) {
        Some(fault) => Err(Failure::permanent(fault)),
        None => Ok(()),
    }
}

impl<O> From<Done<O>> for Writes {
    fn from(done: Done<O>) -> Self {
        Self::new(done.writes, done.events)
    }
}

impl<O: Serialize + Send + 'static> TryFrom<Done<O>> for Answer<Writes> {
    type Error = Failure;

    fn try_from(mut done: Done<O>) -> Result<Self, Failure> {
        check(&done)?;
        let decide = done.on_condition_failed.take();
        Ok(Self {
            output: to_output(&done.output),
            with: done.into(),
            on_refused: Box::new(|refused| refused.ask(decide)?.try_into()),
        })
    }
}
