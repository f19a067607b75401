//! Permissions in the templates.

use std::{collections::BTreeSet, fs, path::Path};

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

pub(super) const CONSUMER: &str = "template.yaml";
const PLACE_ORDER: &str = "examples/place_order.template.yaml";
const TEMPLATES: [&str; 2] = [CONSUMER, PLACE_ORDER];

/// A template as JSON. CloudFormation's short forms become members: `{"!Ref": "Table"}`.
pub(super) fn read(template: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(template);
    let text = fs::read_to_string(path).unwrap();
    let documents = Yaml::load_from_str(&text).unwrap();
    let [document] = documents.as_slice() else {
        panic!("not one document");
    };
    to_json(document)
}

fn to_json(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(truth)) => json!(truth),
        Yaml::Value(Scalar::Integer(n)) => json!(n),
        Yaml::Value(Scalar::FloatingPoint(n)) => json!(n.into_inner()),
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Sequence(items) => items.iter().map(to_json).collect(),
        Yaml::Mapping(members) => members
            .iter()
            .map(|(name, value)| (name.as_str().unwrap().to_owned(), to_json(value)))
            .collect::<Map<_, _>>()
            .into(),
        Yaml::Tagged(tag, value) => json!({format!("!{}", tag.suffix): to_json(value)}),
        other => panic!("not in a template: {other:?}"),
    }
}

/// One value, or a list of values.
fn list(value: &Value) -> Vec<&Value> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().collect(),
        one => vec![one],
    }
}

pub(super) fn of_type<'a>(template: &'a Value, kind: &str) -> Vec<(&'a str, &'a Value)> {
    let resources = template["Resources"].as_object().unwrap().iter();
    resources
        .filter(|(_, resource)| resource["Type"] == kind)
        .map(|(name, resource)| (name.as_str(), &resource["Properties"]))
        .collect()
}

/// Every statement of every policy in the template.
fn statements(value: &Value) -> Vec<&Value> {
    let inner = match value {
        Value::Array(items) => items.iter().flat_map(statements).collect(),
        Value::Object(members) => members.values().flat_map(statements).collect(),
        _ => Vec::new(),
    };
    let own = if value["Statement"].is_null() {
        Vec::new()
    } else {
        list(&value["Statement"])
    };
    [own, inner].concat()
}

/// The statement under exactly these `conditions` of the template.
fn met<'a>(statement: &'a Value, conditions: &[&str]) -> Option<&'a Value> {
    let Some(choice) = statement["!If"].as_array() else {
        return Some(statement);
    };
    let [condition, met, unmet] = choice.as_slice() else {
        panic!("{statement}");
    };
    let is_met = conditions.contains(&condition.as_str().unwrap());
    let chosen = if is_met { met } else { unmet };
    (*chosen != json!({"!Ref": "AWS::NoValue"})).then_some(chosen)
}

/// Pairs of an action and the resource that it is allowed on.
fn allowed<'a>(statements: impl IntoIterator<Item = &'a Value>) -> BTreeSet<(String, String)> {
    let mut allowed = BTreeSet::new();
    for statement in statements {
        assert_eq!(statement["Effect"], "Allow", "{statement}");
        for action in list(&statement["Action"]) {
            for resource in list(&statement["Resource"]) {
                let arn = resource["!GetAtt"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{statement}"));
                allowed.insert((action.as_str().unwrap().to_owned(), arn.to_owned()));
            }
        }
    }
    allowed
}

/// The condition of direct dead-lettering.
pub(super) const DEAD_LETTERS: &str = "DirectlyDeadLetters";

/// Permissions of the consumer's role under these conditions, as (action, resource).
pub(super) fn consumer_may(conditions: &[&str]) -> BTreeSet<(String, String)> {
    function_may(CONSUMER, conditions)
}

fn function_may(template: &str, conditions: &[&str]) -> BTreeSet<(String, String)> {
    let template = read(template);
    let roles = of_type(&template, "AWS::IAM::Role");
    let [(_, role)] = roles.as_slice() else {
        panic!("more than the function's role: {roles:?}");
    };
    let policies = list(&role["Policies"]).into_iter();
    let documents = policies.map(|policy| &policy["PolicyDocument"]);
    let statements = documents.flat_map(statements);
    allowed(statements.filter_map(|statement| met(statement, conditions)))
}

#[test]
fn role_is_assumable_by_lambda_only() {
    for path in TEMPLATES {
        let template = read(path);
        let roles = of_type(&template, "AWS::IAM::Role");
        let [(name, role)] = roles.as_slice() else {
            panic!("more than the function's role: {roles:?}");
        };
        let trust = json!([{
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }]);
        assert_eq!(role["AssumeRolePolicyDocument"]["Statement"], trust);
        assert!(
            role["ManagedPolicyArns"].is_null(),
            "a managed policy is wider than needed"
        );

        let functions = of_type(&template, "AWS::Serverless::Function");
        assert!(!functions.is_empty());
        for (function, properties) in functions {
            assert_eq!(
                properties["Role"],
                json!({"!GetAtt": format!("{name}.Arn")}),
                "{function}"
            );
            // SAM adds policies of its own to a role that it makes.
            for more in [
                "Policies",
                "Connectors",
                "Tracing",
                "VpcConfig",
                "FunctionUrlConfig",
            ] {
                assert!(properties[more].is_null(), "{function}: {more}");
            }
        }
    }
}

/// Asserts that a function's role allows these actions on these resources, and no others.
fn assert_may(template: &str, needed: &[(&str, &str)]) {
    // Permissions of the event source mapping (AWS Lambda Developer Guide, "Using Lambda with
    // Amazon SQS").
    let polls = [
        "sqs:ReceiveMessage",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
    ];
    let polls = polls.map(|action| (action, "OrdersQueue.Arn"));
    let needed = needed.iter().copied().chain(polls);
    let needed = needed.map(|(action, resource)| (action.to_owned(), resource.to_owned()));
    assert_eq!(function_may(template, &[]), needed.collect(), "{template}");
}

#[test]
fn dead_lettering_adds_only_its_permissions() {
    let more = consumer_may(&[DEAD_LETTERS]);
    let more: BTreeSet<_> = more.difference(&consumer_may(&[])).cloned().collect();
    let needed = ["sqs:GetQueueUrl", "sqs:SendMessage"];
    let needed = needed.map(|action| (action.into(), "OrdersDeadLetterQueue.Arn".into()));
    assert_eq!(more, needed.into());
    let template = read(CONSUMER);
    let condition = json!({"!Equals": [{"!Ref": "DirectDeadLettering"}, "on"]});
    assert_eq!(template["Conditions"][DEAD_LETTERS], condition);
    assert_eq!(
        template["Parameters"]["DirectDeadLettering"]["Default"],
        "off"
    );
    let functions = of_type(&template, "AWS::Serverless::Function");
    let variables = &functions[0].1["Environment"]["Variables"];
    assert_eq!(
        variables["CONSUMER_DEAD_LETTER"],
        json!({"!Ref": "DirectDeadLettering"})
    );
}

#[test]
fn consumer_role_allows_only_its_calls() {
    assert_may(
        CONSUMER,
        &[
            ("dynamodb:PutItem", "IdempotencyTable.Arn"),
            ("dynamodb:UpdateItem", "IdempotencyTable.Arn"),
            ("dynamodb:DeleteItem", "IdempotencyTable.Arn"),
            ("dynamodb:GetItem", "IdempotencyTable.Arn"),
            ("sqs:GetQueueUrl", "OrdersQueue.Arn"),
            ("sqs:ChangeMessageVisibility", "OrdersQueue.Arn"),
            ("logs:CreateLogStream", "ConsumerLogGroup.Arn"),
            ("logs:PutLogEvents", "ConsumerLogGroup.Arn"),
        ],
    );
}

#[test]
fn place_order_role_allows_only_its_writes() {
    assert_may(
        PLACE_ORDER,
        &[
            ("dynamodb:PutItem", "IdempotencyTable.Arn"),
            ("dynamodb:PutItem", "OrdersTable.Arn"),
            ("dynamodb:UpdateItem", "StockTable.Arn"),
            ("logs:CreateLogStream", "PlaceOrderLogGroup.Arn"),
            ("logs:PutLogEvents", "PlaceOrderLogGroup.Arn"),
        ],
    );
}

/// A statement, or both that a condition chooses from.
fn variants(statement: &Value) -> Vec<&Value> {
    match statement["!If"].as_array() {
        Some(choice) => choice[1..].iter().collect(),
        None => vec![statement],
    }
}

#[test]
fn statements_allow_no_wildcard() {
    for path in TEMPLATES {
        let template = read(path);
        let statements = statements(&template);
        assert!(statements.len() >= 4, "{statements:?}");
        for statement in statements.into_iter().flat_map(variants) {
            for never in ["NotAction", "NotResource", "NotPrincipal"] {
                assert!(statement[never].is_null(), "{statement}");
            }
            if statement["Effect"] == "Allow" {
                for part in ["Action", "Resource", "Principal"] {
                    assert!(!statement[part].to_string().contains('*'), "{statement}");
                }
            }
        }
    }
}

#[test]
fn data_is_encrypted_and_recoverable() {
    for path in TEMPLATES {
        let template = read(path);
        let queues = of_type(&template, "AWS::SQS::Queue");
        assert_eq!(queues.len(), 2, "a queue and its dead-letter queue");
        for (name, queue) in queues {
            let encrypted =
                queue["SqsManagedSseEnabled"] == true || queue["KmsMasterKeyId"].is_string();
            assert!(encrypted, "{name}");
        }
        let tables = of_type(&template, "AWS::DynamoDB::Table");
        assert!(!tables.is_empty());
        for (name, table) in tables {
            assert_eq!(table["SSESpecification"]["SSEEnabled"], true, "{name}");
            let recovery = &table["PointInTimeRecoverySpecification"];
            assert_eq!(recovery["PointInTimeRecoveryEnabled"], true, "{name}");
        }
    }
}

/// Amazon SQS Developer Guide, "Security best practices": a queue's policy denies requests without
/// TLS. DynamoDB accepts TLS only.
#[test]
fn queues_refuse_requests_without_tls() {
    for path in TEMPLATES {
        let template = read(path);
        let policies = of_type(&template, "AWS::SQS::QueuePolicy");
        let insecure = [json!(false), json!("false")]
            .map(|word| json!({"Bool": {"aws:SecureTransport": word}}));
        for (queue, _) in of_type(&template, "AWS::SQS::Queue") {
            let refuses = |statement: &&Value| {
                statement["Effect"] == "Deny"
                    && [json!("*"), json!({"AWS": "*"})].contains(&statement["Principal"])
                    && [json!("sqs:*"), json!(["sqs:*"])].contains(&statement["Action"])
                    && list(&statement["Resource"])
                        .contains(&&json!({"!GetAtt": format!("{queue}.Arn")}))
                    && insecure.contains(&statement["Condition"])
            };
            let guarded = policies.iter().any(|(_, policy)| {
                list(&policy["Queues"]).contains(&&json!({"!Ref": queue}))
                    && statements(&policy["PolicyDocument"]).iter().any(refuses)
            });
            assert!(guarded, "{queue} takes messages over plain HTTP");
        }
    }
}
