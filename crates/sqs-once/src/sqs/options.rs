//! [`Options`] of a consumer, and its [`Concurrency`].

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use super::{
    Envelope, callback::Callback, chains::FifoAfterPermanent,
    fingerprint_source::FingerprintSource, key_source::KeySource, message::MakeSpan,
    message_outcome::Observe, s3_pointer::ReadBodies, visibility::Visibility,
};
use crate::{
    deadline::{LEAST_MEMORY, reserve_per_message},
    telemetry::Metrics,
};

/// Options of a consumer, set by its builder methods or by rows of the settings table.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) key: KeySource,
    /// `IDEMPOTENCY_KEY`, if it is set.
    pub(crate) key_in_environment: Option<String>,
    pub(crate) envelope: Envelope,
    pub(crate) s3_bodies: Option<Arc<dyn ReadBodies>>,
    pub(crate) fingerprint: FingerprintSource,
    pub(crate) concurrency: Concurrency,
    pub(crate) deadline_reserve: Duration,
    pub(crate) reserve_per_message: Duration,
    pub(crate) assumed_timeout: Duration,
    pub(crate) min_time_to_start: Duration,
    /// [`min_time_to_start`](Self::min_time_to_start) may be at most the function's timeout divided by this. With `None`,
    /// the setting is only a hint, which we ignore if it is too long.
    pub(crate) min_time_divisor: Option<u32>,
    pub(crate) fifo_after_permanent: FifoAfterPermanent,
    pub(crate) fail_when_store_unavailable: bool,
    pub(crate) visibility: Option<Visibility>,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) observer: Option<Callback<Observe>>,
    pub(crate) make_span: Option<Callback<MakeSpan>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key: KeySource::default(),
            key_in_environment: None,
            envelope: Envelope::default(),
            s3_bodies: None,
            fingerprint: FingerprintSource::default(),
            concurrency: Concurrency::new(LEAST),
            deadline_reserve: Duration::from_millis(500),
            reserve_per_message: reserve_per_message(LEAST_MEMORY),
            assumed_timeout: Duration::from_secs(300),
            min_time_to_start: Duration::ZERO,
            min_time_divisor: None,
            fifo_after_permanent: FifoAfterPermanent::default(),
            fail_when_store_unavailable: true,
            visibility: None,
            metrics: None,
            observer: None,
            make_span: None,
        }
    }
}

/// How many messages of a batch run at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Concurrency {
    /// At most this many.
    most: NonZeroUsize,
    /// More than [`LEAST`] run only if they fit into this much memory, in bytes.
    memory: usize,
}

/// How many messages run at a time however much memory they need, unless a setting allows fewer.
pub(crate) const LEAST: NonZeroUsize = NonZeroUsize::new(10).unwrap();

/// Memory that a message may need for its output while it runs, in bytes. The largest output that fits into a record has
/// nearly 400 KB, and several copies of it exist at a time.
pub(super) const MEMORY_OF_OUTPUT: usize = 3 << 19;

impl Concurrency {
    pub(crate) const fn new(most: NonZeroUsize) -> Self {
        Self::within_memory(most, usize::MAX)
    }

    pub(crate) const fn within_memory(most: NonZeroUsize, memory: usize) -> Self {
        Self { most, memory }
    }

    pub(crate) const fn most(self) -> usize {
        self.most.get()
    }

    /// Returns how many messages with small bodies may run at a time.
    pub(crate) fn small_messages(self) -> usize {
        let fit = self.memory / MEMORY_OF_OUTPUT;
        self.most().min(fit.max(LEAST.get()))
    }

    /// Returns whether one more message may run while `running` others do, if together they would need this much memory.
    pub(crate) const fn admits(self, running: usize, memory: usize) -> bool {
        running < self.most() && (running < LEAST.get() || memory <= self.memory)
    }
}
