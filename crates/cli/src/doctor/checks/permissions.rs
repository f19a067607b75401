//! Checks of the permissions that a function's role needs.

use super::{Check, Findings, database::Address};
use crate::doctor::facts::{Consumer, DeadLetters, Deployed, Records, Relay, Source};

/// The ARNs of a bucket and of its objects.
struct Bucket {
    arn: String,
    objects: String,
}

impl Bucket {
    fn new(consumer: &Consumer, name: &str, objects: &str) -> Self {
        let arn = format!("arn:{}:s3:::{name}", consumer.function.partition());
        let objects = format!("{arn}/{objects}");
        Self { arn, objects }
    }
}

/// Returns the buckets from which the consumer reads bodies.
fn buckets(consumer: &Consumer) -> Vec<Bucket> {
    let names = consumer.function.variable("CONSUMER_S3_BUCKETS");
    names
        .into_iter()
        .flat_map(|names| names.split(','))
        .map(|name| Bucket::new(consumer, name, "*"))
        .collect()
}

/// Returns the bucket for large outputs.
fn result_bucket(consumer: &Consumer) -> Option<Bucket> {
    let name = consumer.function.variable("IDEMPOTENCY_RESULT_BUCKET");
    Some(Bucket::new(consumer, name?, "results/*"))
}

/// A permission that a role needs: action, resource, and what happens without it.
type Needed<'a> = (&'a str, String, &'static str);

/// Checks the permissions of a consumer's role.
pub(super) fn of_consumer(consumer: &Consumer, findings: &mut Findings) {
    let function = &consumer.function;
    let mut needed = Vec::new();
    match &consumer.records {
        Records::DynamoDb(table) => {
            if let Some(table) = table {
                on_records(function, &table.arn, &mut needed, findings);
            }
        }
        Records::Postgres { .. } => {
            login(
                function,
                "every message fails, and returns to the queue",
                findings,
            );
        }
    }
    if let Some(Some(outbox)) = &consumer.outbox {
        let fails = "each message whose answer publishes fails, and reaches the dead-letter queue";
        needed.push(("dynamodb:PutItem", outbox.arn.clone(), fails));
    }
    on_queues(consumer, &mut needed);
    on_buckets(consumer, &mut needed);
    on_logs(function, &mut needed);
    missing(function, needed, findings);
}

/// Checks the permissions of a relay's role.
pub(super) fn of_relay(relay: &Relay, findings: &mut Findings) {
    let function = &relay.function;
    let mut needed = Vec::new();
    match &relay.source {
        Source::Streams(streams) => {
            let stops =
                "Lambda does not read the stream, and DynamoDB drops its records after 24 hours";
            for stream in streams {
                for action in [
                    "dynamodb:DescribeStream",
                    "dynamodb:GetRecords",
                    "dynamodb:GetShardIterator",
                ] {
                    needed.push((action, stream.arn.clone(), stops));
                }
            }
        }
        Source::Postgres { .. } => {
            login(
                function,
                "the relay reads no events: they wait in the table",
                findings,
            );
        }
    }
    let unsent = "events are not sent: in DynamoDB they go to the dead-letter queue after 15 minutes, in PostgreSQL they wait";
    on_targets(function, unsent, &mut needed);
    on_logs(function, &mut needed);
    missing(function, needed, findings);
}

fn on_records<'a>(
    function: &Deployed,
    arn: &str,
    needed: &mut Vec<Needed<'a>>,
    findings: &mut Findings,
) {
    let of_claims = ["dynamodb:UpdateItem", "dynamodb:DeleteItem"];
    let mut add = |action, consequence| needed.push((action, arn.to_owned(), consequence));
    add("dynamodb:PutItem", "every message fails");
    let allowed = |action: &&str| {
        (function.policies.as_ref()).is_none_or(|policies| policies.may_allow(action, arn))
    };
    if allowed(&"dynamodb:PutItem") && !of_claims.iter().any(allowed) {
        // No variable tells the modes apart.
        findings.skip("the permissions of claim mode: the role may only put records, which is enough for the inbox mode");
        return;
    }
    for action in of_claims {
        add(action, "in claim mode every message fails");
    }
    if function.variable("IDEMPOTENCY_BATCHED_WRITES") != Some("off") {
        let alone = "in claim mode each process logs a warning, and sends each write alone";
        for action in ["dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"] {
            add(action, alone);
        }
    }
    let slow = "each start logs a warning, and the first message waits for the connection";
    add("dynamodb:GetItem", slow);
}

fn on_queues<'a>(consumer: &Consumer, needed: &mut Vec<Needed<'a>>) {
    let is_on = |name| consumer.function.variable(name) != Some("off");
    for queue in consumer.mappings.iter().map(|mapping| &mapping.queue) {
        let actions = [
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
        ];
        let stops = "Lambda stops to read the queue, and disables the mapping";
        needed.extend(actions.map(|action| (action, queue.arn.clone(), stops)));
        if is_on("CONSUMER_VISIBILITY") {
            let actions = ["sqs:GetQueueUrl", "sqs:ChangeMessageVisibility"];
            let waits = "failed messages wait for the queue's visibility timeout, without back-off";
            needed.extend(actions.map(|action| (action, queue.arn.clone(), waits)));
        }
        if let DeadLetters::Queue(dead) = &queue.dead_letters
            && is_on("CONSUMER_DIRECT_DEAD_LETTERING")
            && is_on("CONSUMER_VISIBILITY")
        {
            let actions = ["sqs:GetQueueUrl", "sqs:SendMessage"];
            let indirect = "permanent failures reach the dead-letter queue only after maxReceiveCount, without a reason";
            needed.extend(actions.map(|action| (action, dead.arn.clone(), indirect)));
        }
    }
}

fn on_buckets<'a>(consumer: &Consumer, needed: &mut Vec<Needed<'a>>) {
    for bucket in buckets(consumer) {
        let unread =
            "messages whose body is in the bucket return until they reach the dead-letter queue";
        needed.push(("s3:GetObject", bucket.objects, unread));
        let missing = "S3 denies access to a missing object, so its message is retried";
        needed.push(("s3:ListBucket", bucket.arn, missing));
    }
    if let Some(bucket) = result_bucket(consumer) {
        let omitted = "large outputs are not stored, and duplicates get none";
        needed.push(("s3:PutObject", bucket.objects.clone(), omitted));
        let unread = "duplicates whose handler asks for a large output are retried";
        needed.push(("s3:GetObject", bucket.objects, unread));
        let lost = "S3 denies access to a lost output, so the error does not say that it is lost";
        needed.push(("s3:ListBucket", bucket.arn, lost));
    }
}

/// Adds the targets of published events, and the queue for rejected ones.
fn on_targets<'a>(function: &Deployed, consequence: &'static str, needed: &mut Vec<Needed<'a>>) {
    let targets = function
        .variable("OUTBOX_TARGETS")
        .unwrap_or_default()
        .split(',')
        .filter_map(|pair| Some(pair.split_once('=')?.1));
    for target in targets {
        let of_queue = queue_arn(function, target).map(|arn| ("sqs:SendMessage", arn));
        let of_service = match target.split(':').nth(2) {
            Some("sns") => Some(("sns:Publish", target.to_owned())),
            Some("events") => Some(("events:PutEvents", target.to_owned())),
            _ => None,
        };
        if let Some((action, arn)) = of_queue.or(of_service) {
            needed.push((action, arn, consequence));
        }
    }
    let dead_letters = function.variable("OUTBOX_DEAD_LETTER_QUEUE_URL");
    if let Some(arn) = dead_letters.and_then(|url| queue_arn(function, url)) {
        let stuck = "an event that its target refuses stops its group";
        needed.push(("sqs:SendMessage", arn, stuck));
    }
}

/// Returns the ARN of the queue with this URL: `https://sqs.REGION.amazonaws.com/ACCOUNT/NAME`.
fn queue_arn(function: &Deployed, url: &str) -> Option<String> {
    let (_, address) = url.split_once("://")?;
    let parts: Vec<_> = address.split('/').collect();
    let [host, account, name] = *parts else {
        return None;
    };
    let region = match *host.split('.').collect::<Vec<_>>() {
        ["sqs", region, "amazonaws", ..] => region,
        _ => &function.region,
    };
    Some(format!(
        "arn:{}:sqs:{region}:{account}:{name}",
        function.partition()
    ))
}

fn on_logs<'a>(function: &Deployed, needed: &mut Vec<Needed<'a>>) {
    let silent = "the function writes no logs and no metrics: no alarm on them fires";
    for action in ["logs:CreateLogStream", "logs:PutLogEvents"] {
        needed.push((action, function.log_stream.clone(), silent));
    }
}

/// Checks the permission with which a function gets its PostgreSQL password. The ARN of a database user
/// contains the id of the instance, which no variable names.
fn login(function: &Deployed, consequence: &'static str, findings: &mut Findings) {
    let Some(policies) = &function.policies else {
        return;
    };
    let auth = function
        .variable("IDEMPOTENCY_POSTGRES_AUTH")
        .unwrap_or("password");
    let (action, resource, is_allowed) = if auth == "iam" {
        let user = Address::of(function).user;
        let is_allowed = policies.may_allow_name("rds-db:connect", user);
        (
            "rds-db:connect",
            format!("the database user {user}"),
            is_allowed,
        )
    } else if auth.starts_with("arn:") {
        // A partial ARN lacks the hyphen and the six characters that Secrets Manager adds.
        let action = "secretsmanager:GetSecretValue";
        let whole = format!("{auth}-AbCdEf");
        let is_allowed = [auth, &whole]
            .iter()
            .any(|arn| policies.may_allow(action, arn));
        (action, auth.to_owned(), is_allowed)
    } else {
        return;
    };
    if !is_allowed {
        deny(action, &resource, consequence, findings);
    }
}

fn missing(function: &Deployed, needed: Vec<Needed<'_>>, findings: &mut Findings) {
    let Some(policies) = &function.policies else {
        return;
    };
    for (action, resource, consequence) in needed {
        if !policies.may_allow(action, &resource) {
            deny(action, &resource, consequence, findings);
        }
    }
}

fn deny(action: &str, resource: &str, consequence: &'static str, findings: &mut Findings) {
    findings.add(
        Check::Permissions,
        format!("no policy allows {action} on {resource}"),
        consequence,
        format!("allow {action} on {resource} in a policy of the role"),
    );
}
