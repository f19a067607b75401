use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{
    Credentials,
    http::{HttpRequest, HttpResponse},
};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use tokio::{runtime::RuntimeFlavor, sync::Notify};

use super::{modes::while_reading, records::TableSettings, shared::Shared, *};
#[cfg(feature = "s3")]
use crate::sqs::S3Bodies;
use crate::{
    dynamo::{
        done::Done,
        store::{DynamoStore, Layout},
    },
    handler::{Attempt, Failure, HandlerOutput, handler_fn},
    modes::item::Change,
    protocol::Namespace,
    settings::variables::table::{Reader, SETTINGS},
    sqs::{FifoAfterPermanent, Visibility},
    store::MemoryStore,
    telemetry::Metrics,
};

const REQUIRED: [(&str, &str); 3] = [
    ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001"),
    ("IDEMPOTENCY_NAMESPACE", "payments"),
    ("IDEMPOTENCY_TABLE_NAME", "idempotency"),
];

fn read(variables: &[(&str, &str)]) -> Result<(TableSettings, Shared), SettingsError> {
    let mut settings = Settings::from_vars(variables.iter().copied());
    let (table, shared) = (settings.records_table(), settings.shared());
    settings.check(Ok(()))?;
    Ok((table?, shared?))
}

fn with(variables: &[(&str, &str)]) -> Result<(TableSettings, Shared), SettingsError> {
    read(&[&REQUIRED, variables].concat())
}

/// The variables that `cargo lambda watch` sets for a function without a name.
const WATCHED: [(&str, &str); 2] = [
    ("AWS_LAMBDA_RUNTIME_API", "http://127.0.0.1:9000/.rt/_"),
    ("AWS_LAMBDA_FUNCTION_NAME", "_"),
];

fn offline(variables: &[(&str, &str)]) -> Settings {
    let version = aws_sdk_dynamodb::config::BehaviorVersion::latest();
    let config = SdkConfig::builder().behavior_version(version).build();
    Settings::from_vars(variables.iter().copied()).sdk_config(config)
}

#[tokio::test]
async fn watched_function_has_records_in_memory() {
    let consumer = offline(&WATCHED).once(Ok(unused::<()>())).await.unwrap();
    let consumer = format!("{consumer:?}");
    assert!(consumer.contains("Memory(MemoryStore"), "{consumer}");
    assert!(consumer.contains("visibility: None"), "{consumer}");
}

#[tokio::test]
async fn function_on_lambda_needs_a_table() {
    let [watched, unnamed] = WATCHED;
    for variables in [
        // These are functions on AWS, even with the name `_`.
        vec![unnamed, ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")],
        vec![unnamed, ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001/_")],
        vec![
            unnamed,
            watched,
            ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
        ],
        // A function with a name under `cargo lambda watch`.
        vec![
            (
                "AWS_LAMBDA_RUNTIME_API",
                "http://127.0.0.1:9000/.rt/consumer",
            ),
            ("AWS_LAMBDA_FUNCTION_NAME", "consumer"),
        ],
        vec![watched, ("AWS_LAMBDA_FUNCTION_NAME", "consumer")],
    ] {
        let error = offline(&variables)
            .once(Ok(unused::<()>()))
            .await
            .unwrap_err();
        assert!(
            error.errors()[0].starts_with("IDEMPOTENCY_TABLE_NAME is not set"),
            "{variables:?}: {error}"
        );
    }
}

#[tokio::test]
async fn watched_inbox_needs_a_table() {
    let error = offline(&WATCHED)
        .inbox(Ok(unused::<Done<()>>()))
        .await
        .err()
        .unwrap();
    let names = ["IDEMPOTENCY_TABLE_NAME", "IDEMPOTENCY_NAMESPACE"];
    assert_eq!(error.errors().len(), names.len(), "{error}");
    for (error, name) in error.errors().iter().zip(names) {
        assert!(error.starts_with(name), "{error}");
    }
}

#[tokio::test]
async fn watched_function_with_table_uses_it() {
    let variables = [&WATCHED[..], &REQUIRED[1..]].concat();
    let settings = offline(&variables).warm_up(false);
    let consumer = settings.once(Ok(unused::<()>())).await.unwrap();
    let consumer = format!("{consumer:?}");
    assert!(consumer.contains("Batched("), "{consumer}");
}

/// The namespace must not default to the function's name: after a rename, every operation would run again.
#[tokio::test]
async fn missing_namespace_is_an_error_in_every_mode() {
    let [runtime_api, _, table] = REQUIRED;
    let name = ("AWS_LAMBDA_FUNCTION_NAME", "payments");
    let without = || offline(&[runtime_api, name, table]).warm_up(false);
    let errors = [
        without().once(Ok(unused::<()>())).await.err(),
        without().inbox(Ok(unused::<Done<()>>())).await.err(),
        without().item_mode(Ok(unused::<Change<()>>())).await.err(),
        // A watched function whose records survive it.
        offline(&[&WATCHED[..], &[table]].concat())
            .warm_up(false)
            .once(Ok(unused::<()>()))
            .await
            .err(),
    ];
    for error in errors {
        let error = error.expect("no consumer without a namespace");
        let [error] = error.errors() else {
            panic!("{error}");
        };
        assert!(
            error.starts_with("IDEMPOTENCY_NAMESPACE is not set (first part of every key"),
            "{error}"
        );
    }
}

#[test]
fn variable_for_min_time_is_checked_and_default_is_not() {
    let (min_time, several) = (
        ("CONSUMER_MIN_TIME_TO_START", "5s"),
        ("AWS_LAMBDA_MAX_CONCURRENCY", "2"),
    );
    for (variables, divisor) in [
        (&[several][..], None),
        (&[min_time], Some(1)),
        (&[min_time, several], Some(2)),
    ] {
        let variables = [&REQUIRED[..], variables].concat();
        let mut settings = Settings::from_vars(variables);
        settings.set_default("CONSUMER_MIN_TIME_TO_START", "9s");
        assert_eq!(
            settings.shared().unwrap().values.options.min_time_divisor,
            divisor
        );
    }
}

/// The table's defaults are the same as those in code.
#[tokio::test]
async fn settings_without_variables_are_the_defaults_of_the_code() {
    let name = ("AWS_LAMBDA_FUNCTION_NAME", "charge-orders");
    let (table, mut shared) = with(&[name]).unwrap();
    assert_eq!(table.name, "idempotency");
    assert_eq!(table.layout, Layout::native());
    assert!(table.batched_writes);
    let values = &mut shared.values;
    assert_eq!(values.concurrency, None);
    assert!(values.circuit_breaker);

    let config = offline(&[]).config().await;
    let visibility = Visibility::new(aws_sdk_sqs::Client::new(&config));
    let of_settings = (visibility.clone())
        .backoff(values.backoff_base, values.backoff_cap)
        .dead_letter(values.dead_letter);
    assert_eq!(format!("{of_settings:?}"), format!("{visibility:?}"));
    // The rest is compared without clients, because two clients are never equal.
    assert!(mem::take(&mut values.visibility));
    #[cfg(feature = "s3")]
    {
        let bodies = S3Bodies::new(&config, ["orders"]);
        let of_settings = bodies.clone().max_bytes(values.max_body_bytes);
        assert_eq!(format!("{of_settings:?}"), format!("{bodies:?}"));
    }

    let once = shared.once(MemoryStore::default(), &config);
    let concurrency = shared.concurrency();
    let of_settings = shared.consumer(once, unused::<()>(), concurrency, &config);
    let once = Once::new(MemoryStore::default());
    let namespace = Namespace::new("payments").unwrap();
    let metrics = Metrics::new("sqs-once", "charge-orders").unwrap();
    let of_code = Consumer::without_aws(once, namespace, unused::<()>()).metrics(metrics);
    assert_eq!(format!("{of_settings:?}"), format!("{of_code:?}"));
}

#[test]
fn handlers_of_a_batch_fit_into_the_memory() {
    let fit = |memory: &str, at_once: &str, each: usize| {
        let vars = [
            ("CONSUMER_CONCURRENCY", "auto"),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory),
            ("AWS_LAMBDA_MAX_CONCURRENCY", at_once),
        ];
        let (_, shared) = read(&[&REQUIRED[..], &vars].concat()).unwrap();
        let limit = shared.concurrency_of_claims();
        (0..)
            .take_while(|n| limit.admits(*n, (n + 1) * each))
            .count()
    };
    let of_memory = ["40", "128", "256", "10240", ""].map(|memory| fit(memory, "1", 3 << 19));
    assert_eq!(of_memory, [10, 42, 100, 100, 100]);
    let several = ["1", "2", "4", "8"].map(|at_once| fit("2112", at_once, 20 << 20));
    assert_eq!(several, [100, 51, 25, 12]);
    let (_, set) = read(&[&REQUIRED[..], &[("CONSUMER_CONCURRENCY", "7")]].concat()).unwrap();
    assert_eq!(set.concurrency_of_claims().most(), 7);
}

#[tokio::test]
async fn errors_are_reported_all_at_once() {
    let invalid = [
        ("IDEMPOTENCY_NAMESPACE", "pay\nments"),
        ("IDEMPOTENCY_RETENTION", "a day"),
        ("IDEMPOTENCY_KEY", "orderId"),
        ("IDEMPOTENCY_FINGERPRINT", "yes"),
        ("CONSUMER_MAX_BODY_BYTES", "10MB"),
        ("IDEMPOTENCY_BATCHED_WRITES", "yes"),
        ("CONSUMER_CRASH_ISOLATION", "20m"),
        ("CONSUMER_CONCURRENCY", "0"),
        ("CONSUMER_MIN_TIME_TO_START", "5"),
        ("POWERTOOLS_METRICS_NAMESPACE", "AWS/SQS"),
        ("POWERTOOLS_SERVICE_NAME", ":payments"),
        ("CONSUMER_VISIBILITY", "yes"),
        ("CONSUMER_DIRECT_DEAD_LETTERING", "yes"),
        ("CONSUMER_FIFO_AFTER_PERMANENT", "on"),
        ("CONSUMER_S3_BUCKETS", "Orders"),
        ("IDEMPOTENCY_RESULT_BUCKET", "Outputs"),
        ("CONSUMER_BACKOFF_BASE", "0s"),
        ("CONSUMER_BACKOFF_CAP", "12h"),
        ("OWN", "0s"),
    ];
    let missing = ["AWS_LAMBDA_RUNTIME_API", "IDEMPOTENCY_TABLE_NAME"];
    let mut settings = Settings::from_vars(invalid);
    let handler = settings.duration("OWN", "5s").map(|_| unused::<()>());
    let error = settings.once(handler).await.unwrap_err();
    for name in missing.iter().chain(invalid.iter().map(|(name, _)| name)) {
        let of_name = error
            .errors()
            .iter()
            .filter(|error| error.starts_with(name));
        assert_eq!(of_name.count(), 1, "{name} in {error}");
    }
    let count = missing.len() + invalid.len();
    assert_eq!(error.errors().len(), count, "{error}");
    let text = error.to_string();
    let start = format!("invalid configuration ({count} errors): ");
    assert!(text.starts_with(&start), "{text}");
}

/// A handler that never runs.
fn unused<O: HandlerOutput + 'static>() -> impl Handler<Output = O> + fmt::Debug {
    handler_fn(|(): (), _: Attempt| async { Err::<O, _>(Failure::from("unused")) })
}

#[tokio::test]
async fn consumer_is_built_while_table_is_read() {
    let (sent, built) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let answered = Arc::new(AtomicBool::new(false));
    let table = StubTable {
        sent: sent.clone(),
        built: built.clone(),
        answered: answered.clone(),
    };
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version_latest()
        .region(aws_config::Region::from_static("eu-central-1"))
        .credentials_provider(Credentials::new("a", "b", None, None, "tests"))
        .http_client(http_client_fn(move |_, _| {
            SharedHttpConnector::new(table.clone())
        }))
        .build();
    let store = DynamoStore::new(Client::from_conf(config), "idempotency");
    let was_sent = while_reading(Some(store), || {
        built.notify_one();
        sent.load(Relaxed)
    });
    assert!(was_sent.await, "built before the read");
    assert!(answered.load(Relaxed), "built after the read");
}

/// A table that answers a read only once the consumer is built.
#[derive(Clone, Debug)]
struct StubTable {
    sent: Arc<AtomicBool>,
    built: Arc<Notify>,
    answered: Arc<AtomicBool>,
}

impl HttpConnector for StubTable {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let Self {
            sent,
            built,
            answered,
        } = self.clone();
        HttpConnectorFuture::new(async move {
            sent.store(true, Relaxed);
            built.notified().await;
            answered.store(true, Relaxed);
            let ok = 200.try_into().unwrap();
            Ok(HttpResponse::new(ok, "{}".into()))
        })
    }
}

#[test]
fn every_error_of_the_layout_is_reported() {
    let error = with(&[
        ("IDEMPOTENCY_ATTRIBUTES", "PK"),
        ("IDEMPOTENCY_SORT_KEY", "=all"),
    ]);
    assert_eq!(error.unwrap_err().errors().len(), 2);
}

#[tokio::test]
async fn item_mode_needs_no_table() {
    let mut settings = offline(&REQUIRED[..2]);
    settings.set_default("CONSUMER_VISIBILITY", "off");
    let consumer = settings.item_mode(Ok(unused::<Change<()>>())).await;
    let consumer = format!("{:?}", consumer.unwrap());
    assert!(consumer.contains("retention: 1728000s"), "{consumer}");
}

#[test]
fn dead_letter_is_on_unless_visibility_is_off() {
    let dead_letter = |vars: &[_]| {
        let Shared { values, .. } = with(vars).unwrap().1;
        values.visibility.then_some(values.dead_letter)
    };
    assert_eq!(dead_letter(&[]), Some(true));
    assert_eq!(
        dead_letter(&[("CONSUMER_DIRECT_DEAD_LETTERING", "off")]),
        Some(false)
    );
    let (on, off) = (
        ("CONSUMER_DIRECT_DEAD_LETTERING", "on"),
        ("CONSUMER_VISIBILITY", "off"),
    );
    assert_eq!(dead_letter(&[on]), Some(true));
    assert_eq!(dead_letter(&[off]), None);
    let error = with(&[on, off]).unwrap_err();
    assert_eq!(
        error.errors(),
        ["CONSUMER_DIRECT_DEAD_LETTERING: `on` needs CONSUMER_VISIBILITY=on, which calls SQS too"]
    );
}

#[test]
fn runtime_has_threads_with_two_vcpus_or_invocations() {
    let flavor = |memory: &str, at_once: &str| {
        let mut settings = Settings::from_vars([
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory),
            ("AWS_LAMBDA_MAX_CONCURRENCY", at_once),
        ]);
        settings.runtime().unwrap().handle().runtime_flavor()
    };
    use RuntimeFlavor::{CurrentThread, MultiThread};
    for (memory, at_once, expected) in [
        ("", "", CurrentThread),
        ("128", "1", CurrentThread),
        ("3537", "", CurrentThread),
        ("3538", "", MultiThread),
        ("128", "2", MultiThread),
    ] {
        assert_eq!(flavor(memory, at_once), expected, "{memory} {at_once}");
    }
}

#[test]
fn fifo_after_permanent_is_continue_or_stop() {
    for (text, parsed) in [
        ("continue", FifoAfterPermanent::Continue),
        ("stop", FifoAfterPermanent::Stop),
    ] {
        let (_, shared) = with(&[("CONSUMER_FIFO_AFTER_PERMANENT", text)]).unwrap();
        assert_eq!(shared.values.options.fifo_after_permanent, parsed);
    }
}

#[cfg(feature = "s3")]
#[test]
fn buckets_are_names_separated_by_commas() {
    let buckets = |text: &str| {
        let (_, shared) = with(&[("CONSUMER_S3_BUCKETS", text)])?;
        Ok::<_, SettingsError>(shared.values.s3_buckets)
    };
    assert_eq!(buckets("").unwrap(), [""; 0]);
    assert_eq!(buckets("orders").unwrap(), ["orders"]);
    assert_eq!(buckets("a.b-1, invoices ").unwrap(), ["a.b-1", "invoices"]);
    let long = "x".repeat(64);
    for invalid in [
        ",",
        "orders,",
        "orders invoices",
        "ab",
        "-orders",
        "orders.",
        "ORDERS",
        "s3://orders",
        "arn:aws:s3:::orders",
        &long,
    ] {
        let error = buckets(invalid).unwrap_err();
        assert!(
            error.to_string().contains("name of an S3 bucket"),
            "{error}"
        );
    }
}

#[cfg(feature = "s3")]
#[tokio::test]
async fn watched_function_reads_bodies_from_s3() {
    let buckets = ("CONSUMER_S3_BUCKETS", "orders");
    let variables = [&WATCHED[..], &[buckets]].concat();
    let consumer = offline(&variables).once(Ok(unused::<()>())).await.unwrap();
    let consumer = format!("{consumer:?}");
    assert!(consumer.contains("s3_bodies: Some("), "{consumer}");
}

#[cfg(feature = "s3")]
#[test]
fn bucket_of_outputs_is_their_place() {
    let (_, shared) = with(&[("IDEMPOTENCY_RESULT_BUCKET", "outputs")]).unwrap();
    assert_eq!(shared.values.result_bucket.as_deref(), Some("outputs"));
    // Outputs in S3 may have any size.
    assert_eq!(shared.concurrency_of_claims().most(), 10);
}

#[cfg(not(feature = "s3"))]
#[test]
fn buckets_need_the_feature() {
    for name in ["CONSUMER_S3_BUCKETS", "IDEMPOTENCY_RESULT_BUCKET"] {
        let error = with(&[(name, "orders")]).unwrap_err();
        let expected = format!("{name}: needs the feature `s3` of the crate sqs-once");
        assert_eq!(error.errors(), [expected]);
    }
}

#[test]
fn layout_has_renames_and_sort_key() {
    let layout = |variables: &[_]| with(variables).map(|(table, ..)| table.layout);
    let attributes = ("IDEMPOTENCY_ATTRIBUTES", "id=PK,expires_at=ttl");
    let names = [("id", "PK"), ("expires_at", "ttl")];
    let names = Layout::native().rename(names).unwrap();
    for (sort_key, partition) in [("SK", "idempotency#payments"), ("SK=all", "all")] {
        assert_eq!(
            layout(&[attributes, ("IDEMPOTENCY_SORT_KEY", sort_key)]).unwrap(),
            names.clone().sort_key("SK", partition).unwrap()
        );
    }
    for invalid in ["PK", "key=PK", "id=status", "id=", "owner=user"] {
        let layout = layout(&[("IDEMPOTENCY_ATTRIBUTES", invalid)]);
        assert!(layout.is_err(), "{invalid}");
    }
    for invalid in ["status", "=all", "SK="] {
        let layout = layout(&[("IDEMPOTENCY_SORT_KEY", invalid)]);
        assert!(layout.is_err(), "{invalid}");
    }
}

#[test]
fn debug_output_has_no_values() {
    let settings = Settings::from_vars([("A", "SECRET")]);
    assert!(!format!("{settings:?}").contains("SECRET"));
}

#[test]
fn misspelt_variable_is_unknown_with_nearest_name() {
    for (name, nearest) in [
        ("CONSUMER_CONCURENCY", Some("CONSUMER_CONCURRENCY")),
        ("IDEMPOTENCY_TABLE", None),
        ("IDEMPOTENCY_TABELNAME", Some("IDEMPOTENCY_TABLE_NAME")),
        ("CONSUMER_RETENTION", Some("IDEMPOTENCY_RETENTION")),
        ("IDEMPOTENCY_KEYS", Some("IDEMPOTENCY_KEY")),
        ("CONSUMER_REGION", None),
    ] {
        let unknown = Settings::from_vars([(name, "1")]).unknown();
        assert_eq!(unknown[0].name, name);
        assert_eq!(unknown[0].nearest.as_deref(), nearest);
    }
}

#[tokio::test]
async fn key_fixed_in_code_rejects_a_different_variable() {
    let key = ("IDEMPOTENCY_KEY", "message-id");
    let cap = ("CONSUMER_BACKOFF_CAP", "12h");
    let mut settings = offline(&[&REQUIRED[..], &[key, cap]].concat());
    settings.fix("IDEMPOTENCY_KEY", "body:/orderId");
    settings.fix("IDEMPOTENCY_FINGERPRINT", "body:/amount");
    let error = settings.once(Ok(unused::<()>())).await.unwrap_err();
    let [of_key, of_cap] = error.errors() else {
        panic!("{error}");
    };
    assert!(of_key.starts_with("IDEMPOTENCY_KEY: the code"), "{error}");
    assert!(of_cap.starts_with("CONSUMER_BACKOFF_CAP: "), "{error}");
}

#[tokio::test]
async fn key_of_the_consumer_and_the_environment_must_agree() {
    for (environment, is_refused) in [
        (None, false),
        (Some("body:/orderId"), false),
        (Some("message-id"), true),
    ] {
        let key = environment.map(|key| ("IDEMPOTENCY_KEY", key));
        let variables: Vec<_> = REQUIRED.into_iter().chain(key).collect();
        let consumer = offline(&variables).once(Ok(unused::<()>())).await.unwrap();
        let checked = consumer.key("body:/orderId".parse().unwrap()).check();
        assert_eq!(checked.is_err(), is_refused, "{environment:?}");
        if let Err(error) = checked {
            let error = error.to_string();
            assert!(error.contains("IDEMPOTENCY_KEY is `message-id`"), "{error}");
            assert!(error.contains("`Consumer::key`"), "{error}");
        }
    }
}

#[test]
fn value_fixed_in_code_is_the_setting() {
    // The same value in code and environment is not an error.
    for variables in [&[][..], &[("IDEMPOTENCY_KEY", "body:/orderId")]] {
        let variables = [&REQUIRED[..], variables].concat();
        let mut settings = Settings::from_vars(variables);
        settings.set_default("IDEMPOTENCY_KEY", "deduplication-id");
        settings.fix("IDEMPOTENCY_KEY", "body:/orderId");
        let shared = settings.shared();
        let shared = settings.check(shared).unwrap();
        assert_eq!(shared.values.options.key, "body:/orderId".parse().unwrap());
    }
}

#[test]
fn other_and_empty_variables_are_not_unknown() {
    let variables = [
        ("CONSUMER_CONCURENCY", ""),
        ("PAYMENT_CONCURENCY", "1"),
        ("IDEMPOTENCY_TABLE_NAME", "records"),
        ("CONSUMER_BACKOFF_CAP", "1h"),
    ];
    assert_eq!(Settings::from_vars(variables).unknown(), []);
}

#[test]
fn variable_of_the_handler_is_not_unknown() {
    let mut settings = Settings::from_vars([("CONSUMER_OWN", "1")]);
    assert_eq!(settings.unknown().len(), 1);
    let own = settings.optional("CONSUMER_OWN", "0", str::parse::<u8>);
    assert_eq!((own, settings.unknown().len()), (Ok(1), 0));
}

/// A row that no code reads would have no effect.
#[test]
fn every_setting_of_a_consumer_is_read() {
    let mut settings = Settings::from_vars::<&str, &str>([]);
    let (_table, _shared) = (settings.records_table(), settings.shared());
    for setting in SETTINGS.iter().filter(|of| of.reader == Reader::Consumer) {
        assert!(settings.was_read(setting.name), "{}", setting.name);
    }
}
