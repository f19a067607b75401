//! An event source mapping: polls the queue, invokes execution environments of the release binary,
//! and deletes the messages not reported as failed. Also kills and freezes environments.

use std::{
    collections::HashSet,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use sqs_once::protocol::Timestamp;
use support::{
    event::{QUEUE_ARN, batch, received},
    runtime_api::{Answer, Env, of_message},
};
use tokio::{task::JoinSet, time::sleep};

use crate::chaos::{
    environment::{Environment, Slot},
    fate::{Fate, signal, survive},
    faults::Relay,
    ledger::{Death, End, Event, Invocation, Ledger, Worker},
    pace::{Machine, Pace},
    plan::Seed,
    queue::{NAME, Queue, Received},
};

/// Workers of the batches: environment variables of worker n at a pace.
pub(crate) type Settings = Arc<dyn Fn(Worker, Pace) -> Env + Send + Sync>;

pub(crate) struct Mapping {
    pub(crate) seed: Seed,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) relay: Arc<Relay>,
    pub(crate) settings: Settings,
    /// Number of invocations with an acknowledged message after which a worker meets its fate, at most.
    pub(crate) lifetime: u32,
    /// Number of concurrent invocations in one worker.
    pub(crate) at_once: usize,
    pub(crate) fifo: bool,
    pub(crate) hired: AtomicU32,
    /// The largest number of invocations that a worker had at the same time.
    pub(crate) most_at_once: AtomicUsize,
    /// Workers given up by Lambda that are not dead.
    pub(crate) zombies: Mutex<JoinSet<()>>,
}

impl Mapping {
    /// Runs until the queue is empty, in so many environments at the same time.
    pub(crate) async fn run(self: &Arc<Self>, environments: usize) {
        let mut slots = JoinSet::new();
        for _ in 0..environments {
            let mapping = Arc::clone(self);
            slots.spawn(async move { mapping.fill(&Slot::default()).await });
        }
        while let Some(ended) = slots.join_next().await {
            ended.unwrap();
        }
        let zombies = mem::take(&mut *self.zombies.lock().unwrap());
        zombies.join_all().await;
    }

    /// Polls for one environment after the other, with a poller for each concurrent invocation.
    async fn fill(self: &Arc<Self>, slot: &Slot) {
        join_all((0..self.at_once).map(|_| self.poll(slot))).await;
        if let Some(environment) = slot.clear().await {
            self.record_death(&environment, Death::RunEnded).await;
        }
    }

    async fn poll(self: &Arc<Self>, slot: &Slot) {
        while let Some(batch) = self.queue.receive().await {
            self.invoke(slot, batch).await;
            self.rest(slot).await;
        }
    }

    /// Some workers rest after their first invocation, and their connections to DynamoDB die.
    async fn rest(&self, slot: &Slot) {
        let Some(environment) = slot.environment().await else {
            return;
        };
        let worker = environment.worker;
        let rests = self.at_once == 1 && worker % 5 == 3;
        if rests && environment.invocations() == 1 {
            environment.rest(|| self.relay.disconnect(worker)).await;
        }
    }

    async fn cold_start(&self) -> Environment {
        let worker = self.hired.fetch_add(1, Ordering::Relaxed);
        let pace = self.machine.pace();
        self.ledger.note(Event::Started { worker, pace });
        Environment::start(worker, pace, (self.settings)(worker, pace), self.at_once).await
    }

    async fn invoke(self: &Arc<Self>, slot: &Slot, messages: Vec<Received>) {
        let (environment, invocation) = slot.begin(self.cold_start()).await;
        let worker = environment.worker;
        let rested = environment.has_rested();
        if rested {
            self.ledger.note(Event::Rested);
        }
        for received in &messages {
            self.ledger.note(Event::Delivered {
                delivery: received.delivery(),
                worker,
                invocation,
                at_ms: Timestamp::now().as_millis(),
            });
        }
        let fate = self.fate(&environment, invocation);
        let event = batch(messages.iter().map(|received| self.record(received)));
        let (answer, death) = tokio::select! {
            biased;
            ended = survive(&environment, event, rested, fate, &self.ledger) => ended,
            () = environment.gone() => (None, None),
        };
        let ids: Vec<_> = messages.iter().map(|r| &*r.message.id).collect();
        let failed = match &answer {
            Some(Answer::Response(response)) => failures(response, &ids).ok_or(End::BatchFailed),
            // The event source mapping takes all of them for failed.
            Some(Answer::Error(error)) if error["errorType"] == "StoreUnavailable" => {
                Ok(ids.iter().copied().collect())
            }
            Some(Answer::Error(_)) => Err(End::BatchFailed),
            Some(Answer::Exited | Answer::TimedOut) | None => Err(End::WorkerDied),
        };
        if let Some(death) = death {
            if death == Death::TimedOut {
                self.machine.is_slower_than(environment.pace);
            }
            if environment.give_up() {
                slot.clear().await;
                self.bury(&environment, death).await;
                environment.end_others();
            } else {
                environment.gone().await;
            }
        }
        if self.settle(&messages, &failed) {
            environment.bore_fruit();
        }
    }

    /// Ends the process, or has it thawed later.
    async fn bury(self: &Arc<Self>, environment: &Arc<Environment>, death: Death) {
        let worker = environment.worker;
        if death == Death::FrozenUntilTimeout && Fate::is_thawed(worker) {
            self.ledger.note(Event::Died { worker, death });
            let thaw_late = Arc::clone(self).thaw_late(Arc::clone(environment));
            self.zombies.lock().unwrap().spawn(thaw_late);
        } else {
            self.record_death(environment, death).await;
        }
    }

    /// Deletes the messages not reported as failed, if the response is readable. Returns whether there was one.
    fn settle(&self, batch: &[Received], failed: &Result<HashSet<&str>, End>) -> bool {
        let mut fruitful = false;
        for received in batch {
            let id = &*received.message.id;
            let end = match failed {
                Err(end) => *end,
                Ok(failed) if failed.contains(id) => End::ReportedFailed,
                Ok(_) => End::Acknowledged,
            };
            self.ledger.note(Event::Returned {
                delivery: received.delivery(),
                end,
            });
            if end == End::Acknowledged {
                self.queue.delete(id);
                fruitful = true;
            }
        }
        fruitful
    }

    /// Every worker meets its fate soon after some invocations that acknowledged messages. Counted by these, and not
    /// by all, kills take a bounded share of the receives on a machine of any speed.
    fn fate(&self, environment: &Environment, invocation: Invocation) -> Fate {
        let worker = environment.worker;
        let mut dice = self.seed.dice(("lifetime", worker));
        if environment.fruitful() >= dice.u32(..self.lifetime) {
            Fate::of(self.seed, worker, invocation)
        } else {
            Fate::Spared
        }
    }

    fn record(&self, delivery: &Received) -> Value {
        let message = &delivery.message;
        let mut record = received(&message.id, &message.body, delivery.receive_count);
        record["attributes"]["SentTimestamp"] = json!(message.sent_ms.to_string());
        let name = json!({"dataType": "String", "stringValue": message.id});
        record["messageAttributes"] = json!({ NAME: name });
        if self.fifo {
            record["eventSourceARN"] = json!(format!("{QUEUE_ARN}.fifo"));
            record["attributes"]["MessageGroupId"] = json!(message.group);
        }
        record
    }

    /// Thaws a frozen worker after its lease, before or after a redelivery to another worker, and
    /// lets it run until all its invocations have ended.
    async fn thaw_late(self: Arc<Self>, environment: Arc<Environment>) {
        let worker = environment.worker;
        let pause = self.seed.dice(("thaw", worker)).u64(200..2500);
        sleep(Duration::from_millis(pause)).await;
        self.ledger.note(Event::Thawed { worker });
        let lambda = &environment.lambda;
        signal(lambda.pid(), "-CONT");
        // At the start the process polls for as many as it runs at once, then after each response.
        let polls = self.at_once + environment.invocations() as usize;
        lambda.polls(polls).await;
        let exit = lambda.kill().await;
        self.read(&exit.output);
    }

    async fn record_death(&self, environment: &Environment, death: Death) {
        let worker = environment.worker;
        let at_once = environment.lambda.most_at_once();
        self.most_at_once.fetch_max(at_once, Ordering::Relaxed);
        let exit = environment.lambda.kill().await;
        self.ledger.note(Event::Died { worker, death });
        self.read(&exit.output);
    }

    /// Notes the log lines of a worker about its deliveries.
    fn read(&self, output: &[String]) {
        let lines = output.iter().filter(|line| line.starts_with('{'));
        for line in lines {
            // A kill may cut off the last line.
            let Ok(line) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            if of_message(&line) {
                let receive_count = line["receive_count"].as_u64().unwrap();
                self.ledger.note(Event::DeliveryLog {
                    delivery: (text("message_id"), receive_count.try_into().unwrap()),
                    outcome: text("outcome"),
                    detail: text("detail"),
                });
            }
        }
    }
}

/// Messages that a response reports as failed. Returns `None` if Lambda cannot read the response
/// and takes the whole batch for failed (Lambda Developer Guide, "Using Lambda with Amazon SQS",
/// "Success and failure conditions").
fn failures<'a>(response: &Value, batch: &[&'a str]) -> Option<HashSet<&'a str>> {
    let failures = match response {
        Value::Null => return Some(HashSet::new()),
        Value::Object(members) => match members.get("batchItemFailures") {
            None | Some(Value::Null) => return Some(HashSet::new()),
            Some(failures) => failures.as_array()?,
        },
        _ => return None,
    };
    let named = |failure: &Value| {
        let id = failure.get("itemIdentifier")?.as_str()?;
        batch.iter().copied().find(|known| *known == id)
    };
    failures.iter().map(named).collect()
}

#[test]
fn unreadable_response_fails_whole_batch() {
    let failed = |response: &str| {
        // Form in which the test's Runtime API keeps a response that is not JSON.
        let response = serde_json::from_str(response).unwrap_or(Value::String(response.into()));
        failures(&response, &["m-1", "m-2"]).map(|failed| failed.len())
    };
    for success in [
        "null",
        "{}",
        r#"{"batchItemFailures": null}"#,
        r#"{"batchItemFailures": []}"#,
    ] {
        assert_eq!(failed(success), Some(0), "{success}");
    }
    let one = r#"{"batchItemFailures": [{"itemIdentifier": "m-2"}]}"#;
    assert_eq!(failed(one), Some(1));
    for failure in [
        "{\"batchItemFailures\": [",
        r#"{"batchItemFailures": [{"itemIdentifier": ""}]}"#,
        r#"{"batchItemFailures": [{"itemIdentifier": null}]}"#,
        r#"{"batchItemFailures": [{"itemIdentifier": "m-3"}]}"#,
        r#"{"batchItemFailures": [{"itemIdentifier": "m-1"}, {"messageId": "m-2"}]}"#,
        r#"{"batchItemFailures": ["m-1"]}"#,
    ] {
        assert_eq!(failed(failure), None, "{failure}");
    }
}
