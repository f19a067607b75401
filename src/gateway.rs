//! The payment gateway over HTTP, and the sandbox.

#[path = "credential.rs"]
mod credential;

use std::{error::Error, sync::Arc, time::Duration};

use reqwest::{
    Client, RequestBuilder, Response, StatusCode, Url, header::CONTENT_TYPE, redirect::Policy,
};
use serde_json::{json, value::RawValue};
use sqs_once::{Failure, Settings, SettingsError};

use super::order::Order;
use credential::{Credential, READ_TIMEOUT};

/// Largest response body that is stored.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The payment token that the sandbox declines.
const DECLINED: &str = "tok_chargeDeclined";

/// Destination of charges.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GatewayUrl {
    /// Charges nothing, and answers like a gateway.
    Sandbox,
    /// `{url}/charges`.
    Http(Url),
}

pub(super) enum Gateway {
    Sandbox,
    Http(Http),
}

pub(super) struct Http {
    client: Client,
    charges: Url,
    /// Longest wait for an answer.
    timeout: Duration,
    credential: Option<Arc<Credential>>,
}

impl Gateway {
    /// The gateway of `PAYMENT_GATEWAY_URL`, and its credential, which is read here. A charge is not
    /// started with less time left than it may take: `PAYMENT_GATEWAY_TIMEOUT`, or with a credential
    /// two such requests and a read between them.
    pub(super) async fn read(settings: &mut Settings) -> Result<Self, SettingsError> {
        let timeout = settings.duration("PAYMENT_GATEWAY_TIMEOUT", "5s");
        let credential = Credential::read(settings).await;
        let time = timeout.clone().unwrap_or_default();
        let used = credential.clone().unwrap_or_default();
        let millis = format!("{}ms", longest_charge(time, used.is_some()).as_millis());
        settings.set_default("CONSUMER_MIN_TIME_TO_START", millis);
        let meaning = "URL of the payment gateway, or `sandbox` to charge nothing";
        let gateway = settings.required("PAYMENT_GATEWAY_URL", meaning, |text| {
            Self::new(gateway_url(text)?, time, used).map_err(|error| error.to_string())
        });
        timeout.and(credential).and(gateway)
    }

    fn new(
        url: GatewayUrl,
        timeout: Duration,
        credential: Option<Arc<Credential>>,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let GatewayUrl::Http(mut charges) = url else {
            if credential.is_some() {
                tracing::warn!("PAYMENT_GATEWAY_URL is `sandbox`: the credential is sent nowhere");
            }
            return Ok(Self::Sandbox);
        };
        if let Ok(mut path) = charges.path_segments_mut() {
            path.pop_if_empty().push("charges");
        }
        // The AWS SDK brings this provider; it is the process's only one.
        let _already_set = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("sqs-once/", env!("CARGO_PKG_VERSION")))
            // Shorter than the timeout of a charge, so that a slow connection ends as a connection
            // error, which had no effect.
            .connect_timeout(timeout / 2)
            // A redirected POST could charge somewhere else.
            .redirect(Policy::none())
            .build()?;
        Ok(Self::Http(Http {
            client,
            charges,
            timeout,
            credential,
        }))
    }

    /// Charges `order`. The gateway recognizes a repetition by `key`, a valid header value.
    pub(super) async fn charge(&self, key: &str, order: &Order) -> Result<Box<RawValue>, Failure> {
        match self {
            Self::Sandbox => sandbox(key, order),
            Self::Http(http) => {
                let answer = http.send(key, order).await?;
                verdict(answer.status())?;
                Ok(read(answer).await)
            }
        }
    }
}

impl Http {
    /// Sends the charge. After a 401 the credential is read again, and the charge is sent once more
    /// with the new value.
    async fn send(&self, key: &str, order: &Order) -> Result<Response, Failure> {
        let request = self.request(key, order);
        let Some(credential) = &self.credential else {
            return request.send().await.map_err(unanswered);
        };
        let reading = credential.current();
        let request = reading.authenticate(request);
        let answer = request.send().await.map_err(unanswered)?;
        let status = answer.status();
        if status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let replaced = credential.replace(&reading).await;
        let reading =
            replaced.map_err(|why| Failure::retryable(format!("{}: {why}", answered(status))))?;
        let request = reading.authenticate(self.request(key, order));
        // The gateway answered the first request, so even a failure to connect is not `no_effect`.
        let answer = request.send().await;
        answer.map_err(|error| Failure::retryable(error.without_url()))
    }

    fn request(&self, key: &str, order: &Order) -> RequestBuilder {
        self.client
            .post(self.charges.clone())
            .header("Idempotency-Key", key)
            .header(CONTENT_TYPE, "application/json")
            // Not shortened to the time left: an attempt that the deadline ends must be
            // recorded as ended by the deadline.
            .timeout(self.timeout)
            .body(order.json.get().to_owned())
    }
}

/// With a credential: a request, a read after its 401, and a second request.
fn longest_charge(timeout: Duration, has_credential: bool) -> Duration {
    match has_credential {
        true => timeout.saturating_mul(2).saturating_add(READ_TIMEOUT),
        false => timeout,
    }
}

/// Parses the setting. Errors do not quote its value, which may hold credentials.
fn gateway_url(text: &str) -> Result<GatewayUrl, String> {
    if text == "sandbox" {
        return Ok(GatewayUrl::Sandbox);
    }
    let url = Url::parse(text)
        .map_err(|error| format!("must be `sandbox` or an https:// URL ({error})"))?;
    let loopback = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match url.scheme() {
        "https" => {}
        "http" if loopback => {}
        _ => {
            return Err(
                "must be `sandbox` or an https:// URL (http:// only to this machine)".to_owned(),
            );
        }
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must hold no user and no password".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must have no query and no fragment: `/charges` is added to it".to_owned());
    }
    Ok(GatewayUrl::Http(url))
}

/// The failure of a request without a response. Without a connection nothing was sent, so nothing was
/// charged.
fn unanswered(error: reqwest::Error) -> Failure {
    // The URL may hold credentials, and errors are logged.
    let error = error.without_url();
    if error.is_connect() {
        Failure::no_effect(error)
    } else {
        Failure::retryable(error)
    }
}

/// The meaning of a status. 2xx is a charge. A wrong credential or path says nothing about the order,
/// so those are not permanent failures.
fn verdict(status: StatusCode) -> Result<(), Failure> {
    let answered = answered(status);
    let check = match status.as_u16() {
        200..=299 => return Ok(()),
        401 | 403 => "check the credential that the gateway expects",
        404 | 405 => "check PAYMENT_GATEWAY_URL, which `/charges` is added to",
        407 => "check the credential of the proxy",
        408 | 409 | 425 | 429 | 500..=599 => return Err(Failure::retryable(answered)),
        400..=499 => return Err(Failure::permanent(answered)),
        _ => "no answer to a charge; check PAYMENT_GATEWAY_URL (redirects are not followed)",
    };
    Err(Failure::retryable(format!("{answered}: {check}")))
}

fn answered(status: StatusCode) -> String {
    format!("the payment gateway answered {status}")
}

/// The body of a 2xx response. The charge stands, so an unreadable body is not an error.
async fn read(mut answer: Response) -> Box<RawValue> {
    let mut body = Vec::new();
    let note = loop {
        match answer.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > MAX_ANSWER_BYTES => {
                break "the gateway's answer was over 1 MiB and is not kept";
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return to_json(&body),
            Err(_) => break "the gateway's answer broke off and is not kept",
        }
    };
    raw(&json!({ "charged": true, "note": note }))
}

/// JSON unchanged, other text as a JSON string, an empty body as null.
fn to_json(body: &[u8]) -> Box<RawValue> {
    if body.is_empty() {
        return RawValue::NULL.to_owned();
    }
    serde_json::from_slice(body).unwrap_or_else(|_| raw(&String::from_utf8_lossy(body).into()))
}

fn raw(value: &serde_json::Value) -> Box<RawValue> {
    // Writing a Value can't fail: its keys are strings.
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn sandbox(key: &str, order: &Order) -> Result<Box<RawValue>, Failure> {
    if order.fields.payment_token.as_deref() == Some(DECLINED) {
        return Err(Failure::permanent("the sandbox declined the card"));
    }
    Ok(raw(
        &json!({ "id": format!("sandbox:{key}"), "status": "succeeded" }),
    ))
}

#[cfg(test)]
mod tests {
    use std::{process::Command, sync::Mutex};

    use axum::{Router, extract::State, http::HeaderMap, routing::post};
    use futures_util::future::join_all;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        sync::Barrier,
    };

    use super::{
        credential::stub::{Answer, PARAMETER, SECRET, Store, credential},
        *,
    };

    fn of_status(status: u16) -> Result<(), Failure> {
        verdict(StatusCode::from_u16(status).unwrap())
    }

    #[test]
    fn gateway_needs_https_or_loopback() {
        for url in [
            "https://gateway.example",
            "https://gateway.example/v1/",
            "http://127.0.0.1:8080",
        ] {
            assert!(gateway_url(url).is_ok(), "{url}");
        }
        for url in [
            "gateway.example",
            "ftp://gateway.example",
            "http://127.0.0.1.example",
            "https://g/?key=SECRET",
            "https://",
            "https://user:SECRET@gateway.example",
        ] {
            let error = gateway_url(url).unwrap_err();
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[tokio::test]
    async fn gateway_timeout_sets_the_time_needed_to_start() {
        let minimum = async |variables: &[(&str, &str)]| {
            let sandbox = ("PAYMENT_GATEWAY_URL", "sandbox");
            let variables = [&[sandbox], variables].concat();
            let mut settings = Settings::from_vars(variables.iter().copied());
            assert!(Gateway::read(&mut settings).await.is_ok());
            settings.duration("CONSUMER_MIN_TIME_TO_START", "1ms")
        };
        assert_eq!(minimum(&[]).await, Ok(Duration::from_secs(5)));
        let timeout = ("PAYMENT_GATEWAY_TIMEOUT", "7s");
        assert_eq!(minimum(&[timeout]).await, Ok(Duration::from_secs(7)));
        let own = ("CONSUMER_MIN_TIME_TO_START", "9s");
        assert_eq!(minimum(&[timeout, own]).await, Ok(Duration::from_secs(9)));
    }

    #[tokio::test]
    async fn invalid_gateway_settings_are_reported_together() {
        let settings = [
            ("PAYMENT_GATEWAY_URL", "http://gateway.example"),
            ("PAYMENT_GATEWAY_TIMEOUT", "0s"),
        ];
        let mut settings = Settings::from_vars(settings);
        assert!(Gateway::read(&mut settings).await.is_err());
        let errors = format!("{settings:?}");
        for name in ["PAYMENT_GATEWAY_URL", "PAYMENT_GATEWAY_TIMEOUT"] {
            assert!(errors.contains(name), "{name} is missing in: {errors}");
        }
    }

    #[test]
    fn status_2xx_completes_and_4xx_is_permanent() {
        for status in [200, 201, 202, 204, 299] {
            assert!(of_status(status).is_ok(), "{status}");
        }
        for status in [400, 402, 406, 410, 411, 413, 415, 418, 422, 451, 499] {
            let failure = of_status(status);
            assert!(matches!(failure, Err(Failure::Permanent(_))), "{status}");
        }
    }

    #[test]
    fn status_unrelated_to_order_is_retryable() {
        let retryable = |status| match of_status(status) {
            Err(Failure::Retryable(why)) => why.to_string(),
            other => panic!("{status}: {other:?}"),
        };
        for status in [
            408, 409, 425, 429, 500, 502, 503, 504, 599, 199, 301, 307, 600,
        ] {
            assert!(retryable(status).contains(&status.to_string()), "{status}");
        }
        for (status, advice) in [
            (401, "check the credential"),
            (403, "check the credential"),
            (404, "check PAYMENT_GATEWAY_URL"),
            (405, "check PAYMENT_GATEWAY_URL"),
            (407, "check the credential of the proxy"),
            (308, "check PAYMENT_GATEWAY_URL"),
        ] {
            assert!(retryable(status).contains(advice), "{status}");
        }
    }

    /// Peer of a connection.
    #[derive(Clone, Copy, Debug)]
    enum End {
        /// Closed before the client sent anything.
        Closed,
        /// Open, and silent.
        Silent,
        /// Closed when the request had arrived.
        Unanswered,
        /// Closed when the second request had arrived; the first is answered.
        SecondUnanswered,
    }

    /// The base URL of a gateway that treats every connection alike.
    async fn serve(scheme: &str, end: End) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                match end {
                    End::Closed => {}
                    End::Silent => open.push(connection),
                    End::Unanswered => read_request(&mut connection).await,
                    End::SecondUnanswered => {
                        read_request(&mut connection).await;
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                        connection.write_all(answer).await.unwrap();
                        read_request(&mut connection).await;
                    }
                }
            }
        });
        format!("{scheme}://{address}")
    }

    /// URL of a port without a listener.
    async fn refusing() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    const BODY: &str = r#"{"orderId":"o-1","amount":1,"currency":"EUR"}"#;

    /// Reads until the body has arrived, which comes last.
    async fn read_request(connection: &mut TcpStream) {
        let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
        while !request.ends_with(BODY.as_bytes()) {
            let n = connection.read(&mut buffer).await.unwrap();
            assert!(n > 0, "the request broke off");
            request.extend_from_slice(&buffer[..n]);
        }
    }

    fn gateway(url: &str, timeout: Duration) -> Gateway {
        Gateway::new(GatewayUrl::Http(url.parse().unwrap()), timeout, None).unwrap()
    }

    async fn charge(gateway: &Gateway) -> Result<Box<RawValue>, Failure> {
        let order = serde_json::from_str(BODY).unwrap();
        gateway.charge("payments#o-1", &order).await
    }

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(500);

    #[tokio::test]
    async fn failure_to_connect_has_no_effect() {
        for (url, timeout) in [
            (refusing().await, LONG),
            // RFC 2606 reserves the name, so it has no address.
            ("https://gateway.invalid".to_owned(), LONG),
            // A failed TLS handshake, and a handshake that times out.
            (serve("https", End::Closed).await, LONG),
            (serve("https", End::Silent).await, 4 * SHORT),
        ] {
            let failure = charge(&gateway(&url, timeout)).await;
            assert!(
                matches!(failure, Err(Failure::NoEffect(_))),
                "{url}: {failure:?}"
            );
            // The URL may hold credentials.
            let text = failure.unwrap_err().to_string();
            assert!(text.contains("onnect") && !text.contains(&url), "{text}");
        }
    }

    #[tokio::test]
    async fn failure_after_sent_request_is_retryable() {
        for (url, timeout) in [
            (serve("http", End::Unanswered).await, LONG),
            (serve("http", End::Silent).await, SHORT),
        ] {
            let failure = charge(&gateway(&url, timeout)).await;
            assert!(
                matches!(failure, Err(Failure::Retryable(_))),
                "{url}: {failure:?}"
            );
        }
        // Over a connection that was in use before.
        let gateway = gateway(&serve("http", End::SecondUnanswered).await, LONG);
        assert!(charge(&gateway).await.is_ok());
        let failure = charge(&gateway).await;
        assert!(matches!(failure, Err(Failure::Retryable(_))), "{failure:?}");
    }

    #[test]
    fn response_without_json_is_kept_as_text() {
        assert_eq!(to_json(b"{\"id\": 1}").get(), "{\"id\": 1}");
        assert_eq!(to_json(b"ok").get(), "\"ok\"");
        assert_eq!(to_json(b"").get(), "null");
    }

    /// A gateway that charges requests with the value `accepted`, and answers 401 to others.
    struct Guarded {
        accepted: &'static str,
        header: &'static str,
        /// Refused requests that are answered together.
        refused_together: Barrier,
        /// The value of each request.
        values: Mutex<Vec<String>>,
    }

    impl Guarded {
        async fn start(
            accepted: &'static str,
            header: &'static str,
            refused_together: usize,
        ) -> (Arc<Self>, String) {
            let guarded = Arc::new(Self {
                accepted,
                header,
                refused_together: Barrier::new(refused_together),
                values: Mutex::default(),
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let app = Router::new().route("/charges", post(Self::answer));
            let app = app.with_state(guarded.clone());
            tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
            (guarded, url)
        }

        async fn answer(State(this): State<Arc<Self>>, headers: HeaderMap) -> StatusCode {
            assert!(headers.contains_key("idempotency-key"));
            let value = headers[this.header].to_str().unwrap().to_owned();
            let accepted = value == this.accepted;
            this.values.lock().unwrap().push(value);
            if accepted {
                return StatusCode::CREATED;
            }
            this.refused_together.wait().await;
            StatusCode::UNAUTHORIZED
        }

        fn values(&self) -> Vec<String> {
            self.values.lock().unwrap().clone()
        }
    }

    const OLD: &str = "Bearer s3cr3t-old";
    const NEW: &str = "Bearer s3cr3t-new";

    async fn with_credential(url: &str, answers: &[Answer]) -> (Arc<Store>, Gateway) {
        let (store, config) = Store::start(answers).await;
        let credential = credential(SECRET, "authorization", &config).await;
        let url = GatewayUrl::Http(url.parse().unwrap());
        let gateway = Gateway::new(url, LONG, Some(credential.ok().unwrap()));
        (store, gateway.unwrap())
    }

    fn retryable(failure: Result<Box<RawValue>, Failure>) -> String {
        match failure {
            Err(Failure::Retryable(why)) => why.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn parameter_is_sent_in_the_named_header() {
        let (guarded, url) = Guarded::start("key-1", "x-api-key", 1).await;
        let (_, config) = Store::start(&[Answer::Value("key-1")]).await;
        let credential = credential(PARAMETER, "X-Api-Key", &config).await;
        let url = GatewayUrl::Http(url.parse().unwrap());
        let gateway = Gateway::new(url, LONG, Some(credential.ok().unwrap())).unwrap();
        assert!(charge(&gateway).await.is_ok());
        assert_eq!(guarded.values(), ["key-1"]);
    }

    #[tokio::test]
    async fn rotated_credential_is_read_and_sent_once_more() {
        let (guarded, url) = Guarded::start(NEW, "authorization", 1).await;
        let answers = [Answer::Value(OLD), Answer::Value(NEW)];
        let (store, gateway) = with_credential(&url, &answers).await;
        assert!(charge(&gateway).await.is_ok());
        assert_eq!(guarded.values(), [OLD, NEW]);
        assert!(charge(&gateway).await.is_ok());
        assert_eq!(guarded.values(), [OLD, NEW, NEW]);
        assert_eq!(store.reads(), 2);
    }

    #[tokio::test]
    async fn second_401_is_retryable() {
        let (guarded, url) = Guarded::start("another", "authorization", 1).await;
        let answers = [Answer::Value(OLD), Answer::Value(NEW)];
        let (_, gateway) = with_credential(&url, &answers).await;
        let why = retryable(charge(&gateway).await);
        assert!(why.contains("401 Unauthorized: check the"), "{why}");
        assert_eq!(guarded.values(), [OLD, NEW]);
    }

    #[tokio::test]
    async fn unchanged_credential_is_not_sent_again() {
        let (guarded, url) = Guarded::start(NEW, "authorization", 1).await;
        let (store, gateway) = with_credential(&url, &[Answer::Value(OLD)]).await;
        let why = retryable(charge(&gateway).await);
        assert!(why.contains("401 Unauthorized"), "{why}");
        assert!(why.contains("still has the value"), "{why}");
        assert_eq!(guarded.values(), [OLD]);
        assert_eq!(store.reads(), 2);
    }

    #[tokio::test]
    async fn concurrent_401s_read_credential_once() {
        let (guarded, url) = Guarded::start(NEW, "authorization", 10).await;
        let answers = [Answer::Value(OLD), Answer::Value(NEW)];
        let (store, gateway) = with_credential(&url, &answers).await;
        let charges = join_all((0..10).map(|_| charge(&gateway))).await;
        assert!(charges.iter().all(Result::is_ok), "{charges:?}");
        assert_eq!(store.reads(), 2);
        let values = guarded.values();
        let (old, new) = values.split_at(10);
        assert!(old.iter().all(|value| value == OLD), "{values:?}");
        assert!(new.iter().all(|value| value == NEW) && new.len() == 10);
    }

    #[tokio::test]
    async fn concurrent_401s_share_a_failed_read() {
        let (guarded, url) = Guarded::start(NEW, "authorization", 10).await;
        let answers = [
            Answer::Value(OLD),
            Answer::Error("AccessDeniedException"),
            Answer::Value(NEW),
        ];
        let (store, gateway) = with_credential(&url, &answers).await;
        for failure in join_all((0..10).map(|_| charge(&gateway))).await {
            let why = retryable(failure);
            assert!(why.contains("AccessDeniedException"), "{why}");
        }
        assert_eq!((store.reads(), guarded.values().len()), (2, 10));
    }

    #[tokio::test]
    async fn lost_connection_after_401_is_retryable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            drop(listener);
            read_request(&mut connection).await;
            let answer =
                b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            connection.write_all(answer).await.unwrap();
        });
        let answers = [Answer::Value(OLD), Answer::Value(NEW)];
        let (_, gateway) = with_credential(&url, &answers).await;
        let why = retryable(charge(&gateway).await);
        assert!(why.contains("error sending request"), "{why}");
    }

    #[test]
    fn charge_with_credential_needs_time_for_two_requests() {
        assert_eq!(longest_charge(SHORT, false), SHORT);
        assert_eq!(longest_charge(SHORT, true), 2 * SHORT + READ_TIMEOUT);
        assert!(longest_charge(Duration::MAX, true) == Duration::MAX);
    }

    async fn charge_with_refused_credentials() {
        let (guarded, url) = Guarded::start("another", "authorization", 1).await;
        for arn in [SECRET, PARAMETER] {
            let answers = [Answer::Value(OLD), Answer::Value(NEW)];
            let (_, config) = Store::start(&answers).await;
            let credential = credential(arn, "authorization", &config).await;
            let url = GatewayUrl::Http(url.parse().unwrap());
            let gateway = Gateway::new(url, LONG, Some(credential.ok().unwrap())).unwrap();
            for _ in 0..2 {
                println!("{:?}", charge(&gateway).await);
            }
        }
        assert_eq!(guarded.values(), [OLD, NEW, NEW, OLD, NEW, NEW]);
    }

    /// Runs itself in a process of its own, since logging is set up once per process.
    #[test]
    fn credential_is_in_no_log_and_no_error() {
        const ROLE: &str = "SQS_ONCE_TEST_LOGS";
        if std::env::var_os(ROLE).is_some() {
            let log = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
            log.init();
            let runtime = tokio::runtime::Runtime::new().unwrap();
            return runtime.block_on(charge_with_refused_credentials());
        }
        let name = "payments::gateway::tests::credential_is_in_no_log_and_no_error";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .env(ROLE, "1")
            .output()
            .unwrap();
        let output = String::from_utf8([child.stdout, child.stderr].concat()).unwrap();
        assert!(child.status.success(), "{output}");
        for part in ["GetSecretValue", "GetParameter", "again after a 401", "Err"] {
            assert!(output.contains(part), "no line of {part}");
        }
        let lines = output.lines().filter(|line| line.contains("s3cr3t"));
        assert_eq!(Vec::from_iter(lines), [""; 0]);
    }
}
