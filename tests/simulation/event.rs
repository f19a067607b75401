//! The event of an invocation, and its response as the event source mapping reads it.

use std::collections::BTreeMap;

use serde_json::{Value, json, value::to_raw_value};

use crate::{
    plan::{KeyFrom, Kind, Message, Wrapping},
    queue::Received,
    s3::BODIES,
    sqs::{OTHER_QUEUE_ARN, QUEUE_ARN},
    world::World,
};

/// Returns the event with a batch.
pub fn event(batch: &[Received], world: &World) -> Box<serde_json::value::RawValue> {
    let suffix = if world.plan.fifo { ".fifo" } else { "" };
    let records: Vec<_> = batch
        .iter()
        .map(|received| {
            let message = &received.message;
            let (body, of_body) = body(message, world);
            let sent = world.wall().as_millis().saturating_sub(
                u64::try_from((world.age() - message.sent.min(world.age())).as_millis()).unwrap_or(0),
            );
            let mut attributes = message.attributes.clone();
            attributes.insert("id".into(), message.id.clone());
            attributes.extend(of_body);
            let attributes: BTreeMap<_, _> = attributes
                .into_iter()
                .map(|(name, value)| (name, json!({"dataType": "String", "stringValue": value})))
                .collect();
            let mut record = json!({
                "messageId": message.id,
                "receiptHandle": received.receipt(),
                "body": body,
                "attributes": {
                    "ApproximateReceiveCount": received.count.to_string(),
                    "SentTimestamp": sent.to_string(),
                    "ApproximateFirstReceiveTimestamp": received.first_received.as_millis().to_string(),
                },
                "messageAttributes": attributes,
                "eventSource": "aws:sqs",
                "eventSourceARN": format!("{}{suffix}", queue_arn(message)),
                "awsRegion": "eu-central-1",
            });
            if let Some(group) = &message.group {
                record["attributes"]["MessageGroupId"] = json!(group);
                record["attributes"]["MessageDeduplicationId"] = json!(message.deduplication_id());
            }
            record
        })
        .collect();
    to_raw_value(&json!({ "Records": records })).expect("JSON")
}

fn queue_arn(message: &Message) -> &'static str {
    if message.in_other_queue {
        OTHER_QUEUE_ARN
    } else {
        QUEUE_ARN
    }
}

/// Returns the body of a message, and the message attributes that belong to it.
fn body(message: &Message, world: &World) -> (String, Vec<(String, String)>) {
    let plan = &world.plan;
    let mut content = match message.kind {
        Kind::Undecodable => json!({"not": "an order"}),
        _ => json!({"order": message.order}),
    };
    if message.payload > 0 {
        content["card"] = message.payload.into();
    }
    let mut attributes = Vec::new();
    if plan.bodies_in_s3 {
        let path = format!("/{BODIES}/{}", message.id);
        world.objects.put(path, content.to_string().into_bytes());
        content = json!({"s3BucketName": BODIES, "s3Key": message.id});
        attributes.push(("ExtendedPayloadSize".to_owned(), "300000".to_owned()));
    }
    let order = (plan.key == KeyFrom::Attribute).then(|| message.order.clone());
    let (inside, beside) = match plan.wrapping {
        Wrapping::Sns => (order, None),
        Wrapping::Bare | Wrapping::EventBridge => (None, order),
    };
    attributes.extend(beside.map(|order| ("order".to_owned(), order)));
    let body = match plan.wrapping {
        Wrapping::Bare => content,
        Wrapping::Sns => json!({
            "Type": "Notification",
            "TopicArn": "arn:aws:sns:eu-central-1:123456789012:orders",
            "MessageId": format!("sns-{}", message.id),
            "Message": content.to_string(),
            "MessageAttributes": inside.map_or_else(
                || json!({}),
                |order| json!({"order": {"Type": "String", "Value": order}}),
            ),
        }),
        Wrapping::EventBridge => json!({
            "id": format!("event-{}", message.id),
            "source": "shop",
            "detail-type": "order",
            "time": "2026-11-26T00:00:00Z",
            "detail": content,
        }),
    };
    (body.to_string(), attributes)
}

/// Returns the messages that a response names, as the event source mapping reads it.
pub fn failures(response: &Value, batch: &[Received]) -> Result<Vec<String>, String> {
    let named = response["batchItemFailures"]
        .as_array()
        .ok_or("no batchItemFailures")?;
    let mut ids = Vec::new();
    let mut rest = batch.iter().map(|received| &received.message.id);
    for failure in named {
        let id = failure["itemIdentifier"]
            .as_str()
            .ok_or("no itemIdentifier")?;
        if !rest.any(|known| known == id) {
            return Err(format!("{id} is unknown, named twice, or out of order"));
        }
        ids.push(id.to_owned());
    }
    Ok(ids)
}
