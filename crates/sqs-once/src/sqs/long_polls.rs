//! [`warn_of_long_polls`]: finds handlers that block their thread.

use std::{future::poll_fn, pin::Pin, time::Duration};

use crate::{system, telemetry::millis};

/// A poll longer than this blocks its thread. An `async` function that awaits its calls takes microseconds
/// per poll.
const LONGEST_POLL: Duration = Duration::from_millis(100);

/// Runs a handler, and logs a warning at its first poll of more than [`LONGEST_POLL`].
///
/// While a handler blocks its thread, the other messages on this thread can't run or record their
/// outcomes, and deadlines pass unnoticed.
pub(super) async fn warn_of_long_polls<T>(mut handler: Pin<&mut impl Future<Output = T>>) -> T {
    let mut warned = false;
    poll_fn(|context| {
        let started = system::instant();
        let polled = handler.as_mut().poll(context);
        let blocked = system::elapsed(started);
        if blocked > LONGEST_POLL && !warned {
            warned = true;
            tracing::warn!(
                blocked_ms = millis(blocked),
                "the handler blocked its thread, so other messages and deadlines waited: run blocking code with tokio::task::spawn_blocking"
            );
        }
        polled
    })
    .await
}
