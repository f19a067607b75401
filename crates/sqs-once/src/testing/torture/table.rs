//! [`Table`]: the records of a tortured consumer, in a table that loses answers.

use std::sync::Arc;

use super::run::{Fault, Place, Run};
use crate::{
    protocol::{Key, Record, Swap},
    store::{RequestContext, Store, StoreError, Swapped},
};

/// The records of a tortured consumer.
#[derive(Clone, Debug)]
pub struct Table {
    run: Arc<Run>,
    attempt: usize,
}

impl Table {
    pub(super) const fn of(run: Arc<Run>, attempt: usize) -> Self {
        Self { run, attempt }
    }
}

impl Store for Table {
    type With = ();

    async fn get(&self, key: &Key, _: &RequestContext) -> Result<Option<Record>, StoreError> {
        Ok(self.run.records.record(key))
    }

    async fn swap(&self, swap: &Swap, (): &(), _: &RequestContext) -> Result<Swapped, StoreError> {
        self.run.meet(self.attempt, Place::BeforeWrite).await;
        let answer = self.run.swap(self.attempt, swap);
        match self.run.meet(self.attempt, Place::AfterWrite).await {
            Fault::AnswerLost => Err(StoreError::unanswered(
                swap.to.action(),
                &swap.key,
                "the table",
                "the answer was lost",
            )),
            _ => Ok(answer),
        }
    }
}
