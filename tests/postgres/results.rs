//! The place of outputs.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Settings, Stored,
    store::{Results, S3Results},
};
use sqs_once_postgres::{InTransaction, PostgresMode, Transaction};
use support::world::World;
use support::{
    PATIENCE,
    consumer::{namespace, process, within},
    event::{batch, record},
    s3::{BUCKET, S3, S3Put, impatient},
};

/// Handler whose output has as many letters as the message says. It asks for the output of duplicates.
#[derive(Clone, Default)]
struct Writer(Arc<Mutex<Vec<Option<String>>>>);

impl Handler for Writer {
    type Message = usize;
    type Output = InTransaction<String>;

    async fn handle(
        &self,
        letters: usize,
        attempt: Attempt,
    ) -> Result<InTransaction<String>, Failure> {
        Ok(Transaction::of(&attempt)?.done("x".repeat(letters)))
    }
}

impl Writer {
    async fn replay(self, stored: Stored<String>) -> Result<(), Failure> {
        let output = stored.output().await?;
        self.0.lock().unwrap().push(output);
        Ok(())
    }
}

/// Delivers a message with so many letters twice. Returns the output for the duplicate.
async fn replayed(
    letters: usize,
    consumer: Consumer<PostgresMode, Writer>,
    writer: &Writer,
) -> Value {
    let seen = writer.clone();
    let consumer = Arc::new(consumer.on_duplicate(move |_, stored, _| seen.clone().replay(stored)));
    for _ in 0..2 {
        let event = batch([record("m-1", &letters)]);
        assert_eq!(process(&consumer, event, within(PATIENCE)).await, [""; 0]);
    }
    let outputs = std::mem::take(&mut *writer.0.lock().unwrap());
    assert_eq!(outputs.len(), 1);
    outputs[0].as_deref().into()
}

/// The output in the record.
async fn result(world: &World) -> Option<String> {
    of_record(world, "result").await
}

/// One of the attributes that have no column.
async fn attribute(world: &World, name: &str) -> Option<String> {
    of_record(world, &format!("attributes::json->>'{name}'")).await
}

async fn of_record(world: &World, value: &str) -> Option<String> {
    let sql = format!("SELECT {value} FROM sqs_once_records");
    let value = sqlx::query_scalar(sqlx::AssertSqlSafe(sql));
    value.fetch_one(&world.pool).await.unwrap()
}

/// The consumer of a world, with these settings.
async fn configured(
    world: &World,
    more: &[(&str, &str)],
    s3: &S3,
    writer: &Writer,
) -> Consumer<PostgresMode, Writer> {
    let required = [
        ("IDEMPOTENCY_NAMESPACE", "test"),
        ("AWS_LAMBDA_RUNTIME_API", "unused"),
        ("CONSUMER_VISIBILITY", "off"),
    ];
    let variables = required.into_iter().chain(more.iter().copied());
    let settings = Settings::from_vars(variables).sdk_config(impatient(s3.endpoint()));
    let consumer = settings.consumer(world.mode(), Ok(writer.clone()));
    consumer.await.unwrap()
}

#[tokio::test]
async fn output_over_the_limit_is_an_object() {
    let (world, s3, writer) = (World::start().await, S3::start().await, Writer::default());
    let variables = [("IDEMPOTENCY_RESULT_BUCKET", BUCKET)];
    let consumer = configured(&world, &variables, &s3, &writer).await;
    let output = "x".repeat(65_535);
    assert_eq!(replayed(65_535, consumer, &writer).await, output);
    assert_eq!(result(&world).await, None);
    let pointer = attribute(&world, "result_in_s3").await.unwrap();
    let pointer: Value = serde_json::from_str(&pointer).unwrap();
    assert_eq!(s3.objects(), [pointer["key"].as_str().unwrap()]);
}

#[tokio::test]
async fn lost_object_keeps_the_effect() {
    let (world, s3, writer) = (World::start().await, S3::start().await, Writer::default());
    s3.on_put(S3Put::Lost);
    let results =
        Results::outside(S3Results::new(&impatient(s3.endpoint()), BUCKET)).inline_limit(10);
    let mode = world.mode().results(results);
    let consumer = Consumer::without_aws(mode, namespace(), writer.clone());
    assert_eq!(replayed(3000, consumer, &writer).await, Value::Null);
    let omitted = attribute(&world, "result_omitted").await.unwrap();
    let why = "output of 3002 bytes not stored: no answer in time";
    assert_eq!(omitted, why);
}
