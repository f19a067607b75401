//! [`Turns`]: lets the handlers of a process run side by side, and a suspect alone.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::system::{Instant, timeout_at};

/// The turns of a process. Handlers that come later queue behind a suspect. Clones share the turns.
///
/// A message that has a worker may wait for a turn. A suspect gives its worker up while it waits, so the two
/// never wait for each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<RwLock<()>>);

/// A turn. It ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "held")] Held);

#[derive(Debug)]
enum Held {
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

impl Turns {
    /// Waits for a turn beside others, at most until `latest`.
    pub(crate) async fn shared(&self, latest: Instant) -> Option<Turn> {
        if let Ok(turn) = Arc::clone(&self.0).try_read_owned() {
            return Some(Turn(Held::Shared(turn)));
        }
        let turn = timeout_at(latest, Arc::clone(&self.0).read_owned()).await;
        turn.ok().map(Held::Shared).map(Turn)
    }

    /// Waits until no other handler runs, at most until `latest`.
    pub(crate) async fn alone(&self, latest: Instant) -> Option<Turn> {
        let turn = timeout_at(latest, Arc::clone(&self.0).write_owned()).await;
        turn.ok().map(Held::Alone).map(Turn)
    }
}

/// Decides when the handlers of a batch start. The claim mode asks it before it starts a suspect.
pub trait Gate: Send + Sync {
    /// Waits until the suspect may run alone, and holds that turn for the handler. Returns false if the time
    /// ran out first.
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
