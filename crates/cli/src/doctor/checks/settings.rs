//! Checks the variables of a function, and whether its log level drops its metrics.

use std::time::Duration;

use aws_sdk_lambda::types::ApplicationLogLevel as Level;
use sqs_once::{Settings, telemetry};
use sqs_once_core::settings::table::{CONSUMER_METRICS, CONSUMER_MIN_TIME_TO_START};

use super::{Check, Findings};
use crate::doctor::facts::Deployed;

/// Time kept back at the end of an invocation, unless the consumer's code sets it.
const DEADLINE_RESERVE: Duration = Duration::from_millis(500);

/// Which settings a function reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Consumer,
    PostgresMode,
    Relay,
}

impl Kind {
    /// Reads the settings, which then contain their errors. Returns false if this tool was built without the
    /// feature that reads them.
    fn read(self, settings: &mut Settings) -> bool {
        match self {
            Self::Consumer => settings.read_once(),
            #[cfg(feature = "postgres")]
            Self::PostgresMode => {
                let _errors_are_kept = sqs_once_postgres::DatabaseSettings::read(settings);
                settings.read_consumer();
            }
            Self::Relay => {
                #[cfg(feature = "postgres")]
                if settings.value("IDEMPOTENCY_POSTGRES_URL").is_some() {
                    let _errors_are_kept = sqs_once_postgres::DatabaseSettings::read(settings);
                }
                let _errors_are_kept = sqs_once_outbox::RelaySettings::read(settings);
            }
            #[cfg(not(feature = "postgres"))]
            Self::PostgresMode => return false,
        }
        true
    }
}

pub(super) fn settings(function: &Deployed, kind: Kind, findings: &mut Findings) {
    let lambda = [
        ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1"),
        ("AWS_LAMBDA_FUNCTION_NAME", &*function.name),
    ];
    let variables = function.variables.iter();
    let variables = variables.map(|(name, value)| (name.as_str(), value.as_str()));
    let mut settings = Settings::from_vars(variables.chain(lambda));
    if !kind.read(&mut settings) {
        findings.skip("its variables: this tool was built without the feature `postgres`");
        return;
    }
    for unknown in settings.unknown() {
        let name = unknown.name;
        let (found, fix) = match (unknown.replacement, unknown.nearest) {
            (Some(replacement), _) => (
                format!("the setting {name} was removed"),
                format!("remove it; in its place is {replacement}"),
            ),
            (None, Some(nearest)) => (
                format!("no setting has the name {name}"),
                format!("rename it to {nearest}, or remove it"),
            ),
            (None, None) => (
                format!("no setting has the name {name}"),
                "correct the name, or remove it; if the handler reads the variable, pass --skip unknown-variables".to_owned(),
            ),
        };
        let consequence =
            "the variable has no effect: the default of the setting that was meant holds";
        findings.add(Check::UnknownVariables, found, consequence, fix);
    }
    let consequence = match kind {
        Kind::Relay => "the function does not start, and no target gets events",
        _ => "the function does not start, and every message fails",
    };
    for problem in settings.errors() {
        let fix = "correct the variable: see docs/settings.md";
        findings.add(Check::Settings, problem.clone(), consequence, fix);
    }
}

pub(super) fn time_to_start(function: &Deployed, findings: &mut Findings) {
    let to_start = function.span(&CONSUMER_MIN_TIME_TO_START);
    if to_start + DEADLINE_RESERVE >= function.timeout {
        findings.add(
            Check::TimeToStart,
            format!(
                "CONSUMER_MIN_TIME_TO_START and the reserve of {DEADLINE_RESERVE:?} at the end are {:?} together, and the function has {:?}",
                to_start + DEADLINE_RESERVE,
                function.timeout
            ),
            "CONSUMER_MIN_TIME_TO_START has no effect: every message starts, and its handler may be cut off in the middle",
            "lower CONSUMER_MIN_TIME_TO_START, or raise the timeout of the function",
        );
    }
}

/// Checks the log level, because metrics are lines at INFO.
pub(super) fn log_level(function: &Deployed, findings: &mut Findings) {
    if function.variable(CONSUMER_METRICS.name) == Some("off") {
        return;
    }
    let (setting, level) = match (&function.log_level, function.variable("RUST_LOG")) {
        (Some(level @ (Level::Warn | Level::Error | Level::Fatal)), _) => {
            ("LoggingConfig.ApplicationLogLevel", level.as_str())
        }
        // With JSON logs, Lambda passes its log level, which takes precedence over this variable.
        (None, Some(level)) if !telemetry::logs_info(level) => ("RUST_LOG", level),
        _ => return,
    };
    findings.add(
        Check::LogLevel,
        format!("{setting} is {level}"),
        "the lines of completed messages and batches are dropped, and with them the metrics: no alarm on them fires",
        format!("set {setting} to INFO, or CONSUMER_METRICS to off"),
    );
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use sqs_once_core::settings::table::{Reader, SETTINGS};

    use super::*;

    /// A row that no code reads would have no effect.
    #[test]
    fn every_setting_is_read() {
        for (reader, kind) in [
            (Reader::Consumer, Kind::Consumer),
            (Reader::Postgres, Kind::PostgresMode),
            (Reader::Relay, Kind::Relay),
        ] {
            for setting in SETTINGS.iter().filter(|setting| setting.reader == reader) {
                let mut settings = Settings::from_vars::<&str, &str>([]);
                assert!(kind.read(&mut settings));
                assert!(settings.was_read(setting.name), "{}", setting.name);
            }
        }
    }
}
