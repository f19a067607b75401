//! [`Slots`]: limits how many requests of one store are in flight in a process.

use std::{pin::pin, sync::Arc};

use futures_util::future::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of requests in flight, and so also of connections.
const MOST: usize = 64;
/// How many of these slots are for completions only.
const RESERVED: usize = 8;
const MOST_SHARED: usize = MOST - RESERVED;
/// How many slots claims may use, so that releases still go out while claims wait for a silent table.
const MOST_CLAIMS: usize = 48;

/// Slots for a store's requests in flight. Clones share them.
///
/// Claims and releases queue for the shared slots. A completion takes a shared slot or a reserved one, whichever is
/// free first. Only completions queue for the reserved ones, so none waits behind a claim or a release.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    shared: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    claims: Arc<Semaphore>,
}

/// A slot. Dropping the value frees it.
#[derive(Debug)]
pub(crate) struct Slot {
    _claim: Option<OwnedSemaphorePermit>,
    _any: Option<OwnedSemaphorePermit>,
    /// Held for as long as the slot: see [`Slot::with_pace`].
    _pace: Option<OwnedSemaphorePermit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Claim,
    /// A write that only ends a lease: a release or an undo.
    Lease,
    /// A completion, a permanent failure, a commit, or any other write that records an effect.
    Other,
}

impl Default for Slots {
    fn default() -> Self {
        let slots = |slots| Arc::new(Semaphore::new(slots));
        Self {
            shared: slots(MOST_SHARED),
            reserved: slots(RESERVED),
            claims: slots(MOST_CLAIMS),
        }
    }
}

impl Slots {
    pub(crate) async fn take(&self, kind: Request) -> Slot {
        // The semaphores are never closed. Claims first wait for each other, so that they don't hold up other requests.
        let _claim = match kind {
            Request::Claim => Arc::clone(&self.claims).acquire_owned().await.ok(),
            Request::Lease | Request::Other => None,
        };
        let shared = Arc::clone(&self.shared).acquire_owned();
        let any = match kind {
            Request::Claim | Request::Lease => shared.await,
            Request::Other => {
                let reserved = Arc::clone(&self.reserved).acquire_owned();
                let (shared, reserved) = (pin!(shared), pin!(reserved));
                select(shared, reserved).await.factor_first().0
            }
        };
        Slot {
            _claim,
            _any: any.ok(),
            _pace: None,
        }
    }

    /// Returns `place`, or waits for a slot if there is none.
    pub(crate) async fn or_take(&self, place: Option<Slot>, kind: Request) -> Slot {
        match place {
            Some(place) => place,
            None => self.take(kind).await,
        }
    }
}

impl Slot {
    /// Makes the slot also hold a permit for batched writes.
    pub(crate) fn with_pace(self, pace: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            _pace: pace,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        time::Duration,
    };

    use futures_util::future::join_all;
    use tokio::time::{Instant, sleep};

    use super::*;

    const TAKES: Duration = Duration::from_secs(1);

    /// Runs this many requests at once. Returns the largest number in flight, and the total time.
    async fn run(slots: &Slots, kind: Request, requests: usize) -> (usize, Duration) {
        let started = Instant::now();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        join_all((0..requests).map(|_| async {
            let _place = slots.take(kind).await;
            most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
            sleep(TAKES).await;
            now.fetch_sub(1, Relaxed);
        }))
        .await;
        (most.into_inner(), started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_are_bounded() {
        let slots = Slots::default();
        for (kind, most) in [
            (Request::Claim, MOST_CLAIMS),
            (Request::Lease, MOST_SHARED),
            (Request::Other, MOST),
        ] {
            let ten_rounds = run(&slots, kind, 10 * most).await;
            assert_eq!(ten_rounds, (most, 10 * TAKES));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_claims_leave_places_for_releases() {
        let slots = Slots::default();
        let claims = run(&slots, Request::Claim, 10 * MOST_CLAIMS);
        let releases = run(&slots, Request::Lease, MOST_SHARED - MOST_CLAIMS);
        let (_, (most, time)) = tokio::join!(claims, releases);
        assert_eq!((most, time), (MOST_SHARED - MOST_CLAIMS, TAKES));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_claims_and_releases_leave_places_for_completions() {
        let slots = Slots::default();
        let claims = run(&slots, Request::Claim, 10 * MOST_CLAIMS);
        let releases = run(&slots, Request::Lease, 10 * MOST_SHARED);
        let completions = run(&slots, Request::Other, RESERVED);
        let (_, _, (most, time)) = tokio::join!(claims, releases, completions);
        assert_eq!((most, time), (RESERVED, TAKES));
    }
}
