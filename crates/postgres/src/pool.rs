//! A pool for a Lambda function.

use std::{future::ready, net::IpAddr, time::Duration};

use sqlx::{
    ConnectOptions as _, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};

use super::connections::note_idle_time;

/// Longest wait of the pool for a connection. The library then checks its deadline and waits again. This way,
/// an address that does not respond is resolved again, and may be a different one after a failover.
pub(super) const ACQUIRE_TIME: Duration = Duration::from_secs(10);

/// Creates a pool for a Lambda function. It connects at the first use, keeps at most `connections`, and logs
/// no statements. Each running handler needs a connection, so choose the concurrency of the batch
/// (`CONSUMER_CONCURRENCY`). The library tests a connection before it uses it; the pool itself does not.
///
/// Connections to other hosts use TLS and verify certificate and host name, unless the options set a mode
/// other than `prefer`, PostgreSQL's default.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), sqlx::Error> {
/// let pool = sqs_once_postgres::pool("postgres://orders@db.example/orders".parse()?, 10);
/// assert_eq!(pool.size(), 0);
/// # Ok(()) }
/// ```
#[must_use]
pub fn pool(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections.max(1))
        .acquire_timeout(ACQUIRE_TIME)
        // sqlx tests and closes old connections without a time limit, and behind TLS closing a silent one
        // waits for its server. `TransactionConnection` tests connections and drops them instead.
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .before_acquire(|_connection, metadata| {
            note_idle_time(metadata.idle_for);
            Box::pin(ready(Ok(true)))
        })
        .connect_lazy_with(secured(options).disable_statement_logging())
}

/// Replaces PostgreSQL's default, `prefer`, which accepts any certificate, and also a connection without TLS.
fn secured(options: PgConnectOptions) -> PgConnectOptions {
    let is_default = matches!(options.get_ssl_mode(), PgSslMode::Prefer);
    if is_default && !is_this_machine(&options) {
        options.ssl_mode(PgSslMode::VerifyFull)
    } else {
        options
    }
}

fn is_this_machine(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    options.get_socket().is_some()
        || host == "localhost"
        || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_host_needs_verified_tls() {
        let mode = |url: &str| format!("{:?}", secured(url.parse().unwrap()).get_ssl_mode());
        for (url, expected) in [
            ("postgres://db.example/orders", "VerifyFull"),
            ("postgres://10.0.0.1/orders?sslmode=prefer", "VerifyFull"),
            ("postgres://db.example/orders?sslmode=require", "Require"),
            ("postgres://db.example/orders?sslmode=disable", "Disable"),
            ("postgres://127.0.0.1/orders", "Prefer"),
            ("postgres://[::1]/orders", "Prefer"),
            ("postgres://localhost/orders", "Prefer"),
        ] {
            assert_eq!(mode(url), expected, "{url}");
        }
    }
}
