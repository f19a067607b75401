//! [`Planned`]: the mode of a dry run for each type that a handler can return.

use std::future::ready;

use serde::Serialize;

use crate::{
    handler::HandlerOutput,
    modes::{
        Leased, Mode, Once, Operation, Outcome,
        item::{Change, make_change},
        mode::{Claimed, sealed::Sealed},
        output::Output,
        work::HandlerEnd,
    },
    protocol::{Start, Timestamp},
    testing::plans::Plans,
};

/// A type that a handler can return in a dry run: an output, a [`Done`](crate::Done) or a [`Change`].
pub trait Planned: HandlerOutput + Sized {
    /// The mode that stores what the handler returned.
    type Mode: Mode<Self>;

    /// Returns the mode, with these records and writes.
    fn mode(plans: &Plans) -> Self::Mode;
}

#[diagnostic::do_not_recommend]
impl<O: Output<Plans, Leased>> Planned for O {
    type Mode = Once<Plans>;

    fn mode(plans: &Plans) -> Once<Plans> {
        Once::new(plans.clone())
    }
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Planned for Change<O> {
    type Mode = Plans;

    fn mode(plans: &Plans) -> Plans {
        plans.clone()
    }
}

impl Sealed for Plans {}

/// Item mode without any requests.
#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Mode<Change<O>> for Plans {
    type Claim = ();

    async fn claim(&self, operation: &Operation, _: Start) -> Claimed<()> {
        Claimed::without_record(operation)
    }

    async fn finish(&self, operation: &Operation, (): (), end: HandlerEnd<Change<O>>) -> Outcome {
        make_change(end, |kind| ready(self.change(&operation.key, kind))).await
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn records_failures(&self) -> bool {
        false
    }
}
