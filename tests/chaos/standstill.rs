//! Standstills of a busy machine: moments in which no task of the test ran. Requests of all workers
//! then run into their timeouts, and nothing injected that.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::sleep};

/// Two fifths of the gateway's timeout.
const STANDSTILL: Duration = Duration::from_millis(200);

const TICK: Duration = Duration::from_millis(20);

/// Counts until it is dropped.
pub(crate) struct Standstills {
    count: Arc<AtomicUsize>,
    watch: JoinHandle<()>,
}

impl Standstills {
    pub(crate) fn watch() -> Self {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        let watch = tokio::spawn(async move {
            loop {
                let before = Instant::now();
                sleep(TICK).await;
                if before.elapsed() > TICK + STANDSTILL {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { count, watch }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Standstills {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

#[tokio::test]
async fn standstill_of_all_tasks_is_counted() {
    let standstills = Standstills::watch();
    sleep(2 * TICK).await;
    let before = standstills.count();
    // Blocks the only thread.
    std::thread::sleep(2 * STANDSTILL);
    sleep(2 * TICK).await;
    assert!(standstills.count() > before);
}
