//! [`Tries`]: the connections that one request tries until one works.

use std::time::Duration;

use sqlx::Error;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Limits, TransactionConnection};
use crate::{
    connections::{Connections, Trust},
    explain::is_connection_lost,
};
use sqs_once_core::system;

/// How long `BEGIN` waits for a response on a connection that was idle. Lambda may have frozen the process
/// for longer than the network keeps a silent connection. A new connection may wait longer, because behind a
/// pooler `BEGIN` waits for a server.
const MAX_BEGIN_TIME: Duration = Duration::from_secs(2);

/// How many new connections one request tries.
const MAX_NEW: u32 = 3;

/// Longest first pause before the next new connection.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The connections that one request tries: those of the pool, and at most [`MAX_NEW`] new ones.
pub(crate) struct Tries<'a> {
    connections: &'a Connections,
    until: Instant,
    new: u32,
}

impl<'a> Tries<'a> {
    pub(crate) const fn new(connections: &'a Connections, until: Instant) -> Self {
        Self {
            connections,
            until,
            new: 0,
        }
    }

    /// Opens a transaction on the first connection that responds.
    pub(crate) async fn begin(&mut self, limits: Limits) -> Result<TransactionConnection, Error> {
        loop {
            let mut tx = TransactionConnection::untested(self.connections, self.until).await?;
            let half = self.until.saturating_duration_since(Instant::now()) / 2;
            let end = match tx.trust {
                Trust::New => self.until,
                Trust::Recent => Instant::now() + half,
                // Behind a pooler, `BEGIN` waits for a server session.
                Trust::Untested if self.connections.is_pooled() => Instant::now() + half,
                Trust::Untested | Trust::Lost => Instant::now() + half.min(MAX_BEGIN_TIME),
            };
            let error = match timeout_at(end, tx.open(limits)).await {
                Ok(Ok(())) => return Ok(tx),
                Ok(Err(error)) => error,
                Err(_elapsed) => Error::Io(std::io::ErrorKind::TimedOut.into()),
            };
            self.failed(tx, error).await?;
        }
    }

    /// Closes a lost connection, and returns as soon as the request may try the next one.
    ///
    /// # Errors
    ///
    /// The error, if the connection is not lost or no other one may be tried.
    pub(crate) async fn failed(
        &mut self,
        mut tx: TransactionConnection,
        error: Error,
    ) -> Result<(), Error> {
        if !is_connection_lost(&error) {
            return Err(error);
        }
        tx.close();
        if tx.trust == Trust::New {
            self.new += 1;
            let pause = FIRST_PAUSE.mul_f64(system::random_fraction()) * 2_u32.pow(self.new);
            if self.new == MAX_NEW || Instant::now() + pause >= self.until {
                return Err(error);
            }
            drop(tx);
            sleep(pause).await;
        } else if Instant::now() >= self.until {
            return Err(error);
        }
        tracing::debug!("a connection to PostgreSQL was lost; trying the next");
        Ok(())
    }
}
