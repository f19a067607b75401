//! `examples/http_api.rs`, request by request.

#[path = "../../examples/http_api.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has its own main")]
mod example;

use lambda_http::{Body, http::StatusCode, request};
use serde_json::{Value, json};
use sqs_once::{
    Failure, Once,
    protocol::{AfterFailure, Key, Namespace},
    store::MemoryStore,
};
use support::gateway::{Gateway, Reply};

/// Request as API Gateway sends it, to an HTTP API or to a REST API.
#[derive(Clone)]
struct Call {
    rest: bool,
    /// `requestContext.authorizer`.
    authorizer: Value,
    /// `requestContext.identity` of a REST API.
    identity: Value,
    method: &'static str,
    path: &'static str,
    key: Option<&'static str>,
    body: String,
}

impl Call {
    fn of_user(sub: &str) -> Self {
        Self {
            rest: false,
            authorizer: json!({ "jwt": { "claims": { "sub": sub }, "scopes": null } }),
            identity: json!({}),
            method: "POST",
            path: "/payments",
            key: Some("k-1"),
            body: r#"{"orderId": "o-1", "cents": 1}"#.into(),
        }
    }

    fn rest(authorizer: Value, identity: Value) -> Self {
        Self {
            rest: true,
            authorizer,
            identity,
            ..Self::of_user("")
        }
    }

    fn body(self, body: &str) -> Self {
        Self {
            body: body.into(),
            ..self
        }
    }

    fn event(&self) -> Value {
        let headers = self
            .key
            .map_or_else(|| json!({}), |key| json!({ "idempotency-key": key }));
        if self.rest {
            return json!({
                "resource": self.path,
                "path": self.path,
                "httpMethod": self.method,
                "headers": headers,
                "multiValueHeaders": {},
                "requestContext": {
                    "httpMethod": self.method,
                    "stage": "$default",
                    "authorizer": self.authorizer,
                    "identity": self.identity,
                },
                "body": self.body,
                "isBase64Encoded": false,
            });
        }
        json!({
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": self.path,
            "rawQueryString": "",
            "headers": headers,
            "requestContext": {
                "stage": "$default",
                "authorizer": self.authorizer,
                "http": {
                    "method": self.method,
                    "path": self.path,
                    "protocol": "HTTP/1.1",
                    "sourceIp": "127.0.0.1",
                    "userAgent": "test",
                },
            },
            "body": self.body,
            "isBase64Encoded": false,
        })
    }

    async fn answer(&self, store: &MemoryStore, anonymous: bool) -> (StatusCode, Value) {
        self.pay(&Gateway::start().await, store, anonymous).await
    }

    async fn pay(
        &self,
        gateway: &Gateway,
        store: &MemoryStore,
        anonymous: bool,
    ) -> (StatusCode, Value) {
        let gateway = example::Gateway::new(gateway.url()).unwrap();
        let request = request::from_str(&self.event().to_string()).unwrap();
        let response = example::answer(&once(store), &gateway, anonymous, request).await;
        let response = response.unwrap();
        let Body::Text(text) = response.body() else {
            panic!("no text: {response:?}")
        };
        (response.status(), serde_json::from_str(text).unwrap())
    }

    async fn send(&self, store: &MemoryStore) -> (StatusCode, Value) {
        self.answer(store, false).await
    }
}

fn once(store: &MemoryStore) -> Once<MemoryStore> {
    Once::new(store.clone()).after_failure(AfterFailure::Replay)
}

fn user() -> Call {
    Call::of_user("u-1")
}

#[tokio::test]
async fn repeated_request_gets_same_response() {
    let store = MemoryStore::default();
    let first = user().send(&store).await;
    assert_eq!(first.0, StatusCode::CREATED);
    assert!(first.1["payment"].is_string(), "{}", first.1);
    let quoted = Call {
        key: Some("\"k-1\""),
        ..user()
    };
    for again in [user(), quoted] {
        assert_eq!(again.send(&store).await, first);
    }
    assert_eq!(store.len(), 1);
}

#[tokio::test]
async fn payment_is_charged_once_under_its_key() {
    let (store, gateway) = (MemoryStore::default(), Gateway::start().await);
    for _ in 0..2 {
        let answer = user().pay(&gateway, &store, false).await;
        assert_eq!(answer.0, StatusCode::CREATED);
        let calls = gateway.calls();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].body, json!({ "orderId": "o-1", "cents": 1 }));
        assert_eq!(calls[0].key.as_deref(), answer.1["payment"].as_str());
    }
}

#[tokio::test]
async fn refusal_of_gateway_decides_response() {
    for (reply, status) in [
        (Reply::Status(402), StatusCode::UNPROCESSABLE_ENTITY),
        (Reply::Status(503), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let (store, gateway) = (MemoryStore::default(), Gateway::start().await);
        gateway.script("o-1", [reply]);
        let answer = user().pay(&gateway, &store, false).await;
        assert_eq!(answer.0, status);
    }
    let (store, gateway) = (MemoryStore::default(), Gateway::start().await);
    gateway.close().await;
    let answer = user().pay(&gateway, &store, false).await;
    assert_eq!(answer.0, StatusCode::SERVICE_UNAVAILABLE);
    // It had no effect, so the next one is told of nothing, and runs.
    let answer = user().pay(&gateway, &store, false).await;
    assert_eq!(answer.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn payload_counts_by_its_canonical_json() {
    let store = MemoryStore::default();
    let body = |body: &str| user().body(body);
    let first = body(r#"{"orderId": "o-1", "cents": 1, "note": "é"}"#)
        .send(&store)
        .await;
    assert_eq!(first.0, StatusCode::CREATED);
    for same in [
        r#"{"note":"é","cents":1,"orderId":"o-1"}"#,
        "{\n  \"note\": \"\\u00e9\",\n  \"orderId\": \"o-1\",\n  \"cents\": 1.0\n}",
    ] {
        assert_eq!(body(same).send(&store).await, first, "{same}");
    }
    for other in [
        r#"{"orderId": "o-1", "cents": 1}"#,
        r#"{"orderId": "o-1", "cents": 2, "note": "é"}"#,
    ] {
        let answer = body(other).send(&store).await;
        assert_eq!(answer.0, StatusCode::UNPROCESSABLE_ENTITY, "{other}");
    }
}

#[tokio::test]
async fn callers_with_same_key_get_own_results() {
    let jwt = |sub: &str| Call::of_user(sub);
    let iam = |arn: &str| Call {
        authorizer: json!({ "iam": { "userArn": arn, "userId": "AIDA", "accessKey": "ASIA" } }),
        ..user()
    };
    let lambda = |id: &str| Call {
        authorizer: json!({ "lambda": { "principalId": id } }),
        ..user()
    };
    let no = || json!(null);
    let callers = [
        jwt("u-1"),
        jwt("u-2"),
        iam("arn:aws:iam::123456789012:user/ada"),
        iam("u-1"),
        lambda("u-3"),
        lambda("u-4"),
        Call::rest(json!({ "principalId": "u-5" }), json!({})),
        Call::rest(json!({ "claims": { "sub": "u-6" } }), json!({})),
        Call::rest(
            no(),
            json!({ "userArn": "arn:aws:iam::123456789012:user/bob" }),
        ),
        Call::rest(no(), json!({ "apiKeyId": "key-1", "apiKey": "not the id" })),
        Call::rest(no(), json!({ "apiKeyId": "key-2", "apiKey": "not the id" })),
    ];
    let store = MemoryStore::default();
    for (n, caller) in callers.iter().enumerate() {
        // Another payload under a known key would be refused.
        let caller = caller
            .clone()
            .body(&json!({ "orderId": "o-1", "cents": n + 1 }).to_string());
        let first = caller.send(&store).await;
        assert_eq!(first.0, StatusCode::CREATED, "{n}");
        assert_eq!(store.len(), n + 1, "{n}");
        assert_eq!(caller.send(&store).await, first, "{n}");
    }
    assert_eq!(store.len(), callers.len());
}

#[tokio::test]
async fn method_and_path_are_part_of_key() {
    let store = MemoryStore::default();
    let to = |method, path| Call {
        method,
        path,
        ..user()
    };
    for (n, call) in [
        to("POST", "/payments"),
        to("POST", "/refunds"),
        to("PUT", "/payments"),
    ]
    .into_iter()
    .enumerate()
    {
        let call = call.body(&json!({ "orderId": "o-1", "cents": n + 1 }).to_string());
        assert_eq!(call.send(&store).await.0, StatusCode::CREATED, "{n}");
    }
    assert_eq!(store.len(), 3);
}

#[tokio::test]
async fn request_without_caller_is_refused() {
    let without = [
        Call {
            authorizer: json!(null),
            ..user()
        },
        Call::of_user(""),
        Call::rest(json!(null), json!({ "userArn": null, "apiKeyId": null })),
    ];
    for (n, call) in without.iter().enumerate() {
        let store = MemoryStore::default();
        let refused = call.send(&store).await;
        assert_eq!(refused.0, StatusCode::INTERNAL_SERVER_ERROR, "{n}");
        assert!(store.is_empty(), "{n}");
        let allowed = call.answer(&store, true).await;
        assert_eq!(allowed.0, StatusCode::CREATED, "{n}");
        assert_eq!(call.answer(&store, true).await, allowed, "{n}");
        // An identified caller still has its own results.
        let known = user()
            .body(r#"{"orderId": "o-1", "cents": 2}"#)
            .answer(&store, true)
            .await;
        assert_eq!(known.0, StatusCode::CREATED, "{n}");
    }
}

#[tokio::test]
async fn concurrent_request_is_a_conflict() {
    let store = MemoryStore::default();
    let parts = ["jwt", "u-1", "POST", "/payments", "k-1"];
    let operation = sqs_once::Operation::new(
        Key::new(&Namespace::new("payments-api").unwrap(), parts).unwrap(),
        None,
        sqs_once::internal::Delivery::new("first"),
        sqs_once::Deadline::after(
            sqs_once::protocol::Timestamp::now(),
            std::time::Duration::from_secs(30),
            std::time::Duration::ZERO,
        ),
    );
    let once = once(&store);
    let mut first =
        Box::pin(once.run(operation, |_| std::future::pending::<Result<(), Failure>>()));
    assert!(futures_util::poll!(&mut first).is_pending());
    assert_eq!(user().send(&store).await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn repeated_permanent_failure_gets_same_response() {
    let store = MemoryStore::default();
    let call = user().body(r#"{"orderId": "o-1", "cents": 0}"#);
    let first = call.send(&store).await;
    assert_eq!(first.0, StatusCode::UNPROCESSABLE_ENTITY);
    let detail = first.1["detail"].as_str().unwrap();
    assert!(detail.contains("not more than 0"), "{detail}");
    assert_eq!(call.send(&store).await, first);
}

#[tokio::test]
async fn request_without_key_or_payment_is_refused() {
    let store = MemoryStore::default();
    for (key, body) in [
        (None, r#"{"orderId": "o-1", "cents": 1}"#),
        (Some("\"\""), r#"{"orderId": "o-1", "cents": 1}"#),
        (Some("k-1"), "{}"),
        (Some("k-1"), "not JSON"),
    ] {
        let call = Call { key, ..user() }.body(body);
        assert_eq!(call.send(&store).await.0, StatusCode::BAD_REQUEST);
    }
    assert!(store.is_empty());
}
