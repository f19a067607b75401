//! [`RelaySettings`]: turns environment variables into a relay.

use aws_config::SdkConfig;
use sqs_once::{
    Settings, SettingsError,
    internal::table::{OUTBOX_DEAD_LETTER_QUEUE_URL, OUTBOX_EVENT_SOURCE, OUTBOX_TARGETS},
    telemetry::Metrics,
};

use crate::{Relay, Targets};

const TARGETS: &str = OUTBOX_TARGETS.name;
const DEAD_LETTERS: &str = OUTBOX_DEAD_LETTER_QUEUE_URL.name;

/// The settings of a relay for events in DynamoDB or PostgreSQL.
///
/// | variable | default | meaning |
/// | --- | --- | --- |
/// | `OUTBOX_TARGETS` | required by a relay | pairs `NAME=TARGET`, separated by commas: the URL of an SQS queue, or the ARN of an SNS topic or event bus. `*` stands for all other names |
/// | `OUTBOX_DEAD_LETTER_QUEUE_URL` | required by a relay | URL of the queue for events that their target rejects |
/// | `OUTBOX_EVENT_SOURCE` | the function's name | `source` of events on EventBridge |
///
/// The variables for metrics are the same as for [`Settings`].
#[derive(Debug)]
pub struct RelaySettings {
    targets: Targets,
    dead_letters: String,
    source: String,
    metrics: Option<Metrics>,
}

impl RelaySettings {
    /// Reads the settings.
    ///
    /// # Errors
    ///
    /// Returns the error of the first missing or invalid variable. Errors in the others stay in the list, as with
    /// [`Variables::required`](sqs_once::Variables::required).
    pub fn read(settings: &mut Settings) -> Result<Self, SettingsError> {
        let targets = settings.required(
            TARGETS,
            "queue, topic or event bus for each name of an event, as `*=URL or ARN`",
            str::parse,
        );
        let dead_letters = settings.required(
            DEAD_LETTERS,
            "queue for events that their target refuses",
            str::parse::<String>,
        );
        let function = settings.function();
        let source = settings.optional(OUTBOX_EVENT_SOURCE.name, &function, str::parse::<String>);
        let metrics = settings.metrics();
        Ok(Self {
            targets: targets?,
            dead_letters: dead_letters?,
            source: source?,
            metrics: metrics?,
        })
    }

    fn relay(self, config: &SdkConfig) -> Result<Relay, SettingsError> {
        Relay::new(config, self.targets, &self.dead_letters)
            .map(|relay| relay.source(self.source).metrics(self.metrics))
            .map_err(|error| SettingsError::new(format!("{DEAD_LETTERS}: {error}")))
    }
}

impl Relay {
    /// Creates the relay of an outbox in DynamoDB, from [`RelaySettings`]. You can also build a `PostgresRelay` around it.
    ///
    /// # Errors
    ///
    /// Returns an error that lists every missing or invalid variable.
    ///
    /// ```no_run
    /// use sqs_once::Settings;
    /// use sqs_once_outbox::Relay;
    ///
    /// # async fn main_() -> Result<(), lambda_runtime::Error> {
    /// sqs_once_outbox::run(Relay::from_settings(Settings::from_env()).await?).await
    /// # }
    /// ```
    pub async fn from_settings(mut settings: Settings) -> Result<Self, SettingsError> {
        let relay = RelaySettings::read(&mut settings);
        let relay = settings.check(relay)?;
        relay.relay(&settings.config().await)
    }
}
