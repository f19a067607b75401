//! A payment gateway and an SQS in one. They quote every request in their responses.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use support::{
    dynamo::{Dynamo, record_of_another},
    faults::Fault,
    runtime_api::NAMESPACE,
};

pub(super) const TABLE: &str = "idempotency";

/// Marker in every response.
pub(super) const ANSWER: &str = "s3cr3t-answer";
/// Part of the gateway's URL, for users whose URL is the password.
pub(super) const PATH: &str = "s3cr3t-path";

/// The gateway's API key.
pub(super) const API_KEY: &str = "s3cr3t-api-key";

pub(super) struct QuotingServer {
    pub(super) dynamo: Dynamo,
    /// Requested operations of SQS.
    pub(super) asked: Mutex<BTreeSet<String>>,
}

async fn answer(
    State(quoting_server): State<Arc<QuotingServer>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let body = String::from_utf8_lossy(&body).into_owned();
    let quoted = format!("{ANSWER}: you sent {headers:?} and {body}");
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some((_, operation)) = header("x-amz-target").and_then(|name| name.split_once('.')) {
        quoting_server
            .asked
            .lock()
            .unwrap()
            .insert(operation.to_owned());
        return match operation {
            "GetQueueUrl" => json!({"QueueUrl": "http://sqs.example/1/orders"}).to_string(),
            "GetQueueAttributes" => {
                let dead = "arn:aws:sqs:eu-central-1:123456789012:orders-dead";
                let policy = json!({"deadLetterTargetArn": dead, "quoted": quoted}).to_string();
                json!({"Attributes": {"RedrivePolicy": policy, "MessageRetentionPeriod": quoted}})
                    .to_string()
            }
            // SQS quotes a receipt handle that it rejects.
            _ if body.contains("no-such-receipt") => {
                let error = json!({"__type": "com.amazonaws.sqs#ReceiptHandleIsInvalid", "message": quoted});
                return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
            }
            _ => {
                let failed = json!({"Id": "0", "Code": "ReceiptHandleIsInvalid", "Message": quoted, "SenderFault": true});
                json!({"Successful": [], "Failed": [failed]}).to_string()
            }
        }
        .into_response();
    }
    assert_eq!(uri.path(), format!("/{PATH}/charges"));
    assert_eq!(
        header("authorization"),
        Some(format!("Bearer {API_KEY}").as_str())
    );
    let order: Value = serde_json::from_str(&body).unwrap();
    let status = match order["orderId"].as_str().unwrap() {
        "declined" => StatusCode::PAYMENT_REQUIRED,
        "unprocessable" => StatusCode::UNPROCESSABLE_ENTITY,
        "busy" => StatusCode::SERVICE_UNAVAILABLE,
        "moved" => StatusCode::TEMPORARY_REDIRECT,
        "unauthorized" => StatusCode::UNAUTHORIZED,
        "lost" => {
            quoting_server.take_over("lost").await;
            StatusCode::CREATED
        }
        hangs if hangs.starts_with("hangs") => std::future::pending().await,
        "unrecorded" => {
            quoting_server
                .dynamo
                .fail_all("UpdateItem", Fault::CutBefore);
            StatusCode::CREATED
        }
        _ => StatusCode::CREATED,
    };
    (
        status,
        [("location", format!("/{ANSWER}"))],
        json!({"quoted": quoted}).to_string(),
    )
        .into_response()
}

impl QuotingServer {
    /// With a table, and the URL for both services.
    pub(super) async fn start() -> (Arc<Self>, String) {
        let dynamo = Dynamo::start().await;
        dynamo.create_table(TABLE).await;
        let quoting_server = Arc::new(Self {
            dynamo,
            asked: Mutex::default(),
        });
        let app = Router::new()
            .fallback(answer)
            .with_state(quoting_server.clone());
        (
            quoting_server,
            format!("http://{}", support::serve(app).await),
        )
    }

    /// Another worker completes the operation in progress here.
    async fn take_over(&self, message_id: &str) {
        let result = json!(ANSWER).to_string();
        let record = json!({"status": "COMPLETED", "result": result});
        self.put(message_id, &record).await;
    }

    /// Another worker holds the claim, with a long lease.
    pub(super) async fn claim(&self, message_id: &str) {
        self.put(message_id, &json!({})).await;
    }

    /// An expired record that DynamoDB's TTL has not deleted yet.
    pub(super) async fn expire(&self, message_id: &str) {
        let record = json!({"status": "COMPLETED", "result": "1", "expires_at": 1});
        self.put(message_id, &record).await;
    }

    /// Another worker's record.
    async fn put(&self, message_id: &str, record: &Value) {
        let item = record_of_another(&format!("{NAMESPACE}#{message_id}"), record);
        self.dynamo.put(TABLE, item).await;
    }
}
