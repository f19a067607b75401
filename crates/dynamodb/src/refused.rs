//! [`Refused`]: writes whose condition checks failed.

use std::{borrow::Cow, fmt};

use super::{item::Item, write::Place};

/// Writes whose condition checks failed. DynamoDB applied no write of the transaction.
///
/// The text of this error lists each write by its position, label and table.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused(Vec<RefusedWrite>);

/// One write of [`Refused`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RefusedWrite {
    /// Position among the handler's writes, from 0.
    pub index: usize,
    /// Label of the write ([`Write::label`](crate::write::Write::label)).
    pub label: Option<Cow<'static, str>>,
    /// Name of the table.
    pub table: String,
    /// The existing item. `None` if no item exists, or without
    /// [`Write::return_item`](crate::write::Write::return_item).
    pub item: Option<Item>,
}

impl Refused {
    pub(crate) fn new(writes: Vec<RefusedWrite>) -> Self {
        Self(writes)
    }

    /// Returns all refused writes, in the handler's order.
    #[must_use]
    pub fn writes(&self) -> &[RefusedWrite] {
        &self.0
    }

    /// Returns the first refused write with this label.
    #[must_use]
    pub fn get(&self, label: &str) -> Option<&RefusedWrite> {
        let mut writes = self.0.iter();
        writes.find(|write| write.label.as_deref() == Some(label))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, write) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "; " };
            let place = Place {
                index: write.index,
                label: write.label.as_deref(),
                table: &write.table,
            };
            write!(f, "{comma}condition check failed for {place}")?;
        }
        Ok(())
    }
}
