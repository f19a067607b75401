//! The observer of a consumer.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use sqs_once::{
    Attempt, Consumer, Failure, Once, handler_fn, protocol::Namespace, store::MemoryStore,
};
use support::event::{batch, record};

/// One message, as an observer saw it.
#[derive(Debug, PartialEq)]
struct Seen {
    message_id: String,
    outcome: &'static str,
    ran: bool,
    key: Option<String>,
}

#[tokio::test]
async fn observer_sees_each_message_once() {
    async fn handle(body: Value, _: Attempt) -> Result<(), Failure> {
        match body["act"].as_str() {
            Some("fail") => Err(Failure::retryable("busy")),
            Some("panic") => panic!("on request"),
            _ => Ok(()),
        }
    }
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let observed = Arc::clone(&seen);
    let once = Once::new(MemoryStore::default());
    let consumer = Consumer::without_aws(once, Namespace::new("test").unwrap(), handler_fn(handle));
    let consumer = consumer.on_outcome(move |message| {
        observed.lock().unwrap().push(Seen {
            message_id: message.message_id.to_owned(),
            outcome: message.outcome.name(),
            ran: message.handler_duration.is_some(),
            key: message.key.map(ToString::to_string),
        });
        assert!(message.duration >= message.handler_duration.unwrap_or_default());
        assert!(!message.dead_lettered);
        panic!("an observer's panic changes nothing");
    });
    let event = batch([
        record("m-1", r#"{"act":"succeed"}"#),
        record("m-2", r#"{"act":"fail"}"#),
        record("m-3", r#"{"act":"panic"}"#),
        record("m-4", "{"),
        record("m-1", r#"{"act":"succeed"}"#),
    ]);
    let event = serde_json::from_value(event).unwrap();
    let deadline = consumer.deadline(sqs_once::protocol::Timestamp::default());
    let response = consumer.process(event, deadline).await.unwrap();
    assert_eq!(response.batch_item_failures.len(), 3);
    let expected = [
        ("m-1", "completed", true),
        ("m-2", "retryable_failure", true),
        ("m-3", "panicked", true),
        // Decoding the body is part of the attempt.
        ("m-4", "invalid", true),
        ("m-1", "duplicate", false),
    ];
    let expected = expected.map(|(message_id, outcome, ran)| Seen {
        message_id: message_id.to_owned(),
        outcome,
        ran,
        key: Some(format!("test#{message_id}")),
    });
    assert_eq!(*seen.lock().unwrap(), expected);
}
