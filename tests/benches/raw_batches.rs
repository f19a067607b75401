//! Second baseline of `make bench`: the plain loop, with its writes batched by hand. All claims of a batch go out in
//! groups of 25 statements, and then all completions. It stays as it is, like `raw_loop.rs`.

use std::time::{Duration, SystemTime};

use aws_config::BehaviorVersion;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use aws_sdk_dynamodb::{
    Client,
    types::{AttributeValue, BatchStatementRequest},
};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use lambda_runtime::{Error, LambdaEvent, run, service_fn};

/// As long as a random owner token.
const OWNER: &str = "0e82848aba8447ea8740f36e488e32d6";
/// Maximum number of statements in one `BatchExecuteStatement` (*Amazon DynamoDB API Reference*).
const STATEMENTS: usize = 25;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let http = Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let config = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
    let client = Client::new(&config.load().await);
    let table = std::env::var("IDEMPOTENCY_TABLE_NAME")?;
    let insert = format!("INSERT INTO \"{table}\" VALUE {{'id': ?, 'owner': ?, 'lease_until': ?}}");
    let update = format!(
        "UPDATE \"{table}\" SET \"result\" = ? REMOVE lease_until WHERE id = ? AND \"owner\" = ?"
    );

    let (client, insert, update) = (&client, &*insert, &*update);
    let batch = async move |event: LambdaEvent<SqsEvent>| {
        let records = event.payload.records.into_iter();
        let ids: Option<Vec<_>> = records.map(|message| message.message_id).collect();
        let ids = ids.ok_or("no messageId")?;
        let lease_until = lease_until()?;
        let claim = |id: &String| vec![text(id), text(OWNER), lease_until.clone()];
        write_all(client, insert, &ids, claim).await?;
        let complete = |id: &String| {
            let result = format!("{{\"id\":\"sandbox:payments#{id}\",\"status\":\"succeeded\"}}");
            vec![text(result), text(id), text(OWNER)]
        };
        write_all(client, update, &ids, complete).await?;
        Ok::<_, Error>(SqsBatchResponse::default())
    };
    run(service_fn(batch)).await
}

/// Sends a statement for each id.
async fn write_all(
    client: &Client,
    statement: &str,
    ids: &[String],
    values: impl Fn(&String) -> Vec<AttributeValue>,
) -> Result<(), Error> {
    let groups = ids.chunks(STATEMENTS).map(|ids| {
        let statements = ids.iter().map(|id| {
            let request = BatchStatementRequest::builder().statement(statement);
            request.set_parameters(Some(values(id))).build()
        });
        statements.collect::<Result<Vec<_>, _>>()
    });
    stream::iter(groups)
        .map(async |statements| {
            let request = client.batch_execute_statement();
            let answer = request.set_statements(Some(statements?)).send().await?;
            if answer.responses().iter().any(|one| one.error().is_some()) {
                return Err(Error::from("a statement failed"));
            }
            Ok(())
        })
        .buffer_unordered(usize::MAX)
        .try_collect()
        .await
}

#[expect(
    clippy::disallowed_methods,
    reason = "the loop has no tests that replace its clock"
)]
fn lease_until() -> Result<AttributeValue, Error> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(AttributeValue::N(
        (now + Duration::from_secs(30)).as_millis().to_string(),
    ))
}

fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}
