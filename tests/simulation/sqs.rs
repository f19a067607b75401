//! The queues beside the consumer's own: dead letters, and what the relay sends to. The SDK's client of SQS over a
//! connector in memory.

use std::{collections::BTreeMap, sync::Arc};

use aws_config::SdkConfig;
use aws_sdk_sqs::Client;
use serde_json::{Value, json};

use crate::{
    ledger::Event,
    plan::Service,
    sdk::{Answer, Request, service},
    world::{Member, World},
};

pub const QUEUE_ARN: &str = "arn:aws:sqs:eu-central-1:123456789012:orders";
/// Of another consumer, which has the same namespace by mistake.
pub const OTHER_QUEUE_ARN: &str = "arn:aws:sqs:eu-central-1:123456789012:invoices";
const DEAD_LETTERS: &str = "orders-dead";
/// Where the relay sends events, and those that it cannot send.
pub const TARGET: &str = "charges";
pub const DEAD_EVENTS: &str = "charges-dead";

pub fn url(queue: &str) -> String {
    format!("http://sqs/{queue}")
}

/// Returns a client through which a process calls the queues.
pub fn client(world: &Arc<World>, member: &Member) -> Client {
    Client::new(&config(world, member))
}

pub fn config(world: &Arc<World>, member: &Member) -> SdkConfig {
    service(world, member, |worker| Event::SqsFault { worker }, serve)
}

fn serve(world: &World, request: &Request) -> Answer {
    let (status, body) = answer(world, &request.operation, &request.json());
    (status, body.to_string().into_bytes())
}

fn answer(world: &World, operation: &str, body: &Value) -> (u16, Value) {
    if world.is_out(Service::Credentials) {
        return (403, json!({"__type": "com.amazonaws.sqs#ExpiredToken"}));
    }
    if world.is_out(Service::Sqs) || world.strikes(world.plan.rates.sqs_refused) {
        return (500, json!({"__type": "com.amazonaws.sqs#InternalFailure"}));
    }
    let retention = world.plan.retention.as_secs().to_string();
    let entries = body["Entries"].as_array().map_or(&[][..], Vec::as_slice);
    let answer = match operation {
        "GetQueueUrl" => {
            json!({"QueueUrl": url(body["QueueName"].as_str().unwrap_or(""))})
        }
        "GetQueueAttributes" => {
            let policy = json!({
                "deadLetterTargetArn": format!("arn:aws:sqs:eu-central-1:123456789012:{DEAD_LETTERS}"),
                "maxReceiveCount": world.plan.timeouts.max_receives,
            });
            json!({"Attributes": {"MessageRetentionPeriod": retention, "RedrivePolicy": policy.to_string()}})
        }
        "ChangeMessageVisibilityBatch" => of_entries(entries, |entry| {
            if world.strikes(world.plan.rates.sqs_refused) {
                return Err("InternalError");
            }
            let seconds = entry["VisibilityTimeout"]
                .as_u64()
                .ok_or("MissingParameter")?;
            let receipt = entry["ReceiptHandle"].as_str().ok_or("MissingParameter")?;
            let message = world.queue.hide(receipt, seconds)?;
            world.note(Event::Hidden { message, seconds });
            Ok(())
        }),
        "SendMessageBatch" if body["QueueUrl"] == url(DEAD_LETTERS) => {
            of_entries(entries, |entry| copy(world, entry))
        }
        "SendMessageBatch" => {
            let queue = body["QueueUrl"].as_str().unwrap_or_default();
            // A target that is out may throttle, for longer than an event may fail.
            let throttles = || {
                world.strikes(world.plan.rates.throttled)
                    || world.is_out(Service::Target) && world.dice().chance(0.5)
            };
            let is_throttled = queue != url(DEAD_EVENTS) && throttles();
            if is_throttled && world.dice().chance(0.5) {
                entries
                    .iter()
                    .for_each(|entry| note_throttled(world, entry));
                return (400, json!({"__type": "com.amazonaws.sqs#RequestThrottled"}));
            }
            of_entries(entries, |entry| {
                if is_throttled && world.dice().chance(0.5) {
                    note_throttled(world, entry);
                    return Err("RequestThrottled");
                }
                take(world, queue, entry)
            })
        }
        _ => {
            return (
                400,
                json!({"__type": "com.amazonaws.sqs#UnsupportedOperation"}),
            );
        }
    };
    (200, answer)
}

/// Takes the copy of a message into the dead-letter queue.
fn copy(world: &World, entry: &Value) -> Result<(), &'static str> {
    let texts = attributes(entry);
    let message = texts.get("id").ok_or("MissingParameter")?.clone();
    if world.is_out(Service::DeadLetters) || world.strikes(world.plan.rates.sqs_refused) {
        world.note(Event::CopyRefused { message });
        return Err("ServiceUnavailable");
    }
    let deduplication_id = entry["MessageDeduplicationId"].as_str();
    if world.plan.fifo != deduplication_id.is_some() {
        return Err("InvalidParameterValue");
    }
    let [reason, error] =
        ["SqsOnceReason", "SqsOnceError"].map(|name| texts.get(name).cloned().unwrap_or_default());
    world
        .queue
        .add_dead_letter(&message, deduplication_id, texts.clone());
    world.note(Event::Copied {
        message,
        reason,
        error,
        attributes: texts,
    });
    Ok(())
}

fn note_throttled(world: &World, entry: &Value) {
    let id = attributes(entry).remove("idempotencyKey");
    world.note(Event::EventThrottled {
        id: id.unwrap_or_default(),
    });
}

/// Takes an event from the relay.
fn take(world: &World, queue: &str, entry: &Value) -> Result<(), &'static str> {
    let mut texts = attributes(entry);
    let id = texts.remove("idempotencyKey").ok_or("MissingParameter")?;
    let is_dead = queue == url(DEAD_EVENTS);
    let service = if is_dead {
        Service::DeadLetters
    } else {
        Service::Target
    };
    if world.is_out(service) || world.strikes(world.plan.rates.sqs_refused) {
        world.note(Event::EventRefused { id });
        return Err("ServiceUnavailable");
    }
    let in_group = entry["MessageGroupId"].as_str().map(str::to_owned);
    let has_id = entry["MessageDeduplicationId"] == *id;
    let is_fifo = queue.ends_with(".fifo");
    if is_fifo != has_id || is_fifo && in_group.is_none() {
        return Err("InvalidParameterValue");
    }
    world.note(Event::Relayed {
        id,
        name: texts.remove("eventName").unwrap_or_default(),
        body: entry["MessageBody"].as_str().unwrap_or_default().to_owned(),
        group: in_group.or(texts.remove("eventGroup")),
        dead: texts.remove("SqsOnceReason").filter(|_| is_dead),
    });
    Ok(())
}

fn attributes(entry: &Value) -> BTreeMap<String, String> {
    let attributes = entry["MessageAttributes"].as_object();
    attributes
        .into_iter()
        .flatten()
        .filter_map(|(name, of)| Some((name.clone(), of["StringValue"].as_str()?.to_owned())))
        .collect()
}

/// Serves each entry of a batch, independently of the others.
fn of_entries(entries: &[Value], serve: impl Fn(&Value) -> Result<(), &'static str>) -> Value {
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for entry in entries {
        match serve(entry) {
            Ok(()) => successful
                .push(json!({"Id": entry["Id"], "MessageId": "copy", "MD5OfMessageBody": "0"})),
            Err(code) => failed.push(json!({"Id": entry["Id"], "Code": code, "SenderFault": true})),
        }
    }
    json!({"Successful": successful, "Failed": failed})
}
