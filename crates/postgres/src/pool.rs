//! A pool for a Lambda function.

use std::{future::ready, net::IpAddr, time::Duration};

use sqlx::{
    ConnectOptions as _, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};

use super::connections::note_idle_time;

/// Longest wait of the pool for a connection. The library then looks at its deadline, and waits again:
/// an address that gives no answer is resolved anew, and may be another one after a failover.
pub(super) const ACQUIRE_TIME: Duration = Duration::from_secs(10);

/// A pool for a Lambda function: connects at the first use, keeps at most `connections`, and logs no
/// statements. Each handler that runs at a time needs a connection: choose the concurrency of the
/// batch (`CONSUMER_CONCURRENCY`). The library tests a connection before it uses it; the pool itself does
/// not.
///
/// Connections to other hosts use TLS and verify certificate and host name, unless the options name
/// another mode than `prefer`, the default of PostgreSQL.
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
        // sqlx tests and closes old connections without a time limit: behind TLS the close of a silent
        // one waits for its server. `TransactionConnection` tests connections, and drops them.
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .before_acquire(|_connection, metadata| {
            note_idle_time(metadata.idle_for);
            Box::pin(ready(Ok(true)))
        })
        .connect_lazy_with(secured(options).disable_statement_logging())
}

/// PostgreSQL's default, `prefer`, accepts any certificate, and a connection without TLS.
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
