//! Logs in to PostgreSQL in RDS or Aurora by IAM. Each password is a token that the function's role signs.
//!
//! The database user needs the role `rds_iam`, and the function's role needs `rds-db:connect` on that user. We sign a token
//! without a request. RDS accepts it for 15 minutes, and then rejects new connections until the mode asks for the next
//! token. `place_order_postgres.rs` and `relay_postgres.rs` use this module.

use std::{
    error::Error,
    time::{Duration, SystemTime},
};

use aws_config::SdkConfig;
use aws_credential_types::{Credentials, provider::ProvideCredentials as _};
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign},
    sign::v4,
};
use sqlx::postgres::PgConnectOptions;
use url::Url;

/// How long RDS accepts a token (*Amazon RDS User Guide*, "IAM database authentication").
const LIFETIME: Duration = Duration::from_secs(15 * 60);

/// Returns the options with a new token, for `PostgresMode::password`.
pub(crate) async fn with_token(
    config: SdkConfig,
    options: PgConnectOptions,
) -> Result<PgConnectOptions, Box<dyn Error + Send + Sync>> {
    let region = config.region().ok_or("the SDK has no region")?;
    let provider = config
        .credentials_provider()
        .ok_or("the SDK has no credentials")?;
    let credentials = provider.provide_credentials().await?;
    let token = token(&options, region.as_ref(), credentials, SystemTime::now())?;
    Ok(options.password(&token))
}

/// Returns a token: a signed URL of the database, without `https://`.
pub(crate) fn token(
    options: &PgConnectOptions,
    region: &str,
    credentials: Credentials,
    now: SystemTime,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(LIFETIME);
    let identity = credentials.into();
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("rds-db")
        .time(now)
        .settings(settings)
        .build()?;
    let (host, port) = (options.get_host(), options.get_port());
    let mut url = Url::parse(&format!("https://{host}:{port}/"))?;
    url.query_pairs_mut()
        .append_pair("Action", "connect")
        .append_pair("DBUser", options.get_username());
    let no_headers = std::iter::empty();
    let request = SignableRequest::new("GET", url.as_str(), no_headers, SignableBody::Bytes(&[]))?;
    let (signed, _signature) = sign(request, &parameters.into())?.into_parts();
    for (name, value) in signed.params() {
        url.query_pairs_mut().append_pair(name, value);
    }
    Ok(String::from(url).split_off("https://".len()))
}
