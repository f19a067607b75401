//! [`Process`]: what the invocations of a process share.

use std::{
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::breaker::CircuitBreaker;
use crate::{
    modes::Turns,
    system::{Instant, timeout_at},
};

/// The memory for bodies from S3. Such a body can be larger than an event. One that is larger than this has the memory
/// to itself.
const S3_BODIES: u32 = 20 << 20;
/// Bytes of a permit.
const PERMIT: u32 = 1 << 10;

/// What the invocations of a process share. Clones of a consumer share it too.
#[derive(Debug)]
pub(super) struct Process {
    /// Turns of the handlers: side by side, or a suspect alone.
    pub(super) turns: Turns,
    /// The circuit breaker. `None`: every message runs.
    pub(super) breaker: Option<CircuitBreaker>,
    s3_bodies: Arc<Semaphore>,
    /// Whether the process has said what is wrong with its build.
    pub(super) has_warned: Once,
    /// Whether the process has named pointers of the fingerprint that find nothing.
    pub(super) has_named_pointers: Once,
    /// The longest time that an invocation had, in seconds: the function's timeout, as far as the process knows it.
    longest: AtomicU64,
}

impl Default for Process {
    fn default() -> Self {
        let permits = usize::try_from(S3_BODIES / PERMIT).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            turns: Turns::default(),
            breaker: Some(CircuitBreaker::default()),
            s3_bodies: Arc::new(Semaphore::new(permits)),
            has_warned: Once::new(),
            has_named_pointers: Once::new(),
            longest: AtomicU64::default(),
        }
    }
}

/// Memory of a body from S3. Dropping it gives the memory back.
#[derive(Debug)]
pub(super) struct BodyMemory(OwnedSemaphorePermit);

impl Process {
    /// Returns the same process with this circuit breaker.
    pub(super) fn with_breaker(&self, breaker: Option<CircuitBreaker>) -> Self {
        Self {
            turns: self.turns.clone(),
            breaker,
            s3_bodies: Arc::clone(&self.s3_bodies),
            has_warned: Once::new(),
            has_named_pointers: Once::new(),
            longest: AtomicU64::default(),
        }
    }

    /// Returns the longest time that an invocation of this process had: this many seconds, or more.
    pub(super) fn longest(&self, seconds: u64) -> Duration {
        let before = self.longest.fetch_max(seconds, Relaxed);
        Duration::from_secs(before.max(seconds))
    }

    /// Waits for the memory of a body of at most `bytes`. `None` if it takes longer than until `latest`.
    pub(super) async fn memory_of_body(&self, bytes: u32, latest: Instant) -> Option<BodyMemory> {
        let permits = bytes.min(S3_BODIES).div_ceil(PERMIT);
        let acquired = Arc::clone(&self.s3_bodies).acquire_many_owned(permits);
        let permit = timeout_at(latest, acquired).await.ok()?.ok()?;
        Some(BodyMemory(permit))
    }
}

impl BodyMemory {
    /// Gives back what a body of this length does not need.
    pub(super) fn shrink_to(mut self, bytes: usize) -> Self {
        let needed = bytes.div_ceil(PERMIT as usize);
        match self.0.split(needed) {
            Some(needed) => Self(needed),
            None => self,
        }
    }
}
