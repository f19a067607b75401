//! [`PlannedChange`]: a change for a dry run, which sends nothing.

use aws_sdk_dynamodb::types::TransactWriteItem;

use super::change::{Change, Kind};
use crate::{
    dynamo::{
        condition_failed::ConditionFailed, done::OnConditionFailed, item::Item, write::Write,
        writes::Refused,
    },
    handler::Failure,
    protocol::StoredResult,
};

/// A change as the write that would be sent, without the processed keys.
pub(crate) struct PlannedChange<O> {
    pub(crate) write: Write<TransactWriteItem>,
    pub(crate) result: StoredResult,
    item: (String, Item),
    on_condition_failed: Option<OnConditionFailed<Change<O>>>,
}

impl<O> Change<O> {
    /// Plans the change. `item` reads an item of a table by its key.
    pub(crate) fn plan(
        self,
        item: impl FnOnce(&str, &Item) -> Option<Item>,
    ) -> Result<PlannedChange<O>, Failure> {
        let of = self.kind.item();
        let table = of.0.clone();
        let (write, result) = match self.kind {
            Kind::Create { put, key, result } => {
                if put.fault.is_none() && !put.action.item.contains_key(&key) {
                    return Err(Failure::permanent(format!(
                        "the item to create lacks the primary key attribute `{key}`; nothing was written"
                    )));
                }
                (put.into_item(), result)
            }
            Kind::Update { update, result } => (update.into_item(), result),
            Kind::Modify { target, mut modify } => {
                let found = item(&table, &target.action.key);
                let (mut changed, result) = modify(found.as_ref())?;
                changed.extend(target.action.key.clone());
                let mut put = Write::put_item(&table, changed);
                put.fault = target.fault;
                (put.into_item(), result)
            }
        };
        if let Some(fault) = &write.fault {
            return Err(Failure::permanent(format!("{fault}; nothing was written")));
        }
        Ok(PlannedChange {
            write,
            result,
            item: of,
            on_condition_failed: self.on_condition_failed,
        })
    }
}

impl<O> PlannedChange<O> {
    /// Asks the handler for a replacement after a failed condition.
    pub(crate) fn condition_failed(self, failed: ConditionFailed) -> Result<Change<O>, Failure> {
        let refused = Refused::Conditions(failed);
        Change::instead(refused, self.on_condition_failed, Some(&self.item))
    }
}
