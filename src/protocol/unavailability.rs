//! [`Unavailability`]: the effect of a failed request, and the use of repeating it.

/// The effect of a failed request on the table, and the use of repeating it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailability {
    /// No answer, or one that cannot be read: the request may have been applied.
    Unanswered,
    /// Throttled, or in conflict with a transaction on the same item: the request was not applied,
    /// and may succeed when it is repeated.
    Contended,
    /// Access denied, no such table, not valid: the request was not applied, and a repetition
    /// would fail again.
    Rejected,
}
