//! [`Output`]: the types of handler outputs that a mode can record. [`Lease`]: whether a claim is written before the
//! handler runs.

use serde::Serialize;

use crate::{
    dynamo::{done::Done, writes::Writes},
    handler::{Answer, Failure, HandlerOutput, to_output},
    store::Store,
};

/// Says whether a claim is written before the handler runs: [`Leased`] or [`Unleased`].
pub trait Lease: Send + Sync + 'static {
    /// True if the claim is written before the handler runs.
    #[doc(hidden)]
    const IS_WRITTEN: bool;
}

/// The mode writes the claim first, with a lease. This is for effects outside the database.
#[derive(Clone, Copy, Debug)]
pub enum Leased {}

/// The mode writes nothing until the attempt ends, and then commits its end with the handler's writes. This is for handlers
/// whose only effect is those writes. See [`Inbox`](super::Inbox).
#[derive(Clone, Copy, Debug)]
pub enum Unleased {}

impl Lease for Leased {
    const IS_WRITTEN: bool = true;
}

impl Lease for Unleased {
    const IS_WRITTEN: bool = false;
}

/// A handler's output that [`Once`](super::Once) can record in a store `S`, with or without a lease.
pub trait Output<S: Store, L>: HandlerOutput + Sized {
    /// Splits the output into the result and what commits with the record.
    ///
    /// # Errors
    ///
    /// Returns a permanent failure if the output can't be committed.
    fn answer(self) -> Result<Answer<S::With>, Failure>;
}

/// Such an output needs a lease. Without one, nothing would record the effect of a handler that returns no writes.
#[diagnostic::do_not_recommend]
impl<S: Store, O: Serialize + Send> Output<S, Leased> for O {
    fn answer(self) -> Result<Answer<S::With>, Failure> {
        Ok(Answer::of(to_output(&self)))
    }
}

#[diagnostic::do_not_recommend]
impl<S, L, O> Output<S, L> for Done<O>
where
    S: Store<With = Writes>,
    O: Serialize + Send + 'static,
{
    fn answer(self) -> Result<Answer<Writes>, Failure> {
        self.try_into()
    }
}
