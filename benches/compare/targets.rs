//! The targets, and whether the measurements reach them.

use crate::{
    CUT_OFF, LATENCY_MS,
    candidates::{CONSUMER, GROUPED, GROUPED_WIDE, RAW, UNBOUNDED, UNPRIMED},
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

pub(crate) const PEAK: Measure = |run| run.peak_memory_mib;
const CONNECTIONS: Measure = |run| run.connections;

const TO_RAW: &str = "x raw loop";
const TO_CONSUMER: &str = "x consumer";

pub(crate) fn targets(results: &Results) -> Vec<Target> {
    let groups = [
        consumer(results),
        grouping(results),
        grouping_of_many(results, GROUPED),
        grouping_of_many(results, GROUPED_WIDE),
        large_batches(results),
    ];
    groups.into_iter().flatten().collect()
}

fn consumer(results: &Results) -> Vec<Target> {
    let of = |name, latency, measure| results.of(name, latency, 10, measure);
    let ratio =
        |latency, measure| quotient(of(CONSUMER, latency, measure), of(RAW, latency, measure));
    let instructions = quotient(
        results.instructions(CONSUMER, 10),
        results.instructions(RAW, 10),
    );
    let mut targets = vec![
        target("instructions, batch of 10", TO_RAW, 1.25, instructions),
        target("CPU, batch of 10, 0 ms", TO_RAW, 1.2, ratio(0, Run::cpu_ms)),
        // The raw loop is up to date only if it sends the same bytes.
        target(
            "bytes per request, batch of 10",
            TO_RAW,
            1.01,
            ratio(LATENCY_MS, Run::bytes_per_request),
        ),
        target(
            "p50, batch of 10",
            TO_RAW,
            1.15,
            ratio(LATENCY_MS, Run::p50_ms),
        ),
    ];
    let init = |name, latency| results.init_ms(name, latency);
    for latency in [0, LATENCY_MS] {
        let name = format!("init without the warm-up read, {latency} ms");
        let seen = quotient(init(UNPRIMED, latency), init(RAW, latency));
        targets.push(target(name, TO_RAW, 1.2, seen));
    }
    let with_and_without = init(CONSUMER, LATENCY_MS).zip(init(UNPRIMED, LATENCY_MS));
    let two_round_trips = results.of(RAW, LATENCY_MS, 1, Run::p50_ms);
    let memory = of(CONSUMER, LATENCY_MS, PEAK);
    targets.extend([
        target(
            "warm-up read in init: one round trip",
            "ms",
            two_round_trips.map(|two| two / 2.0),
            with_and_without.map(|(with, without)| with - without),
        ),
        target("peak memory, batch of 10", "MiB", 16.0, memory),
    ]);
    targets
}

/// Batches in which the bound of the handlers makes no difference.
fn grouping(results: &Results) -> Vec<Target> {
    let of = |name, messages, measure| results.of(name, LATENCY_MS, messages, measure);
    let ratio = |messages, measure| {
        quotient(
            of(GROUPED, messages, measure),
            of(CONSUMER, messages, measure),
        )
    };
    let requests = of(GROUPED, 10, Run::requests_per_message);
    vec![
        target(
            "grouping: p50, batch of 1",
            TO_CONSUMER,
            1.02,
            ratio(1, Run::p50_ms),
        ),
        target(
            "grouping: CPU, batch of 10",
            TO_CONSUMER,
            0.6,
            ratio(10, Run::cpu_ms),
        ),
        target(
            "grouping: requests per message, batch of 10",
            "",
            0.3,
            requests,
        ),
    ]
}

fn grouping_of_many(results: &Results, grouped: &'static str) -> Vec<Target> {
    let of = |name, messages, measure| results.of(name, LATENCY_MS, messages, measure);
    let seen = |messages, measure| of(grouped, messages, measure);
    let ratio =
        |messages, measure, to| quotient(seen(messages, measure), of(to, messages, measure));
    let name = |figure, messages| format!("{grouped}: {figure}, {}", batch_of(messages));
    // Whichever is lower in this run.
    let p50 = of(RAW, 100, Run::p50_ms).map(|raw| f64::min(0.6 * raw, 20.0));
    let cpu = ratio(100, Run::cpu_ms, UNBOUNDED);
    let requests = seen(100, Run::requests_per_message);
    let mut targets = vec![
        target(name("p50", 100), "ms", p50, seen(100, Run::p50_ms)),
        target(name("CPU", 100), "x consumer, unbounded", 0.45, cpu),
        target(name("requests per message", 100), "", 0.1, requests),
    ];
    for messages in [2000, 10_000] {
        let ratio = |measure| ratio(messages, measure, RAW);
        let connections = seen(messages, CONNECTIONS);
        targets.extend([
            target(name("time", messages), TO_RAW, 1.0, ratio(Run::p50_ms)),
            target(name("peak memory", messages), TO_RAW, 0.1, ratio(PEAK)),
            target(name("connections", messages), "", 8.0, connections),
        ]);
    }
    let memory = seen(10_000, PEAK);
    targets.push(target(name("peak memory", 10_000), "MiB", 64.0, memory));
    targets
}

fn large_batches(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    for name in [CONSUMER, GROUPED] {
        let cpu = |messages| results.of(name, LATENCY_MS, messages, Run::cpu_ms);
        let growth = quotient(cpu(10_000), cpu(100));
        let name = format!("{name}: CPU per message, batch of 10,000");
        targets.push(target(name, "x batch of 100", 1.2, growth));
    }
    // CPU time also depends on the clock and the other load of the machine during a long batch.
    for name in [CONSUMER, GROUPED] {
        let instructions = |messages| results.instructions(name, messages);
        let growth = quotient(instructions(1000), instructions(100));
        let name = format!("{name}: instructions per message, batch of 1,000");
        targets.push(target(name, "x batch of 100", 1.05, growth));
    }
    let (messages, time) = CUT_OFF;
    let latest = results
        .cut_offs
        .iter()
        .map(|cut_off| cut_off.response)
        .max();
    let name = format!("consumer: response to a cut-off {}", batch_of(messages));
    let latest = latest.map(|latest| latest.as_secs_f64());
    targets.push(target(name, "s", time.as_secs_f64(), latest));
    targets
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
