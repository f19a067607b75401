//! [`Mode`]: the common interface of the modes.

use super::{Operation, Outcome};
use crate::{
    handler::{Answer, Attempt, Failure},
    protocol::Timestamp,
};

/// A way to process operations once, for handlers that answer with an `A`.
///
/// [`Once`](crate::Once), [`Inbox`](crate::Inbox) and [`OnItem`](crate::OnItem) are the three; a
/// `Consumer` takes each of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not run handlers that return `{A}`",
    label = "not a mode for handlers that return `{A}`",
    note = "for an output that implements `serde::Serialize`, use `Once` on any store",
    note = "for `Done`, use `Once` or `Once::inbox` on a `DynamoStore`: a `MemoryStore` has no transactions",
    note = "for `Change`, use `OnItem`"
)]
pub trait Mode<A: Answer>: Send + Sync + 'static {
    /// Runs `work` unless the operation is completed, has failed, or is claimed by another worker,
    /// and records the result.
    ///
    /// `work` is cut off when [`Deadline::time_left`](crate::Deadline::time_left) is zero. Its panics
    /// are caught (a build with `panic = "abort"` can't). Dropping the returned future has the effect
    /// of a crash.
    fn run<W, F>(&self, operation: Operation, work: W) -> impl Future<Output = Outcome> + Send
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send;

    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// Returns whether a permanent failure leaves a record, so that its message never runs again.
    fn records_failures(&self) -> bool {
        true
    }
}
