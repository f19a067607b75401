//! Sends an order to SQS once: a producer for a consumer with `IDEMPOTENCY_KEY=attribute:idempotencyKey`.
//!
//! It stores the message's key with the order before it sends the message. After a crash or a lost response, it sends the
//! order again with the same key, so that the consumer recognizes a duplicate.
//!
//! ```sh
//! ORDERS_TABLE_NAME=orders QUEUE_URL=https://sqs... cargo run --example send_order -- o-1 9999
//! ```

use std::env;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use aws_sdk_sqs::types::MessageAttributeValue;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

/// An order's item, with the key that all messages of the order have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// Partition key of the item, and message group on a FIFO queue.
    pub order_id: String,
    /// Body of the message, as first stored.
    pub body: String,
    /// The operation's key: a UUIDv7.
    pub idempotency_key: String,
}

/// Stores an order with a new key. If the order is already stored, returns the stored body and key.
pub async fn store(
    orders: &aws_sdk_dynamodb::Client,
    table: &str,
    order_id: &str,
    body: &str,
) -> anyhow::Result<Pending> {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let update = orders.update_item().table_name(table);
    // A UUIDv7 begins with its time, so keys sort by the time of their orders.
    let stored = update
        .key("orderId", text(order_id))
        .update_expression(
            "SET idempotencyKey = if_not_exists(idempotencyKey, :key), \
             body = if_not_exists(body, :body)",
        )
        .expression_attribute_values(":key", text(&Uuid::now_v7().to_string()))
        .expression_attribute_values(":body", text(body))
        .return_values(ReturnValue::AllNew);
    let item = stored.send().await?.attributes.unwrap_or_default();
    Ok(serde_dynamo::from_item(item)?)
}

/// Sends an order's message, each time with the same key.
pub async fn send(
    sqs: &aws_sdk_sqs::Client,
    queue_url: &str,
    order: &Pending,
) -> anyhow::Result<()> {
    let key = MessageAttributeValue::builder()
        .data_type("String")
        .string_value(&order.idempotency_key)
        .build()?;
    let mut message = sqs.send_message().queue_url(queue_url);
    if queue_url.ends_with(".fifo") {
        message = message.message_group_id(&order.order_id);
        message = message.message_deduplication_id(&order.idempotency_key);
    }
    let message = message
        .message_attributes("idempotencyKey", key)
        .message_body(&order.body);
    message.send().await?;
    Ok(())
}

/// Marks an order as sent. When a producer starts, it sends all other orders again.
pub async fn mark_as_sent(
    orders: &aws_sdk_dynamodb::Client,
    table: &str,
    order: &Pending,
) -> anyhow::Result<()> {
    let update = orders.update_item().table_name(table);
    let update = update.key("orderId", AttributeValue::S(order.order_id.clone()));
    let update = update.update_expression("SET sent = :true");
    let update = update.expression_attribute_values(":true", AttributeValue::Bool(true));
    update.send().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (table, queue_url) = (env::var("ORDERS_TABLE_NAME")?, env::var("QUEUE_URL")?);
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [order_id, cents] = &arguments[..] else {
        anyhow::bail!("usage: send_order ORDER_ID CENTS");
    };
    let body =
        json!({"orderId": order_id, "amountCents": cents.parse::<u64>()?, "currency": "EUR"});

    let config = sqs_once::aws::config().await;
    let orders = aws_sdk_dynamodb::Client::new(&config);
    let sqs = aws_sdk_sqs::Client::new(&config);
    let order = store(&orders, &table, order_id, &body.to_string()).await?;
    send(&sqs, &queue_url, &order).await?;
    mark_as_sent(&orders, &table, &order).await
}
