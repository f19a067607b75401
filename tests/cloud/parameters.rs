//! The template's parameters: the defaults, the values that they accept, and the variables and
//! properties that they set.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use regex_lite::Regex;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Failure, Settings, handler_fn,
    internal::table::{SETTINGS, Setting},
    sqs::{FingerprintSource, KeySource},
};

use support::template::{CONSUMER, OWN_TABLE, Template, met, of_type, read};

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
const DOCUMENTED: [&str; 4] = [
    "docs/settings.md",
    "docs/outbox.md",
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

/// Retention of each queue's messages.
fn retention(template: &Value) -> Vec<Duration> {
    let queues = of_type(template, "AWS::SQS::Queue").into_iter();
    let seconds = queues.map(|(_, queue)| queue["MessageRetentionPeriod"].as_u64().unwrap());
    seconds.map(Duration::from_secs).collect()
}

#[test]
fn records_outlive_both_queues() {
    let template = read(CONSUMER);
    let retention = retention(&template);
    assert_eq!(retention.len(), 2, "a queue and its dead-letter queue");
    let records = template["Parameters"]["IdempotencyRetention"]["Default"].as_str();
    let records = humantime::parse_duration(records.unwrap()).unwrap();
    let messages = retention.iter().sum::<Duration>();
    assert!(records > messages, "{records:?}, {messages:?}");
}

#[test]
fn outputs_in_s3_outlive_their_records() {
    let template = read(CONSUMER);
    let days = template["Parameters"]["ResultRetentionDays"]["Default"].as_u64();
    let outputs = Duration::from_secs(days.unwrap() * 24 * 3600);
    let records = template["Parameters"]["IdempotencyRetention"]["Default"].as_str();
    let records = humantime::parse_duration(records.unwrap()).unwrap();
    assert!(outputs > records, "{outputs:?}, {records:?}");
    let bucket = &template["Resources"]["ResultBucket"]["Properties"];
    let rule = &bucket["LifecycleConfiguration"]["Rules"][0];
    assert_eq!(rule["Prefix"], "results/");
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
        ("local/watch.py", "\"IDEMPOTENCY_KEY\": \"body:/orderId\""),
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
    let template = read(CONSUMER);
    let variables = variables(&template);
    let rows = rows("Parameters");
    for setting in SETTINGS.iter().filter(|row| !row.parameter.is_empty()) {
        let (name, parameter) = (setting.name, setting.parameter);
        let variable = &variables[name];
        match name {
            "IDEMPOTENCY_TABLE_NAME" => {
                let own = json!({"!Ref": "IdempotencyTable"});
                assert_eq!(met(variable, &[OWN_TABLE]), Some(&own));
                let existing = json!({"!Ref": parameter});
                assert_eq!(met(variable, &[]), Some(&existing));
                continue;
            }
            "IDEMPOTENCY_NAMESPACE" => {
                let given = json!({"!Ref": parameter});
                assert_eq!(met(variable, &["HasNamespace"]), Some(&given));
                assert_eq!(met(variable, &[]), Some(&json!("payments")));
                continue;
            }
            "IDEMPOTENCY_RESULT_BUCKET" => {
                let own = json!({"!Ref": "ResultBucket"});
                let in_s3 = ["StoresResultsInS3", "MakesResultBucket"];
                assert_eq!(met(variable, &in_s3), Some(&own));
                let existing = json!({"!Ref": parameter});
                assert_eq!(met(variable, &["StoresResultsInS3"]), Some(&existing));
                assert_eq!(met(variable, &[]), Some(&json!("")));
                continue;
            }
            "CONSUMER_BACKOFF_CAP" => {
                let of_timeout = json!(["OfTimeout", {"!Ref": parameter}, "BackoffCap"]);
                assert_eq!(*variable, json!({"!FindInMap": of_timeout}));
                continue;
            }
            "CONSUMER_DIRECT_DEAD_LETTERING" => {
                let is_on = json!(["DirectlyDeadLetters", "on", "off"]);
                assert_eq!(*variable, json!({"!If": is_on}));
            }
            _ => assert_eq!(*variable, json!({"!Ref": parameter}), "{name}"),
        }
        let default = &template["Parameters"][parameter]["Default"];
        let default = default
            .as_str()
            .map_or_else(|| default.to_string(), str::to_owned);
        let expected = match name {
            // The sample's messages name their operation.
            "IDEMPOTENCY_KEY" => "body:/orderId",
            _ => setting.default,
        };
        assert_eq!(default, expected, "{name}");
        let literal = format!("`{parameter}`");
        let row = rows
            .iter()
            .find(|row| row[0] == literal)
            .unwrap_or_else(|| panic!("docs/template.md: {parameter}"));
        assert!(row[2].starts_with(&format!("`{name}`")), "{row:?}");
    }
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

/// Parameters that set a property, and the property.
const OF_PROPERTIES: [(&str, &str); 22] = [
    ("AlarmEmail", "AlarmTopic/Subscription"),
    ("AlarmTopicArn", "FunctionErrors/AlarmActions"),
    ("Architecture", "Consumer/Architectures/0"),
    ("BatchSize", "OrdersEventSource/BatchSize"),
    (
        "BatchingWindow",
        "OrdersEventSource/MaximumBatchingWindowInSeconds",
    ),
    ("FunctionTimeout", "Consumer/Timeout"),
    ("FunctionTimeout", "DurationNearTimeout/Threshold"),
    ("FunctionTimeout", "OrdersQueue/VisibilityTimeout"),
    ("KmsKeyArn", "OrdersQueue/KmsMasterKeyId"),
    ("LogLevel", "Consumer/LoggingConfig/ApplicationLogLevel"),
    ("LogRetentionDays", "ConsumerLogGroup/RetentionInDays"),
    (
        "MaxReceiveCount",
        "OrdersQueue/RedrivePolicy/maxReceiveCount",
    ),
    ("MaximumConcurrency", "OrdersEventSource/ScalingConfig"),
    (
        "MaximumPollers",
        "OrdersEventSource/ProvisionedPollerConfig",
    ),
    ("MemorySize", "Consumer/MemorySize"),
    (
        "MinimumPollers",
        "OrdersEventSource/ProvisionedPollerConfig",
    ),
    ("OldestMessageAgeAlarm", "OldestMessageTooOld/Threshold"),
    (
        "ResultRetentionDays",
        "ResultBucket/LifecycleConfiguration/Rules/0/ExpirationInDays",
    ),
    (
        "ProducerSourceArn",
        "OrdersQueuePolicy/PolicyDocument/Statement",
    ),
    ("RetryableFailuresAlarm", "RetryableFailures/Threshold"),
    (
        "TableMaxWriteCapacity",
        "IdempotencyTable/ProvisionedThroughput",
    ),
    ("TableMaxWriteCapacity", "TableWriteCapacity/MaxCapacity"),
];

/// Parameters that a condition reads, with the property that the condition sets.
const OF_CONDITIONS: [(&str, &str, &str, Value); 8] = [
    (
        "ContentBasedDeduplication",
        "DeduplicatesByContent",
        "OrdersQueue/ContentBasedDeduplication",
        Value::Bool(true),
    ),
    ("Fifo", "IsFifo", "OrdersQueue/FifoQueue", Value::Bool(true)),
    (
        "Fifo",
        "IsFifo",
        "OrdersDeadLetterQueue/FifoQueue",
        Value::Bool(true),
    ),
    (
        "FifoHighThroughput",
        "IsHighThroughput",
        "OrdersQueue/FifoThroughputLimit",
        Value::Null,
    ),
    (
        "FifoHighThroughput",
        "IsHighThroughput",
        "OrdersQueue/DeduplicationScope",
        Value::Null,
    ),
    (
        "MaximumPollers",
        "HasProvisionedPollers",
        "OrdersEventSource/ProvisionedPollerConfig",
        Value::Null,
    ),
    (
        "TableMaxWriteCapacity",
        "HasProvisionedCapacity",
        "IdempotencyTable/ProvisionedThroughput",
        Value::Null,
    ),
    ("KmsKeyArn", "HasKmsKey", "Consumer/KmsKeyArn", Value::Null),
];

fn property<'a>(template: &'a Value, path: &str) -> &'a Value {
    let (resource, property) = path.split_once('/').unwrap();
    let pointer = format!("/Resources/{resource}/Properties/{property}");
    template
        .pointer(&pointer)
        .unwrap_or_else(|| panic!("{path}"))
}

#[test]
fn parameters_reach_their_properties() {
    let template = read(CONSUMER);
    for (parameter, path) in OF_PROPERTIES {
        let value = property(&template, path).to_string();
        let reference = json!({"!Ref": parameter}).to_string();
        assert!(value.contains(&reference), "{parameter}: {path} is {value}");
    }
}

#[test]
fn conditions_set_properties_only_if_met() {
    let template = read(CONSUMER);
    for (parameter, condition, path, expected) in OF_CONDITIONS {
        let reads = template["Conditions"][condition].to_string();
        let reference = json!({"!Ref": parameter}).to_string();
        assert!(reads.contains(&reference), "{condition}: {reads}");
        let value = property(&template, path);
        assert_eq!(met(value, &[]), None, "{path}");
        let set = met(value, &[condition]).unwrap_or_else(|| panic!("{path}"));
        assert!(expected.is_null() || *set == expected, "{path}: {set}");
    }
}

/// CloudFormation may write a number of seven digits and more as 1.048576E7, which the binary refuses.
#[test]
fn long_numbers_are_texts() {
    for (name, parameter) in parameters().as_object().unwrap() {
        let default = parameter["Default"].as_u64().unwrap_or(0);
        assert!(default < 1_000_000, "{name}: quote {default}");
    }
}

/// Lambda refuses a minimum above the maximum, and a maximum of 1.
#[test]
fn pollers_are_refused_if_minimum_is_above_maximum() {
    let parameters = parameters();
    let allowed = |name: &str| -> Vec<_> {
        let values = parameters[name]["AllowedValues"].as_array().unwrap().iter();
        values
            .map(|value| value.as_str().unwrap().to_owned())
            .collect()
    };
    let number = |text: &str| text.parse::<u32>().unwrap();
    let maxima = allowed("MaximumPollers");
    assert!(!maxima.contains(&"1".to_owned()));
    let mut template = Template::with(&[]);
    for minimum in allowed("MinimumPollers") {
        for maximum in &maxima {
            template.set(&[("MinimumPollers", &minimum), ("MaximumPollers", maximum)]);
            let fits = maximum == "0" || number(&minimum) <= number(maximum);
            assert_eq!(template.admits(), fits, "{minimum} to {maximum}");
        }
    }
}

#[test]
fn pollers_replace_maximum_concurrency() {
    let template = read(CONSUMER);
    let scaling = property(&template, "OrdersEventSource/ScalingConfig");
    assert!(met(scaling, &[]).is_some());
    assert_eq!(met(scaling, &["HasProvisionedPollers"]), None);
}

#[test]
fn write_capacity_is_provisioned_and_scaled_with_maximum() {
    for (maximum, mode) in [("0", "PAY_PER_REQUEST"), ("5", "PROVISIONED")] {
        let template = Template::with(&[("TableMaxWriteCapacity", maximum)]);
        let billing = template.property("IdempotencyTable/BillingMode");
        assert_eq!(billing, mode, "{maximum}");
    }
    let template = read(CONSUMER);
    for name in ["TableWriteCapacity", "TableWriteScaling"] {
        let resource = &template["Resources"][name];
        assert_eq!(resource["Condition"], "HasProvisionedCapacity", "{name}");
    }
    let target = json!({"!Ref": "TableWriteCapacity"});
    let scaled = property(&template, "TableWriteScaling/ScalingTargetId");
    assert_eq!(*scaled, target);
    let table = json!({"!Sub": "table/${IdempotencyTable}"});
    assert_eq!(*property(&template, "TableWriteCapacity/ResourceId"), table);
    let throughput = property(&template, "IdempotencyTable/ProvisionedThroughput");
    let throughput = met(throughput, &["HasProvisionedCapacity"]).unwrap();
    let maximum = json!({"!Ref": "TableMaxWriteCapacity"});
    assert_eq!(
        throughput["WriteCapacityUnits"], maximum,
        "from less, the table would throttle until auto-scaling has caught up"
    );
}

/// Application Auto Scaling refuses a maximum below its minimum, and scales only the table of the stack.
#[test]
fn write_capacity_is_refused_if_low_or_for_other_tables() {
    let least = property(&read(CONSUMER), "TableWriteCapacity/MinCapacity").as_u64();
    let mut template = Template::with(&[]);
    for maximum in 0..=2 * least.unwrap() {
        let fits = maximum == 0 || maximum >= least.unwrap();
        template.set(&[("TableMaxWriteCapacity", &maximum.to_string())]);
        assert_eq!(template.admits(), fits, "{maximum}");
    }
    for (maximum, admitted) in [("500", false), ("0", true)] {
        template.set(&[
            ("ExistingTableName", "records"),
            ("IdempotencyNamespace", "payments"),
            ("TableMaxWriteCapacity", maximum),
        ]);
        assert_eq!(template.admits(), admitted, "{maximum}");
    }
}

#[test]
fn every_parameter_has_group_description_and_docs() {
    let template = read(CONSUMER);
    let parameters = template["Parameters"].as_object().unwrap();
    let interface = &template["Metadata"]["AWS::CloudFormation::Interface"];
    let groups = interface["ParameterGroups"].as_array().unwrap().iter();
    let grouped: Vec<_> = groups
        .flat_map(|group| group["Parameters"].as_array().unwrap())
        .map(|name| name.as_str().unwrap())
        .collect();
    let names: BTreeSet<_> = parameters.keys().map(String::as_str).collect();
    assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), names);
    assert_eq!(grouped.len(), names.len(), "a parameter in two groups");

    let documented = rows("Parameters");
    let order: Vec<_> = documented
        .iter()
        .map(|row| literal(&row[0]).unwrap())
        .collect();
    assert_eq!(
        order, grouped,
        "docs/template.md, in the order of the groups"
    );
    for row in &documented {
        let parameter = &parameters[literal(&row[0]).unwrap()];
        assert!(parameter["Description"].is_string(), "{row:?}");
        let default = match &parameter["Default"] {
            Value::Null => "required".to_owned(),
            Value::String(text) if text.is_empty() => "empty".to_owned(),
            Value::String(text) => format!("`{text}`"),
            number => format!("`{number}`"),
        };
        assert_eq!(row[1], default, "{row:?}");
    }
}

#[tokio::test]
async fn s3_buckets_parameter_accepts_same_as_binary() {
    let pattern = pattern(&parameters()["ConsumerS3Buckets"]);
    for (value, accepted) in [
        ("", true),
        ("orders", true),
        ("a.b-1,invoices", true),
        ("orders,", false),
        ("orders, invoices", false),
        ("ab", false),
        ("-orders", false),
        ("Orders", false),
        ("arn:aws:s3:::orders", false),
    ] {
        let variables = environment(&[("ConsumerS3Buckets", value)]);
        let settings = Settings::from_vars(variables);
        let settings = settings
            .sdk_config(support::sdk_config("http://127.0.0.1:9"))
            .warm_up(false);
        let starts = settings.once(Ok(handler_fn(greet))).await.is_ok();
        assert_eq!(starts, accepted, "the binary: {value:?}");
        assert_eq!(pattern.is_match(value), accepted, "the template: {value:?}");
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
async fn binary_accepts_values_that_patterns_accept() {
    let values = [
        ("IdempotencyNamespace", &["payments", "a#b"][..]),
        ("IdempotencyAttributes", &["id=PK", "id=PK,expires_at=ttl"]),
        ("IdempotencySortKey", &["SK", "SK=payments", "SK=a=b"]),
        ("ConsumerBackoffBase", &["2s", "10s", "1m"]),
        ("IdempotencyRetention", &["36h", "20d"]),
    ];
    let parameters = parameters();
    for (name, values) in values {
        for value in values {
            assert!(
                pattern(&parameters[name]).is_match(value),
                "{name}: {value}"
            );
            assert_starts(&[(name, value)]).await;
        }
    }
    for (name, value) in [
        ("ConsumerBackoffBase", "0s"),
        ("ConsumerBackoffBase", "1s"),
        ("IdempotencyAttributes", "id"),
        ("IdempotencySortKey", "=payments"),
    ] {
        assert!(
            !pattern(&parameters[name]).is_match(value),
            "{name}: {value}"
        );
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

#[test]
fn fingerprint_parameter_accepts_same_as_binary() {
    let pattern = pattern(&parameters()["IdempotencyFingerprint"]);
    for (source, accepted) in [
        ("body", true),
        ("off", true),
        ("body:/amount", true),
        ("body:/amount,/currency", true),
        ("body:/a~1b", true),
        ("", false),
        ("on", false),
        ("body:", false),
        ("body:amount", false),
        ("body:/a~2", false),
    ] {
        let parsed = source.parse::<FingerprintSource>().is_ok();
        assert_eq!(parsed, accepted, "the binary: {source:?}");
        assert_eq!(
            pattern.is_match(source),
            accepted,
            "the template: {source:?}"
        );
    }
}

#[test]
fn key_parameter_accepts_same_as_binary() {
    let pattern = pattern(&parameters()["IdempotencyKey"]);
    let sources = [
        "message-id",
        "deduplication-id",
        "attribute:order",
        "attribute:a b",
        "body:/orderId",
        "body:/",
        "body:/tenant,/orderId",
        "body:/Message/orderId",
        "body:/a~1b,/c~0d",
    ];
    let others = [
        "",
        "orderId",
        "/orderId",
        "Message-Id",
        "message-id ",
        " message-id",
        "message-ids",
        "message-id:1",
        "attribute",
        "attribute:",
        "body",
        "body:",
        "body:orderId",
        "body:tenant,/orderId",
        "body:/a~",
        "body:/a~2",
        "body:/a~,/b",
    ];
    let known = sources.map(|source| (source, true));
    for (source, accepted) in known.into_iter().chain(others.map(|other| (other, false))) {
        let parsed = source.parse::<KeySource>().is_ok();
        assert_eq!(parsed, accepted, "the binary: {source:?}");
        assert_eq!(
            pattern.is_match(source),
            accepted,
            "the template: {source:?}"
        );
    }
}
