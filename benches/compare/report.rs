//! The page of a run, in Markdown.

use std::{fmt::Write, fs, process::Command, time::SystemTime};

use crate::{
    BATCHES, CUT_OFF, LATENCY_MS, LIMITED_BATCHES, MEMORY_MB,
    candidates::{COLUMNS, CONSUMER, GROUPED, PYTHON, RAW, TYPESCRIPT, UNPRIMED},
    instructions,
    process::{DEADLINE, Run},
    results::{Measure, Results},
    support::runtime_api::{consumer, program},
    targets::targets,
};

pub(crate) fn page(results: &Results) -> String {
    let mut page = INTRODUCTION.to_owned();
    let sections = [
        ("Machine", machine(results)),
        ("Targets", target_table(results)),
        ("CPU and time by batch size", CHART.to_owned()),
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

const INTRODUCTION: &str = "\
# Speed

`make bench` measures the candidates below in turns, and writes this page. They run as processes behind the same Lambda
Runtime API, against the same stub of DynamoDB, which accepts every write after 0 or 5 ms. The ratios in parentheses are to
the raw loop of the same run. The absolute figures are those of one machine.

| candidate | |
| --- | --- |
| raw loop | `benches/raw_loop.rs`, the best plain loop of SDK calls: one thread, all messages of a batch at a time, the bytes of the consumer's requests, no decisions and no logs |
| consumer | the release build as it ships, with 10 messages at a time |
| consumer, unbounded | the same with `CONSUMER_CONCURRENCY` at the size of the batch |
| consumer, grouping | the same with `IDEMPOTENCY_GROUPING=on` too |
| Powertools TypeScript | `local/compare/bench.mjs`: batch processor and idempotency utility as documented for SQS, all messages at a time |
| Powertools Python | `local/compare/bench.py`: the same utilities as documented for SQS, one message after the other |
";

const CHART: &str = "\
![CPU time per message and p50 of a batch, by the size of the batch](images/speed.svg)

Both axes are logarithmic. The stub answers after 5 ms.
";

fn machine(results: &Results) -> String {
    let cores = std::thread::available_parallelism().unwrap();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = cpu.unwrap_or_default().trim_start_matches([':', ' ', '\t']);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let today = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let mut table = Table::new(&["", ""]);
    table.row(["date", &today[..10]]);
    table.row(["CPU", &format!("{cpu}, {cores} cores")]);
    table.row(["kernel", kernel.trim()]);
    for (tool, argument) in [
        ("rustc", "--version"),
        ("node", "--version"),
        ("python", "--version"),
        ("valgrind", "--version"),
    ] {
        if let Ok(ran) = Command::new(tool).arg(argument).output() {
            table.row([tool, String::from_utf8_lossy(&ran.stdout).trim()]);
        }
    }
    table.row(["rounds", &results.rounds.to_string()]);
    let mut text = table.text;
    if !results.missing.is_empty() {
        text += "\nLeft out:\n\n";
    }
    for missing in &results.missing {
        writeln!(text, "- {missing}").unwrap();
    }
    text
}

fn target_table(results: &Results) -> String {
    let mut table = Table::new(&["figure", "limit", "seen", ""]);
    for target in targets(results) {
        let cell = |value| format!("{} {}", figure(value), target.unit);
        let verdict = match target.limit.zip(target.seen) {
            Some((limit, seen)) if seen <= limit => "reached",
            Some(_) => "missed",
            None => "not measured",
        };
        let [limit, seen] = [target.limit, target.seen].map(cell);
        table.row([&target.name, limit.trim(), seen.trim(), verdict]);
    }
    table.text
}

fn batches(results: &Results) -> String {
    let mut text = String::new();
    writeln!(
        text,
        "Batches of up to 100 messages are measured after five of their size, batches of 1,000 after five of 10 messages. \
        Medians of {} rounds.",
        results.rounds,
    )
    .unwrap();
    let both: [(&str, Measure); 3] = [
        ("CPU per 1000 messages, ms", Run::cpu_ms),
        ("p50 of a batch, ms", Run::p50_ms),
        ("p99 of a batch, ms", Run::p99_ms),
    ];
    for (name, measure) in both {
        let mut table = Table::of(results, &[name, "latency"]);
        for latency in [0, LATENCY_MS] {
            for messages in warm() {
                let labels = [batch_of(messages), format!("{latency} ms")];
                table.ratios(labels, |name| results.of(name, latency, messages, measure));
            }
        }
        table.end(&mut text);
    }
    let mut table = Table::of(results, &["instructions per message"]);
    for messages in instructions::sizes() {
        table.ratios([batch_of(messages)], |name| {
            results.instructions(name, messages)
        });
    }
    if !results.instructions.is_empty() {
        table.end(&mut text);
    }
    let once: [(&str, Measure); 4] = [
        ("peak memory, MiB", |run| run.peak_memory_mib),
        ("requests per message", Run::requests_per_message),
        ("bytes per request", Run::bytes_per_request),
        ("connections", |run| run.connections),
    ];
    for (name, measure) in once {
        let mut table = Table::of(results, &[name]);
        for messages in warm() {
            table.ratios([batch_of(messages)], |name| {
                results.of(name, LATENCY_MS, messages, measure)
            });
        }
        table.end(&mut text);
    }
    text
}

fn large_batches(results: &Results) -> String {
    let mut text = String::new();
    writeln!(
        text,
        "One batch each, after five of 10 messages, {LATENCY_MS} ms from DynamoDB and {} s before the deadline. The time \
        includes new connections. A function in Lambda can open {FILES}, so the raw loop could not run there.",
        DEADLINE.as_secs(),
    )
    .unwrap();
    let measures: [(&str, Measure); 4] = [
        ("time of the batch, s", |run| run.p50_ms() / 1000.0),
        ("CPU per 1000 messages, ms", Run::cpu_ms),
        ("peak memory, MiB", |run| run.peak_memory_mib),
        ("connections", |run| run.connections),
    ];
    for (name, measure) in measures {
        let mut table = Table::of(results, &[name]);
        for messages in large() {
            table.ratios([batch_of(messages)], |name| {
                results.of(name, LATENCY_MS, messages, measure)
            });
        }
        table.end(&mut text);
    }
    let mut table = Table::of(results, &["memory per message, KiB"]);
    for messages in large() {
        table.ratios([batch_of(messages)], |name| {
            results.memory_per_message_kib(name, LATENCY_MS, messages)
        });
    }
    table.end(&mut text);
    let (messages, time) = CUT_OFF;
    if let Some(cut_off) = results
        .cut_offs
        .iter()
        .max_by_key(|cut_off| cut_off.response)
    {
        writeln!(
            text,
            "\nWith {} s for a batch of {messages}, the consumer answered after {:.2} s. It reported the {} messages \
            without a recorded outcome as failed.",
            time.as_secs(),
            cut_off.response.as_secs_f64(),
            thousands(cut_off.failed as f64),
        )
        .unwrap();
    }
    text
}

/// Lambda's quota of file descriptors.
const FILES: &str = "1,024 files";

fn limited(results: &Results) -> String {
    let (messages, _) = LIMITED_BATCHES;
    let way = results
        .limited
        .values()
        .flatten()
        .find_map(|run| run.throttle);
    let mut text = format!(
        "Batches of {messages}, {LATENCY_MS} ms from DynamoDB. After init, {} limits the process to its part of a vCPU, in \
        periods of 20 ms: the memory of the function divided by 1,769 MB.\n",
        way.unwrap_or_default(),
    );
    let measures: [(&str, Measure); 2] = [
        ("p50 of a batch, ms", Run::p50_ms),
        ("p99 of a batch, ms", Run::p99_ms),
    ];
    for (name, measure) in measures {
        let mut table = Table::of(results, &[name]);
        // A batch of 10 is not larger than the bound of the shipped consumer.
        for memory in MEMORY_MB {
            let value = |name| results.limited(name, memory, measure);
            table.ratios([format!("{memory} MB")], value);
        }
        table.end(&mut text);
    }
    text
}

fn starts(results: &Results) -> String {
    let columns = [RAW, CONSUMER, UNPRIMED, GROUPED, TYPESCRIPT, PYTHON];
    let mut table = Table::new(&["", "latency"]).columns(results, &columns);
    for latency in [0, LATENCY_MS] {
        let label = |name: &str| [name.to_owned(), format!("{latency} ms")];
        table.ratios(label("init, ms"), |name| results.init_ms(name, latency));
        table.ratios(label("first message, ms"), |name| {
            results.first_ms(name, latency)
        });
    }
    let [raw, consumer] = [program("raw_loop"), consumer()]
        .map(|binary| fs::metadata(binary).unwrap().len() as f64 / 1e6);
    format!(
        "{}\nThe binary of the consumer has {consumer:.1} MB, that of the raw loop {raw:.1} MB.\n",
        table.text,
    )
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

fn batch_of(messages: usize) -> String {
    format!("batch of {}", thousands(messages as f64))
}

struct Table {
    text: String,
    /// The candidates that were measured.
    columns: Vec<&'static str>,
}

impl Table {
    fn new(labels: &[&str]) -> Self {
        let header = labels.iter().map(|label| format!(" {label} |"));
        let header: String = header.collect();
        Self {
            text: format!("|{header}\n|{}\n", " --- |".repeat(labels.len())),
            columns: Vec::new(),
        }
    }

    /// A table of labels and of all candidates that were measured.
    fn of(results: &Results, labels: &[&str]) -> Self {
        Self::new(labels).columns(results, &COLUMNS)
    }

    fn columns(mut self, results: &Results, columns: &[&'static str]) -> Self {
        let measured = |name: &&str| {
            results.starts.keys().any(|(of, _)| of == name)
                || results.runs.keys().any(|(of, ..)| of == name)
        };
        self.columns = columns.iter().copied().filter(measured).collect();
        let (header, rule) = self.text.trim_end().split_once('\n').unwrap();
        let names: String = self
            .columns
            .iter()
            .map(|name| format!(" {name} |"))
            .collect();
        let rules = " ---: |".repeat(self.columns.len());
        self.text = format!("{header}{names}\n{rule}{rules}\n");
        self
    }

    fn row<const N: usize>(&mut self, cells: [&str; N]) {
        let cells: String = cells.iter().map(|cell| format!(" {cell} |")).collect();
        writeln!(self.text, "|{cells}").unwrap();
    }

    /// A row of figures, with their ratios to that of the raw loop.
    fn ratios<const N: usize>(
        &mut self,
        labels: [String; N],
        value: impl Fn(&'static str) -> Option<f64>,
    ) {
        let raw = value(RAW).filter(|raw| *raw > 0.0);
        let cells = self.columns.iter().map(|&name| match (value(name), raw) {
            (Some(value), Some(raw)) if name != RAW => {
                format!("{} ({} x)", figure(Some(value)), figure(Some(value / raw)))
            }
            (value, _) => figure(value),
        });
        let cells = labels.into_iter().chain(cells);
        let cells: String = cells.map(|cell| format!(" {cell} |")).collect();
        writeln!(self.text, "|{cells}").unwrap();
    }

    fn end(self, page: &mut String) {
        write!(page, "\n{}", self.text).unwrap();
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

/// Without decimals, and with commas.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len() - index;
        if index > 0 && left.is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
