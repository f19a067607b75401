//! Baseline of `make bench`: one plain PutItem and one plain UpdateItem for each message. No
//! conditions, no logs, no timeouts, and no batch item failures.

use aws_config::BehaviorVersion;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use lambda_runtime::{Error, LambdaEvent, run, service_fn};

/// As many as the consumer handles at once.
const CONCURRENCY: usize = 10;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let http = Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let config = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
    let client = Client::new(&config.load().await);
    let table = std::env::var("IDEMPOTENCY_TABLE_NAME")?;

    let (client, table) = (&client, table.as_str());
    let batch = async move |event: LambdaEvent<SqsEvent>| {
        stream::iter(event.payload.records)
            .map(|message| write_twice(client, table, message))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await?;
        Ok::<_, Error>(SqsBatchResponse::default())
    };
    run(service_fn(batch)).await
}

async fn write_twice(client: &Client, table: &str, message: SqsMessage) -> Result<(), Error> {
    let id = AttributeValue::S(message.message_id.ok_or("no messageId")?);
    client
        .put_item()
        .table_name(table)
        .item("id", id.clone())
        .item("status", AttributeValue::S("IN_PROGRESS".into()))
        .send()
        .await?;
    client
        .update_item()
        .table_name(table)
        .key("id", id)
        .update_expression("SET #status = :status")
        .expression_attribute_names("#status", "status")
        .expression_attribute_values(":status", AttributeValue::S("COMPLETED".into()))
        .send()
        .await?;
    Ok(())
}
