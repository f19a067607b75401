//! [`Unavailability`]: whether a failed request was applied, and whether a retry may help.

/// Kind of a failed request: whether the table applied it, and whether a retry may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailability {
    /// No answer arrived, or the answer could not be read. The request may have been applied.
    Unanswered,
    /// Throttled, or in conflict with a transaction on the same item. The request was not applied,
    /// and a retry may succeed.
    Contended,
    /// Access denied, unknown table or validation error. The request was not applied, and a retry
    /// would fail again.
    Rejected,
}
