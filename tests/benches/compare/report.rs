//! What a run writes: docs/speed.md for readers, and a data file beside the bench for each kind of measurement.

use std::{fmt::Write, fs, path::Path, process::Command, time::SystemTime};

use crate::{
    LATENCY_MS, LIMITED_BATCHES, TEMPLATE_MB,
    candidates::{CONSUMER, RAW, RAW_BATCHES, SINGLE, TYPESCRIPT},
    numbers::{batch_of, digits},
    process::Run,
    results::{Measure, Results},
    targets::targets,
};

/// The figures that most readers look for.
pub(crate) fn page(results: &Results) -> String {
    let node = version("node").map(|version| format!("Node.js {version}"));
    let versions: Vec<_> = version("rustc").into_iter().chain(node).collect();
    let mut page = format!(
        "{INTRODUCTION}\n{}\nMeasured on {} on {}, with {}. Each figure is the median of {} rounds.\n\
         A process has a whole core. In rows with a memory size, it has the part of a vCPU that Lambda gives such a function.\n",
        summary(results),
        today(),
        cpu(),
        versions.join(", "),
        results.rounds,
    );
    if !results.missing.is_empty() {
        page += "\nLeft out:\n\n";
    }
    for missing in &results.missing {
        writeln!(page, "- {missing}").unwrap();
    }
    page
}

const INTRODUCTION: &str = "\
# Speed

How much time and CPU does a batch take with sqs-once, with plain loops of AWS SDK calls, and with Powertools for TypeScript? Each candidate
runs as a process behind the same Lambda Runtime API on one machine, and a stub that answers after 5 ms stands in for DynamoDB. We measured
nothing on AWS. `make bench` writes this page and [data files](https://github.com/sqs-once/sqs-once/blob/main/tests/benches) with other batch
sizes, p99, bytes, connections, instructions, our goals, Powertools for Python and PostgreSQL.

- **raw loop** runs all messages of a batch at once on one thread, with the shortest possible claim and completion. It decides and logs
  nothing. On Lambda, it couldn't run a batch of 10,000, because a function may open only 1,024 files.
- **raw loop, batched** batches the same writes by hand: first all claims of a batch, 25 in a request, then all completions.
- **consumer** is the release build, with no settings but the table and the gateway. In init, it reads from its table once.
- **consumer, single writes** has `IDEMPOTENCY_BATCHED_WRITES=off`.
- **Powertools TypeScript** is the batch processor with the idempotency utility, as documented for SQS. It runs all messages at once.
";

fn summary(results: &Results) -> String {
    let columns = [RAW, RAW_BATCHES, CONSUMER, SINGLE, TYPESCRIPT];
    let mut text = format!(
        "| | {} |\n| --- |{}\n",
        columns.join(" | "),
        " ---: |".repeat(columns.len())
    );
    let mut row = |label: String, value: &dyn Fn(&'static str) -> Option<f64>| {
        let figures = columns.map(|name| figure(value(name)));
        writeln!(text, "| {label} | {} |", figures.join(" | ")).unwrap();
    };
    let rows: [(&str, Measure, &[usize]); 4] = [
        ("p50 in ms", Run::p50_ms, &[1, 10, 100, 10_000]),
        ("CPU in ms per 1,000 messages", Run::cpu_ms, &[10, 100]),
        (
            "requests per message",
            Run::requests_per_message,
            &[10, 100],
        ),
        (
            "peak memory in MiB",
            |run| run.peak_memory_mib,
            &[10, 100, 10_000],
        ),
    ];
    for (title, measure, sizes) in rows {
        for messages in sizes.iter().copied() {
            row(format!("{}, {title}", batch_of(messages)), &|name| {
                results.of(name, LATENCY_MS, messages, measure)
            });
        }
    }
    for (messages, _) in LIMITED_BATCHES {
        let label = format!("{}, p50 in ms, {TEMPLATE_MB} MB", batch_of(messages));
        row(label, &|name| {
            results.limited(name, TEMPLATE_MB, messages, Run::p50_ms)
        });
    }
    row("init in ms".to_owned(), &|name| {
        results.init_ms(name, LATENCY_MS)
    });
    row("first message after init, in ms".to_owned(), &|name| {
        results.first_ms(name, LATENCY_MS)
    });
    text
}

fn today() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now[..10].to_owned()
}

fn cpu() -> String {
    let cores = std::thread::available_parallelism().unwrap();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = cpu.unwrap_or_default().trim_start_matches([':', ' ', '\t']);
    format!("{cpu}, {cores} cores")
}

/// Returns what `tool --version` prints.
fn version(tool: &str) -> Option<String> {
    let ran = Command::new(tool).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}

/// Names and contents of the data files. A candidate's name has a comma, so it stands in quotes.
pub(crate) fn data(results: &Results) -> [(&'static str, String); 3] {
    [
        ("batches.csv", batches(results)),
        ("starts.csv", starts(results)),
        ("goals.csv", goals(results)),
    ]
}

const MEASURES: [(&str, Measure); 7] = [
    ("p50_ms", Run::p50_ms),
    ("p99_ms", Run::p99_ms),
    ("cpu_ms_per_1000_messages", Run::cpu_ms),
    ("requests_per_message", Run::requests_per_message),
    ("bytes_per_request", Run::bytes_per_request),
    ("peak_memory_mib", |run| run.peak_memory_mib),
    ("connections", |run| run.connections),
];

/// Instructions are counted without latency.
fn batches(results: &Results) -> String {
    let measures = MEASURES.map(|(measure, _)| measure).join(",");
    let mut text =
        format!("candidate,latency_ms,memory_mb,messages,{measures},instructions_per_message\n");
    let whole = results.runs.keys().map(|cell| (*cell, None));
    let limited = results
        .limited
        .keys()
        .map(|(name, memory, messages)| ((*name, LATENCY_MS, *messages), Some(*memory)));
    for ((name, latency, messages), memory) in whole.chain(limited) {
        let values = MEASURES.map(|(_, measure)| {
            digits(match memory {
                None => results.of(name, latency, messages, measure),
                Some(memory) => results.limited(name, memory, messages, measure),
            })
        });
        let instructions = results
            .instructions(name, messages)
            .filter(|_| latency == 0);
        let memory = memory.map(|memory| memory.to_string()).unwrap_or_default();
        writeln!(
            text,
            "\"{name}\",{latency},{memory},{messages},{},{}",
            values.join(","),
            digits(instructions)
        )
        .unwrap();
    }
    text
}

fn starts(results: &Results) -> String {
    let mut text = String::from("candidate,latency_ms,init_ms,first_message_ms\n");
    for (name, latency) in results.starts.keys() {
        let times = [
            results.init_ms(name, *latency),
            results.first_ms(name, *latency),
        ];
        let times = times.map(digits).join(",");
        writeln!(text, "\"{name}\",{latency},{times}").unwrap();
    }
    text
}

fn goals(results: &Results) -> String {
    let mut text = String::from("figure,goal,seen,unit,verdict\n");
    for target in targets(results) {
        let verdict = match target.limit.zip(target.seen) {
            Some((limit, seen)) if seen <= limit => "reached",
            Some(_) => "missed",
            None => "not measured",
        };
        let (limit, seen) = (digits(target.limit), digits(target.seen));
        let (name, unit) = (target.name, target.unit);
        writeln!(text, "\"{name}\",{limit},{seen},\"{unit}\",{verdict}").unwrap();
    }
    text
}

/// Returns the size of a file in MB.
pub(crate) fn megabytes(file: &Path) -> f64 {
    fs::metadata(file).unwrap().len() as f64 / 1e6
}

/// Three digits or more, with commas.
fn figure(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value.abs() >= 100.0 => crate::numbers::thousands(value),
        value => digits(value),
    }
}
