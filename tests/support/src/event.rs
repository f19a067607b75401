//! SQS events as an event source mapping sends them, and the reading of responses.

use std::collections::HashMap;

use aws_sdk_sqs::types::Message;
use serde_json::{Value, json};
use sqs_once::protocol::Timestamp;

pub const QUEUE_ARN: &str = "arn:aws:sqs:eu-central-1:123456789012:orders";

/// One record of a batch, received for the first time.
pub fn record(message_id: &str, body: &(impl ToString + ?Sized)) -> Value {
    received(message_id, body, 1)
}

/// One record of a batch, received for the `n`th time.
pub fn received(message_id: &str, body: &(impl ToString + ?Sized), n: u32) -> Value {
    json!({
        "messageId": message_id,
        "receiptHandle": format!("receipt-{message_id}-{n}"),
        "body": body.to_string(),
        "attributes": {
            "ApproximateReceiveCount": n.to_string(),
            "SentTimestamp": "1796000000000",
            "SenderId": "AIDAEXAMPLE",
            "ApproximateFirstReceiveTimestamp": "1796000000100",
        },
        "messageAttributes": {},
        "md5OfBody": "7b270e59b47ff90a553787216d55d91d",
        "eventSource": "aws:sqs",
        "eventSourceARN": QUEUE_ARN,
        "awsRegion": super::REGION,
    })
}

/// The same record, sent at this time.
pub fn sent_at(mut record: Value, at: Timestamp) -> Value {
    record["attributes"]["SentTimestamp"] = json!(at.as_millis().to_string());
    record
}

/// The record of a message that was received from the queue `arn`, without message attributes.
pub fn polled(message: &Message, arn: &str) -> Value {
    let attributes = message.attributes.iter().flatten();
    let attributes = attributes.map(|(name, value)| (name.as_str(), value.as_str()));
    json!({
        "messageId": message.message_id,
        "receiptHandle": message.receipt_handle,
        "body": message.body,
        "attributes": attributes.collect::<HashMap<_, _>>(),
        "messageAttributes": {},
        "md5OfBody": message.md5_of_body,
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": super::REGION,
    })
}

/// The same record, sent to a group of a FIFO queue.
pub fn in_group(mut record: Value, group: &str) -> Value {
    record["eventSourceARN"] = json!(format!("{QUEUE_ARN}.fifo"));
    record["attributes"]["MessageGroupId"] = json!(group);
    record
}

/// The event of these records.
pub fn batch(records: impl IntoIterator<Item = Value>) -> Value {
    json!({ "Records": records.into_iter().collect::<Vec<_>>() })
}

/// Body of an order.
pub fn order(id: &str) -> Value {
    json!({"orderId": id, "amount": 99.99, "currency": "EUR", "customerId": "c-17"})
}

/// Identifiers that a response reports as failed, in its order.
///
/// Strict as Lambda is: after a malformed response Lambda would redeliver the whole batch.
#[track_caller]
pub fn failed(response: &Value) -> Vec<String> {
    let failures = response["batchItemFailures"].as_array();
    let failures = failures.unwrap_or_else(|| panic!("not a batch response: {response}"));
    let identifier = |failure: &Value| match failure["itemIdentifier"].as_str() {
        Some(id) if !id.is_empty() => id.to_owned(),
        _ => panic!("a batch item failure without an identifier: {response}"),
    };
    failures.iter().map(identifier).collect()
}
