//! Logs in to PostgreSQL with a rotated secret in AWS Secrets Manager, such as the one that RDS creates.
//!
//! A rotation changes the password in the database before it changes the secret. In between, messages return to the
//! queue. The function's role needs `secretsmanager:GetSecretValue` on the secret, and `kms:Decrypt` if your own KMS
//! key encrypts it. The function's subnets need a route to Secrets Manager.
//!
//! ```ignore
//! let (client, arn) = (aws_sdk_secretsmanager::Client::new(&config), settings.value("DATABASE_SECRET_ARN"));
//! let mode = PostgresMode::new(pool)
//!     .password(move |options| rds_secret::with_secret(client.clone(), arn.clone(), options));
//! ```

use std::error::Error;

use aws_sdk_secretsmanager::Client;
use serde::Deserialize;
use sqlx::postgres::PgConnectOptions;

/// The fields of an RDS secret that we use.
#[derive(Deserialize)]
struct Login {
    username: String,
    password: String,
}

/// Returns the options with the secret's current user and password, for `PostgresMode::password`.
pub(crate) async fn with_secret(
    client: Client,
    arn: String,
    options: PgConnectOptions,
) -> Result<PgConnectOptions, Box<dyn Error + Send + Sync>> {
    let answer = client.get_secret_value().secret_id(arn).send().await;
    let secret = answer.map_err(|error| error.into_service_error())?;
    let text = secret.secret_string().ok_or("the secret is binary")?;
    // The parser's error could quote the secret.
    let login: Login =
        serde_json::from_str(text).map_err(|_| "the secret has no `username` and `password`")?;
    Ok(options.username(&login.username).password(&login.password))
}
