//! Permissions in the templates, and what the overlays add.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use support::template::{
    CONSUMER, DASHBOARD, FIFO, LARGE_BATCHES, OWN_TABLE, S3_BODIES, Template, VPC, consumer_may,
    function_may, is_assumed_by, list, met, of_type, read, root, statements, variants,
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

/// The event source mapping's permissions on the queue (AWS Lambda Developer Guide, "Using Lambda with Amazon SQS").
const POLLS: &str = "sqs:ReceiveMessage DeleteMessage GetQueueAttributes";
const CONNECTS: &str = "arn:${AWS::Partition}:rds-db:${AWS::Region}:${AWS::AccountId}:dbuser:${DatabaseResourceId}/${DatabaseUser}";
const TARGETS: [(&str, &str); 3] = [
    ("sqs:SendMessage", "TargetArns"),
    ("sns:Publish", "TargetArns"),
    ("events:PutEvents", "TargetArns"),
];

/// Asserts that a function's role allows these actions on these resources, and no others.
fn assert_may(template: &str, conditions: &[&str], needed: &[(&str, &str)]) {
    let each = |(actions, resource): &(&str, &str)| -> Vec<(String, String)> {
        let (service, actions) = actions.split_once(':').unwrap();
        let named = actions
            .split(' ')
            .map(|action| format!("{service}:{action}"));
        named
            .map(|action| (action, (*resource).to_owned()))
            .collect()
    };
    let needed = needed.iter().flat_map(each).collect();
    assert_eq!(function_may(template, conditions), needed, "{template}");
}

#[test]
fn roles_of_consumers_allow_only_their_calls() {
    let returns = "sqs:GetQueueUrl ChangeMessageVisibility";
    let dead_letters = ("sqs:GetQueueUrl SendMessage", "OrdersDeadLetterQueue.Arn");
    let logs = "logs:CreateLogStream PutLogEvents";
    assert_may(
        CONSUMER,
        &[OWN_TABLE],
        &[
            (
                "dynamodb:PutItem UpdateItem GetItem PartiQLInsert PartiQLUpdate",
                "IdempotencyTable.Arn",
            ),
            (POLLS, "OrdersQueue.Arn"),
            (returns, "OrdersQueue.Arn"),
            dead_letters,
            (logs, "ConsumerLogGroup.Arn"),
        ],
    );
    assert_may(
        PLACE_ORDER,
        &[],
        &[
            ("dynamodb:PutItem", "IdempotencyTable.Arn"),
            ("dynamodb:PutItem", "OrdersTable.Arn"),
            ("dynamodb:UpdateItem", "StockTable.Arn"),
            (POLLS, "OrdersQueue.Arn"),
            (returns, "OrdersQueue.Arn"),
            dead_letters,
            (logs, "PlaceOrderLogGroup.Arn"),
        ],
    );
    assert_may(
        PLACE_ORDER_POSTGRES,
        &[],
        &[
            ("rds-db:connect", CONNECTS),
            (POLLS, "OrdersQueue.Arn"),
            (logs, "PlaceOrderLogGroup.Arn"),
        ],
    );
}

#[test]
fn roles_of_relays_allow_only_source_targets_and_named_keys() {
    let stream = (
        "dynamodb:DescribeStream GetRecords GetShardIterator ListStreams",
        "OutboxTable.StreamArn",
    );
    for (path, source) in [
        (OUTBOX, stream),
        (OUTBOX_POSTGRES, ("rds-db:connect", CONNECTS)),
    ] {
        let mut needed = vec![
            source,
            ("sqs:SendMessage", "OutboxDeadLetterQueue.Arn"),
            ("logs:CreateLogStream PutLogEvents", "RelayLogGroup.Arn"),
        ];
        needed.extend(TARGETS);
        assert_may(path, &[], &needed);
        needed.push(("kms:Decrypt GenerateDataKey", "TargetKmsKeyArns"));
        assert_may(path, &["HasTargetKeys"], &needed);
        let keys = &read(path)["Parameters"]["TargetKmsKeyArns"]["Default"];
        assert_eq!(*keys, "", "{path}");
    }
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
