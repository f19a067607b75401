//! The consumer of the CDK and of Terraform: settings and permissions are those of the template.

use std::{collections::BTreeSet, fs, path::Path};

use regex_lite::Regex;
use serde_json::Value;

use support::template::{CONSUMER, DEAD_LETTERS, consumer_may, of_type, read};

/// A stack in another language, with the regular expressions that find its parts.
struct Stack {
    source: &'static str,
    /// Actions and resource of one statement of the role.
    statement: &'static str,
    /// The name of each resource, in the template's terms.
    resources: [(&'static str, &'static str); 4],
    /// Each value, in the order of [`values`].
    values: [&'static str; 13],
}

const CDK: Stack = Stack {
    source: "examples/typescript/consumer-stack.ts",
    statement: r"allow\(\[([^\]]*)\], (\w+)\.",
    resources: [
        ("table", "IdempotencyTable.Arn"),
        ("queue", "OrdersQueue.Arn"),
        ("deadLetters", "OrdersDeadLetterQueue.Arn"),
        ("logGroup", "ConsumerLogGroup.Arn"),
    ],
    values: [
        r"const timeout = Duration\.seconds\((\d+)\)",
        r"visibilityTimeout: Duration\.seconds\((\d+)\)",
        r"retentionPeriod: Duration\.days\((\d+)\),\n.*\n.*\n +deadLetterQueue: ",
        r"retentionPeriod: Duration\.days\((\d+)\),\n.*\n.*\n +removalPolicy: ",
        r"maxReceiveCount: (\d+)",
        r"memorySize: (\d+)",
        r"batchSize: (\d+)",
        r"maxBatchingWindow: Duration\.seconds\((\d+)\)",
        r"maxConcurrency: (\d+)",
        r#"partitionKey: \{ name: "(\w+)", type: dynamodb\.AttributeType\.STRING \}"#,
        r#"timeToLiveAttribute: "(\w+)""#,
        r"metricApproximateAgeOfOldestMessage\(.*\n +threshold: (\d+)",
        r"(reportBatchItemFailures): true",
    ],
};

const TERRAFORM: Stack = Stack {
    source: "examples/terraform/main.tf",
    statement: r"actions +=  ?\[([^\]]*)\]\n +resources = \[.*?aws_\w+?\.(\w+)\.arn",
    resources: [
        ("idempotency", "IdempotencyTable.Arn"),
        ("orders", "OrdersQueue.Arn"),
        ("dead_letters", "OrdersDeadLetterQueue.Arn"),
        ("consumer", "ConsumerLogGroup.Arn"),
    ],
    values: [
        r"function_timeout = (\d+)",
        r"visibility_timeout_seconds = (\d+)",
        r"message_retention_seconds  = \d+ # (\d+) days",
        r"message_retention_seconds = \d+ # (\d+) days",
        r"maxReceiveCount +=  ?(\d+)",
        r"memory_size +=  ?(\d+)",
        r"batch_size +=  ?(\d+)",
        r"maximum_batching_window_in_seconds +=  ?(\d+)",
        r"maximum_concurrency +=  ?(\d+)",
        r#"hash_key += "(\w+)""#,
        r#"attribute_name += "(\w+)"\n +enabled +=  ?true"#,
        r#""ApproximateAgeOfOldestMessage"(?s:.*?)threshold +=  ?(\d+)"#,
        r#"function_response_types += \["Report(BatchItemFailures)"\]"#,
    ],
};

impl Stack {
    fn text(&self) -> String {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(self.source)).unwrap()
    }

    /// Pairs of an action and the resource that it is allowed on.
    fn may(&self) -> BTreeSet<(String, String)> {
        let action = Regex::new(r"\w+:\w+").unwrap();
        let statement = Regex::new(self.statement).unwrap();
        let mut may = BTreeSet::new();
        for found in statement.captures_iter(&self.text()) {
            let named = (self.resources.iter()).find(|(name, _)| *name == &found[2]);
            let (_, resource) = named.unwrap_or_else(|| panic!("{}", &found[0]));
            for action in action.find_iter(&found[1]) {
                may.insert((action.as_str().to_owned(), (*resource).to_owned()));
            }
        }
        may
    }

    fn values(&self) -> Vec<String> {
        let text = self.text();
        let value = |pattern: &&str| {
            let found = Regex::new(pattern).unwrap().captures(&text);
            let found = found.unwrap_or_else(|| panic!("{}: no {pattern}", self.source));
            found[1].to_owned()
        };
        self.values.iter().map(value).collect()
    }
}

fn number(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_u64().or(text).unwrap()
}

/// The values of the template that the other stacks repeat.
fn values() -> Vec<String> {
    let template = read(CONSUMER);
    let resource = |name: &str| &template["Resources"][name]["Properties"];
    let default = |name: &str| number(&template["Parameters"][name]["Default"]);
    let days = |queue: &str| number(&resource(queue)["MessageRetentionPeriod"]) / 86400;
    let timeout = default("FunctionTimeout");
    let of_timeout = &template["Mappings"]["OfTimeout"][&timeout.to_string()];
    let numbers = [
        timeout,
        number(&of_timeout["VisibilityTimeout"]),
        days("OrdersQueue"),
        days("OrdersDeadLetterQueue"),
        number(&of_timeout["MaxReceiveCount"]),
        default("MemorySize"),
        default("BatchSize"),
        default("BatchingWindow"),
        default("MaximumConcurrency"),
    ];
    let table = resource("IdempotencyTable");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut values: Vec<_> = numbers.iter().map(u64::to_string).collect();
    values.push(text(&table["KeySchema"][0]["AttributeName"]));
    values.push(text(&table["TimeToLiveSpecification"]["AttributeName"]));
    values.push(default("OldestMessageAgeAlarm").to_string());
    values
}

#[test]
fn other_stacks_allow_what_the_template_allows() {
    for stack in [CDK, TERRAFORM] {
        assert_eq!(
            stack.may(),
            consumer_may(&[DEAD_LETTERS]),
            "{}",
            stack.source
        );
        // No statement is written in another form.
        let quoted = Regex::new(r#""((?:dynamodb|sqs|logs|kms|s3|iam):[\w*]+)""#).unwrap();
        let text = stack.text();
        let quoted: BTreeSet<_> = quoted
            .captures_iter(&text)
            .map(|found| found[1].to_owned())
            .collect();
        let mut known: BTreeSet<_> = stack.may().into_iter().map(|(action, _)| action).collect();
        known.insert("sqs:*".into()); // denied without TLS
        assert!(quoted.is_subset(&known), "{}: {quoted:?}", stack.source);
        assert!(!text.contains(".grant"), "{}", stack.source);
    }
}

#[test]
fn other_stacks_repeat_values_of_the_template() {
    for stack in [CDK, TERRAFORM] {
        let mut expected = values();
        let failures = stack.values().pop().unwrap();
        assert!(failures.ends_with("atchItemFailures"));
        expected.push(failures);
        assert_eq!(stack.values(), expected, "{}", stack.source);
    }
}

#[test]
fn variables_of_other_stacks_are_in_the_template() {
    let template = read(CONSUMER);
    let functions = of_type(&template, "AWS::Serverless::Function");
    let variables = &functions[0].1["Environment"]["Variables"];
    let name = Regex::new(r"\b(?:IDEMPOTENCY|CONSUMER|PAYMENT)_[A-Z_]+").unwrap();
    for stack in [CDK, TERRAFORM] {
        let text = stack.text();
        let names: BTreeSet<_> = name.find_iter(&text).map(|found| found.as_str()).collect();
        assert!(names.contains("IDEMPOTENCY_TABLE_NAME"), "{}", stack.source);
        for name in names {
            assert!(!variables[name].is_null(), "{}: {name}", stack.source);
        }
    }
}

/// The alarms on the consumer's own metrics: metric, statistic, threshold, datapoints, periods.
type Alarms = BTreeSet<(String, String, u64, u64, u64)>;

fn alarms_of_template() -> Alarms {
    let template = read(CONSUMER);
    let own = |(_, alarm): &(&str, &Value)| alarm["Namespace"] == "sqs-once";
    let alarm = |(_, alarm): (&str, &Value)| {
        let text = |name: &str| alarm[name].as_str().unwrap().to_owned();
        let threshold = match &alarm["Threshold"]["!Ref"] {
            Value::String(parameter) => &template["Parameters"][parameter]["Default"],
            _ => &alarm["Threshold"],
        };
        let datapoints = alarm["DatapointsToAlarm"].as_u64().unwrap_or(1);
        let periods = number(&alarm["EvaluationPeriods"]);
        let threshold = number(threshold);
        (
            text("MetricName"),
            text("Statistic"),
            threshold,
            datapoints,
            periods,
        )
    };
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm").into_iter();
    alarms.filter(own).map(alarm).collect()
}

#[test]
fn other_stacks_repeat_alarms_on_consumer_metrics() {
    let terraform = r#"(?m)^    (\w+) += \{ statistic = "(\w+)", threshold = (\d+), datapoints = (\d+), periods = (\d+) \}$"#;
    let cdk = r#"(?m)^      (\w+): \{(?: threshold: (\d+), statistic: "(\w+)",)?(?: minutes: \[(\d+), (\d+)\] )?\},$"#;
    let of = |stack: &Stack, pattern: &str, [statistic, threshold]: [usize; 2]| -> Alarms {
        let text = stack.text();
        let found = Regex::new(pattern).unwrap();
        let alarm = |found: regex_lite::Captures<'_>| {
            let group = |group: usize, default: &str| {
                found
                    .get(group)
                    .map_or(default, |text| text.as_str())
                    .to_owned()
            };
            let number = |at: usize, default: &str| group(at, default).parse().unwrap();
            let [statistic, threshold] = [group(statistic, "Sum"), group(threshold, "0")];
            let threshold = threshold.parse().unwrap();
            (
                group(1, ""),
                statistic,
                threshold,
                number(4, "1"),
                number(5, "1"),
            )
        };
        found.captures_iter(&text).map(alarm).collect()
    };
    let template = alarms_of_template();
    assert_eq!(template.len(), 8);
    assert_eq!(of(&TERRAFORM, terraform, [2, 3]), template);
    assert_eq!(of(&CDK, cdk, [3, 2]), template);
    assert!(TERRAFORM.text().contains(r#"metrics = ["EventCount"]"#));
    assert!(
        CDK.text()
            .contains("metrics: [lambda.MetricType.EVENT_COUNT]")
    );
}
