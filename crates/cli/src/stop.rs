//! Shows the progress of commands that take long, and listens for SIGINT and SIGTERM. After such a signal, a command
//! finishes its current step, reports what it did, and exits.

use std::{io, time::Duration};

use sqs_once::internal::system::{Instant, elapsed, instant, spawn};
use tokio::{signal::ctrl_c, sync::watch};

/// Says on standard error how far a command has come: at once, and then every two seconds at most.
#[derive(Default)]
pub(crate) struct ProgressLine(Option<Instant>);

impl ProgressLine {
    pub(crate) fn say(&mut self, text: &str) {
        if self
            .0
            .is_none_or(|last| elapsed(last) >= Duration::from_secs(2))
        {
            eprintln!("{text}");
            self.0 = Some(instant());
        }
    }
}

/// Tells whether SIGINT or SIGTERM has arrived.
pub(crate) struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// Starts to listen. From then on, the signals no longer end the process.
    pub(crate) fn listen() -> Self {
        let (set, is_set) = watch::channel(false);
        spawn(async move {
            if arrives().await.is_ok() {
                set.send_replace(true);
            }
            set.closed().await;
        });
        Self(is_set)
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn wait(&mut self) {
        // This can't fail, because the sender lives as long as this receiver.
        let _stopped = self.0.wait_for(|is_set| *is_set).await;
    }
}

#[cfg(unix)]
async fn arrives() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        arrived = ctrl_c() => arrived,
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn arrives() -> io::Result<()> {
    ctrl_c().await
}
