//! [`Connections`]: a pool, and the source of the passwords of its new connections.

use std::sync::Arc;

use aws_sdk_dynamodb::config::{Region, SharedCredentialsProvider};
use aws_sdk_secretsmanager::Client;
use sqlx::{Error, PgPool, Postgres, pool::PoolConnection};

use super::{
    explain::is_login_refused,
    iam::Tokens,
    secret::{NoPassword, Secret},
};

/// A pool, and the source of the passwords of its new connections.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    pool: PgPool,
    passwords: Passwords,
}

/// The source of the passwords of new connections.
#[derive(Clone, Debug)]
pub(crate) enum Passwords {
    /// In the options of the pool.
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
    /// Connections with the password that the options of the pool have.
    pub(crate) const fn new(pool: PgPool) -> Self {
        Self {
            pool,
            passwords: Passwords::Fixed,
        }
    }

    pub(crate) fn passwords(self, passwords: Passwords) -> Self {
        Self { passwords, ..self }
    }

    /// The error of an operation that waited too long for a connection.
    pub(crate) fn out_of_time(&self) -> Error {
        match &self.passwords {
            Passwords::Secret(secret) if secret.is_being_read() => {
                Error::Configuration(NoPassword::out_of_time().into())
            }
            _ => Error::PoolTimedOut,
        }
    }

    /// Takes a connection from the pool. If the server refuses the password of a new connection, and
    /// the secret has another one by now, tries once more.
    pub(crate) async fn acquire(&self) -> Result<PoolConnection<Postgres>, Error> {
        let secret = match &self.passwords {
            Passwords::Fixed => return self.pool.acquire().await,
            Passwords::Iam(tokens) => {
                tokens.renew(&self.pool).await?;
                return self.pool.acquire().await;
            }
            Passwords::Secret(secret) => secret,
        };
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
