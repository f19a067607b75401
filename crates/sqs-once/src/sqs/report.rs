//! [`BatchReport`]: the log line of a batch, with metrics.

use std::{collections::BTreeMap, time::Duration};

use super::message_outcome::MessageOutcome;
use crate::{
    meter::Unit,
    modes::Outcome,
    protocol::Timestamp,
    telemetry::{
        metrics::{BatchFields, Metric, Metrics, Value},
        millis,
    },
};

/// How many of the handlers' own metrics a line may have. CloudWatch reads at most 100 metrics from one line (*Amazon
/// CloudWatch User Guide*, "Specification: Embedded metric format").
const MOST_OWN: usize = 40;

/// The names that the consumer uses in a line, for its metrics and other members. A handler's metric can't have one of them.
const TAKEN: [&str; 43] = [
    "BatchSize",
    "BatchedWritesOff",
    "CircuitOpen",
    "ColdStart",
    "Completed",
    "CompletionsUnrecorded",
    "Conflicts",
    "Crashed",
    "DeadLettered",
    "DeadLettersNotSent",
    "DuplicateAge",
    "Duplicates",
    "DuplicatesOfOtherQueue",
    "HandlerDuration",
    "Ignored",
    "Invalid",
    "KeysReused",
    "LeasesLost",
    "NotStarted",
    "OldestMessageAge",
    "PermanentFailures",
    "Reconciled",
    "ResultsNotStored",
    "RetryableFailures",
    "StoreLatency",
    "StoreUnavailable",
    "Takeovers",
    "_aws",
    "circuit",
    "completion_unrecorded",
    "dead_lettered",
    "duration_ms",
    "failed",
    "lease_lost",
    "level",
    "message",
    "messages",
    "result_omitted",
    "service",
    "span",
    "target",
    "timestamp",
    "xrayTraceId",
];

/// Outcome counters that are in every line. The others are rare, so a line has them only if they are above 0.
const FREQUENT: [&str; 2] = ["Completed", "Duplicates"];

/// Sums of one batch, for its log line.
#[derive(Debug)]
pub(crate) struct BatchReport {
    started: Timestamp,
    messages: u64,
    outcomes: BTreeMap<&'static str, u64>,
    takeovers: u64,
    dead_lettered: u64,
    dead_letters_not_sent: u64,
    results_omitted: u64,
    batched_writes_off: u64,
    duplicates_of_other_queue: u64,
    oldest_duplicate: Option<Duration>,
    oldest_sent_at: Option<Timestamp>,
    handler_ms: Vec<f64>,
    store_ms: Vec<f64>,
    /// The handlers' own metrics.
    own: BTreeMap<&'static str, (Unit, Vec<f64>)>,
}

impl BatchReport {
    pub(crate) fn new(started: Timestamp) -> Self {
        Self {
            started,
            messages: 0,
            outcomes: FREQUENT.map(|name| (name, 0)).into(),
            takeovers: 0,
            dead_lettered: 0,
            dead_letters_not_sent: 0,
            results_omitted: 0,
            batched_writes_off: 0,
            duplicates_of_other_queue: 0,
            oldest_duplicate: None,
            oldest_sent_at: None,
            handler_ms: Vec::new(),
            store_ms: Vec::new(),
            own: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, message: &MessageOutcome<'_>) {
        let omitted = match message.outcome {
            Outcome::Completed(result) | Outcome::Reconciled(result) => result.missing().is_some(),
            _ => false,
        };
        self.messages += 1;
        *self.outcomes.entry(message.outcome.metric()).or_default() += 1;
        self.takeovers += u64::from(message.is_takeover());
        self.dead_lettered += u64::from(message.dead_lettered);
        self.results_omitted += u64::from(omitted);
        let requests = &message.ended.requests;
        self.batched_writes_off += u64::from(requests.batches_ended);
        self.duplicates_of_other_queue += u64::from(requests.other_queue);
        self.oldest_duplicate = self.oldest_duplicate.max(requests.age);
        let sent_at = self.oldest_sent_at.into_iter().chain(message.sent_at);
        self.oldest_sent_at = sent_at.min();
        self.handler_ms.extend(message.handler_duration.map(millis));
        for &(name, unit, value) in &requests.own {
            let (_, values) = self.own.entry(name).or_insert((unit, Vec::new()));
            values.push(value);
        }
        let latencies = message.store_latencies().iter();
        self.store_ms.extend(latencies.copied().map(millis));
    }

    /// Records how many messages should be in a dead-letter queue but could not be sent there.
    pub(crate) fn dead_letters_not_sent(&mut self, messages: usize) {
        self.dead_letters_not_sent = messages as u64;
    }

    /// Writes the line. `failed` is the number of batch item failures, and `circuit` the state of the
    /// circuit breaker unless it is closed.
    pub(crate) fn log(
        self,
        failed: usize,
        duration: Duration,
        circuit: Option<&'static str>,
        metrics: Option<&Metrics>,
        request_id: Option<&str>,
    ) {
        let fields = self.fields(failed, duration, circuit);
        match metrics.filter(|metrics| metrics.writes()) {
            Some(metrics) => {
                let values = self.metrics(metrics.is_cold_start());
                metrics.write(&fields, &values, request_id);
            }
            None => tracing::info!(
                messages = fields.messages,
                failed = fields.failed,
                dead_lettered = fields.dead_lettered,
                lease_lost = fields.lease_lost,
                completion_unrecorded = fields.completion_unrecorded,
                result_omitted = fields.result_omitted,
                circuit = fields.circuit,
                duration_ms = fields.duration_ms,
                "batch processed"
            ),
        }
    }

    fn fields(
        &self,
        failed: usize,
        duration: Duration,
        circuit: Option<&'static str>,
    ) -> BatchFields {
        let count = |name| self.outcomes.get(name).copied().unwrap_or_default();
        BatchFields {
            messages: self.messages,
            failed: failed as u64,
            dead_lettered: self.dead_lettered,
            lease_lost: count("LeasesLost"),
            completion_unrecorded: count("CompletionsUnrecorded"),
            result_omitted: self.results_omitted,
            circuit,
            duration_ms: millis(duration),
        }
    }

    fn metrics(self, cold_start: bool) -> Vec<Metric> {
        let metric = |name, unit, value| Metric { name, unit, value };
        let count = |(name, count)| metric(name, Unit::Count, Value::Count(count));
        let rare = [
            ("Takeovers", self.takeovers),
            ("DeadLettered", self.dead_lettered),
            ("DeadLettersNotSent", self.dead_letters_not_sent),
            ("ResultsNotStored", self.results_omitted),
            ("BatchedWritesOff", self.batched_writes_off),
            ("DuplicatesOfOtherQueue", self.duplicates_of_other_queue),
            ("ColdStart", u64::from(cold_start)),
        ];
        let seen = rare.into_iter().filter(|(_, count)| *count > 0);
        let mut metrics: Vec<_> = self.outcomes.into_iter().chain(seen).map(count).collect();
        metrics.push(count(("BatchSize", self.messages)));
        let oldest_message = self
            .oldest_sent_at
            .map(|sent_at| sent_at.until(self.started));
        for (name, age) in [
            ("OldestMessageAge", oldest_message),
            ("DuplicateAge", self.oldest_duplicate),
        ] {
            if let Some(age) = age {
                metrics.push(metric(
                    name,
                    Unit::Seconds,
                    Value::Number(age.as_secs_f64()),
                ));
            }
        }
        for (name, values) in [
            ("HandlerDuration", self.handler_ms),
            ("StoreLatency", self.store_ms),
        ] {
            if !values.is_empty() {
                metrics.push(metric(name, Unit::Milliseconds, Value::Several(values)));
            }
        }
        let (mut own, mut left_out) = (Vec::new(), Vec::new());
        for (name, (unit, values)) in self.own {
            let is_taken = name.is_empty() || TAKEN.contains(&name);
            if own.len() < MOST_OWN && !is_taken {
                own.push(metric(name, unit, Value::Several(values)));
            } else {
                left_out.push(name);
            }
        }
        if !left_out.is_empty() {
            tracing::warn!(
                metrics = left_out.join(", "),
                "metrics of the handler were left out: the consumer uses these names, or a batch has more than {MOST_OWN}"
            );
        }
        metrics.append(&mut own);
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a report with every metric that does not count an outcome.
    fn full() -> BatchReport {
        BatchReport {
            messages: 1,
            takeovers: 1,
            dead_lettered: 1,
            dead_letters_not_sent: 1,
            results_omitted: 1,
            batched_writes_off: 1,
            duplicates_of_other_queue: 1,
            oldest_duplicate: Some(Duration::from_secs(60)),
            oldest_sent_at: Some(Timestamp::from_millis(8_500)),
            handler_ms: vec![1.5],
            store_ms: vec![2.5],
            ..BatchReport::new(Timestamp::from_millis(10_000))
        }
    }

    #[test]
    fn telemetry_page_lists_metrics_with_units() {
        let page = include_str!("../../../../docs/telemetry.md");
        // The runbook has the metrics that count outcomes.
        let runbook = include_str!("../../../../docs/runbook.md");
        let metrics = full().metrics(true);
        for Metric { name, unit, .. } in &metrics {
            let (page, row) = if FREQUENT.contains(name) {
                (runbook, format!("| `{name}` |"))
            } else {
                (page, format!("| `{name}` | {unit:?} |"))
            };
            assert!(page.contains(&row), "{row}");
        }
        let (_, others) = page.split_once("\n## Metrics\n").unwrap();
        let (others, _) = others.split_once("\n## ").unwrap();
        let rows = others.lines().filter(|line| line.starts_with("| `"));
        assert_eq!(rows.count(), metrics.len() - FREQUENT.len());
    }

    #[test]
    fn metrics_that_are_0_and_rare_are_left_out() {
        let report = BatchReport::new(Timestamp::from_millis(10_000));
        let metrics = report.metrics(false);
        let names: Vec<_> = metrics.iter().map(|metric| metric.name).collect();
        assert_eq!(names, ["Completed", "Duplicates", "BatchSize"]);
    }

    #[test]
    fn own_metrics_replace_none_of_the_consumer() {
        let mut report = full();
        // `Crashed` is a rare metric that isn't in this line.
        let own = ["", "BatchSize", "Charged", "Crashed", "service"];
        report.own = own.map(|name| (name, (Unit::Count, vec![7.0]))).into();
        let metrics = report.metrics(false);
        let with_7 = metrics
            .iter()
            .filter(|of| of.value == Value::Several(vec![7.0]));
        assert_eq!(with_7.map(|of| of.name).collect::<Vec<_>>(), ["Charged"]);
    }

    #[test]
    fn every_name_of_the_consumer_is_taken() {
        for metric in full().metrics(true) {
            assert!(TAKEN.contains(&metric.name), "{}", metric.name);
        }
        for outcome in Outcome::every() {
            assert!(TAKEN.contains(&outcome.metric()), "{}", outcome.metric());
        }
        let fields = full().fields(1, Duration::ZERO, Some("open"));
        let fields = serde_json::to_value(&fields).unwrap();
        for name in fields.as_object().unwrap().keys() {
            assert!(TAKEN.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn age_is_from_the_receive_of_the_batch() {
        let metrics = full().metrics(false);
        let age = metrics.iter().find(|m| m.name == "OldestMessageAge");
        assert_eq!(age.map(|age| &age.value), Some(&Value::Number(1.5)));
    }
}
