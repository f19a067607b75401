//! Lines in CloudWatch's embedded metric format: the check of one, and the sums of a batch.

use std::collections::BTreeMap;

use serde_json::Value;

/// The specification's limit of a document. Its newer copies have 1 MB.
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

/// The table of outcomes in `docs/telemetry.md`: each outcome with the metric that counts it.
pub fn documented_outcomes() -> BTreeMap<&'static str, &'static str> {
    let page = include_str!("../../../docs/telemetry.md");
    let mut outcomes = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| [`")) {
        let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").collect();
        let (name, _) = cells[0].trim_start_matches("| [`").split_once('`').unwrap();
        outcomes.insert(name, cells[5].trim_matches('`'));
    }
    outcomes
}

fn is_outcome(metric: &str) -> bool {
    documented_outcomes()
        .values()
        .any(|counter| *counter == metric)
}

/// The counters that follow from the lines of an invocation's messages.
pub fn counted(lines: &[Value], request_id: &str) -> BTreeMap<String, usize> {
    let metric_of = documented_outcomes();
    let mut counters = BTreeMap::new();
    let of_invocation = |line: &&Value| line["span"]["requestId"] == request_id;
    for line in lines.iter().filter(of_invocation) {
        if let Some(outcome) = line["outcome"].as_str() {
            *counters.entry(metric_of[outcome].to_owned()).or_default() += 1;
        }
    }
    counters
}

/// Number of an invocation's lines that begin with `takeover: `.
pub fn takeovers(lines: &[Value], request_id: &str) -> usize {
    lines
        .iter()
        .filter(|line| line["span"]["requestId"] == request_id)
        .filter(|line| super::runtime_api::of_takeover(line))
        .count()
}

/// Checks a line against the schema of the specification, and then against the rules that only its
/// text has.
pub fn check(line: &Value) -> Result<(), String> {
    let schema: Value = serde_json::from_str(include_str!("emf.schema.json")).unwrap();
    valid(line, &schema, "line")?;
    if line.to_string().len() > MAX_LINE {
        return Err("the line is longer than a log event".into());
    }
    let metadata = &line["_aws"];
    only(metadata, &["Timestamp", "CloudWatchMetrics"])?;
    for directive in metadata["CloudWatchMetrics"].as_array().unwrap() {
        only(directive, &["Namespace", "Dimensions", "Metrics"])?;
        for dimension in directive["Dimensions"].as_array().unwrap() {
            for name in dimension.as_array().unwrap() {
                let value = line[name.as_str().unwrap()].as_str();
                if value.is_none_or(|value| value.is_empty() || value.len() > 1024) {
                    return Err(format!("dimension {name} has no value"));
                }
            }
        }
        let metrics = directive["Metrics"].as_array().unwrap();
        if metrics.len() > 100 {
            return Err("more than 100 metrics".into());
        }
        let mut names = Vec::new();
        for metric in metrics {
            only(metric, &["Name", "Unit", "StorageResolution"])?;
            let name = metric["Name"].as_str().unwrap();
            if values(&line[name]).is_none() {
                return Err(format!("metric {name} has no value, or more than 100"));
            }
            if names.contains(&name) {
                return Err(format!("metric {name} is defined twice"));
            }
            let resolution = metric.get("StorageResolution").and_then(Value::as_u64);
            if resolution.is_some_and(|seconds| ![1, 60].contains(&seconds)) {
                return Err(format!("metric {name} has an unknown StorageResolution"));
            }
            names.push(name);
        }
    }
    Ok(())
}

/// "Objects defined by this specification MUST NOT contain any additional members."
fn only(object: &Value, members: &[&str]) -> Result<(), String> {
    let mut names = object.as_object().unwrap().keys();
    match names.find(|name| !members.contains(&name.as_str())) {
        Some(unknown) => Err(format!("the specification has no member {unknown} here")),
        None => Ok(()),
    }
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

/// Checks `value` against the keywords of JSON Schema that the schema uses. Another keyword panics.
fn valid(value: &Value, schema: &Value, at: &str) -> Result<(), String> {
    let mut rules: Vec<_> = schema.as_object().unwrap().iter().collect();
    // The other keywords take the type for granted.
    rules.sort_by_key(|(keyword, _)| *keyword != "type");
    for (keyword, rule) in rules {
        let limit = rule.as_u64().unwrap_or_default() as usize;
        let length = value.as_str().map(|text| text.chars().count());
        let items = value.as_array();
        let met = match keyword.as_str() {
            "title" | "description" => true,
            "type" => match rule.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "integer" => value.is_u64() || value.is_i64(),
                other => panic!("type {other} is not implemented"),
            },
            "pattern" => {
                let pattern = regex_lite::Regex::new(rule.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "minLength" => length.is_none_or(|length| length >= limit),
            "maxLength" => length.is_none_or(|length| length <= limit),
            "minItems" => items.is_none_or(|items| items.len() >= limit),
            "maxItems" => items.is_none_or(|items| items.len() <= limit),
            "required" => {
                let mut names = rule.as_array().unwrap().iter();
                names.all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "properties" => {
                for (name, schema) in rule.as_object().unwrap() {
                    if let Some(member) = value.get(name) {
                        valid(member, schema, &format!("{at}.{name}"))?;
                    }
                }
                true
            }
            "items" => {
                for item in items.into_iter().flatten() {
                    valid(item, rule, &format!("{at}[]"))?;
                }
                true
            }
            other => panic!("keyword {other} is not implemented"),
        };
        if !met {
            return Err(format!("{at} breaks {keyword} {rule}"));
        }
    }
    Ok(())
}
