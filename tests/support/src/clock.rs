//! A wall clock for tests on paused time: it advances with the clock of the runtime.

use std::cell::OnceCell;

use sqs_once::protocol::Timestamp;
use tokio::time::Instant;

/// The time of the thread's clock. It starts at the true time when it is first read.
pub fn now() -> Timestamp {
    thread_local! {
        static START: OnceCell<(Timestamp, Instant)> = const { OnceCell::new() };
    }
    START.with(|start| {
        let (time, instant) = *start.get_or_init(|| (Timestamp::now(), Instant::now()));
        time + instant.elapsed()
    })
}
