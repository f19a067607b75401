//! [`Connections`]: a pool, and where the passwords of its new connections come from.

use std::{
    cell::Cell,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aws_sdk_secretsmanager::Client;
use aws_sdk_secretsmanager::config::{Region, SharedCredentialsProvider};
use sqlx::{
    ConnectOptions as _, Error, PgPool, Postgres, pool::PoolConnection, postgres::PgConnectOptions,
};
use tokio::time::Instant;

use super::{
    explain::is_login_refused,
    iam::Tokens,
    secret::{NoPassword, Secret},
};
use sqs_once_core::protocol::Timestamp;

/// A connection that was idle for this long is tested before use. A busy function needs no tests.
const TEST_AFTER: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// How long the connection was idle that the pool hands out. `None` if it is new.
    static IDLE_FOR: Cell<Option<Duration>>;
}

/// Notes how long a connection was idle, for [`Connections::acquire`]. The hook of the pool calls this.
pub(super) fn note_idle_time(idle_for: Duration) {
    // The pool may also be used without this module.
    let _unobserved = IDLE_FOR.try_with(|cell| cell.set(Some(idle_for)));
}

/// A session setting that we pass at login. If a session does not have it, a pooler opened that session.
///
/// sqlx gives its prepared statements the names `sqlx_s_1`, `sqlx_s_2` and so on, on each connection. A
/// pooler in transaction mode moves a connection to another session for each transaction. There, the same
/// name may belong to a different client's statement, which would then run with our parameters. So a
/// connection that keeps statements must not share its session.
pub(super) const DIRECT: &str = "sqs_once.direct";

/// A pool, and where the passwords of its new connections come from.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    pool: PgPool,
    is_pooled: bool,
    passwords: Passwords,
    seen: Arc<Mutex<Seen>>,
}

/// The recent history of connections, which decides whether idle ones can be trusted.
#[derive(Debug)]
struct Seen {
    /// When a connection was last found dead. Connections that were idle then are closed without a test.
    lost_at: Option<Instant>,
    /// When a freeze of the process was noticed. Connections that were idle then are tested.
    thawed_at: Option<Instant>,
    /// Time of the last use, by both clocks. The monotonic clock may stand still in a freeze.
    used_at: (Instant, Timestamp),
}

/// How far a connection can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Opened for this request.
    New,
    /// The server responded on it within the last second.
    Recent,
    /// Idle for longer, so the network may have dropped it.
    Untested,
    /// Idle since before a different connection was found dead.
    Lost,
}

/// Where the passwords of new connections come from.
#[derive(Clone, Debug)]
pub(crate) enum Passwords {
    /// From the options of the pool.
    Fixed,
    Iam(Arc<Tokens>),
    Secret(Arc<Secret>),
}

impl Passwords {
    pub(crate) fn iam(region: Region, credentials: SharedCredentialsProvider) -> Self {
        Self::Iam(Arc::new(Tokens::new(region, credentials)))
    }

    pub(crate) fn secret(client: Client, arn: String) -> Self {
        Self::Secret(Arc::new(Secret::new(client, arn)))
    }
}

impl Connections {
    /// Creates connections with the password in the pool's options.
    pub(crate) fn new(pool: PgPool) -> Self {
        let seen = Seen {
            lost_at: None,
            thawed_at: None,
            used_at: (Instant::now(), Timestamp::now()),
        };
        let options = pool.connect_options();
        let is_pooled = !keeps_statements(&options);
        if is_pooled {
            // PgBouncer rejects this startup parameter of sqlx. PostgreSQL 12 and later do not need it.
            pool.set_connect_options(PgConnectOptions::clone(&options).extra_float_digits(None));
        }
        let connections = Self {
            pool,
            is_pooled,
            passwords: Passwords::Fixed,
            seen: Arc::new(Mutex::new(seen)),
        };
        connections.mark_sessions();
        connections
    }

    pub(crate) fn passwords(self, passwords: Passwords) -> Self {
        Self { passwords, ..self }
    }

    /// Returns whether the server's session may change between two transactions, as behind PgBouncer. The URL
    /// then has `statement-cache-capacity=0`.
    pub(super) const fn is_pooled(&self) -> bool {
        self.is_pooled
    }

    /// Returns the error of an operation that waited too long for a connection.
    pub(crate) fn out_of_time(&self) -> Error {
        match &self.passwords {
            Passwords::Secret(secret) if secret.is_being_read() => {
                Error::Configuration(NoPassword::out_of_time().into())
            }
            _ => Error::PoolTimedOut,
        }
    }

    /// Notes that a connection was found dead. After a failover or a freeze, the others that are idle now are
    /// dead too.
    pub(super) fn note_lost(&self) {
        self.seen(|seen| seen.lost_at = Some(Instant::now()));
    }

    fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        let seen = self.seen.lock();
        look(&mut seen.unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a connection from the pool, untested.
    pub(super) async fn acquire(&self) -> Result<(PoolConnection<Postgres>, Trust), Error> {
        let acquired = IDLE_FOR.scope(Cell::new(None), async {
            let connection = self.acquire_from_pool().await?;
            Ok::<_, Error>((connection, IDLE_FOR.with(Cell::get)))
        });
        let (connection, idle_for) = acquired.await?;
        let trust = self.seen(|seen| seen.trust(idle_for, Instant::now(), Timestamp::now()));
        Ok((connection, trust))
    }

    /// Makes the next logins pass [`DIRECT`] to their sessions, even if the pool's options were replaced.
    fn mark_sessions(&self) {
        let options = self.pool.connect_options();
        let is_marked = |options: &str| options.contains(DIRECT);
        if !self.is_pooled && !options.get_options().is_some_and(is_marked) {
            let marked = PgConnectOptions::clone(&options).options([(DIRECT, "on")]);
            self.pool.set_connect_options(marked);
        }
    }

    /// Takes a connection from the pool. If the server rejects the login of a new connection, tries once
    /// more, with a new token or with the password that the secret has by then.
    async fn acquire_from_pool(&self) -> Result<PoolConnection<Postgres>, Error> {
        self.mark_sessions();
        match &self.passwords {
            Passwords::Fixed => self.pool.acquire().await,
            Passwords::Iam(tokens) => {
                let used = tokens.renew(&self.pool).await?;
                match self.pool.acquire().await {
                    Err(refused) if is_login_refused(&refused) => {
                        tokens.newer_than(used, &self.pool).await?;
                        self.pool.acquire().await
                    }
                    answer => answer,
                }
            }
            Passwords::Secret(secret) => {
                let used = secret.number(&self.pool).await?;
                match self.pool.acquire().await {
                    Err(refused) if is_login_refused(&refused) => {
                        match secret.newer_than(used, &self.pool).await? {
                            Some(_) => self.pool.acquire().await,
                            None => Err(refused),
                        }
                    }
                    answer => answer,
                }
            }
        }
    }
}

/// Returns whether sqlx keeps prepared statements on these connections.
fn keeps_statements(options: &PgConnectOptions) -> bool {
    // sqlx shows the capacity only in its URL, and panics if a host does not fit into a URL.
    let url = options
        .clone()
        .host("localhost")
        .username("user")
        .to_url_lossy();
    let mut parameters = url.query_pairs();
    !parameters.any(|(name, value)| name == "statement-cache-capacity" && value == "0")
}

impl Seen {
    fn trust(&mut self, idle_for: Option<Duration>, now: Instant, wall: Timestamp) -> Trust {
        let (used_at, wall_used_at) = self.used_at;
        if wall_used_at.until(wall) > now.saturating_duration_since(used_at) + TEST_AFTER {
            self.thawed_at = Some(now);
        }
        self.used_at = (now, wall);
        let Some(idle_for) = idle_for else {
            return Trust::New;
        };
        let idle_at =
            |at: Option<Instant>| at.is_some_and(|at| idle_for > now.saturating_duration_since(at));
        if idle_at(self.lost_at) {
            Trust::Lost
        } else if idle_for >= TEST_AFTER || idle_at(self.thawed_at) {
            Trust::Untested
        } else {
            Trust::Recent
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_of_statements_is_read_from_any_options() {
        let of = |url: &str| keeps_statements(&url.parse().unwrap());
        assert!(of("postgres://orders@db.example/orders"));
        assert!(!of(
            "postgres://orders@db.example/orders?statement-cache-capacity=0"
        ));
        let strange = PgConnectOptions::new_without_pgpass()
            .host("::1")
            .username("a b/c@d:e")
            .password("#")
            .database("f g?h");
        assert!(keeps_statements(&strange));
        assert!(!keeps_statements(&strange.statement_cache_capacity(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn frozen_process_tests_its_connections() {
        let options = "postgres://orders@db.example/orders".parse().unwrap();
        let connections = Connections::new(crate::pool(options, 1));
        let (start, wall) = (Instant::now(), Timestamp::now());
        let second = Duration::from_secs(1);
        connections.seen(|seen| {
            seen.used_at = (start, wall);
            // Half a second passes, by both clocks.
            let now = start + second / 2;
            assert_eq!(seen.trust(None, now, wall + second / 2), Trust::New);
            assert_eq!(
                seen.trust(Some(second / 4), now, wall + second / 2),
                Trust::Recent
            );
            // The wall clock moves on by an hour, and the monotonic clock stands still.
            let thawed = wall + 3600 * second;
            for _connection in 0..2 {
                assert_eq!(seen.trust(Some(second / 4), now, thawed), Trust::Untested);
            }
            // The server has responded since.
            let later = now + second;
            assert_eq!(
                seen.trust(Some(second / 4), later, thawed + second),
                Trust::Recent
            );
            assert_eq!(
                seen.trust(Some(second), later, thawed + second),
                Trust::Untested
            );
            seen.lost_at = Some(later);
            assert_eq!(
                seen.trust(Some(second / 4), later, thawed + second),
                Trust::Lost
            );
        });
    }
}
