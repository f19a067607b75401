//! The example with its sample event, and the settings of its database.

use std::sync::Arc;

use sqlx::{
    postgres::{PgConnectOptions, PgSslMode},
    raw_sql,
};
use sqs_once::{Consumer, Handler, Mode, Settings, SettingsError};
use support::world::{World, ample, operation, publishes, url, url_of};
use support::{
    PATIENCE,
    consumer::within,
    log,
    postgres::{SERVER, one},
    sqs::{Sqs, SqsBehaviour},
};

use super::{place_order_postgres::consumer, relay_postgres};

pub(crate) const TABLES: &str = "
    CREATE TABLE stock (product text PRIMARY KEY, quantity bigint NOT NULL CHECK (quantity >= 0));
    CREATE TABLE orders (order_id text PRIMARY KEY, customer_id text NOT NULL);
    CREATE TABLE order_lines (order_id text REFERENCES orders, product text, pieces bigint NOT NULL);
    INSERT INTO stock VALUES ('cup', 10), ('teapot', 2)";

/// The URL of a world.
fn settings(world: &World) -> Settings {
    settings_of(&url(&SERVER, world))
}

fn settings_of(url: &str) -> Settings {
    Settings::from_vars([
        ("DATABASE_URL", url),
        ("AWS_LAMBDA_RUNTIME_API", "unused"),
        ("CONSUMER_VISIBILITY", "off"),
    ])
    .sdk_config(support::sdk_config("http://127.0.0.1:1"))
}

#[test]
fn documented_tables_are_those_of_the_test() {
    let example = include_str!("../../examples/place_order_postgres.rs");
    for line in TABLES.lines().filter(|line| line.contains("CREATE")) {
        assert!(example.contains(&format!("//! {}", line.trim())), "{line}");
    }
}

/// Returns the number of messages that failed.
async fn process_sample<M: Mode<H::Output>, H: Handler>(consumer: &Arc<Consumer<M, H>>) -> usize {
    let event = serde_json::from_str(include_str!("../../events/place-order.json")).unwrap();
    let deadline = within(PATIENCE);
    support::consumer::process(consumer, event, deadline)
        .await
        .len()
}

/// An empty table in place of one that the search path does not find would run each message again.
#[tokio::test]
async fn missing_table_is_named_and_never_created() {
    log::start();
    let pool = one(SERVER.schema().await);
    let url = url_of(&SERVER, &pool.connect_options());
    let consumer = Arc::new(consumer(settings_of(&url)).await.unwrap());
    let warnings = log::lines_containing("could not read the table sqs_once_records at start");
    let error = warnings[0]["fields"]["error"].as_str().unwrap();
    assert!(error.contains("migrations/1_sqs_once.sql"), "{error}");
    assert!(process_sample(&consumer).await > 0);
    let found = "SELECT to_regclass('sqs_once_records')::text";
    let found: Option<String> = sqlx::query_scalar(found).fetch_one(&pool).await.unwrap();
    assert_eq!(found, None);
}

#[tokio::test]
async fn missing_url_is_an_error() {
    let missing = consumer(Settings::from_vars([("AWS_LAMBDA_RUNTIME_API", "unused")])).await;
    let missing = missing.err().unwrap().to_string();
    assert!(missing.contains("DATABASE_URL is not set"), "{missing}");
}

#[tokio::test]
async fn sample_event_takes_from_stock_once() {
    let world = World::start().await;
    raw_sql(TABLES).execute(&world.pool).await.unwrap();
    let consumer = Arc::new(consumer(settings(&world)).await.unwrap());
    let event = include_str!("../../events/place-order.json");
    let event: serde_json::Value = serde_json::from_str(event).unwrap();
    for _ in 0..2 {
        let event = event.clone();
        let failed = support::consumer::process(&consumer, event, within(PATIENCE)).await;
        assert_eq!(failed, Vec::<String>::new());
    }
    let stock = "SELECT product || ' ' || quantity FROM stock ORDER BY product";
    let stock: Vec<String> = sqlx::query_scalar(stock)
        .fetch_all(&world.pool)
        .await
        .unwrap();
    assert_eq!(stock, ["cup 4", "teapot 1"]);
    let results = "SELECT result FROM sqs_once_records ORDER BY id";
    let results: Vec<String> = sqlx::query_scalar(results)
        .fetch_all(&world.pool)
        .await
        .unwrap();
    assert_eq!(results[0], r#"{"status":"placed"}"#);
    assert_eq!(
        results[1],
        r#"{"status":"declined","outOfStock":"samovar"}"#
    );
    let events = world.events().await;
    let groups: Vec<_> = events.iter().map(|(_, group, _)| group).collect();
    assert_eq!(
        groups.len(),
        1,
        "the declined order publishes nothing: {groups:?}"
    );
}

#[tokio::test]
async fn example_of_relay_sends_events() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let mode = world.mode();
    let published = mode.run(operation("1", ample()), publishes("1", &["a"]));
    assert!(published.await.is_success());
    let url = url(&SERVER, &world);
    let settings = Settings::from_vars([
        ("DATABASE_URL", &*url),
        ("OUTBOX_TARGETS", "*=https://sqs.example/1/shipping.fifo"),
        ("OUTBOX_DEAD_LETTER_QUEUE_URL", "https://sqs.example/1/dead"),
        ("AWS_LAMBDA_FUNCTION_NAME", "relay"),
    ]);
    let settings = settings.sdk_config(support::sdk_config(sqs.endpoint()));
    let relay = relay_postgres::relay(settings).await.unwrap();
    assert_eq!(relay.send_due(ample()).await.unwrap().sent, 1);
}

#[test]
fn template_verifies_certificate_of_database() {
    for template in [
        include_str!("../../examples/place_order_postgres.template.yaml"),
        include_str!("../../examples/outbox_postgres.template.yaml"),
    ] {
        assert_certificate_is_verified(template);
    }
}

fn assert_certificate_is_verified(template: &str) {
    let url = template
        .lines()
        .find(|line| line.trim().starts_with("postgres://"));
    let url = url.unwrap().trim().replace("${DatabasePort}", "5433");
    let url = regex_lite::Regex::new(r"\$\{(\w+)\}")
        .unwrap()
        .replace_all(&url, "$1");
    let options: PgConnectOptions = url.parse().unwrap();
    assert_eq!(options.get_host(), "DatabaseHost");
    assert_eq!(options.get_port(), 5433);
    assert_eq!(options.get_username(), "DatabaseUser");
    assert_eq!(options.get_database(), Some("DatabaseName"));
    assert!(matches!(options.get_ssl_mode(), PgSslMode::VerifyFull));
}

/// A consumer that connects at its first message, with these settings too.
async fn start_with(more: &[(&str, &str)]) -> Result<(), SettingsError> {
    let required = [
        ("DATABASE_URL", "postgres://127.0.0.1/orders"),
        ("AWS_LAMBDA_RUNTIME_API", "unused"),
    ];
    let settings = Settings::from_vars(required.into_iter().chain(more.iter().copied()));
    let settings = settings.sdk_config(support::sdk_config("http://127.0.0.1:1"));
    consumer(settings).await.map(|_| ())
}

#[tokio::test]
async fn settings_of_other_modes_are_not_read() {
    let unused = ["IDEMPOTENCY_ATTRIBUTES", "IDEMPOTENCY_BATCHED_WRITES"];
    assert_eq!(
        start_with(&unused.map(|name| (name, "invalid"))).await,
        Ok(())
    );
    let used = ["IDEMPOTENCY_RETENTION", "IDEMPOTENCY_RESULT_BUCKET"];
    let error = start_with(&used.map(|name| (name, "Invalid"))).await;
    assert_eq!(error.unwrap_err().errors().len(), 2);
}
