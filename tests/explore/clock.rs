//! Two clocks that move when the schedule says so.
//!
//! Leases are made of the wall clock's time, cuts at a deadline of the monotonic clock's. They
//! part where a process is frozen: its wall clock jumps, its timers do not know. A worker that
//! goes on after that has outlived its lease without a sign of it.

use std::{cell::Cell, time::Duration};

use sqs_once::protocol::Timestamp;
use tokio::runtime::{Builder, EnterGuard, Runtime};

pub const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

thread_local! {
    /// A function pointer is all that `Once::clock` takes.
    static WALL: Cell<Timestamp> = const { Cell::new(START) };
    /// By how much the clock of the worker that is polled is ahead of it.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The wall clock of the worker that is polled.
pub fn of_worker() -> Timestamp {
    wall() + AHEAD.get()
}

/// A worker with this clock is polled from now on.
pub fn set_ahead(ahead: Duration) {
    AHEAD.set(ahead);
}

/// The wall clock of this thread.
pub fn wall() -> Timestamp {
    WALL.get()
}

/// Since the execution began, in words.
pub fn since_start(at: Timestamp) -> String {
    let (sign, millis) = match at.until(START).as_millis() {
        0 => ('+', START.until(at).as_millis()),
        before => ('-', before),
    };
    format!("{sign}{}.{:03}", millis / 1000, millis % 1000)
}

/// Milliseconds until `at`, less than none if it is over. The epoch is no time at all: the lease
/// of a worker that has not claimed.
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

    /// What is polled under this guard finds the paused clock.
    pub fn enter(&self) -> EnterGuard<'_> {
        WALL.set(START);
        self.elapsed.set(Duration::ZERO);
        self.runtime.enter()
    }

    /// The monotonic clock, since the execution began.
    pub fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    /// Time passes for everybody: both clocks move, timers fire.
    pub fn pass(&self, span: Duration) {
        self.runtime.block_on(tokio::time::advance(span));
        self.elapsed.set(self.elapsed.get() + span);
        WALL.set(wall() + span);
    }

    /// Time passes while whoever is at work is frozen: no timer fires.
    pub fn freeze_until(&self, at: Timestamp) {
        WALL.set(at.max(wall()));
    }
}
