//! The targets, and whether the measurements reach them.

use support::runtime_api::consumer;

use crate::{
    CUT_OFF, CUT_OFF_MEMORY_MB, LATENCY_MS, TEMPLATE_MB,
    candidates::{CONSUMER, RAW, RAW_BATCHES, TYPESCRIPT, UNPRIMED},
    numbers::batch_of,
    process::Run,
    report::megabytes,
    results::{Measure, Results},
};

/// A figure with a limit. Both are missing where the measurement was left out.
pub(crate) struct Target {
    pub(crate) name: String,
    /// Of both.
    pub(crate) unit: &'static str,
    pub(crate) limit: Option<f64>,
    pub(crate) seen: Option<f64>,
}

const PEAK: Measure = |run| run.peak_memory_mib;
const CONNECTIONS: Measure = |run| run.connections;

const TO_RAW: &str = "x raw loop";
const TO_BATCHED: &str = "x raw loop, batched";
const TO_TYPESCRIPT: &str = "x Powertools TypeScript";

/// Counts, which are the same on a busy machine, and then times.
pub(crate) fn targets(results: &Results) -> Vec<Target> {
    [counts(results), times(results), starts(results)]
        .into_iter()
        .flatten()
        .collect()
}

fn counts(results: &Results) -> Vec<Target> {
    let of = |name, messages, measure| results.of(name, LATENCY_MS, messages, measure);
    let ours = |messages, measure| of(CONSUMER, messages, measure);
    let instructions = |messages, to| {
        let of = |name| results.instructions(name, messages);
        quotient(of(CONSUMER), of(to))
    };
    let bytes = |name| of(name, 25, Run::bytes_per_request);
    let requests: Measure = Run::requests_per_message;
    let of_batch = |messages| results.instructions(CONSUMER, messages);
    let of_100 = quotient(of_batch(1000), of_batch(100));
    let bytes = quotient(bytes(CONSUMER), bytes(RAW_BATCHES));
    vec![
        target(
            "requests per message, batch of 10",
            "",
            0.2,
            ours(10, requests),
        ),
        target(
            "requests per message, batch of 100",
            "",
            0.08,
            ours(100, requests),
        ),
        target(
            "instructions, batch of 1",
            TO_RAW,
            1.15,
            instructions(1, RAW),
        ),
        target(
            "instructions, batch of 10",
            TO_RAW,
            0.35,
            instructions(10, RAW),
        ),
        target(
            "instructions, batch of 100",
            TO_BATCHED,
            1.8,
            instructions(100, RAW_BATCHES),
        ),
        target(
            "instructions per message, batch of 1,000",
            "x batch of 100",
            1.05,
            of_100,
        ),
        target("bytes per request, batch of 25", TO_BATCHED, 1.8, bytes),
        target("peak memory, batch of 10", "MiB", 9.5, ours(10, PEAK)),
        target("peak memory, batch of 100", "MiB", 11.6, ours(100, PEAK)),
        target(
            "peak memory, batch of 10,000",
            "MiB",
            64.0,
            ours(10_000, PEAK),
        ),
        target(
            "connections, batch of 10,000",
            "",
            8.0,
            ours(10_000, CONNECTIONS),
        ),
        target(
            "size of the binary",
            "MB",
            6.0,
            Some(megabytes(&consumer())),
        ),
    ]
}

fn times(results: &Results) -> Vec<Target> {
    let ratio = |measure, messages, to| {
        let of = |name| results.of(name, LATENCY_MS, messages, measure);
        quotient(of(CONSUMER), of(to))
    };
    let limited = |messages| {
        let of = |name| results.limited(name, TEMPLATE_MB, messages, Run::p50_ms);
        quotient(of(CONSUMER), of(RAW))
    };
    let p50: Measure = Run::p50_ms;
    let cpu: Measure = Run::cpu_ms;
    let mut targets = vec![
        target("p50, batch of 1", TO_RAW, 1.03, ratio(p50, 1, RAW)),
        target("p50, batch of 10", TO_RAW, 1.0, ratio(p50, 10, RAW)),
        target("p50, batch of 10, 256 MB", TO_RAW, 1.0, limited(10)),
        target("p50, batch of 100, 256 MB", TO_RAW, 0.75, limited(100)),
        target(
            "p50, batch of 100",
            TO_TYPESCRIPT,
            0.14,
            ratio(p50, 100, TYPESCRIPT),
        ),
        target(
            "p50, batch of 1,000",
            TO_BATCHED,
            3.0,
            ratio(p50, 1000, RAW_BATCHES),
        ),
        target(
            "time, batch of 10,000",
            TO_RAW,
            1.0,
            ratio(p50, 10_000, RAW),
        ),
        target("CPU, batch of 10", TO_RAW, 0.85, ratio(cpu, 10, RAW)),
        target(
            "CPU, batch of 100",
            TO_BATCHED,
            2.0,
            ratio(cpu, 100, RAW_BATCHES),
        ),
    ];
    let (messages, time) = CUT_OFF;
    for memory in CUT_OFF_MEMORY_MB {
        let of_memory = results.cut_offs.iter().filter(|of| of.memory == memory);
        let latest = of_memory.map(|of| of.response.as_secs_f64());
        let cpu = memory.map_or(String::new(), |mb| format!(", {mb} MB"));
        let name = format!("response to a cut-off {}{cpu}", batch_of(messages));
        targets.push(target(
            name,
            "s",
            time.as_secs_f64(),
            latest.reduce(f64::max),
        ));
    }
    targets
}

fn starts(results: &Results) -> Vec<Target> {
    let init = |name, latency| results.init_ms(name, latency);
    let with_and_without = init(CONSUMER, LATENCY_MS).zip(init(UNPRIMED, LATENCY_MS));
    let two_round_trips = results.of(RAW, LATENCY_MS, 1, Run::p50_ms);
    vec![
        target(
            "init without the warm-up read, 0 ms",
            TO_RAW,
            1.05,
            quotient(init(UNPRIMED, 0), init(RAW, 0)),
        ),
        target(
            "warm-up read in init: one round trip",
            "ms",
            two_round_trips.map(|two| two / 2.0),
            with_and_without.map(|(with, without)| with - without),
        ),
    ]
}

fn target(
    name: impl Into<String>,
    unit: &'static str,
    limit: impl Into<Option<f64>>,
    seen: Option<f64>,
) -> Target {
    Target {
        name: name.into(),
        unit,
        limit: limit.into(),
        seen,
    }
}

fn quotient(value: Option<f64>, divisor: Option<f64>) -> Option<f64> {
    Some(value? / divisor?)
}
