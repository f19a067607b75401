//! `sqs-once doctor`, against recorded answers of AWS in which one thing is wrong.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::{Ended, run, support};

/// The answers of a stack without a fault, as AWS gives them for the template. A test changes one
/// value by its JSON pointer.
fn healthy() -> Value {
    let arn =
        |service: &str, name: &str| format!("arn:aws:{service}:eu-central-1:123456789012:{name}");
    let redrive = json!({"deadLetterTargetArn": arn("sqs", "orders-dead"), "maxReceiveCount": 8});
    json!({
        "function": {
            "FunctionName": "shop-consumer",
            "Timeout": 30,
            "Role": "arn:aws:iam::123456789012:role/shop/shop-role",
            "Environment": {"Variables": {
                "IDEMPOTENCY_TABLE_NAME": "records",
                "IDEMPOTENCY_KEY": "body:/orderId",
                "IDEMPOTENCY_RETENTION": "20d",
                "CONSUMER_DEAD_LETTER": "on",
            }},
            "LoggingConfig": {"LogFormat": "JSON", "ApplicationLogLevel": "INFO", "SystemLogLevel": "WARN"},
        },
        "mappings": [{
            "UUID": "mapping-1",
            "EventSourceArn": arn("sqs", "orders"),
            "FunctionArn": arn("lambda", "function:shop-consumer"),
            "State": "Enabled",
            "BatchSize": 10,
            "MaximumBatchingWindowInSeconds": 0,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            "ScalingConfig": {"MaximumConcurrency": 10},
        }],
        "queues": {
            "orders": {
                "VisibilityTimeout": "180",
                "MessageRetentionPeriod": "345600",
                "RedrivePolicy": redrive.to_string(),
            },
            "orders-dead": {"VisibilityTimeout": "30", "MessageRetentionPeriod": "1209600"},
        },
        "table": {
            "TableName": "records",
            "TableArn": arn("dynamodb", "table/records"),
            "TableStatus": "ACTIVE",
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        },
        "ttl": {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires_at"},
        "policy": {"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Resource": arn("dynamodb", "table/records"), "Action": [
                "dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:GetItem",
            ]},
            {"Effect": "Allow", "Resource": arn("sqs", "orders"), "Action": [
                "sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes",
            ]},
            {"Effect": "Allow", "Resource": arn("sqs", "orders-dead"), "Action": ["sqs:GetQueueUrl", "sqs:SendMessage"]},
        ]},
        "managed_policy": {"Version": "2012-10-17", "Statement":
            {"Effect": "Allow", "Resource": "*", "Action": ["sqs:Get*Url", "sqs:ChangeMessageVisibility"]}
        },
    })
}

/// Changes the value at a JSON pointer. `null` removes it.
fn with(pointer: &str, value: Value) -> Value {
    let mut answers = healthy();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match answers.pointer_mut(parent).unwrap() {
        Value::Object(object) if value.is_null() => drop(object.remove(name)),
        Value::Object(object) => drop(object.insert(name.to_owned(), value)),
        Value::Array(array) => array[name.parse::<usize>().unwrap()] = value,
        other => panic!("{pointer}: {other}"),
    }
    answers
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
    if uri.path().contains("/event-source-mappings") {
        return json(json!({"EventSourceMappings": answers["mappings"]}));
    }
    let Some(target) = headers.get("x-amz-target") else {
        let body = String::from_utf8(body.to_vec()).unwrap();
        return ([(CONTENT_TYPE, "text/xml")], xml(&answers, &body)).into_response();
    };
    let body: Value = serde_json::from_slice(&body).unwrap();
    match target.to_str().unwrap().split_once('.').unwrap().1 {
        "GetQueueUrl" => {
            let name = body["QueueName"].as_str().unwrap();
            json(json!({"QueueUrl": format!("https://sqs.example/123456789012/{name}")}))
        }
        "GetQueueAttributes" => {
            let name = body["QueueUrl"]
                .as_str()
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap();
            json(json!({"Attributes": answers["queues"][name]}))
        }
        "DescribeTable" if answers["table"].is_null() => {
            let error =
                json!({"__type": "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException"});
            (StatusCode::BAD_REQUEST, error.to_string()).into_response()
        }
        "DescribeTable" => json(json!({"Table": answers["table"]})),
        "DescribeTimeToLive" => json(json!({"TimeToLiveDescription": answers["ttl"]})),
        other => panic!("unexpected call of {other}"),
    }
}

/// The answers of CloudFormation and IAM, which speak XML.
fn xml(answers: &Value, body: &str) -> String {
    let action = body
        .split('&')
        .find_map(|pair| pair.strip_prefix("Action="))
        .unwrap();
    // As IAM does, and every character.
    let encoded = |policy: &Value| {
        let policy = policy.to_string();
        policy
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect::<String>()
    };
    let result = match action {
        "ListStackResources" => {
            let member = |kind: &str, id: &str| format!(
                "<member><LogicalResourceId>A</LogicalResourceId><PhysicalResourceId>{id}</PhysicalResourceId>\
                 <ResourceType>{kind}</ResourceType><ResourceStatus>CREATE_COMPLETE</ResourceStatus>\
                 <LastUpdatedTimestamp>2026-11-21T10:50:00Z</LastUpdatedTimestamp></member>"
            );
            // Two pages.
            if body.contains("NextToken=more") {
                let function = member("AWS::Lambda::Function", "shop-consumer");
                format!("<StackResourceSummaries>{function}</StackResourceSummaries>")
            } else {
                let queue = member("AWS::SQS::Queue", "https://sqs.example/123456789012/orders");
                format!("<StackResourceSummaries>{queue}</StackResourceSummaries><NextToken>more</NextToken>")
            }
        }
        "ListRolePolicies" => "<PolicyNames><member>own</member></PolicyNames><IsTruncated>false</IsTruncated>".into(),
        "GetRolePolicy" => format!(
            "<RoleName>shop-role</RoleName><PolicyName>own</PolicyName><PolicyDocument>{}</PolicyDocument>",
            encoded(&answers["policy"])
        ),
        "ListAttachedRolePolicies" => "<AttachedPolicies><member><PolicyName>managed</PolicyName>\
             <PolicyArn>arn:aws:iam::123456789012:policy/managed</PolicyArn></member></AttachedPolicies>\
             <IsTruncated>false</IsTruncated>".into(),
        "GetPolicy" => "<Policy><DefaultVersionId>v2</DefaultVersionId></Policy>".into(),
        "GetPolicyVersion" => format!(
            "<PolicyVersion><Document>{}</Document></PolicyVersion>",
            encoded(&answers["managed_policy"])
        ),
        other => panic!("unexpected call of {other}"),
    };
    format!("<{action}Response><{action}Result>{result}</{action}Result></{action}Response>")
}

async fn doctor(answers: Value, arguments: &[&str]) -> Ended {
    let app = Router::new().fallback(answer).with_state(Arc::new(answers));
    let endpoint = format!("http://{}", support::serve(app).await);
    run(&endpoint, &[&["doctor", "shop"], arguments].concat()).await
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
async fn each_seeded_fault_is_the_one_finding() {
    let redrive = |count: Value| {
        let arn = "arn:aws:sqs:eu-central-1:123456789012:orders-dead";
        json!(json!({"deadLetterTargetArn": arn, "maxReceiveCount": count}).to_string())
    };
    let elsewhere = "arn:aws:dynamodb:us-east-1:123456789012:table/records";
    let sort_key = json!([
        {"AttributeName": "id", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]);
    let filters = json!({"Filters": [{"Pattern": "{\"body\":{\"country\":[\"DE\"]}}"}]});
    let variable = |name: &str| format!("/function/Environment/Variables/{name}");
    let seeds = [
        (
            "/mappings/0/FunctionResponseTypes",
            json!([]),
            "partial-responses",
        ),
        (
            "/mappings/0/FunctionResponseTypes",
            Value::Null,
            "partial-responses",
        ),
        ("/mappings", json!([]), "mapping"),
        ("/mappings/0/State", json!("Disabled"), "mapping-enabled"),
        ("/mappings/0/FilterCriteria", filters, "filter-criteria"),
        (
            "/mappings/0/ProvisionedPollerConfig",
            json!({"MinimumPollers": 2}),
            "scaling",
        ),
        (
            "/mappings/0/MaximumBatchingWindowInSeconds",
            json!(5),
            "visibility-timeout",
        ),
        (
            "/queues/orders/VisibilityTimeout",
            json!("179"),
            "visibility-timeout",
        ),
        ("/function/Timeout", json!(31), "visibility-timeout"),
        (
            "/queues/orders/RedrivePolicy",
            redrive(json!(4)),
            "receives",
        ),
        (
            "/queues/orders/RedrivePolicy",
            redrive(json!("1")),
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
        (&variable("IDEMPOTENCY_KEY"), json!("orderId"), "settings"),
        (
            &variable("CONSUMER_MIN_TIME_TO_START"),
            json!("30s"),
            "time-to-start",
        ),
        (
            "/function/LoggingConfig/ApplicationLogLevel",
            json!("WARN"),
            "log-level",
        ),
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
        (
            "/policy/Statement/0/Action/1",
            json!("dynamodb:Query"),
            "permissions",
        ),
        (
            "/policy/Statement/2/Resource",
            json!("arn:aws:sqs:*:*:orders"),
            "permissions",
        ),
        (
            "/managed_policy/Statement/Action/1",
            json!("sqs:ChangeMessage"),
            "permissions",
        ),
        ("/policy/Statement/0/Effect", json!("Deny"), "permissions"),
    ];
    assert!(seeds.len() >= 20);
    for (pointer, value, wanted) in seeds {
        let ended = doctor(with(pointer, value), &["--output", "json"]).await;
        assert_eq!(ended.code, 1, "{pointer}: {ended:?}");
        let findings = ended.json()["findings"].as_array().unwrap().clone();
        for finding in &findings {
            assert_eq!(finding["check"], wanted, "{pointer}: {findings:?}");
            for part in ["resource", "found", "consequence", "fix"] {
                assert!(!finding[part].as_str().unwrap().is_empty(), "{finding}");
            }
        }
        assert!(!findings.is_empty(), "{pointer}");
    }
    // A table in another Region needs its ARN in the role's policy.
    let mut answers = with("/table/TableArn", json!(elsewhere));
    answers["policy"]["Statement"][0]["Resource"] = json!(elsewhere);
    let ended = doctor(answers, &["--output", "json"]).await;
    assert_eq!(
        ended.json()["findings"][0]["check"],
        "table-region",
        "{ended:?}"
    );
}

#[tokio::test]
async fn missing_queue_and_table_are_found() {
    let answers = with("/queues/orders/RedrivePolicy", Value::Null);
    let ended = doctor(answers, &[]).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(
        ended.stdout.contains("dead-letter-queue: queue orders"),
        "{ended:?}"
    );
    let ended = doctor(with("/table", Value::Null), &[]).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stdout.contains("table: table records"), "{ended:?}");
}

#[tokio::test]
async fn skipped_finding_is_not_reported() {
    let answers = with("/mappings/0/State", json!("Disabled"));
    assert_eq!(doctor(answers.clone(), &[]).await.code, 1);
    let ended = doctor(answers, &["--skip", "mapping-enabled"]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[tokio::test]
async fn stack_without_consumer_ends_with_1() {
    let answers = with(
        "/function/Environment/Variables/IDEMPOTENCY_TABLE_NAME",
        Value::Null,
    );
    let ended = doctor(answers, &[]).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("nothing was checked"), "{ended:?}");
}
