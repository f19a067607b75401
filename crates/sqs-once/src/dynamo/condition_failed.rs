//! [`ConditionFailed`]: writes whose condition checks failed.

use std::{borrow::Cow, fmt};

use crate::{
    dynamo::{item::Item, write::WritePlace},
    handler::Failure,
};

/// Decides what to write instead after failed condition checks, or fails.
pub(crate) type OnConditionFailed<T> =
    Box<dyn FnOnce(&ConditionFailed) -> Result<T, Failure> + Send>;

/// Writes whose condition checks failed. DynamoDB applied no write of the transaction.
///
/// The text of this error lists each write by its position, label and table.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionFailed(Vec<FailedWrite>);

/// One write of [`ConditionFailed`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FailedWrite {
    /// Position among the handler's writes, counted from 0.
    pub index: usize,
    /// Label of the write ([`Write::label`](crate::dynamo::write::Write::label)).
    pub label: Option<Cow<'static, str>>,
    /// Name of the table.
    pub table: String,
    /// The existing item. `None` if no item exists. Also `None` unless the write asked for the item
    /// ([`Write::return_item`](crate::dynamo::write::Write::return_item)).
    pub item: Option<Item>,
}

impl ConditionFailed {
    pub(crate) fn new(writes: Vec<FailedWrite>) -> Self {
        Self(writes)
    }

    /// Returns all writes whose condition failed, in the handler's order.
    #[must_use]
    pub fn writes(&self) -> &[FailedWrite] {
        &self.0
    }

    /// Returns the first write with this label whose condition failed.
    #[must_use]
    pub fn get(&self, label: &str) -> Option<&FailedWrite> {
        let mut writes = self.0.iter();
        writes.find(|write| write.label.as_deref() == Some(label))
    }
}

impl fmt::Display for ConditionFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, write) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "; " };
            let place = WritePlace {
                index: write.index,
                label: write.label.as_deref(),
                table: &write.table,
            };
            write!(f, "{comma}condition check failed for {place}")?;
        }
        Ok(())
    }
}
