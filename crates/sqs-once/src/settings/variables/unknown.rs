//! Finds variables that look like settings but that nobody reads, such as misspelt names.

use super::{
    Variables,
    table::{Reader, SETTINGS},
};

const PREFIXES: [&str; 3] = ["CONSUMER_", "IDEMPOTENCY_", "OUTBOX_"];

/// A variable that looks like a setting but has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownVariable {
    /// The variable's name.
    pub name: String,
    /// The setting with the most similar name.
    pub nearest: Option<String>,
}

impl Variables {
    /// Returns the variables that begin with `CONSUMER_`, `IDEMPOTENCY_` or `OUTBOX_` but were never read.
    /// Leaves out settings that only other modes read.
    ///
    /// ```
    /// use sqs_once::Variables;
    ///
    /// let variables = Variables::from_vars([("CONSUMER_CONCURENCY", "10")]);
    /// let [misspelt] = &variables.unknown()[..] else { panic!() };
    /// assert_eq!(misspelt.nearest.as_deref(), Some("CONSUMER_CONCURRENCY"));
    /// ```
    #[must_use]
    pub fn unknown(&self) -> Vec<UnknownVariable> {
        let of_consumers = SETTINGS
            .iter()
            .filter(|setting| setting.reader == Reader::Consumer)
            .map(|setting| setting.name);
        let read = self.read.iter().map(String::as_str);
        let known: Vec<_> = of_consumers.chain(read).collect();
        let set = self.set.iter().filter(|(_, value)| !value.is_empty());
        let names = set.map(|(name, _)| name);
        let is_unknown = |name: &&String| suffix(name).is_some() && !known.contains(&name.as_str());
        let unknown = names.filter(is_unknown).map(|name| {
            let near = known
                .iter()
                .filter_map(|known| Some((distance_between(name, known)?, *known)));
            let nearest = near.min().map(|(_, known)| known.to_owned());
            UnknownVariable {
                name: name.clone(),
                nearest,
            }
        });
        unknown.collect()
    }
}

/// Returns the name without its prefix.
fn suffix(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// Returns the edit distance of two names without their prefixes, or `None` if more than a third of the characters differ.
fn distance_between(name: &str, known: &str) -> Option<usize> {
    let (name, known) = (suffix(name)?, suffix(known)?);
    let distance = strsim::levenshtein(name, known);
    (distance <= (known.len() / 3).max(1)).then_some(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_variables_and_other_prefixes_are_known() {
        let mut variables = Variables::from_vars([("CONSUMER_A", "1"), ("PAYMENT_B", "1")]);
        assert_eq!(variables.value("CONSUMER_A").as_deref(), Some("1"));
        assert_eq!(variables.unknown(), []);
    }
}
