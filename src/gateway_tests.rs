use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, UNIX_EPOCH},
};

use axum::{Router, http, routing::post};
use futures_util::future::join_all;
use reqwest::StatusCode;
use sqs_once::{
    Deadline, DeliveryMetadata, FailureKind,
    internal::History,
    protocol::{Namespace, Timestamp},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Barrier,
};

use super::*;

fn of_status(status: u16) -> Failure {
    of_response(status, "x-none", "")
}

fn of_response(status: u16, name: &str, value: &str) -> Failure {
    let response = http::Response::builder().status(status).header(name, value);
    refused(&response.body("").unwrap().into(), true)
}

#[test]
fn gateway_needs_https_or_loopback() {
    for url in [
        "https://gateway.example",
        "https://gateway.example/v1/",
        "http://127.0.0.1:8080",
    ] {
        assert!(charges_url(url).is_ok(), "{url}");
    }
    for url in [
        "gateway.example",
        "ftp://gateway.example",
        "http://127.0.0.1.example",
        "https://g/?key=SECRET",
        "https://",
        "https://user:SECRET@gateway.example",
    ] {
        let error = charges_url(url).unwrap_err();
        assert!(!error.contains("SECRET"), "{error}");
    }
}

#[test]
fn charges_path_is_added_to_the_url() {
    for url in ["https://gateway.example/v1", "https://gateway.example/v1/"] {
        let charges = charges_url(url).unwrap().unwrap();
        assert_eq!(charges.as_str(), "https://gateway.example/v1/charges");
    }
}

#[test]
fn gateway_timeout_sets_the_time_needed_to_start() {
    let minimum = |variables: &[(&str, &str)]| {
        let sandbox = ("PAYMENT_GATEWAY_URL", "sandbox");
        let variables = [&[sandbox], variables].concat();
        let mut settings = Settings::from_vars(variables.iter().copied());
        assert!(Gateway::read(&mut settings).is_ok());
        settings.duration("CONSUMER_MIN_TIME_TO_START", "1ms")
    };
    assert_eq!(minimum(&[]), Ok(Duration::from_secs(5)));
    let timeout = ("PAYMENT_GATEWAY_TIMEOUT", "7s");
    assert_eq!(minimum(&[timeout]), Ok(Duration::from_secs(7)));
    let own = ("CONSUMER_MIN_TIME_TO_START", "9s");
    assert_eq!(minimum(&[timeout, own]), Ok(Duration::from_secs(9)));
}

#[test]
fn fields_that_fingerprint_leaves_out_are_named() {
    const ALL: &str = "body:/orderId,/amount,/currency,/paymentToken";
    for (key, fingerprint, names) in [
        ("message-id", "body", &[][..]),
        ("message-id", ALL, &[]),
        (
            "body:/orderId",
            "body:/currency,/paymentToken, /amount",
            &[],
        ),
        (
            "body:/tenant,/orderId",
            "body:/amount,/currency",
            &["paymentToken"],
        ),
        (
            "attribute:orderId",
            "body:/amount,/order/currency",
            &["orderId", "currency", "paymentToken"],
        ),
        (
            "body:/orderId",
            "off",
            &["amount", "currency", "paymentToken"],
        ),
    ] {
        assert_eq!(left_out(key, fingerprint), names, "{key}, {fingerprint}");
    }
}

#[test]
fn fields_left_out_are_one_warning_at_start() {
    support::log::start();
    for (fingerprint, warnings) in [("", 0), ("body", 0), ("body:/amount", 1), ("off", 1)] {
        let mut settings = Settings::from_vars([
            ("PAYMENT_GATEWAY_URL", "sandbox"),
            ("IDEMPOTENCY_FINGERPRINT", fingerprint),
        ]);
        assert!(Gateway::read(&mut settings).is_ok());
        let lines = support::log::lines_containing("leaves out fields");
        assert_eq!(lines.len(), warnings, "{fingerprint}: {lines:?}");
        assert!(lines.iter().all(|line| line["level"] == "WARN"));
    }
}

/// Settings for a gateway without idempotency keys.
fn without_keys<'a>(
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> (Settings, Result<Gateway, SettingsError>) {
    let all = [
        ("PAYMENT_GATEWAY_URL", "https://gateway.example"),
        ("PAYMENT_GATEWAY_RECONCILE", "on"),
        ("IDEMPOTENCY_KEY", "body:/orderId"),
    ];
    let mut settings = Settings::from_vars(all.into_iter().chain(variables));
    let gateway = Gateway::read(&mut settings);
    (settings, gateway)
}

#[test]
fn white_space_is_no_part_of_a_gateway_setting() {
    let (settings, gateway) = without_keys([
        ("PAYMENT_GATEWAY_URL", " https://gateway.example/v1\n"),
        ("PAYMENT_GATEWAY_API_KEY", "s3cr3t\n"),
        ("PAYMENT_GATEWAY_TIMEOUT", "7s "),
        ("PAYMENT_GATEWAY_RECONCILE", "\ton"),
        ("PAYMENT_GATEWAY_RECONCILE_AFTER", "40s\r\n"),
        ("IDEMPOTENCY_KEY", " body: /orderId "),
    ]);
    let Ok(Gateway::Http(http)) = gateway else {
        panic!("{settings:?}");
    };
    assert_eq!(http.charges.as_str(), "https://gateway.example/v1/charges");
    assert_eq!(http.reconcile_after, Some(Duration::from_secs(40)));
}

#[test]
fn gateway_without_keys_is_looked_up() {
    let (mut settings, gateway) = without_keys([]);
    assert_eq!(
        gateway.unwrap().reconcile_after(),
        Some(Duration::from_secs(30))
    );
    // An attempt may call the lookup and then charge.
    let minimum = settings.duration("CONSUMER_MIN_TIME_TO_START", "1ms");
    assert_eq!(minimum, Ok(Duration::from_secs(10)));
    let (_, gateway) = without_keys([("PAYMENT_GATEWAY_RECONCILE", "off")]);
    assert_eq!(gateway.unwrap().reconcile_after(), None);
}

#[test]
fn look_up_with_unsuitable_settings_does_not_start() {
    for (variable, value) in [
        ("PAYMENT_GATEWAY_RECONCILE", "yes"),
        ("PAYMENT_GATEWAY_RECONCILE_AFTER", "5s"),
        ("IDEMPOTENCY_KEY", "message-id"),
        ("IDEMPOTENCY_KEY", "body:/paymentId"),
        ("IDEMPOTENCY_KEY", ""),
    ] {
        let (settings, gateway) = without_keys([(variable, value)]);
        assert!(gateway.is_err(), "{variable}={value}");
        assert!(settings.errors()[0].contains(variable), "{settings:?}");
    }
    let longer = [
        ("PAYMENT_GATEWAY_TIMEOUT", "30s"),
        ("PAYMENT_GATEWAY_RECONCILE_AFTER", "31s"),
    ];
    assert!(without_keys(longer).1.is_ok());
}

#[test]
fn invalid_gateway_settings_are_reported_together() {
    let invalid = [
        ("PAYMENT_GATEWAY_URL", "http://gateway.example"),
        ("PAYMENT_GATEWAY_TIMEOUT", "0s"),
        ("PAYMENT_GATEWAY_API_KEY", "s3cr3t\ns3cr3t"),
    ];
    let mut settings = Settings::from_vars(invalid);
    assert!(Gateway::read(&mut settings).is_err());
    let errors = format!("{settings:?}");
    for (name, _) in invalid {
        assert!(errors.contains(name), "{name} is missing in: {errors}");
    }
    assert!(!errors.contains("s3cr3t"), "{errors}");
}

/// Without keys, the gateway can't know whether an earlier attempt charged.
#[test]
fn decline_under_a_call_key_closes_every_attempt() {
    let kind = |has_keys| {
        let response = http::Response::builder().status(402).body("").unwrap();
        refused(&response.into(), has_keys).kind()
    };
    assert_eq!(kind(true), FailureKind::Declined);
    assert_eq!(kind(false), FailureKind::Permanent);
}

#[test]
fn status_about_the_order_is_permanent() {
    for status in [400, 406, 410, 411, 413, 415, 418, 422, 451, 499] {
        let failure = of_status(status);
        assert_eq!(failure.kind(), FailureKind::Permanent, "{status}");
    }
}

#[test]
fn status_unrelated_to_order_is_retryable() {
    let retryable = |status| {
        let failure = of_status(status);
        assert_eq!(failure.kind(), FailureKind::Retryable, "{failure:?}");
        failure.to_string()
    };
    for status in [
        407, 408, 409, 425, 429, 500, 502, 503, 504, 599, 199, 301, 307, 600,
    ] {
        assert!(retryable(status).contains(&status.to_string()), "{status}");
    }
    for (status, advice) in [
        (401, "check PAYMENT_GATEWAY_API_KEY"),
        (403, "check PAYMENT_GATEWAY_API_KEY"),
        (404, "check PAYMENT_GATEWAY_URL"),
        (405, "check PAYMENT_GATEWAY_URL"),
        (308, "check PAYMENT_GATEWAY_URL"),
    ] {
        assert!(retryable(status).contains(advice), "{status}");
    }
}

#[test]
fn wait_of_a_busy_gateway_is_passed_on() {
    for status in [429, 503] {
        let failure = of_response(status, "Retry-After", "120");
        assert_eq!(failure.kind(), FailureKind::Retryable);
        assert_eq!(failure.requested_wait(), Some(Duration::from_secs(120)));
        assert_eq!(failure.is_for_all(), status == 429);
    }
    assert_eq!(of_status(503).requested_wait(), None);
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let now = UNIX_EPOCH + Duration::from_secs(784_111_700);
    let parsed = |value: &[u8]| {
        let value = HeaderValue::from_bytes(value).unwrap();
        retry_after(&HeaderMap::from_iter([(RETRY_AFTER, value)]), now)
    };
    for (value, seconds) in [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("99999999999999999999999", u64::MAX),
        // The three forms of RFC 9110.
        ("Sun, 06 Nov 1994 08:49:37 GMT", 77),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 77),
        ("Sun Nov  6 08:49:37 1994", 77),
    ] {
        let expected = Some(Duration::from_secs(seconds));
        assert_eq!(parsed(value.as_bytes()), expected, "{value}");
    }
    for garbage in [
        "",
        "-1",
        "+5",
        "1.5",
        "1e9",
        "120s",
        "soon",
        "120, 60",
        "Sun, 06 Nov 1994 08:00:00 GMT", // it is over
        "Sun, 99 Nov 1994 08:49:37 GMT",
    ] {
        assert_eq!(parsed(garbage.as_bytes()), None, "{garbage}");
    }
    assert_eq!(parsed(b"\xff12"), None);
}

#[test]
fn replayed_answer_is_called_so() {
    for (status, kind) in [(500, FailureKind::Retryable), (402, FailureKind::Declined)] {
        let failure = of_response(status, "Idempotent-Replayed", "true");
        assert!(failure.to_string().contains("replayed"), "{failure}");
        assert_eq!(failure.kind(), kind);
        let first = of_response(status, "Idempotent-Replayed", "false");
        assert!(!first.to_string().contains("replayed"), "{first}");
    }
}

/// How the peer of a connection behaves.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Closed before the client sent anything.
    Closed,
    /// Open but silent.
    Silent,
    /// Closed when the request has arrived.
    Unanswered,
    /// Closed when the second request has arrived. The first gets its response.
    SecondUnanswered,
    /// Closed in the middle of the response's body.
    CutOff,
}

/// Returns the base URL of a gateway that treats every connection alike.
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
                End::CutOff => {
                    read_request(&mut connection).await;
                    let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\nhalf";
                    connection.write_all(answer).await.unwrap();
                }
            }
        }
    });
    format!("{scheme}://{address}")
}

/// Returns the URL of a port that nobody listens on.
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

fn gateway(url: &str, timeout: &str) -> Gateway {
    let mut settings = Settings::from_vars([
        ("PAYMENT_GATEWAY_URL", url),
        ("PAYMENT_GATEWAY_TIMEOUT", timeout),
        ("PAYMENT_GATEWAY_API_KEY", "s3cr3t"),
    ]);
    Gateway::read(&mut settings).unwrap()
}

async fn charge(gateway: &Gateway) -> Result<Box<RawValue>, Failure> {
    charge_in(gateway, None).await
}

/// Charges the order of a message with this X-Ray header.
async fn charge_in(gateway: &Gateway, trace: Option<&str>) -> Result<Box<RawValue>, Failure> {
    charge_body(gateway, BODY, trace).await
}

async fn charge_body(
    gateway: &Gateway,
    body: &str,
    trace: Option<&str>,
) -> Result<Box<RawValue>, Failure> {
    let delivery = DeliveryMetadata {
        trace_header: trace.map(str::to_owned),
        ..DeliveryMetadata::default()
    };
    let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(60), Duration::ZERO);
    let attempt = Attempt::new(key(), delivery.into(), History::fresh(), deadline);
    let order = serde_json::from_str(body).unwrap();
    gateway.charge(&order, &attempt).await
}

fn key() -> Key {
    Key::new(&Namespace::new("payments").unwrap(), ["o-1"]).unwrap()
}

const LONG: &str = "30s";
const SHORT: &str = "500ms";

#[tokio::test]
async fn failure_to_connect_has_no_effect() {
    for (url, timeout) in [
        (refusing().await, LONG),
        // RFC 2606 reserves the name, so it has no address.
        ("https://gateway.invalid".to_owned(), LONG),
        // A failed TLS handshake, and a handshake that times out.
        (serve("https", End::Closed).await, LONG),
        (serve("https", End::Silent).await, "2s"),
    ] {
        let failure = charge(&gateway(&url, timeout)).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::NoEffect, "{url}: {failure:?}");
        // The URL may contain credentials.
        let text = failure.to_string();
        assert!(text.contains("onnect") && !text.contains(&url), "{text}");
    }
}

#[tokio::test]
async fn failure_after_sent_request_is_retryable() {
    for (url, timeout) in [
        (serve("http", End::Unanswered).await, LONG),
        (serve("http", End::Silent).await, SHORT),
    ] {
        let failure = charge(&gateway(&url, timeout)).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Retryable, "{url}: {failure:?}");
    }
    // A charge without a key is sent only once, even over a connection that was used before.
    let url = serve("http", End::SecondUnanswered).await;
    let gateway = without_keys([("PAYMENT_GATEWAY_URL", &*url)]).1.unwrap();
    assert!(charge(&gateway).await.is_ok());
    let failure = charge(&gateway).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Retryable, "{failure:?}");
}

/// The first request may have charged, whatever happens to the second.
#[tokio::test]
async fn repetition_that_cannot_connect_is_retryable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        drop(listener);
        read_request(&mut connection).await;
    });
    let failure = charge(&gateway(&url, LONG)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Retryable, "{failure:?}");
}

/// How a frozen process's connections die.
#[derive(Clone, Copy, Debug)]
enum Frozen {
    /// Reset at the next byte.
    Reset,
    /// Closed when the next request has arrived.
    Closed,
    /// Dropped by the network: no request gets an answer.
    Silent,
}

/// A gateway to which ten connections are opened before the freeze. Connections that are opened later work.
struct Freezing {
    url: String,
    is_frozen: Arc<AtomicBool>,
    /// Requests over connections that work.
    requests: Arc<AtomicUsize>,
}

const POOLED: usize = 10;

impl Freezing {
    async fn start(frozen: Frozen) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (is_frozen, requests) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (freezes, counted) = (Arc::clone(&is_frozen), Arc::clone(&requests));
        let all_open = Arc::new(Barrier::new(POOLED));
        tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                let dies = !freezes.load(SeqCst);
                let (freezes, counted) = (Arc::clone(&freezes), Arc::clone(&counted));
                let all_open = Arc::clone(&all_open);
                tokio::spawn(async move {
                    loop {
                        let mut first = [0];
                        if connection.peek(&mut first).await.unwrap_or(0) == 0 {
                            return;
                        }
                        let is_dead = dies && freezes.load(SeqCst);
                        match frozen {
                            // Unread bytes make this a reset.
                            Frozen::Reset if is_dead => return,
                            Frozen::Silent if is_dead => std::future::pending().await,
                            _ => read_request(&mut connection).await,
                        }
                        if is_dead {
                            return;
                        }
                        counted.fetch_add(1, SeqCst);
                        if dies {
                            all_open.wait().await;
                        }
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                        connection.write_all(answer).await.unwrap();
                    }
                });
            }
        });
        Self {
            url,
            is_frozen,
            requests,
        }
    }

    /// Charges ten orders at once, freezes, and charges ten more one after the other. Returns the failures of the last ten.
    async fn failures_after_thaw(&self, gateway: &Gateway) -> Vec<Failure> {
        for charged in join_all((0..POOLED).map(|_| charge(gateway))).await {
            charged.unwrap();
        }
        self.is_frozen.store(true, SeqCst);
        self.requests.store(0, SeqCst);
        let mut failures = Vec::new();
        for _ in 0..POOLED {
            failures.extend(charge(gateway).await.err());
        }
        failures
    }
}

#[tokio::test]
async fn dead_connections_cost_no_receive_with_keys() {
    for frozen in [Frozen::Reset, Frozen::Closed] {
        let freezing = Freezing::start(frozen).await;
        let gateway = gateway(&freezing.url, LONG);
        let failures = freezing.failures_after_thaw(&gateway).await;
        assert!(failures.is_empty(), "{frozen:?}: {failures:?}");
        assert_eq!(freezing.requests.load(SeqCst), POOLED, "{frozen:?}");
    }
}

#[tokio::test]
async fn dead_connections_cost_one_receive_otherwise() {
    for (frozen, has_keys) in [
        (Frozen::Reset, false),
        (Frozen::Closed, false),
        // The gateway may just be slow.
        (Frozen::Silent, false),
        (Frozen::Silent, true),
    ] {
        let freezing = Freezing::start(frozen).await;
        let gateway = if has_keys {
            gateway(&freezing.url, SHORT)
        } else {
            let timeout = ("PAYMENT_GATEWAY_TIMEOUT", SHORT);
            let url = ("PAYMENT_GATEWAY_URL", &*freezing.url);
            without_keys([url, timeout]).1.unwrap()
        };
        let failures = freezing.failures_after_thaw(&gateway).await;
        let [failure] = &failures[..] else {
            panic!("{frozen:?}, {has_keys}: {failures:?}");
        };
        assert_eq!(failure.kind(), FailureKind::Retryable, "{frozen:?}");
        let charged = freezing.requests.load(SeqCst);
        assert_eq!(charged, POOLED - 1, "{frozen:?}, {has_keys}");
    }
}

#[tokio::test]
async fn cut_off_answer_to_a_charge_is_a_success() {
    let gateway = gateway(&serve("http", End::CutOff).await, LONG);
    let receipt = charge(&gateway).await.unwrap();
    assert!(receipt.get().contains("broke off"), "{receipt}");
}

/// A gateway that answers with this request header.
async fn echoing(header: &'static str) -> Gateway {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let echo = async move |headers: HeaderMap| format!("{:?}", headers.get(header));
    let app = Router::new().route("/charges", post(echo));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    gateway(&url, LONG)
}

/// If a gateway refuses a known key with another body, that says nothing about the first request.
#[tokio::test]
async fn order_sent_again_asks_the_gateway_the_same() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().route("/charges", post(async |body: String| body));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let gateway = gateway(&url, LONG);
    for body in [
        BODY,
        r#"{"sentAt":"10:00:10","orderId":"o-1","amount":1.00,"currency":"EUR"}"#,
        r#"{"currency":"EUR","amount":10e-1,"orderId":"o-1","sentAt":"10:00:13"}"#,
    ] {
        let sent = charge_body(&gateway, body, None).await.unwrap();
        assert_eq!(sent.get(), BODY);
    }
}

#[tokio::test]
async fn api_key_is_sent_as_bearer_token() {
    let sent = charge(&echoing("authorization").await).await.unwrap();
    assert!(sent.get().contains("Bearer s3cr3t"), "{sent}");
}

#[tokio::test]
async fn trace_header_of_the_message_is_passed_on() {
    let gateway = echoing("x-amzn-trace-id").await;
    let header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
    let sent = charge_in(&gateway, Some(header)).await.unwrap();
    assert!(sent.get().contains(header), "{sent}");
    for none in [None, Some("no\nheader")] {
        let sent = charge_in(&gateway, none).await.unwrap();
        assert_eq!(sent.get(), "\"None\"");
    }
}

/// A gateway that answers GET /charges with this status and body, and POST with the `Idempotency-Key` that it got.
async fn listing(status: u16, body: &'static str) -> Gateway {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let list = async move || (StatusCode::from_u16(status).unwrap(), body);
    let charge = async |headers: HeaderMap| format!("{:?}", headers.get("idempotency-key"));
    let app = Router::new().route("/charges", post(charge).get(list));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    without_keys([("PAYMENT_GATEWAY_URL", &*url)]).1.unwrap()
}

async fn look_up(gateway: &Gateway) -> Result<LookedUp<Box<RawValue>>, Failure> {
    let order = serde_json::from_str(BODY).unwrap();
    gateway.look_up(&key(), &order).await
}

#[tokio::test]
async fn charge_is_found_only_in_a_list() {
    let gateway = listing(200, r#"[{"id":"ch_1","amount":1}]"#).await;
    let found = look_up(&gateway).await.unwrap();
    assert!(matches!(found, LookedUp::Found(charge) if charge.get().contains("ch_1")));
    let gateway = listing(200, "[]").await;
    assert!(matches!(look_up(&gateway).await, Ok(LookedUp::NotFound)));
    // The gateway has no idempotency keys, so it gets none.
    assert_eq!(charge(&gateway).await.unwrap().get(), "\"None\"");
}

#[tokio::test]
async fn other_status_leaves_the_charge_unknown() {
    for status in [201, 204, 301, 400, 401, 404, 429, 500, 503] {
        let unknown = look_up(&listing(status, "[]").await).await;
        let text = unknown.unwrap_err().to_string();
        assert!(text.contains(&status.to_string()), "{status}: {text}");
    }
    let refusing = without_keys([("PAYMENT_GATEWAY_URL", &*refusing().await)]);
    let text = look_up(&refusing.1.unwrap()).await.unwrap_err().to_string();
    assert!(
        !text.contains("127.0.0.1") && !text.contains("o-1"),
        "{text}"
    );
}

#[test]
fn api_key_is_not_in_debug_output() {
    let headers = authorization("s3cr3t").unwrap();
    assert_eq!(headers[AUTHORIZATION], "Bearer s3cr3t");
    let debug = format!("{headers:?}");
    assert!(debug.contains("Sensitive"), "{debug}");
    assert!(!debug.contains("s3cr3t"), "{debug}");
}
