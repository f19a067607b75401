//! [`World`]: the surroundings of one worker.

use std::sync::Arc;

use super::{
    ledger::Ledger,
    run::{Run, clock},
    table::Table,
};
use crate::{
    Consumer, Handler, Mode, Once,
    protocol::{Namespace, Timestamp},
};

/// The surroundings of one worker: what [`Torture::run`](super::Torture::run) passes to the function that makes its consumer.
#[derive(Clone, Debug)]
pub struct World {
    run: Arc<Run>,
    attempt: usize,
}

impl World {
    pub(super) const fn of(run: Arc<Run>, attempt: usize) -> Self {
        Self { run, attempt }
    }

    /// Returns the ledger of this worker: the system that its handler calls.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger::of(self.run.clone(), self.attempt)
    }

    /// Creates a consumer of `handler` in claim mode. Set its key, its lookup and so on as in your `main`.
    #[must_use]
    pub fn consumer<H: Handler>(&self, handler: H) -> Consumer<Once<Table>, H>
    where
        Once<Table>: Mode<H::Output>,
    {
        let once = Once::new(Table::of(self.run.clone(), self.attempt)).clock(clock);
        match Namespace::new("test") {
            Ok(namespace) => Consumer::without_aws(once, namespace, handler),
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the time of the worker's wall clock, which a fault may have moved by hours.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        clock()
    }
}
