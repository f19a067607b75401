//! How long other processes kept the processors from this test: the only excuse for a worker that was slow.

use std::{
    fs,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(10);

/// Two sums since some time in the past: how late a thread was that wakes up every 10 ms, and how long a process
/// had to wait for a processor (`/proc/pressure/cpu`, on Linux).
#[derive(Clone, Copy)]
pub(crate) struct Stalls {
    late: Duration,
    pressure: Duration,
}

impl Stalls {
    pub(crate) fn so_far() -> Self {
        Self {
            late: Duration::from_micros(HEARTBEAT.load(Ordering::Relaxed)),
            pressure: pressure().unwrap_or_default(),
        }
    }

    /// The longer of the two since then.
    pub(crate) fn since(then: Self) -> Duration {
        let now = Self::so_far();
        let late = now.late.saturating_sub(then.late);
        late.max(now.pressure.saturating_sub(then.pressure))
    }
}

/// True if a receive of this length may have been slow because of the machine, which was stalled for so long.
pub(crate) fn excuses(stalled: Duration, took: Duration) -> bool {
    stalled > Duration::ZERO && 4 * stalled >= took
}

/// Microseconds by which the heartbeats were late.
static HEARTBEAT: LazyLock<&AtomicU64> = LazyLock::new(|| {
    let late: &AtomicU64 = Box::leak(Box::default());
    thread::spawn(|| {
        loop {
            let slept = Instant::now();
            thread::sleep(TICK);
            let over = slept.elapsed().saturating_sub(TICK).as_micros();
            late.fetch_add(over.try_into().unwrap(), Ordering::Relaxed);
        }
    });
    late
});

/// The line is `some avg10=.. avg60=.. avg300=.. total=MICROSECONDS`.
fn pressure() -> Option<Duration> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let (_, total) = text.lines().next()?.split_once("total=")?;
    Some(Duration::from_micros(total.parse().ok()?))
}

#[test]
fn only_a_stalled_machine_excuses_a_slow_worker() {
    let second = Duration::from_secs(1);
    for (stalled, took, excused) in [
        (Duration::ZERO, Duration::ZERO, false),
        (Duration::ZERO, second, false),
        (second / 5, second, false),
        (second / 4, second, true),
    ] {
        assert_eq!(excuses(stalled, took), excused, "{stalled:?} of {took:?}");
    }
}
