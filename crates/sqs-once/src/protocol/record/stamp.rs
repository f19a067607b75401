//! [`Stamp`]: identifies the state of a record, and the claim that wrote it.

use std::fmt;

/// The owner of a claim: a random token, new for each claim.
///
/// ```
/// use sqs_once::protocol::Owner;
///
/// assert_ne!(Owner::fresh(), Owner::fresh());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(String);

impl Owner {
    /// Creates an owner from the token in a record.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the token.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies one state of a record. Every write except an operator's release makes a new stamp.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Token of the current or last claim.
    pub owner: Owner,
    /// Grows with each state that a worker sends, whether or not the store applies it. A worker never sends two different
    /// states with the same version.
    pub version: u64,
}
