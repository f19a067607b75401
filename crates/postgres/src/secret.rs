//! Passwords in AWS Secrets Manager, which a rotation replaces while the consumer runs.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_secretsmanager::error::{ProvideErrorMetadata as _, SdkError};
use aws_sdk_secretsmanager::{Client, operation::get_secret_value::GetSecretValueError};
use serde_json::Value;
use sqlx::{Error, PgPool};
use sqs_once_core::unanswered::Unanswered;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until, timeout},
};

/// Longest read. It is shorter than the time for the connection at start, so that the log line there can say
/// why.
const READ_TIMEOUT: Duration = Duration::from_millis(1500);

/// Pause between two reads. It limits the requests of a process whose password the server rejects.
const PAUSE: Duration = Duration::from_secs(2);

/// A secret with the password for new connections.
pub(crate) struct Secret {
    client: Client,
    arn: String,
    /// How many passwords the secret has had so far. The pool has the last of them.
    number: AtomicU64,
    /// The message that reads the secret holds this lock.
    last: Mutex<LastRead>,
}

#[derive(Default)]
struct LastRead {
    login: Option<Login>,
    /// Start of the last read that was not cut off, and its error.
    started: Option<Instant>,
    error: Option<NoPassword>,
    /// Earliest time of the next read.
    next: Option<Instant>,
}

#[derive(PartialEq, Eq)]
struct Login {
    user: Option<String>,
    password: String,
}

/// Why the secret gave no password, without the secret's value.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no password from Secrets Manager: {why}")]
pub(crate) struct NoPassword {
    why: String,
    /// True if every read fails until a person changes the secret or the role.
    pub(crate) is_permanent: bool,
}

impl NoPassword {
    fn permanent(why: &str) -> Self {
        Self {
            why: why.to_owned(),
            is_permanent: true,
        }
    }

    pub(crate) fn out_of_time() -> Self {
        Self {
            why: "no answer in time".to_owned(),
            is_permanent: false,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("arn", &self.arn)
            .finish_non_exhaustive()
    }
}

impl Secret {
    pub(crate) fn new(client: Client, arn: String) -> Self {
        Self {
            client,
            arn,
            number: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }

    /// Returns the version of the password that `pool` has, from 1. The first call reads the secret.
    pub(crate) async fn number(&self, pool: &PgPool) -> Result<u64, Error> {
        match self.number.load(Relaxed) {
            0 => Ok(self.newer_than(0, pool).await?.unwrap_or_default()),
            number => Ok(number),
        }
    }

    /// Gives `pool` a password newer than version `used`, re-reading the secret if needed. Returns the new
    /// version, or `None` if the secret still has the old password.
    ///
    /// If the server rejected several messages at the same time, one of them reads and the others wait. A
    /// read that began before this call does not help, because the secret may have changed since.
    pub(crate) async fn newer_than(&self, used: u64, pool: &PgPool) -> Result<Option<u64>, Error> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if self.number.load(Relaxed) == used && last.started < Some(asked) {
            if used > 0 {
                tracing::info!("PostgreSQL rejected the password; reading the secret again");
            }
            // Boxed, because the SDK's future is large and few connections need it.
            Box::pin(self.read(&mut last, pool)).await;
        }
        let number = self.number.load(Relaxed);
        if number > used {
            return Ok(Some(number));
        }
        match &last.error {
            Some(error) => Err(Error::Configuration(error.clone().into())),
            None => Ok(None),
        }
    }

    async fn read(&self, last: &mut LastRead, pool: &PgPool) {
        if let Some(next) = last.next {
            sleep_until(next).await;
        }
        let started = Instant::now();
        last.next = Some(started + PAUSE);
        let read = timeout(READ_TIMEOUT, self.login())
            .await
            .unwrap_or_else(|_elapsed| Err(NoPassword::out_of_time()));
        last.started = Some(started);
        last.error = None;
        match read {
            Ok(login) if last.login.as_ref() == Some(&login) => {}
            Ok(login) => {
                let mut options = (*pool.connect_options()).clone();
                if let Some(user) = &login.user {
                    options = options.username(user);
                }
                pool.set_connect_options(options.password(&login.password));
                last.login = Some(login);
                self.number.fetch_add(1, Relaxed);
            }
            Err(error) => last.error = Some(error),
        }
    }

    /// Returns whether a message is reading the secret.
    pub(crate) fn is_being_read(&self) -> bool {
        self.last.try_lock().is_err()
    }

    async fn login(&self) -> Result<Login, NoPassword> {
        let answer = self
            .client
            .get_secret_value()
            .secret_id(&self.arn)
            .send()
            .await
            .map_err(|error| explain(&error))?;
        answer
            .secret_string
            .ok_or("the secret is binary; store it as text")
            .and_then(parse)
            .map_err(NoPassword::permanent)
    }
}

/// Parses the JSON that RDS stores, or a plain password.
fn parse(text: String) -> Result<Login, &'static str> {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(&text) else {
        return match text.as_str() {
            "" => Err("the secret is empty"),
            _ => Ok(Login {
                user: None,
                password: text,
            }),
        };
    };
    let mut field = |name| match fields.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        _ => None,
    };
    Ok(Login {
        user: field("username"),
        password: field("password").ok_or("the secret is JSON without the text `password`")?,
    })
}

fn unanswered(error: &SdkError<GetSecretValueError>) -> String {
    let unanswered = match error {
        SdkError::TimeoutError(_) => Unanswered::Timeout,
        SdkError::DispatchFailure(_) => Unanswered::NotSent,
        SdkError::ConstructionFailure(_) => Unanswered::NotBuilt,
        _ => Unanswered::Unreadable,
    };
    unanswered.explain(error, |error| error.is::<CredentialsError>())
}

/// Explains a failed read and says what to do. The text leaves out the response.
fn explain(error: &SdkError<GetSecretValueError>) -> NoPassword {
    let Some(service) = error.as_service_error() else {
        return NoPassword {
            why: unanswered(error),
            is_permanent: false,
        };
    };
    let code = service.code().unwrap_or("unknown error");
    let is_permanent = ["AccessDeniedException", "ResourceNotFoundException"].contains(&code);
    let advice = match code {
        "AccessDeniedException" => {
            "grant the role secretsmanager:GetSecretValue, and kms:Decrypt if a KMS key of your own \
             encrypts the secret"
        }
        "ResourceNotFoundException" => "there is no such secret; check the ARN",
        _ => service.message().unwrap_or("no message"),
    };
    NoPassword {
        why: format!("{code}: {advice}"),
        is_permanent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(Option<String>, String), &'static str> {
        parse(text.to_owned()).map(|login| (login.user, login.password))
    }

    #[test]
    fn secret_of_rds_names_user_and_password() {
        let of_rds = r#"{"username":"orders","password":"a{b\"c","engine":"postgres","port":5432}"#;
        let orders = Some("orders".to_owned());
        assert_eq!(parsed(of_rds), Ok((orders, "a{b\"c".to_owned())));
        let no_user = r#"{"password":"a"}"#;
        assert_eq!(parsed(no_user), Ok((None, "a".to_owned())));
    }

    #[test]
    fn other_text_is_the_password() {
        for text in ["a b", "{a", "17", "\"a\"", "[1]"] {
            assert_eq!(parsed(text), Ok((None, text.to_owned())));
        }
    }

    #[test]
    fn secret_without_password_is_an_error() {
        for text in ["", "{}", r#"{"password":""}"#, r#"{"password":17}"#] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
