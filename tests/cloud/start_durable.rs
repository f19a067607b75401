//! `examples/start_durable.rs`, with a Lambda that starts executions as AWS documents it: *AWS Lambda
//! Developer Guide*, "Idempotency" of durable functions. No emulator recognizes a name.

#[path = "../../examples/start_durable.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has its own main")]
mod example;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_config::retry::RetryConfig;
use aws_sdk_lambda::Client;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, Response},
    routing::post,
};
use regex_lite::Regex;
use serde_json::{Value, json};
use sqs_once::{Consumer, Handler, Once, SettingsError, store::AnyStore};
use support::{
    dynamo::{Dynamo, text},
    event::{batch, record},
    faults::cut,
    serve,
    template::read,
};

use super::examples::{permanent, process, rejection, sample, settings};

const FUNCTION: &str = "arn:aws:lambda:eu-central-1:123456789012:function:fulfil:live";
const ORDER: &str = "ord-2026-000071";
/// The SHA-256 of `orders#ord-2026-000071`.
const NAME: &str = "712592113bb17406535acc1a1ffcb61d2d2bdec22c6dc9bf2f86bf9b9a955a27";

/// Fate of one start.
enum Fault {
    /// Lambda starts the execution, and the connection breaks before the response.
    AnswerLost,
    /// Status and error code. Lambda starts nothing.
    Error(u16, &'static str),
    /// The function runs, and has no durable configuration.
    NotDurable,
}

#[derive(Default)]
struct Lambda {
    /// Name and payload of each start, whatever came of it.
    starts: Mutex<Vec<(String, Value)>>,
    /// Payload of each execution, by its name.
    executions: Mutex<BTreeMap<String, Bytes>>,
    next: Mutex<VecDeque<Fault>>,
}

impl Lambda {
    async fn start() -> (Arc<Self>, Client) {
        let lambda = Arc::new(Self::default());
        let invoke = "/2015-03-31/functions/{function}/invocations";
        let app = Router::new().route(invoke, post(invoked));
        let endpoint = format!("http://{}", serve(app.with_state(lambda.clone())).await);
        let config = support::sdk_config(&endpoint).into_builder();
        let config = config.retry_config(RetryConfig::disabled()).build();
        (lambda, Client::new(&config))
    }

    fn next(&self, fault: Fault) {
        self.next.lock().unwrap().push_back(fault);
    }

    fn names(&self) -> Vec<String> {
        let starts = self.starts.lock().unwrap();
        starts.iter().map(|(name, _)| name.clone()).collect()
    }

    fn executions(&self) -> usize {
        self.executions.lock().unwrap().len()
    }
}

fn arn(name: &str) -> String {
    format!("{FUNCTION}/durable-execution/{name}/0a1b2c3d")
}

fn error(status: u16, code: &str) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("x-amzn-errortype", code)
        .body(
            json!({"Type": "User", "Message": "scripted"})
                .to_string()
                .into(),
        )
        .unwrap()
}

async fn invoked(
    State(lambda): State<Arc<Lambda>>,
    Path(function): Path<String>,
    headers: HeaderMap,
    payload: Bytes,
) -> Response<Body> {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!(function, FUNCTION);
    assert_eq!(header("x-amz-invocation-type"), "Event");
    let name = header("x-amz-durable-execution-name");
    let order = serde_json::from_slice(&payload).unwrap();
    lambda.starts.lock().unwrap().push((name.clone(), order));
    let fault = lambda.next.lock().unwrap().pop_front();
    match fault {
        Some(Fault::Error(status, code)) => return error(status, code),
        Some(Fault::NotDurable) => {
            return Response::builder().status(202).body(Body::empty()).unwrap();
        }
        Some(Fault::AnswerLost) | None => {}
    }
    let mut executions = lambda.executions.lock().unwrap();
    if *executions.entry(name.clone()).or_insert(payload.clone()) != payload {
        return error(409, "DurableExecutionAlreadyStartedException");
    }
    if fault.is_some() {
        return cut();
    }
    Response::builder()
        .status(202)
        .header("X-Amz-Durable-Execution-Arn", arn(&name))
        .body(Body::empty())
        .unwrap()
}

async fn consumer(
    dynamo: &Dynamo,
    records: &str,
    lambda: Client,
) -> Arc<Consumer<Once<AnyStore>, impl Handler<Output = String> + use<>>> {
    dynamo.create_table(records).await;
    let variables = [
        ("IDEMPOTENCY_TABLE_NAME", records),
        ("DURABLE_FUNCTION", FUNCTION),
    ];
    let consumer = example::consumer(settings(dynamo, variables), lambda);
    Arc::new(consumer.await.unwrap())
}

/// Lets the clock pass the time at which a failed attempt ended its lease.
async fn lease_has_ended() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// Status and stored output of the order's record.
async fn recorded(dynamo: &Dynamo, records: &str) -> (String, Value) {
    let key = format!("orders#{ORDER}");
    let record = dynamo.record(records, &key).await.unwrap();
    let result = serde_json::from_str(text(&record, "result")).unwrap();
    (text(&record, "status").to_owned(), result)
}

fn order() -> Value {
    json!({"orderId": ORDER, "customerId": "cus-0071", "products": {"cup": 6}})
}

fn event(order: &Value) -> Value {
    batch([record("m-1", order)])
}

/// The response to the first start is lost, the second start finds the execution, and the third delivery
/// finds the record.
#[tokio::test]
async fn message_sent_three_times_starts_one_execution() {
    let (dynamo, (lambda, client)) = (Dynamo::start().await, Lambda::start().await);
    let consumer = consumer(&dynamo, "records", client).await;
    lambda.next(Fault::AnswerLost);
    for failed in [1, 0, 0] {
        assert_eq!(process(&consumer, event(&order())).await, failed);
        assert_eq!(lambda.executions(), 1);
        lease_has_ended().await;
    }
    assert_eq!(lambda.names(), [NAME, NAME]);
    assert!(
        lambda
            .starts
            .lock()
            .unwrap()
            .iter()
            .all(|(_, payload)| *payload == order())
    );
    let completed = ("COMPLETED".to_owned(), json!(arn(NAME)));
    assert_eq!(recorded(&dynamo, "records").await, completed);
}

#[tokio::test]
async fn sample_starts_an_execution_for_each_order() {
    let (dynamo, (lambda, client)) = (Dynamo::start().await, Lambda::start().await);
    let consumer = consumer(&dynamo, "records", client).await;
    for _ in 0..2 {
        assert_eq!(process(&consumer, sample("place-order")).await, 0);
        assert_eq!(lambda.names().len(), 2);
        assert_eq!(lambda.executions(), 2);
    }
    let name = Regex::new("^[a-zA-Z0-9_-]{1,64}$").unwrap();
    assert!(lambda.names().iter().all(|found| name.is_match(found)));
}

/// Lambda remembers the name longer than the table remembers the key.
#[tokio::test]
async fn order_without_record_gets_same_execution() {
    let (dynamo, (lambda, client)) = (Dynamo::start().await, Lambda::start().await);
    let first = consumer(&dynamo, "records", client.clone()).await;
    assert_eq!(process(&first, event(&order())).await, 0);
    let again = consumer(&dynamo, "emptied", client).await;
    // The same order, formatted differently.
    let text = format!(
        "{{ \"products\":\n{{\"cup\":6}}, \"customerId\":\"cus-0071\", \"orderId\":\"{ORDER}\"}}"
    );
    let formatted = batch([record("m-2", text.as_str())]);
    assert_eq!(process(&again, formatted).await, 0);
    assert_eq!(lambda.names(), [NAME, NAME]);
    assert_eq!(lambda.executions(), 1);
    assert_eq!(
        recorded(&dynamo, "emptied").await,
        recorded(&dynamo, "records").await
    );
}

#[tokio::test]
async fn changed_payload_under_known_name_fails_permanently() {
    let (dynamo, (lambda, client)) = (Dynamo::start().await, Lambda::start().await);
    let first = consumer(&dynamo, "records", client.clone()).await;
    assert_eq!(process(&first, event(&order())).await, 0);
    let again = consumer(&dynamo, "emptied", client).await;
    let mut changed = order();
    changed["products"]["cup"] = json!(7);
    let why = "this key has an execution with a different payload";
    assert_eq!(rejection(&again, &changed).await, permanent(why));
    assert_eq!(lambda.executions(), 1);
}

#[tokio::test]
async fn error_of_lambda_decides_outcome() {
    for (status, code, outcome) in [
        (403, "AccessDeniedException", "retryable_failure"),
        (404, "ResourceNotFoundException", "retryable_failure"),
        (413, "RequestTooLargeException", "permanent_failure"),
        (429, "TooManyRequestsException", "retryable_failure"),
        (500, "ServiceException", "retryable_failure"),
    ] {
        let (dynamo, (lambda, client)) = (Dynamo::start().await, Lambda::start().await);
        let consumer = consumer(&dynamo, "records", client).await;
        lambda.next(Fault::Error(status, code));
        let (found, detail) = rejection(&consumer, &order()).await;
        assert_eq!(found, outcome, "{code}: {detail}");
        if outcome == "retryable_failure" {
            assert!(detail.contains(code), "{detail}");
            lease_has_ended().await;
            assert_eq!(process(&consumer, event(&order())).await, 0, "{code}");
            assert_eq!(lambda.executions(), 1, "{code}");
        }
    }
}

/// A retry would run it once more.
#[tokio::test]
async fn function_without_executions_is_invoked_once() {
    let (dynamo, (lambda, client)) = (Dynamo::start().await, Lambda::start().await);
    let consumer = consumer(&dynamo, "records", client).await;
    lambda.next(Fault::NotDurable);
    let why = "the function was invoked, and is not durable";
    assert_eq!(rejection(&consumer, &order()).await, permanent(why));
    assert_eq!(process(&consumer, event(&order())).await, 1);
    assert_eq!(lambda.names(), [NAME]);
}

async fn read_settings(function: &str) -> Result<(), SettingsError> {
    let (dynamo, (_, client)) = (Dynamo::start().await, Lambda::start().await);
    let variables = [
        ("IDEMPOTENCY_TABLE_NAME", "records"),
        ("DURABLE_FUNCTION", function),
    ];
    let settings = settings(&dynamo, variables).warm_up(false);
    example::consumer(settings, client).await.map(drop)
}

#[tokio::test]
async fn function_needs_a_version_or_alias() {
    let template = read("examples/start_durable.template.yaml");
    let pattern = &template["Parameters"]["DurableFunctionArn"]["AllowedPattern"];
    let pattern = Regex::new(pattern.as_str().unwrap()).unwrap();
    let unqualified = FUNCTION.strip_suffix(":live").unwrap();
    for (function, accepted) in [
        (FUNCTION, true),
        (&*format!("{unqualified}:7"), true),
        (unqualified, false),
        (&*format!("{unqualified}:"), false),
    ] {
        assert_eq!(pattern.is_match(function), accepted, "{function}");
        assert_eq!(
            read_settings(function).await.is_ok(),
            accepted,
            "{function}"
        );
    }
    // Without the ARN that a policy needs, Lambda takes names too.
    assert!(read_settings("fulfil:live").await.is_ok());
    let error = read_settings("fulfil").await.unwrap_err();
    assert!(error.to_string().contains("DURABLE_FUNCTION"), "{error}");
}
