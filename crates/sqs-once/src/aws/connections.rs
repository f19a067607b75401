//! [`Watched`]: tells a dead connection from a slow service by how long the connection was idle.

use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_smithy_runtime_api::client::{
    connection::{CaptureSmithyConnection, ConnectionMetadata},
    http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector},
    orchestrator::HttpRequest,
    result::ConnectorError,
};

use super::explain::NoResponse;
use crate::{protocol::Timestamp, system::timeout};

/// A connection *has rested* if its last response was this long ago, in wall-clock time. The monotonic clock
/// stands still while Lambda has the process frozen.
const REST: Duration = Duration::from_secs(5);
/// Maximum number of connections that we watch.
const MOST: usize = 512;

/// A connector that gives a request less time if its connection has rested. After one rested connection has failed, the
/// connector uses none of the others.
///
/// While Lambda has a process frozen, every pooled connection can die, with or without notice. With one time limit
/// for all requests, we couldn't tell a dead connection from a slow table. How long the connection was idle tells us.
///
/// The connections of one client go to a few endpoints in one Region, so we treat all of them as one pool.
#[derive(Debug)]
pub(super) struct Watched {
    connector: SharedHttpConnector,
    /// Time limit for a request on a connection that has been idle for at least [`REST`].
    limit: Duration,
    clock: fn() -> Timestamp,
    known: Arc<KnownConnections>,
}

/// Connections that have had a response, by local address. A new connection may get the port of a closed one.
/// We then treat it as rested, which costs at most one more request.
#[derive(Debug, Default)]
struct KnownConnections(Mutex<HashMap<SocketAddr, Connection>>);

struct Connection {
    metadata: ConnectionMetadata,
    answered: Timestamp,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

impl Watched {
    pub(super) fn new(
        connector: SharedHttpConnector,
        limit: Duration,
        clock: fn() -> Timestamp,
    ) -> Self {
        Self {
            connector,
            limit,
            clock,
            known: Arc::default(),
        }
    }
}

impl HttpConnector for Watched {
    fn call(&self, mut request: HttpRequest) -> HttpConnectorFuture {
        // The SDK's connection-poisoning interceptor has normally attached a capture to the request already, which we reuse.
        let captured = request.extension::<CaptureSmithyConnection>().cloned();
        let used = captured.unwrap_or_else(|| {
            let capture = CaptureSmithyConnection::new();
            request.add_extension(capture.clone());
            capture
        });
        let (limit, clock, known) = (self.limit, self.clock, Arc::clone(&self.known));
        let sent = clock();
        let answer = self.connector.call(request);
        HttpConnectorFuture::new(async move {
            let mut answer = pin!(answer);
            let answer = match timeout(limit, answer.as_mut()).await {
                Ok(answer) => answer,
                Err(_late) if known.is_rested(&used, sent) => {
                    Err(ConnectorError::timeout(NoResponse.into()))
                }
                // The connection is new, or was in use a moment ago, so the client's usual time limits apply.
                Err(_late) => answer.await,
            };
            if answer.is_ok() {
                known.answered(&used, clock());
            } else {
                known.failed(&used, sent);
            }
            answer
        })
    }
}

impl KnownConnections {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a request sent at this time uses a connection that had rested. False while it
    /// connects.
    fn is_rested(&self, used: &CaptureSmithyConnection, sent: Timestamp) -> bool {
        let address = used.get().and_then(|used| used.local_addr());
        let known = self.lock();
        let connection = address.and_then(|address| known.get(&address));
        connection.is_some_and(|connection| connection.had_rested(sent))
    }

    fn answered(&self, used: &CaptureSmithyConnection, now: Timestamp) {
        let Some(metadata) = used.get() else { return };
        let Some(address) = metadata.local_addr() else {
            return;
        };
        let mut known = self.lock();
        if known.len() == MOST && !known.contains_key(&address) {
            let oldest = known
                .iter()
                .min_by_key(|(_, known)| known.answered)
                .map(|(address, _)| *address);
            oldest.and_then(|address| known.remove(&address));
        }
        let answered = now;
        known.insert(address, Connection { metadata, answered });
    }

    /// Forgets a connection that failed. If it had rested, the pool drops all rested connections.
    fn failed(&self, used: &CaptureSmithyConnection, sent: Timestamp) {
        let all = self.is_rested(used, sent);
        let mut known = self.lock();
        if all {
            // We keep them in the map, because they may have requests in flight.
            let rested = known.values().filter(|known| known.had_rested(sent));
            rested.for_each(|connection| connection.metadata.poison());
        }
        let address = used.get().and_then(|used| used.local_addr());
        address.and_then(|address| known.remove(&address));
    }
}

impl Connection {
    fn had_rested(&self, sent: Timestamp) -> bool {
        self.answered.until(sent) >= REST
    }
}
