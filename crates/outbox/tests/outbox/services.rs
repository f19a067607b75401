//! Events through SNS and EventBridge of an emulator, to a consumer that is keyed on the event's id.

use std::{
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_lambda_events::dynamodb::Event;
use aws_sdk_sqs::types::{Message, QueueAttributeName};
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Done, Event as Published, Failure, Once, Operation, handler_fn,
    protocol::{Key, Timestamp},
    sqs::{Envelope, KeySource},
    store::{DynamoStore, MemoryStore},
};
use sqs_once_outbox::Relay;
use support::{PATIENCE, consumer::namespace, dynamo::create_table, prerequisite::emulator};

use super::stream::{Stream, create_outbox};

struct Queue {
    url: String,
    arn: String,
}

async fn create_queue(sqs: &aws_sdk_sqs::Client, name: &str) -> Queue {
    let url = sqs
        .create_queue()
        .queue_name(name)
        .send()
        .await
        .unwrap()
        .queue_url
        .unwrap();
    let attributes = sqs
        .get_queue_attributes()
        .queue_url(&url)
        .attribute_names(QueueAttributeName::QueueArn)
        .send()
        .await
        .unwrap();
    let arn = attributes
        .attributes
        .unwrap()
        .remove(&QueueAttributeName::QueueArn)
        .unwrap();
    Queue { url, arn }
}

async fn receive(sqs: &aws_sdk_sqs::Client, queue: &Queue) -> Message {
    let receive = sqs
        .receive_message()
        .queue_url(&queue.url)
        .message_attribute_names("All")
        // The maximum.
        .wait_time_seconds(20);
    let mut messages = receive.send().await.unwrap().messages.unwrap_or_default();
    messages.pop().unwrap()
}

/// The key and the value that a consumer of this envelope sees.
async fn consumed(message: &Message, envelope: Envelope, key: &str) -> (String, Value) {
    let seen = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&seen);
    let echo = handler_fn(move |body: Value, attempt: Attempt| {
        *keep.lock().unwrap() = Some((attempt.key().to_string(), body));
        ready(Ok::<_, Failure>(()))
    });
    let consumer = Consumer::without_aws(Once::new(MemoryStore::default()), namespace(), echo)
        .envelope(envelope)
        .key(key.parse::<KeySource>().unwrap());
    let attributes = message.message_attributes.clone().unwrap_or_default();
    let attributes = attributes.into_iter().map(|(name, value)| {
        (
            name,
            json!({"stringValue": value.string_value, "dataType": value.data_type}),
        )
    });
    let mut record = support::event::record("m-1", message.body.as_deref().unwrap());
    record["messageAttributes"] = Value::Object(attributes.collect());
    let event = serde_json::from_value(support::event::batch([record])).unwrap();
    let deadline = Deadline::after(Timestamp::now(), PATIENCE, Duration::ZERO);
    let response = consumer.process(event, deadline).await.unwrap();
    assert!(response.batch_item_failures.is_empty());
    let seen = seen.lock().unwrap().take();
    seen.unwrap()
}

#[tokio::test]
async fn event_reaches_consumers_behind_each_service() {
    let endpoint = emulator();
    let config = support::sdk_config(&endpoint);
    let (sqs, sns) = (
        aws_sdk_sqs::Client::new(&config),
        aws_sdk_sns::Client::new(&config),
    );
    let buses = aws_sdk_eventbridge::Client::new(&config);
    let dynamodb = aws_sdk_dynamodb::Client::new(&config);
    let name = format!("outbox-{}", uuid::Uuid::new_v4());
    let [direct, wrapped, raw, ruled, dead] = ["direct", "wrapped", "raw", "ruled", "dead"];
    let queue = async |kind: &str| create_queue(&sqs, &format!("{name}-{kind}")).await;
    let (direct, wrapped, raw) = (queue(direct).await, queue(wrapped).await, queue(raw).await);
    let (ruled, dead) = (queue(ruled).await, queue(dead).await);
    let topic = sns
        .create_topic()
        .name(&name)
        .send()
        .await
        .unwrap()
        .topic_arn
        .unwrap();
    for (queue, is_raw) in [(&wrapped, "false"), (&raw, "true")] {
        let subscribe = sns
            .subscribe()
            .topic_arn(&topic)
            .protocol("sqs")
            .endpoint(&queue.arn);
        subscribe
            .attributes("RawMessageDelivery", is_raw)
            .send()
            .await
            .unwrap();
    }
    let bus = buses
        .create_event_bus()
        .name(&name)
        .send()
        .await
        .unwrap()
        .event_bus_arn
        .unwrap();
    let rule = buses.put_rule().event_bus_name(&name).name("all");
    rule.event_pattern(r#"{"source":["shop"]}"#)
        .send()
        .await
        .unwrap();
    let target = aws_sdk_eventbridge::types::Target::builder()
        .id("1")
        .arn(&ruled.arn)
        .build();
    let targets = buses.put_targets().event_bus_name(&name).rule("all");
    targets.targets(target.unwrap()).send().await.unwrap();

    let (records, outbox) = (format!("{name}-records"), format!("{name}-outbox"));
    create_table(&dynamodb, &records).await;
    create_outbox(&dynamodb, &outbox).await;
    let once = Once::new(DynamoStore::new(dynamodb.clone(), &records).outbox(outbox.clone()));
    let key = Key::new(&namespace(), ["o-1"]).unwrap();
    let deadline = Deadline::after(Timestamp::now(), PATIENCE, Duration::ZERO);
    let publish = async |_| {
        let event = |name| Published::new(name, &json!({"orderId": "o-1"})).group("c-1");
        Ok(Done::new(())
            .publish(event("to-queue"))
            .publish(event("to-topic"))
            .publish(event("to-bus")))
    };
    let outcome = once
        .run(Operation::new(key, None, "m-1", deadline), publish)
        .await;
    assert!(outcome.is_success(), "{outcome:?}");

    // Without `Settings`: MiniStack does not find a bus by its ARN, and a relay checks its targets.
    let targets = format!("to-queue={},to-topic={topic},to-bus={bus}", direct.url);
    let relay = Relay::new(&config, targets.parse().unwrap(), &dead.url).unwrap();
    let relay = relay.source("shop");
    let mut stream = Stream::open(&dynamodb, &endpoint, &outbox).await;
    let batch: Event = serde_json::from_value(json!({ "Records": stream.read().await })).unwrap();
    assert_eq!(batch.records.len(), 1, "events of one group");
    let response = relay.process(batch, deadline).await;
    assert!(response.batch_item_failures.is_empty(), "{response:?}");

    let order = json!({"orderId": "o-1"});
    let id = |index| format!("test#test\\#o-1\\#0{index}");
    for (queue, envelope, key, index, body) in [
        (
            &direct,
            Envelope::None,
            "attribute:idempotencyKey",
            0,
            &order,
        ),
        (
            &wrapped,
            Envelope::Auto,
            "attribute:idempotencyKey",
            1,
            &order,
        ),
        (&raw, Envelope::None, "attribute:idempotencyKey", 1, &order),
        (
            &ruled,
            Envelope::Auto,
            "body:/metadata/idempotencyKey",
            2,
            &json!({"metadata": {"idempotencyKey": "test#o-1#02", "group": "c-1"}, "data": order}),
        ),
    ] {
        let message = receive(&sqs, queue).await;
        let (key, seen) = consumed(&message, envelope, key).await;
        assert_eq!((key, &seen), (id(index), body), "{envelope:?}");
    }
}
