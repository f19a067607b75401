//! [`Process`]: what the invocations of a process share, such as the [`CircuitBreaker`].

use std::{
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    modes::Turns,
    protocol::{
        Key, Timestamp,
        circuit::{Called, Circuit, CircuitChange},
    },
    system::{Instant, timeout_at},
};

/// The memory for bodies from S3, in bytes. Such a body can be larger than an event. A body larger than this gets all
/// of the memory to itself.
const S3_BODIES: u32 = 20 << 20;
/// How many bytes a permit stands for.
const PERMIT: u32 = 1 << 10;

/// State that the invocations of a process share. Clones of a consumer also share it.
#[derive(Debug)]
pub(super) struct Process {
    /// The handlers' turns: either they run in parallel, or a suspect runs alone.
    pub(super) turns: Turns,
    /// The circuit breaker. If it is `None`, every message runs.
    pub(super) breaker: Option<CircuitBreaker>,
    s3_bodies: Arc<Semaphore>,
    /// Makes the process warn about its build only once.
    pub(super) has_warned: Once,
    /// Makes the process warn only once about fingerprint pointers that find nothing.
    pub(super) has_named_pointers: Once,
    /// The longest time that an invocation has had, in seconds. As far as the process knows, this is the function's timeout.
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

/// Memory for a body from S3. Dropping the value frees the memory.
#[derive(Debug)]
pub(super) struct BodyMemory(OwnedSemaphorePermit);

impl Process {
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

    /// Notes that an invocation had this many seconds, and returns the longest time that any has had so far.
    pub(super) fn longest(&self, seconds: u64) -> Duration {
        let before = self.longest.fetch_max(seconds, Relaxed);
        Duration::from_secs(before.max(seconds))
    }

    /// Waits for the memory of a body of at most `bytes`. Returns `None` if it isn't free by `latest`.
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

/// The circuit breaker of a process. We read the clock under its lock. Otherwise two messages could report their times in the
/// wrong order, which would look like a clock that was set back.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker(Mutex<Circuit>);

impl CircuitBreaker {
    /// Decides whether a message may run.
    ///
    /// # Errors
    ///
    /// Returns the time of the next probe if the message must not run.
    pub(super) fn admit(
        &self,
        clock: impl Fn() -> Timestamp,
        receive_count: u32,
    ) -> Result<(), Timestamp> {
        let mut circuit = self.circuit();
        circuit.admit(clock(), receive_count)
    }

    /// Records how a call of the handler ended.
    pub(super) fn called(&self, clock: impl Fn() -> Timestamp, key: &Key, called: Called) {
        let change = {
            let mut circuit = self.circuit();
            circuit.called(clock(), key, called)
        };
        match change {
            Some(CircuitChange::Opened) => tracing::warn!(
                circuit = "open",
                "handlers fail one after the other: messages wait until one of them succeeds"
            ),
            Some(CircuitChange::Refused(wait)) => tracing::warn!(
                circuit = "open",
                wait_seconds = wait.as_secs(),
                "the called system refuses everybody: no message runs for this long"
            ),
            Some(CircuitChange::Closed) => {
                tracing::info!(
                    circuit = "closed",
                    "a handler succeeded: messages run again"
                );
            }
            None => {}
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.circuit().is_open()
    }

    /// A poisoned lock is harmless, because no panic can interrupt a change of the circuit.
    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
