//! Variables that begin as settings do, and that no setting reads: misspelt names.

use std::env;

use super::Variables;

const PREFIXES: [&str; 3] = ["CONSUMER_", "IDEMPOTENCY_", "OUTBOX_"];

impl Variables {
    /// Returns the names of variables that begin with `CONSUMER_`, `IDEMPOTENCY_` or `OUTBOX_` and that
    /// were read neither here nor in `others`, each with the setting of the nearest name.
    ///
    /// `others` reads the variables of other modes, whose names are known too. It runs only if this function
    /// has an unread variable, so that most starts don't pay for it.
    ///
    /// ```
    /// use sqs_once_core::settings::Variables;
    ///
    /// let mut variables = Variables::from_vars([("CONSUMER_CONCURENCY", "10")]);
    /// variables.value("CONSUMER_CONCURRENCY");
    /// let unknown = ("CONSUMER_CONCURENCY".to_owned(), Some("CONSUMER_CONCURRENCY".to_owned()));
    /// assert_eq!(variables.unknown(Variables::from_env), [unknown]);
    /// ```
    #[must_use]
    pub fn unknown(&self, others: impl FnOnce() -> Self) -> Vec<(String, Option<String>)> {
        let mut names = self.names();
        names.retain(|name| suffix(name).is_some() && !self.read.contains(name));
        if names.is_empty() {
            return Vec::new();
        }
        let others = others();
        names.retain(|name| !others.read.contains(name));
        let with_nearest = names.into_iter().map(|name| {
            let known = self.read.union(&others.read);
            let near = known.filter_map(|known| Some((distance_between(&name, known)?, known)));
            let nearest = near.min().map(|(_, known)| known.clone());
            (name, nearest)
        });
        with_nearest.collect()
    }

    /// Names of the variables that are set.
    fn names(&self) -> Vec<String> {
        match &self.set {
            Some(variables) => {
                let set = variables.iter().filter(|(_, value)| !value.is_empty());
                set.map(|(name, _)| name.clone()).collect()
            }
            None => {
                let set = env::vars_os().filter(|(_, value)| !value.is_empty());
                set.map(|(name, _)| name.to_string_lossy().into_owned())
                    .collect()
            }
        }
    }
}

/// The name without its prefix.
fn suffix(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// Edit distance of two names without their prefixes. `None` if they are not near: more than a
/// third of the characters differ.
fn distance_between(name: &str, known: &str) -> Option<usize> {
    let (name, known) = (suffix(name)?, suffix(known)?);
    let distance = edit_distance(name, known);
    (distance <= (known.len() / 3).max(1)).then_some(distance)
}

/// Smallest number of characters to insert, delete or replace (Levenshtein, one row at a time).
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (above, from) in a.chars().enumerate() {
        let mut diagonal = above;
        row[0] = above + 1;
        for (left, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[left + 1];
            row[left + 1] = replaced.min(diagonal + 1).min(row[left] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_read_only_for_an_unread_variable() {
        let mut variables = Variables::from_vars([("CONSUMER_A", "1"), ("PAYMENT_B", "1")]);
        let read = variables.value("CONSUMER_A");
        assert_eq!(read.as_deref(), Some("1"));
        assert_eq!(variables.unknown(|| panic!("nothing is unread")), []);
    }
}
