//! Baseline of `make bench`: a plain loop of SDK calls. For each message it sends the shortest claim that could be
//! written and the shortest completion, with a fixed text for the charge. It stays as it is: what we make faster or
//! slower in the library changes nothing here.
//!
//! One thread, and all messages of a batch at a time. No decisions, no logs, no timeouts, and no batch
//! item failures.

use std::time::{Duration, SystemTime};

use aws_config::BehaviorVersion;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use lambda_runtime::{Error, LambdaEvent, run, service_fn};

/// As long as a random owner token.
const OWNER: &str = "0e82848aba8447ea8740f36e488e32d6";

#[tokio::main(flavor = "current_thread")]
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
            .buffer_unordered(usize::MAX)
            .try_collect::<()>()
            .await?;
        Ok::<_, Error>(SqsBatchResponse::default())
    };
    run(service_fn(batch)).await
}

#[expect(
    clippy::disallowed_methods,
    reason = "the loop has no tests that replace its clock"
)]
async fn write_twice(client: &Client, table: &str, message: SqsMessage) -> Result<(), Error> {
    let id = message.message_id.ok_or("no messageId")?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let later = now + Duration::from_secs(30);
    client
        .put_item()
        .table_name(table)
        .item("id", text(&*id))
        .item("owner", text(OWNER))
        .item("lease_until", number(later.as_millis()))
        .condition_expression("attribute_not_exists(id)")
        .send()
        .await?;
    let result = format!("{{\"id\":\"sandbox:payments#{id}\",\"status\":\"succeeded\"}}");
    client
        .update_item()
        .table_name(table)
        .key("id", text(id))
        .update_expression("SET #result = :result REMOVE lease_until")
        .condition_expression("#owner = :me")
        .expression_attribute_names("#result", "result")
        .expression_attribute_names("#owner", "owner")
        .expression_attribute_values(":result", text(result))
        .expression_attribute_values(":me", text(OWNER))
        .send()
        .await?;
    Ok(())
}

fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn number(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}
