//! Reads environment variables one by one, and lists every problem in one error.

mod mode;
pub mod table;
mod unknown;
pub(crate) mod values;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsString,
    fmt,
    time::Duration,
};

pub use mode::{ModeOptions, ModeSettings};
pub use unknown::UnknownVariable;

use crate::{entries::entries, settings::parse::positive};
use table::{SETTINGS, Setting};

/// Environment variables, and the errors found in them so far.
///
/// [`Settings`](crate::Settings) reads its variables from here, and your own settings can do the same. An empty variable is
/// treated as if it were not set.
///
/// This library trims white space from both ends of its own settings, and a line break inside one is an error. Your own
/// variables are left untouched unless you [`trim`](Self::trim) them, because a value such as a certificate may contain line
/// breaks.
///
/// ```
/// use sqs_once::Variables;
///
/// let mut variables = Variables::from_vars([("PORT", "x")]);
/// let port = variables.required("PORT", "port of the printer", str::parse::<u16>);
/// let host = variables.required("HOST", "host of the printer", str::parse::<String>);
/// let error = variables.checked(host.and(port)).unwrap_err();
/// assert_eq!(error.errors().len(), 2);
/// ```
#[derive(Default)]
pub struct Variables {
    /// The environment, or the variables of a test.
    set: BTreeMap<String, String>,
    defaults: BTreeMap<String, String>,
    /// Values that the code fixes, regardless of the environment.
    fixed: BTreeMap<String, String>,
    /// Prefixes of names whose values are trimmed, besides this library's settings.
    trimmed: BTreeSet<String>,
    /// Names that were read, whether or not they were set.
    read: BTreeSet<String>,
    errors: Vec<String>,
}

/// Every error in a configuration: which variable, what's wrong, and what to do.
///
/// ```
/// use sqs_once::Settings;
///
/// let mut settings = Settings::from_vars([("TIMEOUT", "soon")]);
/// let error = settings.duration("TIMEOUT", "5s").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "invalid configuration (1 error): TIMEOUT: `soon` is not a duration such as 500ms, 30s, 5m or 24h"
/// );
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid configuration ({} error{}): {}",
    .errors.len(),
    if .errors.len() == 1 { "" } else { "s" },
    .errors.join("; ")
)]
pub struct SettingsError {
    errors: Vec<String>,
}

/// Shows the error's text, because that is what a `main` that returns the error prints.
impl fmt::Debug for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl SettingsError {
    /// Creates an error. The text should name the variable.
    #[must_use]
    pub fn new(error: impl Into<String>) -> Self {
        Self {
            errors: vec![error.into()],
        }
    }

    /// Returns the errors, each with the name of its variable.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("TIMEOUT", "0s")]);
    /// let error = settings.duration("TIMEOUT", "5s").unwrap_err();
    /// assert_eq!(error.errors(), ["TIMEOUT: must be more than 0"]);
    /// ```
    #[must_use]
    pub fn errors(&self) -> &[String] {
        &self.errors
    }
}

impl fmt::Debug for Variables {
    /// Leaves out the values, because they may be credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variables")
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}

impl Variables {
    /// Takes the variables from the process's environment as it is now. Replaces bytes that are not UTF-8.
    #[must_use]
    pub fn from_env() -> Self {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        Self::from_vars(env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// Takes these variables and no others, for tests.
    #[must_use]
    pub fn from_vars<N: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let pairs = variables.into_iter();
        let set = pairs.map(|(name, value)| (name.into(), value.into()));
        Self {
            set: set.collect(),
            ..Self::default()
        }
    }

    /// Trims the values of all variables whose names begin with `prefix`, as this library trims its own settings. A line break
    /// inside is an error.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("PRINTER_HOST", " a "), ("PRINTER_NAME", "a\nb")]);
    /// settings.trim("PRINTER_");
    /// assert_eq!(settings.value("PRINTER_HOST").as_deref(), Some("a"));
    /// let name = settings.required("PRINTER_NAME", "name", str::parse::<String>);
    /// assert_eq!(name.unwrap_err().errors(), ["PRINTER_NAME has a line break inside: remove it"]);
    /// ```
    pub fn trim(&mut self, prefix: impl Into<String>) {
        self.trimmed.insert(prefix.into());
    }

    /// Sets the default of a variable. A later default for the same variable replaces it.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("A", "set")]);
    /// settings.set_default("A", "default");
    /// settings.set_default("B", "default");
    /// assert_eq!(settings.optional("A", "", str::parse), Ok("set".to_owned()));
    /// assert_eq!(settings.optional("B", "", str::parse), Ok("default".to_owned()));
    /// ```
    pub fn set_default(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.defaults.insert(name.into(), value.into());
    }

    /// Fixes the value of a variable in code. Any other value in the environment is then an error.
    ///
    /// Use it for key, fingerprint and envelope, which belong to the message format. With another value, every message in
    /// the queue would be a new operation. If the code fixes them, they change only together with the handler.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("IDEMPOTENCY_KEY", "message-id")]);
    /// settings.fix("IDEMPOTENCY_KEY", "body:/orderId");
    /// assert_eq!(
    ///     settings.errors(),
    ///     ["IDEMPOTENCY_KEY: the code of the function fixes it as `body:/orderId`; remove the variable"]
    /// );
    /// ```
    pub fn fix(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        // White space around a pointer makes no difference.
        let differs = |set: String| pointers(&set) != pointers(&value);
        if self.set_value(&name).is_some_and(differs) {
            self.error(format!(
                "{name}: the code of the function fixes it as `{value}`; remove the variable"
            ));
        }
        self.fixed.insert(name, value);
    }

    /// Reads a variable that must be set. The error contains `meaning`.
    ///
    /// # Errors
    ///
    /// Fails if the variable is not set, or `parse` rejects it. The error stays in the list, so read all variables before the
    /// first `?` to report all problems at once. The error does not contain the value, unless `parse` puts it there.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("PORT", "x"), ("HOST", "")]);
    /// let port = settings.required("PORT", "port of the printer", str::parse::<u16>);
    /// assert_eq!(port.unwrap_err().errors(), ["PORT: invalid digit found in string"]);
    /// let host = settings.required("HOST", "host of the printer", str::parse::<String>);
    /// assert_eq!(host.unwrap_err().errors(), ["HOST is not set (host of the printer)"]);
    /// ```
    pub fn required<T, E: fmt::Display>(
        &mut self,
        name: &str,
        meaning: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, SettingsError> {
        match self.checked_value(name)? {
            Some(value) => self.parse(name, &value, parse),
            None => Err(self.error(format!("{name} is not set ({meaning})"))),
        }
    }

    /// Reads a variable that need not be set.
    ///
    /// # Errors
    ///
    /// Fails if `parse` rejects the value. The error stays in the list, as with [`required`](Self::required).
    pub fn optional<T, E: fmt::Display>(
        &mut self,
        name: &str,
        default: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, SettingsError> {
        let value = self.checked_value(name)?;
        let value = value.unwrap_or_else(|| default.to_owned());
        self.parse(name, &value, parse)
    }

    /// Reads a setting of the [`table`], which also has the default.
    ///
    /// # Errors
    ///
    /// Fails if `parse` rejects the value. The error stays in the list, as with [`required`](Self::required).
    pub fn setting<T, E: fmt::Display>(
        &mut self,
        setting: &Setting,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, SettingsError> {
        self.optional(setting.name, setting.default, parse)
    }

    /// Reads a duration of more than 0.
    ///
    /// # Errors
    ///
    /// Fails if the value is not a duration, or is 0. The error stays in the list, as with [`required`](Self::required).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("TIMEOUT", "1m 30s")]);
    /// assert_eq!(settings.duration("TIMEOUT", "5s"), Ok(Duration::from_secs(90)));
    /// assert_eq!(settings.duration("PAUSE", "5s"), Ok(Duration::from_secs(5)));
    /// ```
    pub fn duration(&mut self, name: &str, default: &str) -> Result<Duration, SettingsError> {
        self.optional(name, default, positive)
    }

    /// Reads a variable as text. Returns `None` if it is not set and has no default.
    ///
    /// An empty variable is treated as if it were not set, because that is how a template passes an empty parameter. A
    /// setting with a line break inside is treated in the same way, and its error stays in the list.
    pub fn value(&mut self, name: &str) -> Option<String> {
        self.checked_value(name).ok().flatten()
    }

    /// Reads a variable. A setting with a line break inside is an error that does not quote the value.
    fn checked_value(&mut self, name: &str) -> Result<Option<String>, SettingsError> {
        self.read.insert(name.to_owned());
        let value = (self.fixed.get(name).cloned())
            .or_else(|| self.set_value(name))
            .or_else(|| self.defaults.get(name).cloned());
        match value {
            Some(value) if self.is_trimmed(name) => match value.trim() {
                line if line.contains(['\n', '\r']) => {
                    Err(self.error(format!("{name} has a line break inside: remove it")))
                }
                line => Ok(Some(line.to_owned())),
            },
            value => Ok(value),
        }
    }

    fn is_trimmed(&self, name: &str) -> bool {
        SETTINGS.iter().any(|setting| setting.name == name)
            || self.trimmed.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Returns whether the environment sets a variable, no matter what its default is.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.set_value(name).is_some()
    }

    /// Returns the value from the environment, unless it is empty.
    fn set_value(&self, name: &str) -> Option<String> {
        self.set.get(name).cloned().filter(|value| {
            let is_blank = || self.is_trimmed(name) && value.trim().is_empty();
            !value.is_empty() && !is_blank()
        })
    }

    /// Returns `base`, or what `change` makes of it if the variable is set.
    ///
    /// # Errors
    ///
    /// Fails if `change` rejects the value, as with [`required`](Self::required).
    pub fn changed<T>(
        &mut self,
        name: &str,
        base: T,
        change: impl FnOnce(T, &str) -> Result<T, String>,
    ) -> Result<T, SettingsError> {
        match self.checked_value(name)? {
            Some(value) => self.parse(name, &value, |text| change(base, text)),
            None => Ok(base),
        }
    }

    fn parse<T, E: fmt::Display>(
        &mut self,
        name: &str,
        value: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, SettingsError> {
        parse(value).map_err(|problem| self.error(format!("{name}: {problem}")))
    }

    /// Returns whether a variable was read, whether or not it was set.
    #[must_use]
    pub fn was_read(&self, name: &str) -> bool {
        self.read.contains(name)
    }

    /// Adds an error to the list, unless it is already there, and returns it. The error should name its variable.
    pub fn error(&mut self, error: String) -> SettingsError {
        if !self.errors.contains(&error) {
            self.errors.push(error.clone());
        }
        SettingsError::new(error)
    }

    /// Returns the errors so far.
    #[must_use]
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Returns `read`, but with all errors instead of the first one.
    ///
    /// # Errors
    ///
    /// Returns every error so far, if there are any.
    pub fn checked<T>(&self, read: Result<T, SettingsError>) -> Result<T, SettingsError> {
        if self.errors.is_empty() {
            read
        } else {
            Err(SettingsError {
                errors: self.errors.clone(),
            })
        }
    }
}

/// Splits the value of a key or a fingerprint at its pointers.
fn pointers(value: &str) -> Vec<&str> {
    let value = value.trim();
    entries(value.strip_prefix("body:").unwrap_or(value), "/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn debug_output_has_no_values() {
        let variables = Variables::from_vars([("A", "SECRET")]);
        assert!(!format!("{variables:?}").contains("SECRET"));
    }

    #[test]
    fn own_variable_stays_as_it_is() {
        let pem = " -----BEGIN\nABC\n-----END\n";
        let mut variables = Variables::from_vars([("CERTIFICATE", pem), ("CONSUMER_OWN", " ")]);
        assert_eq!(variables.value("CERTIFICATE").as_deref(), Some(pem));
        assert_eq!(variables.value("CONSUMER_OWN").as_deref(), Some(" "));
        assert!(variables.errors().is_empty());
    }

    fn blanks() -> impl Strategy<Value = String> {
        "[ \t\n\r\u{a0}]{0,3}"
    }

    proptest! {
        #[test]
        fn every_setting_is_one_line_without_its_ends(
            before in blanks(), value in "[a-z:/]{1,3}( [a-z]{1,2})?", after in blanks(), line_break in "\r?\n|\r",
        ) {
            for setting in SETTINGS {
                let name = setting.name;
                let read = |value: String| {
                    let mut variables = Variables::from_vars([(name, value)]);
                    let read = variables.setting(setting, str::parse::<String>);
                    (read, variables)
                };
                let (trimmed, _) = read(format!("{before}{value}{after}"));
                prop_assert_eq!(trimmed.as_deref(), Ok(&*value), "{}", name);
                let (blank, variables) = read(format!("{before}{after}"));
                prop_assert_eq!(blank.as_deref(), Ok(setting.default), "{}", name);
                prop_assert!(!variables.is_set(name));
                let (broken, mut variables) = read(format!("{before}SECRET{line_break}{value}{after}"));
                let error = format!("{name} has a line break inside: remove it");
                prop_assert_eq!(broken, Err(SettingsError::new(error.clone())), "{}", name);
                prop_assert_eq!(variables.value(name), None);
                prop_assert_eq!(variables.errors(), [error]);
            }
        }
    }
}
