//! [`RequestErrorKind`]: whether a failed request was applied, and whether a retry can help.

/// Class of a failed request: whether the table applied it, and whether a retry can help.
///
/// | class | applied | a retry |
/// | --- | --- | --- |
/// | [`Contended`](Self::Contended) | no | can succeed within seconds |
/// | [`Denied`](Self::Denied) | no | can succeed once credentials, permissions or the table are there |
/// | [`Invalid`](Self::Invalid) | no | fails again |
/// | [`Unanswered`](Self::Unanswered) | perhaps | can succeed |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestErrorKind {
    /// No response arrived, or it could not be read. The request may have been applied.
    Unanswered,
    /// The request was throttled, or conflicted with another write to the same item.
    Contended,
    /// Access was denied, the credentials have expired, or there is no such table.
    Denied,
    /// The request's content was rejected: it is invalid, or the item is too large.
    Invalid,
}
