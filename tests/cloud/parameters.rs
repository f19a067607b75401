//! The parameters of the template and its overlays: the defaults, the values that they accept, and the variables and
//! properties that they set.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use regex_lite::Regex;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Failure, Settings, handler_fn,
    internal::table::{IDEMPOTENCY_RETENTION, SETTINGS, Setting},
    sqs::KeySource,
};

use support::template::{
    CONSUMER, FIFO, LARGE_BATCHES, S3_BODIES, STARTER, Template, VPC, met, of_type, read, shipped,
};

use super::operations::rows;

fn parameters() -> Value {
    read(CONSUMER)["Parameters"].clone()
}

/// Environment variables of the function.
fn variables(template: &Value) -> Value {
    let functions = of_type(template, "AWS::Serverless::Function");
    functions[0].1["Environment"]["Variables"].clone()
}

/// Pages and rustdoc with rows of settings. `WRITE_DOCS=1` writes the rows of the table there.
const DOCUMENTED: [&str; 3] = [
    "docs/settings.md",
    "crates/sqs-once/src/settings/mod.rs",
    "crates/outbox/src/settings.rs",
];

/// A row of the table as it stands in this file. Links are relative to `docs`, so rustdoc has none.
fn documented_in(file: &str, setting: &Setting) -> String {
    let row = setting.documentation();
    if file.starts_with("docs") {
        // A link of a page to itself.
        let page = file.trim_start_matches("docs/");
        row.replace(&format!("]({page}#"), "](#")
    } else {
        let links = Regex::new(r"\[([^\]]*)\]\([^)]*\)").unwrap();
        format!("/// {}", links.replace_all(&row, "$1"))
    }
}

/// The text between the only two backticks of a table's cell.
fn literal(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?
        .strip_suffix('`')
        .filter(|text| !text.contains('`'))
}

fn pattern(parameter: &Value) -> Regex {
    Regex::new(parameter["AllowedPattern"].as_str().unwrap()).unwrap()
}

#[test]
fn records_outlive_both_queues() {
    let records = humantime::parse_duration(IDEMPOTENCY_RETENTION.default).unwrap();
    for path in [CONSUMER, STARTER, "examples/place_order.template.yaml"] {
        let (_, template) = shipped().into_iter().find(|(of, _)| of == path).unwrap();
        assert!(variables(&template)[IDEMPOTENCY_RETENTION.name].is_null());
        let queues = of_type(&template, "AWS::SQS::Queue");
        assert_eq!(queues.len(), 2, "{path}: a queue and its dead-letter queue");
        let kept = |queue: &Value| queue["MessageRetentionPeriod"].as_u64().unwrap();
        let messages = queues.iter().map(|(_, queue)| kept(queue)).sum();
        assert!(
            records > Duration::from_secs(messages),
            "{path}: {messages} s"
        );
    }
}

/// An order that is sent twice is charged once, wherever the sample runs.
#[test]
fn sample_has_one_default_key() {
    let key = "body:/orderId";
    assert_eq!(parameters()["IdempotencyKey"]["Default"], key);
    for (file, default) in [
        (
            "examples/typescript/consumer-stack.ts",
            "IDEMPOTENCY_KEY: \"body:/orderId\"",
        ),
        ("crates/cli/src/new.rs", "default_value = \"body:/orderId\""),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(default), "{file}");
    }
    assert_eq!("message-id".parse(), Ok(KeySource::default()));
}

#[test]
fn existing_table_needs_a_namespace() {
    let mut template = Template::with(&[("ExistingTableName", "records")]);
    assert!(!template.admits());
    template.set(&[
        ("ExistingTableName", "records"),
        ("IdempotencyNamespace", "payments"),
    ]);
    assert!(template.admits());
    template.set(&[]);
    assert!(template.admits());
}

/// Each file has the rows of the table, and no others. So a default or a sentence stands once.
#[test]
fn docs_have_the_rows_of_the_table() {
    let name =
        Regex::new(r"^(?:/// )?\| `((?:CONSUMER|IDEMPOTENCY|OUTBOX)_[A-Z0-9_]+)` \|").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut in_settings = BTreeSet::new();
    for file in DOCUMENTED {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let mut expected = String::new();
        for line in text.lines() {
            let row = name.captures(line).map(|captures| {
                let name = captures[1].to_owned();
                let setting = SETTINGS
                    .iter()
                    .find(|setting| setting.name == name)
                    .unwrap_or_else(|| panic!("{file}: no setting has the name {name}"));
                if file == "docs/settings.md" {
                    in_settings.insert(setting.name);
                }
                documented_in(file, setting)
            });
            expected += row.as_deref().unwrap_or(line);
            expected += "\n";
        }
        // An equal file keeps its time, after which release builds are checked.
        if text != expected && std::env::var_os("WRITE_DOCS").is_some() {
            fs::write(root.join(file), &expected).unwrap();
        } else {
            assert_eq!(text, expected, "{file}: run this test with WRITE_DOCS=1");
        }
    }
    let all = SETTINGS.iter().map(|setting| setting.name).collect();
    assert_eq!(in_settings, all, "docs/settings.md");
}

#[test]
fn template_sets_each_setting_to_its_default() {
    let template = Template::with(&[]);
    let set = variables(&read(CONSUMER));
    for setting in SETTINGS {
        let Some(value) = set.get(setting.name) else {
            continue;
        };
        let expected = match setting.name {
            "IDEMPOTENCY_TABLE_NAME" => "idempotencytable",
            "IDEMPOTENCY_NAMESPACE" => "payments",
            // The sample's messages name their operation.
            "IDEMPOTENCY_KEY" => "body:/orderId",
            _ => setting.default,
        };
        assert_eq!(template.text(value), expected, "{}", setting.name);
    }
}

#[test]
fn existing_table_replaces_the_own_one() {
    let values = [
        ("ExistingTableName", "records"),
        ("IdempotencyNamespace", "shop"),
    ];
    let variables: BTreeMap<_, _> = environment(&values).into_iter().collect();
    assert_eq!(variables["IDEMPOTENCY_TABLE_NAME"], "records");
    assert_eq!(variables["IDEMPOTENCY_NAMESPACE"], "shop");
}

/// No variable of the template is one that nothing reads. Those of the sample stand in docs/settings.md alone.
#[test]
fn template_sets_settings_and_the_samples_variables() {
    let template = read(CONSUMER);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    let page = fs::read_to_string(page).unwrap();
    for (name, value) in variables(&template).as_object().unwrap() {
        if SETTINGS.iter().any(|setting| setting.name == name) {
            continue;
        }
        assert!(name.starts_with("PAYMENT_"), "{name}");
        let default = match &*Template::with(&[]).text(value) {
            "" if name == "PAYMENT_GATEWAY_URL" => "required".to_owned(),
            "" => "not set".to_owned(),
            default => format!("`{default}`"),
        };
        let row = format!("| `{name}` | {default} |");
        assert!(page.contains(&row), "docs/settings.md: {row}");
    }
}

/// A parameter, and the properties that it sets.
type Sets = (&'static str, &'static [&'static str]);

/// The parameters of the template and of its overlays.
const OF_PROPERTIES: [(&str, &[Sets]); 5] = [
    (
        CONSUMER,
        &[
            ("AlarmEmail", &["AlarmTopic/Subscription"]),
            ("Architecture", &["Consumer/Architectures/0"]),
            ("BatchSize", &["OrdersEventSource/BatchSize"]),
            ("ConsumerEnvelope", &["Consumer/CONSUMER_ENVELOPE"]),
            ("ExistingTableName", &["Consumer/IDEMPOTENCY_TABLE_NAME"]),
            (
                "FunctionTimeout",
                &[
                    "Consumer/Timeout",
                    "Consumer/CONSUMER_BACKOFF_CAP",
                    "DurationNearTimeout/Threshold",
                    "OrdersQueue/VisibilityTimeout",
                    "OrdersQueue/RedrivePolicy",
                ],
            ),
            ("IdempotencyKey", &["Consumer/IDEMPOTENCY_KEY"]),
            ("IdempotencyNamespace", &["Consumer/IDEMPOTENCY_NAMESPACE"]),
            ("KmsKeyArn", &["OrdersQueue/KmsMasterKeyId"]),
            ("LogRetentionDays", &["ConsumerLogGroup/RetentionInDays"]),
            ("MaximumConcurrency", &["OrdersEventSource/ScalingConfig"]),
            ("MemorySize", &["Consumer/MemorySize"]),
            (
                "PaymentGatewaySecret",
                &["Consumer/PAYMENT_GATEWAY_API_KEY"],
            ),
            ("PaymentGatewayUrl", &["Consumer/PAYMENT_GATEWAY_URL"]),
            ("ProducerSourceArn", &["OrdersQueuePolicy/PolicyDocument"]),
        ],
    ),
    (
        FIFO,
        &[
            (
                "ContentBasedDeduplication",
                &["OrdersQueue/ContentBasedDeduplication"],
            ),
            ("FifoHighThroughput", &[]), // a condition: see below
        ],
    ),
    (
        LARGE_BATCHES,
        &[
            ("BatchSize", &[]), // of the template, with other limits
            (
                "BatchingWindow",
                &["OrdersEventSource/MaximumBatchingWindowInSeconds"],
            ),
        ],
    ),
    (
        S3_BODIES,
        &[(
            "BodiesBucket",
            &["Consumer/CONSUMER_S3_BUCKETS", "BodiesInS3/PolicyDocument"],
        )],
    ),
    (
        VPC,
        &[
            ("SecurityGroupIds", &["Consumer/VpcConfig"]),
            ("SubnetIds", &["Consumer/VpcConfig"]),
        ],
    ),
];

/// A property of a resource, or a variable of the function.
fn property<'a>(template: &'a Value, path: &str) -> &'a Value {
    let (resource, property) = path.split_once('/').unwrap();
    let properties = &template["Resources"][resource]["Properties"];
    let found = properties
        .pointer(&format!("/{property}"))
        .or_else(|| properties["Environment"]["Variables"].get(property));
    found.unwrap_or_else(|| panic!("{path}"))
}

#[test]
fn parameters_reach_their_properties() {
    for (file, parameters) in OF_PROPERTIES {
        let template = read(file);
        let own = template["Parameters"].as_object().unwrap();
        let listed: BTreeSet<_> = parameters.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            own.keys().map(String::as_str).collect::<BTreeSet<_>>(),
            listed
        );
        for (parameter, paths) in parameters {
            for path in *paths {
                let value = property(&template, path).to_string();
                let reads = [
                    json!({"!Ref": parameter}).to_string(),
                    format!("${{{parameter}}}"),
                ];
                let is_read = reads.iter().any(|reference| value.contains(reference));
                assert!(is_read, "{parameter}: {path} is {value}");
            }
        }
    }
}

#[test]
fn high_throughput_is_of_each_group() {
    let overlay = read(FIFO);
    for (path, on, off) in [
        ("OrdersQueue/DeduplicationScope", "messageGroup", "queue"),
        (
            "OrdersQueue/FifoThroughputLimit",
            "perMessageGroupId",
            "perQueue",
        ),
    ] {
        let value = property(&overlay, path);
        assert_eq!(met(value, &["IsHighThroughput"]), Some(&json!(on)));
        assert_eq!(met(value, &[]), Some(&json!(off)));
    }
}

/// What `sam deploy --guided` asks about the template, and what it cannot leave at a default.
#[test]
fn newcomers_answer_few_questions() {
    let asked = |path: &str| -> (usize, Vec<String>) {
        let (_, template) = shipped().into_iter().find(|(of, _)| of == path).unwrap();
        let parameters = template["Parameters"].as_object().unwrap();
        let required = parameters.iter().filter(|(_, of)| of["Default"].is_null());
        let required = required.map(|(name, _)| name.clone()).collect();
        (parameters.len(), required)
    };
    let (parameters, required) = asked(CONSUMER);
    assert!((12..=18).contains(&parameters), "{parameters}");
    assert_eq!(required, ["PaymentGatewayUrl"]);
    let (parameters, required) = asked(STARTER);
    assert!(parameters <= 6, "{parameters}");
    assert_eq!(required, [""; 0]);
}

/// The parameters of the template and of each overlay, with the rows of docs/template.md.
#[test]
fn docs_have_every_parameter() {
    for (file, heading) in [
        (CONSUMER, "Parameters"),
        (FIFO, "fifo"),
        (LARGE_BATCHES, "large-batches"),
        (S3_BODIES, "s3-bodies"),
        (VPC, "vpc"),
    ] {
        let template = read(file);
        let parameters = template["Parameters"].as_object().unwrap();
        let documented: BTreeMap<_, _> = rows(heading)
            .into_iter()
            .map(|row| (literal(&row[0]).unwrap().to_owned(), row[1].clone()))
            .collect();
        let expected = parameters.iter().map(|(name, parameter)| {
            assert!(parameter["Description"].is_string(), "{name}");
            let default = match &parameter["Default"] {
                Value::Null => "required".to_owned(),
                Value::String(text) if text.is_empty() => "empty".to_owned(),
                Value::String(text) => format!("`{text}`"),
                number => format!("`{number}`"),
            };
            (name.clone(), default)
        });
        assert_eq!(
            documented,
            expected.collect(),
            "docs/template.md: {heading}"
        );
    }
}

#[tokio::test]
async fn bucket_parameter_accepts_same_as_binary() {
    let pattern = pattern(&read(S3_BODIES)["Parameters"]["BodiesBucket"]);
    for (value, accepted) in [
        ("orders", true),
        ("a.b-1", true),
        ("ab", false),
        ("-orders", false),
        ("Orders", false),
        ("arn:aws:s3:::orders", false),
    ] {
        let bucket = ("CONSUMER_S3_BUCKETS".to_owned(), value.to_owned());
        let variables = environment(&[]).into_iter().chain([bucket]);
        let settings = Settings::from_vars(variables)
            .sdk_config(support::sdk_config("http://127.0.0.1:9"))
            .warm_up(false);
        let starts = settings.once(Ok(handler_fn(greet))).await.is_ok();
        assert_eq!(starts, accepted, "the binary: {value:?}");
        assert_eq!(pattern.is_match(value), accepted, "the overlay: {value:?}");
    }
}

/// The function's variables with these values of the parameters, or the defaults.
fn environment(values: &[(&str, &str)]) -> Vec<(String, String)> {
    let template = Template::with(values);
    let variables = variables(&read(CONSUMER));
    let variables = variables.as_object().unwrap().iter();
    let of_lambda = [("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")];
    let of_lambda = of_lambda.map(|(name, value)| (name.to_owned(), value.to_owned()));
    variables
        .map(|(name, value)| (name.clone(), template.text(value)))
        .chain(of_lambda)
        .collect()
}

async fn greet(_: Value, _: Attempt) -> Result<String, Failure> {
    Ok(String::new())
}

/// The consumer's settings as the function with these parameters reads them.
async fn assert_starts(values: &[(&str, &str)]) {
    let settings = Settings::from_vars(environment(values));
    // Without the read at start, since there is no table.
    let settings = settings
        .sdk_config(support::sdk_config("http://127.0.0.1:9"))
        .warm_up(false);
    let consumer = settings.once(Ok(handler_fn(greet))).await;
    assert!(consumer.is_ok(), "{values:?}: {:?}", consumer.err());
}

#[tokio::test]
async fn binary_accepts_defaults_and_allowed_values() {
    assert_starts(&[]).await;
    for (name, parameter) in parameters().as_object().unwrap() {
        for value in parameter["AllowedValues"].as_array().into_iter().flatten() {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            assert_starts(&[(name, &value)]).await;
        }
    }
}

#[tokio::test]
async fn binary_accepts_namespaces_that_the_pattern_accepts() {
    for namespace in ["payments", "a#b"] {
        let pattern = pattern(&parameters()["IdempotencyNamespace"]);
        assert!(pattern.is_match(namespace), "{namespace}");
        assert_starts(&[("IdempotencyNamespace", namespace)]).await;
    }
}

/// The alphabet of a secret's name. A colon would end the name inside of the dynamic reference.
#[test]
fn secret_parameter_accepts_names_only() {
    let pattern = pattern(&parameters()["PaymentGatewaySecret"]);
    for (text, accepted) in [
        ("", true),
        ("payments/gateway", true),
        ("a_b+c=d.e@f-g", true),
        ("payments:SecretString", false),
        (
            "arn:aws:secretsmanager:eu-central-1:123456789012:secret:a",
            false,
        ),
        ("}}", false),
        ("a b", false),
        ("a\n", false),
    ] {
        assert_eq!(pattern.is_match(text), accepted, "{text}");
    }
}

/// The binary trims values too, which the template needn't.
#[test]
fn key_parameter_accepts_nothing_that_binary_refuses() {
    let pattern = pattern(&parameters()["IdempotencyKey"]);
    let sources = [
        "message-id",
        "deduplication-id",
        "attribute:order",
        "attribute:a b",
        "body:/orderId",
        "body:/",
        "body:/tenant,/orderId",
        "body:/tenant, /orderId ",
        "body:/Message/orderId",
        "body:/a~1b,/c~0d",
    ];
    let others = [
        "",
        "orderId",
        "/orderId",
        "Message-Id",
        "message-ids",
        "message-id:1",
        "attribute",
        "attribute:",
        "attribute: ",
        "attribute:a\nb",
        "body:/tenant,\n/orderId",
        "body:/a\rb",
        "body",
        "body:",
        "body:orderId",
        "body:tenant,/orderId",
        "body:/a~",
        "body:/a~2",
        "body:/a~,/b",
    ];
    let trimmed = [
        "message-id ",
        " message-id",
        "body: /orderId",
        "attribute:a\n",
    ];
    let sources = sources.iter().map(|source| (source, true, true));
    let trimmed = trimmed.iter().map(|source| (source, true, false));
    let others = others.iter().map(|source| (source, false, false));
    for (source, by_binary, by_template) in sources.chain(trimmed).chain(others) {
        let mut settings = Settings::from_vars([("IDEMPOTENCY_KEY", *source)]);
        let read = settings.required("IDEMPOTENCY_KEY", "key", str::parse::<KeySource>);
        assert_eq!(read.is_ok(), by_binary, "the binary: {source:?}");
        let is_match = pattern.is_match(source);
        assert_eq!(is_match, by_template, "the template: {source:?}");
    }
}
