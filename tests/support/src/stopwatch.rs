//! Time of an event on a busy machine.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::sleep};

const TICK: Duration = Duration::from_millis(5);

/// Time in which the runtime of the test could run, so that a limit holds on a machine of any speed.
///
/// A task wakes up every 5 ms. Whenever it wakes up later than after 10 ms, other processes had the
/// processor, and the stopwatch stood still.
pub struct Stopwatch {
    started: Instant,
    pulse: Arc<Mutex<Pulse>>,
    watch: JoinHandle<()>,
}

struct Pulse {
    last: Instant,
    late: Duration,
}

impl Stopwatch {
    pub fn start() -> Self {
        let started = Instant::now();
        let pulse = Arc::new(Mutex::new(Pulse {
            last: started,
            late: Duration::ZERO,
        }));
        let beats = pulse.clone();
        let watch = tokio::spawn(async move {
            loop {
                sleep(TICK).await;
                let mut pulse = beats.lock().unwrap();
                let late = since(pulse.last);
                pulse.late += late;
                pulse.last = Instant::now();
            }
        });
        Self {
            started,
            pulse,
            watch,
        }
    }

    pub fn elapsed(&self) -> Duration {
        let pulse = self.pulse.lock().unwrap();
        let late = pulse.late + since(pulse.last);
        self.started.elapsed().saturating_sub(late)
    }
}

/// The time since the last tick that was too long for one.
fn since(last: Instant) -> Duration {
    let gap = last.elapsed();
    if gap > 2 * TICK {
        gap - TICK
    } else {
        Duration::ZERO
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.watch.abort();
    }
}
