//! Permissions in the templates, and what the overlays add.

use std::{collections::BTreeSet, fs, path::Path};

use regex_lite::Regex;
use serde_json::{Value, json};

use support::template::{
    CONSUMER, DASHBOARD, FIFO, LARGE_BATCHES, OWN_TABLE, S3_BODIES, STARTER, Template, VPC,
    consumer_may, function_may, is_assumed_by, list, met, of_type, read, root, statements,
};

const PLACE_ORDER: &str = "examples/place_order.template.yaml";
const PLACE_ORDER_POSTGRES: &str = "examples/place_order_postgres.template.yaml";
const OUTBOX: &str = "examples/outbox.template.yaml";
const OUTBOX_POSTGRES: &str = "examples/outbox_postgres.template.yaml";
const TEMPLATES: [&str; 3] = [CONSUMER, PLACE_ORDER, OUTBOX];
const KMS_KEY: &str = "HasKmsKey";

#[test]
fn role_is_assumable_by_lambda_only() {
    for path in TEMPLATES {
        let template = read(path);
        let roles = of_type(&template, "AWS::IAM::Role").into_iter();
        let roles = roles.filter(|(_, role)| !is_assumed_by(role, "scheduler"));
        let [(name, role)] = roles.collect::<Vec<_>>()[..] else {
            panic!("{path}: more than the function's role");
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
            // SAM adds its own policies to a role that it makes.
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
    let may = function_may(template, &[OWN_TABLE]);
    assert_eq!(may, needed.collect(), "{template}");
}

/// The permissions that a condition adds.
fn added_by(condition: &str) -> BTreeSet<(String, String)> {
    let more = consumer_may(&[condition]);
    more.difference(&consumer_may(&[])).cloned().collect()
}

/// The next owner of a deleted bucket's name would serve bodies.
#[test]
fn s3_overlay_adds_only_reads_of_own_bucket() {
    let overlay = read(S3_BODIES);
    let [(_, policy)] = of_type(&overlay, "AWS::IAM::Policy")[..] else {
        panic!("more than one policy");
    };
    assert_eq!(policy["Roles"], json!([{"!Ref": "ConsumerRole"}]));
    let own = json!({"StringEquals": {"s3:ResourceAccount": {"!Ref": "AWS::AccountId"}}});
    let bucket = "arn:${AWS::Partition}:s3:::${BodiesBucket}";
    let of = |conditions: &[&str]| -> Vec<_> {
        let statements = list(&policy["PolicyDocument"]["Statement"]).into_iter();
        statements.filter_map(|of| met(of, conditions)).collect()
    };
    let reads = of(&[]);
    for statement in &reads {
        assert_eq!(statement["Condition"], own, "{statement}");
    }
    let may = reads
        .iter()
        .map(|of| (&of["Action"], &of["Resource"]["!Sub"]));
    assert_eq!(
        may.collect::<Vec<_>>(),
        [
            (&json!("s3:GetObject"), &json!(format!("{bucket}/*"))),
            (&json!("s3:ListBucket"), &json!(bucket))
        ]
    );
    let decrypts = of(&[KMS_KEY])[2];
    assert_eq!(decrypts["Action"], "kms:Decrypt");
    assert_eq!(decrypts["Resource"], json!({"!Ref": "KmsKeyArn"}));
    let service = json!({"!Sub": "s3.${AWS::Region}.${AWS::URLSuffix}"});
    assert_eq!(
        decrypts["Condition"]["StringEquals"]["kms:ViaService"],
        service
    );
    // `sam build` passes no features.
    let build = fs::read_to_string(root().join("overlays/s3-bodies.toml")).unwrap();
    assert!(build.contains("features = [\"s3\"]"));
}

/// The overlay is merged, so that it names resources of the template, or its own.
#[test]
fn overlays_change_or_add_resources() {
    let template = read(CONSUMER);
    let early = [
        "CircuitOpen",
        "CrashedMessages",
        "Dashboard",
        "InFlightNearLimit",
        "RetryableFailures",
        "TableThrottles",
    ];
    for (path, added) in [
        (DASHBOARD, &early[..]),
        (FIFO, &[]),
        (LARGE_BATCHES, &[]),
        (S3_BODIES, &["BodiesInS3"]),
        (VPC, &["NetworkInterfaces"]),
    ] {
        for (name, resource) in read(path)["Resources"].as_object().unwrap() {
            let known = &template["Resources"][name];
            assert_eq!(
                known.is_null(),
                added.contains(&name.as_str()),
                "{path}: {name}"
            );
            // Another overlay would replace it.
            assert!(known.is_null() || path == VPC || resource["DependsOn"].is_null());
        }
    }
    assert_eq!(template["Outputs"]["Overlays"]["Value"], "none");
}

/// Lambda refuses such a batch when it makes the mapping, and the deployment would be rolled back.
#[test]
fn fifo_refuses_large_batches() {
    let rule = &read(FIFO)["Rules"]["FifoQueueLimitsBatches"]["Assertions"][0]["Assert"];
    let [sizes, size] = list(&rule["!Contains"])[..] else {
        panic!("{rule}");
    };
    assert_eq!(*size, json!({"!Ref": "BatchSize"}));
    let admitted: Vec<_> = (1..=10).map(|size| json!(size.to_string())).collect();
    assert_eq!(*sizes, json!(admitted));
    let large = &read(LARGE_BATCHES)["Parameters"]["BatchSize"];
    assert_eq!([&large["MinValue"], &large["MaxValue"]], [11, 10_000]);
    assert_eq!(read(CONSUMER)["Parameters"]["BatchSize"]["MaxValue"], 10);
}

#[test]
fn kms_key_adds_only_its_use_by_services() {
    let needed = ["kms:Decrypt", "kms:GenerateDataKey"];
    let needed = needed.map(|action| (action.into(), "KmsKeyArn".into()));
    assert_eq!(added_by(KMS_KEY), needed.into());
    let template = read(CONSUMER);
    let roles = of_type(&template, "AWS::IAM::Role");
    let statements = statements(roles[0].1).into_iter();
    let mut of_key = statements.filter_map(|statement| met(statement, &[KMS_KEY]));
    let of_key = of_key.find(|statement| statement["Sid"] == "Encryption");
    let services = &of_key.unwrap()["Condition"]["StringEquals"]["kms:ViaService"];
    let of_region = |name: &str| format!("{name}.${{AWS::Region}}.${{AWS::URLSuffix}}");
    let used: Vec<_> = list(services)
        .into_iter()
        .map(|name| name["!Sub"].as_str())
        .collect();
    assert_eq!(
        used,
        ["dynamodb", "sqs"]
            .map(of_region)
            .each_ref()
            .map(|name| Some(name.as_str()))
    );
}

#[test]
fn existing_table_replaces_permissions_on_own() {
    let tables = |conditions: &[&str]| -> BTreeSet<String> {
        let may = function_may(CONSUMER, conditions).into_iter();
        let on_table = may.filter(|(action, _)| action.starts_with("dynamodb:"));
        on_table.map(|(_, resource)| resource).collect()
    };
    assert_eq!(tables(&[OWN_TABLE]), ["IdempotencyTable.Arn".into()].into());
    let [existing] = &*Vec::from_iter(tables(&[])) else {
        panic!("more than one table");
    };
    assert!(
        existing.ends_with(":table/${ExistingTableName}"),
        "{existing}"
    );
}

/// The actions of a cell like "`sqs:GetQueueUrl`, `SendMessage`", where later ones belong to the same service.
fn actions_of(cell: &str) -> BTreeSet<String> {
    let mut service = "";
    let spans = cell.split('`').skip(1).step_by(2);
    let action = |span| match str::split_once(span, ':') {
        Some((named, _)) => {
            service = named;
            span.to_owned()
        }
        None => format!("{service}:{span}"),
    };
    spans.map(action).collect()
}

#[test]
fn security_page_has_every_action_of_role() {
    let page = include_str!("../../.github/SECURITY.md");
    let (_, table) = page
        .split_once("| on | actions |\n| --- | --- |\n")
        .unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let documented: BTreeSet<_> = rows
        .flat_map(|row| actions_of(row.split('|').nth(2).unwrap()))
        .collect();

    let (template, overlay) = (read(CONSUMER), read(S3_BODIES));
    let (_, role) = of_type(&template, "AWS::IAM::Role")[0];
    let (_, of_bodies) = of_type(&overlay, "AWS::IAM::Policy")[0];
    let policies = statements(&role["Policies"]).into_iter();
    let of_role: BTreeSet<_> = policies
        .chain(statements(of_bodies))
        .flat_map(variants)
        .flat_map(|statement| list(&statement["Action"]))
        .map(|action| action.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(documented, of_role);
}

#[test]
fn consumer_role_allows_only_its_calls() {
    assert_may(
        CONSUMER,
        &[
            ("dynamodb:PutItem", "IdempotencyTable.Arn"),
            ("dynamodb:UpdateItem", "IdempotencyTable.Arn"),
            ("dynamodb:GetItem", "IdempotencyTable.Arn"),
            ("dynamodb:PartiQLInsert", "IdempotencyTable.Arn"),
            ("dynamodb:PartiQLUpdate", "IdempotencyTable.Arn"),
            ("sqs:GetQueueUrl", "OrdersQueue.Arn"),
            ("sqs:ChangeMessageVisibility", "OrdersQueue.Arn"),
            ("sqs:GetQueueUrl", "OrdersDeadLetterQueue.Arn"),
            ("sqs:SendMessage", "OrdersDeadLetterQueue.Arn"),
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
            ("sqs:GetQueueUrl", "OrdersQueue.Arn"),
            ("sqs:ChangeMessageVisibility", "OrdersQueue.Arn"),
            ("sqs:GetQueueUrl", "OrdersDeadLetterQueue.Arn"),
            ("sqs:SendMessage", "OrdersDeadLetterQueue.Arn"),
            ("logs:CreateLogStream", "PlaceOrderLogGroup.Arn"),
            ("logs:PutLogEvents", "PlaceOrderLogGroup.Arn"),
        ],
    );
}

#[test]
fn roles_may_connect_as_the_database_user() {
    for path in [PLACE_ORDER_POSTGRES, OUTBOX_POSTGRES] {
        let may = function_may(path, &[]);
        let mut connects = may.iter().filter(|(action, _)| action == "rds-db:connect");
        let (_, user) = connects.next().unwrap();
        assert!(user.ends_with(":dbuser:${DatabaseResourceId}/${DatabaseUser}"));
        assert_eq!(connects.next(), None);
    }
}

/// Metric, dimension, threshold and missing data of each alarm of a relay.
fn alarms_of(path: &str) -> BTreeSet<String> {
    let template = read(path);
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm").into_iter();
    let alarm = |(name, alarm): (_, &Value)| {
        let dimension = alarm["Dimensions"][0]["Name"].as_str().unwrap().to_owned();
        let text = |member: &str| alarm[member].as_str().unwrap().to_owned();
        let topic = json!([{"!Ref": "AlarmTopicArn"}]);
        for actions in ["AlarmActions", "OKActions"] {
            let notified = met(&alarm[actions], &["HasAlarmTopic"]);
            assert_eq!(notified, Some(&topic), "{name}");
        }
        let begins = [text("ComparisonOperator"), alarm["Threshold"].to_string()].join(" ");
        [
            text("MetricName"),
            dimension,
            begins,
            text("TreatMissingData"),
        ]
        .join(", ")
    };
    alarms.map(alarm).collect()
}

/// No other alarm sees a relay that is too slow, or that does not run.
#[test]
fn relay_of_postgres_has_alarms_for_each_fault() {
    let expected = [
        "ApproximateNumberOfMessagesVisible, QueueName, GreaterThanThreshold 0, ignore",
        "Errors, FunctionName, GreaterThanThreshold 0, notBreaching",
        "EventsFailed, service, GreaterThanThreshold 0, notBreaching",
        "Invocations, FunctionName, LessThanThreshold 1, breaching",
        "OldestWaitingEventAge, service, GreaterThanThreshold 300, notBreaching",
    ];
    assert_eq!(
        alarms_of(OUTBOX_POSTGRES),
        expected.map(str::to_owned).into()
    );
}

#[test]
fn relay_of_dynamodb_has_alarms_for_each_fault() {
    let expected = [
        "ApproximateNumberOfMessagesVisible, QueueName, GreaterThanThreshold 0, ignore",
        "Invocations, FunctionName, LessThanThreshold 1, breaching",
        "IteratorAge, FunctionName, GreaterThanThreshold 300000, notBreaching",
    ];
    assert_eq!(alarms_of(OUTBOX), expected.map(str::to_owned).into());
}

/// Without it, an idle table and a disabled event source mapping look the same.
#[test]
fn schedule_changes_one_item_of_the_outbox() {
    let template = read(OUTBOX);
    let [(name, schedule)] = of_type(&template, "AWS::Scheduler::Schedule")[..] else {
        panic!("no schedule");
    };
    assert_eq!(schedule["ScheduleExpression"], "rate(1 minute)");
    // An older relay would take the item for a broken event.
    assert_eq!(template["Resources"][name]["DependsOn"], "Relay");
    let arn = schedule["Target"]["Arn"]["!Sub"].as_str().unwrap();
    assert!(
        arn.ends_with(":scheduler:::aws-sdk:dynamodb:updateItem"),
        "{arn}"
    );
    let input = schedule["Target"]["Input"]["!Sub"].as_str().unwrap();
    let input: Value = serde_json::from_str(input).unwrap();
    assert_eq!(input["TableName"], "${OutboxTable}");
    // A write that changes nothing has no record in the stream.
    assert_eq!(input["UpdateExpression"], "ADD heartbeat :one");
    let group = &input["Key"]["group"]["S"];

    let mut roles = of_type(&template, "AWS::IAM::Role");
    roles.retain(|(_, role)| is_assumed_by(role, "scheduler"));
    let [(_, role)] = roles[..] else {
        panic!("{roles:?}");
    };
    let [statement] = statements(&role["Policies"])[..] else {
        panic!("{role}");
    };
    assert_eq!(statement["Action"], "dynamodb:UpdateItem");
    assert_eq!(statement["Resource"], json!({"!GetAtt": "OutboxTable.Arn"}));
    let only = json!({"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [group]}});
    assert_eq!(statement["Condition"], only);
}

#[test]
fn relay_role_allows_only_stream_and_targets() {
    let targets = "TargetArns";
    let stream = [
        "DescribeStream",
        "GetRecords",
        "GetShardIterator",
        "ListStreams",
    ];
    let stream = stream.map(|action| (format!("dynamodb:{action}"), "OutboxTable.StreamArn"));
    let others = [
        ("events:PutEvents", targets),
        ("sns:Publish", targets),
        ("sqs:SendMessage", targets),
        ("sqs:SendMessage", "OutboxDeadLetterQueue.Arn"),
        ("logs:CreateLogStream", "RelayLogGroup.Arn"),
        ("logs:PutLogEvents", "RelayLogGroup.Arn"),
    ];
    let others = others.map(|(action, resource)| (action.to_owned(), resource));
    let needed = stream.into_iter().chain(others.clone());
    let needed = needed.map(|(action, resource)| (action, resource.to_owned()));
    assert_eq!(function_may(OUTBOX, &[]), needed.collect());
    let of_database = "arn:${AWS::Partition}:rds-db:${AWS::Region}:${AWS::AccountId}:dbuser:\
        ${DatabaseResourceId}/${DatabaseUser}";
    let connects = ("rds-db:connect".to_owned(), of_database.to_owned());
    let needed = others.map(|(action, resource)| (action, resource.to_owned()));
    let needed = needed.into_iter().chain([connects]);
    assert_eq!(function_may(OUTBOX_POSTGRES, &[]), needed.collect());
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

/// Checkov has rules for the encryption and the recovery of tables, and none that sees these.
#[test]
fn queues_are_encrypted_and_tables_protected() {
    for path in TEMPLATES {
        let template = read(path);
        let queues = of_type(&template, "AWS::SQS::Queue");
        // A queue and its dead-letter queue; the relay has the second alone.
        assert_eq!(queues.len(), if path == OUTBOX { 1 } else { 2 });
        for (name, queue) in queues {
            let managed = met(&queue["SqsManagedSseEnabled"], &[]);
            assert_eq!(managed, Some(&json!(true)), "{name}");
        }
        let tables = of_type(&template, "AWS::DynamoDB::Table");
        assert!(!tables.is_empty());
        for (name, table) in tables {
            assert_eq!(table["DeletionProtectionEnabled"], true, "{name}");
        }
    }
}

#[test]
fn kms_key_encrypts_queues_table_logs_and_variables() {
    let template = read(CONSUMER);
    let resources = &template["Resources"];
    for of_key in [
        "/OrdersQueue/Properties/KmsMasterKeyId",
        "/OrdersDeadLetterQueue/Properties/KmsMasterKeyId",
        "/IdempotencyTable/Properties/SSESpecification/KMSMasterKeyId",
        "/ConsumerLogGroup/Properties/KmsKeyId",
        "/Consumer/Properties/KmsKeyArn",
    ] {
        let property = resources.pointer(of_key).unwrap();
        assert_eq!(met(property, &[]), None, "{of_key}");
        let key = json!({"!Ref": "KmsKeyArn"});
        assert_eq!(met(property, &[KMS_KEY]), Some(&key), "{of_key}");
    }
    for (name, queue) in of_type(&template, "AWS::SQS::Queue") {
        let managed = met(&queue["SqsManagedSseEnabled"], &[KMS_KEY]);
        assert_eq!(managed, None, "SQS takes only one of both: {name}");
    }
}

#[test]
fn messages_records_and_logs_outlive_the_stack() {
    for path in TEMPLATES {
        let template = read(path);
        let mut retained = BTreeSet::new();
        for (name, resource) in template["Resources"].as_object().unwrap() {
            if resource["UpdateReplacePolicy"] == "Retain" {
                let kind = resource["Type"].as_str().unwrap();
                retained.insert(kind.rsplit("::").next().unwrap());
                // The dead-letter queue names the queue as its source. A new stack can have the others beside the old.
                for fixed in ["QueueName", "TableName", "LogGroupName"] {
                    let free = name == "OrdersQueue" || resource["Properties"][fixed].is_null();
                    assert!(free, "{path}: {name}");
                }
            }
        }
        assert_eq!(
            retained,
            ["LogGroup", "Queue", "QueuePolicy", "Table"].into()
        );
        for kind in [
            "SQS::Queue",
            "SQS::QueuePolicy",
            "DynamoDB::Table",
            "Logs::LogGroup",
        ] {
            let resources = template["Resources"].as_object().unwrap().iter();
            let of_kind = resources.filter(|(_, of)| of["Type"] == format!("AWS::{kind}"));
            for (name, resource) in of_kind {
                assert_eq!(resource["UpdateReplacePolicy"], "Retain", "{path}: {name}");
            }
        }
    }
}

/// A rolled back creation deletes what it made, so that the next attempt finds its names free. A table is
/// protected from deletion, so the rollback itself would fail.
#[test]
fn failed_creation_leaves_only_tables() {
    let retained = Regex::new(
        "Type: (AWS::\\S+)\n(?:    Condition: .*\n)?    UpdateReplacePolicy: Retain\n    DeletionPolicy: (\\w+)\n",
    );
    let retained = retained.unwrap();
    for path in [
        TEMPLATES.as_slice(),
        &[PLACE_ORDER_POSTGRES, OUTBOX_POSTGRES, STARTER],
    ]
    .concat()
    {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let mut found = 0;
        for resource in retained.captures_iter(&text) {
            let is_table = &resource[1] == "AWS::DynamoDB::Table";
            let policy = if is_table {
                "Retain"
            } else {
                "RetainExceptOnCreate"
            };
            assert_eq!(&resource[2], policy, "{path}: {}", &resource[1]);
            found += 1;
        }
        assert_eq!(
            text.matches("DeletionPolicy: Retain").count(),
            found,
            "{path}"
        );
    }
}

/// SNS, EventBridge and S3 send as a service, which only the policy of the queue can allow.
#[test]
fn producer_may_send_only_from_its_source() {
    let template = read(CONSUMER);
    let policy = &template["Resources"]["OrdersQueuePolicy"]["Properties"]["PolicyDocument"];
    let of = |conditions: &[&str]| -> Vec<_> {
        let statements = list(&policy["Statement"]).into_iter();
        let met = statements.filter_map(|statement| met(statement, conditions));
        met.filter(|statement| statement["Effect"] == "Allow")
            .collect()
    };
    assert_eq!(of(&[]), Vec::<&Value>::new());
    let [producer] = of(&["HasProducer"])[..] else {
        panic!("more than one statement");
    };
    assert_eq!(producer["Action"], "sqs:SendMessage");
    assert_eq!(producer["Resource"], json!({"!GetAtt": "OrdersQueue.Arn"}));
    let source = json!({"aws:SourceArn": {"!Ref": "ProducerSourceArn"}});
    assert_eq!(producer["Condition"]["ArnEquals"], source);
    // The service is the third part of the ARN.
    let service = &producer["Principal"]["Service"]["!Sub"];
    assert_eq!(service[0], "${Service}.amazonaws.com");
    assert_eq!(service[1]["Service"]["!Select"][0], 2);
    for (arn, admitted) in [
        ("arn:aws:sns:eu-central-1:123456789012:orders.fifo", true),
        (
            "arn:aws:events:eu-central-1:123456789012:rule/bus/orders",
            true,
        ),
        ("arn:aws-cn:s3:::orders", true),
        ("", true),
        ("arn:aws:sns:eu-central-1:123456789012:*", false),
        ("arn:aws:iam::123456789012:root", false),
        ("orders", false),
    ] {
        let template = Template::with(&[("ProducerSourceArn", arn)]);
        assert_eq!(template.admits(), admitted, "{arn}");
    }
}

/// The ARN of a bucket has no account, so the next owner of a deleted bucket's name could send.
#[test]
fn bucket_that_sends_belongs_to_the_account() {
    for (arn, other) in [
        ("arn:aws:s3:::orders", ""),
        ("arn:aws-cn:s3:::orders", ""),
        ("arn:aws:sns:eu-central-1:123456789012:s3", "123456789012"),
        (
            "arn:aws:events:eu-central-1:123456789012:rule/s3/orders",
            "123456789012",
        ),
    ] {
        // Whatever the messages are wrapped in.
        for envelope in ["none", "auto"] {
            let values = [("ProducerSourceArn", arn), ("ConsumerEnvelope", envelope)];
            let template = Template::with(&values);
            let statements = template.list("OrdersQueuePolicy/PolicyDocument/Statement");
            let producer = statements.into_iter().find(|of| of["Sid"] == "Producer");
            let condition = &producer.unwrap_or_else(|| panic!("{arn}"))["Condition"];
            let accounts = &condition["StringEqualsIfExists"]["aws:SourceAccount"];
            let accounts: Vec<_> = list(accounts)
                .into_iter()
                .map(|of| template.text(of))
                .collect();
            assert_eq!(accounts, ["aws::accountid", other], "{arn}");
        }
    }
}

#[test]
fn relay_may_use_only_named_keys() {
    for path in [OUTBOX, OUTBOX_POSTGRES] {
        let template = read(path);
        assert_eq!(template["Parameters"]["TargetKmsKeyArns"]["Default"], "");
        let (with_keys, without) = (
            function_may(path, &["HasTargetKeys"]),
            function_may(path, &[]),
        );
        let more = with_keys.difference(&without).cloned();
        let keys = ["kms:Decrypt", "kms:GenerateDataKey"];
        let keys = keys.map(|action| (action.into(), "TargetKmsKeyArns".into()));
        assert_eq!(more.collect::<BTreeSet<_>>(), keys.into(), "{path}");
    }
}

/// With a mapping on the function itself, every batch would reach the new version at once.
#[test]
fn gradual_overlay_moves_the_mapping_to_the_alias() {
    let (template, overlay) = (read(CONSUMER), read("overlays/gradual.yaml"));
    let resources = overlay["Resources"].as_object().unwrap();
    for (name, resource) in resources {
        assert!(!template["Resources"][name].is_null(), "{name}");
        assert!(resource["Type"].is_null(), "{name}");
    }
    let mapping = &resources["OrdersEventSource"]["Properties"];
    assert_eq!(mapping["FunctionName"], json!({"!Ref": "Consumer.Alias"}));
    let function = &resources["Consumer"]["Properties"];
    assert!(function["AutoPublishAlias"].is_string());
    let alarms = list(&function["DeploymentPreference"]["Alarms"]);
    assert!(!alarms.is_empty());
    for alarm in alarms {
        let alarm = &template["Resources"][alarm["!Ref"].as_str().unwrap()];
        assert_eq!(alarm["Type"], "AWS::CloudWatch::Alarm", "{alarm}");
    }
    // SAM names the version after the first ten characters, in which deployments must differ.
    assert_eq!(
        function["AutoPublishCodeSha256"],
        json!({"!Ref": "Release"})
    );
    let release = &overlay["Parameters"]["Release"];
    assert_eq!(release["AllowedPattern"], "^[A-Za-z0-9]{10}$");
    assert!(
        release["Default"].is_null(),
        "a deployment would be no version"
    );
    let makefile = include_str!("../../Makefile");
    assert!(makefile.contains("$(if $(filter gradual,$(OVERLAYS)),Release=$$(date +%s))"));
}

/// A template that is deployed under no other name would replace the stack `sqs-once` of samconfig.toml.
#[test]
fn other_templates_are_deployed_under_their_own_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["docs", "examples"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let mut commands = 0;
    for file in files.into_iter().flatten() {
        let path = file.unwrap().path();
        let Ok(text) = fs::read_to_string(&path) else {
            continue; // a folder
        };
        let text = text.replace("\\\n//!", "").replace("\\\n", "");
        for line in text
            .lines()
            .filter(|line| line.contains("sam deploy --guided"))
        {
            for option in ["--stack-name ", "--config-env "] {
                assert!(line.contains(option), "{}: {line}", path.display());
            }
            commands += 1;
        }
    }
    assert_eq!(commands, 4);
}

#[test]
fn dead_letter_queue_has_one_source() {
    let relay = &read(OUTBOX)["Resources"]["OutboxDeadLetterQueue"]["Properties"];
    assert_eq!(relay["RedriveAllowPolicy"]["redrivePermission"], "denyAll");
    for path in [CONSUMER, PLACE_ORDER, FIFO] {
        let template = read(path);
        let resources = &template["Resources"];
        let queue = &resources["OrdersQueue"]["Properties"]["QueueName"];
        let dead_letters = &resources["OrdersDeadLetterQueue"]["Properties"];
        let allow = &dead_letters["RedriveAllowPolicy"];
        if path != FIFO {
            assert_eq!(allow["redrivePermission"], "byQueue");
        }
        let [source] = list(&allow["sourceQueueArns"])[..] else {
            panic!("more than one source: {allow}");
        };
        let [name, arn] = [queue, source].map(|of| of["!Sub"].as_str().unwrap());
        assert!(arn.ends_with(&format!(":{name}")), "{arn}, {name}");
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
