//! [`RelayReport`]: the log line of a relay's batch, with metrics.

use sqs_once::{
    protocol::Timestamp,
    telemetry::{Metric, Metrics, Unit, Value},
};

const LINE: &str = "events relayed";

/// Totals of one batch, for its log line.
#[derive(Debug)]
pub(crate) struct RelayReport {
    started: Timestamp,
    pub(crate) sent: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) failed: u64,
    oldest: Option<Timestamp>,
    oldest_waiting: Option<Timestamp>,
}

impl RelayReport {
    pub(crate) fn new(started: Timestamp) -> Self {
        Self {
            started,
            sent: 0,
            dead_lettered: 0,
            failed: 0,
            oldest: None,
            oldest_waiting: None,
        }
    }

    /// Records the publication time of the oldest event in the table when the relay starts.
    #[cfg(any(feature = "postgres", test))]
    pub(crate) fn waiting(&mut self, oldest: Option<Timestamp>) {
        self.oldest_waiting = oldest;
    }

    /// Counts an event that the target confirmed.
    pub(crate) fn sent(&mut self, published_at: Option<Timestamp>) {
        self.sent += 1;
        self.oldest = self.oldest.into_iter().chain(published_at).min();
    }

    /// Counts an event that the dead-letter queue confirmed.
    pub(crate) fn dead_lettered(&mut self) {
        self.dead_lettered += 1;
    }

    /// Counts events of a group that will be sent again.
    pub(crate) fn failed(&mut self, events: usize) {
        self.failed += events as u64;
    }

    pub(crate) fn log(self, metrics: Option<&Metrics>, request_id: Option<&str>) {
        match metrics.filter(|metrics| metrics.writes()) {
            Some(metrics) => metrics.write_line(LINE, &self.metrics(), request_id),
            None => tracing::info!(
                sent = self.sent,
                dead_lettered = self.dead_lettered,
                failed = self.failed,
                LINE
            ),
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let count = |name, count| Metric {
            name,
            unit: Unit::Count,
            value: Value::Count(count),
        };
        let mut metrics = vec![
            count("EventsSent", self.sent),
            count("EventsDeadLettered", self.dead_lettered),
            count("EventsFailed", self.failed),
        ];
        let ages = [
            ("OldestEventAge", self.oldest),
            ("OldestWaitingEventAge", self.oldest_waiting),
        ];
        for (name, oldest) in ages {
            metrics.extend(oldest.map(|oldest| Metric {
                name,
                unit: Unit::Seconds,
                value: Value::Number(oldest.until(self.started).as_secs_f64()),
            }));
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_page_lists_metrics_with_units() {
        let mut report = RelayReport::new(Timestamp::from_millis(10_000));
        report.sent(Some(Timestamp::from_millis(9_000)));
        report.sent(Some(Timestamp::from_millis(8_500)));
        report.waiting(Some(Timestamp::from_millis(7_000)));
        let metrics = report.metrics();
        let ages = metrics[3..].iter().map(|metric| &metric.value);
        let expected = [&Value::Number(1.5), &Value::Number(3.0)];
        assert_eq!(ages.collect::<Vec<_>>(), expected);
        let page = include_str!("../../../docs/outbox.md");
        for Metric { name, unit, .. } in metrics {
            let row = format!("| `{name}` | {unit:?} |");
            assert!(page.contains(&row), "{row}");
        }
    }
}
