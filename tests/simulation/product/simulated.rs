//! [`Process`]: a simulated process, with clocks of its own, that can be killed, frozen and thawed.
//!
//! All processes of a simulation share one thread and a tokio runtime with paused time. The product's code finds out
//! in which process it runs from a thread-local that is set while a task of the process is polled or dropped.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    mem,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, Sleep as Timer};

use crate::protocol::Timestamp;

/// Lead of a process's monotonic clock, so that a long freeze never leads to a time before the machine's start.
const LEAD: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

thread_local! {
    static CURRENT: RefCell<Option<Process>> = const { RefCell::new(None) };
}

/// A simulated process. Clones are the same process.
#[derive(Clone, Debug)]
pub struct Process(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// True time of the world at `since`.
    epoch: Timestamp,
    since: Instant,
    gates: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    life: Life,
    /// How many milliseconds the wall clock is ahead.
    ahead_ms: i64,
    /// How long the monotonic clock has stood still.
    stopped: Duration,
    /// Tasks that wait, by gate.
    waiting: BTreeMap<u64, Waker>,
    /// Polls until the process is killed.
    polls_left: Option<u64>,
    /// What the process has written to standard output.
    output: Vec<u8>,
    /// Bytes of bodies in memory, and most so far.
    held: (usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    Frozen { since: Instant, clock_stops: bool },
    Dead,
}

impl Process {
    /// Starts a process at this true time.
    #[must_use]
    pub fn start(now: Timestamp) -> Self {
        Self(Arc::new(Shared {
            epoch: now,
            since: Instant::now(),
            gates: AtomicU64::new(0),
            state: Mutex::new(State {
                life: Life::Running,
                ahead_ms: 0,
                stopped: Duration::ZERO,
                waiting: BTreeMap::new(),
                polls_left: None,
                output: Vec::new(),
                held: (0, 0),
            }),
        }))
    }

    /// Returns the process whose code is running. `None` outside of a simulation.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs `future` in this process. Returns `None` if the process is killed before it ends.
    pub fn run<F: Future + Send>(
        &self,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send {
        Gate {
            process: self.clone(),
            number: self.0.gates.fetch_add(1, Relaxed),
            inner: Some(Box::pin(future)),
        }
    }

    /// Sets the wall clock, so many milliseconds ahead of the true time.
    pub fn set_wall_clock(&self, ahead_ms: i64) {
        self.state().ahead_ms = ahead_ms;
    }

    /// Ends the process: nothing of it runs any more.
    pub fn kill(&self) {
        self.change(Life::Dead);
    }

    /// Ends the process when this many polls of its tasks have gone by.
    pub fn kill_at_poll(&self, polls: u64) {
        self.state().polls_left = Some(polls);
    }

    /// Returns and removes what the process has written to standard output.
    #[must_use]
    pub fn take_output(&self) -> Vec<u8> {
        mem::take(&mut self.state().output)
    }

    pub(super) fn print(&self, lines: &[u8]) {
        self.state().output.extend_from_slice(lines);
    }

    /// Returns how many bytes of bodies the process holds, and how many it held at most.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        self.state().held
    }

    /// Freezes the process, as Lambda does between two invocations. The wall clock goes on.
    pub fn freeze(&self, clock_stops: bool) {
        let mut state = self.state();
        if state.life == Life::Running {
            state.life = Life::Frozen {
                since: Instant::now(),
                clock_stops,
            };
        }
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        if !self.is_dead() {
            self.change(Life::Running);
        }
    }

    /// Returns whether the process was killed.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state().life == Life::Dead
    }

    fn is_last_poll(&self) -> bool {
        let mut state = self.state();
        match &mut state.polls_left {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    fn change(&self, life: Life) {
        let mut state = self.state();
        if let Life::Frozen {
            since,
            clock_stops: true,
        } = state.life
        {
            state.stopped += since.elapsed();
        }
        state.life = life;
        let waiting = mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the process is frozen.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        matches!(self.state().life, Life::Frozen { .. })
    }

    /// Runs code as this process.
    pub fn enter<T>(&self, run: impl FnOnce() -> T) -> T {
        struct Left(Option<Process>);
        impl Drop for Left {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _left = Left(CURRENT.replace(Some(self.clone())));
        run()
    }
}

/// A task of a process.
struct Gate<F> {
    process: Process,
    number: u64,
    inner: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Gate<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let process = self.process.clone();
        if process.is_last_poll() {
            process.kill();
        }
        let life = {
            let mut state = self.process.state();
            let waker = context.waker().clone();
            state.waiting.insert(self.number, waker);
            state.life
        };
        match (life, &mut self.inner) {
            (Life::Frozen { .. }, Some(_)) => Poll::Pending,
            (Life::Running, Some(inner)) => {
                process.enter(|| inner.as_mut().poll(context)).map(Some)
            }
            (Life::Dead, _) | (_, None) => {
                let inner = self.inner.take();
                process.enter(|| drop(inner));
                Poll::Ready(None)
            }
        }
    }
}

impl<F> Drop for Gate<F> {
    fn drop(&mut self) {
        self.process.state().waiting.remove(&self.number);
        let inner = self.inner.take();
        self.process.enter(|| drop(inner));
    }
}

/// The bytes of a body in the memory of a process.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    process: Option<Process>,
    bytes: usize,
}

impl HeldBytes {
    pub(crate) fn bytes(bytes: usize) -> Self {
        let process = Process::current();
        if let Some(process) = &process {
            let (now, most) = &mut process.state().held;
            *now += bytes;
            *most = (*most).max(*now);
        }
        Self { process, bytes }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            process.state().held.0 -= self.bytes;
        }
    }
}

/// Runs `future` in the process that is current now, if there is one. It never ends if the process is killed.
pub(super) fn in_process<T: Send>(
    future: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    let process = Process::current();
    async move {
        match process {
            Some(process) => match process.run(future).await {
                Some(ended) => ended,
                None => std::future::pending().await,
            },
            None => future.await,
        }
    }
}

pub(super) fn wall_clock() -> Option<Timestamp> {
    let process = Process::current()?;
    let ahead_ms = process.state().ahead_ms;
    let now = process.0.epoch + process.0.since.elapsed();
    Some(Timestamp::from_millis(
        now.as_millis().saturating_add_signed(ahead_ms),
    ))
}

pub(super) fn instant() -> Option<Instant> {
    let process = Process::current()?;
    let stopped = process.state().stopped;
    Some(Instant::now() + LEAD - stopped)
}

/// The time given to a future is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

/// Waits for a time of the process's monotonic clock.
#[derive(Debug)]
pub struct Sleep {
    until: Instant,
    timer: Pin<Box<Timer>>,
}

impl Sleep {
    fn until(until: Instant) -> Self {
        let now = super::instant();
        let timer = tokio::time::sleep(until.saturating_duration_since(now));
        Self {
            until,
            timer: Box::pin(timer),
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let left = self.until.saturating_duration_since(super::instant());
            if left.is_zero() {
                return Poll::Ready(());
            }
            // The clock stood still meanwhile.
            self.timer.as_mut().reset(Instant::now() + left);
        }
    }
}

/// Waits for a time of the process's monotonic clock.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep::until(super::instant() + duration)
}

/// Drops `future` if it has not ended after `duration`.
///
/// # Errors
///
/// [`Elapsed`].
pub fn timeout<F: Future>(
    duration: Duration,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> {
    timeout_at(super::instant() + duration, future)
}

/// Drops `future` if it has not ended at `end`.
///
/// # Errors
///
/// [`Elapsed`].
pub async fn timeout_at<F: Future>(end: Instant, future: F) -> Result<F::Output, Elapsed> {
    let (mut future, mut sleep) = (std::pin::pin!(future), std::pin::pin!(Sleep::until(end)));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(context).map(|()| Err(Elapsed))
    })
    .await
}
