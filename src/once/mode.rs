//! [`Mode`]: what all the ways to process an operation once have in common.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use tokio::time::timeout_at;

use super::{Operation, Outcome};
use crate::{
    deadline::Deadline,
    handler::{Answer, Attempt, Failure},
    protocol::Timestamp,
};

/// A way to process operations once, for handlers that answer with an `A`.
///
/// [`Once`](crate::Once), [`Inbox`](crate::Inbox) and [`OnItem`](crate::OnItem) are the three; a
/// [`Consumer`](crate::Consumer) takes each of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not run handlers that return `{A}`",
    label = "not a mode for handlers that return `{A}`",
    note = "for an output that implements `serde::Serialize`, use `Once` on any store",
    note = "for `Done`, use `Once` or `Once::inbox` on a `DynamoStore`: a `MemoryStore` has no transactions",
    note = "for `Change`, use `OnItem`"
)]
pub trait Mode<A: Answer>: sealed::Sealed + Send + Sync + 'static {
    /// Runs `work` unless the operation is done, has failed, or is claimed by another worker,
    /// and sees to it that its effect happens once.
    ///
    /// `work` is cut off when [`Deadline::time_left`] is zero, and its panics are caught (a
    /// build with `panic = "abort"` can't). If the future that this returns is dropped, that is
    /// a crash.
    fn run<W, F>(&self, operation: Operation, work: W) -> impl Future<Output = Outcome> + Send
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send;

    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// A permanent failure leaves a record, so that its message never runs again.
    fn records_failures(&self) -> bool {
        true
    }
}

/// Implemented by the modes of this crate alone.
pub(crate) mod sealed {
    pub trait Sealed {}

    impl<S> Sealed for crate::once::Once<S> {}
    impl<S> Sealed for crate::once::Inbox<S> {}
    impl Sealed for crate::once::OnItem {}
}

/// How a user's code ended.
pub(super) enum Ended<T> {
    Well(T),
    Failed(Failure),
    Panicked,
    OutOfTime,
}

/// Runs a user's code to its end, or to the deadline.
pub(super) async fn guard<T>(
    deadline: Deadline,
    work: impl Future<Output = Result<T, Failure>>,
) -> Ended<T> {
    match timeout_at(deadline.stop(), AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(Ok(answer))) => Ended::Well(answer),
        Ok(Ok(Err(failure))) => Ended::Failed(failure),
        Ok(Err(_panic)) => Ended::Panicked,
        Err(_elapsed) => Ended::OutOfTime,
    }
}
