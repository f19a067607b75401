//! [`Mode`]: the common interface of the modes.

use std::future::ready;

use super::{Operation, Outcome, work::HandlerEnd};
use crate::{
    handler::{Attempt, HandlerOutput, History},
    protocol::{Start, Timestamp},
    store::Results,
};

/// A mode: a way to process operations once, for handlers that return an `O`.
///
/// The modes are [`Once`](crate::Once), `Inbox`, `ItemMode`, and `PostgresMode` from `sqs-once-postgres`. A `Consumer`
/// accepts any of them. The consumer claims, calls the handler and finishes. Only this project implements the trait.
///
/// Dropping a mode's future, or never calling [`finish`](Self::finish), is like a crash.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not run handlers that return `{O}`",
    label = "not a mode for handlers that return `{O}`",
    note = "for an output that implements `serde::Serialize`, use `Once` on any store",
    note = "for `Done`, use `Once` or `Inbox` on a `DynamoStore`: a `MemoryStore` has no transactions",
    note = "for `Change`, use `ItemMode`",
    note = "for `InTransaction`, use `PostgresMode` of the crate `sqs-once-postgres`"
)]
pub trait Mode<O: HandlerOutput>: sealed::Sealed + Send + Sync + 'static {
    /// The state that the mode keeps about an operation while its handler runs.
    #[doc(hidden)]
    type Claim: Send + 'static;

    /// Claims an operation. The handler may run only after that.
    #[doc(hidden)]
    fn claim(
        &self,
        operation: &Operation,
        start: Start,
    ) -> impl Future<Output = Claimed<Self::Claim>> + Send;

    /// Lends the handler what it needs from the claim, for the duration of the call.
    #[doc(hidden)]
    fn lend(&self, claim: &Self::Claim, attempt: Attempt) -> Attempt {
        let _nothing = claim;
        attempt
    }

    /// Records how the handler ended. By then, the handler's future has been dropped.
    #[doc(hidden)]
    fn finish(
        &self,
        operation: &Operation,
        claim: Self::Claim,
        end: HandlerEnd<O>,
    ) -> impl Future<Output = Outcome> + Send;

    /// Returns what the record says about a message whose body is gone, and claims nothing. Returns `None` if the mode has
    /// no records, or if the record doesn't say.
    #[doc(hidden)]
    fn without_body(&self, operation: &Operation) -> impl Future<Output = Option<Outcome>> + Send {
        let _no_records = operation;
        ready(None)
    }

    /// Returns the time of the mode's wall clock.
    fn now(&self) -> Timestamp;

    /// Returns where outputs are stored.
    #[doc(hidden)]
    fn results(&self) -> Results {
        Results::inline()
    }

    /// Returns whether this mode records permanent failures. While the record is kept, a message with a recorded failure
    /// doesn't run again, unless a changed setting gives it another key or fingerprint. A redriven message may run, because
    /// SQS gives it a later send time.
    fn records_failures(&self) -> bool {
        true
    }
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claimed<C> {
    /// The handler may run.
    Run {
        /// The state that the mode keeps about the operation.
        claim: C,
        /// The earlier attempts.
        history: History,
        /// True if the process died so often that the lookup runs, but no handler.
        only_looks_up: bool,
    },
    /// An earlier attempt may have ended its process, so the message needs a turn of its own. Nothing was written.
    Suspect {
        /// How many earlier attempts ran alone without a recorded end.
        exclusive_attempts: u64,
    },
    /// The handler does not run.
    Ended(Outcome),
}

impl<C> Claimed<C> {
    /// Lets the handler run alongside other handlers.
    pub const fn run(claim: C, history: History) -> Self {
        Self::Run {
            claim,
            history,
            only_looks_up: false,
        }
    }
}

impl Claimed<()> {
    /// Answers for a mode without claims: the handler may run if there is time.
    pub(crate) fn without_record(operation: &Operation) -> Self {
        if operation.deadline.may_start() {
            Self::run((), History::fresh())
        } else {
            Self::Ended(Outcome::NotStarted)
        }
    }
}

/// An output that no handler can return.
///
/// rustc explains a wrong output with the notes of [`Mode`] only if a mode implements it more than once. Otherwise it says
/// that two types differ. So a mode for a single kind of output also implements `Mode<Unsupported>`, by
/// [`explain_wrong_output`](crate::explain_wrong_output).
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
            type Claim = ();

            async fn claim(
                &self,
                _: &$crate::Operation,
                _: $crate::internal::Start,
            ) -> $crate::internal::Claimed<()> {
                $crate::internal::Claimed::Ended($crate::Outcome::NotStarted)
            }

            async fn finish(
                &self,
                _: &$crate::Operation,
                (): (),
                _: $crate::internal::HandlerEnd<$crate::internal::Unsupported>,
            ) -> $crate::Outcome {
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
    /// Each mode implements this in its own module.
    pub trait Sealed {}
}
