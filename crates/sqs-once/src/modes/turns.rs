//! [`Turns`]: lets handlers run in parallel, or one suspect alone.

use std::sync::Arc;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::system::{Instant, timeout_at};

/// The turns of a process. Handlers that come later queue behind a suspect. Clones share the turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<RwLock<()>>);

/// A turn. It ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "held")] Guard);

#[derive(Debug)]
enum Guard {
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

impl Turns {
    /// Returns whether these are the same turns.
    pub(crate) fn are(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a turn alongside other handlers, unless a suspect has its turn or waits for it.
    pub(crate) fn shared_now(&self) -> Option<Turn> {
        let turn = Arc::clone(&self.0).try_read_owned();
        turn.ok().map(Guard::Shared).map(Turn)
    }

    /// Waits for a turn alongside other handlers, at most until `latest`.
    pub(crate) async fn shared(&self, latest: Instant) -> Option<Turn> {
        if let Some(turn) = self.shared_now() {
            return Some(turn);
        }
        let turn = timeout_at(latest, Arc::clone(&self.0).read_owned()).await;
        turn.ok().map(Guard::Shared).map(Turn)
    }

    /// Waits until no other handler runs, at most until `latest`.
    pub(crate) async fn alone(&self, latest: Instant) -> Option<Turn> {
        let turn = timeout_at(latest, Arc::clone(&self.0).write_owned()).await;
        turn.ok().map(Guard::Alone).map(Turn)
    }
}
