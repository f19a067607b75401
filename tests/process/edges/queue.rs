//! Permanent failures on their way to the dead-letter queue, or without one.

use serde_json::Value;
use support::{
    PATIENCE,
    event::{in_group, order, received, record},
    gateway::Reply,
    runtime_api::{FUNCTION_NAME, of_batch, says},
    sqs::{DEAD_LETTER_QUEUE_ARN, SqsBehaviour},
    stage::{Stage, outcome, outcomes},
};
use tokio::time::timeout;

use super::{deliver, first_message, line_of};

const BACKOFF: (&str, &str) = ("CONSUMER_BACKOFF_BASE", "10s");

/// Messages m-1, m-2 and m-3 of one group, the first of which the gateway declines.
fn group(stage: &Stage) -> [Value; 3] {
    stage.gateway.script("o-1", [Reply::Status(402)]);
    [1, 2, 3].map(|n| {
        let message = record(&format!("m-{n}"), &order(&format!("o-{n}")));
        in_group(message, "customer-17")
    })
}

#[tokio::test]
async fn fifo_message_after_declined_order_is_charged() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    let messages = group(&stage);
    for _ in 0..2 {
        assert_eq!(deliver(&lambda, messages.clone()).await, ["m-1"]);
    }
    let outcomes = outcomes(&lambda, 6).await;
    let first = [outcome::PERMANENT, outcome::COMPLETED, outcome::COMPLETED];
    assert_eq!(outcomes[..3], first);
    let orders: Vec<_> = stage.gateway.calls().into_iter().map(|c| c.order).collect();
    assert_eq!(orders, ["o-1", "o-2", "o-3"]);
}

#[tokio::test]
async fn fifo_group_stops_at_declined_order_if_set() {
    let stage = Stage::set().await;
    let settings = [("CONSUMER_FIFO_AFTER_PERMANENT", "stop")];
    let lambda = stage.consumer(&settings).await;
    let failed = deliver(&lambda, group(&stage)).await;
    assert_eq!(failed, ["m-1", "m-2", "m-3"]);
    assert_eq!(
        outcomes(&lambda, 3).await,
        [
            outcome::PERMANENT,
            outcome::NOT_STARTED,
            outcome::NOT_STARTED
        ]
    );
    assert_eq!(stage.gateway.calls().len(), 1);
}

#[tokio::test]
async fn declined_order_without_dlq_backs_off() {
    let stage = Stage::set().await;
    stage.sqs.has(None, 4 * 24 * 3600);
    let lambda = stage.consumer(&[BACKOFF]).await;
    stage.gateway.script("o-1", [Reply::Status(402)]);
    for n in 1..=6 {
        assert_eq!(deliver(&lambda, [first_message(n)]).await, ["m-1"]);
    }
    let waits: Vec<_> = stage.sqs.changes().iter().map(|(_, wait)| *wait).collect();
    // A dead-letter queue is assumed until SQS has returned the redrive policy.
    let expected = [0..=10, 10..=20, 20..=40, 40..=80, 80..=160, 160..=320];
    assert_eq!(waits.len(), expected.len());
    for (wait, expected) in waits.iter().zip(expected) {
        assert!(expected.contains(wait), "{waits:?}");
    }
    assert_eq!(stage.charges("o-1"), 1);
    let warns = |line: &Value| line["level"] == "WARN" && says(line, "no dead-letter queue");
    assert_eq!(lambda.logged(1, warns).await.len(), 1);
    assert_eq!(stage.sqs.calls("GetQueueAttributes").len(), 1);
}

#[tokio::test]
async fn declined_order_with_dlq_is_visible_at_once() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[BACKOFF]).await;
    stage.gateway.script("o-1", [Reply::Status(402)]);
    // The consumer reads the redrive policy beside the first response.
    let visible_at_once = async {
        while stage.sqs.changes().last().map(|(_, wait)| *wait) != Some(0) {
            let failed = deliver(&lambda, [first_message(3)]).await;
            assert_eq!(failed, ["m-1"]);
        }
    };
    let visible_at_once = timeout(PATIENCE, visible_at_once).await;
    assert!(visible_at_once.is_ok(), "{:?}", stage.sqs.changes());
}

const DIRECT: (&str, &str) = ("CONSUMER_DIRECT_DEAD_LETTERING", "on");
const DEAD: &str = "/orders-dead";

/// The text of a copy's attribute.
fn attribute<'a>(copy: &'a Value, name: &str) -> &'a str {
    copy["MessageAttributes"][name]["StringValue"]
        .as_str()
        .unwrap()
}

#[tokio::test]
async fn declined_order_is_dead_lettered_directly() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[DIRECT]).await;
    stage.gateway.script("o-1", [Reply::Status(402)]);
    stage.dynamo.reset_counts();
    assert_eq!(deliver(&lambda, [first_message(1)]).await, [""; 0]);
    assert_eq!(stage.dynamo.counts().values().sum::<usize>(), 2);
    assert_eq!(stage.status("m-1").await, "FAILED");
    assert!(DEAD_LETTER_QUEUE_ARN.ends_with(&DEAD[1..]));
    let [copy] = &stage.sqs.sent_to(DEAD)[..] else {
        panic!("{:?}", stage.sqs.sent_to(DEAD));
    };
    assert_eq!(copy["MessageBody"], order("o-1").to_string());
    assert_eq!(attribute(copy, "SqsOnceReason"), outcome::PERMANENT);
    let error = attribute(copy, "SqsOnceError");
    assert!(error.contains("402"), "{error}");
    let key = format!("{FUNCTION_NAME}#m-1");
    assert_eq!(attribute(copy, "SqsOnceKey"), key);
    assert_eq!(stage.sqs.changes(), []);
    let line = lambda.logged(1, of_batch).await.remove(0);
    assert_eq!(line["dead_lettered"], 1);
    assert_eq!(line["failed"], 0);
}

#[tokio::test]
async fn declined_order_without_copy_is_reported() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[DIRECT]).await;
    stage
        .sqs
        .turn_for("SendMessageBatch", SqsBehaviour::FailingFirst);
    let messages = ["1", "2"].map(|n| {
        let order_id = format!("o-{n}");
        stage.gateway.script(&order_id, [Reply::Status(402)]);
        received(&format!("m-{n}"), &order(&order_id), 1)
    });
    assert_eq!(deliver(&lambda, messages).await, ["m-1"]);
    let [copy] = &stage.sqs.sent_to(DEAD)[..] else {
        panic!("{:?}", stage.sqs.sent_to(DEAD));
    };
    assert_eq!(copy["MessageBody"], order("o-2").to_string());
    assert_eq!(stage.sqs.changes(), [("receipt-m-1-1".to_owned(), 0)]);
    let line = line_of(&lambda, "m-1", 1).await;
    assert_eq!(line["outcome"], outcome::PERMANENT);
}
