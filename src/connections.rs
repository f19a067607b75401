//! Connections to the payment gateway, which may have died while Lambda had frozen the process.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use reqwest::{Client, Request, Response, header::HeaderMap, redirect::Policy};
use sqs_once::{Failure, SettingsError};

/// An HTTP client that throws away its connection pool when a request gets no response.
///
/// Gateways, and networks on the way, close idle connections. The client can't notice that while Lambda has frozen the
/// process, and its pool's clock stands still. So after a freeze every connection in the pool may be dead, and each would
/// cost a message one of its receives.
pub(crate) struct Connections {
    headers: HeaderMap,
    timeout: Duration,
    pool: Mutex<Pool>,
}

struct Pool {
    client: Client,
    /// How many pools came before this one.
    number: u64,
}

impl Connections {
    /// Creates a client that sends these headers, and limits each request to this time.
    pub(crate) fn new(headers: HeaderMap, timeout: Duration) -> Result<Self, SettingsError> {
        // The same cryptography provider that the AWS SDK uses.
        let _already_set = rustls::crypto::ring::default_provider().install_default();
        let client = client(&headers, timeout);
        let client = client.map_err(|error| SettingsError::new(error.to_string()))?;
        let pool = Mutex::new(Pool { client, number: 0 });
        Ok(Self {
            headers,
            timeout,
            pool,
        })
    }

    /// Sends a request. If it `may_repeat` and its connection is lost, sends it once more over a new connection, within the
    /// time that is left.
    ///
    /// # Errors
    ///
    /// Returns a failure without an effect if it could not connect, because then nothing was sent. Otherwise returns a
    /// retryable failure.
    pub(crate) async fn send(
        &self,
        request: Request,
        may_repeat: bool,
    ) -> Result<Response, Failure> {
        let copy = request.try_clone().filter(|_| may_repeat);
        let (client, number) = self.current();
        let start = Instant::now();
        // We remove the URL, because errors are logged.
        let error = match client.execute(request).await {
            Ok(response) => return Ok(response),
            Err(error) => error.without_url(),
        };
        if error.is_connect() {
            return Err(Failure::no_effect(error));
        }
        self.renew(number);
        let left = self.timeout.saturating_sub(start.elapsed());
        match copy {
            Some(mut copy) if !error.is_timeout() => {
                tracing::info!(%error, "the connection to the payment gateway was lost: sending the request again");
                *copy.timeout_mut() = Some(left);
                // Even if we can't connect now, the first request may have had its effect.
                let again = self.current().0.execute(copy).await;
                again.map_err(|error| Failure::retryable(error.without_url()))
            }
            _ => Err(Failure::retryable(error)),
        }
    }

    fn current(&self) -> (Client, u64) {
        let pool = self.lock();
        (pool.client.clone(), pool.number)
    }

    /// Replaces a pool after one of its connections failed, unless another request has already done so.
    fn renew(&self, failed: u64) {
        let mut pool = self.lock();
        if pool.number == failed
            && let Ok(client) = client(&self.headers, self.timeout)
        {
            *pool = Pool {
                client,
                number: failed + 1,
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn client(headers: &HeaderMap, timeout: Duration) -> reqwest::Result<Client> {
    Client::builder()
        .user_agent(concat!("sqs-once/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers.clone())
        // We don't shorten this to the time left: if the deadline ends a charge, the record must say so.
        .timeout(timeout)
        // This limit is shorter, so that a slow attempt to connect fails before anything was sent.
        .connect_timeout(timeout / 2)
        // A redirected POST could charge somewhere else.
        .redirect(Policy::none())
        .build()
}
