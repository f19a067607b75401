//! [`Meter`]: measures one message while it runs, for example the latency of its store requests, and collects the handler's own
//! metrics.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use serde::Serialize;

use crate::system;

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub enum Unit {
    /// A number of things.
    Count,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
}

/// The value of a handler's metric: any number. A whole number beyond 2^53 is rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amount(f64);

macro_rules! amounts {
    ($($number:ty)*) => {
        $(
            impl From<$number> for Amount {
                #[allow(clippy::cast_lossless, clippy::cast_precision_loss, reason = "as documented")]
                fn from(number: $number) -> Self {
                    Self(number as f64)
                }
            }
        )*
    };
}

amounts! { u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 }

/// Records what happens to one message. Clones share the readings.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<Readings>>);

/// The measurements of a [`Meter`].
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// Time from each claim or settlement to its response, or until the worker stopped waiting. A request for
    /// several messages adds its time to each of them.
    pub latencies: Vec<Duration>,
    /// True if the store stopped batching writes after one of these requests.
    pub batches_ended: bool,
    /// True if a message from another queue completed the operation.
    pub other_queue: bool,
    /// For a duplicate: how many times the operation was claimed until it was completed.
    pub attempts: u64,
    /// For a duplicate: the generation of the call key under which the operation was completed.
    pub generation: u64,
    /// For a duplicate: how long ago the operation was completed.
    pub age: Option<Duration>,
    /// True while a layer holds the message and hasn't called the handler yet.
    pub in_layer: bool,
    /// The handler's own metrics.
    pub own: Vec<(&'static str, Unit, f64)>,
}

impl Meter {
    /// Runs a request and adds its latency.
    pub fn timed<F: Future>(&self, request: F) -> impl Future<Output = F::Output> {
        let sent = system::instant();
        request.inspect(move |_| self.lock().latencies.push(system::elapsed(sent)))
    }

    /// Records that the store stopped batching writes.
    pub fn batches_ended(&self) {
        self.lock().batches_ended = true;
    }

    /// Records that a message from another queue completed the operation.
    pub fn other_queue(&self) {
        self.lock().other_queue = true;
    }

    /// Records how the operation was completed, if this message is a duplicate.
    pub fn completed(&self, attempts: u64, generation: u64, age: Duration) {
        let mut readings = self.lock();
        (readings.attempts, readings.generation) = (attempts, generation);
        readings.age = Some(age);
    }

    pub(crate) fn set_in_layer(&self, in_layer: bool) {
        self.lock().in_layer = in_layer;
    }

    pub(crate) fn is_in_layer(&self) -> bool {
        self.lock().in_layer
    }

    /// Adds a value to one of the handler's own metrics.
    pub(crate) fn own(&self, name: &'static str, unit: Unit, Amount(value): Amount) {
        if value.is_finite() {
            self.lock().own.push((name, unit, value));
        }
    }

    /// Returns the readings so far.
    #[must_use]
    pub fn readings(&self) -> Readings {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
