//! [`Progress`]: how far one message of a batch is, and the one run of its handler.

use std::{sync::OnceLock, time::Duration};

use crate::{
    handler::History,
    meter::Meter,
    sqs::message_result::MessageResult,
    system::{self, Instant},
};

/// Progress of one message.
#[derive(Default)]
pub(in crate::sqs) struct Progress {
    pub(super) started: OnceLock<Instant>,
    pub(super) handler: OnceLock<HandlerRun>,
    pub(super) meter: Meter,
    pub(super) ended: OnceLock<MessageResult>,
}

/// The one run of a message's handler.
pub(super) struct HandlerRun {
    pub(super) history: History,
    started: Instant,
    duration: OnceLock<Duration>,
}

/// Ends a [`HandlerRun`] when dropped: after the handler returned, panicked or was cut off.
pub(in crate::sqs) struct HandlerRunning<'a>(Option<&'a HandlerRun>);

impl Drop for HandlerRunning<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.0 {
            let _first = run.duration.set(system::elapsed(run.started));
        }
    }
}

impl HandlerRun {
    /// Returns how long the handler ran, or has run so far if it blocks its thread beyond the deadline.
    pub(super) fn duration(&self) -> Duration {
        let ended = self.duration.get().copied();
        ended.unwrap_or_else(|| system::elapsed(self.started))
    }
}

impl Progress {
    /// Measures the requests to the store.
    pub(in crate::sqs) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Records the start of the handler. Dropping the returned value records its end.
    pub(in crate::sqs) fn handler_starts(&self, history: &History) -> HandlerRunning<'_> {
        let _first = self.handler.set(HandlerRun {
            history: history.clone(),
            started: system::instant(),
            duration: OnceLock::new(),
        });
        HandlerRunning(self.handler.get())
    }
}
