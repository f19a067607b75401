//! Metrics of the batches that were answered: each counter equals the count in the ledger and in the
//! log lines of the messages. A batch whose worker died is in no counter.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    ledger::{Delivery, End, Event, Worker},
    support::emf::{BatchMetrics, documented_outcomes},
};

/// One worker's batches, in their order. A worker processes one batch at a time.
#[derive(Default)]
struct OfWorker<'a> {
    answered: Vec<&'a [Delivery]>,
    /// Metrics, and the number of log lines on a takeover.
    measured: Vec<(&'a BatchMetrics, usize)>,
    delivered: Vec<&'a Delivery>,
}

#[derive(Default)]
pub(crate) struct Measurements<'a> {
    workers: BTreeMap<Worker, OfWorker<'a>>,
    outcomes: HashMap<&'a Delivery, &'a str>,
    ends: HashMap<&'a Delivery, End>,
}

impl<'a> Measurements<'a> {
    pub(crate) fn of(events: &'a [Event]) -> Self {
        let mut all = Self::default();
        for event in events {
            match event {
                Event::Delivered { delivery, worker } => {
                    let worker = all.workers.entry(*worker).or_default();
                    worker.delivered.push(delivery);
                }
                Event::Answered { worker, deliveries } => {
                    let worker = all.workers.entry(*worker).or_default();
                    worker.answered.push(deliveries);
                }
                Event::Measured {
                    worker,
                    batch,
                    takeovers,
                } => {
                    let worker = all.workers.entry(*worker).or_default();
                    worker.measured.push((batch, *takeovers));
                }
                Event::DeliveryLog {
                    delivery, outcome, ..
                } => {
                    all.outcomes.insert(delivery, outcome);
                }
                Event::Returned { delivery, end, .. } => {
                    all.ends.insert(delivery, *end);
                }
                _ => {}
            }
        }
        all
    }

    /// Differences between the metrics of answered batches and the events.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, worker) in &self.workers {
            let (answered, measured) = (worker.answered.len(), worker.measured.len());
            // A worker may die between its line and its answer.
            if measured != answered && measured != answered + 1 {
                found.push(format!(
                    "worker {name} answered {answered} batches, and wrote the metrics of {measured}"
                ));
            }
            let both = worker.answered.iter().zip(&worker.measured);
            for (nth, (deliveries, (batch, takeovers))) in both.enumerate() {
                let differences = self.differences(nth, deliveries, batch, *takeovers);
                found.extend(differences.into_iter().map(|(what, counted, metric)| {
                    format!("worker {name}, batch {nth}: {what} is {metric} in the metrics and {counted} in the events")
                }));
            }
        }
        found
    }

    /// Name, number in the events and number in the metrics, where the two differ.
    fn differences(
        &self,
        nth: usize,
        deliveries: &[Delivery],
        batch: &BatchMetrics,
        takeovers: usize,
    ) -> Vec<(&'static str, usize, usize)> {
        let metric_of = documented_outcomes();
        let of = |delivery| self.outcomes.get(delivery).copied();
        let metrics = deliveries.iter().filter_map(of);
        let metrics: Vec<_> = metrics.map(|outcome| metric_of[outcome]).collect();
        let count = |name: &str| metrics.iter().filter(|metric| **metric == name).count();
        let acknowledged = deliveries.iter();
        let acknowledged = acknowledged
            .filter(|delivery| self.ends.get(delivery) == Some(&End::Acknowledged))
            .count();
        let sum = |name| batch.sum(name) as usize;
        let names: BTreeSet<_> = metric_of.values().copied().collect();
        let mut compared: Vec<_> = names
            .iter()
            .map(|name| (*name, count(name), sum(name)))
            .collect();
        compared.extend([
            ("BatchSize", deliveries.len(), sum("BatchSize")),
            (
                "the sum of outcomes",
                deliveries.len(),
                batch.outcomes().values().sum(),
            ),
            (
                "acknowledged",
                acknowledged,
                sum("Completed") + sum("Duplicates"),
            ),
            ("Takeovers", takeovers, sum("Takeovers")),
            ("ColdStart", usize::from(nth == 0), sum("ColdStart")),
            ("DeadLettered", 0, sum("DeadLettered")),
        ]);
        compared.retain(|(_, counted, metric)| counted != metric);
        compared
    }

    /// Sums of the metrics of answered batches.
    pub(crate) fn sums(&self) -> BTreeMap<String, usize> {
        let mut sums = BTreeMap::new();
        for OfWorker {
            answered, measured, ..
        } in self.workers.values()
        {
            for (batch, _) in measured.iter().take(answered.len()) {
                for name in batch.metrics.keys() {
                    let of_values = ["HandlerDuration", "StoreLatency", "OldestMessageAge"];
                    if !of_values.contains(&&**name) {
                        *sums.entry(name.clone()).or_default() += batch.sum(name) as usize;
                    }
                }
            }
        }
        sums
    }

    /// Messages of batches whose worker died before its answer.
    pub(crate) fn unanswered(&self) -> Vec<(Worker, Vec<&str>)> {
        let mut unanswered = Vec::new();
        for (name, worker) in &self.workers {
            let answered: usize = worker.answered.iter().map(|batch| batch.len()).sum();
            let left = worker.delivered[answered.min(worker.delivered.len())..].iter();
            let left: Vec<_> = left.map(|(message, _)| &**message).collect();
            if !left.is_empty() {
                unanswered.push((*name, left));
            }
        }
        unanswered
    }
}

/// Each of these must be found in the metrics of a good batch with one thing wrong.
#[test]
fn wrong_counters_are_found() {
    use crate::proof::{delivered, returned, said};

    let delivery = || ("m-1".to_owned(), 7);
    let metrics = |changed: &[(&str, f64)]| {
        let good = [("Completed", 1.0), ("BatchSize", 1.0), ("ColdStart", 1.0)];
        let all = good.iter().chain(changed);
        Event::Measured {
            worker: 7,
            batch: BatchMetrics {
                request_id: "1".into(),
                line: serde_json::Value::Null,
                metrics: all
                    .map(|(name, value)| ((*name).to_owned(), vec![*value]))
                    .collect(),
            },
            takeovers: 0,
        }
    };
    let answered = || Event::Answered {
        worker: 7,
        deliveries: vec![delivery()],
    };
    let run = |measured: Vec<Event>| {
        let mut events = vec![delivered(1, 7), answered()];
        events.extend([returned(1, 7, End::Acknowledged), said(1, 7, "completed")]);
        events.extend(measured);
        Measurements::of(&events).violations()
    };
    assert_eq!(run(vec![metrics(&[])]), [""; 0]);
    // The metrics of a batch that was not answered.
    assert_eq!(run(vec![metrics(&[]), metrics(&[])]), [""; 0]);
    for (wrong, differences) in [
        (vec![], 1),
        (vec![metrics(&[]), metrics(&[]), metrics(&[])], 1),
        (vec![metrics(&[("BatchSize", 2.0)])], 1),
        (vec![metrics(&[("Takeovers", 1.0)])], 1),
        (vec![metrics(&[("ColdStart", 0.0)])], 1),
        (vec![metrics(&[("DeadLettered", 1.0)])], 1),
        // With the sum of outcomes.
        (vec![metrics(&[("LeasesLost", 1.0)])], 2),
        // With acknowledged messages too.
        (vec![metrics(&[("Duplicates", 1.0)])], 3),
    ] {
        let found = run(wrong.clone());
        assert!(found.len() >= differences, "{wrong:?}: {found:?}");
    }
}
