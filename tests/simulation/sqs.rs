//! The SDK's client of SQS over a connector in memory.

use std::{collections::BTreeMap, sync::Arc};

use aws_sdk_sqs::Client;
use serde_json::{Value, json};

use crate::{
    ledger::Event,
    plan::Service,
    sdk::{Answer, Request, service},
    world::{Member, World},
};

pub const QUEUE_ARN: &str = "arn:aws:sqs:eu-central-1:123456789012:orders";
const DEAD_LETTERS: &str = "orders-dead";

/// Returns a client through which a process calls the queues.
pub fn client(world: &Arc<World>, member: &Member) -> Client {
    let fault = |worker| Event::SqsFault { worker };
    Client::new(&service(world, member, fault, serve))
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
            json!({"QueueUrl": format!("http://sqs/{}", body["QueueName"].as_str().unwrap_or(""))})
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
        "SendMessageBatch" => of_entries(entries, |entry| copy(world, entry)),
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
    let attributes = entry["MessageAttributes"].as_object();
    let texts = attributes
        .into_iter()
        .flatten()
        .filter_map(|(name, of)| Some((name.clone(), of["StringValue"].as_str()?.to_owned())));
    let texts: BTreeMap<_, _> = texts.collect();
    let message = texts.get("id").ok_or("MissingParameter")?.clone();
    if world.is_out(Service::DeadLetters) || world.strikes(world.plan.rates.sqs_refused) {
        world.note(Event::CopyRefused { message });
        return Err("ServiceUnavailable");
    }
    let deduplication_id = entry["MessageDeduplicationId"].as_str();
    if world.plan.fifo != deduplication_id.is_some() {
        return Err("InvalidParameterValue");
    }
    let reason = texts.get("SqsOnceReason").cloned().unwrap_or_default();
    world
        .queue
        .add_dead_letter(&message, deduplication_id, texts);
    world.note(Event::Copied { message, reason });
    Ok(())
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
