//! [`Story`]: what went wrong, and when.

use std::fmt;

/// The story of an effect that happened twice, was lost, or was requested in two ways. `Debug` and `Display` print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Story(pub(super) String);

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same as `Display`, because `unwrap` and tests that return a `Result` print this.
impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Story {}
