//! `sqs-once doctor`, against recorded answers of AWS in which one thing is wrong, and against the
//! template on the emulator at `AWS_ENDPOINT_URL`.

use std::sync::Arc;

use aws_sdk_cloudformation::{
    client::Waiters as _,
    types::{Capability, Parameter},
};
use aws_sdk_dynamodb::types::TimeToLiveSpecification;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use support::{
    prerequisite::emulator,
    template::{Template, read},
};

use crate::{Ended, run};

const VARIABLES: &str = "/function/Environment/Variables";

fn arn(service: &str, name: &str) -> String {
    format!("arn:aws:{service}:eu-central-1:123456789012:{name}")
}

/// The answers of a stack without a fault, as AWS gives them for the template. A test changes one
/// value by its JSON pointer.
fn healthy() -> Value {
    let redrive = json!({"deadLetterTargetArn": arn("sqs", "orders-dead"), "maxReceiveCount": 130});
    json!({
        "function": {
            "FunctionName": "shop-consumer",
            "FunctionArn": arn("lambda", "function:shop-consumer"),
            "Timeout": 30,
            "Role": "arn:aws:iam::123456789012:role/shop/shop-role",
            "Environment": {"Variables": {
                "IDEMPOTENCY_TABLE_NAME": "records",
                "IDEMPOTENCY_KEY": "body:/orderId",
                "IDEMPOTENCY_RETENTION": "20d",
            }},
        },
        "mappings": [{
            "UUID": "mapping-1",
            "EventSourceArn": arn("sqs", "orders"),
            "FunctionArn": arn("lambda", "function:shop-consumer"),
            "State": "Enabled",
            "MaximumBatchingWindowInSeconds": 0,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
        }],
        "queues": {
            "orders": {
                "VisibilityTimeout": "420",
                "MessageRetentionPeriod": "345600",
                "RedrivePolicy": redrive.to_string(),
            },
            "orders-dead": {"VisibilityTimeout": "30", "MessageRetentionPeriod": "1209600"},
            "ship.fifo": {},
        },
        "table": {
            "TableName": "records",
            "TableArn": arn("dynamodb", "table/records"),
            "TableStatus": "ACTIVE",
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        },
        "outbox": {
            "TableName": "outbox",
            "TableArn": arn("dynamodb", "table/outbox"),
            "TableStatus": "ACTIVE",
            "KeySchema": [
                {"AttributeName": "group", "KeyType": "HASH"},
                {"AttributeName": "sequence", "KeyType": "RANGE"},
            ],
            "AttributeDefinitions": [
                {"AttributeName": "group", "AttributeType": "S"},
                {"AttributeName": "sequence", "AttributeType": "S"},
            ],
        },
        "topics": [arn("sns", "billing"), arn("sns", "alarms")],
        // Subscriptions that somebody has confirmed.
        "confirmed": 1,
        "buses": [arn("events", "event-bus/shop")],
        "rules": {},
        "aliases": [],
        "mappings_of_alias": [],
        "ttl": {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires_at"},
        // Actions and resources that IAM's simulation denies to the role.
        "denied": [],
        // Condition keys that the simulation does not know.
        "unknown": null,
        // The code of the error with which IAM answers in place of a simulation.
        "simulation_fails": null,
    })
}

/// Changes the value at a JSON pointer. `null` removes it.
fn with(pointer: &str, value: Value) -> Value {
    with_in(healthy(), pointer, value)
}

/// Changes the value at a JSON pointer in `answers`. `null` removes it.
fn with_in(mut answers: Value, pointer: &str, value: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match answers.pointer_mut(parent).unwrap() {
        Value::Object(object) if value.is_null() => drop(object.remove(name)),
        Value::Object(object) => drop(object.insert(name.to_owned(), value)),
        Value::Array(array) => array[name.parse::<usize>().unwrap()] = value,
        other => panic!("{pointer}: {other}"),
    }
    answers
}

fn missing(kind: &str) -> Response {
    let error = json!({"__type": kind}).to_string();
    (StatusCode::BAD_REQUEST, error).into_response()
}

async fn answer(
    State(answers): State<Arc<Value>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let json = |value: Value| value.to_string().into_response();
    if uri.path().ends_with("/configuration") {
        return json(answers["function"].clone());
    }
    if uri.path().ends_with("/aliases") {
        return json(json!({"Aliases": answers["aliases"]}));
    }
    if uri.path().contains("/event-source-mappings") {
        let of_alias = uri.query().unwrap().contains("live");
        let mappings = if of_alias {
            "mappings_of_alias"
        } else {
            "mappings"
        };
        return json(json!({"EventSourceMappings": answers[mappings]}));
    }
    let Some(target) = headers.get("x-amz-target") else {
        let body = String::from_utf8(body.to_vec()).unwrap();
        let (status, answer) = xml(&answers, &body);
        return (status, [(CONTENT_TYPE, "text/xml")], answer).into_response();
    };
    let body: Value = serde_json::from_slice(&body).unwrap();
    match target.to_str().unwrap().split_once('.').unwrap().1 {
        "GetQueueUrl" => {
            let name = body["QueueName"].as_str().unwrap();
            if answers["queues"][name].is_null() {
                return missing("com.amazonaws.sqs#QueueDoesNotExist");
            }
            json(json!({"QueueUrl": format!("https://sqs.example/123456789012/{name}")}))
        }
        "GetQueueAttributes" => {
            let name = body["QueueUrl"]
                .as_str()
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap();
            if answers["queues"][name].is_null() {
                return missing("com.amazonaws.sqs#QueueDoesNotExist");
            }
            json(json!({"Attributes": answers["queues"][name]}))
        }
        "DescribeTable" => {
            let table = match body["TableName"].as_str().unwrap() {
                "outbox" => &answers["outbox"],
                _ => &answers["table"],
            };
            if table.is_null() {
                return missing("com.amazonaws.dynamodb.v20120810#ResourceNotFoundException");
            }
            json(json!({ "Table": table }))
        }
        "ListRuleNamesByTarget" => {
            let rules = answers["rules"].as_object().unwrap();
            json(json!({"RuleNames": rules.keys().collect::<Vec<_>>()}))
        }
        "DescribeRule" => {
            let name = body["Name"].as_str().unwrap();
            json(json!({"Name": name, "State": answers["rules"][name]}))
        }
        "DescribeEventBus" => {
            if !answers["buses"].as_array().unwrap().contains(&body["Name"]) {
                return missing("ResourceNotFoundException");
            }
            json(json!({"Arn": body["Name"]}))
        }
        "DescribeTimeToLive" => json(json!({"TimeToLiveDescription": answers["ttl"]})),
        other => panic!("unexpected call of {other}"),
    }
}

/// The answers of CloudFormation, IAM and SNS, which speak XML.
fn xml(answers: &Value, body: &str) -> (StatusCode, String) {
    let form: Vec<_> = reqwest::Url::parse(&format!("http://form/?{body}"))
        .unwrap()
        .query_pairs()
        .into_owned()
        .collect();
    let parameter = |name: &str| {
        let mut found = form.iter().filter(|(of, _)| of == name);
        found.next().map(|(_, value)| value.as_str())
    };
    let fails = |status, code: &str| {
        let error = format!("<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>");
        (status, error)
    };
    let action = parameter("Action").unwrap();
    let result = match action {
        "ListStackResources" => {
            let member = |kind: &str, logical: &str, id: &str| {
                format!(
                    "<member><LogicalResourceId>{logical}</LogicalResourceId><PhysicalResourceId>{id}</PhysicalResourceId>\
                 <ResourceType>{kind}</ResourceType><ResourceStatus>CREATE_COMPLETE</ResourceStatus>\
                 <LastUpdatedTimestamp>2026-11-21T10:50:00Z</LastUpdatedTimestamp></member>"
                )
            };
            // Two pages.
            if parameter("NextToken") == Some("more") {
                let name = answers["function"]["FunctionName"].as_str().unwrap();
                let function = member("AWS::Lambda::Function", "Function", name);
                let topic = member("AWS::SNS::Topic", "Topic", &arn("sns", "alarms"));
                format!("<StackResourceSummaries>{function}{topic}</StackResourceSummaries>")
            } else {
                let queue = member(
                    "AWS::SQS::Queue",
                    "Orders",
                    "https://sqs.example/123456789012/orders",
                );
                format!(
                    "<StackResourceSummaries>{queue}</StackResourceSummaries><NextToken>more</NextToken>"
                )
            }
        }
        "GetTopicAttributes" => {
            let topic = json!(parameter("TopicArn"));
            if !answers["topics"].as_array().unwrap().contains(&topic) {
                return fails(StatusCode::NOT_FOUND, "NotFound");
            }
            let confirmed = &answers["confirmed"];
            format!(
                "<Attributes><entry><key>SubscriptionsConfirmed</key><value>{confirmed}</value></entry></Attributes>"
            )
        }
        "SimulatePrincipalPolicy" => {
            assert_eq!(
                json!(parameter("PolicySourceArn")),
                answers["function"]["Role"]
            );
            if let Some(code) = answers["simulation_fails"].as_str() {
                return fails(StatusCode::FORBIDDEN, code);
            }
            let resource = parameter("ResourceArns.member.1").unwrap();
            assert_eq!(parameter("ResourceArns.member.2"), None);
            let actions = form
                .iter()
                .filter(|(name, _)| name.starts_with("ActionNames."));
            let members: String = actions
                .map(|(_, action)| {
                    let denied = answers["denied"].as_array().unwrap();
                    let allowed = !denied.contains(&json!([action, resource]));
                    let decision = if allowed { "allowed" } else { "implicitDeny" };
                    let unknown = answers["unknown"].as_str().map(|key| format!("<member>{key}</member>"));
                    format!(
                        "<member><EvalActionName>{action}</EvalActionName><EvalResourceName>{resource}</EvalResourceName>\
                         <EvalDecision>{decision}</EvalDecision><MissingContextValues>{}</MissingContextValues></member>",
                        unknown.unwrap_or_default()
                    )
                })
                .collect();
            format!(
                "<EvaluationResults>{members}</EvaluationResults><IsTruncated>false</IsTruncated>"
            )
        }
        other => panic!("unexpected call of {other}"),
    };
    let answer =
        format!("<{action}Response><{action}Result>{result}</{action}Result></{action}Response>");
    (StatusCode::OK, answer)
}

async fn doctor(answers: Value, arguments: &[&str]) -> Ended {
    doctor_of(answers, &[&["shop"], arguments].concat()).await
}

async fn doctor_of(answers: Value, arguments: &[&str]) -> Ended {
    let app = Router::new().fallback(answer).with_state(Arc::new(answers));
    let endpoint = format!("http://{}", support::serve(app).await);
    run(&endpoint, &[&["doctor"], arguments].concat()).await
}

/// The checks that found something.
async fn checks(answers: Value) -> Vec<String> {
    let ended = doctor(answers, &["--output", "json"]).await;
    let findings = ended.json()["findings"].as_array().unwrap().clone();
    assert_eq!(ended.code, i32::from(!findings.is_empty()), "{ended:?}");
    for finding in &findings {
        for part in ["resource", "found", "consequence", "fix"] {
            assert!(!finding[part].as_str().unwrap().is_empty(), "{finding}");
        }
    }
    let check = |finding: &Value| finding["check"].as_str().unwrap().to_owned();
    findings.iter().map(check).collect()
}

/// Demands that each change of `answers` is the one finding.
async fn assert_found(
    answers: &Value,
    seeds: impl IntoIterator<Item = (String, Value, &'static str)>,
) {
    for (pointer, value, wanted) in seeds {
        let found = checks(with_in(answers.clone(), &pointer, value.clone())).await;
        assert_eq!(found, [wanted], "{pointer} {value}");
    }
}

fn variable(name: &str) -> String {
    format!("{VARIABLES}/{name}")
}

#[tokio::test]
async fn healthy_stack_has_no_finding() {
    let ended = doctor(healthy(), &[]).await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (0, "shop-consumer: 0 findings\n"),
        "{ended:?}"
    );
    let ended = doctor(healthy(), &["--output", "json"]).await;
    assert_eq!(ended.json()["findings"], json!([]));
}

#[tokio::test]
async fn other_function_is_named_and_nothing_checked() {
    let mut answers = healthy();
    answers["function"]["Environment"]["Variables"] = json!({"TABLE": "orders"});
    let ended = doctor(answers, &[]).await;
    assert_eq!((ended.code, &*ended.stdout), (1, ""), "{ended:?}");
    for told in [
        "nothing was checked",
        "not checked: function shop-consumer: no variable of a consumer or a relay",
    ] {
        assert!(ended.stderr.contains(told), "{ended:?}");
    }
}

/// Each is on purpose or for a while, and says why no message or no alarm arrives.
#[tokio::test]
async fn resting_consumer_and_silent_alarms_are_noted() {
    for (pointer, value, told) in [
        (
            "/mappings/0/State",
            json!("Disabled"),
            "note: queue orders: the consumer is paused: the mapping mapping-1 is disabled",
        ),
        (
            "/mappings/0/LastProcessingResult",
            json!("PROBLEM: Connection error."),
            "note: queue orders: Lambda says of the mapping mapping-1: PROBLEM: Connection error.",
        ),
        (
            "/confirmed",
            json!(0),
            "note: topic arn:aws:sns:eu-central-1:123456789012:alarms: nobody has confirmed a subscription",
        ),
    ] {
        let ended = doctor(with(pointer, value.clone()), &[]).await;
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.stdout.contains(told), "{ended:?}");
        let json = doctor(with(pointer, value), &["--output", "json"])
            .await
            .json();
        let notes = json["notes"].as_array().unwrap();
        assert_eq!(notes.len(), 1, "{json}");
    }
}

/// Terraform and Pulumi make no stack.
#[tokio::test]
async fn function_is_checked_without_a_stack() {
    let name = ["--function", "shop-consumer"];
    let ended = doctor_of(healthy(), &name).await;
    let told = "shop-consumer: 0 findings\n";
    assert_eq!((ended.code, &*ended.stdout), (0, told), "{ended:?}");
    let ended = doctor_of(with("/ttl/AttributeName", json!("ttl")), &name).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stdout.starts_with("ttl: table records"), "{ended:?}");
}

/// Records in PostgreSQL and items have no table that a variable names.
#[tokio::test]
async fn consumer_without_table_of_records_is_checked() {
    let mut answers = with(&variable("IDEMPOTENCY_TABLE_NAME"), Value::Null);
    answers["table"] = Value::Null;
    assert_eq!(checks(answers.clone()).await, Vec::<String>::new());
    answers["mappings"][0]["FunctionResponseTypes"] = json!([]);
    assert_eq!(checks(answers).await, ["partial-responses"]);
}

#[tokio::test]
async fn consumer_without_queue_is_not_called_sound() {
    let ended = doctor(with("/mappings", json!([])), &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let told = "not checked: function shop-consumer: its queue";
    assert!(ended.stdout.contains(told), "{ended:?}");
}

/// On a FIFO queue the age of a message starts anew in the dead-letter queue.
#[tokio::test]
async fn fifo_queue_may_share_the_retention_of_dead_letters() {
    let short = with(
        "/queues/orders-dead/MessageRetentionPeriod",
        json!("345600"),
    );
    assert_eq!(checks(short.clone()).await, ["dead-letter-retention"]);
    let fifo: Value = {
        let text = short.to_string();
        let text = text.replace("orders-dead", "orders-dead.fifo");
        let text = text.replace(":orders\"", ":orders.fifo\"");
        serde_json::from_str(&text.replace("\"orders\"", "\"orders.fifo\"")).unwrap()
    };
    assert_eq!(checks(fifo).await, Vec::<String>::new());
}

#[tokio::test]
async fn each_seeded_fault_is_the_one_finding() {
    let redrive = |count: Value| {
        json!(
            json!({"deadLetterTargetArn": arn("sqs", "orders-dead"), "maxReceiveCount": count})
                .to_string()
        )
    };
    let sort_key = json!([
        {"AttributeName": "id", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]);
    let none = Value::Null;
    let seeds = [
        (
            "/mappings/0/FunctionResponseTypes",
            json!([]),
            "partial-responses",
        ),
        (
            "/mappings/0/FunctionResponseTypes",
            none.clone(),
            "partial-responses",
        ),
        (
            "/mappings/0/MaximumBatchingWindowInSeconds",
            json!(241),
            "visibility-timeout",
        ),
        ("/function/Timeout", json!(71), "visibility-timeout"),
        ("/queues/orders/VisibilityTimeout", json!("345"), "receives"),
        (&variable("CONSUMER_BACKOFF_CAP"), json!("11m"), "receives"),
        (&variable("CONSUMER_BACKOFF_CAP"), json!("40m"), "receives"),
        (
            "/queues/orders/RedrivePolicy",
            redrive(json!(8)),
            "receives",
        ),
        (
            "/queues/orders/RedrivePolicy",
            redrive(json!("1")),
            "receives",
        ),
        (
            "/queues/orders/RedrivePolicy",
            redrive(json!(300)),
            "receives",
        ),
        (
            "/queues/orders/MessageRetentionPeriod",
            json!("150000"),
            "receives",
        ),
        (
            "/queues/orders-dead/MessageRetentionPeriod",
            json!("345600"),
            "dead-letter-retention",
        ),
        (
            &variable("IDEMPOTENCY_RETENTION"),
            json!("17d"),
            "record-retention",
        ),
        (
            &variable("CONSUMER_CALL_KEY_LIFETIME"),
            json!("20s"),
            "call-key-lifetime",
        ),
        (
            "/queues/orders/RedrivePolicy",
            none.clone(),
            "dead-letter-queue",
        ),
        ("/queues/orders-dead", none.clone(), "dead-letter-queue"),
        ("/table", none, "key-schema"),
        ("/table/KeySchema", sort_key, "key-schema"),
        (
            "/table/KeySchema/0/AttributeName",
            json!("pk"),
            "key-schema",
        ),
        (
            "/table/AttributeDefinitions/0/AttributeType",
            json!("N"),
            "key-schema",
        ),
        (
            &variable("IDEMPOTENCY_SORT_KEY"),
            json!("sk=records"),
            "key-schema",
        ),
        ("/ttl", json!({"TimeToLiveStatus": "DISABLED"}), "ttl"),
        ("/ttl/AttributeName", json!("lease_until"), "ttl"),
        (
            &variable("IDEMPOTENCY_ATTRIBUTES"),
            json!("expires_at=expiry"),
            "ttl",
        ),
        (
            "/table/MultiRegionConsistency",
            json!("STRONG"),
            "global-table",
        ),
        (
            "/table/Replicas",
            json!([{"RegionName": "us-east-1"}]),
            "global-table",
        ),
    ];
    let seeds = seeds.map(|(pointer, value, wanted)| (pointer.to_owned(), value, wanted));
    assert_found(&healthy(), seeds).await;
}

#[tokio::test]
async fn template_is_sound_with_every_timeout_and_window() {
    let template = Template::with(&[]);
    let overlay = read("overlays/large-batches.yaml");
    let windows = [
        &json!(0),
        &overlay["Parameters"]["BatchingWindow"]["MaxValue"],
    ];
    let timeouts = &template.parameter("FunctionTimeout")["AllowedValues"];
    for timeout in timeouts.as_array().unwrap() {
        let timeout = timeout.as_str().unwrap();
        let of_timeout = Template::with(&[("FunctionTimeout", timeout)]);
        let receives = of_timeout.property("OrdersQueue/RedrivePolicy/maxReceiveCount");
        let redrive =
            json!({"deadLetterTargetArn": arn("sqs", "orders-dead"), "maxReceiveCount": receives});
        let cap = "Consumer/Environment/Variables/CONSUMER_BACKOFF_CAP";
        for window in windows {
            let mut answers = healthy();
            answers["function"]["Timeout"] = json!(timeout.parse::<u32>().unwrap());
            answers["function"]["Environment"]["Variables"]["CONSUMER_BACKOFF_CAP"] =
                json!(of_timeout.property(cap));
            answers["mappings"][0]["MaximumBatchingWindowInSeconds"] = window.clone();
            let queue = &mut answers["queues"]["orders"];
            queue["VisibilityTimeout"] =
                json!(of_timeout.property("OrdersQueue/VisibilityTimeout"));
            queue["RedrivePolicy"] = json!(redrive.to_string());
            assert_eq!(
                checks(answers).await,
                Vec::<String>::new(),
                "{timeout} {window}"
            );
        }
    }
}

#[tokio::test]
async fn own_region_of_a_global_table_is_no_replica() {
    let replicas = json!([{"RegionName": "eu-central-1"}]);
    assert_eq!(
        checks(with("/table/Replicas", replicas)).await,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn each_denied_action_is_a_finding() {
    let records = arn("dynamodb", "table/records");
    let (orders, dead) = (arn("sqs", "orders"), arn("sqs", "orders-dead"));
    let mut answers = healthy();
    let variables = &mut answers["function"]["Environment"]["Variables"];
    variables["OUTBOX_TABLE_NAME"] = json!("outbox");
    variables["CONSUMER_S3_BUCKETS"] = json!("bodies");
    variables["IDEMPOTENCY_RESULT_BUCKET"] = json!("outputs");
    assert_eq!(checks(answers.clone()).await, Vec::<String>::new());
    for (action, resource) in [
        ("dynamodb:PutItem", &*records),
        ("dynamodb:UpdateItem", &*records),
        ("dynamodb:GetItem", &*records),
        ("dynamodb:PartiQLInsert", &*records),
        ("dynamodb:PartiQLUpdate", &*records),
        ("dynamodb:PutItem", &*arn("dynamodb", "table/outbox")),
        ("sqs:ReceiveMessage", &*orders),
        ("sqs:DeleteMessage", &*orders),
        ("sqs:GetQueueAttributes", &*orders),
        ("sqs:GetQueueUrl", &*orders),
        ("sqs:ChangeMessageVisibility", &*orders),
        ("sqs:GetQueueUrl", &*dead),
        ("sqs:SendMessage", &*dead),
        ("s3:GetObject", "arn:aws:s3:::bodies/*"),
        ("s3:ListBucket", "arn:aws:s3:::bodies"),
        ("s3:GetObject", "arn:aws:s3:::outputs/results/*"),
        ("s3:PutObject", "arn:aws:s3:::outputs/results/*"),
        ("s3:ListBucket", "arn:aws:s3:::outputs"),
    ] {
        answers["denied"] = json!([[action, resource]]);
        let ended = doctor(answers.clone(), &["--output", "json"]).await.json();
        let found = ended["findings"].as_array().unwrap();
        assert_eq!(found.len(), 1, "{action} {resource}: {ended}");
        assert_eq!(found[0]["check"], "permissions");
        let told = format!("the role may not do {action} on {resource}");
        assert_eq!(found[0]["found"], told);
    }
}

#[tokio::test]
async fn single_writes_need_no_permission_for_statements() {
    let mut answers = with(&variable("IDEMPOTENCY_BATCHED_WRITES"), json!("off"));
    answers["denied"] = json!([["dynamodb:PartiQLInsert", arn("dynamodb", "table/records")]]);
    assert_eq!(checks(answers).await, Vec::<String>::new());
}

/// As in `examples/place_order.template.yaml`.
#[tokio::test]
async fn role_of_the_inbox_mode_only_puts_records() {
    let denied = |actions: &[&str]| {
        let table = arn("dynamodb", "table/records");
        let pairs = actions.iter().map(|action| json!([action, table]));
        with("/denied", pairs.collect())
    };
    let inbox = denied(&["dynamodb:UpdateItem", "dynamodb:GetItem"]);
    let ended = doctor(inbox, &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains("the inbox mode"), "{ended:?}");
    let neither = denied(&["dynamodb:PutItem", "dynamodb:UpdateItem"]);
    assert_eq!(doctor(neither, &[]).await.code, 1);
}

#[tokio::test]
async fn permissions_that_may_not_be_asked_are_no_finding() {
    let ended = doctor(with("/simulation_fails", json!("AccessDenied")), &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let told = "0 findings\nnot checked: role of function shop-consumer: its permissions: \
        could not ask IAM what the role may do: AccessDenied; grant iam:SimulatePrincipalPolicy";
    assert!(ended.stdout.contains(told), "{ended:?}");
}

/// The simulation does not know the values of a request's conditions.
#[tokio::test]
async fn permission_with_a_condition_is_no_finding() {
    let mut answers = with("/unknown", json!("aws:SourceVpce"));
    answers["denied"] = json!([["dynamodb:PutItem", arn("dynamodb", "table/records")]]);
    let ended = doctor(answers, &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let told = "dynamodb:PutItem on arn:aws:dynamodb:eu-central-1:123456789012:table/records: \
        the policies depend on aws:SourceVpce";
    assert!(ended.stdout.contains(told), "{ended:?}");
}

#[tokio::test]
async fn outbox_table_is_checked() {
    let answers = with(&variable("OUTBOX_TABLE_NAME"), json!("outbox"));
    let seeds = [
        ("/outbox", Value::Null, "key-schema"),
        (
            "/outbox/KeySchema/1/AttributeName",
            json!("sk"),
            "key-schema",
        ),
    ];
    let seeds = seeds.map(|(pointer, value, wanted)| (pointer.to_owned(), value, wanted));
    assert_found(&answers, seeds).await;
}

/// A relay without its source, as the templates in examples have it.
fn relay() -> Value {
    let mut answers = healthy();
    let function = &mut answers["function"];
    function["FunctionName"] = json!("shop-relay");
    function["FunctionArn"] = json!(arn("lambda", "function:shop-relay"));
    function["Environment"]["Variables"] = json!({
        "OUTBOX_TARGETS": format!(
            "placed=https://sqs.eu-central-1.amazonaws.com/123456789012/ship.fifo,billed={},*={}",
            arn("sns", "billing"),
            arn("events", "event-bus/shop")
        ),
        "OUTBOX_DEAD_LETTER_QUEUE_URL": "https://sqs.eu-central-1.amazonaws.com/123456789012/orders-dead",
    });
    answers["mappings"] = json!([]);
    answers
}

#[tokio::test]
async fn fault_of_dynamodb_relay_is_the_one_finding() {
    let stream = arn("dynamodb", "table/outbox/stream/2026-11-21T10:50:00.000");
    let mut healthy = relay();
    healthy["mappings"] = json!([{
        "UUID": "mapping-1",
        "EventSourceArn": stream,
        "FunctionArn": arn("lambda", "function:shop-relay"),
        "State": "Enabled",
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
    }]);
    let ended = doctor(healthy.clone(), &[]).await;
    assert_eq!(&*ended.stdout, "shop-relay: 0 findings\n", "{ended:?}");
    let denied = |action: &str, resource: String| {
        (
            "/denied".to_owned(),
            json!([[action, resource]]),
            "permissions",
        )
    };
    let seeds = [
        ("/mappings".to_owned(), json!([]), "relay"),
        ("/mappings/0/State".to_owned(), json!("Disabled"), "relay"),
        (
            "/mappings/0/FunctionResponseTypes".to_owned(),
            json!([]),
            "partial-responses",
        ),
        ("/queues/ship.fifo".to_owned(), Value::Null, "relay"),
        ("/queues/orders-dead".to_owned(), Value::Null, "relay"),
        ("/topics".to_owned(), json!([]), "relay"),
        ("/buses".to_owned(), json!([]), "relay"),
        denied("sqs:SendMessage", arn("sqs", "ship.fifo")),
        denied("sqs:SendMessage", arn("sqs", "orders-dead")),
        denied("sns:Publish", arn("sns", "billing")),
        denied("events:PutEvents", arn("events", "event-bus/shop")),
        denied("dynamodb:GetRecords", stream),
    ];
    assert_found(&healthy, seeds).await;
}

#[tokio::test]
async fn postgres_relay_needs_an_enabled_schedule() {
    let mut answers = relay();
    for (rules, wanted) in [
        (json!({}), &["relay"][..]),
        (json!({"EveryMinute": "DISABLED"}), &["relay"]),
        (json!({"EveryMinute": "ENABLED"}), &[]),
        (json!({"Daily": "DISABLED", "EveryMinute": "ENABLED"}), &[]),
    ] {
        answers["rules"] = rules.clone();
        assert_eq!(checks(answers.clone()).await, wanted, "{rules}");
    }
}

#[tokio::test]
async fn hidden_variables_are_an_error() {
    let error = json!({"ErrorCode": "AccessDeniedException", "Message": "no access to the key"});
    let ended = doctor(with("/function/Environment", json!({"Error": error})), &[]).await;
    assert_eq!((ended.code, &*ended.stdout), (3, ""), "{ended:?}");
    for told in ["shop-consumer", "kms:Decrypt", "no access to the key"] {
        assert!(ended.stderr.contains(told), "{ended:?}");
    }
}

#[tokio::test]
async fn finding_names_resource_effect_and_fix() {
    let ended = doctor(with("/ttl/AttributeName", json!("ttl")), &[]).await;
    assert_eq!(
        ended.stdout,
        "ttl: table records\n  \
         found          TTL is on the attribute `ttl`\n  \
         if it stays    DynamoDB deletes records too early, and their messages run again; or never, and the table grows\n  \
         to fix it      move TTL to the attribute `expires_at`\n\n\
         shop-consumer: 1 finding\n"
    );
}

/// An existing queue with the three receives of many examples.
#[tokio::test]
async fn queue_of_few_receives_is_told_its_outage() {
    let redrive =
        json!({"deadLetterTargetArn": arn("sqs", "orders-dead"), "maxReceiveCount": 3}).to_string();
    let answers = with("/queues/orders/RedrivePolicy", json!(redrive));
    let ended = doctor(answers, &[]).await;
    let told = "maxReceiveCount is 3: an outage that lasts longer than 10s can move good messages to the dead-letter queue";
    assert!(ended.stdout.contains(told), "{ended:?}");
    assert!(
        ended.stdout.contains("set maxReceiveCount to 130"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn mapping_of_an_alias_is_checked() {
    let alias = arn("lambda", "function:shop-consumer:live");
    let mut answers = healthy();
    answers["mappings_of_alias"] = answers["mappings"].take();
    answers["mappings"] = json!([]);
    answers["aliases"] = json!([{"Name": "live", "AliasArn": alias, "FunctionVersion": "41"}]);
    assert_eq!(checks(answers.clone()).await, Vec::<String>::new());
    answers["mappings_of_alias"][0]["FunctionResponseTypes"] = json!([]);
    assert_eq!(checks(answers.clone()).await, ["partial-responses"]);
    // Listed for the function too, a mapping is still one.
    answers["mappings"] = answers["mappings_of_alias"].clone();
    assert_eq!(checks(answers).await, ["partial-responses"]);
}

#[tokio::test]
async fn skipped_finding_is_not_reported() {
    let answers = with("/ttl/TimeToLiveStatus", json!("DISABLED"));
    assert_eq!(doctor(answers.clone(), &[]).await.code, 1);
    let ended = doctor(answers, &["--skip", "ttl"]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    // Skipped permissions are not asked for.
    let answers = with("/simulation_fails", json!("AccessDenied"));
    let ended = doctor(answers, &["--skip", "permissions"]).await;
    assert_eq!(&*ended.stdout, "shop-consumer: 0 findings\n", "{ended:?}");
}

/// Each check is named in the documentation.
#[tokio::test]
async fn page_names_each_check() {
    let refused = doctor(healthy(), &["--skip", "no-check"]).await.stderr;
    let (_, names) = refused.split_once("possible values: ").unwrap();
    let (names, _) = names.split_once(']').unwrap();
    let page = include_str!("../../../../docs/cli.md");
    let (_, table) = page.split_once("| check | finds |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let rows = table.lines().filter_map(|row| row.split('`').nth(1));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        names.split(", ").collect::<Vec<_>>()
    );
}

/// A stack, deployed on the emulator at `AWS_ENDPOINT_URL`.
struct Stack {
    endpoint: String,
    name: String,
    cloudformation: aws_sdk_cloudformation::Client,
    dynamodb: aws_sdk_dynamodb::Client,
}

impl Stack {
    /// Deploys the template of the consumer after `change`.
    async fn deploy(change: impl Fn(String) -> String) -> Self {
        let template = include_str!("../../../../template.yaml").to_owned();
        // The emulator needs a number.
        let concurrency = "MaximumConcurrency: !Ref MaximumConcurrency";
        let template = replace(&template, concurrency, "MaximumConcurrency: 10");
        // The function never runs, so its code is not needed.
        let template = replace(&template, "CodeUri: .", "CodeUri: s3://none/none.zip");
        Self::create(change(template), &[("PaymentGatewayUrl", "sandbox")]).await
    }

    /// Deploys a template with these parameters.
    async fn create(template: String, parameters: &[(&str, &str)]) -> Self {
        let endpoint = emulator();
        let config = support::sdk_config(&endpoint);
        let stack = Self {
            name: format!("doctor-{}", uuid::Uuid::new_v4().simple()),
            cloudformation: aws_sdk_cloudformation::Client::new(&config),
            dynamodb: aws_sdk_dynamodb::Client::new(&config),
            endpoint,
        };
        let create = stack.cloudformation.create_stack().stack_name(&stack.name);
        let parameter = |(name, value): &(&str, &str)| {
            let parameter = Parameter::builder().parameter_key(*name);
            parameter.parameter_value(*value).build()
        };
        let create = create
            .template_body(template)
            .set_parameters(Some(parameters.iter().map(parameter).collect()));
        let create = create.capabilities(Capability::CapabilityIam);
        let create = create.capabilities(Capability::CapabilityAutoExpand);
        create.send().await.unwrap();
        let created = stack.cloudformation.wait_until_stack_create_complete();
        let created = created
            .stack_name(&stack.name)
            .wait(support::PATIENCE)
            .await;
        created.unwrap();
        stack
    }

    /// The checks that find something in the stack. Deletes it.
    async fn checks(&self) -> Vec<String> {
        let ended = run(&self.endpoint, &["doctor", &self.name, "--output", "json"]).await;
        let delete = self.cloudformation.delete_stack().stack_name(&self.name);
        delete.send().await.unwrap();
        let answer = ended.json();
        let findings = answer["findings"].as_array().unwrap().iter();
        let checks: Vec<_> = findings
            .map(|f| f["check"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ended.code, i32::from(!checks.is_empty()), "{ended:?}");
        checks
    }

    async fn table(&self) -> String {
        let list = self
            .cloudformation
            .list_stack_resources()
            .stack_name(&self.name);
        let list = list.send().await.unwrap();
        let mut resources = list.stack_resource_summaries().iter();
        let table = resources.find(|r| r.resource_type() == Some("AWS::DynamoDB::Table"));
        table.unwrap().physical_resource_id().unwrap().to_owned()
    }

    /// Checks the stack, and deletes it.
    async fn findings(self) -> Vec<String> {
        // The emulator's CloudFormation does not switch TTL on.
        let table = self.table().await;
        let ttl = TimeToLiveSpecification::builder().enabled(true);
        let ttl = ttl.attribute_name("expires_at").build().unwrap();
        let update = self.dynamodb.update_time_to_live().table_name(&table);
        update.time_to_live_specification(ttl).send().await.unwrap();
        let checks = self.checks().await;
        // The template retains the table.
        let _may_be_deleted = self.dynamodb.delete_table().table_name(&table).send().await;
        checks
    }
}

#[track_caller]
fn replace(template: &str, from: &str, to: &str) -> String {
    assert!(template.contains(from), "the template has no `{from}`");
    template.replace(from, to)
}

#[tokio::test]
async fn shipped_template_has_no_finding() {
    let stack = Stack::deploy(|template| template).await;
    assert_eq!(stack.findings().await, Vec::<String>::new());
}

#[tokio::test]
async fn misdeployed_template_is_found() {
    let misdeployed = async |(from, to, wanted)| {
        let stack = Stack::deploy(|template| replace(&template, from, to)).await;
        assert_eq!(stack.findings().await, [wanted], "{to}");
    };
    join_all(MISDEPLOYMENTS.map(misdeployed)).await;
}

/// Text of the template, its replacement, and the check that finds it.
const MISDEPLOYMENTS: [(&str, &str, &str); 12] = [
    (
        "FunctionResponseTypes: [ReportBatchItemFailures]",
        "Enabled: true",
        "partial-responses",
    ),
    (
        "VisibilityTimeout: !FindInMap [OfTimeout, !Ref FunctionTimeout, VisibilityTimeout]",
        "VisibilityTimeout: 345",
        "receives",
    ),
    (
        "      RedrivePolicy:\n        deadLetterTargetArn: !GetAtt OrdersDeadLetterQueue.Arn\n        maxReceiveCount: !FindInMap [OfTimeout, !Ref FunctionTimeout, MaxReceiveCount]\n",
        "",
        "dead-letter-queue",
    ),
    (
        "maxReceiveCount: !FindInMap [OfTimeout, !Ref FunctionTimeout, MaxReceiveCount]",
        "maxReceiveCount: 8",
        "receives",
    ),
    (
        "MessageRetentionPeriod: 1209600",
        "MessageRetentionPeriod: 86400",
        "dead-letter-retention",
    ),
    (
        "CONSUMER_ENVELOPE: !Ref ConsumerEnvelope",
        "IDEMPOTENCY_RETENTION: 7d",
        "record-retention",
    ),
    (
        "IDEMPOTENCY_TABLE_NAME: !If [MakesTable, !Ref IdempotencyTable, !Ref ExistingTableName]",
        "IDEMPOTENCY_TABLE_NAME: nowhere",
        "key-schema",
    ),
    (
        "CONSUMER_ENVELOPE: !Ref ConsumerEnvelope",
        "IDEMPOTENCY_ATTRIBUTES: id=PK",
        "key-schema",
    ),
    (
        "CONSUMER_ENVELOPE: !Ref ConsumerEnvelope",
        "IDEMPOTENCY_ATTRIBUTES: expires_at=ttl",
        "ttl",
    ),
    ("- dynamodb:UpdateItem", "- dynamodb:Query", "permissions"),
    ("- sqs:DeleteMessage", "- sqs:PurgeQueue", "permissions"),
    (
        "- sqs:ChangeMessageVisibility",
        "- sqs:PurgeQueue",
        "permissions",
    ),
];

/// Deploys a template of examples on the emulator, and checks it.
async fn findings_in(template: &str, parameters: &[(&str, &str)]) -> Vec<String> {
    // The function never runs, so its code is not needed.
    let code = template.lines().find(|line| line.contains("CodeUri:"));
    let template = template.replace(code.unwrap(), "      CodeUri: s3://none/none.zip");
    Stack::create(template, parameters).await.checks().await
}

const DATABASE: [(&str, &str); 5] = [
    ("DatabaseHost", "db.example"),
    ("DatabaseName", "orders"),
    ("DatabaseResourceId", "db-ABC"),
    ("SubnetIds", "subnet-1"),
    ("SecurityGroupIds", "sg-1"),
];

/// The relays' target does not exist, which is their one finding.
#[tokio::test]
async fn templates_of_examples_are_sound() {
    let consumer = include_str!("../../../../examples/place_order_postgres.template.yaml");
    let found = findings_in(consumer, &DATABASE).await;
    assert_eq!(found, Vec::<String>::new());
    let target = "*=https://sqs.eu-central-1.amazonaws.com/123456789012/ship.fifo";
    let (queue, topic) = (arn("sqs", "ship.fifo"), arn("sns", "on-call"));
    let of_relay = [
        ("OutboxTargets", target),
        ("TargetArns", &queue),
        ("AlarmTopicArn", &topic),
    ];
    let outbox = include_str!("../../../../examples/outbox.template.yaml");
    assert_eq!(findings_in(outbox, &of_relay).await, ["relay"]);
    let relay = include_str!("../../../../examples/outbox_postgres.template.yaml");
    let parameters = [&DATABASE[..], &of_relay].concat();
    assert_eq!(findings_in(relay, &parameters).await, ["relay"]);
    let disabled = "Schedule: rate(1 minute)\n            Enabled: false";
    let stopped = replace(relay, "Schedule: rate(1 minute)", disabled);
    let found = findings_in(&stopped, &parameters).await;
    assert_eq!(found, ["relay", "relay"]);
}
