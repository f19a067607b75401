//! [`Turns`]: the handlers of a process run side by side, and a suspect alone.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock},
    time::{Instant, timeout_at},
};

/// The turns of a process. Later handlers queue behind a suspect. Clones share the turns.
///
/// A message with a place for its handler may wait for a turn. A suspect has no such place, so the two
/// never wait for each other.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<RwLock<()>>);

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held")] Held);

#[derive(Debug)]
enum Held {
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

impl Turns {
    /// Waits for a turn beside others, at most until `latest`.
    pub async fn shared(&self, latest: Instant) -> Option<Turn> {
        if let Ok(turn) = Arc::clone(&self.0).try_read_owned() {
            return Some(Turn(Held::Shared(turn)));
        }
        let turn = timeout_at(latest, Arc::clone(&self.0).read_owned()).await;
        turn.ok().map(Held::Shared).map(Turn)
    }

    /// Waits until no other handler runs, at most until `latest`.
    pub async fn alone(&self, latest: Instant) -> Option<Turn> {
        let turn = timeout_at(latest, Arc::clone(&self.0).write_owned()).await;
        turn.ok().map(Held::Alone).map(Turn)
    }
}

/// Decides when the handlers of a batch start. The claim mode asks it about a suspect.
pub trait Gate: Send + Sync {
    /// Waits until the suspect may run alone, and keeps that turn for the handler. Returns false if
    /// there was no time for it.
    fn alone(&self, exclusive_attempts: u64) -> BoxFuture<'_, bool>;
}

/// The gate of an operation.
#[derive(Clone)]
pub struct OperationGate(pub Arc<dyn Gate>);

impl fmt::Debug for OperationGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperationGate(..)")
    }
}
