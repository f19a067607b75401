//! The programs of crates/sqs-once/examples, as their users would test them.

macro_rules! programs {
    ($($name:ident $path:literal)*) => {
        $(
            #[path = $path]
            #[allow(dead_code, unreachable_pub, reason = "an example has its own main")]
            mod $name;
        )*
    };
}

programs! {
    existing_main "../../crates/sqs-once/examples/existing_main.rs"
    key_in_code "../../crates/sqs-once/examples/key_in_code.rs"
    middleware "../../crates/sqs-once/examples/middleware.rs"
    own_body "../../crates/sqs-once/examples/own_body.rs"
    own_errors "../../crates/sqs-once/examples/own_errors.rs"
    shared_state "../../crates/sqs-once/examples/shared_state.rs"
    start_workflow "../../crates/sqs-once/examples/start_workflow.rs"
    two_kinds "../../crates/sqs-once/examples/two_kinds.rs"
}

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_sdk_sfn::config::{Builder, retry::RetryConfig};
use axum::{http::StatusCode, routing::post};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use lambda_runtime::{Context, LambdaEvent};
use prost::Message as _;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Handler, Once, Outcome, Retry, handler_fn, handler_with,
    protocol::Namespace,
    store::MemoryStore,
    testing::{DryRun, Message, attempt, event, output, settings},
};

/// A consumer of `handler` in memory.
fn in_memory<H: Handler<Output: serde::Serialize>>(handler: H) -> Consumer<Once<MemoryStore>, H>
where
    Once<MemoryStore>: sqs_once::Mode<H::Output>,
{
    let once = Once::new(MemoryStore::default());
    Consumer::without_aws(once, Namespace::new("test").unwrap(), handler)
}

#[tokio::test]
async fn existing_main_answers_its_invocations() {
    let charged = Arc::new(Mutex::new(0));
    let counting = Arc::clone(&charged);
    let consumer = &in_memory(handler_fn(move |order, attempt| {
        *counting.lock().unwrap() += 1;
        existing_main::charge(order, attempt)
    }));
    consumer.check().unwrap();
    let orders = || {
        event([
            Message::new("m-1", &json!({ "id": "o-1" })),
            Message::text("m-2", "not an order"),
        ])
    };
    let mut context = Context::default();
    context.request_id = "r-1".into();
    let handle = lambda_runtime::service_fn(|event| consumer.invoke(event));
    for _ in 0..2 {
        use lambda_runtime::tower::ServiceExt as _;
        let answer = handle.oneshot(LambdaEvent::new(orders(), context.clone()));
        let failed = answer.await.unwrap().batch_item_failures;
        let failed: Vec<_> = failed
            .into_iter()
            .map(|failure| failure.item_identifier)
            .collect();
        assert_eq!(failed, ["m-2"]);
    }
    assert_eq!(*charged.lock().unwrap(), 1);
}

#[test]
fn other_subscriber_is_told_at_start() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&lines);
    let other = tracing_subscriber::fmt().with_writer(move || Lines(Arc::clone(&writer)));
    let consumer = in_memory(handler_fn(existing_main::charge));
    tracing::subscriber::with_default(other.finish(), || consumer.check()).unwrap();
    let lines = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
    assert!(
        lines.contains("add `sqs_once::telemetry::layer()`"),
        "{lines}"
    );
}

struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn handler_knows_the_request_of_its_invocation() {
    let seen = handler_fn(|(): (), attempt: Attempt| async move {
        let left = attempt.time_left();
        assert!(
            left > Duration::from_secs(50) && left < Duration::from_secs(60),
            "{left:?}"
        );
        assert_eq!(attempt.delivery().request_id.as_deref(), Some("r-1"));
        Ok::<_, sqs_once::Failure>(())
    });
    let consumer = in_memory(seen);
    let mut context = Context::default();
    context.request_id = "r-1".into();
    let end = sqs_once::protocol::Timestamp::now() + Duration::from_secs(60);
    context.deadline = end.as_millis();
    let message = event([Message::new("m-1", &())]);
    let answer = consumer.invoke(LambdaEvent::new(message, context)).await;
    assert!(answer.unwrap().batch_item_failures.is_empty());
}

#[tokio::test]
async fn state_is_shared_by_reference_or_by_clone() {
    use shared_state::{State, borrowing, capturing};

    let state = || State {
        cents: HashMap::from([("book".to_owned(), 1250)]),
    };
    let order = |id, product| Message::new(id, &json!({ "product": product, "pieces": 2 }));
    let dry_run = DryRun::new();
    let priced = dry_run.run(&borrowing(state()), order("m-1", "book")).await;
    assert_eq!(output(&priced), Some(2500));
    let handler = capturing(Arc::new(state()));
    let priced = dry_run.run(&handler, order("m-2", "book")).await;
    assert_eq!(output(&priced), Some(2500));
    let unknown = dry_run.run(&handler, order("m-3", "pen")).await;
    assert!(matches!(unknown, Outcome::PermanentFailure(_)), "{unknown}");
}

#[tokio::test]
async fn key_in_code_names_the_operation() {
    let (dry_run, consumer) = (
        DryRun::new(),
        key_in_code::consumer(settings(&[])).await.unwrap(),
    );
    let order = |message, tenant, order| {
        let order = json!({ "tenant": tenant, "orderId": order, "cents": 7, "note": "x" });
        Message::new(message, &order)
    };
    let first = dry_run.run_in(&consumer, order("m-1", "acme", "o-1")).await;
    assert!(matches!(first, Outcome::Completed(_)), "{first}");
    // Fails when a member of the key is renamed.
    let sent_again = dry_run.run_in(&consumer, order("m-2", "acme", "o-1")).await;
    assert!(matches!(sent_again, Outcome::Duplicate(_)), "{sent_again}");
    let of_other_tenant = dry_run.run_in(&consumer, order("m-3", "emca", "o-1")).await;
    assert!(
        matches!(of_other_tenant, Outcome::Completed(_)),
        "{of_other_tenant}"
    );
    let pointers =
        in_memory(handler_fn(key_in_code::charge)).key("body:/tenant,/orderId".parse().unwrap());
    let same_key = dry_run.run_in(&pointers, order("m-4", "acme", "o-1")).await;
    assert!(matches!(same_key, Outcome::Duplicate(_)), "{same_key}");
    let without = dry_run
        .run_in(&consumer, Message::new("m-5", &json!({ "tenant": "acme" })))
        .await;
    let Outcome::Invalid(why) = without else {
        panic!("{without}");
    };
    assert!(why.contains("missing field `orderId`"), "{why}");
}

#[tokio::test]
async fn own_error_decides_about_the_next_attempt() {
    let (dry_run, handler) = (DryRun::new(), handler_fn(own_errors::charge));
    let mut outcomes = Vec::new();
    for (cents, card) in [
        (7, "4242"),
        (0, "4242"),
        (7, "expired"),
        (7, "busy"),
        (7, "x"),
    ] {
        let message = Message::new(
            format!("{cents}{card}"),
            &json!({ "cents": cents, "card": card }),
        );
        outcomes.push(dry_run.run(&handler, message).await);
    }
    let names: Vec<_> = outcomes.iter().map(Outcome::name).collect();
    let failed = ["permanent_failure"; 2];
    let retried = ["retryable_failure"; 2];
    assert_eq!(names, [&["completed"][..], &failed, &retried].concat());
    let retries: Vec<_> = outcomes.iter().map(Outcome::retry).collect();
    let minute = Retry::BackoffAtLeast(Duration::from_secs(60));
    assert_eq!(
        retries,
        [
            Retry::Never,
            Retry::Never,
            Retry::Never,
            minute,
            Retry::Backoff
        ]
    );
    let text = outcomes[4].to_string();
    assert!(text.contains("other signs than digits"), "{text}");
}

#[tokio::test]
async fn own_body_is_decoded_for_key_and_handler() {
    let consumer = in_memory(handler_fn(own_body::note)).key(own_body::key());
    let moved = own_body::StockMoved {
        movement_id: "v-1".into(),
        pieces: -3,
    };
    let body = BASE64_STANDARD.encode(moved.encode_to_vec());
    let dry_run = DryRun::new();
    let first = dry_run.run_in(&consumer, Message::text("m-1", &body)).await;
    assert_eq!(output(&first), Some(-3));
    let again = dry_run.run_in(&consumer, Message::text("m-2", &body)).await;
    assert!(matches!(again, Outcome::Duplicate(_)), "{again}");
    let other = dry_run
        .run_in(&consumer, Message::text("m-3", "not base64!"))
        .await;
    assert!(
        other.to_string().contains("the body is not base64"),
        "{other}"
    );
}

#[tokio::test]
async fn kind_of_message_is_in_its_attribute() {
    let (dry_run, handler) = (DryRun::new(), handler_fn(two_kinds::tell));
    let shipped = Message::new("m-1", &json!({ "order": "o-1", "parcel": "p-1" }));
    let told = dry_run
        .run(
            &handler,
            shipped.clone().attribute("eventType", "order.shipped"),
        )
        .await;
    assert_eq!(output::<String>(&told).as_deref(), Some("o-1 is in p-1"));
    let unknown = dry_run
        .run(&handler, shipped.attribute("eventType", "order.lost"))
        .await;
    assert!(matches!(unknown, Outcome::Invalid(_)), "{unknown}");
    let text =
        Message::new("m-2", &json!({ "order": 4242 })).attribute("eventType", "order.placed");
    let wrong = dry_run.run(&handler, text).await.to_string();
    assert!(!wrong.contains("4242"), "{wrong}");
}

#[tokio::test(start_paused = true)]
async fn layer_limits_the_time_of_a_message() {
    let handler = middleware::handler();
    let order = |cents| serde_json::from_value(json!({ "cents": cents })).unwrap();
    let charged = handler.handle(order(7), attempt("o-1").unwrap()).await;
    assert_eq!(charged.unwrap(), 7);
    // The kind of a failure passes through the layers.
    let refusing = handler_fn(async |(): (), _: Attempt| {
        Err::<u32, _>(sqs_once::Failure::declined("the card was declined"))
    });
    let wrapping = tower::util::MapErrLayer::new(|error: sqs_once::HandlerError| {
        anyhow::Error::new(error)
            .context("of a layer")
            .into_boxed_dyn_error()
    });
    let refusing = refusing.layer(wrapping);
    let declined = refusing
        .handle((), attempt("o-3").unwrap())
        .await
        .unwrap_err();
    assert_eq!(declined.kind(), sqs_once::FailureKind::Declined);
    // A layer that never called the handler has had no effect.
    let closed = tower::filter::FilterLayer::new(|_: sqs_once::Call<()>| {
        Err::<sqs_once::Call<()>, _>(tower::BoxError::from("closed"))
    });
    let untouched = handler_fn(async |(): (), _: Attempt| Ok::<_, sqs_once::Failure>(()));
    let untouched = untouched.layer(closed);
    let refused = untouched
        .handle((), attempt("o-4").unwrap())
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), sqs_once::FailureKind::NoEffect);
    let timed_out = handler
        .handle(order(0), attempt("o-2").unwrap())
        .await
        .unwrap_err();
    assert_eq!(timed_out.kind(), sqs_once::FailureKind::Retryable);
}

const STATE_MACHINES: &str = "arn:aws:states:eu-west-1:123456789012:stateMachine";

/// The Step Functions that the example asks. It remembers names. The first answer of `StartExecution` is lost, and the workflow
/// that it started has ended when the next one is asked for.
#[derive(Default)]
struct StepFunctions {
    starts: u32,
    /// Name and input of each.
    executions: Vec<(String, Value)>,
}

impl StepFunctions {
    async fn serve(kind: &'static str) -> (Arc<Mutex<Self>>, aws_sdk_sfn::Client) {
        let workflows: Arc<Mutex<Self>> = Arc::default();
        let seen = Arc::clone(&workflows);
        let answer = async move |body: String| {
            let request: Value = serde_json::from_str(&body).unwrap();
            let mut seen = seen.lock().unwrap();
            match (request["name"].as_str(), request["executionArn"].as_str()) {
                (Some(name), _) => seen.start(name, &request["input"]),
                (_, Some(arn)) => (StatusCode::OK, seen.describe(arn)),
                (None, None) => {
                    let machine = json!({
                        "stateMachineArn": request["stateMachineArn"], "name": "orders", "definition": "{}",
                        "roleArn": "arn:aws:iam::123456789012:role/orders", "type": kind, "creationDate": 1.8e9,
                    });
                    (StatusCode::OK, machine.to_string())
                }
            }
        };
        let address = support::serve(axum::Router::new().route("/", post(answer))).await;
        let config = support::sdk_config(&format!("http://{address}"));
        let config = Builder::from(&config).retry_config(RetryConfig::disabled());
        (workflows, aws_sdk_sfn::Client::from_conf(config.build()))
    }

    fn describe(&self, arn: &str) -> String {
        let found = self.executions.iter().find(|(name, _)| arn.ends_with(name));
        json!({
            "executionArn": arn, "stateMachineArn": format!("{STATE_MACHINES}:orders"), "status": "SUCCEEDED",
            "startDate": 1.8e9, "input": found.unwrap().1,
        })
        .to_string()
    }

    fn start(&mut self, name: &str, input: &Value) -> (StatusCode, String) {
        self.starts += 1;
        if self.executions.iter().any(|(known, _)| known == name) {
            let exists = json!({ "__type": "ExecutionAlreadyExists", "message": "it exists" });
            return (StatusCode::BAD_REQUEST, exists.to_string());
        }
        self.executions.push((name.to_owned(), input.clone()));
        let arn = format!("arn:aws:states:eu-west-1:123456789012:execution:orders:{name}");
        let started = json!({ "executionArn": arn, "startDate": 1.8e9 }).to_string();
        match self.starts {
            1 => (StatusCode::SERVICE_UNAVAILABLE, "{}".to_owned()),
            _ => (StatusCode::OK, started),
        }
    }
}

#[tokio::test]
async fn dispatcher_starts_one_workflow_for_each_order() {
    for machine in ["orders", "orders:production"] {
        let (workflows, client) = StepFunctions::serve("STANDARD").await;
        let arn = format!("{STATE_MACHINES}:{machine}");
        let workflow = start_workflow::Workflow::new(client, &arn).unwrap();
        workflow.check().await.unwrap();
        let (dry_run, handler) = (DryRun::new(), handler_with(workflow, start_workflow::start));
        let order = |id: &str| Message::new(id, &json!({ "id": id }));
        let lost = dry_run.run(&handler, order("o-1")).await;
        assert_eq!(lost.name(), "retryable_failure", "{lost}");
        dry_run.interrupted();
        let found = dry_run.run(&handler, order("o-1")).await;
        let other = dry_run.run(&handler, order("o-2")).await;
        let again = dry_run.run(&handler, order("o-1")).await;
        assert_eq!(again.name(), "duplicate", "{again}");
        let workflows = workflows.lock().unwrap();
        let executions = workflows.executions.iter();
        let executions: Vec<_> = executions
            .map(|(name, _)| {
                Some(format!(
                    "arn:aws:states:eu-west-1:123456789012:execution:orders:{name}"
                ))
            })
            .collect();
        let outputs: [Option<String>; 2] = [found, other].map(|outcome| output(&outcome));
        assert_eq!(executions, outputs);
        assert_eq!(workflows.starts, 3);
    }
}

#[tokio::test]
async fn dispatcher_takes_standard_workflows_only() {
    let (_, client) = StepFunctions::serve("EXPRESS").await;
    let wrong = start_workflow::Workflow::new(client.clone(), "orders");
    assert!(wrong.is_err_and(|why| why.contains("must be the ARN of a state machine")));
    let workflow = start_workflow::Workflow::new(client, &format!("{STATE_MACHINES}:orders"));
    let refused = workflow.unwrap().check().await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "STATE_MACHINE_ARN: EXPRESS workflows don't start once"
    );
}

/// Step Functions may remember a name for longer than the record is kept.
#[tokio::test]
async fn execution_of_another_payload_is_no_success() {
    let (_, client) = StepFunctions::serve("STANDARD").await;
    let arn = format!("{STATE_MACHINES}:orders");
    let workflow = start_workflow::Workflow::new(client, &arn).unwrap();
    let handler = handler_with(workflow, start_workflow::start);
    let order = |cents: u32| Message::new("o-1", &json!({ "cents": cents }));
    let lost = DryRun::new().run(&handler, order(1)).await;
    assert_eq!(lost.name(), "retryable_failure", "{lost}");
    // Another dry run has no records.
    let corrected = DryRun::new().run(&handler, order(2)).await;
    assert_eq!(corrected.name(), "permanent_failure", "{corrected}");
    let same = DryRun::new().run(&handler, order(1)).await;
    assert_eq!(same.name(), "completed", "{same}");
}
