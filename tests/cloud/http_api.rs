//! crates/sqs-once/examples/http_api.rs, request by request.

#[path = "../../crates/sqs-once/examples/http_api.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has its own main")]
mod example;

use axum::body::to_bytes;
use lambda_http::{http::StatusCode, request};
use lambda_runtime::tower::ServiceExt as _;
use serde_json::{Value, json};
use sqs_once::{
    Failure, Once,
    protocol::{Key, Namespace, Timestamp},
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

    async fn send(&self, store: &MemoryStore) -> (StatusCode, Value) {
        self.pay(&Gateway::start().await, store).await
    }

    async fn pay(&self, gateway: &Gateway, store: &MemoryStore) -> (StatusCode, Value) {
        let api = example::api(Once::new(store.clone()), gateway.url()).unwrap();
        let mut request = request::from_str(&self.event().to_string()).unwrap();
        let json = "application/json".parse().unwrap();
        request.headers_mut().insert("content-type", json);
        let mut context = lambda_http::Context::default();
        let ends_at = Timestamp::now() + std::time::Duration::from_secs(30);
        context.deadline = ends_at.as_millis();
        request.extensions_mut().insert(context);
        let response = api.oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }
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
        let answer = user().pay(&gateway, &store).await;
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
        (Reply::Status(302), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let (store, gateway) = (MemoryStore::default(), Gateway::start().await);
        gateway.script("o-1", [reply]);
        let answer = user().pay(&gateway, &store).await;
        assert_eq!(answer.0, status);
    }
    let (store, gateway) = (MemoryStore::default(), Gateway::start().await);
    gateway.close().await;
    let answer = user().pay(&gateway, &store).await;
    assert_eq!(answer.0, StatusCode::SERVICE_UNAVAILABLE);
    // Nothing is recorded, so it runs again.
    let answer = user().pay(&gateway, &store).await;
    assert_eq!(answer.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn other_payload_under_a_key_is_refused() {
    let store = MemoryStore::default();
    assert_eq!(user().send(&store).await.0, StatusCode::CREATED);
    let other = user()
        .body(r#"{"orderId": "o-1", "cents": 2}"#)
        .send(&store)
        .await;
    assert_eq!(other.0, StatusCode::UNPROCESSABLE_ENTITY);
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
            Timestamp::now(),
            std::time::Duration::from_secs(30),
            std::time::Duration::ZERO,
        ),
    );
    let once = Once::new(store.clone());
    let mut first =
        Box::pin(once.run(operation, |_| std::future::pending::<Result<(), Failure>>()));
    assert!(futures_util::poll!(&mut first).is_pending());
    assert_eq!(user().send(&store).await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn declined_payment_gets_same_response() {
    let (store, gateway) = (MemoryStore::default(), Gateway::start().await);
    gateway.script("o-1", [Reply::Status(402)]);
    let first = user().pay(&gateway, &store).await;
    assert_eq!(first.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(user().pay(&gateway, &store).await, first);
    assert_eq!(gateway.calls().len(), 1);
}

#[tokio::test]
async fn request_without_key_is_refused() {
    let store = MemoryStore::default();
    for key in [None, Some("\"\"")] {
        let call = Call { key, ..user() };
        assert_eq!(call.send(&store).await.0, StatusCode::BAD_REQUEST);
    }
    assert!(store.is_empty());
}
