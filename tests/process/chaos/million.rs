//! A million messages (`make soak-million`), in waves. Each wave has a queue, a table, workers and a ledger of its
//! own, which is audited and dropped when the wave has ended. So memory stays bounded.

use std::{
    env, fs,
    panic::{self, AssertUnwindSafe},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{runtime::Builder, time::Instant};

use crate::chaos::{
    ORDERS, Run, STANDARD,
    plan::{Seed, orders, size},
    queue::Rules,
    report::Report,
};

/// Messages of a wave.
const WAVE: usize = 10_000;

/// Messages of one wave that are in the queue at a time.
const IN_QUEUE: usize = 1000;

/// Of so many messages one is of each kind that ends its process.
const RARE: usize = 2000;

/// The waves take turns at these.
const RUNS: [Run; 2] = [
    Run {
        title: "a wave on a standard queue, with one invocation at a time in each worker",
        lifetime: Some(60),
        workers: 12,
        ..ORDERS
    },
    Run {
        title: "a wave on a standard queue, with 8 invocations at once in each worker",
        rules: Rules {
            batch: 4,
            ..STANDARD
        },
        lifetime: Some(400),
        workers: 3,
        at_once: 8,
        ..ORDERS
    },
];

struct Million {
    seed: Seed,
    messages: usize,
    /// No message is sent from then on.
    until: Option<Instant>,
    started: Instant,
    next: AtomicUsize,
    so_far: Mutex<Option<Report>>,
}

#[test]
#[ignore = "hours: make soak-million"]
fn a_million_messages_keep_promises() {
    let started = Instant::now();
    let minutes = env::var("SOAK_MINUTES").ok();
    let limit = minutes.map(|minutes| minutes.parse().expect("a number of minutes"));
    let million = Million {
        seed: Seed::all()[0],
        messages: size("SOAK_MESSAGES", 1_000_000),
        until: limit.map(|minutes: u64| started + Duration::from_secs(60 * minutes)),
        started,
        next: AtomicUsize::new(0),
        so_far: Mutex::default(),
    };
    println!("a million messages: CHAOS_SEED={}", million.seed.0);
    let waves_at_once = size("SOAK_WAVES", 5);
    let lanes: Vec<_> = thread::scope(|scope| {
        let lanes = (0..waves_at_once).map(|_| scope.spawn(|| million.lane()));
        let started: Vec<_> = lanes.collect();
        started.into_iter().map(|lane| lane.join()).collect()
    });
    million.tell();
    if let Some(report) = &*million.so_far.lock().unwrap() {
        println!("{report}");
    }
    if let Some(failed) = lanes.into_iter().find_map(Result::err) {
        panic::resume_unwind(failed);
    }
    million.assert_all_faults();
}

impl Million {
    /// Runs one wave after the other.
    fn lane(&self) {
        loop {
            let wave = self.next.fetch_add(1, Ordering::Relaxed);
            let is_over = self.until.is_some_and(|until| until < Instant::now());
            if is_over || wave * WAVE >= self.messages {
                return;
            }
            // Its servers, tasks and connections end with the runtime.
            let mut runtime = Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            let ended = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(self.wave(wave))));
            let report = ended.unwrap_or_else(|failed| {
                // No lane begins another wave.
                self.next.fetch_max(self.messages, Ordering::Relaxed);
                panic::resume_unwind(failed)
            });
            let mut so_far = self.so_far.lock().unwrap();
            *so_far = Some(match so_far.take() {
                Some(others) => others.with(report),
                None => report.titled("a million messages"),
            });
            drop(so_far);
            self.tell();
        }
    }

    async fn wave(&self, wave: usize) -> Report {
        let mut run = RUNS[wave % RUNS.len()];
        run.rules.at_once = IN_QUEUE;
        run.rules.until = self.until;
        let seed = Seed(self.seed.dice(("wave", wave)).u64(..));
        let size = WAVE.min(self.messages - wave * WAVE);
        run.with_seed(seed, orders(seed, size, 3, RARE)).await
    }

    /// How far it has come.
    fn tell(&self) {
        let so_far = self.so_far.lock().unwrap();
        let Some(report) = &*so_far else { return };
        let (minutes, messages) = (
            self.started.elapsed().as_secs_f64() / 60.0,
            report.number("messages, sent"),
        );
        println!(
            "{messages} of {} messages after {minutes:.1} minutes, {:.1} a second; lost: {}, kills: {}; {}",
            self.messages,
            messages as f64 / minutes / 60.0,
            report.number("messages lost or left"),
            report.number("workers, Killed") - report.number("workers, KilledByMessage"),
            peak_memory(),
        );
    }

    /// A run without these events would prove nothing.
    fn assert_all_faults(&self) {
        let so_far = self.so_far.lock().unwrap();
        let report = so_far.as_ref().expect("time for one wave");
        report.assert_some(&[
            "workers, Killed",
            "workers, FrozenUntilTimeout",
            "workers, KilledByMessage",
            "workers, thawed",
            "workers, rested",
            "requests on dead connections",
            "DynamoDB fault, CutAfter",
            "DynamoDB fault, Throttled",
            "outage, Gateway",
            "outage, Table",
            "outcome, circuit_open",
            "records, deleted after their time to live",
            "records, claimed over after their time to live",
            "redriven messages acknowledged",
            "in the dead-letter queue, Killer: crashed",
        ]);
        for none in ["messages lost or left", "orders charged under"] {
            assert_eq!(report.number(none), 0, "{report}");
        }
    }
}

/// The largest memory of this process so far, as Linux tells it.
fn peak_memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    peak.unwrap_or("peak memory unknown").replace('\t', " ")
}
