//! The example with its sample event, and the settings of its database.

use std::sync::Arc;

use sqlx::{
    AssertSqlSafe, Executor, PgPool,
    postgres::{PgConnectOptions, PgSslMode},
    raw_sql,
};
use sqs_once::{Consumer, Handler, Mode, Settings, SettingsError};
use sqs_once_postgres::DatabaseSettings;
use support::world::{World, url};
use support::{
    PATIENCE,
    consumer::within,
    postgres::{SERVER, one},
};

use super::place_order_postgres::consumer;

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
        ("IDEMPOTENCY_POSTGRES_URL", url),
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

/// Settings of a database with this name, which need not exist, in this schema.
fn settings_in(database: &str, schema: &str) -> Settings {
    let port = SERVER.options().get_port();
    settings_of(&format!(
        "postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable&options=-c%20search_path%3D{schema}"
    ))
}

/// Creates a database with the tables of the example.
async fn create_database(name: &str) -> PgPool {
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    one(SERVER.options()).execute(create).await.unwrap();
    let pool = one(SERVER.options().database(name));
    raw_sql(TABLES).execute(&pool).await.unwrap();
    pool
}

/// Returns the number of messages that failed.
async fn process_sample<M: Mode<H::Output>, H: Handler>(consumer: &Arc<Consumer<M, H>>) -> usize {
    let event = serde_json::from_str(include_str!("../../events/place-order.json")).unwrap();
    let deadline = within(PATIENCE);
    support::consumer::process(consumer, event, deadline)
        .await
        .len()
}

/// The schemas with a table of records.
async fn schemas(pool: &PgPool) -> Vec<String> {
    let sql = "SELECT schemaname::text FROM pg_tables WHERE tablename = 'sqs_once_records'";
    sqlx::query_scalar(sql).fetch_all(pool).await.unwrap()
}

#[tokio::test]
async fn first_message_creates_tables_once() {
    let consumer = consumer(settings_in("created_later", "public")).await;
    let consumer = Arc::new(consumer.unwrap());
    // The database did not answer at start.
    let pool = create_database("created_later").await;
    assert_eq!(process_sample(&consumer).await, 0);
    assert_eq!(schemas(&pool).await, ["public"]);

    let drop = "DROP TABLE sqs_once_records, sqs_once_outbox";
    pool.execute(drop).await.unwrap();
    assert!(process_sample(&consumer).await > 0);
    assert!(
        schemas(&pool).await.is_empty(),
        "an empty table is no replacement"
    );
}

#[tokio::test]
async fn table_elsewhere_is_not_replaced_by_empty_one() {
    let pool = create_database("elsewhere").await;
    let running = consumer(settings_in("elsewhere", "public")).await;
    let running = Arc::new(running.unwrap());
    assert_eq!(process_sample(&running).await, 0);

    let rename = "ALTER TABLE sqs_once_records RENAME TO kept";
    pool.execute(rename).await.unwrap();
    let started = Arc::new(consumer(settings_in("elsewhere", "public")).await.unwrap());
    for consumer in [&running, &started] {
        assert!(process_sample(consumer).await > 0);
    }
    assert!(schemas(&pool).await.is_empty());
    pool.execute("ALTER TABLE kept RENAME TO sqs_once_records")
        .await
        .unwrap();
    for consumer in [&running, &started] {
        assert_eq!(process_sample(consumer).await, 0);
    }

    pool.execute("CREATE SCHEMA other").await.unwrap();
    let moved = Arc::new(consumer(settings_in("elsewhere", "other")).await.unwrap());
    assert!(process_sample(&moved).await > 0);
    assert_eq!(schemas(&pool).await, ["public"]);
    let stock = "SELECT quantity FROM stock WHERE product = 'cup'";
    let stock: i64 = sqlx::query_scalar(stock).fetch_one(&pool).await.unwrap();
    assert_eq!(stock, 4, "the order was placed once");
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
        .find_map(|line| line.trim().strip_prefix("- postgres://"));
    let url = format!("postgres://{}", url.unwrap())
        .replace("${DatabasePort}", "5433")
        .replace("${RootOption}", "&sslrootcert=/var/task/global-bundle.pem");
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

#[tokio::test]
async fn settings_report_every_error() {
    let variables = [
        ("IDEMPOTENCY_POSTGRES_URL", "postgres//user:secret@host"),
        ("IDEMPOTENCY_POSTGRES_AUTH", "kerberos"),
        ("IDEMPOTENCY_POSTGRES_CONNECTIONS", "0"),
        ("AWS_LAMBDA_RUNTIME_API", "unused"),
    ];
    let error = consumer(Settings::from_vars(variables))
        .await
        .err()
        .unwrap();
    assert_eq!(
        error.errors(),
        [
            "IDEMPOTENCY_POSTGRES_URL: is not a URL such as postgres://user@host/database",
            "IDEMPOTENCY_POSTGRES_AUTH: must be `password`, `iam`, or the ARN of a secret \
             (arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME)",
            "IDEMPOTENCY_POSTGRES_CONNECTIONS: must be a whole number from 1",
        ]
    );
    let missing = consumer(Settings::from_vars([("AWS_LAMBDA_RUNTIME_API", "unused")])).await;
    let missing = missing.err().unwrap().to_string();
    assert!(
        missing.contains("IDEMPOTENCY_POSTGRES_URL is not set"),
        "{missing}"
    );
}

/// A consumer that connects at its first message, with these settings too.
async fn start_with(more: &[(&str, &str)]) -> Result<(), SettingsError> {
    let required = [
        ("IDEMPOTENCY_POSTGRES_URL", "postgres://127.0.0.1/orders"),
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
    let used = ["IDEMPOTENCY_AFTER_FAILURE", "IDEMPOTENCY_RESULT_BUCKET"];
    let error = start_with(&used.map(|name| (name, "Invalid"))).await;
    assert_eq!(error.unwrap_err().errors().len(), 2);
}

#[tokio::test]
async fn misspelt_variable_names_nearest_setting() {
    let mut settings = Settings::from_vars([("IDEMPOTENCY_POSTGRES_ULR", "postgres://host")]);
    assert!(DatabaseSettings::read(&mut settings).is_err());
    let nearest = Some("IDEMPOTENCY_POSTGRES_URL".to_owned());
    let unknown = settings.unknown();
    assert_eq!(unknown[0].name, "IDEMPOTENCY_POSTGRES_ULR");
    assert_eq!(unknown[0].nearest, nearest);
}
