//! [`Connections`]: the user's pool, and how new connections log in.

use std::{error::Error as StdError, fmt, io, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Error, Executor as _, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use sqs_once::internal::system::timeout;
use tokio::sync::{Mutex, OnceCell};

use super::explain::is_login_refused;

type PasswordError = Box<dyn StdError + Send + Sync>;

/// Returns the options with the password for the next connections.
type Password = dyn Fn(PgConnectOptions) -> BoxFuture<'static, Result<PgConnectOptions, PasswordError>>
    + Send
    + Sync;

/// How long testing an idle connection may take.
const MAX_TEST: Duration = Duration::from_secs(2);

/// A setting that PostgreSQL accepts at login and then knows in the session, but that no pooler passes on.
pub(super) const DIRECT: &str = "sqs_once.direct";

/// The user's pool, and how new connections log in.
#[derive(Clone)]
pub(crate) struct Connections {
    pool: PgPool,
    password: Option<Arc<Password>>,
    /// Whoever asks for the next password holds this lock.
    asking: Arc<Mutex<()>>,
    is_direct: Arc<OnceCell<()>>,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options may contain a password.
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self {
            pool,
            password: None,
            asking: Arc::default(),
            is_direct: Arc::default(),
        }
    }

    /// Sets the function to ask for a password when the server rejects a login.
    pub(crate) fn password<F, E>(
        self,
        password: impl Fn(PgConnectOptions) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<PgConnectOptions, E>> + Send + 'static,
        E: Into<PasswordError>,
    {
        let password = move |options| -> BoxFuture<'static, _> {
            let next = password(options);
            Box::pin(async move { next.await.map_err(Into::into) })
        };
        Self {
            password: Some(Arc::new(password)),
            ..self
        }
    }

    /// Closes the connections that are idle now. If one was found dead, after a failover or a freeze, the others are also dead.
    pub(super) fn close_idle(&self) {
        while let Some(idle) = self.pool.try_acquire() {
            drop(idle.detach());
        }
    }

    pub(super) async fn acquire(&self) -> Result<PoolConnection<Postgres>, Error> {
        let proven = || self.log_in(|| prove_direct(self.pool.connect_options()));
        self.is_direct.get_or_try_init(proven).await?;
        self.log_in(|| self.idle_or_new()).await
    }

    /// Takes an idle connection, or opens one. Unless the user has switched it off, sqlx tests an idle connection, but
    /// without a time limit. We set one, because a connection that died in a freeze may be silent.
    async fn idle_or_new(&self) -> Result<PoolConnection<Postgres>, Error> {
        if self.pool.num_idle() > 0 {
            if let Ok(tested) = timeout(MAX_TEST, self.pool.acquire()).await {
                return tested;
            }
            self.close_idle();
        }
        self.pool.acquire().await
    }

    /// Connects. If the server rejects the login, asks for the next password and tries once more.
    async fn log_in<T, F>(&self, connect: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let used = self.pool.connect_options();
        match (connect().await, &self.password) {
            (Err(refused), Some(password)) if is_login_refused(&refused) => {
                self.replace_password(&used, &**password).await?;
                connect().await
            }
            (answer, _) => answer,
        }
    }

    /// Gives the pool the next password, unless another message has already replaced the options `used`.
    async fn replace_password(
        &self,
        used: &Arc<PgConnectOptions>,
        password: &Password,
    ) -> Result<(), Error> {
        let _asking = self.asking.lock().await;
        let current = self.pool.connect_options();
        if Arc::ptr_eq(used, &current) {
            tracing::info!("PostgreSQL rejected the login; asking for the next password");
            // We report this as an I/O error, because nothing was sent, so the request can be retried.
            let failed = |error| Error::Io(io::Error::other(format!("no password: {error}")));
            let asked = password(PgConnectOptions::clone(&current)).await;
            let next = asked.map_err(failed)?;
            self.pool.set_connect_options(next);
        }
        Ok(())
    }
}

/// Opens a separate connection with these options, and fails if they lead to a pooler.
///
/// sqlx names its prepared statements `sqlx_s_1`, `sqlx_s_2` and so on, on each connection. A pooler in
/// transaction mode moves a connection to another session for each transaction. There, the same name may belong
/// to another client's statement, which would then run with our parameters. Even with sqlx's statement cache
/// off, it prepares a statement in one request and executes it in the next. So a connection must not share its
/// session.
async fn prove_direct(options: Arc<PgConnectOptions>) -> Result<(), Error> {
    let marked = PgConnectOptions::clone(&options).options([(DIRECT, "on")]);
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect_lazy_with(marked.disable_statement_logging());
    let shown = pool.execute(AssertSqlSafe(format!("SHOW {DIRECT}"))).await;
    pool.close().await;
    shown.map(|_| ())
}
