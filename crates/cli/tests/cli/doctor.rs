//! `sqs-once doctor`, against recorded answers of AWS in which one thing is wrong, and against the
//! template on the emulator at `AWS_ENDPOINT_URL`.

use std::{collections::BTreeSet, sync::Arc};

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
use support::prerequisite::report_skipped;

use crate::{Ended, doctor_outbox as outbox, run};

/// The answers of a stack without a fault, as AWS gives them for the template. A test changes one
/// value by its JSON pointer.
pub(crate) fn healthy() -> Value {
    let arn =
        |service: &str, name: &str| format!("arn:aws:{service}:eu-central-1:123456789012:{name}");
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
                "VisibilityTimeout": "360",
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
            "StreamSpecification": {"StreamEnabled": true, "StreamViewType": "NEW_IMAGE"},
        },
        // Type, logical id and physical id.
        "resources": [["AWS::Lambda::Function", "Consumer", "shop-consumer"]],
        "rules": {},
        "concurrency": {},
        "invoke_config": null,
        "aliases": [],
        "mappings_of_alias": [],
        "notifications": arn("sns", "on-call"),
        "ttl": {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires_at"},
        "policy": {"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Resource": arn("dynamodb", "table/records"), "Action": [
                "dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:GetItem",
                "dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate",
            ]},
            {"Effect": "Allow", "Resource": arn("sqs", "orders"), "Action": [
                "sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes",
            ]},
            {"Effect": "Allow", "Resource": arn("sqs", "orders-dead"), "Action": ["sqs:GetQueueUrl", "sqs:SendMessage"]},
            {"Effect": "Allow", "Resource": arn("logs", "log-group:/aws/lambda/shop-consumer:*"), "Action": [
                "logs:CreateLogStream", "logs:PutLogEvents",
            ]},
        ]},
        "managed_policy": {"Version": "2012-10-17", "Statement":
            {"Effect": "Allow", "Resource": "*", "Action": ["sqs:Get*Url", "sqs:ChangeMessageVisibility"]}
        },
    })
}

/// Changes the value at a JSON pointer. `null` removes it.
fn with(pointer: &str, value: Value) -> Value {
    with_in(healthy(), pointer, value)
}

/// Changes the value at a JSON pointer in `answers`. `null` removes it.
pub(crate) fn with_in(mut answers: Value, pointer: &str, value: Value) -> Value {
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
    if uri.path().ends_with("/concurrency") {
        return json(answers["concurrency"].clone());
    }
    if uri.path().ends_with("/event-invoke-config") {
        return match &answers["invoke_config"] {
            Value::Null => {
                let kind = [("x-amzn-errortype", "ResourceNotFoundException")];
                (StatusCode::NOT_FOUND, kind, "{}").into_response()
            }
            config => json(config.clone()),
        };
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
        return ([(CONTENT_TYPE, "text/xml")], xml(&answers, &body)).into_response();
    };
    let body: Value = serde_json::from_slice(&body).unwrap();
    match target.to_str().unwrap().split_once('.').unwrap().1 {
        "GetQueueUrl" => {
            let name = body["QueueName"].as_str().unwrap();
            if answers["queues"][name].is_null() {
                let error = json!({"__type": "com.amazonaws.sqs#QueueDoesNotExist"});
                return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
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
            json(json!({"Attributes": answers["queues"][name]}))
        }
        "DescribeTable" => {
            let table = match body["TableName"].as_str().unwrap() {
                "outbox" => &answers["outbox"],
                _ => &answers["table"],
            };
            if table.is_null() {
                let error =
                    json!({"__type": "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException"});
                return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
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
            let member = |kind: &str, logical: &str, id: &str| format!(
                "<member><LogicalResourceId>{logical}</LogicalResourceId><PhysicalResourceId>{id}</PhysicalResourceId>\
                 <ResourceType>{kind}</ResourceType><ResourceStatus>CREATE_COMPLETE</ResourceStatus>\
                 <LastUpdatedTimestamp>2026-11-21T10:50:00Z</LastUpdatedTimestamp></member>"
            );
            // Two pages.
            if body.contains("NextToken=more") {
                let text = |of: &Value, index: usize| of[index].as_str().unwrap().to_owned();
                let resources = answers["resources"].as_array().unwrap().iter();
                let members: String = resources
                    .map(|of| member(&text(of, 0), &text(of, 1), &text(of, 2)))
                    .collect();
                format!("<StackResourceSummaries>{members}</StackResourceSummaries>")
            } else {
                let queue = member("AWS::SQS::Queue", "Orders", "https://sqs.example/123456789012/orders");
                format!("<StackResourceSummaries>{queue}</StackResourceSummaries><NextToken>more</NextToken>")
            }
        }
        "DescribeStacks" => {
            let output = answers["notifications"].as_str().map(|value| format!(
                "<Outputs><member><OutputKey>AlarmNotifications</OutputKey><OutputValue>{value}</OutputValue></member></Outputs>"
            ));
            format!(
                "<Stacks><member><StackName>shop</StackName><CreationTime>2026-11-21T10:50:00Z</CreationTime>\
                 <StackStatus>CREATE_COMPLETE</StackStatus>{}</member></Stacks>",
                output.unwrap_or_default()
            )
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

pub(crate) async fn doctor(answers: Value, arguments: &[&str]) -> Ended {
    let app = Router::new().fallback(answer).with_state(Arc::new(answers));
    let endpoint = format!("http://{}", support::serve(app).await);
    run(&endpoint, &[&["doctor", "shop"], arguments].concat()).await
}

/// The checks that found something.
pub(crate) async fn checks(answers: Value, arguments: &[&str]) -> Vec<String> {
    let ended = doctor(answers, &[arguments, &["--output", "json"]].concat()).await;
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

/// Demands that each change of `answers` has findings of one check alone.
pub(crate) async fn assert_found(
    answers: &Value,
    seeds: impl IntoIterator<Item = (String, Value, &'static str)>,
    arguments: &[&str],
) {
    for (pointer, value, wanted) in seeds {
        let mut found = checks(with_in(answers.clone(), &pointer, value.clone()), arguments).await;
        found.dedup();
        assert_eq!(found, [wanted], "{pointer} {value}");
    }
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
async fn other_function_is_named() {
    let mut answers = healthy();
    answers["function"]["Environment"]["Variables"] = json!({"TABLE": "orders"});
    let ended = doctor(answers, &[]).await;
    assert_eq!((ended.code, &*ended.stdout), (1, ""), "{ended:?}");
    let named = "not checked: function shop-consumer: no variable of a consumer or relay";
    assert!(ended.stderr.contains(named), "{ended:?}");
}

/// On a FIFO queue the age of a message starts anew in the dead-letter queue.
#[tokio::test]
async fn fifo_queue_may_share_the_retention_of_dead_letters() {
    let short = with(
        "/queues/orders-dead/MessageRetentionPeriod",
        json!("345600"),
    );
    assert_eq!(checks(short.clone(), &[]).await, ["dead-letter-retention"]);
    let fifo: Value = {
        let text = short.to_string();
        let text = text.replace("orders-dead", "orders-dead.fifo");
        let text = text.replace(":orders\"", ":orders.fifo\"");
        serde_json::from_str(&text.replace("\"orders\"", "\"orders.fifo\"")).unwrap()
    };
    assert_eq!(checks(fifo, &[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn outbox_table_and_its_permission_are_checked() {
    let mut answers = with(
        "/function/Environment/Variables/OUTBOX_TABLE_NAME",
        json!("outbox"),
    );
    assert_eq!(checks(answers.clone(), &[]).await, ["permissions"]);
    let outbox = answers["outbox"]["TableArn"].clone();
    let records = answers["policy"]["Statement"][0]["Resource"].clone();
    answers["policy"]["Statement"][0]["Resource"] = json!([records, outbox]);
    assert_eq!(checks(answers.clone(), &[]).await, Vec::<String>::new());
    let seeds = [
        ("/outbox", Value::Null),
        ("/outbox/StreamSpecification", Value::Null),
        (
            "/outbox/StreamSpecification/StreamViewType",
            json!("KEYS_ONLY"),
        ),
        ("/outbox/KeySchema/1/AttributeName", json!("sk")),
    ];
    let seeds = seeds.map(|(pointer, value)| (pointer.to_owned(), value, "outbox-table"));
    assert_found(&answers, seeds, &[]).await;
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
            json!(181),
            "visibility-timeout",
        ),
        ("/function/Timeout", json!(61), "visibility-timeout"),
        ("/queues/orders/VisibilityTimeout", json!("345"), "receives"),
        (&variable("CONSUMER_BACKOFF_CAP"), json!("11m"), "receives"),
        (
            "/queues/orders/RedrivePolicy",
            redrive(json!(8)),
            "receives",
        ),
        (
            "/queues/orders/RedrivePolicy",
            redrive(json!(300)),
            "queue-retention",
        ),
        (
            &variable("CONSUMER_BACKOFF_CAP"),
            json!("40m"),
            "queue-retention",
        ),
        (
            "/queues/orders/MessageRetentionPeriod",
            json!("150000"),
            "queue-retention",
        ),
        (
            "/queues/orders/RedrivePolicy",
            redrive(json!("1")),
            "receives",
        ),
        (
            &variable("CONSUMER_CRASH_ISOLATION"),
            json!("off"),
            "crash-waits",
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
            &variable("CONSUMER_PRIME"),
            json!("off"),
            "unknown-variables",
        ),
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
        (
            "/policy/Statement/0/Action/4",
            json!("dynamodb:Query"),
            "permissions",
        ),
        (
            &variable("CONSUMER_S3_BUCKETS"),
            json!("orders,invoices"),
            "permissions",
        ),
        (
            "/policy/Statement/3/Action/1",
            json!("logs:GetLogEvents"),
            "permissions",
        ),
        (
            "/function/LoggingConfig/LogGroup",
            json!("another"),
            "permissions",
        ),
        (
            "/queues/orders/RedrivePolicy",
            Value::Null,
            "dead-letter-queue",
        ),
        ("/queues/orders-dead", Value::Null, "dead-letter-queue"),
        ("/table", Value::Null, "table"),
        (
            "/notifications",
            json!("NONE - set AlarmEmail or AlarmTopicArn"),
            "alarm-actions",
        ),
        (
            &variable("CONSUMER_CONCURENCY"),
            json!("1"),
            "unknown-variables",
        ),
    ];
    let mut seeded = BTreeSet::from(["table-region", "outbox-table"]);
    seeded.extend(outbox::CHECKS);
    for (pointer, value, wanted) in seeds {
        seeded.insert(wanted);
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
    let refused = doctor(healthy(), &["--skip", "no-check"]).await.stderr;
    let (_, names) = refused.split_once("possible values: ").unwrap();
    let (names, _) = names.split_once(']').unwrap();
    assert_eq!(seeded, names.split(", ").collect());
    let page = include_str!("../../../../docs/cli.md");
    let (_, table) = page.split_once("| check | finds |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let documented = table.lines().flat_map(|row| {
        let names = row.split('|').nth(1).unwrap_or_default();
        names.split('`').skip(1).step_by(2)
    });
    assert_eq!(seeded, documented.collect());
}

#[tokio::test]
async fn single_writes_need_no_permission_for_statements() {
    let off = "/function/Environment/Variables/IDEMPOTENCY_BATCHED_WRITES";
    let mut answers = with(off, json!("off"));
    let actions = &mut answers["policy"]["Statement"][0]["Action"];
    actions.as_array_mut().unwrap().truncate(4);
    assert_eq!(doctor(answers, &[]).await.code, 0);
}

/// As in `examples/place_order.template.yaml`.
#[tokio::test]
async fn role_of_the_inbox_mode_only_puts_records() {
    let put = "/policy/Statement/0/Action";
    let ended = doctor(with(put, json!(["dynamodb:PutItem"])), &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains("the inbox mode"), "{ended:?}");
    let put_and_update = json!(["dynamodb:PutItem", "dynamodb:UpdateItem"]);
    let ended = doctor(with(put, put_and_update), &[]).await;
    assert_eq!(ended.code, 1, "{ended:?}");
}

/// A worker that dies leaves the visibility timeout of its latest heartbeat, 30 s. In claim mode its messages
/// rest.
#[tokio::test]
async fn heartbeat_without_isolation_uses_up_receives() {
    let beats = "/function/Environment/Variables/CONSUMER_HEARTBEAT";
    let beating = with(beats, json!("30s"));
    assert_eq!(checks(beating.clone(), &[]).await, Vec::<String>::new());
    let isolation = "/function/Environment/Variables/CONSUMER_CRASH_ISOLATION";
    let found = checks(with_in(beating, isolation, json!("off")), &[]).await;
    assert!(found.contains(&"receives".to_owned()), "{found:?}");
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
async fn outputs_in_s3_need_permissions_of_the_bucket() {
    let mut answers = healthy();
    let variables = &mut answers["function"]["Environment"]["Variables"];
    variables["IDEMPOTENCY_RESULT_BUCKET"] = json!("outputs");
    let found = doctor(answers, &[]).await.stdout;
    for needed in [
        "s3:PutObject on arn:aws:s3:::outputs/results/*",
        "s3:GetObject on arn:aws:s3:::outputs/results/*",
        "s3:ListBucket on arn:aws:s3:::outputs",
    ] {
        assert!(found.contains(needed), "{found}");
    }
    assert!(found.contains("3 findings"), "{found}");
}

#[tokio::test]
async fn text_logs_below_info_drop_metrics() {
    for (level, found) in [
        ("warn", true),
        ("sqs_once=error,info", true),
        ("info", false),
        ("warn,sqs_once=info", false),
        ("no level", false),
    ] {
        let mut answers = with("/function/LoggingConfig", json!({"LogFormat": "Text"}));
        answers["function"]["Environment"]["Variables"]["RUST_LOG"] = json!(level);
        let ended = doctor(answers.clone(), &["--output", "json"]).await;
        let findings = ended.json()["findings"].clone();
        assert_eq!(
            findings[0]["check"] == "log-level",
            found,
            "{level}: {findings}"
        );
        answers["function"]["Environment"]["Variables"]["CONSUMER_METRICS"] = json!("off");
        assert_eq!(doctor(answers, &[]).await.code, 0, "{level}");
    }
}

#[tokio::test]
async fn finding_names_resource_effect_and_fix() {
    let misspelt = "/function/Environment/Variables/CONSUMER_CONCURENCY";
    let ended = doctor(with(misspelt, json!("4")), &[]).await;
    assert_eq!(
        ended.stdout,
        "unknown-variables: function shop-consumer\n  \
         found          no setting has the name CONSUMER_CONCURENCY\n  \
         if it stays    the variable has no effect: the default of the setting that was meant holds\n  \
         to fix it      rename it to CONSUMER_CONCURRENCY, or remove it\n\n\
         shop-consumer: 1 finding\n"
    );
}

/// A stack of another template does not say where its alarms notify.
#[tokio::test]
async fn stack_without_output_of_alarms_has_no_finding() {
    let ended = doctor(with("/notifications", Value::Null), &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[tokio::test]
async fn mapping_of_an_alias_is_checked() {
    let alias = "arn:aws:lambda:eu-central-1:123456789012:function:shop-consumer:live";
    let mut answers = healthy();
    answers["mappings_of_alias"] = answers["mappings"].take();
    answers["mappings"] = json!([]);
    answers["aliases"] = json!([{"Name": "live", "AliasArn": alias, "FunctionVersion": "41"}]);
    let ended = doctor(answers.clone(), &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    answers["mappings_of_alias"][0]["State"] = json!("Disabled");
    let found = doctor(answers.clone(), &["--output", "json"]).await.json();
    let checks: Vec<_> = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| &f["check"])
        .collect();
    assert_eq!(checks, ["mapping-enabled"]);
    // Listed for the function too, a mapping is still one.
    answers["mappings"] = answers["mappings_of_alias"].clone();
    let found = doctor(answers, &["--output", "json"]).await.json();
    assert_eq!(found["findings"].as_array().unwrap().len(), 1, "{found}");
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

/// A stack, deployed on the emulator at `AWS_ENDPOINT_URL`.
pub(crate) struct Stack {
    endpoint: String,
    name: String,
    cloudformation: aws_sdk_cloudformation::Client,
    dynamodb: aws_sdk_dynamodb::Client,
}

impl Stack {
    /// Deploys the template of the consumer after `change`. Returns `None` if there is no emulator.
    async fn deploy(change: impl Fn(String) -> String) -> Option<Self> {
        let template = include_str!("../../../../template.yaml").to_owned();
        let template = short_enough_for_a_request(&template);
        // The function never runs, so its code is not needed.
        let template = replace(&template, "CodeUri: .", "CodeUri: s3://none/none.zip");
        Self::create(change(template), &[("PaymentGatewayUrl", "sandbox")]).await
    }

    /// Deploys a template with these parameters. Returns `None` if there is no emulator.
    pub(crate) async fn create(template: String, parameters: &[(&str, &str)]) -> Option<Self> {
        let endpoint = std::env::var("AWS_ENDPOINT_URL").unwrap_or_default();
        if endpoint.is_empty() {
            report_skipped("AWS_ENDPOINT_URL names no emulator");
            return None;
        }
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
        Some(stack)
    }

    /// The checks that find something in the stack. Deletes it.
    pub(crate) async fn checks(&self) -> Vec<String> {
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

/// Removes rules, outputs and alarms: with them the template is longer than CloudFormation takes in a
/// request. Of these parts, the doctor reads only the output that says where the alarms notify.
fn short_enough_for_a_request(template: &str) -> String {
    let (mut kept, mut section) = (String::new(), "");
    // A resource begins at an indentation of two.
    let mut block = String::new();
    let mut keep = |block: &mut String, section: &str| {
        let removed = ["Rules:", "Outputs:"].contains(&section);
        if !removed && !block.contains("Type: AWS::CloudWatch::") {
            kept.push_str(block);
        }
        block.clear();
    };
    for line in template.lines() {
        let indentation = line.len() - line.trim_start().len();
        if !line.trim().is_empty() && indentation <= 2 {
            keep(&mut block, section);
        }
        if !line.is_empty() && indentation == 0 {
            section = line;
        }
        block.push_str(line);
        block.push('\n');
    }
    keep(&mut block, section);
    let concurrency = "MaximumConcurrency: !Ref MaximumConcurrency";
    replace(&kept, concurrency, "MaximumConcurrency: 10")
}

#[track_caller]
fn replace(template: &str, from: &str, to: &str) -> String {
    assert!(template.contains(from), "the template has no `{from}`");
    template.replace(from, to)
}

#[tokio::test]
async fn shipped_template_has_no_finding() {
    if let Some(stack) = Stack::deploy(|template| template).await {
        assert_eq!(stack.findings().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn misdeployed_template_is_found() {
    let misdeployed = async |(from, to, wanted)| {
        if let Some(stack) = Stack::deploy(|template| replace(&template, from, to)).await {
            assert_eq!(stack.findings().await, [wanted], "{to}");
        }
    };
    join_all(MISDEPLOYMENTS.map(misdeployed)).await;
}

/// Text of the template, its replacement, and the check that finds it.
const MISDEPLOYMENTS: [(&str, &str, &str); 20] = [
    (
        "FunctionResponseTypes: [ReportBatchItemFailures]",
        "Enabled: true",
        "partial-responses",
    ),
    (
        "FunctionResponseTypes: [ReportBatchItemFailures]",
        "FunctionResponseTypes: [ReportBatchItemFailures]\n      FilterCriteria: {Filters: [{Pattern: '{\"body\":{\"a\":[1]}}'}]}",
        "filter-criteria",
    ),
    (
        "VisibilityTimeout: !FindInMap [OfTimeout, !Ref FunctionTimeout, VisibilityTimeout]",
        "VisibilityTimeout: 345",
        "receives",
    ),
    (
        "      RedrivePolicy:\n        deadLetterTargetArn: !GetAtt OrdersDeadLetterQueue.Arn\n        maxReceiveCount: !If [HasMaxReceiveCount, !Ref MaxReceiveCount, !FindInMap [OfTimeout, !Ref FunctionTimeout, MaxReceiveCount]]\n",
        "",
        "dead-letter-queue",
    ),
    (
        "maxReceiveCount: !If [HasMaxReceiveCount, !Ref MaxReceiveCount, !FindInMap [OfTimeout, !Ref FunctionTimeout, MaxReceiveCount]]",
        "maxReceiveCount: 8",
        "receives",
    ),
    (
        "MessageRetentionPeriod: 1209600",
        "MessageRetentionPeriod: 86400",
        "dead-letter-retention",
    ),
    (
        "IDEMPOTENCY_RETENTION: !Ref IdempotencyRetention",
        "IDEMPOTENCY_RETENTION: 7d",
        "record-retention",
    ),
    (
        "IDEMPOTENCY_KEY: !Ref IdempotencyKey",
        "IDEMPOTENCY_KEY: orderId",
        "settings",
    ),
    (
        "CONSUMER_CONCURRENCY: !Ref ConsumerConcurrency",
        "CONSUMER_CONCURENCY: !Ref ConsumerConcurrency",
        "unknown-variables",
    ),
    (
        "CONSUMER_HEARTBEAT: !Ref ConsumerHeartbeat",
        "CONSUMER_MIN_TIME_TO_START: 15m",
        "time-to-start",
    ),
    (
        "ApplicationLogLevel: !Ref LogLevel",
        "ApplicationLogLevel: ERROR",
        "log-level",
    ),
    (
        "IDEMPOTENCY_TABLE_NAME: !If [MakesTable, !Ref IdempotencyTable, !Ref ExistingTableName]",
        "IDEMPOTENCY_TABLE_NAME: nowhere",
        "table",
    ),
    (
        "IDEMPOTENCY_ATTRIBUTES: !Ref IdempotencyAttributes",
        "IDEMPOTENCY_ATTRIBUTES: id=PK",
        "key-schema",
    ),
    (
        "IDEMPOTENCY_SORT_KEY: !Ref IdempotencySortKey",
        "IDEMPOTENCY_SORT_KEY: SK",
        "key-schema",
    ),
    (
        "IDEMPOTENCY_ATTRIBUTES: !Ref IdempotencyAttributes",
        "IDEMPOTENCY_ATTRIBUTES: expires_at=ttl",
        "ttl",
    ),
    ("- dynamodb:UpdateItem", "- dynamodb:Query", "permissions"),
    (
        "IDEMPOTENCY_LAYOUT: !Ref IdempotencyLayout",
        "IDEMPOTENCY_LAYOUT: powertools",
        "ttl",
    ),
    ("- sqs:DeleteMessage", "- sqs:PurgeQueue", "permissions"),
    (
        "- sqs:ChangeMessageVisibility",
        "- sqs:PurgeQueue",
        "permissions",
    ),
    ("- logs:PutLogEvents", "- logs:GetLogEvents", "permissions"),
];
