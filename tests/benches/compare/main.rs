//! Cost of the consumer beside two plain loops of SDK calls, and beside Powertools for AWS Lambda.
//!
//! The Runtime API drives the candidates, in turns over several rounds, against the same
//! DynamoDB-shaped stub, so that disturbances of the machine hit all. Every number is the median
//! over the rounds. `BENCH_ROUNDS=1` is a quick look, whose files
//! go to `target/bench`.
//!
//! One thread serves stub and Runtime API, so that the candidate has a core for itself.

#![allow(
    clippy::unwrap_used,
    reason = "a bench that cannot set up its surroundings has nothing better to do than panic"
)]

mod candidates;
mod instructions;
mod numbers;
mod process;
mod report;
mod results;
mod targets;

use std::{fs, io::IsTerminal, path::Path, time::Duration};

use candidates::{CONSUMER, Candidate, UNPRIMED, on_path};
use process::Load;
use results::Results;
use support::stub::Stub;

/// Latency of the stub in most measurements.
const LATENCY_MS: u64 = 5;
/// Messages in a batch, and batches in a round. The last two are the first batch of their size.
const BATCHES: [(usize, usize); 7] = [
    (1, 100),
    (10, 100),
    (25, 100),
    (100, 30),
    (1000, 5),
    (2000, 1),
    (10_000, 1),
];
/// The largest batch that is also measured without latency.
const LARGEST_AT_0_MS: usize = 1000;
/// Processes in a round whose start is measured.
const STARTS: usize = 5;
/// Memory of the functions whose share of a vCPU is imitated, and their load.
const MEMORY_MB: [u64; 3] = [128, TEMPLATE_MB, 1769];
/// That of the template.
const TEMPLATE_MB: u64 = 256;
const LIMITED_BATCHES: [(usize, usize); 2] = [(10, 30), (100, 10)];
/// A batch with too little time for it.
const CUT_OFF: (usize, Duration) = (10_000, Duration::from_secs(5));
/// Memory of the functions that get it; `None` has a whole core.
const CUT_OFF_MEMORY_MB: [Option<u64>; 3] = [None, Some(256), Some(128)];

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // `cargo test --benches` and `cargo bench` pass arguments for libtest, which this is not.
    let rounds = std::env::var("BENCH_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let quick = rounds == 1;
    let time = Duration::from_millis(if quick { 500 } else { 1500 });

    let mut candidates = candidates::compiled();
    let (powertools, missing) = candidates::powertools();
    candidates.extend(powertools);
    let mut results = Results::new(rounds, missing);
    let stub = Stub::start().await;

    count_instructions(&candidates, &stub, &mut results).await;
    for round in 0..rounds {
        let round = Round {
            number: round,
            time,
        };
        round.batches(&candidates, &stub, &mut results).await;
        round.limited(&candidates, &stub, &mut results).await;
        round.cut_off(&candidates, &stub, &mut results).await;
        round.starts(&candidates, &stub, &mut results).await;
    }
    progress("");

    let page = report::page(&results);
    println!("{page}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(if quick { "target/bench" } else { "" });
    for folder in ["docs", "tests/benches/compare"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("docs/speed.md"), page).unwrap();
    for (name, data) in report::data(&results) {
        fs::write(root.join("tests/benches/compare").join(name), data).unwrap();
    }
}

async fn count_instructions(candidates: &[Candidate], stub: &Stub, results: &mut Results) {
    if on_path("valgrind").is_none() {
        let missing = "instructions per message: valgrind is missing";
        return results.missing.push(missing.to_owned());
    }
    for candidate in candidates.iter().filter(|candidate| candidate.compiled()) {
        for messages in instructions::sizes().filter(|messages| candidate.takes(*messages)) {
            let name = candidate.name;
            progress(&format!("instructions: {name}, batches of {messages}"));
            let count = instructions::per_message(candidate, stub, messages).await;
            if let Some(count) = results.succeeded(count, name, messages) {
                results.instructions.insert((name, messages), count);
            }
        }
    }
}

struct Round {
    number: usize,
    /// For the batches of one process.
    time: Duration,
}

impl Round {
    /// The candidates in turns: the first in one round is the last in the next.
    fn turns<'a>(&self, candidates: &'a [Candidate]) -> impl Iterator<Item = &'a Candidate> {
        let skipped = self.number % candidates.len();
        candidates
            .iter()
            .cycle()
            .skip(skipped)
            .take(candidates.len())
    }

    async fn batches(&self, candidates: &[Candidate], stub: &Stub, results: &mut Results) {
        for (messages, batches) in BATCHES {
            for latency in [0, LATENCY_MS] {
                if latency == 0 && messages > LARGEST_AT_0_MS {
                    continue;
                }
                let load = Load {
                    messages,
                    batches,
                    time: self.time,
                };
                for candidate in self.turns(candidates).filter(|c| c.takes(messages)) {
                    self.progress(candidate, &format!("{messages} messages at {latency} ms"));
                    stub.reset(latency);
                    let run = process::run(candidate, stub, load, None).await;
                    let cell = (candidate.name, latency, messages);
                    if let Some(run) = results.succeeded(run, candidate.name, messages) {
                        results.runs.entry(cell).or_default().push(run);
                    }
                }
            }
        }
    }

    async fn limited(&self, candidates: &[Candidate], stub: &Stub, results: &mut Results) {
        for (messages, batches) in LIMITED_BATCHES {
            let load = Load {
                messages,
                batches,
                time: self.time,
            };
            for memory in MEMORY_MB {
                for candidate in self.turns(candidates).filter(|c| c.takes(messages)) {
                    self.progress(candidate, &format!("{messages} messages, {memory} MB"));
                    stub.reset(LATENCY_MS);
                    let run = process::run(candidate, stub, load, Some(memory)).await;
                    let cell = (candidate.name, memory, messages);
                    if let Some(run) = results.succeeded(run, candidate.name, messages) {
                        results.limited.entry(cell).or_default().push(run);
                    }
                }
            }
        }
    }

    async fn cut_off(&self, candidates: &[Candidate], stub: &Stub, results: &mut Results) {
        let (messages, time) = CUT_OFF;
        let shipped = candidates
            .iter()
            .find(|candidate| candidate.name == CONSUMER);
        let shipped = shipped.unwrap();
        for memory in CUT_OFF_MEMORY_MB {
            self.progress(
                shipped,
                &format!("{messages} messages in {time:?}, {memory:?}"),
            );
            stub.reset(LATENCY_MS);
            let cut_off = process::cut_off(shipped, stub, messages, time, memory).await;
            let cut_off = results.succeeded(cut_off, shipped.name, messages);
            results.cut_offs.extend(cut_off);
        }
    }

    async fn starts(&self, candidates: &[Candidate], stub: &Stub, results: &mut Results) {
        for latency in [0, LATENCY_MS] {
            for _ in 0..STARTS {
                let distinct = |c: &&Candidate| c.takes(1) || c.name == UNPRIMED;
                for candidate in self.turns(candidates).filter(distinct) {
                    self.progress(candidate, &format!("start at {latency} ms"));
                    stub.reset(latency);
                    let start = process::start(candidate, stub).await;
                    let cell = (candidate.name, latency);
                    if let Some(start) = results.succeeded(start, candidate.name, 1) {
                        results.starts.entry(cell).or_default().push(start);
                    }
                }
            }
        }
    }

    fn progress(&self, candidate: &Candidate, what: &str) {
        let Candidate { name, .. } = candidate;
        progress(&format!("round {}: {name}, {what}", self.number + 1));
    }
}

/// Progress line, overwritten by the next one.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}
