//! [`RecordFilter`]: the records that an operator lists.

/// A status to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStatus {
    /// A worker holds a claim, or left one.
    InProgress,
    /// The operation is completed.
    Completed,
    /// The last attempt failed permanently.
    Failed,
}

/// The records to list. Records past their retention are never listed.
#[derive(Clone, Debug, Default)]
pub struct RecordFilter {
    /// Records with this status; all if `None`.
    pub status: Option<RecordStatus>,
    /// Records whose lease has ended.
    pub expired_lease: bool,
    /// Records whose key begins with this text.
    pub prefix: Option<String>,
}
