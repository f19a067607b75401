//! Variables that begin as settings do, and that no setting reads: misspelt names.

use std::env;

use super::Settings;

const PREFIXES: [&str; 3] = ["CONSUMER_", "IDEMPOTENCY_", "OUTBOX_"];

impl Settings {
    /// Names of variables that begin with `CONSUMER_`, `IDEMPOTENCY_` or `OUTBOX_` and that neither the
    /// consumer nor the handler reads, each with the setting of the nearest name.
    #[doc(hidden)]
    #[must_use]
    pub fn unknown(&self) -> Vec<(String, Option<String>)> {
        let mut names = self.names();
        names.retain(|name| suffix(name).is_some() && !self.read.contains(name));
        if names.is_empty() {
            return Vec::new();
        }
        // All names, also those that this consumer's mode does not read.
        let mut all = Self::from_vars::<String, String>([]);
        all.read_all();
        #[cfg(feature = "postgres")]
        let _database = all.database();
        names.retain(|name| !all.read.contains(name));
        let with_nearest = names.into_iter().map(|name| {
            let known = self.read.union(&all.read);
            let near = known.filter_map(|known| Some((distance_between(&name, known)?, known)));
            let nearest = near.min().map(|(_, known)| known.clone());
            (name, nearest)
        });
        with_nearest.collect()
    }

    /// Logs the names of unknown variables. Values may hold credentials.
    pub(super) fn warn_of_unknown(&self) {
        for (variable, nearest) in self.unknown() {
            tracing::warn!(variable, nearest, "unknown variable: it has no effect");
        }
    }

    /// Names of the variables that are set.
    fn names(&self) -> Vec<String> {
        match &self.variables {
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
    use std::collections::BTreeSet;

    use super::*;

    fn unknown(variables: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
        Settings::from_vars(variables.iter().copied()).unknown()
    }

    #[test]
    fn misspelt_variable_is_unknown_with_nearest_name() {
        for (name, nearest) in [
            ("CONSUMER_CONCURENCY", Some("CONSUMER_CONCURRENCY")),
            ("IDEMPOTENCY_TABLE", None),
            ("IDEMPOTENCY_TABELNAME", Some("IDEMPOTENCY_TABLE_NAME")),
            ("CONSUMER_RETENTION", Some("IDEMPOTENCY_RETENTION")),
            ("IDEMPOTENCY_KEYS", Some("IDEMPOTENCY_KEY")),
            ("CONSUMER_REGION", None),
        ] {
            let wanted = vec![(name.to_owned(), nearest.map(str::to_owned))];
            assert_eq!(unknown(&[(name, "1")]), wanted);
        }
    }

    #[test]
    fn other_and_empty_variables_are_not_unknown() {
        let variables = [
            ("CONSUMER_CONCURENCY", ""),
            ("PAYMENT_CONCURENCY", "1"),
            ("IDEMPOTENCY_TABLE_NAME", "records"),
            ("CONSUMER_BACKOFF_CAP", "1h"),
        ];
        assert_eq!(unknown(&variables), []);
    }

    #[test]
    fn variable_of_the_handler_is_not_unknown() {
        let mut settings = Settings::from_vars([("CONSUMER_OWN", "1")]);
        assert_eq!(settings.unknown().len(), 1);
        let own = settings.optional("CONSUMER_OWN", "0", str::parse::<u8>);
        assert_eq!((own, settings.unknown().len()), (Ok(1), 0));
    }

    #[test]
    fn documented_and_deployed_variables_are_known() {
        let pages = [
            include_str!("../../../../docs/settings.md"),
            include_str!("../../../../template.yaml"),
        ];
        let mut names = BTreeSet::new();
        for word in pages
            .iter()
            .flat_map(|page| page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        {
            // `CONSUMER_BACKOFF_...` stands for two names.
            if suffix(word).is_some() && !word.ends_with('_') {
                names.insert(word);
            }
        }
        assert!(names.len() > 25, "{names:?}");
        let variables: Vec<_> = names.into_iter().map(|name| (name, "1")).collect();
        assert_eq!(unknown(&variables), []);
    }
}
