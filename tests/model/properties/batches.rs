//! Batch in, response out.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Once,
    protocol::{Fingerprint, Key, State},
    sqs::FifoAfterPermanent,
    store::MemoryStore,
};
use support::{
    PATIENCE,
    consumer::{namespace, process, within},
    event::{QUEUE_ARN, batch, received},
};

/// Body of a message, good or bad.
#[derive(Clone, Debug)]
enum Body {
    /// An order with this key.
    Order {
        key: u8,
        behaviour: Behaviour,
    },
    /// A valid key in a body that the handler's type rejects.
    Mistyped {
        key: u8,
    },
    NotJson,
    Missing,
    /// A body from which no key can be read.
    Keyless(Value),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Behaviour {
    Succeed,
    Fail,
    Decline,
    Panic,
}

#[derive(Deserialize)]
struct Order {
    behaviour: Behaviour,
}

/// Message as its producer sent it. All its deliveries are the same but for the receive count.
#[derive(Clone, Debug)]
struct Sent {
    body: Body,
    group: Option<u8>,
}

/// Messages, which may be delivered twice, and the type of the queue.
#[derive(Clone, Debug)]
struct Batch {
    sent: Vec<Sent>,
    /// Message and receive count of each record.
    records: Vec<(usize, u32)>,
    fifo: bool,
}

fn body() -> impl Strategy<Value = Body> {
    let behaviour = prop_oneof![
        6 => Just(Behaviour::Succeed),
        1 => Just(Behaviour::Fail),
        1 => Just(Behaviour::Decline),
        1 => Just(Behaviour::Panic),
    ];
    let keyless = prop::sample::select(vec![
        json!({}),
        json!({"key": null}),
        json!({"key": ""}),
        json!({"key": 0.1}),
        json!([]),
        json!("text"),
    ]);
    prop_oneof![
        12 => (0..5_u8, behaviour).prop_map(|(key, behaviour)| Body::Order { key, behaviour }),
        1 => (0..5_u8).prop_map(|key| Body::Mistyped { key }),
        1 => Just(Body::NotJson),
        1 => Just(Body::Missing),
        1 => keyless.prop_map(Body::Keyless),
    ]
}

fn sent() -> impl Strategy<Value = Sent> {
    (body(), prop::option::weighted(0.8, 0..3_u8)).prop_map(|(body, group)| Sent { body, group })
}

fn batches() -> impl Strategy<Value = Batch> {
    (prop::collection::vec(sent(), 1..10), any::<bool>()).prop_flat_map(|(sent, fifo)| {
        let records = prop::collection::vec((0..sent.len(), 1..5_u32), 0..25);
        records.prop_map(move |records| Batch {
            sent: sent.clone(),
            records,
            fifo,
        })
    })
}

impl Batch {
    /// The group that orders a message; `None` without a group, or on a standard queue.
    fn group(&self, sent: &Sent) -> Option<u8> {
        sent.group.filter(|_| self.fifo)
    }

    /// Text at `/key`. Groups run in parallel, so one key in two groups would be a race.
    fn key(&self, sent: &Sent) -> Option<String> {
        match sent.body {
            Body::Order { key, .. } | Body::Mistyped { key } => {
                Some(format!("{:?} {key}", self.group(sent)))
            }
            _ => None,
        }
    }

    /// Body as the producer wrote it; `None` without a body.
    fn body(&self, sent: &Sent) -> Option<String> {
        let key = self.key(sent);
        Some(match &sent.body {
            Body::Order { behaviour, .. } => {
                json!({"key": key, "behaviour": format!("{behaviour:?}").to_lowercase()})
                    .to_string()
            }
            Body::Mistyped { .. } => json!({"key": key, "behaviour": 7}).to_string(),
            Body::NotJson => "{\"key\": ".into(),
            Body::Missing => return None,
            Body::Keyless(value) => value.to_string(),
        })
    }

    fn event(&self) -> Value {
        batch(self.records.iter().map(|&(index, count)| {
            let sent = &self.sent[index];
            let mut record = received(&format!("m-{index}"), "", count);
            record["body"] = json!(self.body(sent));
            record["eventSourceARN"] = json!(format!(
                "{QUEUE_ARN}{}",
                if self.fifo { ".fifo" } else { "" }
            ));
            if let Some(group) = sent.group {
                record["attributes"]["MessageGroupId"] = json!(group.to_string());
            }
            record
        }))
    }

    /// Messages that must be reported, given the completed operations. These are each message not
    /// COMPLETED with this very payload, and in a FIFO group each message behind such a message.
    fn unfinished(&self, store: &MemoryStore) -> Vec<String> {
        let (mut named, mut broken) = (Vec::new(), BTreeSet::new());
        for &(index, _) in &self.records {
            let sent = &self.sent[index];
            let group = self.group(sent);
            let behind = group.is_some_and(|group| broken.contains(&group));
            if !behind && self.is_completed(sent, store) {
                continue;
            }
            broken.extend(group);
            let id = format!("m-{index}");
            if !named.contains(&id) {
                named.push(id);
            }
        }
        named
    }

    /// Messages that must succeed beside any other messages: in no group, and sharing
    /// their key only with orders that succeed too.
    fn untroubled(&self) -> BTreeSet<String> {
        let all = || self.records.iter().map(|&(index, _)| index);
        let succeeds = |index: usize| {
            let body = &self.sent[index].body;
            matches!(
                body,
                Body::Order {
                    behaviour: Behaviour::Succeed,
                    ..
                }
            )
        };
        let key = |index: usize| self.key(&self.sent[index]);
        all()
            .filter(|&index| self.group(&self.sent[index]).is_none() && succeeds(index))
            .filter(|&index| all().all(|other| key(other) != key(index) || succeeds(other)))
            .map(|index| format!("m-{index}"))
            .collect()
    }

    fn is_completed(&self, sent: &Sent, store: &MemoryStore) -> bool {
        let (Some(part), Some(body)) = (self.key(sent), self.body(sent)) else {
            return false;
        };
        let key = Key::new(&namespace(), [part.as_str()]).unwrap();
        store.record(&key).is_some_and(|record| {
            // Written without white space and in order, the body is its own canonical form.
            record.fingerprint.as_ref().map(Fingerprint::as_str)
                == Some(Fingerprint::of(body.as_bytes()).as_str())
                && matches!(record.state, State::Completed { .. })
        })
    }
}

/// Handler that obeys the message, and records the keys of its successes.
#[derive(Clone, Default)]
struct ScriptedHandler(Arc<Mutex<BTreeMap<String, usize>>>);

impl Handler for ScriptedHandler {
    type Message = Order;
    type Output = ();

    async fn handle(&self, order: Order, attempt: Attempt) -> Result<(), Failure> {
        tokio::task::yield_now().await;
        match order.behaviour {
            Behaviour::Succeed => {
                let mut done = self.0.lock().unwrap();
                *done.entry(attempt.key().to_string()).or_default() += 1;
                Ok(())
            }
            Behaviour::Fail => Err(Failure::retryable("behaviour to")),
            Behaviour::Decline => Err(Failure::permanent("behaviour to")),
            Behaviour::Panic => panic!("behaviour to"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The same for a redelivery of the whole batch.
    #[test]
    fn response_lists_each_incomplete_message_once(
        batch in batches(),
        concurrency in 1..12_usize,
    ) {
        let (store, handler) = (MemoryStore::default(), ScriptedHandler::default());
        let consumer = Consumer::new(Once::new(store.clone()), namespace(), handler.clone())
            .key("body:/key".parse().unwrap())
            .fifo_after_permanent(FifoAfterPermanent::Stop)
            .concurrency(NonZeroUsize::new(concurrency).unwrap());
        let consumer = Arc::new(consumer);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for delivery in 1..=2 {
            let failed = runtime.block_on(async {
                process(&consumer, batch.event(), within(PATIENCE)).await
            });
            for message in batch.untroubled() {
                prop_assert!(!failed.contains(&message), "{} in delivery {}", message, delivery);
            }
            prop_assert_eq!(failed, batch.unfinished(&store), "delivery {}", delivery);
        }
        for (key, times) in handler.0.lock().unwrap().iter() {
            prop_assert_eq!(*times, 1, "{}", key);
        }
    }
}
