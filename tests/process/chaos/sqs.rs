//! The API calls of a consumer, answered by a queue.

use std::sync::Arc;

use axum::{Json, Router, body::Bytes, extract::State, http::HeaderMap};
use serde_json::{Value, json};
use support::event::QUEUE_ARN;

use crate::chaos::{
    ledger::Event,
    queue::{NAME, Queue},
};

impl Queue {
    /// Serves `GetQueueUrl`, `GetQueueAttributes`, `ChangeMessageVisibilityBatch` and
    /// `SendMessageBatch`, to the dead-letter queue.
    pub(crate) async fn serve(self: &Arc<Self>) -> String {
        let app = Router::new().fallback(answer).with_state(self.clone());
        format!("http://{}", support::serve(app).await)
    }
}

async fn answer(State(queue): State<Arc<Queue>>, headers: HeaderMap, body: Bytes) -> Json<Value> {
    let body: Value = serde_json::from_slice(&body).unwrap();
    if headers["x-amz-target"] == "AmazonSQS.GetQueueUrl" {
        let name = body["QueueName"].as_str().unwrap();
        return Json(json!({"QueueUrl": format!("https://sqs.example/123456789012/{name}")}));
    }
    if headers["x-amz-target"] == "AmazonSQS.GetQueueAttributes" {
        let dead = format!("{QUEUE_ARN}-dead");
        let policy =
            json!({"deadLetterTargetArn": dead, "maxReceiveCount": queue.rules.max_receive_count});
        return Json(json!({"Attributes": {"RedrivePolicy": policy.to_string()}}));
    }
    let mut successful = Vec::new();
    if headers["x-amz-target"] == "AmazonSQS.SendMessageBatch" {
        for entry in body["Entries"].as_array().unwrap() {
            let text = |name: &str| {
                let value = &entry["MessageAttributes"][name]["StringValue"];
                value.as_str().unwrap().to_owned()
            };
            let (message, reason) = (text(NAME), text("SqsOnceReason"));
            queue.ledger.note(Event::Copied {
                message: message.clone(),
                reason,
            });
            queue.copied(&message);
            successful
                .push(json!({"Id": entry["Id"], "MessageId": "copy", "MD5OfMessageBody": "0"}));
        }
        return Json(json!({"Successful": successful, "Failed": []}));
    }
    for entry in body["Entries"].as_array().unwrap() {
        let seconds = entry["VisibilityTimeout"].as_u64().unwrap();
        queue.change_visibility(entry["ReceiptHandle"].as_str().unwrap(), seconds);
        successful.push(json!({"Id": entry["Id"]}));
    }
    Json(json!({"Successful": successful, "Failed": []}))
}
