//! Lines in CloudWatch's embedded metric format: the check of one, and the sums of a batch.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

/// Of the specification's older copies.
const MAX_LINE: usize = 256 * 1024;

/// Values of each metric; a counter has one.
pub type Metrics = BTreeMap<String, Vec<f64>>;

/// The metrics of one batch.
#[derive(Clone, Debug)]
pub struct BatchMetrics {
    pub request_id: String,
    /// The batch's line, without its further lines.
    pub line: Value,
    pub metrics: Metrics,
}

impl BatchMetrics {
    /// The sum of a metric; 0 if the batch has none.
    pub fn sum(&self, name: &str) -> f64 {
        self.metrics.get(name).into_iter().flatten().sum()
    }

    /// The number of values of a metric.
    pub fn samples(&self, name: &str) -> usize {
        self.metrics.get(name).map_or(0, Vec::len)
    }

    /// The counters of outcomes that are above 0.
    pub fn outcomes(&self) -> BTreeMap<String, usize> {
        let counters = self.metrics.keys().filter(|name| is_outcome(name));
        let counters = counters.map(|name| (name.clone(), self.sum(name) as usize));
        counters.filter(|(_, count)| *count > 0).collect()
    }
}

/// The metrics of each batch in the order of the lines. A line that breaks a rule of the format
/// panics.
#[track_caller]
pub fn batches(lines: &[Value]) -> Vec<BatchMetrics> {
    let mut batches: Vec<BatchMetrics> = Vec::new();
    for line in lines.iter().filter(|line| line.get("_aws").is_some()) {
        if let Err(why) = check(line) {
            panic!("{why}: {line}");
        }
        let request_id = line["span"]["requestId"].as_str().unwrap();
        let metrics = metrics(line);
        if line["message"] == "batch processed" {
            batches.push(BatchMetrics {
                request_id: request_id.to_owned(),
                line: line.clone(),
                metrics,
            });
            continue;
        }
        let batch = batches
            .iter_mut()
            .find(|batch| batch.request_id == request_id);
        let batch = batch.unwrap_or_else(|| panic!("further values of no batch: {line}"));
        for (name, values) in metrics {
            batch.metrics.entry(name).or_default().extend(values);
        }
    }
    batches
}

fn metrics(line: &Value) -> Metrics {
    let defined = line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array();
    let names = defined
        .unwrap()
        .iter()
        .map(|metric| metric["Name"].as_str().unwrap());
    names
        .map(|name| (name.to_owned(), values(&line[name]).unwrap()))
        .collect()
}

/// The table of outcomes in `docs/runbook.md`: each outcome with the metric that counts it.
pub fn documented_outcomes() -> BTreeMap<&'static str, &'static str> {
    let page = include_str!("../../../docs/runbook.md");
    let (_, chapter) = page.split_once("\n## Outcomes\n").unwrap();
    // The sections below the table have tables of their own.
    let (table, _) = chapter.split_once("\n### ").unwrap();
    let mut outcomes = BTreeMap::new();
    let is_row = |line: &&str| line.starts_with("| `") || line.starts_with("| [`");
    for row in table.lines().filter(is_row) {
        let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").collect();
        let name = cells[0].split('`').nth(1).unwrap();
        outcomes.insert(name, cells[2].trim_matches('`'));
    }
    outcomes
}

fn is_outcome(metric: &str) -> bool {
    documented_outcomes()
        .values()
        .any(|counter| *counter == metric)
}

/// The metadata of a line (*Amazon CloudWatch User Guide*, "Specification: Embedded metric format"; its newer copies
/// have 1 MB for a line). An object has no further members.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Metadata {
    #[serde(rename = "Timestamp")]
    _timestamp: u64,
    cloud_watch_metrics: Vec<Directive>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Directive {
    namespace: String,
    dimensions: Vec<Vec<String>>,
    metrics: Vec<Metric>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Metric {
    name: String,
    unit: Option<String>,
    storage_resolution: Option<u64>,
}

/// Those that the consumer and the relay use, of the specification's 27.
const UNITS: [&str; 3] = ["Count", "Milliseconds", "Seconds"];

/// Checks a line against the rules of the format.
pub fn check(line: &Value) -> Result<(), String> {
    if line.to_string().len() > MAX_LINE {
        return Err("the line is longer than a log event".into());
    }
    let metadata = Metadata::deserialize(&line["_aws"]).map_err(|error| error.to_string())?;
    for directive in metadata.cloud_watch_metrics {
        text("namespace", &directive.namespace, 1024)?;
        let sets = &directive.dimensions;
        if sets.is_empty() || sets.iter().any(|set| set.len() > 30) {
            return Err("no dimensions, or more than 30".into());
        }
        for name in sets.iter().flatten() {
            text("dimension", name, 250)?;
            let value = line[name].as_str();
            if value.is_none_or(|value| value.is_empty() || value.len() > 1024) {
                return Err(format!("dimension {name} has no value"));
            }
        }
        if directive.metrics.len() > 100 {
            return Err("more than 100 metrics".into());
        }
        let mut names = BTreeSet::new();
        for metric in &directive.metrics {
            let name = &metric.name;
            text("metric", name, 1024)?;
            if values(&line[name]).is_none() {
                return Err(format!("metric {name} has no value, or more than 100"));
            }
            if !names.insert(name) {
                return Err(format!("metric {name} is defined twice"));
            }
            let is_known = |unit: &String| UNITS.contains(&unit.as_str());
            if !metric.unit.iter().all(is_known) {
                return Err(format!("metric {name} has the unit {:?}", metric.unit));
            }
            if !matches!(metric.storage_resolution, None | Some(1 | 60)) {
                return Err(format!("metric {name} has an unknown StorageResolution"));
            }
        }
    }
    Ok(())
}

fn text(what: &str, text: &str, longest: usize) -> Result<(), String> {
    let length = text.chars().count();
    if (1..=longest).contains(&length) && !text.contains('\n') {
        return Ok(());
    }
    Err(format!("a {what} of {length} characters, or of two lines"))
}

/// A number, or 1 to 100 numbers.
fn values(target: &Value) -> Option<Vec<f64>> {
    match target {
        Value::Number(number) => Some(vec![number.as_f64()?]),
        Value::Array(several) if (1..=100).contains(&several.len()) => {
            several.iter().map(Value::as_f64).collect()
        }
        _ => None,
    }
}
