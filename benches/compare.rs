//! Cost of the consumer beside a plain loop of SDK calls.
//!
//! The Runtime API drives both release binaries, in turns over several rounds, against the same
//! DynamoDB-shaped stub, so that disturbances of the machine hit both. Every number is the median
//! over the rounds. `BENCH_ROUNDS=1` is a quick look.

#![allow(
    clippy::unwrap_used,
    reason = "a bench that cannot set up its surroundings has nothing better to do than panic"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{Router, http::header::CONTENT_TYPE, serve::ListenerExt};
use comfy_table::{Cell, CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use support::{
    event,
    runtime_api::{Env, Lambda, consumer, program},
};

const LATENCIES_MS: [u64; 2] = [0, 5];
/// Messages in a batch, and the number of measured batches in a round.
const BATCHES: [(usize, usize); 3] = [(1, 200), (10, 200), (100, 60)];
/// Not measured: these batches open connections and fill pools and caches.
const WARM_UP: usize = 5;
const TIME: Duration = Duration::from_secs(30);

const MIB: f64 = 1024.0 * 1024.0;
const MB: f64 = 1e6;

/// The candidates, in the order of the tables' columns.
const RAW: usize = 0;
const CONSUMER: usize = 1;
const UNPRIMED: usize = 2;

struct Candidate {
    name: &'static str,
    binary: PathBuf,
    env: &'static [(&'static str, &'static str)],
}

/// Measurements of one process.
struct Run {
    init: Duration,
    first: Duration,
    /// Sorted.
    warm: Vec<Duration>,
    cpu: Duration,
    messages: usize,
    peak_memory: f64,
    requests: usize,
    connections: usize,
}

/// The runs of one candidate, by latency and batch size.
type Runs = BTreeMap<(u64, usize), Vec<Run>>;

type Measure = fn(&Run) -> f64;

#[tokio::main]
async fn main() {
    // `cargo test --benches` and `cargo bench` pass arguments for libtest, which this is not.
    let rounds = std::env::var("BENCH_ROUNDS").map_or(5, |rounds| rounds.parse().unwrap());
    let consumer = consumer();
    let candidates = [
        Candidate {
            name: "raw loop",
            binary: program("raw_loop"),
            env: &[],
        },
        Candidate {
            name: "consumer",
            binary: consumer.clone(),
            env: &[("CONSUMER_PRIME", "on")],
        },
        Candidate {
            name: "prime off",
            binary: consumer,
            env: &[("CONSUMER_PRIME", "off")],
        },
    ];
    let stub = Stub::start().await;

    let mut runs: [Runs; 3] = Default::default();
    for round in 0..rounds {
        for latency in LATENCIES_MS {
            for (size, batches) in BATCHES {
                // In turns: the first in one round is the last in the next.
                for turn in 0..candidates.len() {
                    let index = (turn + round) % candidates.len();
                    let candidate = &candidates[index];
                    progress(&format!(
                        "round {} of {rounds}: {} with {size} messages at {latency} ms",
                        round + 1,
                        candidate.name,
                    ));
                    stub.reset(latency);
                    // Priming ends with the first invocation.
                    let batches = if index == UNPRIMED { 0 } else { batches };
                    let run = measure(candidate, &stub, size, batches).await;
                    runs[index].entry((latency, size)).or_default().push(run);
                }
            }
        }
    }
    progress("");

    let sizes = candidates.map(|c| fs::metadata(&c.binary).unwrap().len() as f64 / MB);
    println!("{}", start_table(&runs, &sizes));
    println!("{}", warm_table(&runs));
    println!("{}", targets(&runs, &sizes));
}

/// Progress line, overwritten by the next one.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

/// Drives one process from its start: init, the first batch, the warm ones.
async fn measure(candidate: &Candidate, stub: &Stub, size: usize, batches: usize) -> Run {
    let mut env = env(&stub.endpoint);
    let own = candidate.env.iter();
    env.extend(own.map(|(name, value)| (name.to_string(), value.to_string())));
    let mut lambda = Lambda::spawn(&candidate.binary, env).await;
    let init = lambda.ready().await;
    let mut messages = 0;
    let first = invoke(&lambda, size, &mut messages).await;
    for _ in 0..WARM_UP.min(batches) {
        invoke(&lambda, size, &mut messages).await;
    }

    let (cpu, cold) = (cpu_time(lambda.pid()), messages);
    let requests = stub.requests();
    let mut warm = Vec::with_capacity(batches);
    for _ in 0..batches {
        warm.push(invoke(&lambda, size, &mut messages).await);
    }
    warm.sort();
    Run {
        init,
        first,
        warm,
        cpu: cpu_time(lambda.pid()) - cpu,
        messages: messages - cold,
        peak_memory: peak_memory(lambda.pid()),
        requests: stub.requests() - requests,
        connections: stub.connections(),
    }
}

/// One batch of new orders. Asserts success: a failure would be measured as speed.
async fn invoke(lambda: &Lambda, size: usize, messages: &mut usize) -> Duration {
    let orders = *messages..*messages + size;
    *messages += size;
    let records =
        orders.map(|n| event::record(&format!("m-{n}"), &event::order(&format!("o-{n}"))));
    let batch = event::batch(records);
    let start = Instant::now();
    let response = lambda.invoke(batch, TIME).await.response();
    let time = start.elapsed();
    assert!(
        event::failed(&response).is_empty(),
        "{:#?}",
        lambda.output()
    );
    time
}

fn env(endpoint: &str) -> Env {
    let env = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("IDEMPOTENCY_TABLE_NAME", "orders"),
        ("PAYMENT_GATEWAY_URL", "sandbox"),
    ];
    env.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

/// CPU time of all threads, to the nanosecond; `/proc/<pid>/stat` counts ticks.
fn cpu_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = tasks.map(|task| {
        // A thread that ends between the listing and the reading is missed.
        let stat = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default();
        let on_cpu = stat.split(' ').next().unwrap_or_default();
        on_cpu.parse::<u64>().unwrap_or_default()
    });
    Duration::from_nanos(nanoseconds.sum())
}

fn peak_memory(pid: u32) -> f64 {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    let status = status.unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<f64>().unwrap() * 1024.0 / MIB
}

/// Responds with `{}` to every request, and to a group with an answer for each statement, after a
/// delay.
struct Stub {
    endpoint: String,
    seen: Arc<Measured>,
}

#[derive(Default)]
struct Measured {
    latency_ms: AtomicU64,
    requests: AtomicUsize,
    connections: AtomicUsize,
}

impl Stub {
    async fn start() -> Self {
        let seen = Arc::new(Measured::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let listener = listener.tap_io({
            let seen = seen.clone();
            move |stream| {
                stream.set_nodelay(true).unwrap();
                seen.connections.fetch_add(1, Relaxed);
            }
        });
        let answer = {
            let seen = seen.clone();
            async move |body: String| {
                seen.requests.fetch_add(1, Relaxed);
                let latency = seen.latency_ms.load(Relaxed);
                if latency > 0 {
                    tokio::time::sleep(Duration::from_millis(latency)).await;
                }
                let answers = match body.matches("\"Statement\":").count() {
                    0 => "{}".to_owned(),
                    statements => {
                        let answers = ["{\"TableName\":\"orders\"}"].repeat(statements);
                        format!("{{\"Responses\":[{}]}}", answers.join(","))
                    }
                };
                ([(CONTENT_TYPE, "application/x-amz-json-1.0")], answers)
            }
        };
        let app = Router::new().fallback(answer);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { endpoint, seen }
    }

    fn reset(&self, latency_ms: u64) {
        self.seen.latency_ms.store(latency_ms, Relaxed);
        self.seen.connections.store(0, Relaxed);
    }

    fn requests(&self) -> usize {
        self.seen.requests.load(Relaxed)
    }

    fn connections(&self) -> usize {
        self.seen.connections.load(Relaxed)
    }
}

impl Run {
    fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.warm.len() * percent).div_ceil(100).max(1);
        milliseconds(self.warm[rank - 1])
    }

    /// Milliseconds for a thousand messages.
    fn cpu(&self) -> f64 {
        milliseconds(self.cpu) * 1000.0 / self.messages as f64
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

/// Median of `value` over the rounds.
fn over(runs: &Runs, latency: u64, batch: usize, value: impl Fn(&Run) -> f64) -> f64 {
    median(runs[&(latency, batch)].iter().map(value).collect())
}

/// Init does not depend on the batch to come.
fn init(runs: &Runs, latency: u64) -> f64 {
    let starts = runs.iter().filter(|((at, _), _)| *at == latency);
    median(
        starts
            .flat_map(|(_, runs)| runs)
            .map(|run| milliseconds(run.init))
            .collect(),
    )
}

fn start_table(runs: &[Runs; 3], sizes: &[f64; 3]) -> Table {
    let mut table = table([
        "start and size",
        "latency",
        "raw loop",
        "consumer",
        "ratio",
        "prime off",
        "ratio",
    ]);
    let mut row = |name: &str, latency: &str, [raw, consumer, unprimed]: [f64; 3]| {
        let cells = [raw, consumer, consumer / raw, unprimed, unprimed / raw];
        let labels = [name, latency].into_iter().map(Cell::new);
        table.add_row(labels.chain(cells.map(figure)));
    };
    for latency in LATENCIES_MS {
        let at = format!("{latency} ms");
        let inits = [RAW, CONSUMER, UNPRIMED].map(|index| init(&runs[index], latency));
        row("init, ms", &at, inits);
        for (size, _) in BATCHES {
            let first = |index| over(&runs[index], latency, size, |run| milliseconds(run.first));
            let name = format!("first batch of {size}, ms");
            row(&name, &at, [RAW, CONSUMER, UNPRIMED].map(first));
        }
    }
    row("binary, MB", "", *sizes);
    table
}

fn warm_table(runs: &[Runs; 3]) -> Table {
    let mut table = table(["warm", "latency", "batch", "raw loop", "consumer", "ratio"]);
    let measures: [(&str, Measure); 6] = [
        ("p50, ms", |run| run.percentile(50)),
        ("p99, ms", |run| run.percentile(99)),
        ("CPU per 1000 messages, ms", Run::cpu),
        ("peak memory, MiB", |run| run.peak_memory),
        ("requests per message", |run| {
            run.requests as f64 / run.messages as f64
        }),
        ("connections", |run| run.connections as f64),
    ];
    for (name, value) in measures {
        for latency in LATENCIES_MS {
            for (size, _) in BATCHES {
                let of = |index: usize| over(&runs[index], latency, size, value);
                let (raw, consumer) = (of(RAW), of(CONSUMER));
                let labels = [name.to_owned(), format!("{latency} ms"), size.to_string()];
                let cells = [raw, consumer, consumer / raw].map(figure);
                table.add_row(labels.map(Cell::new).into_iter().chain(cells));
            }
        }
    }
    table
}

/// The targets, and whether the measurements reach them.
fn targets(runs: &[Runs; 3], sizes: &[f64; 3]) -> Table {
    let mut table = table(["target", "limit", "seen", ""]);
    let mut row = |name: String, unit: &str, limit: f64, seen: f64| {
        let verdict = if seen <= limit { "met" } else { "missed" };
        let labels = [name, format!("{limit} {unit}"), format!("{seen:.2} {unit}")];
        table.add_row(
            labels
                .map(Cell::new)
                .into_iter()
                .chain([Cell::new(verdict)]),
        );
    };
    let ratio = |latency, size, value: Measure| {
        let of = |index: usize| over(&runs[index], latency, size, value);
        of(CONSUMER) / of(RAW)
    };
    for (size, _) in BATCHES {
        let p50 = ratio(5, size, |run| run.percentile(50));
        row(format!("warm p50 at 5 ms, batch {size}"), "x", 1.15, p50);
    }
    row(
        "CPU at 0 ms, batch 10".to_owned(),
        "x",
        1.35,
        ratio(0, 10, Run::cpu),
    );
    for (index, prime) in [(CONSUMER, "prime on"), (UNPRIMED, "prime off")] {
        for latency in LATENCIES_MS {
            let init = init(&runs[index], latency) / init(&runs[RAW], latency);
            row(format!("init at {latency} ms, {prime}"), "x", 1.5, init);
        }
    }
    let memory = over(&runs[CONSUMER], 0, 10, |run| run.peak_memory);
    row("peak memory, batch 10".to_owned(), "MiB", 16.0, memory);
    row("binary".to_owned(), "MB", 9.0, sizes[CONSUMER]);
    table
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    table
}

fn figure(value: f64) -> Cell {
    Cell::new(format!("{value:.2}")).set_alignment(CellAlignment::Right)
}
