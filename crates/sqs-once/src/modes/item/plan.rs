//! A change in a dry run, which sends nothing.

use aws_sdk_dynamodb::types::TransactWriteItem;

use super::Kind;
use crate::{
    dynamo::{item::Item, write::Write},
    handler::Failure,
    protocol::StoredResult,
};

impl Kind {
    /// Returns the write that would be sent, without the processed keys, and the result. `item` reads an item of a table by its
    /// key.
    pub(crate) fn plan(
        self,
        item: impl FnOnce(&str, &Item) -> Option<Item>,
    ) -> Result<(Write<TransactWriteItem>, StoredResult), Failure> {
        let (write, result) = match self {
            Self::Create { put, key, result } => {
                if put.fault.is_none() && !put.action.item.contains_key(&key) {
                    return Err(Failure::permanent(format!(
                        "the item to create lacks the primary key attribute `{key}`; nothing was written"
                    )));
                }
                (put.into_item(), result)
            }
            Self::Update { update, result } => (update.into_item(), result),
            Self::Modify { target, mut modify } => {
                let (table, key) = (target.table(), &target.action.key);
                let (mut changed, result) = modify(item(table, key).as_ref())?;
                changed.extend(key.clone());
                let mut put = Write::put_item(table, changed);
                put.fault = target.fault;
                (put.into_item(), result)
            }
        };
        match &write.fault {
            Some(fault) => Err(Failure::permanent(format!("{fault}; nothing was written"))),
            None => Ok((write, result)),
        }
    }
}
