//! [`ModeSettings`]: the settings that another crate reads for its mode, and builds the mode from.

use std::time::Duration;

use super::SettingsError;
use crate::{protocol::AfterFailure, store::Results};

/// The settings of a mode without leases that another crate brings, such as
/// `sqs_once_postgres::DatabaseSettings`.
///
/// That crate reads them from [`Variables`](super::Variables). `sqs_once::Settings` then builds the consumer
/// around the mode. `C` is the configuration of the AWS SDK, on which this crate does not depend.
pub trait ModeSettings<C> {
    /// The mode that these settings build.
    type Mode;

    /// Builds the mode. May connect to its database for the first time.
    ///
    /// # Errors
    ///
    /// If the settings contradict each other.
    fn build(
        self,
        options: ModeOptions,
        config: &C,
    ) -> impl Future<Output = Result<Self::Mode, SettingsError>> + Send;
}

/// The consumer settings that its mode needs too.
#[derive(Clone, Debug)]
pub struct ModeOptions {
    /// `IDEMPOTENCY_RETENTION`: how long a record is kept. `None`: the mode's default.
    pub retention: Option<Duration>,
    /// `IDEMPOTENCY_AFTER_FAILURE`: how a `FAILED` record affects other messages with its key.
    pub after_failure: AfterFailure,
    /// Where outputs are stored, which `IDEMPOTENCY_RESULT_BUCKET` selects.
    pub results: Results,
}
