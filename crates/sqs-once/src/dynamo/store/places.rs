//! [`Places`]: limits how many requests of one store are in flight in a process.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of requests in flight, and so of connections.
const MOST: usize = 64;
/// Maximum number of claims among them, so that completions still go out while claims wait for a silent
/// table.
const MOST_CLAIMS: usize = 48;

/// Slots for a store's requests in flight. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    all: Arc<Semaphore>,
    claims: Arc<Semaphore>,
}

/// A slot, which is free again when the value is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _claim: Option<OwnedSemaphorePermit>,
    _any: Option<OwnedSemaphorePermit>,
}

/// The kind of a request: a claim, or a request that follows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Claim,
    Other,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MOST)),
            claims: Arc::new(Semaphore::new(MOST_CLAIMS)),
        }
    }
}

impl Places {
    /// Waits for a slot.
    pub(crate) async fn take(&self, kind: Request) -> Place {
        // The semaphores are never closed. Claims wait for each other first, so they hold up nothing else.
        let _claim = match kind {
            Request::Claim => Arc::clone(&self.claims).acquire_owned().await.ok(),
            Request::Other => None,
        };
        let _any = Arc::clone(&self.all).acquire_owned().await.ok();
        Place { _claim, _any }
    }

    /// Returns `place`, or waits for a slot if it is `None`.
    pub(crate) async fn or_take(&self, place: Option<Place>, kind: Request) -> Place {
        match place {
            Some(place) => place,
            None => self.take(kind).await,
        }
    }

    /// Takes a slot for a claim or for another request, without waiting. `Other` if only such a slot is free.
    pub(crate) fn try_take(&self) -> Option<(Request, Place)> {
        let any = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let claim = Arc::clone(&self.claims).try_acquire_owned().ok();
        let kind = if claim.is_some() {
            Request::Claim
        } else {
            Request::Other
        };
        let place = Place {
            _claim: claim,
            _any: Some(any),
        };
        Some((kind, place))
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        MOST.saturating_sub(self.all.available_permits())
    }
}

impl Place {
    /// Converts the slot to one for a request that claims nothing.
    pub(crate) fn without_claim(self) -> Self {
        Self {
            _claim: None,
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

    /// Runs requests of this duration. Returns the largest number in flight, and the total time.
    async fn run(places: &Places, kind: Request, requests: usize) -> (usize, Duration) {
        let started = Instant::now();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        join_all((0..requests).map(|_| async {
            let _place = places.take(kind).await;
            most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
            sleep(TAKES).await;
            now.fetch_sub(1, Relaxed);
        }))
        .await;
        (most.into_inner(), started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_are_bounded() {
        let places = Places::default();
        let ten_rounds = run(&places, Request::Other, 10 * MOST).await;
        assert_eq!(ten_rounds, (MOST, 10 * TAKES));
        let ten_rounds = run(&places, Request::Claim, 10 * MOST_CLAIMS).await;
        assert_eq!(ten_rounds, (MOST_CLAIMS, 10 * TAKES));
        assert_eq!(places.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_claims_leave_places_for_completions() {
        let places = Places::default();
        let claims = run(&places, Request::Claim, 10 * MOST_CLAIMS);
        let completions = run(&places, Request::Other, MOST - MOST_CLAIMS);
        let (_, (most, time)) = tokio::join!(claims, completions);
        assert_eq!((most, time), (MOST - MOST_CLAIMS, TAKES));
    }
}
