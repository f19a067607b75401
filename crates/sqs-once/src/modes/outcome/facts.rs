//! Name, metric, severity and retry of each [`Outcome`].

use super::{Outcome, Retry, RetryableError, Severity};

/// Properties of one kind of outcome.
struct OutcomeFacts {
    name: &'static str,
    metric: &'static str,
    severity: Severity,
    retry: Retry,
}

impl Outcome {
    /// Returns the properties of this outcome. A new outcome needs a row here and a text in `Display`. `Never` sends the
    /// message to the dead-letter queue, unless the outcome is a success.
    const fn facts(&self) -> OutcomeFacts {
        use {Retry::*, Severity::*};
        #[rustfmt::skip]
        let (name, metric, severity, retry) = match self {
            Self::Completed(_) => ("completed", "Completed", Info, Never),
            Self::Duplicate(_) => ("duplicate", "Duplicates", Info, Never),
            Self::Reconciled(_) => ("reconciled", "Reconciled", Info, Never),
            Self::Conflict { lease_until, .. } => ("conflict", "Conflicts", Info, At(*lease_until)),
            Self::PayloadConflict { .. } => ("conflict", "Conflicts", Warn, Backoff),
            Self::RetryableFailure(error) => ("retryable_failure", "RetryableFailures", Warn, error.retry()),
            Self::NoEffect(error) => ("no_effect", "RetryableFailures", Warn, error.retry()),
            Self::Contended(_) => ("retryable_failure", "RetryableFailures", Warn, Backoff),
            Self::PermanentFailure(_) => ("permanent_failure", "PermanentFailures", Error, Never),
            Self::FailedBefore(_) => ("failed_before", "PermanentFailures", Info, Never),
            Self::Crashed(_) => ("crashed", "Crashed", Error, Never),
            Self::KeyReused => ("key_reused", "KeysReused", Error, Never),
            Self::Invalid(_) => ("invalid", "Invalid", Error, Never),
            Self::Ignored => ("ignored", "Ignored", Info, Never),
            Self::NotStarted => ("not_started", "NotStarted", Info, Now),
            Self::BehindFailure => ("not_started", "NotStarted", Info, Now),
            Self::CircuitOpen { next_probe } => ("circuit_open", "CircuitOpen", Info, BackoffUntil(*next_probe)),
            Self::Panicked => ("panicked", "RetryableFailures", Error, Backoff),
            Self::OutOfTime => ("out_of_time", "RetryableFailures", Error, Backoff),
            Self::LeaseLost => ("lease_lost", "LeasesLost", Error, Backoff),
            Self::CompletionUnrecorded(_) => ("completion_unrecorded", "CompletionsUnrecorded", Error, Backoff),
            Self::FailureUnrecorded { .. } => ("failure_unrecorded", "StoreUnavailable", Error, Backoff),
            Self::CommitUnknown(_) => ("commit_unknown", "StoreUnavailable", Error, Backoff),
            Self::StoreUnavailable(_) => ("store_unavailable", "StoreUnavailable", Error, Backoff),
        };
        OutcomeFacts {
            name,
            metric,
            severity,
            retry,
        }
    }

    /// Returns the name of this outcome in logs. The name is stable and in lower case.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.facts().name
    }

    /// Returns the metric that counts messages with this outcome. Several outcomes share a metric.
    ///
    /// ```
    /// # use sqs_once::Outcome;
    /// assert_eq!(Outcome::Panicked.metric(), "RetryableFailures");
    /// ```
    #[must_use]
    pub const fn metric(&self) -> &'static str {
        self.facts().metric
    }

    /// Returns the log level of this outcome.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        self.facts().severity
    }

    /// Returns when a retry could succeed.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        self.facts().retry
    }

    /// Returns whether the message is done: its operation is recorded as completed, or it carries no
    /// operation. Delete a message from the queue only if this method returns true.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(
            self,
            Self::Completed(_) | Self::Duplicate(_) | Self::Reconciled(_) | Self::Ignored
        )
    }

    /// Returns whether every later attempt with this message would also fail.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        matches!(self.retry(), Retry::Never) && !self.is_success()
    }
}

impl RetryableError {
    const fn retry(&self) -> Retry {
        match self.retry_after {
            Some(wanted) => Retry::BackoffAtLeast(wanted),
            None => Retry::Backoff,
        }
    }
}

#[cfg(test)]
impl Outcome {
    /// Returns an outcome of each kind.
    pub(crate) fn every() -> Vec<Self> {
        use std::{sync::Arc, time::Duration};

        use crate::{
            protocol::{StoredResult, Timestamp},
            store::StoreError,
        };

        let result = || StoredResult::Json("1".into());
        let text = || "text".to_owned();
        let error = || {
            Arc::new(StoreError::OutOfTime {
                action: "claim",
                key: "k".into(),
            })
        };
        vec![
            Outcome::Completed(result()),
            Outcome::Duplicate(result()),
            Outcome::Reconciled(result()),
            Outcome::Conflict {
                owner: None,
                lease_until: Timestamp::from_millis(7),
            },
            Outcome::PayloadConflict { open_since: None },
            Outcome::RetryableFailure(text().into()),
            Outcome::NoEffect(RetryableError {
                text: text(),
                retry_after: Some(Duration::from_secs(30)),
            }),
            Outcome::Contended(text()),
            Outcome::PermanentFailure(text()),
            Outcome::FailedBefore(text()),
            Outcome::Crashed(text()),
            Outcome::KeyReused,
            Outcome::Invalid(text()),
            Outcome::Ignored,
            Outcome::NotStarted,
            Outcome::BehindFailure,
            Outcome::CircuitOpen {
                next_probe: Timestamp::from_millis(7),
            },
            Outcome::Panicked,
            Outcome::OutOfTime,
            Outcome::LeaseLost,
            Outcome::CompletionUnrecorded(error()),
            Outcome::FailureUnrecorded {
                error: text(),
                cause: error(),
            },
            Outcome::CommitUnknown(error()),
            Outcome::StoreUnavailable(error()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn success_is_never_retried_and_logged_as_info() {
        for outcome in Outcome::every()
            .iter()
            .filter(|outcome| outcome.is_success())
        {
            assert_eq!(outcome.retry(), Retry::Never, "{outcome:?}");
            assert_eq!(outcome.severity(), Severity::Info, "{outcome:?}");
            assert!(!outcome.is_permanent(), "{outcome:?}");
        }
    }

    #[test]
    fn conflict_is_retried_at_the_end_of_its_lease() {
        let at: Vec<_> = Outcome::every()
            .iter()
            .filter_map(|outcome| match outcome.retry() {
                Retry::At(end) => Some((outcome.name(), end.as_millis())),
                _ => None,
            })
            .collect();
        assert_eq!(at, [("conflict", 7)]);
    }

    #[test]
    fn runbook_has_the_facts_of_every_outcome() {
        let page = include_str!("../../../../../docs/runbook.md");
        let (_, chapter) = page.split_once("\n## Outcomes\n").unwrap();
        // The sections below the table have tables of their own.
        let (table, _) = chapter.split_once("\n### ").unwrap();
        let rows: Vec<_> = (table.lines())
            .filter(|line| line.starts_with("| `") || line.starts_with("| [`"))
            .map(|line| line.trim_matches('|').split(" | ").map(str::trim))
            .map(Iterator::collect::<Vec<_>>)
            .collect();
        let row = |name: &str| {
            let cells = [format!("`{name}`"), format!("[`{name}`](#{name})")];
            let mut of_name = rows
                .iter()
                .filter(move |row| cells.iter().any(|cell| row[0] == cell));
            let row = of_name
                .next()
                .unwrap_or_else(|| panic!("no row for {name}"));
            assert!(of_name.next().is_none(), "two rows for {name}");
            row
        };
        let every = Outcome::every();
        let names: BTreeSet<_> = every.iter().map(Outcome::name).collect();
        assert_eq!(rows.len(), names.len());
        for outcome in &every {
            let [_, level, metric, what, message, action] = row(outcome.name())[..] else {
                panic!("{outcome:?}");
            };
            let returns = match outcome.retry() {
                Retry::Never if outcome.is_success() => "acknowledged",
                Retry::Never => "dead-letter queue",
                Retry::Now => "at once",
                Retry::Backoff | Retry::BackoffAtLeast(_) | Retry::BackoffUntil(_) => "backoff",
                Retry::At(_) => "at the end of the lease",
            };
            let of_name = every.iter().filter(|of| of.name() == outcome.name());
            let severities: BTreeSet<_> = of_name
                .map(|of| format!("{:?}", of.severity()).to_uppercase())
                .collect();
            let levels: BTreeSet<_> = level
                .split([' ', ';'])
                .filter(|word| ["INFO", "WARN", "ERROR"].contains(word))
                .map(str::to_owned)
                .collect();
            assert_eq!(levels, severities, "{outcome:?}");
            assert!(message.contains(returns), "{outcome:?}");
            assert_eq!(metric, format!("`{}`", outcome.metric()), "{outcome:?}");
            assert!(!what.is_empty() && !action.is_empty(), "{outcome:?}");
        }
    }
}
