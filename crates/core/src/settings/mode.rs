//! [`ModeSettings`]: what a mode's crate read from variables, and builds the mode from.

use std::time::Duration;

use super::SettingsError;
use crate::{protocol::AfterFailure, store::Results};

/// The settings of a mode without leases that another crate brings, such as `sqs_once_postgres::DatabaseSettings`.
///
/// Their crate reads them from [`Variables`](super::Variables). `sqs_once::Settings` then builds the
/// consumer around the mode. `C` is the configuration of the AWS SDK, which this crate does not know.
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

/// Settings of a consumer that its mode needs too.
#[derive(Clone, Debug)]
pub struct ModeOptions {
    /// `IDEMPOTENCY_RETENTION`: time that a record is kept. `None`: the default of the mode.
    pub retention: Option<Duration>,
    /// `IDEMPOTENCY_AFTER_FAILURE`: effect of a `FAILED` record on another message with its key.
    pub after_failure: AfterFailure,
    /// Place of outputs, which `IDEMPOTENCY_RESULT_BUCKET` selects.
    pub results: Results,
}
