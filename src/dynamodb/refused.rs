//! [`Refused`]: writes whose conditions were not met.

use std::{borrow::Cow, fmt};

use super::{item::Item, write::Place};

/// The writes whose conditions were not met. Nothing was written.
///
/// Its text names each by its place, its label and its table.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused(Vec<RefusedWrite>);

/// One of [`Refused`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RefusedWrite {
    /// Its place among the writes, from 0.
    pub index: usize,
    /// Its label.
    pub label: Option<Cow<'static, str>>,
    /// The table.
    pub table: String,
    /// The item as it is, where the write asked for it ([`Write::return_item`](crate::Write::return_item)) and there is one.
    pub item: Option<Item>,
}

impl Refused {
    pub(crate) fn new(writes: Vec<RefusedWrite>) -> Self {
        Self(writes)
    }

    /// Each of them.
    #[must_use]
    pub fn writes(&self) -> &[RefusedWrite] {
        &self.0
    }

    /// The first with this label.
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
            write!(f, "{comma}the condition of {place} is not met")?;
        }
        Ok(())
    }
}
