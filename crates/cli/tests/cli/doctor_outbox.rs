//! `sqs-once doctor` on relays, and on consumers with records in PostgreSQL.

use serde_json::{Value, json};

use crate::doctor::{Stack, assert_found, checks, doctor, healthy, with_in};

/// The checks that only these tests see find something.
pub(crate) const CHECKS: [&str; 9] = [
    "parallelization",
    "failure-destination",
    "relay-schedule",
    "relay-retries",
    "relay-alarms",
    "postgres-connections",
    "postgres-tables",
    "postgres-privileges",
    "oldest-event",
];

const URL: &str = "postgres://postgres@db.example:5432/postgres?sslmode=verify-full&sslrootcert=/var/task/global-bundle.pem";
const VARIABLES: &str = "/function/Environment/Variables";

fn arn(service: &str, name: &str) -> String {
    format!("arn:aws:{service}:eu-central-1:123456789012:{name}")
}

/// A relay without its source, as the templates in examples have it.
fn relay(alarms: &[&str]) -> Value {
    let mut answers = healthy();
    let function = &mut answers["function"];
    function["FunctionName"] = json!("shop-relay");
    function["FunctionArn"] = json!(arn("lambda", "function:shop-relay"));
    function["Timeout"] = json!(60);
    function["Environment"]["Variables"] = json!({
        "OUTBOX_TARGETS": format!(
            "placed=https://sqs.eu-central-1.amazonaws.com/123456789012/ship.fifo,billed={},*={}",
            arn("sns", "billing"),
            arn("events", "event-bus/shop")
        ),
        "OUTBOX_DEAD_LETTER_QUEUE_URL": "https://sqs.eu-central-1.amazonaws.com/123456789012/dead",
    });
    let alarms = alarms
        .iter()
        .map(|alarm| json!(["AWS::CloudWatch::Alarm", alarm, format!("shop-{alarm}")]));
    let function = json!(["AWS::Lambda::Function", "Relay", "shop-relay"]);
    answers["resources"] = alarms.chain([function]).collect();
    answers["mappings"] = json!([]);
    let allow = |resource: String, actions: Value| json!({"Effect": "Allow", "Resource": resource, "Action": actions});
    answers["policy"]["Statement"] = json!([
        allow(arn("sqs", "ship.fifo"), json!("sqs:SendMessage")),
        allow(arn("sns", "billing"), json!("sns:Publish")),
        allow(arn("events", "event-bus/shop"), json!("events:PutEvents")),
        allow(arn("sqs", "dead"), json!("sqs:SendMessage")),
        allow(
            arn("logs", "log-group:/aws/lambda/shop-relay:*"),
            json!(["logs:CreateLogStream", "logs:PutLogEvents"])
        ),
    ]);
    answers
}

/// The answers of a stack of examples/outbox.template.yaml.
fn relay_of_dynamodb() -> Value {
    let stream = arn("dynamodb", "table/outbox/stream/2026-11-21T10:50:00.000");
    let mut answers = relay(&["EventsDeadLettered", "EventsDelayed", "RelayStopped"]);
    answers["mappings"] = json!([{
        "UUID": "mapping-1",
        "EventSourceArn": stream,
        "FunctionArn": arn("lambda", "function:shop-relay"),
        "State": "Enabled",
        "BatchSize": 100,
        "ParallelizationFactor": 1,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "DestinationConfig": {"OnFailure": {"Destination": arn("sqs", "dead")}},
        "FilterCriteria": {"Filters": [{"Pattern": r#"{"eventName": ["INSERT", "MODIFY"]}"#}]},
    }]);
    let reads = json!({"Effect": "Allow", "Resource": stream, "Action": [
        "dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator", "dynamodb:ListStreams",
    ]});
    answers["policy"]["Statement"]
        .as_array_mut()
        .unwrap()
        .push(reads);
    answers
}

/// The answers of a stack of examples/outbox_postgres.template.yaml.
fn relay_of_postgres() -> Value {
    let mut answers = relay(&[
        "EventsDeadLettered",
        "EventsDelayed",
        "EventsFailed",
        "RelayFails",
        "RelayStopped",
    ]);
    let variables = &mut answers["function"]["Environment"]["Variables"];
    variables["IDEMPOTENCY_POSTGRES_URL"] = json!(URL);
    variables["IDEMPOTENCY_POSTGRES_AUTH"] = json!("iam");
    answers["rules"] = json!({"shop-RelayEveryMinute": "ENABLED"});
    answers["invoke_config"] = json!({"MaximumRetryAttempts": 0});
    let login = json!({
        "Effect": "Allow",
        "Resource": "arn:aws:rds-db:eu-central-1:123456789012:dbuser:db-ABC/postgres",
        "Action": "rds-db:connect",
    });
    answers["policy"]["Statement"]
        .as_array_mut()
        .unwrap()
        .push(login);
    answers
}

/// The answers of a stack of examples/place_order_postgres.template.yaml.
fn consumer() -> Value {
    let mut answers = healthy();
    answers["function"]["Environment"]["Variables"] = json!({
        "IDEMPOTENCY_POSTGRES_URL": URL,
        "IDEMPOTENCY_POSTGRES_AUTH": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:orders",
        "CONSUMER_VISIBILITY": "off",
    });
    answers["mappings"][0]["ScalingConfig"]["MaximumConcurrency"] = json!(5);
    answers["policy"]["Statement"][0] = json!({
        "Effect": "Allow",
        "Resource": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:orders-??????",
        "Action": "secretsmanager:GetSecretValue",
    });
    answers
}

fn variable(name: &str) -> String {
    format!("{VARIABLES}/{name}")
}

#[tokio::test]
async fn fault_of_dynamodb_relay_is_the_one_finding() {
    let healthy = relay_of_dynamodb();
    let ended = doctor(healthy.clone(), &[]).await;
    assert_eq!(&*ended.stdout, "shop-relay: 0 findings\n", "{ended:?}");
    let mapping = |name: &str| format!("/mappings/0/{name}");
    let filter = |pattern: &str| json!({"Filters": [{ "Pattern": pattern }]});
    let seeds = [
        ("/mappings".to_owned(), json!([]), "mapping"),
        (mapping("State"), json!("Disabled"), "mapping-enabled"),
        (
            mapping("FunctionResponseTypes"),
            json!([]),
            "partial-responses",
        ),
        (
            mapping("ParallelizationFactor"),
            json!(2),
            "parallelization",
        ),
        (
            mapping("DestinationConfig"),
            Value::Null,
            "failure-destination",
        ),
        (
            mapping("FilterCriteria"),
            filter(r#"{"eventName": ["MODIFY"]}"#),
            "filter-criteria",
        ),
        (
            mapping("FilterCriteria"),
            filter(r#"{"dynamodb": {"NewImage": {"name": {"S": ["placed"]}}}}"#),
            "filter-criteria",
        ),
        (
            "/resources/2/1".to_owned(),
            json!("Renamed"),
            "relay-alarms",
        ),
        (
            variable("OUTBOX_DEAD_LETTER_QUEUE_URL"),
            Value::Null,
            "settings",
        ),
        (
            variable("OUTBOX_EVENT_SORCE"),
            json!("shop"),
            "unknown-variables",
        ),
        (
            "/function/LoggingConfig/ApplicationLogLevel".to_owned(),
            json!("ERROR"),
            "log-level",
        ),
        (
            "/policy/Statement/0/Resource".to_owned(),
            json!(arn("sqs", "other")),
            "permissions",
        ),
        (
            "/policy/Statement/1/Action".to_owned(),
            json!("sns:Subscribe"),
            "permissions",
        ),
        (
            "/policy/Statement/2/Action".to_owned(),
            json!("events:PutRule"),
            "permissions",
        ),
        (
            "/policy/Statement/3/Effect".to_owned(),
            json!("Deny"),
            "permissions",
        ),
        (
            "/policy/Statement/5/Action/1".to_owned(),
            json!("dynamodb:Query"),
            "permissions",
        ),
    ];
    assert_found(&healthy, seeds, &[]).await;
}

#[tokio::test]
async fn fault_of_postgres_relay_is_the_one_finding() {
    let healthy = relay_of_postgres();
    let ended = doctor(healthy.clone(), &[]).await;
    assert_eq!(
        &*ended.stdout,
        "shop-relay: 0 findings\nnot checked: function shop-relay: connections, tables, privileges and \
         oldest event in the database postgres: pass --postgres URL\n",
        "{ended:?}"
    );
    let seeds = [
        ("/rules", json!({}), "relay-schedule"),
        (
            "/rules/shop-RelayEveryMinute",
            json!("DISABLED"),
            "relay-schedule",
        ),
        ("/invoke_config", Value::Null, "relay-retries"),
        (
            "/invoke_config/MaximumRetryAttempts",
            json!(1),
            "relay-retries",
        ),
        (
            "/resources/3/0",
            json!("AWS::CloudWatch::Dashboard"),
            "relay-alarms",
        ),
        (
            "/policy/Statement/5/Resource",
            json!("arn:aws:rds-db:*:*:dbuser:*/other"),
            "permissions",
        ),
    ];
    let seeds = seeds.map(|(pointer, value, wanted)| (pointer.to_owned(), value, wanted));
    assert_found(&healthy, seeds, &[]).await;
    // Schedules of EventBridge Scheduler are not read.
    let mut other = healthy;
    other["rules"] = json!({});
    let schedule = json!([
        "AWS::Scheduler::Schedule",
        "EveryMinute",
        "shop-every-minute"
    ]);
    other["resources"].as_array_mut().unwrap().push(schedule);
    let ended = doctor(other, &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("not checked: function shop-relay: its schedule"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn fault_of_postgres_consumer_is_the_one_finding() {
    let healthy = consumer();
    assert_eq!(checks(healthy.clone(), &[]).await, Vec::<String>::new());
    let seeds = [
        ("/mappings".to_owned(), json!([]), "mapping"),
        (
            "/mappings/0/ScalingConfig".to_owned(),
            Value::Null,
            "postgres-connections",
        ),
        (
            "/mappings/0/FunctionResponseTypes".to_owned(),
            Value::Null,
            "partial-responses",
        ),
        (
            "/queues/orders/VisibilityTimeout".to_owned(),
            json!("330"),
            "receives",
        ),
        (
            variable("IDEMPOTENCY_POSTGRES_AUTH"),
            json!("password2"),
            "settings",
        ),
        (
            variable("IDEMPOTENCY_POSTGRES_CONECTIONS"),
            json!("1"),
            "unknown-variables",
        ),
        (variable("CONSUMER_HEARTBEAT"), json!("1m"), "settings"),
        (
            variable("IDEMPOTENCY_RETENTION"),
            json!("7d"),
            "record-retention",
        ),
        (
            "/policy/Statement/0/Action".to_owned(),
            json!("secretsmanager:ListSecrets"),
            "permissions",
        ),
        (
            "/policy/Statement/1/Action/0".to_owned(),
            json!("sqs:PurgeQueue"),
            "permissions",
        ),
    ];
    assert_found(&healthy, seeds, &[]).await;
    // A crash leaves no record that a later attempt could find.
    let alone = with_in(
        healthy.clone(),
        &variable("CONSUMER_CRASH_ISOLATION"),
        json!("off"),
    );
    assert_eq!(checks(alone, &[]).await, Vec::<String>::new());
    // Reserved concurrency limits the environments too, and a pooler their connections.
    let mut unlimited = with_in(healthy, "/mappings/0/ScalingConfig", Value::Null);
    let mut reserved = unlimited.clone();
    reserved["concurrency"] = json!({"ReservedConcurrentExecutions": 4});
    assert_eq!(checks(reserved, &[]).await, Vec::<String>::new());
    let mut polled = unlimited.clone();
    polled["mappings"][0]["ProvisionedPollerConfig"] = json!({"MaximumPollers": 2});
    assert_eq!(checks(polled, &[]).await, Vec::<String>::new());
    const PROXY: &str = "postgres://orders@orders.proxy-abc.eu-central-1.rds.amazonaws.com/orders";
    let for_poolers = format!("{PROXY}?statement-cache-capacity=0");
    let pooler =
        "postgres://orders@pooler.example/orders?sslmode=require&statement-cache-capacity=0";
    for (url, expected) in [
        // RDS Proxy refuses the startup parameters of this one.
        (PROXY, &["postgres-connections"][..]),
        (&for_poolers, &[]),
        (pooler, &[]),
    ] {
        unlimited["function"]["Environment"]["Variables"]["IDEMPOTENCY_POSTGRES_URL"] = json!(url);
        assert_eq!(checks(unlimited.clone(), &[]).await, expected, "{url}");
    }
}

/// Deploys a template of examples on the emulator, and checks it. An empty list without an emulator.
async fn findings_in(template: &str, parameters: &[(&str, &str)]) -> Vec<String> {
    // The function never runs, so its code is not needed.
    let code = template
        .lines()
        .find(|line| line.contains("CodeUri:"))
        .unwrap();
    let template = template.replace(code, "      CodeUri: s3://none/none.zip");
    let topic = (
        "AlarmTopicArn",
        "arn:aws:sns:us-east-1:000000000000:on-call",
    );
    let queue = arn("sqs", "ship.fifo");
    let of_relay = [
        (
            "OutboxTargets",
            "*=https://sqs.eu-central-1.amazonaws.com/123456789012/ship.fifo",
        ),
        ("TargetArns", &*queue),
        topic,
    ];
    let of_relay = of_relay
        .into_iter()
        .filter(|_| template.contains("OutboxTargets:"));
    let parameters: Vec<_> = parameters.iter().copied().chain(of_relay).collect();
    match Stack::create(template, &parameters).await {
        Some(stack) => stack.checks().await,
        None => Vec::new(),
    }
}

const DATABASE: [(&str, &str); 5] = [
    ("DatabaseHost", "db.example"),
    ("DatabaseName", "orders"),
    ("DatabaseResourceId", "db-ABC"),
    ("SubnetIds", "subnet-1"),
    ("SecurityGroupIds", "sg-1"),
];

#[tokio::test]
async fn templates_of_examples_have_no_finding() {
    let outbox = include_str!("../../../../examples/outbox.template.yaml");
    assert_eq!(findings_in(outbox, &[]).await, Vec::<String>::new());
    let relay = include_str!("../../../../examples/outbox_postgres.template.yaml");
    assert_eq!(findings_in(relay, &DATABASE).await, Vec::<String>::new());
    let consumer = include_str!("../../../../examples/place_order_postgres.template.yaml");
    assert_eq!(findings_in(consumer, &DATABASE).await, Vec::<String>::new());
}

/// Deploys a template with one text in place of another, which is the one finding.
async fn fault_is_found(
    template: &str,
    parameters: &[(&str, &str)],
    (from, to): (&str, &str),
    wanted: &str,
) {
    assert!(template.contains(from), "{from}");
    let found = findings_in(&template.replace(from, to), parameters).await;
    assert_eq!(found, [wanted], "{to}");
}

#[tokio::test]
async fn misdeployed_relay_is_found() {
    if std::env::var_os("AWS_ENDPOINT_URL").is_none_or(|endpoint| endpoint.is_empty()) {
        return; // Reported by the other test.
    }
    let relay = include_str!("../../../../examples/outbox_postgres.template.yaml");
    for (from, to, wanted) in [
        (
            "MaximumRetryAttempts: 0",
            "MaximumRetryAttempts: 1",
            "relay-retries",
        ),
        (
            "Schedule: rate(1 minute)",
            "Schedule: rate(1 minute)\n            Enabled: false",
            "relay-schedule",
        ),
        ("  RelayFails:\n", "  Renamed:\n", "relay-alarms"),
        (
            "Action: rds-db:connect",
            "Action: rds-db:none",
            "permissions",
        ),
    ] {
        fault_is_found(relay, &DATABASE, (from, to), wanted).await;
    }
    let outbox = include_str!("../../../../examples/outbox.template.yaml");
    for (from, to, wanted) in [
        (
            "ParallelizationFactor: 1",
            "ParallelizationFactor: 2",
            "parallelization",
        ),
        (
            "            FunctionResponseTypes: [ReportBatchItemFailures]\n",
            "",
            "partial-responses",
        ),
        ("- dynamodb:GetRecords", "- dynamodb:Query", "permissions"),
    ] {
        fault_is_found(outbox, &[], (from, to), wanted).await;
    }
}

#[cfg(feature = "postgres")]
mod in_database {
    use sqlx::{AssertSqlSafe, Executor as _};

    use super::*;
    use crate::postgres::World;

    async fn found(answers: &Value, world: &World) -> Vec<String> {
        let url = ["--postgres", &world.url];
        checks(answers.clone(), &url).await
    }

    async fn run_sql(world: &World, sql: impl Into<String>) {
        world.pool.execute(AssertSqlSafe(sql.into())).await.unwrap();
    }

    #[tokio::test]
    async fn clean_database_has_no_finding() {
        let Some(world) = World::start().await else {
            return;
        };
        for answers in [consumer(), relay_of_postgres()] {
            let ended = doctor(answers, &["--postgres", &world.url]).await;
            assert_eq!(ended.code, 0, "{ended:?}");
            assert!(!ended.stdout.contains("not checked"), "{ended:?}");
        }
        // The database of another function is not that of this one.
        let other = with_in(
            consumer(),
            &variable("IDEMPOTENCY_POSTGRES_URL"),
            json!("postgres://orders@db.example/orders"),
        );
        let ended = doctor(other, &["--postgres", &world.url]).await;
        let named = "in the database orders: --postgres names the database postgres";
        assert!(ended.stdout.contains(named), "{ended:?}");
    }

    #[tokio::test]
    async fn connections_are_compared_with_the_servers() {
        let Some(world) = World::start().await else {
            return;
        };
        let maximum = "/mappings/0/ScalingConfig/MaximumConcurrency";
        let many = with_in(consumer(), maximum, json!(1000));
        assert_eq!(found(&many, &world).await, ["postgres-connections"]);
        let one = with_in(
            many,
            &variable("IDEMPOTENCY_POSTGRES_CONNECTIONS"),
            json!("1"),
        );
        let one = with_in(one, maximum, json!(20));
        assert_eq!(found(&one, &world).await, Vec::<String>::new());
    }

    #[tokio::test]
    async fn missing_and_older_tables_are_found() {
        let Some(world) = World::start().await else {
            return;
        };
        run_sql(
            &world,
            "ALTER TABLE sqs_once_records DROP COLUMN exclusive_attempts",
        )
        .await;
        assert_eq!(found(&consumer(), &world).await, ["postgres-tables"]);
        run_sql(
            &world,
            "ALTER TABLE sqs_once_records RENAME TO sqs_once_records_kept",
        )
        .await;
        assert_eq!(found(&consumer(), &world).await, ["postgres-tables"]);
        assert_eq!(
            found(&relay_of_postgres(), &world).await,
            Vec::<String>::new()
        );
        run_sql(&world, "DROP TABLE sqs_once_outbox").await;
        assert_eq!(
            found(&relay_of_postgres(), &world).await,
            ["postgres-tables"]
        );
        // Another schema has the tables.
        let Some(_elsewhere) = World::start().await else {
            return;
        };
        let ended = doctor(consumer(), &["--postgres", &world.url]).await;
        let named = "the search path finds no table sqs_once_records, but the database has";
        assert!(ended.stdout.contains(named), "{ended:?}");
    }

    #[tokio::test]
    async fn missing_privilege_is_found() {
        let Some(world) = World::start().await else {
            return;
        };
        let user = format!("doctor_{}", uuid::Uuid::new_v4().simple());
        let url = URL.replace("postgres@", &format!("{user}@"));
        let of_user = |answers| {
            let mut answers = with_in(answers, &variable("IDEMPOTENCY_POSTGRES_URL"), json!(url));
            let policy = answers["policy"]
                .to_string()
                .replace("db-ABC/postgres", "db-ABC/*");
            answers["policy"] = serde_json::from_str(&policy).unwrap();
            answers
        };
        let (consumer, relay) = (of_user(consumer()), of_user(relay_of_postgres()));
        assert_eq!(found(&relay, &world).await, ["postgres-privileges"]);
        run_sql(&world, format!("CREATE USER {user}")).await;
        run_sql(
            &world,
            format!("GRANT SELECT, INSERT, UPDATE ON sqs_once_records TO {user}"),
        )
        .await;
        run_sql(
            &world,
            format!("GRANT SELECT, DELETE ON sqs_once_outbox TO {user}"),
        )
        .await;
        for (answers, missing) in [
            (&consumer, "lacks DELETE on sqs_once_records"),
            (&relay, "lacks UPDATE on sqs_once_outbox"),
        ] {
            let ended = doctor(answers.clone(), &["--postgres", &world.url]).await;
            assert!(ended.stdout.contains(missing), "{ended:?}");
            assert!(ended.stdout.contains("1 finding"), "{ended:?}");
        }
        run_sql(
            &world,
            format!("GRANT DELETE ON sqs_once_records TO {user}"),
        )
        .await;
        run_sql(&world, format!("GRANT UPDATE ON sqs_once_outbox TO {user}")).await;
        for answers in [consumer, relay] {
            assert_eq!(found(&answers, &world).await, Vec::<String>::new());
        }
        run_sql(&world, format!("DROP OWNED BY {user}; DROP USER {user}")).await;
    }

    #[tokio::test]
    async fn old_event_is_found() {
        let Some(world) = World::start().await else {
            return;
        };
        let insert = |minutes: u32| {
            format!(
                "INSERT INTO sqs_once_outbox (id, group_id, name, body, published_at) \
                 VALUES ('a', 'g', 'placed', '1', (extract(epoch FROM now()) - {minutes} * 60) * 1000)"
            )
        };
        run_sql(&world, insert(1)).await;
        assert_eq!(
            found(&relay_of_postgres(), &world).await,
            Vec::<String>::new()
        );
        run_sql(&world, "DELETE FROM sqs_once_outbox").await;
        run_sql(&world, insert(10)).await;
        assert_eq!(found(&relay_of_postgres(), &world).await, ["oldest-event"]);
    }

    #[tokio::test]
    async fn silent_database_ends_with_3() {
        let url = "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable";
        let ended = doctor(consumer(), &["--postgres", url]).await;
        assert_eq!(ended.code, 3, "{ended:?}");
        assert!(
            ended.stderr.contains("could not read the database"),
            "{ended:?}"
        );
    }
}
