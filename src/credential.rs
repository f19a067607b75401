//! The credential of the payment gateway: a request header whose value is a secret of AWS Secrets
//! Manager or a parameter of Systems Manager Parameter Store.
//!
//! The value is stored as the header needs it, such as `Bearer ...`. It is in no log and no error.

use std::{error::Error, iter, sync::Arc, time::Duration};

use aws_config::{Region, SdkConfig};
use aws_sdk_ssm::error::{ProvideErrorMetadata, SdkError};
use reqwest::{
    RequestBuilder,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING},
};
use sqs_once::{Settings, SettingsError, aws};
use tokio::{
    sync::{Mutex, watch},
    time::timeout,
};

const ARN: &str = "PAYMENT_GATEWAY_CREDENTIAL_ARN";
const HEADER: &str = "PAYMENT_GATEWAY_CREDENTIAL_HEADER";

/// Longest read. The read at start is in Lambda's init phase, which ends after 10 seconds.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(3);

const NO_ANSWER: &str = "no answer in time";

/// A header, and the place of its value.
pub(super) struct Credential {
    source: Source,
    current: watch::Sender<Reading>,
    /// Held by the message that reads the value again.
    turn: Mutex<()>,
}

/// The header as it was read last.
#[derive(Clone)]
pub(super) struct Reading {
    name: HeaderName,
    value: HeaderValue,
    /// Number of reads before this one.
    number: u64,
    /// Error of this read, which left the value as it was.
    error: Option<String>,
}

enum Source {
    Secret {
        client: aws_sdk_secretsmanager::Client,
        arn: String,
    },
    Parameter {
        client: aws_sdk_ssm::Client,
        arn: String,
    },
}

impl Credential {
    /// Reads the settings and then the value. `None` without a credential.
    pub(super) async fn read(settings: &mut Settings) -> Result<Option<Arc<Self>>, SettingsError> {
        let name = settings.optional(HEADER, "authorization", header_name);
        let arn = settings.optional(ARN, "", |text| match text {
            "" => Ok(None),
            text => Arn::parse(text).map(Some),
        });
        let (name, Some(arn)) = (name?, arn?) else {
            return Ok(None);
        };
        let credential = Self::start(name, arn, &aws::config().await).await;
        settings.optional(ARN, "", |_| credential.map(Arc::new).map(Some))
    }

    async fn start(name: HeaderName, arn: Arn, config: &SdkConfig) -> Result<Self, String> {
        let source = Source::new(arn, config);
        let reading = Reading {
            name,
            value: source.read().await?,
            number: 0,
            error: None,
        };
        Ok(Self {
            source,
            current: watch::Sender::new(reading),
            turn: Mutex::new(()),
        })
    }

    pub(super) fn current(&self) -> Reading {
        self.current.borrow().clone()
    }

    /// Another value than the one that the gateway refused with a 401. Of the messages that were
    /// refused with the same value, the first reads again, and the others wait for that read.
    ///
    /// # Errors
    ///
    /// If the read fails, or if the value is the same, which the gateway would refuse again.
    pub(super) async fn replace(&self, refused: &Reading) -> Result<Reading, String> {
        let _turn = self.turn.lock().await;
        if self.current().number == refused.number {
            self.read_again().await;
        }
        let now = self.current();
        if now.value != refused.value {
            return Ok(now);
        }
        Err(match now.error {
            Some(error) => format!("{ARN} could not be read again: {error}"),
            None => format!(
                "{ARN} still has the value that the gateway refused; check the credential that \
                 the gateway expects"
            ),
        })
    }

    async fn read_again(&self) {
        tracing::info!("reading {ARN} again after a 401");
        let read = self.source.read().await;
        self.current.send_modify(|reading| {
            reading.number += 1;
            reading.error = None;
            match read {
                Ok(value) => reading.value = value,
                Err(error) => reading.error = Some(error),
            }
        });
    }
}

impl Reading {
    pub(super) fn authenticate(&self, request: RequestBuilder) -> RequestBuilder {
        request.header(&self.name, &self.value)
    }
}

impl Source {
    fn new(arn: Arn, config: &SdkConfig) -> Self {
        let region = Region::new(arn.region);
        let config = config.to_builder().region(region).build();
        match arn.service {
            Service::SecretsManager => Self::Secret {
                client: aws_sdk_secretsmanager::Client::new(&config),
                arn: arn.text,
            },
            Service::ParameterStore => Self::Parameter {
                client: aws_sdk_ssm::Client::new(&config),
                arn: arn.text,
            },
        }
    }

    async fn read(&self) -> Result<HeaderValue, String> {
        let text = timeout(READ_TIMEOUT, self.text()).await;
        header_value(&text.map_err(|_| NO_ANSWER)??)
    }

    async fn text(&self) -> Result<String, String> {
        match self {
            Self::Secret { client, arn } => {
                let request = client.get_secret_value().secret_id(arn);
                let answer = request.send().await;
                let answer = answer.map_err(|e| explain(&e, "secretsmanager:GetSecretValue"))?;
                let text = answer.secret_string;
                text.ok_or_else(|| "the secret is binary; store it as text".to_owned())
            }
            Self::Parameter { client, arn } => {
                let request = client.get_parameter().name(arn).with_decryption(true);
                let answer = request.send().await;
                let answer = answer.map_err(|e| explain(&e, "ssm:GetParameter"))?;
                let text = answer.parameter.and_then(|parameter| parameter.value);
                text.ok_or_else(|| "the answer has no value".to_owned())
            }
        }
    }
}

/// `arn:PARTITION:secretsmanager:REGION:ACCOUNT:secret:NAME` or
/// `arn:PARTITION:ssm:REGION:ACCOUNT:parameter/NAME`.
struct Arn {
    text: String,
    service: Service,
    region: String,
}

enum Service {
    SecretsManager,
    ParameterStore,
}

impl Arn {
    /// The error does not quote `text`, which may be the credential itself.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let parts: Vec<_> = text.split(':').collect();
        let (service, region) = match parts[..] {
            ["arn", _, "secretsmanager", region, _, "secret", name] if !name.is_empty() => {
                (Service::SecretsManager, region)
            }
            ["arn", _, "ssm", region, _, name] if name.starts_with("parameter/") => {
                (Service::ParameterStore, region)
            }
            _ => {
                return Err(
                    "must be the ARN of a secret (arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME) \
                     or of a parameter (arn:aws:ssm:REGION:ACCOUNT:parameter/NAME)",
                );
            }
        };
        Ok(Self {
            text: text.to_owned(),
            service,
            region: region.to_owned(),
        })
    }
}

/// Rejects the headers that a charge has in any case.
fn header_name(text: &str) -> Result<HeaderName, &'static str> {
    let name: HeaderName = text.parse().map_err(|_| "is not the name of a header")?;
    let taken = [CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING];
    if taken.contains(&name) || name == "idempotency-key" {
        return Err("a charge has this header already");
    }
    Ok(name)
}

fn header_value(text: &str) -> Result<HeaderValue, String> {
    if text.is_empty() {
        return Err("the stored value is empty".to_owned());
    }
    let mut value = HeaderValue::from_str(text).map_err(
        |_| "the stored value has a character that a header cannot have, such as a line break",
    )?;
    value.set_sensitive(true);
    Ok(value)
}

/// Explains a failed read and its remedy. The text omits the answer, which may hold the value.
fn explain<E: ProvideErrorMetadata>(error: &SdkError<E>, permission: &str) -> String {
    let Some(service) = error.as_service_error() else {
        return match error {
            SdkError::TimeoutError(_) => NO_ANSWER.to_owned(),
            // A connector's errors contain addresses and causes, no bodies.
            SdkError::DispatchFailure(failure) => {
                let causes = failure.as_connector_error().map(|error| causes(error));
                format!("could not connect ({})", causes.unwrap_or_default())
            }
            _ => "the answer could not be read".to_owned(),
        };
    };
    let Some(code) = service.code() else {
        let status = error.raw_response().map(|answer| answer.status().as_u16());
        return format!("an answer with status {}", status.unwrap_or_default());
    };
    let advice = match code {
        "AccessDeniedException" => format!(
            "grant the role {permission}, and kms:Decrypt if a KMS key of your own encrypts the value"
        ),
        "ResourceNotFoundException" | "ParameterNotFound" => {
            "not found; check the name, the account and the Region".to_owned()
        }
        _ => service.message().unwrap_or("no message").to_owned(),
    };
    format!("{code}: {advice}")
}

fn causes(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    causes.join(": ")
}

#[cfg(test)]
pub(super) mod stub {
    //! Secrets Manager and Parameter Store over HTTP, with the answers that AWS documents.

    use std::sync::{Arc, Mutex};

    use aws_config::{BehaviorVersion, Region, SdkConfig, retry::RetryConfig};
    use aws_sdk_secretsmanager::config::{Credentials, SharedCredentialsProvider};
    use aws_smithy_http_client::Builder;
    use axum::{
        Router,
        body::Bytes,
        extract::State,
        http::{HeaderMap, StatusCode},
        response::{IntoResponse, Response},
    };
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::{Arn, Credential, header_name};

    pub(in super::super) const SECRET: &str =
        "arn:aws:secretsmanager:eu-central-1:123456789012:secret:gateway-AbCdEf";
    pub(in super::super) const PARAMETER: &str =
        "arn:aws:ssm:eu-central-1:123456789012:parameter/gateway";

    /// Answer to one read.
    #[derive(Clone, Copy, Debug)]
    pub(in super::super) enum Answer {
        Value(&'static str),
        Binary,
        /// 400 with this code.
        Error(&'static str),
        Silence,
    }

    /// Both services.
    pub(in super::super) struct Store {
        /// The last one is given to all later reads.
        answers: Mutex<Vec<Answer>>,
        /// Operation and request of each read.
        pub(in super::super) reads: Mutex<Vec<(String, Value)>>,
    }

    impl Store {
        pub(in super::super) async fn start(answers: &[Answer]) -> (Arc<Self>, SdkConfig) {
            let store = Arc::new(Self {
                answers: Mutex::new(answers.iter().rev().copied().collect()),
                reads: Mutex::default(),
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let app = Router::new().fallback(answer).with_state(store.clone());
            tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
            (store, config(&url))
        }

        pub(in super::super) fn reads(&self) -> usize {
            self.reads.lock().unwrap().len()
        }
    }

    async fn answer(
        State(store): State<Arc<Store>>,
        headers: HeaderMap,
        request: Bytes,
    ) -> Response {
        let request = serde_json::from_slice(&request).unwrap();
        let operation = headers["x-amz-target"].to_str().unwrap().to_owned();
        let of_secret = operation == "secretsmanager.GetSecretValue";
        store.reads.lock().unwrap().push((operation, request));
        let answer = {
            let mut answers = store.answers.lock().unwrap();
            match answers.len() {
                1 => answers[0],
                _ => answers.pop().unwrap(),
            }
        };
        let body = match answer {
            Answer::Value(value) if of_secret => json!({
                "ARN": SECRET, "Name": "gateway", "CreatedDate": 1_523_477_145.713,
                "SecretString": value, "VersionStages": ["AWSCURRENT"],
            }),
            Answer::Value(value) => json!({"Parameter": {
                "ARN": PARAMETER, "DataType": "text", "LastModifiedDate": 1_582_657_288.8,
                "Name": "gateway", "Type": "SecureString", "Value": value, "Version": 3,
            }}),
            Answer::Binary => json!({"ARN": SECRET, "SecretBinary": "QmVhcmVy"}),
            Answer::Error(code) => {
                let error = json!({"__type": code, "Message": "no"});
                return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
            }
            Answer::Silence => std::future::pending().await,
        };
        body.to_string().into_response()
    }

    pub(in super::super) fn config(url: &str) -> SdkConfig {
        let credentials = Credentials::new("test", "test", None, None, "tests");
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("us-east-1"))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .endpoint_url(url)
            .http_client(Builder::new().build_http())
            .retry_config(RetryConfig::disabled())
            .build()
    }

    pub(in super::super) async fn credential(
        arn: &str,
        header: &str,
        config: &SdkConfig,
    ) -> Result<Arc<Credential>, String> {
        let name = header_name(header)?;
        let credential = Credential::start(name, Arn::parse(arn)?, config).await;
        credential.map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::{
        stub::{Answer, PARAMETER, SECRET, Store, config, credential},
        *,
    };

    const VALUE: &str = "Bearer s3cr3t";

    async fn error_of(arn: &str, answer: Answer) -> String {
        let (_, config) = Store::start(&[answer]).await;
        let read = credential(arn, "authorization", &config).await;
        read.err().unwrap()
    }

    #[test]
    fn arn_of_secret_or_parameter_is_accepted() {
        for (arn, region) in [
            (SECRET, "eu-central-1"),
            (PARAMETER, "eu-central-1"),
            (
                "arn:aws-cn:ssm:cn-north-1:123456789012:parameter/a/b",
                "cn-north-1",
            ),
        ] {
            let parsed = Arn::parse(arn).unwrap();
            assert_eq!((&*parsed.text, &*parsed.region), (arn, region));
        }
        for text in [
            VALUE,
            "gateway",
            "arn:aws:s3:::bucket",
            "arn:aws:ssm:eu-central-1:123456789012:document/gateway",
            "arn:aws:secretsmanager:eu-central-1:123456789012:secret:",
            "arn:aws:secretsmanager:eu-central-1:123456789012:secret:gateway-AbCdEf:key::",
        ] {
            let error = Arn::parse(text).err().unwrap();
            assert!(!error.contains(text), "{error}");
        }
    }

    #[test]
    fn header_of_every_charge_is_refused() {
        for name in ["Authorization", "X-Api-Key"] {
            assert!(header_name(name).is_ok(), "{name}");
        }
        for name in ["Idempotency-Key", "content-type", "Host", "", "a b", "a:"] {
            assert!(header_name(name).is_err(), "{name}");
        }
    }

    #[tokio::test]
    async fn settings_without_arn_read_nothing() {
        let mut settings = Settings::from_vars([(HEADER, "X-Api-Key")]);
        assert!(matches!(Credential::read(&mut settings).await, Ok(None)));
    }

    #[tokio::test]
    async fn invalid_settings_are_reported_together() {
        let variables = [(ARN, VALUE), (HEADER, "Idempotency-Key")];
        let mut settings = Settings::from_vars(variables);
        assert!(Credential::read(&mut settings).await.is_err());
        let errors = format!("{settings:?}");
        assert!(errors.contains(ARN) && errors.contains(HEADER), "{errors}");
        assert!(!errors.contains(VALUE), "{errors}");
    }

    #[tokio::test]
    async fn value_is_read_by_arn_and_marked_sensitive() {
        for (arn, operation, request) in [
            (
                SECRET,
                "secretsmanager.GetSecretValue",
                json!({"SecretId": SECRET}),
            ),
            (
                PARAMETER,
                "AmazonSSM.GetParameter",
                json!({"Name": PARAMETER, "WithDecryption": true}),
            ),
        ] {
            let (store, config) = Store::start(&[Answer::Value(VALUE)]).await;
            let read = credential(arn, "authorization", &config).await;
            let reading = read.ok().unwrap().current();
            assert_eq!(reading.value, VALUE);
            assert!(reading.value.is_sensitive());
            let reads = store.reads.lock().unwrap().clone();
            assert_eq!(reads, [(operation.to_owned(), request)]);
        }
    }

    #[tokio::test]
    async fn refused_read_names_cause_and_remedy() {
        for (arn, code, remedy) in [
            (
                SECRET,
                "AccessDeniedException",
                "secretsmanager:GetSecretValue",
            ),
            (PARAMETER, "AccessDeniedException", "ssm:GetParameter"),
            (SECRET, "ResourceNotFoundException", "not found"),
            (PARAMETER, "ParameterNotFound", "not found"),
            (SECRET, "DecryptionFailure", "no"),
        ] {
            let error = error_of(arn, Answer::Error(code)).await;
            assert!(error.contains(code) && error.contains(remedy), "{error}");
        }
    }

    #[tokio::test]
    async fn unusable_value_is_an_error_without_it() {
        for (answer, cause) in [
            (Answer::Value("Bearer s3cr3t\n"), "line break"),
            (Answer::Value("Bearer\0s3cr3t"), "character"),
            (Answer::Value(""), "empty"),
            (Answer::Binary, "binary"),
        ] {
            let error = error_of(SECRET, answer).await;
            assert!(error.contains(cause), "{error}");
            assert!(!error.contains("s3cr3t"), "{error}");
        }
    }

    #[tokio::test]
    async fn unreachable_store_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let read = credential(SECRET, "authorization", &config(&url)).await;
        let error = read.err().unwrap();
        assert!(error.contains("could not connect"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_store_is_an_error_in_time() {
        let error = error_of(PARAMETER, Answer::Silence).await;
        assert_eq!(error, NO_ANSWER);
    }
}
