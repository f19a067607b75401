//! [`Mode`]: the common interface of the modes.

use super::{Operation, Outcome};
use crate::{
    handler::{Attempt, Failure, HandlerOutput},
    protocol::Timestamp,
    store::Results,
};

/// A mode: a way to process operations once, for handlers that return an `A`.
///
/// The modes are [`Once`](crate::Once), `Inbox` and `ItemMode`,
/// and `PostgresMode` of the crate `sqs-once-postgres`. A `Consumer` accepts each of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not run handlers that return `{A}`",
    label = "not a mode for handlers that return `{A}`",
    note = "for an output that implements `serde::Serialize`, use `Once` on any store",
    note = "for `Done`, use `Once` or `Inbox` on a `DynamoStore`: a `MemoryStore` has no transactions",
    note = "for `Change`, use `ItemMode`",
    note = "for `Reconciled`, which a handler with a look-up returns, use `Once`: in the other modes the effect commits together with the record, so there is nothing to look up",
    note = "for `InTransaction`, use `PostgresMode` of the crate `sqs-once-postgres`"
)]
pub trait Mode<A: HandlerOutput>: sealed::Sealed + Send + Sync + 'static {
    /// Runs `work` and records the result.
    ///
    /// Does not run `work` if the operation is completed, has failed permanently, or is claimed by another
    /// worker. Cuts `work` off when [`Deadline::time_left`](crate::Deadline::time_left) is zero. Catches
    /// panics of `work`, except in a build with `panic = "abort"`.
    ///
    /// Dropping the returned future is like a crash.
    fn run<W, F>(&self, operation: Operation, work: W) -> impl Future<Output = Outcome> + Send
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send;

    /// Returns the time of the mode's wall clock.
    fn now(&self) -> Timestamp;

    /// Returns where outputs are stored.
    #[doc(hidden)]
    fn results(&self) -> Results {
        Results::inline()
    }

    /// Returns whether this mode records permanent failures. A message with a recorded failure
    /// never runs again.
    fn records_failures(&self) -> bool {
        true
    }
}

/// An output that no handler can return.
///
/// rustc explains a wrong output with the notes of [`Mode`] only if a mode implements it more than once.
/// Otherwise it says that two types differ. So a mode for a single kind of output implements
/// `Mode<Unsupported>` too, by [`explain_wrong_output`](crate::explain_wrong_output).
#[doc(hidden)]
#[derive(Debug)]
pub enum Unsupported {}

impl HandlerOutput for Unsupported {
    type Result = ();
}

/// Implements `Mode<Unsupported>` for a mode, with its generic parameters in brackets: see
/// [`Unsupported`](crate::modes::mode::Unsupported).
#[doc(hidden)]
#[macro_export]
macro_rules! explain_wrong_output {
    ([$($parameters:tt)*] $mode:ty) => {
        #[diagnostic::do_not_recommend]
        impl<$($parameters)*> $crate::Mode<$crate::internal::Unsupported> for $mode {
            async fn run<W, F>(&self, _: $crate::Operation, _: W) -> $crate::Outcome
            where
                W: FnOnce($crate::Attempt) -> F + Send,
                F: Future<Output = Result<$crate::internal::Unsupported, $crate::Failure>> + Send,
            {
                $crate::Outcome::NotStarted
            }

            fn now(&self) -> $crate::protocol::Timestamp {
                $crate::protocol::Timestamp::now()
            }
        }
    };
}

/// Seals [`Mode`]: only this project implements it.
#[doc(hidden)]
pub(crate) mod sealed {
    /// Implemented beside each mode.
    pub trait Sealed {}
}
