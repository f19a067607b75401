//! Two clocks, moved by the schedule.
//!
//! Leases use the wall clock, cut-offs at a deadline use the monotonic clock. They diverge while a
//! process is frozen: its wall clock jumps, and its timers stand still. A worker that continues
//! after that has outlived its lease without noticing.

use std::{cell::Cell, time::Duration};

use sqs_once::protocol::Timestamp;
use tokio::runtime::{Builder, EnterGuard, Runtime};

pub const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

thread_local! {
    /// `Once::clock` takes only a function pointer, so this state is per thread.
    static WALL: Cell<Timestamp> = const { Cell::new(START) };
    /// Lead of the polled worker's clock.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Wall clock of the polled worker.
pub fn of_worker() -> Timestamp {
    wall() + AHEAD.get()
}

/// A worker with this clock is polled from now on.
pub fn set_ahead(ahead: Duration) {
    AHEAD.set(ahead);
}

/// Wall clock of this thread.
pub fn wall() -> Timestamp {
    WALL.get()
}

/// Time since the execution began, as text.
pub fn since_start(at: Timestamp) -> String {
    let (sign, millis) = match at.until(START).as_millis() {
        0 => ('+', START.until(at).as_millis()),
        before => ('-', before),
    };
    format!("{sign}{}.{:03}", millis / 1000, millis % 1000)
}

/// Milliseconds until `at`, negative if it has passed. The epoch means no time: the lease of a
/// worker without a claim.
pub fn from_now(at: Timestamp) -> Option<i128> {
    let millis = |at: Timestamp| i128::from(at.as_millis());
    (at != Timestamp::default()).then(|| millis(at) - millis(wall()))
}

/// Tokio's paused time, and the wall clock beside it.
#[derive(Debug)]
pub struct Clocks {
    runtime: Runtime,
    elapsed: Cell<Duration>,
}

impl Clocks {
    pub fn new() -> Self {
        let mut builder = Builder::new_current_thread();
        Self {
            runtime: builder.enable_time().start_paused(true).build().unwrap(),
            elapsed: Cell::default(),
        }
    }

    /// A future polled under this guard uses the paused clock.
    pub fn enter(&self) -> EnterGuard<'_> {
        WALL.set(START);
        self.elapsed.set(Duration::ZERO);
        self.runtime.enter()
    }

    /// Monotonic clock, since the execution began.
    pub fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    /// Time passes for all workers: both clocks move, timers fire.
    pub fn pass(&self, span: Duration) {
        self.runtime.block_on(tokio::time::advance(span));
        self.elapsed.set(self.elapsed.get() + span);
        WALL.set(wall() + span);
    }

    /// Time passes while the running workers are frozen: no timer fires.
    pub fn freeze_until(&self, at: Timestamp) {
        WALL.set(at.max(wall()));
    }
}
