//! The targets, and whether the measurements reach them.

use crate::{
    CUT_OFF, LATENCY_MS,
    candidates::{CONSUMER, GROUPED, RAW, UNBOUNDED, UNPRIMED},
    process::{Run, milliseconds},
    results::{Measure, Results},
};

/// A figure with a limit. Both are missing where the measurement was left out.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) limit: Option<f64>,
    pub(crate) seen: Option<f64>,
}

const PEAK: Measure = |run| run.peak_memory_mib;

pub(crate) fn targets(results: &Results) -> Vec<Target> {
    let targets = [consumer(results), grouping(results), large_batches(results)];
    targets.into_iter().flatten().collect()
}

fn consumer(results: &Results) -> Vec<Target> {
    let instructions = |name| results.instructions(name, 10);
    let ratio = |latency, messages, measure| {
        quotient(
            results.of(CONSUMER, latency, messages, measure),
            results.of(RAW, latency, messages, measure),
        )
    };
    let mut targets = vec![
        target(
            "instructions per message, batch of 10",
            "x the raw loop",
            Some(1.25),
            quotient(instructions(CONSUMER), instructions(RAW)),
        ),
        target(
            "CPU, batch of 10, 0 ms",
            "x the raw loop",
            Some(1.2),
            ratio(0, 10, Run::cpu_ms),
        ),
    ];
    for messages in [1, 10] {
        targets.push(target(
            format!("p50, batch of {messages}, {LATENCY_MS} ms"),
            "x the raw loop",
            Some(1.15),
            ratio(LATENCY_MS, messages, Run::p50_ms),
        ));
    }
    let init = |name, latency| results.init_ms(name, latency);
    for latency in [0, LATENCY_MS] {
        targets.push(target(
            format!("init without the warm-up read, {latency} ms"),
            "x the raw loop",
            Some(1.2),
            quotient(init(UNPRIMED, latency), init(RAW, latency)),
        ));
    }
    let two_round_trips = results.of(RAW, LATENCY_MS, 1, Run::p50_ms);
    let read = init(CONSUMER, LATENCY_MS).zip(init(UNPRIMED, LATENCY_MS));
    targets.push(target(
        format!("warm-up read in init, {LATENCY_MS} ms (limit: one round trip)"),
        "ms",
        two_round_trips.map(|two| two / 2.0),
        read.map(|(with, without)| with - without),
    ));
    targets.push(target(
        "peak memory, batch of 10",
        "MiB",
        Some(16.0),
        results.of(CONSUMER, LATENCY_MS, 10, PEAK),
    ));
    targets
}

fn grouping(results: &Results) -> Vec<Target> {
    let of = |name, messages, measure| results.of(name, LATENCY_MS, messages, measure);
    let ratio =
        |messages, measure, to| quotient(of(GROUPED, messages, measure), of(to, messages, measure));
    // Whichever is lower in this run.
    let limit = of(RAW, 100, Run::p50_ms).map(|raw| f64::min(0.6 * raw, 20.0));
    let mut targets = vec![
        target(
            "grouping: p50, batch of 1",
            "x the consumer",
            Some(1.02),
            ratio(1, Run::p50_ms, CONSUMER),
        ),
        target(
            "grouping: p50, batch of 100 (limit: 0.6 x the raw loop, and 20 ms)",
            "ms",
            limit,
            of(GROUPED, 100, Run::p50_ms),
        ),
        target(
            "grouping: CPU, batch of 10",
            "x the consumer",
            Some(0.6),
            ratio(10, Run::cpu_ms, CONSUMER),
        ),
        target(
            "grouping: CPU, batch of 100",
            "x the unbounded consumer",
            Some(0.45),
            ratio(100, Run::cpu_ms, UNBOUNDED),
        ),
    ];
    for (messages, limit) in [(10, 0.3), (100, 0.1)] {
        targets.push(target(
            format!("grouping: requests per message, batch of {messages}"),
            "",
            Some(limit),
            of(GROUPED, messages, Run::requests_per_message),
        ));
    }
    for messages in [2000, 10_000] {
        let measures: [(&str, f64, Measure); 2] =
            [("time", 1.0, Run::p50_ms), ("peak memory", 0.1, PEAK)];
        for (name, limit, measure) in measures {
            targets.push(target(
                format!("grouping: {name}, batch of {messages}"),
                "x the raw loop",
                Some(limit),
                ratio(messages, measure, RAW),
            ));
        }
        targets.push(target(
            format!("grouping: connections, batch of {messages}"),
            "",
            Some(8.0),
            of(GROUPED, messages, |run| run.connections),
        ));
    }
    targets.push(target(
        "grouping: peak memory, batch of 10000",
        "MiB",
        Some(64.0),
        of(GROUPED, 10_000, PEAK),
    ));
    targets
}

fn large_batches(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    for name in [CONSUMER, GROUPED] {
        let cpu = |messages| results.of(name, LATENCY_MS, messages, Run::cpu_ms);
        targets.push(target(
            format!("{name}: CPU per message, batch of 10000"),
            "x batch of 100",
            Some(1.2),
            quotient(cpu(10_000), cpu(100)),
        ));
    }
    let (messages, time) = CUT_OFF;
    let latest = results
        .cut_offs
        .iter()
        .map(|cut_off| cut_off.response)
        .max();
    targets.push(target(
        format!("consumer: response to a batch of {messages} with too little time"),
        "s",
        Some(time.as_secs_f64()),
        latest.map(|latest| milliseconds(latest) / 1000.0),
    ));
    targets
}

fn target(
    name: impl Into<String>,
    unit: &'static str,
    limit: Option<f64>,
    seen: Option<f64>,
) -> Target {
    Target {
        name: name.into(),
        unit,
        limit,
        seen,
    }
}

fn quotient(value: Option<f64>, divisor: Option<f64>) -> Option<f64> {
    Some(value? / divisor?)
}
