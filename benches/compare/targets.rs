//! The targets, and whether the measurements reach them.

use crate::{
    CUT_OFF, LATENCY_MS,
    candidates::{CONSUMER, RAW, RAW_BATCHES, TYPESCRIPT, UNPRIMED},
    numbers::batch_of,
    process::Run,
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

/// Counts are limits. Times are goals: they depend on the machine.
pub(crate) fn targets(results: &Results) -> Vec<Target> {
    [counts(results), times(results), starts(results)]
        .into_iter()
        .flatten()
        .collect()
}

fn counts(results: &Results) -> Vec<Target> {
    let of = |messages, measure| results.of(CONSUMER, LATENCY_MS, messages, measure);
    let instructions = |name| results.instructions(name, 10);
    let of_batch = |messages| results.instructions(CONSUMER, messages);
    vec![
        target(
            "requests per message, batch of 10",
            "",
            0.2,
            of(10, Run::requests_per_message),
        ),
        target(
            "requests per message, batch of 100",
            "",
            0.08,
            of(100, Run::requests_per_message),
        ),
        target(
            "instructions, batch of 10",
            TO_RAW,
            0.5,
            quotient(instructions(CONSUMER), instructions(RAW)),
        ),
        target(
            "instructions per message, batch of 1,000",
            "x batch of 100",
            1.05,
            quotient(of_batch(1000), of_batch(100)),
        ),
        target("peak memory, batch of 10", "MiB", 16.0, of(10, PEAK)),
        target(
            "peak memory, batch of 10,000",
            "MiB",
            64.0,
            of(10_000, PEAK),
        ),
        target(
            "connections, batch of 10,000",
            "",
            8.0,
            of(10_000, CONNECTIONS),
        ),
    ]
}

fn times(results: &Results) -> Vec<Target> {
    let ratio = |measure, messages, to| {
        let of = |name| results.of(name, LATENCY_MS, messages, measure);
        quotient(of(CONSUMER), of(to))
    };
    let limited = |name| results.limited(name, 128, 10, Run::p50_ms);
    let mut targets = vec![
        target("p50, batch of 1", TO_RAW, 1.03, ratio(Run::p50_ms, 1, RAW)),
        target("p50, batch of 10", TO_RAW, 1.0, ratio(Run::p50_ms, 10, RAW)),
        target(
            "CPU, batch of 10",
            TO_RAW,
            0.85,
            ratio(Run::cpu_ms, 10, RAW),
        ),
        target(
            "p50, batch of 10, 128 MB",
            TO_RAW,
            0.6,
            quotient(limited(CONSUMER), limited(RAW)),
        ),
        target(
            "p50, batch of 100",
            TO_RAW,
            0.8,
            ratio(Run::p50_ms, 100, RAW),
        ),
        target(
            "p50, batch of 100",
            "x Powertools TypeScript",
            0.2,
            ratio(Run::p50_ms, 100, TYPESCRIPT),
        ),
        target(
            "time, batch of 10,000",
            TO_RAW,
            1.0,
            ratio(Run::p50_ms, 10_000, RAW),
        ),
        target(
            "CPU, batch of 100",
            "x raw loop, batched",
            2.0,
            ratio(Run::cpu_ms, 100, RAW_BATCHES),
        ),
    ];
    let (messages, time) = CUT_OFF;
    let latest = results
        .cut_offs
        .iter()
        .map(|cut_off| cut_off.response)
        .max();
    let name = format!("response to a cut-off {}", batch_of(messages));
    let latest = latest.map(|latest| latest.as_secs_f64());
    targets.push(target(name, "s", time.as_secs_f64(), latest));
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
            1.2,
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
