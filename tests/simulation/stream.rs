//! [`Stream`]: the outbox, its stream, and the event source mapping that invokes the shipped relay with it.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use futures_util::future::select;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use sqs_once::{Done, Event as Publication, protocol::Timestamp};
use sqs_once_outbox::Relay;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::{
    lambda::{Invoke, Pause, Slot, function},
    ledger::Event,
    plan::Release,
    sqs::{self, DEAD_EVENTS, TARGET},
    world::{EPOCH, Member, World},
};

/// The only name of events that has a target.
pub const CHARGED: &str = "charged";
const NOTED: &str = "noted";

/// Returns the names and groups of the events that the operation of a key publishes.
pub fn events(key: &str) -> Vec<(&'static str, String)> {
    let number: usize = key.bytes().map(usize::from).sum();
    let group = |number: usize| format!("account-{}", number % 4);
    let mut events = vec![(CHARGED, group(number))];
    match number % 5 {
        0 => events.push((CHARGED, group(number))),
        // More than two invocations of the relay may be needed for these.
        1 => events.extend((0..3).map(|_| (CHARGED, group(number)))),
        2 => events.push((CHARGED, group(number + 1))),
        3 => events.push((NOTED, group(number))),
        _ => {}
    }
    events
}

/// Publishes the events of a key's operation.
pub fn publish<O>(done: Done<O>, key: &str) -> Done<O> {
    let published = |(n, (name, group))| Publication::new(name, &(key, n)).group(group);
    (0..)
        .zip(events(key))
        .map(published)
        .fold(done, Done::publish)
}

/// The records of the stream that the mapping has not read.
#[derive(Debug, Default)]
pub struct Stream {
    records: Mutex<VecDeque<Value>>,
    appended: AtomicUsize,
    is_closed: AtomicBool,
    changed: Notify,
}

impl Stream {
    /// Appends an item that a transaction has put into the outbox.
    pub fn append(&self, world: &World, item: &Value) {
        let text = |of: &Value, name: &str| of[name]["S"].as_str().unwrap_or_default().to_owned();
        let millis = item["published_at"]["N"].as_str();
        let millis = millis.and_then(|millis| millis.parse().ok()).unwrap_or(0);
        let members = item["events"]["L"].as_array();
        let members =
            members.map_or_else(|| vec![item], |of| of.iter().map(|of| &of["M"]).collect());
        for event in members {
            let id = text(event, "id");
            world.note(Event::Published {
                key: id.rsplit_once('#').unwrap_or_default().0.to_owned(),
                id,
                name: text(event, "name"),
                group: text(item, "group"),
                body: text(event, "body"),
                stamp: EPOCH.until(Timestamp::from_millis(millis)),
            });
        }
        let number = self.appended.fetch_add(1, Relaxed);
        self.records().push_back(json!({
            "eventID": format!("e-{number}"),
            "eventName": "INSERT",
            "eventSource": "aws:dynamodb",
            "awsRegion": "eu-central-1",
            "dynamodb": {
                "ApproximateCreationDateTime": world.wall().as_secs(),
                "Keys": { "group": item["group"], "sequence": item["sequence"] },
                "NewImage": item,
                "SequenceNumber": format!("{number:021}"),
                "SizeBytes": 100,
                "StreamViewType": "NEW_IMAGE",
            },
        }));
        self.changed.notify_waiters();
    }

    /// Nothing is appended any more.
    pub fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.changed.notify_waiters();
    }

    /// Returns up to `most` records from the head, once there is one. `None` once `until` is over, or if the stream is
    /// closed and read.
    async fn read(&self, most: usize, until: Instant) -> Option<Vec<Value>> {
        loop {
            let changed = self.changed.notified();
            let batch: Vec<_> = {
                let mut records = self.records();
                let most = most.min(records.len());
                records.drain(..most).collect()
            };
            if !batch.is_empty() {
                return Some(batch);
            }
            if self.is_closed.load(Relaxed) || Instant::now() >= until {
                return None;
            }
            select(pin!(changed), pin!(sleep_until(until))).await;
        }
    }

    /// Puts records that were read back at the head.
    fn put_back(&self, batch: Vec<Value>) {
        let mut records = self.records();
        batch
            .into_iter()
            .rev()
            .for_each(|record| records.push_front(record));
    }

    fn records(&self) -> MutexGuard<'_, VecDeque<Value>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Invokes the relay until the stream is closed and read. A batch that failed comes again, from the record on that the
/// response names (*AWS Lambda Developer Guide*, "Configuring partial batch response with DynamoDB and Lambda"). Any batch
/// may come again, with other records of the stream beside it.
pub async fn relay(world: &Arc<World>, until: Instant) {
    let Some(outbox) = world.plan.outbox else {
        return;
    };
    let slot = Slot::new(world, start);
    let mut most = outbox.batch;
    while let Some(mut batch) = world.stream.read(most, until).await {
        most = outbox.batch;
        let mut pause = Pause::default();
        while !batch.is_empty() {
            let number = world.next_batch();
            if pause.is_throttled(world, number, until).await {
                return;
            }
            let done = invoke(world, &slot, number, &batch).await;
            if world.strikes(world.plan.rates.answer_lost) {
                world.note(Event::ReadAgain { batch: number });
                most = 1 + world.dice().below(outbox.batch);
                world.stream.put_back(batch);
                break;
            }
            batch.drain(..done.unwrap_or(0));
            if !batch.is_empty() {
                pause.wait().await;
            }
        }
    }
}

/// Invokes the relay with a batch. Returns how many records at its head need not come again.
async fn invoke(world: &World, slot: &Slot, number: usize, batch: &[Value]) -> Option<usize> {
    let answer = slot.invoke(number, event(batch)).await?;
    // The process lives on, and knows nothing of it.
    if world.strikes(world.plan.rates.answer_lost) {
        world.note(Event::InvocationLost { batch: number });
        return None;
    }
    let failed = failed(&answer.response);
    let place = |failed: &str| {
        let mut records = batch.iter();
        records.position(|record| record["dynamodb"]["SequenceNumber"] == failed)
    };
    let done = match &failed {
        None => Some(batch.len()),
        Some(failed) => place(failed),
    };
    world.note(match done {
        Some(_) => Event::Answered {
            batch: number,
            worker: answer.worker,
            took: answer.took,
            failed: failed.into_iter().collect(),
        },
        None => Event::BadResponse {
            batch: number,
            why: format!("{failed:?} is unknown"),
        },
    });
    done
}

fn event(batch: &[Value]) -> Box<RawValue> {
    to_raw_value(&json!({ "Records": batch })).expect("JSON")
}

/// Returns the sequence number that a response names.
fn failed(response: &Value) -> Option<String> {
    let failures = response["batchItemFailures"].as_array()?;
    let numbers = failures
        .iter()
        .map(|of| of["itemIdentifier"].as_str().unwrap_or_default());
    numbers.min().map(str::to_owned)
}

/// Starts the shipped relay in a process.
fn start(world: &Arc<World>, member: &Member, _: Release) -> Invoke {
    let config = sqs::config(world, member);
    let fifo = world.plan.outbox.is_some_and(|outbox| outbox.fifo);
    let suffix = if fifo { ".fifo" } else { "" };
    let targets = format!("{CHARGED}={}{suffix}", sqs::url(TARGET));
    let targets = targets.parse().expect("a target");
    let relay = Relay::new(&config, targets, &sqs::url(DEAD_EVENTS));
    function(relay.expect("the URL of a queue"))
}
