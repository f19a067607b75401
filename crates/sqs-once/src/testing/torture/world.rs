//! [`World`]: the environment of one worker.

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

/// The environment of one worker. [`Torture::run`](super::Torture::run) passes it to the function that creates the worker's
/// consumer.
#[derive(Clone, Debug)]
pub struct World {
    run: Arc<Run>,
    attempt: usize,
}

impl World {
    pub(super) const fn of(run: Arc<Run>, attempt: usize) -> Self {
        Self { run, attempt }
    }

    /// Returns this worker's ledger: the system that its handler calls.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger::of(self.run.clone(), self.attempt)
    }

    /// Creates a consumer that runs `handler` in claim mode. Set its key, lookup and so on as in your `main`.
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

    /// Returns the worker's wall-clock time, which a fault may have moved by hours.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        clock()
    }
}
