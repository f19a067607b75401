//! An SQS queue: visibility timeout, receive count, dead-letter queue, FIFO groups, repeated
//! deliveries, and the API calls of a consumer.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{Json, Router, body::Bytes, extract::State, http::HeaderMap};
use serde_json::{Value, json};
use support::event::QUEUE_ARN;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::chaos::{
    ledger::{Delivery, Event, Ledger},
    pace::Machine,
    plan::{Message, Seed},
};

/// Attribute of a message that names it. Copies keep it.
pub(crate) const NAME: &str = "name";

/// Visibility timeout, times the pace of the machine. Longer than the function's timeout, as AWS requires.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Maximum number of messages that the event source mapping receives in a batch.
    pub(crate) batch: usize,
    pub(crate) max_receive_count: u32,
    /// Percentages of deliveries that leave the message visible to the next receive, and of
    /// deletions forgotten once. A FIFO queue has neither.
    pub(crate) duplicates: u32,
    /// Messages that wait at the start. The others arrive one by one.
    pub(crate) waiting: usize,
}

/// Time from one message's arrival to the next.
const BETWEEN_ARRIVALS: Duration = Duration::from_millis(200);

/// One delivery.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) message: Message,
    pub(crate) receive_count: u32,
}

impl Received {
    pub(crate) fn delivery(&self) -> Delivery {
        (self.message.id.clone(), self.receive_count)
    }
}

pub(crate) struct Queue {
    seed: Seed,
    rules: Rules,
    ledger: Arc<Ledger>,
    machine: Arc<Machine>,
    lines: Mutex<Lines>,
    changed: Notify,
}

/// Messages delivered in order: a FIFO group, or a single message.
type Line = VecDeque<Stored>;

#[derive(Default)]
struct Lines {
    /// In the order of sending.
    waiting: BTreeMap<usize, Line>,
    of_message: HashMap<String, usize>,
}

struct Stored {
    message: Message,
    receives: u32,
    visible: Instant,
    deleted_before: bool,
}

impl Queue {
    pub(crate) fn new(
        seed: Seed,
        rules: Rules,
        ledger: Arc<Ledger>,
        machine: Arc<Machine>,
        messages: Vec<Message>,
    ) -> Arc<Self> {
        let (mut lines, mut groups) = (Lines::default(), HashMap::new());
        let start = Instant::now();
        for (n, message) in messages.into_iter().enumerate() {
            ledger.note(Event::Sent(message.clone()));
            let group = message.group.clone();
            let line = group.map_or(n, |group| *groups.entry(group).or_insert(n));
            lines.of_message.insert(message.id.clone(), line);
            let later = u32::try_from(n.saturating_sub(rules.waiting)).unwrap();
            let stored = Stored {
                message,
                receives: 0,
                visible: start + later * BETWEEN_ARRIVALS,
                deleted_before: false,
            };
            lines.waiting.entry(line).or_default().push_back(stored);
        }
        Arc::new(Self {
            seed,
            rules,
            ledger,
            machine,
            lines: Mutex::new(lines),
            changed: Notify::new(),
        })
    }

    /// The next batch, once one is visible; `None` when the queue is empty.
    pub(crate) async fn receive(&self) -> Option<Vec<Received>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (batch, next) = self.take();
            if !batch.is_empty() {
                return Some(batch);
            }
            let next = next?;
            tokio::select! {
                () = changed => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Messages visible now, or the time of the next visibility.
    fn take(&self) -> (Vec<Received>, Option<Instant>) {
        let now = Instant::now();
        let (mut batch, mut next) = (Vec::new(), None::<Instant>);
        let mut lines = self.lines();
        let Lines {
            waiting,
            of_message,
        } = &mut *lines;
        for line in waiting.values_mut() {
            if batch.len() == self.rules.batch {
                break;
            }
            // A message in flight holds back its whole group.
            let visible = line.iter().map(|stored| stored.visible).max();
            if visible.is_some_and(|visible| visible > now) {
                next = next.into_iter().chain(visible).min();
                continue;
            }
            self.dead_letter_spent(line, of_message);
            for stored in line.iter_mut().take(self.rules.batch - batch.len()) {
                batch.push(self.deliver(stored, now));
            }
        }
        waiting.retain(|_, line| !line.is_empty());
        if waiting.is_empty() {
            // A full batch need not wait.
            self.changed.notify_waiters();
        }
        (batch, next)
    }

    /// Moves messages that used up their receives to the dead-letter queue.
    fn dead_letter_spent(&self, line: &mut Line, of_message: &mut HashMap<String, usize>) {
        line.retain(|stored| {
            let keep = stored.receives < self.rules.max_receive_count;
            if !keep {
                let message = stored.message.id.clone();
                of_message.remove(&message);
                self.ledger.note(Event::DeadLettered { message });
            }
            keep
        });
    }

    fn deliver(&self, stored: &mut Stored, now: Instant) -> Received {
        stored.receives += 1;
        let what = ("hidden", &stored.message.id, stored.receives);
        let hidden = self.seed.dice(what).u32(..100) >= self.rules.duplicates;
        stored.visible = if hidden {
            now + self.machine.pace().of(VISIBILITY_TIMEOUT)
        } else {
            self.changed.notify_one();
            now
        };
        Received {
            message: stored.message.clone(),
            receive_count: stored.receives,
        }
    }

    pub(crate) fn delete(&self, id: &str) {
        let mut lines = self.lines();
        let Some(line) = lines.line(id) else { return };
        if let Some(at) = line.iter().position(|stored| stored.message.id == id) {
            let stored = &mut line[at];
            let mut dice = self.seed.dice(("deleted", id));
            if !stored.deleted_before && dice.u32(..100) < self.rules.duplicates {
                // As from an SQS server that was down during the deletion.
                stored.deleted_before = true;
                stored.visible = Instant::now() + Duration::from_millis(dice.u64(..2000));
            } else {
                line.remove(at);
                lines.of_message.remove(id);
            }
        }
        drop(lines);
        self.changed.notify_waiters();
    }

    /// Only the newest receipt handle has an effect.
    fn change_visibility(&self, receipt: &str, seconds: u64) {
        let (id, receives) = receipt
            .strip_prefix("receipt-")
            .and_then(|receipt| receipt.rsplit_once('-'))
            .unwrap();
        let mut lines = self.lines();
        let stored = lines.line(id).into_iter().flatten();
        let newest = |stored: &&mut Stored| {
            stored.message.id == id && stored.receives.to_string() == receives
        };
        if let Some(stored) = stored.into_iter().find(newest) {
            stored.visible = Instant::now() + Duration::from_secs(seconds);
        }
        drop(lines);
        self.changed.notify_waiters();
    }

    /// Messages neither deleted nor in the dead-letter queue.
    pub(crate) fn left(&self) -> usize {
        self.lines().waiting.values().map(Line::len).sum()
    }

    /// Serves `GetQueueUrl`, `GetQueueAttributes`, `ChangeMessageVisibilityBatch` and
    /// `SendMessageBatch`, to the dead-letter queue.
    pub(crate) async fn serve(self: &Arc<Self>) -> String {
        let app = Router::new().fallback(answer).with_state(self.clone());
        format!("http://{}", support::serve(app).await)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap()
    }
}

impl Lines {
    fn line(&mut self, id: &str) -> Option<&mut Line> {
        let line = self.of_message.get(id)?;
        self.waiting.get_mut(line)
    }
}

async fn answer(State(queue): State<Arc<Queue>>, headers: HeaderMap, body: Bytes) -> Json<Value> {
    let body: Value = serde_json::from_slice(&body).unwrap();
    if headers["x-amz-target"] == "AmazonSQS.GetQueueUrl" {
        let name = body["QueueName"].as_str().unwrap();
        return Json(json!({"QueueUrl": format!("https://sqs.example/123456789012/{name}")}));
    }
    if headers["x-amz-target"] == "AmazonSQS.GetQueueAttributes" {
        let dead = format!("{QUEUE_ARN}-dead");
        let policy =
            json!({"deadLetterTargetArn": dead, "maxReceiveCount": queue.rules.max_receive_count});
        return Json(json!({"Attributes": {"RedrivePolicy": policy.to_string()}}));
    }
    let mut successful = Vec::new();
    if headers["x-amz-target"] == "AmazonSQS.SendMessageBatch" {
        for entry in body["Entries"].as_array().unwrap() {
            let text = |name: &str| {
                let value = &entry["MessageAttributes"][name]["StringValue"];
                value.as_str().unwrap().to_owned()
            };
            let (message, reason) = (text(NAME), text("SqsOnceReason"));
            queue.ledger.note(Event::Copied { message, reason });
            successful
                .push(json!({"Id": entry["Id"], "MessageId": "copy", "MD5OfMessageBody": "0"}));
        }
        return Json(json!({"Successful": successful, "Failed": []}));
    }
    for entry in body["Entries"].as_array().unwrap() {
        let seconds = entry["VisibilityTimeout"].as_u64().unwrap();
        queue.change_visibility(entry["ReceiptHandle"].as_str().unwrap(), seconds);
        successful.push(json!({"Id": entry["Id"]}));
    }
    Json(json!({"Successful": successful, "Failed": []}))
}
