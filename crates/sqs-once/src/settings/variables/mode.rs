//! [`ModeSettings`]: passes settings of a consumer to a mode from another crate.

use std::time::Duration;

use crate::store::Results;

/// A mode that another crate defines, and that has no leases, such as `sqs_once_postgres::PostgresMode`.
/// `sqs_once::Settings` builds the consumer around it.
pub trait ModeSettings: Sized {
    /// Returns the mode with these settings. May open the first connection to its database.
    fn with_settings(self, options: ModeOptions) -> impl Future<Output = Self> + Send;
}

/// The consumer's settings that its mode also needs.
#[derive(Clone, Debug)]
pub struct ModeOptions {
    /// `IDEMPOTENCY_RETENTION`: how long a record is kept.
    pub retention: Duration,
    /// Where outputs are stored, as `IDEMPOTENCY_RESULT_BUCKET` says.
    pub results: Results,
    /// True if the mode should connect at start, so that problems are reported before the first message.
    pub warm_up: bool,
}
