//! The pages of a run, in Markdown: docs/speed.md for readers, benches/RESULTS.md with every table.

use std::{fmt::Write, fs, path::Path, process::Command, time::SystemTime};
use support::runtime_api::{consumer, program};

use crate::{
    BATCHES, CUT_OFF, CUT_OFF_MEMORY_MB, LATENCY_MS, LIMITED_BATCHES, MEMORY_MB, TEMPLATE_MB,
    candidates::{ALL, CONSUMER, RAW, RAW_BATCHES, SINGLE, TYPESCRIPT},
    instructions,
    numbers::{batch_of, thousands},
    process::{DEADLINE, Run},
    results::{Measure, Results},
    targets::targets,
};

/// The figures that most readers look for.
pub(crate) fn overview(results: &Results) -> String {
    let node = version("node").map(|version| format!("Node.js {version}"));
    let versions: Vec<_> = version("rustc").into_iter().chain(node).collect();
    format!(
        "{OVERVIEW}\n{}\n{CHART}\nMeasured on {} on {}, with {}. A process has a whole core, unless a row\n\
         names a memory: then it has the part of a vCPU that Lambda gives a function of that memory.\n",
        summary(results),
        today(),
        cpu(),
        versions.join(", "),
    )
}

pub(crate) fn page(results: &Results) -> String {
    let mut page = format!("# Results of `make bench`\n\n{CANDIDATES}");
    let sections = [
        ("Goals", target_table(results)),
        ("Machine", machine(results)),
        ("Warm batches", batches(results)),
        ("Large batches", large_batches(results)),
        ("A part of a vCPU", limited(results)),
        ("Start and size", starts(results)),
    ];
    for (title, text) in sections {
        write!(page, "\n## {title}\n\n{}\n", text.trim_end()).unwrap();
    }
    page
}

const OVERVIEW: &str = "\
# Speed

How much time and CPU a batch takes, beside a plain loop of AWS SDK calls and Powertools for TypeScript. All of them run as processes behind
the same Lambda Runtime API on one machine, and a stub that answers after 5 ms stands in for DynamoDB. Nothing was measured on AWS.
`make bench` writes this page, and [every table](https://github.com/sqs-once/sqs-once/blob/main/benches/RESULTS.md): large batches, a part
of a vCPU, memory, cold starts, PostgreSQL.
";

const CANDIDATES: &str = "\
The candidates run in turns, as processes behind the same Lambda Runtime API, and the same stub of DynamoDB accepts all their writes, after
0 or 5 ms. Ratios in parentheses compare with the raw loop of the same run, since the absolute figures are those of one machine.

| candidate | |
| --- | --- |
| raw loop | A plain loop of SDK calls, `benches/raw_loop.rs`: one thread runs all messages of a batch at a time, with the shortest claim and the shortest completion. It decides and logs nothing. |
| raw loop, batched | The same with its writes batched by hand, `benches/raw_batches.rs`: first all claims of a batch, 25 in a request, then all completions. |
| consumer | The release build as it ships, with no setting but the table and the gateway. The goals apply to this one. |
| consumer, single writes | The consumer with `IDEMPOTENCY_BATCHED_WRITES=off`. |
| Powertools TypeScript | Batch processor and idempotency utility as documented for SQS, `tools/compare/bench.mjs`. It runs all messages at a time. |
| Powertools Python | The same utilities as documented for SQS, `tools/compare/bench.py`. It runs one message after the other. |

Each figure is the median over the rounds. The stub responds after 5 ms unless a row says otherwise.
";

const CHART: &str = "\
![CPU time per message and p50 of a batch, by the size of the batch](images/speed.svg)

Both axes are logarithmic.
";

fn summary(results: &Results) -> String {
    let mut text = String::from(
        "| | raw loop | raw loop, batched | consumer | consumer, single writes | Powertools TypeScript |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let mut row = |label: String, value: &dyn Fn(&'static str) -> Option<f64>| {
        let columns = [RAW, RAW_BATCHES, CONSUMER, SINGLE, TYPESCRIPT];
        let figures = columns.map(|name| figure(value(name)));
        writeln!(text, "| {label} | {} |", figures.join(" | ")).unwrap();
    };
    let rows: [(&str, Measure, &[usize]); 3] = [
        ("p50 in ms", Run::p50_ms, &[1, 10, 100]),
        ("CPU in ms per 1,000 messages", Run::cpu_ms, &[10, 100]),
        (
            "requests per message",
            Run::requests_per_message,
            &[10, 100],
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

fn machine(results: &Results) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut text = String::from("| | |\n| --- | --- |\n");
    let mut row = |name: &str, value: &str| writeln!(text, "| {name} | {value} |").unwrap();
    row("date", &today());
    row("CPU", &cpu());
    row("kernel", kernel.trim());
    for tool in ["rustc", "node", "python", "valgrind"] {
        if let Some(version) = version(tool) {
            row(tool, &version);
        }
    }
    row("rounds", &results.rounds.to_string());
    if !results.missing.is_empty() {
        text += "\nLeft out:\n\n";
    }
    for missing in &results.missing {
        writeln!(text, "- {missing}").unwrap();
    }
    text
}

fn target_table(results: &Results) -> String {
    let mut text = String::from("| figure | goal | seen | |\n| --- | --- | ---: | --- |\n");
    for target in targets(results) {
        let verdict = match target.limit.zip(target.seen) {
            Some((limit, seen)) if seen <= limit => "reached",
            Some(_) => "missed",
            None => "not measured",
        };
        let limit = format!("{} {}", figure(target.limit), target.unit);
        let (name, limit, seen) = (target.name, limit.trim(), figure(target.seen));
        writeln!(text, "| {name} | {limit} | {seen} | {verdict} |").unwrap();
    }
    text
}

fn batches(results: &Results) -> String {
    let mut text = "\
Before batches of up to 100 messages, each process runs five of the same size; before batches of 1,000, five of 10. With fewer
than 100 batches, p99 is the slowest one.
"
    .to_owned();
    let with_latencies: [(&str, Measure); 3] = [
        ("CPU per 1000 messages, ms", Run::cpu_ms),
        ("p50 of a batch, ms", Run::p50_ms),
        ("p99 of a batch, ms", Run::p99_ms),
    ];
    for (name, measure) in with_latencies {
        let mut table = Table::new(name);
        for latency in [0, LATENCY_MS] {
            for messages in warm() {
                let label = format!("{}, {latency} ms", batch_of(messages));
                table.row(label, |name| results.of(name, latency, messages, measure));
            }
        }
        table.end(&mut text);
    }
    let mut table = Table::new("instructions per message");
    for messages in instructions::sizes() {
        let count = |name| results.instructions(name, messages);
        table.row(batch_of(messages), count);
    }
    table.end(&mut text);
    let measures: [(&str, Measure); 4] = [
        ("peak memory, MiB", |run| run.peak_memory_mib),
        ("requests per message", Run::requests_per_message),
        ("bytes per request", Run::bytes_per_request),
        ("connections", |run| run.connections),
    ];
    for (name, measure) in measures {
        by_size(&mut text, name, warm(), |name, messages| {
            results.of(name, LATENCY_MS, messages, measure)
        });
    }
    text
}

fn large_batches(results: &Results) -> String {
    let mut text = format!(
        "\
Each process runs batches of 2,000 and more only once, after five of 10 messages, with {} s until the deadline. So their
time includes new connections. Powertools for Python is left out, because it would need minutes. On Lambda
the raw loop could not run, because a function may have only 1,024 open files.

The work for a message does not grow with the batch, as the instructions above show. Its CPU time can grow with the duration of
the batch, because of the machine's clock and caches.
",
        DEADLINE.as_secs(),
    );
    let measures: [(&str, Measure); 4] = [
        ("time of the batch, s", |run| run.p50_ms() / 1000.0),
        ("CPU per 1000 messages, ms", Run::cpu_ms),
        ("peak memory, MiB", |run| run.peak_memory_mib),
        ("connections", |run| run.connections),
    ];
    for (name, measure) in measures {
        by_size(&mut text, name, large(), |name, messages| {
            results.of(name, LATENCY_MS, messages, measure)
        });
    }
    by_size(
        &mut text,
        "memory per message, KiB",
        large(),
        |name, messages| results.memory_per_message_kib(name, LATENCY_MS, messages),
    );
    let (messages, time) = CUT_OFF;
    for memory in CUT_OFF_MEMORY_MB {
        let of_memory = (results.cut_offs.iter()).filter(|cut_off| cut_off.memory == memory);
        if let Some(cut_off) = of_memory.max_by_key(|cut_off| cut_off.response) {
            let cpu = memory.map_or("a whole core".to_owned(), |mb| {
                format!("the CPU of {mb} MB")
            });
            writeln!(
                text,
                "\nWith {} s for a {} and {cpu}, the consumer responded after {:.2} s. It reported the {} messages without a \
                 recorded outcome as failed.",
                time.as_secs(),
                batch_of(messages),
                cut_off.response.as_secs_f64(),
                thousands(cut_off.failed as f64),
            )
            .unwrap();
        }
    }
    text
}

fn limited(results: &Results) -> String {
    let way = results
        .limited
        .values()
        .flatten()
        .find_map(|run| run.throttle);
    let mut text = format!(
        "\
Lambda gives a function a part of a vCPU: its memory divided by 1,769 MB. Here {} does the same after init, in periods of 20 ms.
",
        way.unwrap_or_default(),
    );
    let measures: [(&str, Measure); 2] = [
        ("p50 of a batch, ms", Run::p50_ms),
        ("p99 of a batch, ms", Run::p99_ms),
    ];
    for (name, measure) in measures {
        let mut table = Table::new(name);
        for (messages, _) in LIMITED_BATCHES {
            for memory in MEMORY_MB {
                let label = format!("{}, {} MB", batch_of(messages), thousands(memory as f64));
                table.row(label, |name| {
                    results.limited(name, memory, messages, measure)
                });
            }
        }
        table.end(&mut text);
    }
    text
}

fn starts(results: &Results) -> String {
    let mut table = Table::new("");
    for latency in [0, LATENCY_MS] {
        let label = |name: &str| format!("{name}, {latency} ms away");
        table.row(label("init in ms"), |name| results.init_ms(name, latency));
        table.row(label("first message in ms"), |name| {
            results.first_ms(name, latency)
        });
    }
    let mut text = "\
The consumer reads from its table once, in init. The raw loop opens its connection with the first message. The column without
the warm-up read uses `Settings::warm_up(false)`. The read is the first call of the SDK, so it costs a round trip and the CPU time of
a call. While the connection opens, the rest of the consumer is built.
"
    .to_owned();
    table.end(&mut text);
    let [raw, consumer] = [program("raw_loop"), consumer()].map(|binary| megabytes(&binary));
    writeln!(
        text,
        "\nThe consumer's binary has {consumer:.1} MB, that of the raw loop {raw:.1} MB."
    )
    .unwrap();
    text
}

/// Returns the size of a file in MB.
pub(crate) fn megabytes(file: &Path) -> f64 {
    fs::metadata(file).unwrap().len() as f64 / 1e6
}

fn warm() -> impl Iterator<Item = usize> {
    BATCHES
        .iter()
        .filter(|(_, batches)| *batches > 1)
        .map(|(messages, _)| *messages)
}

fn large() -> impl Iterator<Item = usize> {
    BATCHES
        .iter()
        .map(|(messages, _)| *messages)
        .filter(|messages| *messages >= 1000)
}

/// Adds a table of one figure by the size of the batches.
fn by_size(
    text: &mut String,
    title: &'static str,
    sizes: impl Iterator<Item = usize>,
    value: impl Fn(&'static str, usize) -> Option<f64>,
) {
    let mut table = Table::new(title);
    for messages in sizes {
        table.row(batch_of(messages), |name| value(name, messages));
    }
    table.end(text);
}

/// Figures of all candidates, with their ratios to that of the raw loop.
struct Table {
    title: &'static str,
    rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Table {
    fn new(title: &'static str) -> Self {
        let rows = Vec::new();
        Self { title, rows }
    }

    fn row(&mut self, label: String, value: impl Fn(&'static str) -> Option<f64>) {
        let values = ALL.into_iter().map(value).collect();
        self.rows.push((label, values));
    }

    /// Adds the table to `text`, without the columns that have no figure.
    fn end(self, text: &mut String) {
        let filled = |column: &usize| self.rows.iter().any(|(_, row)| row[*column].is_some());
        let columns: Vec<_> = (0..ALL.len()).filter(filled).collect();
        if columns.is_empty() {
            return;
        }
        let names: String = columns
            .iter()
            .map(|column| format!(" {} |", ALL[*column]))
            .collect();
        let rules = " ---: |".repeat(columns.len());
        write!(text, "\n| {} |{names}\n| --- |{rules}\n", self.title).unwrap();
        for (label, row) in &self.rows {
            let cells = columns
                .iter()
                .map(|column| with_ratio(row[*column], row[0], *column));
            let cells: String = cells.map(|cell| format!(" {cell} |")).collect();
            writeln!(text, "| {label} |{cells}").unwrap();
        }
    }
}

fn with_ratio(value: Option<f64>, raw: Option<f64>, column: usize) -> String {
    match (value, raw) {
        (Some(value), Some(raw)) if column > 0 && raw > 0.0 => {
            format!("{} ({} x)", figure(Some(value)), figure(Some(value / raw)))
        }
        _ => figure(value),
    }
}

/// Three digits or more.
fn figure(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value.abs() >= 100.0 => thousands(value),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}
