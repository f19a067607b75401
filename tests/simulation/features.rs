//! [`features`]: what a world has beyond a plain consumer of a plain queue, so that a survey can say which of them met.

use crate::{
    operator::Work,
    plan::{
        KeyFrom, Keys, Kind, Level, MANAGED_INSTANCES, MOST_IN_FLIGHT, Mode, Plan, RECORDS_KEPT,
        RETENTION, Release, Scheme, Service, Wrapping,
    },
};

/// What a feature is about. Two modes never meet, nor two keys, two wrappings, or two lifetimes of the gateway's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Mode,
    Key,
    Wrapping,
    Keys,
    Setting,
    Queue,
    Message,
    Fault,
    Operator,
}

/// A setting, a habit of the world around the consumer, or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Feature {
    pub group: Group,
    pub name: &'static str,
}

impl Feature {
    /// Returns whether a world can have both.
    pub fn can_meet(self, other: Self) -> bool {
        let are_alternatives = self.group == other.group
            && matches!(
                self.group,
                Group::Mode | Group::Key | Group::Wrapping | Group::Keys
            );
        let are = |one: &str, another: &str| {
            (self.name, other.name) == (one, another) || (other.name, self.name) == (one, another)
        };
        !are_alternatives && !NEVER.iter().any(|(one, another)| are(one, another))
    }
}

/// Features that exclude each other, by AWS's rules or by ours.
const NEVER: [(&str, &str); 46] = [
    // SQS delivers at most ten messages of a FIFO queue at a time, and each once.
    ("FIFO", "batch of 100 or more"),
    ("FIFO", "delivered twice"),
    // A claim says who works on an operation. Without one there is nothing to look up, to isolate or to hide.
    ("inbox", "lookup"),
    ("item", "lookup"),
    ("inbox", "isolation"),
    ("item", "isolation"),
    ("inbox", "ends its process always"),
    ("item", "ends its process always"),
    // An item has neither outputs nor failures.
    ("item", "outputs in S3"),
    // A lookup needs a key that names the operation, and a gateway without idempotency keys.
    ("lookup", "key: message id"),
    ("lookup", "keys for a day"),
    ("batch of 100 or more", "item"),
    // An event is one more item of the transaction that records its operation.
    ("publishes events", "claim"),
    ("publishes events", "item"),
    // There is no record to delete or to release.
    ("item", "an operator deletes"),
    ("item", "an operator releases"),
    ("item", "records expire"),
    ("inbox", "an operator releases"),
    ("item", "batched writes"),
    // Only groups stop.
    ("groups stop", "batch of 100 or more"),
    ("groups stop", "delivered twice"),
    // An item has no fingerprint.
    ("item", "fingerprint changes"),
    ("item", "no fingerprint"),
    // Only claims have what these are about.
    ("inbox", "isolation changes"),
    ("item", "isolation changes"),
    ("ends its process always", "isolation changes"),
    ("inbox", "call-key lifetime changes"),
    ("item", "call-key lifetime changes"),
    ("inbox", "lookup changes"),
    ("item", "lookup changes"),
    ("key: message id", "lookup changes"),
    ("keys for a day", "lookup changes"),
    ("inbox", "second payload"),
    ("item", "second payload"),
    ("key: message id", "second payload"),
    // Other modes and outputs in S3 have ten handlers in place of what the memory holds.
    ("concurrency by memory", "commit"),
    ("concurrency by memory", "inbox"),
    ("concurrency by memory", "item"),
    ("concurrency by memory", "outputs in S3"),
    ("concurrency by memory", "publishes events"),
    // Each message has a key of its own.
    ("key: message id", "queue of another consumer"),
    // Only FIFO queues have deduplication ids, which name no operation in another queue, or after SQS has moved a message.
    ("key: deduplication id", "batch of 100 or more"),
    ("key: deduplication id", "delivered twice"),
    ("key: deduplication id", "lookup"),
    ("key: deduplication id", "lookup changes"),
    ("key: deduplication id", "queue of another consumer"),
];

/// Returns the features of a world.
pub fn features(plan: &Plan) -> Vec<Feature> {
    let mut features = Vec::new();
    let mut add = |group, name, is_there: bool| {
        if is_there {
            features.push(Feature { group, name });
        }
    };
    for (mode, name) in [
        (Mode::Claim, "claim"),
        (Mode::Commit, "commit"),
        (Mode::Inbox, "inbox"),
        (Mode::Item, "item"),
    ] {
        add(Group::Mode, name, plan.mode == mode);
    }
    for (key, name) in [
        (KeyFrom::MessageId, "key: message id"),
        (KeyFrom::Body, "key: body"),
        (KeyFrom::Attribute, "key: attribute"),
        (KeyFrom::Function, "key: function"),
        (KeyFrom::DeduplicationId, "key: deduplication id"),
    ] {
        add(Group::Key, name, plan.key == key);
    }
    add(Group::Wrapping, "SNS", plan.wrapping == Wrapping::Sns);
    add(
        Group::Wrapping,
        "EventBridge",
        plan.wrapping == Wrapping::EventBridge,
    );
    let gateway = &plan.gateway;
    add(Group::Keys, "keys for a day", gateway.keys == Keys::ForADay);
    add(Group::Keys, "no keys", gateway.keys == Keys::Never);

    let any = |of: fn(&Release) -> bool| plan.releases.iter().any(of);
    let is_item = plan.mode == Mode::Item;
    for (name, is_there) in [
        ("at the wire", plan.level == Level::Wire),
        ("batched writes", !is_item && any(|of| of.batches_writes)),
        ("bodies in S3", plan.bodies_in_s3),
        ("outputs in S3", plan.outputs_in_s3),
        ("publishes events", plan.outbox.is_some()),
        ("lookup", gateway.is_looked_up),
        ("lookup changes", plan.changes(|of| of.looks_up)),
        ("isolation", any(|of| of.isolates)),
        ("isolation changes", plan.changes(|of| of.isolates)),
        ("fingerprint changes", plan.changes(|of| of.fingerprint)),
        ("no fingerprint", any(|of| of.fingerprint == Scheme::Off)),
        (
            "call-key lifetime changes",
            plan.changes(|of| of.call_key_lifetime),
        ),
        ("limit in a layer", plan.layer.is_some()),
        ("concurrency by memory", any(|of| of.memory.is_some())),
        ("groups stop", plan.stops_groups),
        ("no breaker", any(|of| !of.has_breaker)),
        ("one handler at a time", any(|of| of.concurrency == 1)),
        ("long reserve", any(|of| of.reserve.as_secs() > 0)),
        ("deployments", plan.releases.len() > 1),
        ("batch of 100 or more", plan.batch > 10),
        ("batching window", !plan.window.is_zero()),
        ("concurrent invocations", plan.invocations > 1),
        ("8 or 16 invocations", plan.invocations >= 8),
        ("Managed Instances", plan.timeouts == MANAGED_INSTANCES),
        ("no own dead letters", !plan.direct_dead_letters),
        ("declines are remembered", gateway.remembers_declines),
        ("a 503 is trusted", gateway.is_trusted),
        ("handler without a limit", gateway.patience.is_none()),
        (
            "records expire",
            !is_item && plan.records_kept < RECORDS_KEPT,
        ),
    ] {
        add(Group::Setting, name, is_there);
    }
    for (name, is_there) in [
        ("FIFO", plan.fifo),
        ("few messages in flight", plan.in_flight < MOST_IN_FLIGHT),
        ("short retention", plan.retention < RETENTION),
        (
            "queue of another consumer",
            plan.messages.iter().any(|of| of.in_other_queue),
        ),
    ] {
        add(Group::Queue, name, is_there);
    }
    let has = |of: fn(Kind) -> bool| plan.messages.iter().any(|message| of(message.kind));
    for (name, is_there) in [
        ("declined", has(|kind| kind == Kind::Declined)),
        ("undecodable", has(|kind| kind == Kind::Undecodable)),
        ("panics", has(|kind| matches!(kind, Kind::Panics(_)))),
        ("refused", has(|kind| matches!(kind, Kind::Refused(_)))),
        ("hangs", has(|kind| matches!(kind, Kind::Hangs(_)))),
        (
            "ends its process",
            has(|kind| matches!(kind, Kind::Kills(_))),
        ),
        ("ends its process always", has(|kind| kind == Kind::Killer)),
        (
            "second payload",
            plan.messages.iter().any(|of| of.payload > 0),
        ),
    ] {
        add(Group::Message, name, is_there);
    }
    let rates = &plan.rates;
    for (name, rate) in [
        ("request lost", rates.request_lost),
        ("answer lost", rates.answer_lost),
        ("doubled", rates.doubled),
        ("late", rates.late),
        ("throttled", rates.throttled),
        ("server error", rates.server_error),
        ("denied", rates.denied),
        ("busy", rates.busy),
        ("SQS refuses", rates.sqs_refused),
        ("S3 refuses", rates.s3_refused),
        ("killed", rates.killed),
        ("frozen", rates.frozen),
        ("clock steps", rates.clock_stepped),
        ("throttled invocation", rates.throttled_invocation),
        ("delivered twice", rates.delivered_twice),
        ("deletion lost", rates.deletion_lost),
    ] {
        add(Group::Fault, name, rate > 0.0);
    }
    for (service, name) in [
        (Service::Table, "table is out"),
        (Service::Gateway, "gateway is out"),
        (Service::Sqs, "SQS is out"),
        (Service::S3, "S3 is out"),
        (Service::Credentials, "credentials expire"),
        (Service::DeadLetters, "dead-letter queue is out"),
        (Service::Lambda, "Lambda throttles"),
    ] {
        add(Group::Fault, name, plan.has_outage(service));
    }
    let acts = |of: fn(Work) -> bool| plan.operator.iter().any(|act| of(act.what));
    for (name, is_there) in [
        (
            "an operator redrives",
            acts(|of| matches!(of, Work::Redrive { .. })),
        ),
        (
            "an operator releases",
            !is_item && acts(|of| matches!(of, Work::Release { .. })),
        ),
        (
            "an operator deletes",
            !is_item && acts(|of| matches!(of, Work::Delete { .. })),
        ),
    ] {
        add(Group::Operator, name, is_there);
    }
    features
}
