//! An execution environment: one process of the release binary, and the invocations that run in it
//! at the same time. One of them may end the process, and with it the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use support::runtime_api::{Env, Lambda, program};
use tokio::{
    sync::{Mutex, watch},
    time::sleep,
};

use crate::chaos::{
    fate::signal,
    ledger::{Invocation, Worker},
    pace::Pace,
    plan::Seed,
};

/// The clocks of two workers differ by so many milliseconds at most, less than the lease margin.
pub(crate) const APART_MS: u64 = 80;

/// The difference of a worker's clock to the test's, in milliseconds.
pub(crate) fn skew(seed: Seed, worker: Worker) -> i64 {
    let half = APART_MS as i64 / 2;
    seed.dice(("clock", worker)).i64(-half..=half)
}

/// Longer than the five seconds after which the consumer takes a silent connection for dead.
const REST: Duration = Duration::from_millis(5200);

pub(crate) struct Environment {
    pub(crate) worker: Worker,
    pub(crate) lambda: Lambda,
    pub(crate) pace: Pace,
    invocations: AtomicU32,
    /// Invocations that acknowledged a message.
    fruitful: AtomicU32,
    frozen: AtomicBool,
    given_up: AtomicBool,
    /// True from a rest until the next invocation.
    rested: AtomicBool,
    /// True once the ledger has the process's death.
    gone: watch::Sender<bool>,
}

impl Environment {
    /// Starts a process, and waits until it polls for as many invocations as it runs at once.
    pub(crate) async fn start(worker: Worker, pace: Pace, env: Env, at_once: usize) -> Self {
        let lambda = Lambda::start_binary(&program("adjusted"), env).await;
        lambda.polls(at_once).await;
        Self {
            worker,
            lambda,
            pace,
            invocations: AtomicU32::new(0),
            fruitful: AtomicU32::new(0),
            frozen: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            rested: AtomicBool::new(false),
            gone: watch::Sender::new(false),
        }
    }

    /// Number of invocations so far.
    pub(crate) fn invocations(&self) -> u32 {
        self.invocations.load(Ordering::SeqCst)
    }

    /// Number of invocations so far that acknowledged a message.
    pub(crate) fn fruitful(&self) -> u32 {
        self.fruitful.load(Ordering::SeqCst)
    }

    /// An invocation has acknowledged messages.
    pub(crate) fn bore_fruit(&self) {
        self.fruitful.fetch_add(1, Ordering::SeqCst);
    }

    /// Stops the process, unless an invocation has frozen it or given it up.
    pub(crate) fn freeze(&self) {
        let given_up = self.given_up.load(Ordering::SeqCst);
        if !given_up && !self.frozen.swap(true, Ordering::SeqCst) {
            signal(self.lambda.pid(), "-STOP");
        }
    }

    /// Frozen between two invocations. `meanwhile` lets its connections die.
    pub(crate) async fn rest(&self, meanwhile: impl FnOnce()) {
        signal(self.lambda.pid(), "-STOP");
        sleep(REST).await;
        meanwhile();
        self.rested.store(true, Ordering::SeqCst);
        signal(self.lambda.pid(), "-CONT");
    }

    /// True for the first invocation after a rest.
    pub(crate) fn has_rested(&self) -> bool {
        self.rested.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// Returns true to the first caller, which ends the process and then [`Self::end_others`].
    pub(crate) fn give_up(&self) -> bool {
        !self.given_up.swap(true, Ordering::SeqCst)
    }

    /// Ends the other invocations, once the ledger has the death.
    pub(crate) fn end_others(&self) {
        self.gone.send_replace(true);
    }

    /// Waits until another invocation has ended the process.
    pub(crate) async fn gone(&self) {
        let mut gone = self.gone.subscribe();
        let _ = gone.wait_for(|gone| *gone).await;
    }
}

/// The place of an environment, and after its death of the next.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Option<Arc<Environment>>>);

impl Slot {
    /// Begins an invocation in the environment. Without an environment, `start` starts one first.
    /// Returns the invocation's number in the environment.
    pub(crate) async fn begin(
        &self,
        start: impl Future<Output = Environment>,
    ) -> (Arc<Environment>, Invocation) {
        let mut slot = self.0.lock().await;
        let environment = match &mut *slot {
            Some(environment) => environment,
            none => none.insert(Arc::new(start.await)),
        };
        let nth = environment.invocations.fetch_add(1, Ordering::SeqCst) + 1;
        (environment.clone(), nth)
    }

    pub(crate) async fn environment(&self) -> Option<Arc<Environment>> {
        self.0.lock().await.clone()
    }

    /// The next invocation then starts another environment.
    pub(crate) async fn clear(&self) -> Option<Arc<Environment>> {
        self.0.lock().await.take()
    }
}
