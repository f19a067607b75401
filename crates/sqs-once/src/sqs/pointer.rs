//! [`Pointers`]: JSON pointers into a body.

use std::fmt;

use crate::entries::entries;

/// One or more JSON pointers, valid by RFC 6901, section 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointers(Vec<String>);

impl Pointers {
    /// Parses pointers separated by commas, and trims white space around them. A pointer must not be empty, because
    /// the whole body can't be a key.
    pub(super) fn new(text: &str) -> Option<Self> {
        // In a list of pointers, a slash follows a comma only between two pointers, or after a name that ends with a comma.
        let pointers = entries(text, "/");
        let is_valid = |pointer: &&str| {
            let mut escapes = pointer.split('~').skip(1);
            pointer.starts_with('/') && escapes.all(|rest| rest.starts_with(['0', '1']))
        };
        let valid = pointers.iter().all(is_valid);
        valid.then(|| Self(pointers.into_iter().map(str::to_owned).collect()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// Shows the pointers as they were written, without white space between them.
impl fmt::Display for Pointers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_separated_by_commas_and_slashes() {
        let pointers = |text| Pointers::new(text).map(|Pointers(pointers)| pointers);
        let two = ["/tenant", "/order/id"].map(str::to_owned).to_vec();
        for text in ["/tenant,/order/id", " /tenant , /order/id\t"] {
            assert_eq!(pointers(text), Some(two.clone()), "{text}");
        }
        let name = vec!["/first name".to_owned()];
        assert_eq!(pointers("/first name "), Some(name));
        assert_eq!(pointers(""), None);
        assert_eq!(pointers("tenant"), None);
        assert_eq!(pointers("/a~2"), None);
    }
}
