//! An SQS without messages: answers the consumer's calls, and remembers them.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_config::retry::RetryConfig;
use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

pub const DEAD_LETTER_QUEUE_ARN: &str = "arn:aws:sqs:eu-central-1:123456789012:orders-dead";

/// One request: its operation, the region it was signed for, and its body.
#[derive(Clone, Debug)]
pub struct Call {
    pub operation: String,
    pub region: String,
    pub body: Value,
}

/// Behaviour other than an ordinary response.
#[derive(Clone, Copy, Debug, Default)]
pub enum SqsBehaviour {
    #[default]
    Willing,
    /// Denies every call.
    Denying,
    /// Fails the first entry of each batch.
    FailingFirst,
    /// Throttles the first entry of each batch, with this code.
    ThrottlingFirst(&'static str),
    /// Refuses the first entry of each batch for its contents.
    RefusingFirst,
    /// Refuses each call whose body has this text, as SQS does for an invalid queue URL.
    Invalid(&'static str),
    /// Refuses the signature of the first calls of each operation: so many.
    RefusingSignature(usize),
    /// Does not execute the call, and sends no response for a minute.
    Hanging,
    /// Executes the call, and sends no response for a minute.
    Silent,
    /// Executes the call, and sends the response when the behaviour has changed.
    Held,
    /// Executes the call, and closes the connection without a response.
    Cut,
    /// Executes the call, and returns a 200 that names no entry.
    Empty,
    /// Executes the call, and names all entries but the last.
    Forgetful,
}

pub struct Sqs {
    desk: Arc<SqsState>,
    endpoint: String,
}

struct SqsState {
    behaviour: Mutex<SqsBehaviour>,
    /// Behaviour by operation or by queue URL.
    moods: Mutex<HashMap<&'static str, SqsBehaviour>>,
    /// Response to `GetQueueAttributes`.
    attributes: Mutex<Value>,
    changed: Notify,
    calls: watch::Sender<Vec<Call>>,
    /// Executed entries of `SendMessageBatch`, by queue URL.
    sent: Mutex<Vec<(String, Value)>>,
    moving: Mutex<Moving>,
}

/// The messages of a dead-letter queue, and SQS's own move of them, which goes on when somebody reads its progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moving {
    /// Messages that no receiver hides.
    pub visible: usize,
    pub hidden: usize,
    /// Number of messages that move between two reads.
    pub at_a_time: usize,
    /// Whether a moved message fails again at once.
    pub comes_back: bool,
    pub moved: usize,
    /// Status of the newest move.
    pub status: Option<&'static str>,
    /// How many reads after a start still name the move before it.
    pub late: usize,
    pub started: u64,
}

impl Moving {
    /// Executes one of the three actions. `None` if SQS refuses it.
    fn execute(&mut self, operation: &str, body: &Value) -> Option<Value> {
        let is_running = self.status == Some("RUNNING");
        match operation {
            "StartMessageMoveTask" => {
                assert!(
                    body["DestinationArn"].is_string(),
                    "direct copies have no other way back"
                );
                if is_running {
                    return None;
                }
                (self.status, self.moved, self.started) = (Some("RUNNING"), 0, self.started + 1);
                Some(json!({"TaskHandle": "task"}))
            }
            "ListMessageMoveTasks" if is_running && self.late > 0 => {
                self.late -= 1;
                let before = json!({
                    "Status": "COMPLETED",
                    "ApproximateNumberOfMessagesMoved": 7,
                    "StartedTimestamp": self.started - 1,
                });
                Some(json!({"Results": [before]}))
            }
            "ListMessageMoveTasks" => {
                if is_running {
                    let moved = self.at_a_time.min(self.visible);
                    self.moved += moved;
                    self.visible -= if self.comes_back { 0 } else { moved };
                    self.status = (self.visible > 0)
                        .then_some("RUNNING")
                        .or(Some("COMPLETED"));
                }
                let task = self.status.map(|status| {
                    let handle = (status == "RUNNING").then_some("task");
                    json!({
                        "Status": status,
                        "TaskHandle": handle,
                        "ApproximateNumberOfMessagesMoved": self.moved,
                        "StartedTimestamp": self.started,
                        "SourceArn": body["SourceArn"],
                    })
                });
                Some(json!({"Results": Vec::from_iter(task)}))
            }
            _ => {
                assert_eq!(body["TaskHandle"], "task");
                self.status = is_running.then_some("CANCELLED").or(self.status);
                is_running.then(|| json!({"ApproximateNumberOfMessagesMoved": self.moved}))
            }
        }
    }
}

impl SqsState {
    fn count(&self, operation: &str) -> usize {
        let calls = self.calls.borrow();
        calls.iter().filter(|c| c.operation == operation).count()
    }
}

impl Sqs {
    pub async fn start(behaviour: SqsBehaviour) -> Self {
        let desk = Arc::new(SqsState {
            behaviour: Mutex::new(behaviour),
            moods: Mutex::default(),
            attributes: Mutex::new(attributes(Some(DEAD_LETTER_QUEUE_ARN), 4 * 24 * 3600)),
            changed: Notify::new(),
            calls: watch::Sender::default(),
            sent: Mutex::default(),
            moving: Mutex::default(),
        });
        let app = Router::new().fallback(answer).with_state(desk.clone());
        let endpoint = format!("http://{}", super::serve(app).await);
        Self { desk, endpoint }
    }

    /// From the next call on.
    pub fn turn(&self, behaviour: SqsBehaviour) {
        *self.desk.behaviour.lock().unwrap() = behaviour;
        self.desk.changed.notify_waiters();
    }

    /// From the next call of `operation` on, or from the next call for the queue with this URL on.
    pub fn turn_for(&self, operation: &'static str, behaviour: SqsBehaviour) {
        self.desk.moods.lock().unwrap().insert(operation, behaviour);
    }

    /// Every queue has this dead-letter queue, or no dead-letter queue, and keeps messages for so
    /// many seconds.
    pub fn has(&self, dead_letter_queue: Option<&str>, retention: u64) {
        *self.desk.attributes.lock().unwrap() = attributes(dead_letter_queue, retention);
    }

    /// Every queue moves a message after so many receives, and has this visibility timeout in seconds.
    pub fn receives(&self, max_receives: u32, visibility_timeout: u32) {
        let policy = json!({
            "deadLetterTargetArn": DEAD_LETTER_QUEUE_ARN, "maxReceiveCount": max_receives,
        });
        let mut attributes = self.desk.attributes.lock().unwrap();
        attributes["Attributes"]["RedrivePolicy"] = json!(policy.to_string());
        attributes["Attributes"]["VisibilityTimeout"] = json!(visibility_timeout.to_string());
    }

    /// Every queue takes messages of so many bytes.
    pub fn takes(&self, max_bytes: usize) {
        let mut attributes = self.desk.attributes.lock().unwrap();
        attributes["Attributes"]["MaximumMessageSize"] = json!(max_bytes.to_string());
    }

    /// Every queue has these messages.
    pub fn holds(&self, moving: Moving) {
        *self.desk.moving.lock().unwrap() = moving;
    }

    pub fn moving(&self) -> Moving {
        *self.desk.moving.lock().unwrap()
    }

    /// For `AWS_ENDPOINT_URL_SQS`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn client(&self) -> aws_sdk_sqs::Client {
        client(&self.endpoint)
    }

    pub fn calls(&self, operation: &str) -> Vec<Call> {
        let mut calls = self.desk.calls.borrow().clone();
        calls.retain(|call| call.operation == operation);
        calls
    }

    /// Waits until `operation` was called `n` times.
    pub async fn called(&self, operation: &str, n: usize) {
        let mut calls = self.desk.calls.subscribe();
        let of = |calls: &Vec<Call>| calls.iter().filter(|c| c.operation == operation).count();
        let enough = timeout(super::PATIENCE, calls.wait_for(|calls| of(calls) >= n)).await;
        assert!(enough.is_ok(), "no call number {n} of {operation}");
    }

    /// Messages that were sent to a queue, in order; a deduplication id counts once.
    pub fn sent_to(&self, queue: &str) -> Vec<Value> {
        let sent = self.desk.sent.lock().unwrap();
        let of_queue = sent.iter().filter(|(url, _)| url.ends_with(queue));
        let mut known = HashSet::new();
        let fresh = |entry: &Value| match entry["MessageDeduplicationId"].as_str() {
            Some(id) => known.insert(id.to_owned()),
            None => true,
        };
        of_queue
            .map(|(_, entry)| entry.clone())
            .filter(fresh)
            .collect()
    }

    /// The same, with repetitions.
    pub fn each_sent_to(&self, queue: &str) -> Vec<Value> {
        let sent = self.desk.sent.lock().unwrap();
        let of_queue = sent.iter().filter(|(url, _)| url.ends_with(queue));
        of_queue.map(|(_, entry)| entry.clone()).collect()
    }

    /// Receipt handles and seconds, over all calls.
    pub fn changes(&self) -> Vec<(String, u64)> {
        let calls = self.calls("ChangeMessageVisibilityBatch");
        let entries = calls
            .iter()
            .flat_map(|call| call.body["Entries"].as_array().unwrap());
        let change = |entry: &Value| {
            let handle = entry["ReceiptHandle"].as_str().unwrap().to_owned();
            (handle, entry["VisibilityTimeout"].as_u64().unwrap())
        };
        entries.map(change).collect()
    }
}

fn attributes(dead_letter_queue: Option<&str>, retention: u64) -> Value {
    let mut attributes = json!({"MessageRetentionPeriod": retention.to_string()});
    if let Some(arn) = dead_letter_queue {
        let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 8});
        attributes["RedrivePolicy"] = json!(policy.to_string());
    }
    json!({ "Attributes": attributes })
}

/// A client as the consumer has it: with the retries of [`sqs_once::aws::config`].
pub fn client(endpoint: &str) -> aws_sdk_sqs::Client {
    let retries = RetryConfig::standard()
        .with_max_attempts(4)
        .with_initial_backoff(Duration::from_millis(50))
        .with_max_backoff(Duration::from_millis(500));
    let config = super::sdk_config(endpoint).to_builder();
    aws_sdk_sqs::Client::new(&config.retry_config(retries).build())
}

async fn answer(State(desk): State<Arc<SqsState>>, headers: HeaderMap, body: Bytes) -> Response {
    let header = |name| headers.get(name).unwrap().to_str().unwrap();
    let operation = header("x-amz-target").replace("AmazonSQS.", "");
    let body: Value = serde_json::from_slice(&body).unwrap();
    // "... Credential=test/20261121/eu-central-1/sqs/aws4_request, ..."
    let region = header("authorization").split('/').nth(2).unwrap();
    let call = Call {
        operation: operation.clone(),
        region: region.to_owned(),
        body: body.clone(),
    };
    desk.calls.send_modify(|calls| calls.push(call));
    let changed = desk.changed.notified();
    let mood = |of: &str| desk.moods.lock().unwrap().get(of).copied();
    let of_queue = || mood(body["QueueUrl"].as_str()?);
    let mood = mood(&operation).or_else(of_queue);
    let behaviour = mood.unwrap_or(*desk.behaviour.lock().unwrap());
    let entries = body["Entries"].as_array().cloned().unwrap_or_default();
    let mut successful = entries.clone();
    let mut failed = Vec::new();
    match behaviour {
        SqsBehaviour::Denying => {
            let error =
                json!({"__type": "com.amazonaws.sqs#AccessDeniedException", "message": "no"});
            return (StatusCode::BAD_REQUEST, Json(error)).into_response();
        }
        SqsBehaviour::Invalid(text) if body.to_string().contains(text) => {
            let error =
                json!({"__type": "com.amazonaws.sqs#InvalidParameterValue", "message": "no"});
            return (StatusCode::BAD_REQUEST, Json(error)).into_response();
        }
        SqsBehaviour::RefusingSignature(first) if desk.count(&operation) <= first => {
            let error =
                json!({"__type": "com.amazonaws.sqs#InvalidSignatureException", "message": "no"});
            return (StatusCode::FORBIDDEN, Json(error)).into_response();
        }
        SqsBehaviour::Hanging => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        SqsBehaviour::FailingFirst if !entries.is_empty() => {
            let id = successful.remove(0)["Id"].clone();
            failed.push(json!({"Id": id, "Code": "ReceiptHandleIsInvalid", "SenderFault": true}));
        }
        SqsBehaviour::ThrottlingFirst(code) if !entries.is_empty() => {
            let id = successful.remove(0)["Id"].clone();
            failed.push(json!({"Id": id, "Code": code, "SenderFault": true}));
        }
        SqsBehaviour::RefusingFirst if !entries.is_empty() => {
            let id = successful.remove(0)["Id"].clone();
            failed.push(json!({"Id": id, "Code": "InvalidMessageContents", "SenderFault": true}));
        }
        _ => {}
    }
    let executed = operation
        .contains("MessageMoveTask")
        .then(|| desk.moving.lock().unwrap().execute(&operation, &body));
    if operation == "SendMessageBatch" {
        let url = body["QueueUrl"].as_str().unwrap();
        let carried_out = successful
            .iter()
            .map(|entry| (url.to_owned(), entry.clone()));
        desk.sent.lock().unwrap().extend(carried_out);
    }
    match behaviour {
        SqsBehaviour::Silent => tokio::time::sleep(Duration::from_secs(60)).await,
        SqsBehaviour::Held => changed.await,
        SqsBehaviour::Cut => return super::faults::cut(),
        SqsBehaviour::Empty => successful.clear(),
        SqsBehaviour::Forgetful => drop(successful.pop()),
        _ => {}
    }
    let confirmed =
        |entry: &Value| json!({"Id": entry["Id"], "MessageId": "copy", "MD5OfMessageBody": "0"});
    let answer = match operation.as_str() {
        "GetQueueUrl" => {
            let text = |name: &str| body[name].as_str().unwrap();
            let (account, name) = (text("QueueOwnerAWSAccountId"), text("QueueName"));
            json!({"QueueUrl": format!("https://sqs.example/{account}/{name}")})
        }
        "GetQueueAttributes" => {
            let mut answer = desk.attributes.lock().unwrap().clone();
            let name = body["QueueUrl"].as_str().unwrap().rsplit('/').next();
            let moving = desk.moving.lock().unwrap();
            let attributes = &mut answer["Attributes"];
            attributes["QueueArn"] =
                json!(DEAD_LETTER_QUEUE_ARN.replace("orders-dead", name.unwrap()));
            attributes["ApproximateNumberOfMessages"] = json!(moving.visible.to_string());
            attributes["ApproximateNumberOfMessagesNotVisible"] = json!(moving.hidden.to_string());
            answer
        }
        operation if operation.contains("MessageMoveTask") => match executed.flatten() {
            Some(answer) => answer,
            None => {
                let error =
                    json!({"__type": "com.amazonaws.sqs#InvalidParameterValue", "message": "no"});
                return (StatusCode::BAD_REQUEST, Json(error)).into_response();
            }
        },
        _ => json!({
            "Successful": successful.iter().map(confirmed).collect::<Vec<_>>(),
            "Failed": failed,
        }),
    };
    Json(answer).into_response()
}
