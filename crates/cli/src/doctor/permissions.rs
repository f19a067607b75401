//! Checks what a function's role may do, according to IAM's policy simulation.

use sqs_once::internal::entries;

use super::{
    Check, Findings,
    account::{Account, Function},
};

/// Actions on a resource that a role needs, and what happens without them.
pub(super) struct Needed {
    resource: String,
    actions: Vec<&'static str>,
    without: &'static str,
}

impl Needed {
    pub(super) fn new(
        resource: impl Into<String>,
        actions: impl Into<Vec<&'static str>>,
        without: &'static str,
    ) -> Self {
        Self {
            resource: resource.into(),
            actions: actions.into(),
            without,
        }
    }
}

const PUT: &str = "dynamodb:PutItem";
/// In inbox mode, a role that may put records can do without these actions.
const CLAIMS: [&str; 2] = ["dynamodb:UpdateItem", "dynamodb:GetItem"];

/// Returns the permissions that a consumer's claims need on the table of records.
pub(super) fn of_records(function: &Function, table: &str) -> Needed {
    let mut actions = vec![PUT, CLAIMS[0], CLAIMS[1]];
    if function.is_on("IDEMPOTENCY_BATCHED_WRITES") {
        actions.extend(["dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"]);
    }
    Needed::new(
        table,
        actions,
        "in claim mode messages fail, or each write takes a request",
    )
}

/// Returns the permissions that a consumer needs on the buckets for large bodies and outputs.
pub(super) fn of_buckets(function: &Function) -> Vec<Needed> {
    let partition = function.arn.split(':').nth(1).unwrap_or("aws");
    let arn = |name: &str| format!("arn:{partition}:s3:::{name}");
    let mut needed = Vec::new();
    let bodies = function.variable("CONSUMER_S3_BUCKETS").unwrap_or_default();
    for name in entries(bodies, "")
        .into_iter()
        .filter(|name| !name.is_empty())
    {
        let unread =
            "messages with a body in the bucket return until they reach the dead-letter queue";
        needed.push(Needed::new(
            arn(&format!("{name}/*")),
            ["s3:GetObject"],
            unread,
        ));
        let missing = "S3 denies access to a missing object, so its message is retried";
        needed.push(Needed::new(arn(name), ["s3:ListBucket"], missing));
    }
    if let Some(name) = function.variable("IDEMPOTENCY_RESULT_BUCKET") {
        let objects = arn(&format!("{name}/results/*"));
        let unread = "large outputs are not stored, and duplicates that need one are retried";
        needed.push(Needed::new(
            objects,
            ["s3:PutObject", "s3:GetObject"],
            unread,
        ));
        let lost = "S3 denies access to a lost output, so the error does not say that it is lost";
        needed.push(Needed::new(arn(name), ["s3:ListBucket"], lost));
    }
    needed
}

/// Returns the ARN of a target that the function names by its ARN or, for a queue, by its URL,
/// `https://sqs.REGION.amazonaws.com/ACCOUNT/NAME`.
pub(super) fn arn_of_target(function: &Function, target: &str) -> Option<String> {
    if target.starts_with("arn:") {
        return Some(target.to_owned());
    }
    let (_, address) = target.split_once("://")?;
    let parts: Vec<_> = address.split('/').collect();
    let [host, account, name] = *parts else {
        return None;
    };
    let of_function: Vec<_> = function.arn.split(':').collect();
    let ["arn", partition, "lambda", own_region, ..] = *of_function else {
        return None;
    };
    let region = match *host.split('.').collect::<Vec<_>>() {
        ["sqs", region, "amazonaws", ..] => region,
        _ => own_region,
    };
    Some(format!("arn:{partition}:sqs:{region}:{account}:{name}"))
}

/// Asks IAM whether the role may do everything that it needs to. If IAM doesn't answer, notes that the permissions were not
/// checked.
pub(super) async fn check(
    account: &Account,
    function: &Function,
    needed: Vec<Needed>,
    findings: &mut Findings,
) {
    for Needed {
        resource,
        actions,
        without,
    } in needed
    {
        let denied = match account.denied(&function.role, &resource, &actions).await {
            Ok(denied) => denied,
            Err(error) => {
                findings.skip(format!("its permissions: {error}"));
                return;
            }
        };
        let lacks = |action: &str| denied.iter().any(|(denied, _)| denied == action);
        // The function's variables don't say which mode it uses.
        if actions.contains(&PUT) && !lacks(PUT) && CLAIMS.iter().all(|action| lacks(action)) {
            findings.skip("the permissions of claim mode: the role may only put records, which is enough for the inbox mode");
            continue;
        }
        for (action, unknown) in &denied {
            if !unknown.is_empty() {
                let keys = unknown.join(", ");
                findings.skip(format!(
                    "{action} on {resource}: the policies depend on {keys}"
                ));
                continue;
            }
            findings.add(
                Check::Permissions,
                format!("the role may not do {action} on {resource}"),
                without,
                format!("allow {action} on {resource} in a policy of the role"),
            );
        }
    }
}
