//! The deliveries of one message, the first of which meets a fault at one request of the protocol. Time is paused, so
//! that a story is the same on a machine of any speed.

use std::{
    fmt,
    panic::resume_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_sdk_dynamodb::Client;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once,
    protocol::Timestamp,
    store::{AnyStore, Batched, DynamoStore},
};
use support::{
    clock,
    consumer::{namespace, process},
    dynamo::{Dynamo, number, text},
    event::{batch, received},
    faults::Fault,
};
use tokio::time::Instant;

pub(crate) const TABLE: &str = "idempotency";
const HOUR: Duration = Duration::from_secs(3600);

/// Time of an invocation. Half of it is reserve.
const BUDGET: Duration = Duration::from_secs(16);
/// Time until the batch is answered at the latest: seven eighths of the reserve are used by then.
const RESPOND_WITHIN: Duration = Duration::from_secs(15);
/// Time that a client waits for an answer that never comes. Half of the two seconds after which the worker gives
/// up the end of a lease.
const ATTEMPT: Duration = Duration::from_secs(1);

/// One request of the protocol, and the way to it in a message's first delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) request: &'static str,
    pub(crate) before: Before,
    /// Behaviour of the handler, run by run; after these it succeeds.
    pub(crate) acts: &'static [Act],
    /// State after the first delivery if the request is answered in the end.
    pub(crate) answered: RecordState,
    /// State if the request is applied and never answered.
    pub(crate) applied: RecordState,
    /// State if the request is not applied.
    pub(crate) not_applied: RecordState,
}

/// Events before the request that meets the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    Nothing,
    /// An earlier delivery of the message, whose handler did the first of the acts.
    Delivery,
    /// The same with another message of the operation.
    OtherMessage,
    /// A claim in the same delivery that is applied and never answered.
    UnansweredClaim,
}

/// Behaviour of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Succeed,
    /// Fails, and may have had its effect.
    Fail,
    /// Fails, and had no effect.
    NoEffect,
    Decline,
    Panic,
    Hang,
}

/// State of the record after a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    Nothing,
    /// In progress, under its lease.
    Live,
    /// In progress, its lease ended, and an attempt is open.
    Dead,
    /// In progress, its lease ended, and no attempt is open.
    Undone,
    Completed,
    Failed,
}

/// Number of requests that meet the fault in the first delivery, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultDuration {
    /// All requests; the fault ends before the message is delivered again.
    Throughout,
    /// One request. If it is held back, it arrives after a redelivery.
    Once,
    /// One request of a client without timeouts: only the deadline ends its wait. If it is held
    /// back, it arrives after the end of its lease and after a takeover.
    UntilTheDeadline,
}

/// Handler that obeys its acts and records each run.
#[derive(Clone, Debug)]
struct Worker {
    acts: &'static [Act],
    runs: Arc<Mutex<Vec<Run>>>,
}

/// One run of the handler.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) key: String,
    /// True if the handler was informed of an earlier attempt.
    pub(crate) informed: bool,
    pub(crate) act: Act,
}

impl Worker {
    fn runs(&self) -> Vec<Run> {
        self.runs.lock().unwrap().clone()
    }
}

impl Handler for Worker {
    type Message = Value;
    type Output = usize;

    async fn handle(&self, _: Value, attempt: Attempt) -> Result<usize, Failure> {
        let (n, act) = {
            let mut runs = self.runs.lock().unwrap();
            let n = runs.len();
            let act = self.acts.get(n).copied().unwrap_or(Act::Succeed);
            runs.push(Run {
                key: attempt.key().to_string(),
                informed: attempt.prior().is_some(),
                act,
            });
            (n, act)
        };
        match act {
            Act::Succeed => Ok(n),
            Act::Fail => Err(Failure::retryable("scripted")),
            Act::NoEffect => Err(Failure::no_effect("scripted")),
            Act::Decline => Err(Failure::permanent("scripted")),
            // A panic that is not printed.
            Act::Panic => resume_unwind(Box::new("scripted")),
            Act::Hang => std::future::pending().await,
        }
    }
}

/// The store of a story: every claim, completion and permanent failure is a separate request, or a
/// group first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    Off,
    On,
}

impl Step {
    /// The group that stands before the request, if the request has one.
    pub(crate) fn group(&self) -> Option<&'static str> {
        match (self.request, self.acts.last()) {
            ("Claim", _) => Some("ClaimGroup"),
            ("UpdateItem", Some(Act::Succeed | Act::Decline)) if self.before == Before::Nothing => {
                Some("SettlementGroup")
            }
            _ => None,
        }
    }
}

/// Result of a story.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) grouping: Grouping,
    pub(crate) step: Step,
    pub(crate) fault: Fault,
    pub(crate) lasting: FaultDuration,
    /// Number of requests that met the fault.
    pub(crate) met: usize,
    /// The first delivery and the three after it: at once, after every lease has ended, and once
    /// more.
    pub(crate) deliveries: Vec<Delivery>,
    /// Runs of the handler, in all deliveries and before.
    pub(crate) runs: Vec<Run>,
}

/// One delivery: state before, handler runs, state after.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) when: When,
    pub(crate) found: RecordState,
    pub(crate) runs: Vec<Run>,
    pub(crate) acknowledged: bool,
    pub(crate) left: RecordState,
    /// Result in the record after the delivery.
    pub(crate) result: Option<String>,
    /// True if the batch was answered before its deadline.
    pub(crate) in_time: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// Every lease has ended.
    Later,
}

impl When {
    fn clock(self) -> fn() -> Timestamp {
        match self {
            Self::Now => clock::now,
            Self::Later => || clock::now() + HOUR,
        }
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fault, lasting, step) = (self.fault, self.lasting, self.step.name);
        let grouping = self.grouping;
        write!(
            f,
            "{fault:?}, {lasting:?}, at the {step}, grouping {grouping:?}:"
        )?;
        for delivery in &self.deliveries {
            write!(f, "\n  {delivery:?}")?;
        }
        Ok(())
    }
}

impl Story {
    pub(crate) async fn live(
        grouping: Grouping,
        step: Step,
        fault: Fault,
        lasting: FaultDuration,
    ) -> Self {
        let stage = Stage::set(step.acts, grouping).await;
        let group = step.group().filter(|_| grouping == Grouping::On);
        match step.before {
            Before::Nothing => {}
            Before::Delivery | Before::OtherMessage => {
                let worker = stage.dynamo.worker(None);
                let receive_count = u32::from(step.before == Before::Delivery);
                drop(stage.deliver(When::Now, receive_count, worker).await);
            }
            Before::UnansweredClaim => {
                (0..Dynamo::CLAIM_COPIES).for_each(|_| stage.dynamo.fail("Claim", Fault::CutAfter));
            }
        }
        match lasting {
            FaultDuration::Throughout => {
                stage.dynamo.fail_all(step.request, fault);
                group
                    .into_iter()
                    .for_each(|g| stage.dynamo.fail_all(g, fault));
            }
            FaultDuration::Once | FaultDuration::UntilTheDeadline => {
                stage.dynamo.fail(group.unwrap_or(step.request), fault);
            }
        }
        let attempt = match (lasting, fault) {
            (FaultDuration::UntilTheDeadline, _) => None,
            // Only a timeout ends these, so only these wait for it.
            (_, Fault::HoldRequest | Fault::HoldAnswer) => Some(ATTEMPT),
            _ => None,
        };
        let mut receive_count = 1 + u32::from(step.before == Before::Delivery);
        let worker = stage.dynamo.worker(attempt);
        let mut deliveries = vec![stage.deliver(When::Now, receive_count, worker).await];

        let mut met = None;
        for (when, healed) in [
            (When::Now, FaultDuration::Throughout),
            (When::Later, FaultDuration::Once),
            (When::Later, FaultDuration::UntilTheDeadline),
        ] {
            if lasting == healed {
                met = stage
                    .dynamo
                    .heal()
                    .await
                    .remove(group.unwrap_or(step.request));
            }
            receive_count += 1;
            let worker = stage.dynamo.worker(None);
            deliveries.push(stage.deliver(when, receive_count, worker).await);
        }
        Self {
            grouping,
            step,
            fault,
            lasting,
            met: met.unwrap_or(0),
            deliveries,
            runs: stage.worker.runs(),
        }
    }

    pub(crate) fn first(&self) -> &Delivery {
        &self.deliveries[0]
    }

    pub(crate) fn redeliveries(&self) -> &[Delivery] {
        &self.deliveries[1..]
    }
}

struct Stage {
    dynamo: Dynamo,
    worker: Worker,
    grouping: Grouping,
}

impl Stage {
    async fn set(acts: &'static [Act], grouping: Grouping) -> Self {
        let dynamo = Dynamo::in_memory();
        dynamo.create_table(TABLE).await;
        let runs = Arc::default();
        Self {
            dynamo,
            worker: Worker { acts, runs },
            grouping,
        }
    }

    /// Delivers the message for the `receive_count`th time. 0: another message of the operation.
    async fn deliver(&self, when: When, receive_count: u32, client: Client) -> Delivery {
        // A lease that has just ended lasts until the next millisecond.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let (found, _) = self.left().await;
        let ran = self.worker.runs().len();
        let clock = when.clock();
        // No lease ends during a story.
        let store = DynamoStore::new(client, TABLE);
        let once = Once::new(match self.grouping {
            Grouping::Off => AnyStore::DynamoDb(store),
            Grouping::On => AnyStore::Batched(Batched::with_lone_calls(store)),
        });
        let once = once.clock(clock).lease_margin(HOUR / 2);
        let consumer = Consumer::without_aws(once, namespace(), self.worker.clone());
        let consumer = Arc::new(consumer.key("body:/id".parse().unwrap()));
        let body = json!({"id": "o-1"});
        let event = batch([match receive_count {
            0 => received("m-0", &body, 1),
            n => received("m-1", &body, n),
        }]);

        let started = Instant::now();
        let deadline = Deadline::after(clock(), BUDGET, BUDGET / 2);
        let answered = tokio::time::timeout(2 * BUDGET, process(&consumer, event, deadline)).await;
        let in_time = started.elapsed() <= RESPOND_WITHIN;
        let (left, result) = self.left().await;
        let runs = self.worker.runs().split_off(ran);
        Delivery {
            when,
            found,
            runs,
            acknowledged: answered.is_ok_and(|failed| failed.is_empty()),
            left,
            result,
            in_time,
        }
    }

    async fn left(&self) -> (RecordState, Option<String>) {
        let Some(record) = self.dynamo.record(TABLE, "test#o-1").await else {
            return (RecordState::Nothing, None);
        };
        match text(&record, "status") {
            "COMPLETED" => (
                RecordState::Completed,
                Some(text(&record, "result").to_owned()),
            ),
            "FAILED" => (RecordState::Failed, None),
            // An abandoned lease ends when it is abandoned.
            _ if number(&record, "lease_until") <= number(&record, "updated_at") => {
                let open = record.contains_key("first_claimed_at");
                let state = if open {
                    RecordState::Dead
                } else {
                    RecordState::Undone
                };
                (state, None)
            }
            _ => (RecordState::Live, None),
        }
    }
}
