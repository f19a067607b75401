//! [`ModeSettings`]: the settings of a consumer that the mode of another crate needs.

use std::time::Duration;

use crate::store::Results;

/// A mode without leases that another crate brings, such as `sqs_once_postgres::PostgresMode`.
/// `sqs_once::Settings` builds the consumer around it.
pub trait ModeSettings: Sized {
    /// Returns the mode with these settings. May connect to its database for the first time.
    fn with_settings(self, options: ModeOptions) -> impl Future<Output = Self> + Send;
}

/// The consumer settings that its mode needs too.
#[derive(Clone, Debug)]
pub struct ModeOptions {
    /// `IDEMPOTENCY_RETENTION`: how long a record is kept.
    pub retention: Duration,
    /// Where outputs are stored, which `IDEMPOTENCY_RESULT_BUCKET` selects.
    pub results: Results,
    /// Whether to connect at start, to report problems before the first message.
    pub warm_up: bool,
}
