//! [`Tries`]: the connections that one request tries until one works.

use std::time::Duration;

use sqlx::Error;
use sqs_once::internal::system::{self, Instant, sleep, timeout_at};

use super::{Limits, TransactionConnection};
use crate::{connections::Connections, explain::is_connection_lost};

/// How long the first `BEGIN` waits for a response. Its connection may be an old one, and Lambda may have
/// frozen the process for longer than the network keeps a silent connection. The later connections are new.
const MAX_BEGIN_TIME: Duration = Duration::from_secs(2);

/// How many connections a request may try.
const MAX_TRIES: u32 = 3;

/// Longest pause before the next connection. The pause after that is up to twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The connections that a request tries, at most [`MAX_TRIES`].
pub(crate) struct Tries<'a> {
    connections: &'a Connections,
    until: Instant,
    failed: u32,
}

impl<'a> Tries<'a> {
    pub(crate) const fn new(connections: &'a Connections, until: Instant) -> Self {
        Self {
            connections,
            until,
            failed: 0,
        }
    }

    /// Opens a transaction on the first connection that responds.
    pub(crate) async fn begin(&mut self, limits: Limits) -> Result<TransactionConnection, Error> {
        loop {
            let mut tx = TransactionConnection::acquire(self.connections, self.until).await?;
            let half = self.until.saturating_duration_since(system::instant()) / 2;
            let end = match self.failed {
                0 => system::instant() + half.min(MAX_BEGIN_TIME),
                _ => self.until,
            };
            let error = match timeout_at(end, tx.open(limits)).await {
                Ok(Ok(())) => return Ok(tx),
                Ok(Err(error)) => error,
                Err(_elapsed) => Error::Io(std::io::ErrorKind::TimedOut.into()),
            };
            self.failed(tx, error).await?;
        }
    }

    /// Closes a lost connection, and returns when the request may try the next one.
    ///
    /// # Errors
    ///
    /// Returns the same error if the connection is not lost or no other one may be tried.
    pub(crate) async fn failed(
        &mut self,
        mut tx: TransactionConnection,
        error: Error,
    ) -> Result<(), Error> {
        if !is_connection_lost(&error) {
            return Err(error);
        }
        tx.close();
        drop(tx);
        let pause = FIRST_PAUSE.mul_f64(system::random_fraction()) * 2_u32.pow(self.failed);
        self.failed += 1;
        if self.failed == MAX_TRIES || system::instant() + pause >= self.until {
            return Err(error);
        }
        sleep(pause).await;
        tracing::debug!("a connection to PostgreSQL was lost; trying the next");
        Ok(())
    }
}
