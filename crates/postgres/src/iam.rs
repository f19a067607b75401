//! RDS passwords by IAM: tokens that are signed with the role's credentials.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use aws_sdk_secretsmanager::config::{
    Credentials, ProvideCredentials as _, Region, SharedCredentialsProvider,
};
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign},
    sign::v4,
};
use sqlx::{Error, PgPool, postgres::PgConnectOptions};
use tokio::sync::Mutex;

use sqs_once_core::protocol::Timestamp;

/// How long RDS accepts a token for a new connection (*Amazon RDS User Guide*, "IAM database
/// authentication").
const LIFETIME: Duration = Duration::from_secs(15 * 60);
const RENEWED_AFTER: Duration = Duration::from_secs(10 * 60);

/// Gives a pool the password of its next connections.
#[derive(Debug)]
pub(crate) struct Tokens {
    region: Region,
    credentials: SharedCredentialsProvider,
    /// When the last token was signed. RDS checks the time by the wall clock, so this does too.
    signed: Mutex<Option<Timestamp>>,
    clock: fn() -> Timestamp,
}

impl Tokens {
    pub(crate) fn new(region: Region, credentials: SharedCredentialsProvider) -> Self {
        Self {
            region,
            credentials,
            signed: Mutex::default(),
            clock: Timestamp::now,
        }
    }

    /// Signs a token unless the last one is fresh. Returns the time of the token. Sends no request, except to
    /// get credentials.
    pub(crate) async fn renew(&self, pool: &PgPool) -> Result<Timestamp, Error> {
        let now = (self.clock)();
        // If the clock was set back, we do not know the token's age.
        let is_fresh = |at: Timestamp| at <= now && at.until(now) < RENEWED_AFTER;
        self.sign_unless(is_fresh, now, pool).await
    }

    /// Signs a token unless there is one newer than `refused`, which the server has rejected.
    pub(crate) async fn newer_than(&self, refused: Timestamp, pool: &PgPool) -> Result<(), Error> {
        let is_newer = |at: Timestamp| at != refused;
        self.sign_unless(is_newer, (self.clock)(), pool).await?;
        Ok(())
    }

    async fn sign_unless(
        &self,
        is_good: impl Fn(Timestamp) -> bool,
        now: Timestamp,
        pool: &PgPool,
    ) -> Result<Timestamp, Error> {
        let mut signed = self.signed.lock().await;
        if let Some(at) = signed.filter(|at| is_good(*at)) {
            return Ok(at);
        }
        let credentials = (self.credentials.provide_credentials().await)
            .map_err(|error| Error::Io(std::io::Error::other(error)))?;
        let options = PgConnectOptions::clone(&pool.connect_options());
        let (host, port) = (options.get_host(), options.get_port());
        let token = token(
            host,
            port,
            options.get_username(),
            &self.region,
            credentials,
            now,
        )?;
        pool.set_connect_options(options.password(&token));
        *signed = Some(now);
        Ok(now)
    }
}

fn token(
    host: &str,
    port: u16,
    user: &str,
    region: &Region,
    credentials: Credentials,
    now: Timestamp,
) -> Result<String, Error> {
    let address = format!("{host}:{port}/?Action=connect&DBUser={}", encoded(user));
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(LIFETIME);
    let identity = credentials.into();
    let invalid = |why: &str| Error::Configuration(format!("no token for RDS: {why}").into());
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region.as_ref())
        .name("rds-db")
        .time(SystemTime::UNIX_EPOCH + Duration::from_millis(now.as_millis()))
        .settings(settings)
        .build()
        .map_err(|error| invalid(&error.to_string()))?;
    let url = format!("https://{address}");
    let request = SignableRequest::new("GET", &url, std::iter::empty(), SignableBody::Bytes(&[]))
        .map_err(|error| invalid(&error.to_string()))?;
    let signed = sign(request, &parameters.into()).map_err(|error| invalid(&error.to_string()))?;
    let (instructions, _signature) = signed.into_parts();
    let mut token = address;
    for (name, value) in instructions.params() {
        let _infallible = write!(token, "&{name}={}", encoded(value));
    }
    Ok(token)
}

/// Percent-encodes a value of a query (RFC 3986).
fn encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicU64, Ordering::Relaxed},
    };

    use super::*;

    #[test]
    fn token_is_that_of_botocore() {
        // The result of botocore's `generate_db_auth_token` for the same credentials and time.
        let expected = "db.example:5432/?Action=connect&DBUser=orders%2B1\
            &X-Amz-Algorithm=AWS4-HMAC-SHA256\
            &X-Amz-Credential=AKIDEXAMPLE%2F20261122%2Feu-central-1%2Frds-db%2Faws4_request\
            &X-Amz-Date=20261122T111842Z&X-Amz-SignedHeaders=host&X-Amz-Expires=900\
            &X-Amz-Security-Token=token%2F%2Fwith%2Bsigns%3D%3D\
            &X-Amz-Signature=4ec6c299c5e9790beaa8064e5b59cfdc26f66f2a16b56351c348b8ac63094c48";
        let session = Some("token//with+signs==".to_owned());
        let credentials = Credentials::new("AKIDEXAMPLE", "secret/key+1", session, None, "tests");
        let now = Timestamp::from_millis(1_795_346_322_000);
        let region = Region::from_static("eu-central-1");
        let token = token("db.example", 5432, "orders+1", &region, credentials, now).unwrap();
        let parts = |token: &str| -> BTreeSet<String> {
            token.split(['?', '&']).map(str::to_owned).collect()
        };
        assert_eq!(parts(&token), parts(expected));
    }

    /// The monotonic clock may stand still while Lambda has frozen the process.
    #[tokio::test(start_paused = true)]
    async fn token_is_renewed_by_wall_clock() {
        static NOW: AtomicU64 = AtomicU64::new(1_795_346_322_000);
        let options = "postgres://orders@db.example/orders".parse().unwrap();
        let pool = crate::pool(options, 1);
        let credentials = Credentials::new("AKIDEXAMPLE", "secret", None, None, "tests");
        let credentials = SharedCredentialsProvider::new(credentials);
        let mut tokens = Tokens::new(Region::from_static("eu-central-1"), credentials);
        tokens.clock = || Timestamp::from_millis(NOW.load(Relaxed));
        for (seconds, renewed) in [(0, true), (9 * 60, false), (2 * 60, true)] {
            NOW.fetch_add(seconds * 1000, Relaxed);
            let before = pool.connect_options();
            tokens.renew(&pool).await.unwrap();
            let same = std::sync::Arc::ptr_eq(&before, &pool.connect_options());
            assert_eq!(same, !renewed, "after {seconds} s more");
        }
        NOW.fetch_sub(3600 * 1000, Relaxed);
        let before = pool.connect_options();
        tokens.renew(&pool).await.unwrap();
        assert!(!std::sync::Arc::ptr_eq(&before, &pool.connect_options()));
    }
}
