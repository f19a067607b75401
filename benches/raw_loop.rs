//! Baseline of `make bench`: the best plain loop of SDK calls. For each message it sends the two
//! requests of the consumer, with the same bytes, and a fixed text for the charge.
//!
//! One thread, and all messages of a batch at a time. No decisions, no logs, no timeouts, and no batch
//! item failures.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use aws_config::BehaviorVersion;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use aws_sdk_dynamodb::{
    Client,
    types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure},
};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use lambda_runtime::{Error, LambdaEvent, run, service_fn};

const CLAIM: &str = "SET #status = :in_progress, #lease_until = :lease_until, #owner = :owner, #expires_at = :expires_at, #message_id = :message_id, #fingerprint = :fingerprint, #created_at = if_not_exists(#created_at, :now), #updated_at = :now, #first_claimed_at = if_not_exists(#first_claimed_at, :now) REMOVE #last_end ADD #attempts :attempts";
const MAY_CLAIM: &str = "attribute_not_exists(#id) OR (#expires_at >= :now_s AND NOT contains(#failed_message_ids, :message_id) AND ((#status = :in_progress AND #lease_until < :now AND attribute_exists(#attempts) AND (attribute_not_exists(#fingerprint) OR #fingerprint = :fingerprint)) OR (#status = :failed AND (attribute_not_exists(#failed_message_ids) OR size(#failed_message_ids) < :max))))";
const CLAIM_NAMES: [&str; 13] = [
    "id",
    "status",
    "owner",
    "expires_at",
    "first_claimed_at",
    "failed_message_ids",
    "message_id",
    "updated_at",
    "attempts",
    "lease_until",
    "created_at",
    "last_end",
    "fingerprint",
];
const COMPLETE: &str = "SET #updated_at = :updated_at, #status = :status, #result = :result, #expires_at = :expires_at REMOVE #lease_until, #first_claimed_at, #last_end, #error, #failed_message_ids";
const MAY_COMPLETE: &str = "#owner = :me AND #status = :in_progress";
const COMPLETE_NAMES: [&str; 10] = [
    "updated_at",
    "first_claimed_at",
    "last_end",
    "status",
    "failed_message_ids",
    "result",
    "error",
    "expires_at",
    "owner",
    "lease_until",
];
/// As long as the consumer's random owner token.
const OWNER: &str = "0e82848aba8447ea8740f36e488e32d6";
/// As long as the consumer's fingerprint.
const FINGERPRINT: &str = "b0c4a3e4211cc5123a573cf27967c143088d76b331e979d8574ffa49db063b64";

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
    let key = text(format!("payments#{id}"));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let later = now + Duration::from_secs(20 * 86_400);
    let of_now = number(now.as_millis());
    let values = [
        (":now_s", number(now.as_secs())),
        (":message_id", text(&*id)),
        (":expires_at", number(later.as_secs())),
        (":max", number(20)),
        (":fingerprint", text(FINGERPRINT)),
        (":in_progress", text("IN_PROGRESS")),
        (":now", of_now.clone()),
        (":owner", text(OWNER)),
        (":lease_until", number(later.as_millis())),
        (":attempts", number(1)),
        (":failed", text("FAILED")),
    ];
    client
        .update_item()
        .table_name(table)
        .key("id", key.clone())
        .update_expression(CLAIM)
        .condition_expression(MAY_CLAIM)
        .set_expression_attribute_names(Some(names(&CLAIM_NAMES)))
        .set_expression_attribute_values(Some(named(values)))
        .return_values(ReturnValue::AllOld)
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .send()
        .await?;
    let result = format!("{{\"id\":\"sandbox:payments#{id}\",\"status\":\"succeeded\"}}");
    let values = [
        (":expires_at", number(later.as_secs())),
        (":updated_at", of_now),
        (":me", text(OWNER)),
        (":in_progress", text("IN_PROGRESS")),
        (":result", text(result)),
        (":status", text("COMPLETED")),
    ];
    client
        .update_item()
        .table_name(table)
        .key("id", key)
        .update_expression(COMPLETE)
        .condition_expression(MAY_COMPLETE)
        .set_expression_attribute_names(Some(names(&COMPLETE_NAMES)))
        .set_expression_attribute_values(Some(named(values)))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .send()
        .await?;
    Ok(())
}

fn names(names: &[&str]) -> HashMap<String, String> {
    let names = names.iter();
    names
        .map(|name| (format!("#{name}"), (*name).to_owned()))
        .collect()
}

fn named<const N: usize>(values: [(&str, AttributeValue); N]) -> HashMap<String, AttributeValue> {
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn number(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}
