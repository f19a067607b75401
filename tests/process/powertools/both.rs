//! One table, and the two consumers that share it.
use std::{
    env,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_lambda_events::sqs::SqsEvent;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once,
    protocol::{AfterFailure, ClaimRequest, Key, Namespace, Owner, Record, Settlement, Timestamp},
    sqs::powertools,
    store::{AnyStore, Batched, ClaimResponse, DynamoStore, Layout, SettleResponse, Store},
};
use sqs_once_core::handler::History;
use support::{
    CONTEXT,
    dynamo::Dynamo,
    event::{batch, failed, record},
    prerequisite::skip_suite,
};
use tokio::process::Command;

/// Prefix of Powertools' key: function, module and function in it.
const PREFIX: &str = "payments.__main__.charge";

/// Handler on the side of sqs-once: obeys the message, and records the history it gets.
#[derive(Clone)]
struct Charge {
    declines: bool,
    ran: Arc<Mutex<Vec<History>>>,
}

impl Handler for Charge {
    type Message = Value;
    type Output = Value;

    async fn handle(&self, _order: Value, attempt: Attempt) -> Result<Value, Failure> {
        self.ran.lock().unwrap().push(attempt.history().clone());
        if self.declines {
            return Err(Failure::permanent("declined"));
        }
        Ok(ours())
    }
}

pub fn ours() -> Value {
    json!({"chargedBy": "rust", "é": [1.5, null]})
}

pub fn theirs() -> Value {
    json!({"chargedBy": "python", "é": [1.5, null]})
}

/// Result of a delivery to sqs-once.
pub struct Delivered {
    /// History given to the handler, if it ran.
    pub ran: Option<History>,
    pub acknowledged: bool,
}

/// One table, two consumers.
pub struct Both {
    dynamo: Dynamo,
    layout: Layout,
    /// True if this consumer sends every write as a group first.
    grouping: bool,
    pub prefix: &'static str,
    pub fingerprint: &'static str,
    /// Arguments of the Powertools store.
    pub layer: Value,
    pub config: Value,
    pub function: Value,
}

impl Both {
    pub async fn new(grouping: bool) -> Self {
        Self::with(&["id"], Layout::powertools(), grouping).await
    }

    pub async fn with(primary_key: &[&str], layout: Layout, grouping: bool) -> Self {
        let dynamo = Dynamo::start().await;
        dynamo.create_table_keyed("idempotency", primary_key).await;
        Self {
            dynamo,
            layout,
            grouping,
            prefix: PREFIX,
            fingerprint: "off",
            layer: json!({}),
            config: json!({}),
            function: json!({}),
        }
    }

    pub fn store(&self) -> AnyStore {
        let store = DynamoStore::new(self.dynamo.client(), "idempotency");
        let store = store.layout(self.layout.clone());
        match self.grouping {
            true => AnyStore::Batched(Batched::with_lone_calls(store)),
            false => AnyStore::DynamoDb(store),
        }
    }

    pub fn claim(&self, id: &str) -> ClaimRequest {
        let now = Timestamp::now();
        let namespace = Namespace::new(self.prefix).unwrap();
        let key = Key::new(&namespace, [powertools::hash(&json!(id)).as_str()]).unwrap();
        let lease_until = now + Duration::from_secs(60);
        let expires_at = now.as_secs() + 3600;
        let mut request =
            ClaimRequest::new(key, Owner::fresh(), "another", now, lease_until, expires_at);
        request.after_failure = AfterFailure::Replay;
        request
    }

    /// Record of an order, read by a claim that only an absent record admits.
    pub async fn kept(&self, id: &str) -> Record {
        let mut probe = self.claim(id);
        probe.now = Timestamp::default();
        match self.store().claim(&probe, &CONTEXT).await.unwrap() {
            ClaimResponse::ConditionFailed(record) => record,
            ClaimResponse::Applied { .. } => panic!("there was no record of {id}"),
        }
    }

    pub async fn settle(&self, claim: &ClaimRequest, wanted: Settlement) -> SettleResponse {
        let (store, fence) = (self.store(), claim.fence());
        store
            .settle(&fence, &wanted, claim.now, &CONTEXT)
            .await
            .unwrap()
    }

    pub async fn here(&self, order: &Value) -> Delivered {
        self.deliver(order, false).await
    }

    pub async fn declined_here(&self, order: &Value) -> Delivered {
        self.deliver(order, true).await
    }

    async fn deliver(&self, order: &Value, declines: bool) -> Delivered {
        let ran = Arc::new(Mutex::new(Vec::new()));
        let handler = Charge {
            declines,
            ran: ran.clone(),
        };
        let namespace = Namespace::new(self.prefix).unwrap();
        let consumer = Consumer::new(Once::new(self.store()), namespace, handler)
            .key("powertools:body:/orderId".parse().unwrap())
            .fingerprint(self.fingerprint.parse().unwrap());
        let event: SqsEvent = serde_json::from_value(batch([record("m-1", order)])).unwrap();
        let second = Duration::from_secs(1);
        let deadline = Deadline::after(Timestamp::now(), 20 * second, second);
        let response = Arc::new(consumer).process(event, deadline).await.unwrap();
        let ran = ran.lock().unwrap().pop();
        Delivered {
            ran,
            acknowledged: failed(&serde_json::to_value(response).unwrap()).is_empty(),
        }
    }

    pub async fn there(&self, order: &Value) -> Value {
        self.powertools(order, "return", Some(60_000)).await
    }

    /// Delivers to the function in `tests/process/powertools/worker.py`, with this behaviour and time left
    /// of its invocation.
    pub async fn powertools(&self, order: &Value, end: &str, remaining_ms: Option<u64>) -> Value {
        let told = json!({
            "endpoint": self.dynamo.endpoint(),
            "record": record("m-1", order),
            "end": end,
            "remaining_ms": remaining_ms,
            "layer": self.layer,
            "config": self.config,
            "function": self.function,
        });
        let output = Command::new(python())
            .arg(root().join("tests/process/powertools/worker.py"))
            .arg(told.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", "payments")
            .env("AWS_DEFAULT_REGION", support::REGION)
            .env("AWS_ACCESS_KEY_ID", support::ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", support::ACCESS_KEY)
            .env_remove("AWS_PROFILE")
            .env("NO_PROXY", "127.0.0.1")
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(3 * support::PATIENCE, output).await;
        let output = output.expect("Powertools answers in time").unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
            panic!(
                "tests/process/powertools/worker.py failed: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn python() -> PathBuf {
    let python = env::var_os("POWERTOOLS_PYTHON");
    let python = python.map_or_else(|| root().join(".venv/bin/python"), PathBuf::from);
    if !python.exists() {
        skip_suite(&format!(
            "there is no {}, a Python with Powertools for AWS Lambda (POWERTOOLS_PYTHON names another)",
            python.display()
        ));
    }
    python
}
