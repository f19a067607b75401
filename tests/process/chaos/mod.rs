//! Chaos: several processes of the release binary, killed at any time, with clocks that differ. The queue
//! delivers twice, and half of the dead letters come back to it. The table loses responses, deletes
//! records after their time to live, and is down for a while, as is the gateway. Connections die while a
//! process is frozen. At the end every message is done or in the dead-letter queue for a known reason, and every order
//! is charged under one key.
//!
//! What the simulation cannot show is real here: processes, signals, sockets and clocks. The promises at each step are
//! the simulation's (`tests/simulation`).
//!
//! A seed fixes the injected faults, not the timing of the processes.

mod account;
mod ends;
mod environment;
mod esm;
mod expiry;
mod fate;
mod faults;
mod gateway;
mod groups;
mod ledger;
mod pace;
mod plan;
mod queue;
mod report;
mod sqs;
mod write;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use account::accounts;
use environment::skew;
use esm::{Mapping, Settings};
use faults::Relay;
use futures_util::{StreamExt as _, stream};
use gateway::Gateway;
use ledger::{Event, Ledger, Worker};
use pace::{Machine, Pace};
use plan::{Message, RARE, Seed, grouped_orders, orders};
use queue::{Queue, Rules};
use report::Report;
use support::{
    dynamo::{Dynamo, text},
    runtime_api::Env,
};

const TABLE: &str = "idempotency";

/// Time that the handler waits for the gateway.
const GATEWAY_TIMEOUT: Duration = Duration::from_millis(500);

/// Two fifths of the function's timeout, for the response on a busy machine.
const DEADLINE_RESERVE: Duration = Duration::from_millis(800);

/// Parameters in which runs differ.
#[derive(Clone, Copy)]
struct Run {
    title: &'static str,
    /// The value of `IDEMPOTENCY_KEY`.
    key: &'static str,
    rules: Rules,
    /// Number of invocations with an acknowledged message after which a worker meets its fate, at most.
    lifetime: u32,
    /// Number of workers at the same time.
    workers: usize,
    /// Number of concurrent invocations in each worker.
    at_once: usize,
    fifo: bool,
}

/// Receives of the template, with which only a permanent failure is given up.
const RECEIVES: u32 = 130;

/// Rests of a message after each of its deaths alone. After the fourth it has crashed.
const CRASH_WAIT: &str = "3s";

/// At-least-once delivery: some messages arrive twice.
const STANDARD: Rules = Rules {
    batch: 10,
    max_receive_count: RECEIVES,
    duplicates: 8,
    redriven: 50,
};

/// Time to live of a record. Longer than a message waits for its next delivery, but for a redrive.
const RETENTION: Duration = Duration::from_secs(12);

const ORDERS: Run = Run {
    title: "chaos on a standard queue, keyed by order id",
    key: "body:/orderId",
    rules: STANDARD,
    lifetime: 12,
    workers: 4,
    at_once: 1,
    fifo: false,
};

/// Promises 1, 2, 3, 5 and 7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_keyed_by_order_id_keep_promises() {
    let report = ORDERS
        .go(600, |seed, size| orders(seed, size, 3, RARE))
        .await;
    // A run without these events would prove nothing.
    report.assert_some(&[
        "workers, Killed",
        "workers, FrozenUntilTimeout",
        "workers, thawed",
        "DynamoDB fault, CutBefore",
        "DynamoDB fault, CutAfter",
        "DynamoDB fault, Slow",
        "DynamoDB fault, Throttled",
        "DynamoDB fault, ServerError",
        "gateway fault, Busy",
        "gateway fault, Unanswered",
        "outcome, conflict",
        "outcome, duplicate",
        "in the dead-letter queue, Declined: permanent_failure",
        "in the dead-letter queue, Undecodable: invalid",
        "messages acknowledged once more",
        "workers, KilledByMessage",
        "in the dead-letter queue, Killer: crashed",
        "in the dead-letter queue, Hanging: crashed",
        "workers, rested",
        "outage, Gateway",
        "outage, Table",
        "outcome, circuit_open",
        "records, deleted after their time to live",
        "records, claimed over after their time to live",
        "redriven messages acknowledged",
    ]);
    assert_eq!(report.number("orders charged under"), 0, "{report}");
}

/// Lambda Managed Instances: eight invocations at the same time in one process. A process that dies
/// takes the batches of all of them with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_invocations_keep_promises() {
    let size = 300;
    let run = Run {
        title: "chaos on a standard queue, with 8 invocations at once in each worker",
        rules: Rules {
            batch: 4,
            ..STANDARD
        },
        // In a large run, workers that live until slow messages end. In a small one, workers that meet their fate
        // before a message kills them.
        lifetime: (size as u32 / 16).clamp(16, 200),
        workers: 2,
        at_once: 8,
        ..ORDERS
    };
    // A message that ends its process rests for up to ten hours in the field, and here only as long as a backoff.
    // Each time, the messages of eight batches lose a receive. So even a large run sends about ten of each kind.
    let distance = RARE.max(size / 10);
    let messages = |seed, size| orders(seed, size, 3, distance);
    let report = run.go(size, messages).await;
    report.assert_some(&[
        "workers, Killed",
        "workers, FrozenUntilTimeout",
        "gateway fault, Busy",
        "outcome, conflict",
        "messages acknowledged once more",
    ]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifo_groups_are_charged_in_order() {
    let run = Run {
        title: "chaos on a FIFO queue",
        rules: Rules {
            duplicates: 0,
            redriven: 0,
            ..STANDARD
        },
        lifetime: 8,
        workers: 3,
        fifo: true,
        ..ORDERS
    };
    let messages = |seed, size: usize| grouped_orders(seed, size, size.div_ceil(16));
    let report = run.go(200, messages).await;
    report.assert_some(&[
        "workers, Killed",
        "workers, FrozenUntilTimeout",
        "workers, thawed",
        "gateway fault, Busy",
        "in the dead-letter queue, Declined: permanent_failure",
        "in the dead-letter queue, Undecodable: invalid",
    ]);
}

impl Run {
    /// One run for each seed, with its share of `size` messages. The report is of all.
    async fn go(&self, size: usize, messages: impl Fn(Seed, usize) -> Vec<Message>) -> Report {
        let seeds = Seed::all();
        let share = size.div_ceil(seeds.len());
        let seeds = seeds.into_iter();
        // Most of a run is a wait for leases that have to end, but not with many invocations.
        let at_once = if self.at_once > 8 { 1 } else { 3 };
        let runs = seeds.map(|seed| self.with_seed(seed, messages(seed, share)));
        let reports: Vec<_> = stream::iter(runs).buffered(at_once).collect().await;
        reports.into_iter().reduce(Report::with).unwrap()
    }

    async fn with_seed(&self, seed: Seed, messages: Vec<Message>) -> Report {
        let ledger = Arc::new(Ledger::default());
        let dynamo = Dynamo::start().await;
        dynamo.create_table(TABLE).await;
        let relay = Relay::start(seed, ledger.clone(), dynamo.upstream()).await;
        let relay = Arc::new(relay);
        relay.delete_expired(dynamo.client_past_faults());
        let gateway = Gateway::start(seed, ledger.clone()).await;
        let machine = Arc::new(Machine::default());
        let queue = Queue::new(seed, self.rules, ledger.clone(), machine.clone(), messages);
        let sqs = queue.serve().await;
        let (key, at_once) = (self.key, self.at_once);
        let to_table = relay.clone();
        let settings: Settings = Arc::new(move |worker: Worker, pace: Pace| {
            let (table, gateway) = (to_table.url_for(worker), gateway.url_for(worker));
            let mut settings = settings(key, pace, &table, &gateway, &sqs);
            let skew = skew(seed, worker).to_string();
            settings.push(("TEST_CLOCK_SKEW_MS".to_owned(), skew));
            let retention = format!("{}s", pace.of(RETENTION).as_secs());
            settings.push(("IDEMPOTENCY_RETENTION".to_owned(), retention));
            settings.push(("IDEMPOTENCY_BATCHED_WRITES".to_owned(), grouping(worker)));
            if at_once > 1 {
                let name = "AWS_LAMBDA_MAX_CONCURRENCY".to_owned();
                settings.push((name, at_once.to_string()));
            }
            settings
        });
        let mapping = Arc::new(Mapping {
            seed,
            ledger: ledger.clone(),
            queue: queue.clone(),
            machine,
            relay,
            settings,
            lifetime: self.lifetime,
            at_once,
            fifo: self.fifo,
            hired: AtomicU32::new(0),
            most_at_once: AtomicUsize::new(0),
            zombies: Mutex::default(),
        });

        let started = Instant::now();
        // Ends: no message has more than its receives, and no receive lasts longer than the function's
        // timeout.
        mapping.run(self.workers).await;
        let statuses = statuses(&dynamo).await;
        let events = ledger.events();
        let accounts = accounts(&events);
        let violations = ends::violations(&accounts, &events, &statuses);
        let mut report = Report::of(self.title, seed, started.elapsed(), &events, &accounts);
        report.add("messages left in the queue", queue.left());
        println!("{report}");
        for violation in violations.iter().take(3) {
            println!("{violation}:\n{}", story(violation, &events));
        }
        assert!(violations.is_empty(), "{report}\n{violations:#?}");
        let most_at_once = mapping.most_at_once.load(Ordering::Relaxed);
        // A process that runs its invocations one after the other would prove little.
        assert!(most_at_once > self.at_once / 2, "{report}");
        report
    }
}

/// Events about the operations and workers named by a violation, with their places.
fn story(violation: &str, events: &[Event]) -> String {
    let words: Vec<_> = violation.split([' ', ',', '#']).collect();
    let operations = words
        .iter()
        .filter(|word| word.starts_with("o-") || word.starts_with("m-"));
    let mut names: Vec<_> = operations.map(|name| format!("{name}\"")).collect();
    for event in events {
        if let Event::Sent(message) = event {
            let both = [&message.id, &message.operation].map(|name| format!("{name}\""));
            if both.iter().any(|name| names.contains(name)) {
                names.extend(both);
            }
        }
    }
    let workers = words.windows(2).filter(|pair| pair[0] == "worker");
    let workers: Vec<_> = workers.map(|pair| format!("worker: {}", pair[1])).collect();
    let mut story = String::new();
    for (at, event) in events.iter().enumerate() {
        let line = format!("{event:?}");
        let of_worker = matches!(event, Event::Thawed { .. } | Event::Died { .. });
        let named = names.iter().any(|name| line.contains(name));
        let by_worker = of_worker && workers.iter().any(|worker| line.contains(worker));
        if named || by_worker {
            story.push_str(&format!("{at:>7}  {line}\n"));
        }
    }
    story
}

/// Every second worker groups its writes, so that workers with and without groups meet.
fn grouping(worker: Worker) -> String {
    let grouping = if worker.is_multiple_of(2) {
        "off"
    } else {
        "on"
    };
    grouping.to_owned()
}

/// Short times, so that conflicts and retries fit into a test.
fn settings(key: &str, pace: Pace, dynamo: &str, gateway: &str, sqs: &str) -> Env {
    let ms = |time: Duration| format!("{}ms", time.as_millis());
    let (gateway_timeout, reserve) = (ms(pace.gateway_timeout()), ms(pace.deadline_reserve()));
    let timeout = ms(pace.function_timeout());
    let settings = [
        ("AWS_ENDPOINT_URL_DYNAMODB", dynamo),
        ("AWS_ENDPOINT_URL_SQS", sqs),
        ("IDEMPOTENCY_TABLE_NAME", TABLE),
        ("IDEMPOTENCY_NAMESPACE", "chaos"),
        ("IDEMPOTENCY_KEY", key),
        ("TEST_LEASE_MARGIN", "100ms"),
        // A worker frozen before it reads its invocation finds the deadline past, which it takes for
        // no deadline. Its claim then lasts for this budget, and locks the key if the worker dies.
        ("TEST_ASSUMED_TIMEOUT", &timeout),
        ("PAYMENT_GATEWAY_URL", gateway),
        ("PAYMENT_GATEWAY_TIMEOUT", &gateway_timeout),
        ("TEST_DEADLINE_RESERVE", &reserve),
        ("CONSUMER_BACKOFF_BASE", "1s"),
        ("CONSUMER_BACKOFF_CAP", "3s"),
        ("TEST_CRASH_WAIT", CRASH_WAIT),
    ];
    let owned = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    owned.to_vec()
}

/// Status of every record, by key.
async fn statuses(dynamo: &Dynamo) -> HashMap<String, String> {
    let client = dynamo.client();
    let scan = client.scan().table_name(TABLE).consistent_read(true);
    let mut items = scan.into_paginator().items().send();
    let mut statuses = HashMap::new();
    while let Some(item) = items.next().await {
        let item = item.unwrap();
        statuses.insert(
            text(&item, "id").to_owned(),
            text(&item, "status").to_owned(),
        );
    }
    statuses
}
