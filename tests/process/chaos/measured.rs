//! Metrics: each counter of an answered batch equals the count in the ledger and in the log lines of
//! its messages. The messages of a batch whose worker died before it wrote the metrics are in no
//! counter.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
};
use support::emf::{BatchMetrics, documented_outcomes};

use crate::chaos::{
    account::PERMANENT,
    ledger::{Death, Delivery, End, Event, Invocation, Settled, Worker},
    report::list,
};

/// A process and the number of its invocation.
type Place = (Worker, Invocation);

#[derive(Default)]
struct Batch<'a> {
    deliveries: Vec<&'a Delivery>,
    answered: bool,
    metrics: Vec<Written<'a>>,
}

/// The metrics that a worker wrote for one batch.
struct Written<'a> {
    batch: &'a BatchMetrics,
    /// Number of log lines on a takeover.
    takeovers: usize,
}

/// A counter, its value in the events, and its value in the metrics.
type Compared = (&'static str, usize, usize);

#[derive(Default)]
pub(crate) struct Measurements<'a> {
    batches: BTreeMap<Place, Batch<'a>>,
    outcomes: HashMap<&'a Delivery, &'a str>,
    ends: HashMap<&'a Delivery, End>,
    deaths: HashMap<Worker, Death>,
    /// Messages for which a worker's completion is in the table.
    completed: HashSet<(Worker, &'a str)>,
    /// Metrics that belong to no batch, request ids of two batches, and lines that cannot be read.
    misplaced: Vec<String>,
}

impl<'a> Measurements<'a> {
    pub(crate) fn of(events: &'a [Event]) -> Self {
        let mut all = Self::default();
        let mut places: HashMap<&Delivery, Place> = HashMap::new();
        let mut requests: HashMap<(Worker, &str), Place> = HashMap::new();
        let mut claims: HashMap<&str, (Worker, &str)> = HashMap::new();
        for event in events {
            match event {
                Event::Delivered {
                    delivery,
                    worker,
                    invocation,
                    ..
                } => {
                    let place = (*worker, *invocation);
                    places.insert(delivery, place);
                    let batch = all.batches.entry(place).or_default();
                    batch.deliveries.push(delivery);
                }
                Event::Answered { worker, invocation } => {
                    let batch = all.batches.entry((*worker, *invocation)).or_default();
                    batch.answered = true;
                }
                Event::DeliveryLog {
                    delivery,
                    request_id,
                    outcome,
                    ..
                } => {
                    all.outcomes.insert(delivery, outcome);
                    let Some(place) = places.get(delivery).copied() else {
                        let (message, receive) = delivery;
                        all.misplaced.push(format!(
                            "{message} was processed at receive {receive}, which did not occur"
                        ));
                        continue;
                    };
                    let first = *requests.entry((place.0, request_id)).or_insert(place);
                    if first != place {
                        all.misplaced.push(format!(
                            "{} and {} have one request id",
                            name(first),
                            name(place)
                        ));
                    }
                }
                Event::Returned { delivery, end, .. } => {
                    all.ends.insert(delivery, *end);
                }
                Event::Died { worker, death } => {
                    all.deaths.insert(*worker, *death);
                }
                Event::Claimed {
                    owner,
                    worker,
                    message,
                    ..
                } => {
                    claims.insert(owner, (*worker, message));
                }
                Event::Settled {
                    owner,
                    as_what: Settled::Completed,
                    ..
                } => all.completed.extend(claims.get(&**owner)),
                Event::Unreadable { worker, line } => {
                    let found = format!("worker {worker} wrote a line that cannot be read: {line}");
                    all.misplaced.push(found);
                }
                _ => {}
            }
        }
        for event in events {
            let Event::Measured {
                worker,
                batch,
                takeovers,
            } = event
            else {
                continue;
            };
            let written = Written {
                batch,
                takeovers: *takeovers,
            };
            match requests.get(&(*worker, &*batch.request_id)) {
                Some(place) => {
                    let batch = all.batches.entry(*place).or_default();
                    batch.metrics.push(written);
                }
                None => all.misplaced.push(format!(
                    "worker {worker} wrote metrics of the request {}, which has no messages",
                    batch.request_id
                )),
            }
        }
        all
    }

    /// Differences between metrics and events.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = self.misplaced.clone();
        for (place, batch) in &self.batches {
            let (name, written) = (name(*place), batch.metrics.len());
            if written > 1 || (batch.answered && written == 0) {
                found.push(format!("{name}: its metrics were written {written} times"));
            }
            let mut ends = batch.deliveries.iter().map(|one| self.ends.get(*one));
            let death = self.deaths.get(&place.0);
            if ends.any(|end| end == Some(&End::WorkerDied))
                && (batch.answered || death.is_none_or(|death| *death == Death::RunEnded))
            {
                found.push(format!("{name}: was answered, or its worker did not die"));
            }
            for written in &batch.metrics {
                let compared = self.compared(*place, batch, written).into_iter();
                let different = compared.filter(|(_, events, metrics)| events != metrics);
                found.extend(different.map(|(what, events, metrics)| {
                    let logged = self.logged(batch);
                    format!(
                        "{name}: {what} is {metrics} in the metrics and {events} in the events ({logged})"
                    )
                }));
            }
        }
        found.extend(self.cold_starts());
        found
    }

    /// The outcome that the worker logged for each message of the batch.
    fn logged(&self, batch: &Batch<'_>) -> String {
        let logged = batch.deliveries.iter().map(|delivery| {
            let outcome = self.outcomes.get(delivery).copied();
            format!("{} {}", delivery.0, outcome.unwrap_or("not logged"))
        });
        logged.collect::<Vec<_>>().join(", ")
    }

    /// One batch of each process has the cold start: the first that ended, whose line may be written
    /// after that of a concurrent batch. A batch that did not write its metrics may have taken it along.
    fn cold_starts(&self) -> Vec<String> {
        let mut found: BTreeMap<Worker, (usize, bool)> = BTreeMap::new();
        for ((worker, _), batch) in &self.batches {
            let (sum, all_written) = found.entry(*worker).or_insert((0, true));
            let metrics = batch.metrics.iter();
            *sum += metrics
                .map(|written| written.batch.sum("ColdStart") as usize)
                .sum::<usize>();
            *all_written &= !batch.metrics.is_empty();
        }
        let wrong = found
            .into_iter()
            .filter(|(_, (sum, all_written))| *sum > 1 || (*sum == 0 && *all_written));
        wrong
            .map(|(worker, (sum, _))| format!("worker {worker}: {sum} batches have its cold start"))
            .collect()
    }

    fn compared(
        &self,
        (worker, _): Place,
        batch: &Batch<'_>,
        written: &Written<'_>,
    ) -> Vec<Compared> {
        let metric_of = documented_outcomes();
        let deliveries = &batch.deliveries;
        let outcome = |delivery: &&Delivery| self.outcomes.get(*delivery).copied();
        let metrics = deliveries.iter().filter_map(outcome);
        let metrics: Vec<_> = metrics.map(|outcome| metric_of[outcome]).collect();
        let logged = |name: &str| metrics.iter().filter(|metric| **metric == name).count();
        let in_table = |delivery: &&&Delivery| {
            outcome(delivery) == Some("completed")
                && self.completed.contains(&(worker, &*delivery.0))
        };
        let acknowledged =
            |delivery: &&&Delivery| self.ends.get(**delivery) == Some(&End::Acknowledged);
        let failed =
            |delivery: &&&Delivery| outcome(delivery).is_some_and(|told| PERMANENT.contains(&told));
        let sum = |name| written.batch.sum(name) as usize;
        let names: BTreeSet<_> = metric_of.values().copied().collect();
        let outcomes = names.iter().map(|name| (*name, logged(name), sum(name)));
        let mut compared: Vec<Compared> = outcomes.collect();
        compared.extend([
            ("BatchSize", deliveries.len(), sum("BatchSize")),
            (
                "the sum of the outcomes",
                deliveries.len(),
                written.batch.outcomes().values().sum(),
            ),
            (
                "Completed, of which the table has the completion",
                deliveries.iter().filter(in_table).count(),
                sum("Completed"),
            ),
            ("Takeovers", written.takeovers, sum("Takeovers")),
            ("ResultsNotStored", 0, sum("ResultsNotStored")),
            ("BatchedWritesOff", 0, sum("BatchedWritesOff")),
            ("DuplicatesOfOtherQueue", 0, sum("DuplicatesOfOtherQueue")),
        ]);
        if batch.answered {
            let acknowledged: Vec<_> = deliveries.iter().filter(acknowledged).collect();
            let copied = acknowledged.iter().filter(|one| failed(one)).count();
            compared.extend([
                ("DeadLettered", copied, sum("DeadLettered")),
                (
                    "Completed and Duplicates, which SQS deletes,",
                    acknowledged.len() - copied,
                    sum("Completed") + sum("Duplicates"),
                ),
            ]);
        }
        compared
    }

    /// Sums of the counters over all lines, by name: in the events, and in the metrics.
    pub(crate) fn sums(&self) -> BTreeMap<&'static str, (usize, usize)> {
        let mut sums = BTreeMap::new();
        for (place, batch) in &self.batches {
            let compared = batch.metrics.iter();
            let compared = compared.flat_map(|written| self.compared(*place, batch, written));
            for (name, events, metrics) in compared {
                let sum: &mut (usize, usize) = sums.entry(name).or_default();
                *sum = (sum.0 + events, sum.1 + metrics);
            }
        }
        // Sentences, such as "the sum of the outcomes".
        sums.retain(|name, _| !name.contains(' '));
        sums
    }

    /// Batches that were not answered, of which the worker had written the metrics or not.
    fn unanswered(&self, written: bool) -> Vec<(Place, &Batch<'a>)> {
        let batches = self.batches.iter().map(|(place, batch)| (*place, batch));
        let batches = batches.filter(|(_, batch)| !batch.answered);
        batches
            .filter(|(_, batch)| batch.metrics.is_empty() != written)
            .collect()
    }

    /// Number of batches whose worker died before it wrote the metrics.
    pub(crate) fn uncounted(&self) -> usize {
        self.unanswered(false).len()
    }

    fn listed(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        batches: &[(Place, &Batch<'_>)],
    ) -> fmt::Result {
        let messages = |batches: &[(Place, &Batch<'_>)]| -> usize {
            let sizes = batches.iter().map(|(_, batch)| batch.deliveries.len());
            sizes.sum()
        };
        let title = format!("{title} (messages: {})", messages(batches));
        let lines = batches.iter().map(|(place, batch)| {
            let death = self.deaths.get(&place.0);
            let death = death.map_or("alive".to_owned(), |death| format!("{death:?}"));
            let ids: Vec<_> = batch.deliveries.iter().map(|(id, _)| &**id).collect();
            format!("{} ({death}): {}", name(*place), ids.join(", "))
        });
        f.write_str(&list(&title, lines))
    }
}

/// A summary for a reader of the test's output.
impl fmt::Display for Measurements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answered = self.batches.values().filter(|batch| batch.answered);
        let compared = self.batches.iter().flat_map(|(place, batch)| {
            let written = batch.metrics.iter();
            written.flat_map(|written| self.compared(*place, batch, written))
        });
        let compared: Vec<Compared> = compared.collect();
        let differ = compared
            .iter()
            .filter(|(_, events, metrics)| events != metrics);
        writeln!(
            f,
            "Metrics: {} batches were answered. Of {} compared counters, {} differ from the events.",
            answered.count(),
            compared.len(),
            differ.count()
        )?;
        self.listed(
            f,
            "Batches whose worker died before it wrote their metrics, so they are in no counter",
            &self.unanswered(false),
        )?;
        self.listed(
            f,
            "Batches whose worker wrote their metrics, and was given up before its answer",
            &self.unanswered(true),
        )
    }
}

fn name((worker, invocation): Place) -> String {
    format!("worker {worker}, batch {invocation}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::audit_selftest::{claimed, delivered, died, returned, said, settled};

    fn metrics(request_id: &str, changed: &[(&str, f64)]) -> Event {
        let good = [("Completed", 1.0), ("BatchSize", 1.0), ("ColdStart", 1.0)];
        let all = good.iter().chain(changed);
        Event::Measured {
            worker: 7,
            batch: BatchMetrics {
                request_id: request_id.into(),
                line: serde_json::Value::Null,
                metrics: all
                    .map(|(name, value)| ((*name).to_owned(), vec![*value]))
                    .collect(),
            },
            takeovers: 0,
        }
    }

    fn good() -> Event {
        metrics("r-7", &[])
    }

    /// A batch of one message that worker 7 completes.
    fn batch(measured: Vec<Event>) -> Vec<Event> {
        let mut events = vec![
            delivered(1, 7),
            claimed(1, "a", 1000),
            settled(1, Settled::Completed),
            Event::Answered {
                worker: 7,
                invocation: 1,
            },
            returned(1, 7, End::Acknowledged),
            said(1, 7, "completed"),
        ];
        events.extend(measured);
        events
    }

    fn violations(events: &[Event]) -> Vec<String> {
        Measurements::of(events).violations()
    }

    fn is_answer(event: &Event) -> bool {
        matches!(event, Event::Answered { .. })
    }

    #[test]
    fn wrong_counters_are_found() {
        assert_eq!(violations(&batch(vec![good()])), [""; 0]);
        let wrong = |changed: &[(&str, f64)]| vec![metrics("r-7", changed)];
        for (measured, differences) in [
            (vec![], 1),
            // Both have the cold start.
            (vec![good(), good()], 2),
            (vec![good(), metrics("r-9", &[])], 1),
            (wrong(&[("BatchSize", 2.0)]), 1),
            (wrong(&[("Takeovers", 1.0)]), 1),
            (wrong(&[("ColdStart", 0.0)]), 1),
            (wrong(&[("DeadLettered", 1.0)]), 1),
            (wrong(&[("ResultsNotStored", 1.0)]), 1),
            // With the sum of the outcomes.
            (wrong(&[("LeasesLost", 1.0)]), 2),
            // With the messages that SQS deletes.
            (wrong(&[("Duplicates", 1.0)]), 3),
            (wrong(&[("Completed", 0.0)]), 4),
        ] {
            let found = violations(&batch(measured.clone()));
            assert_eq!(found.len(), differences, "{measured:?}: {found:?}");
        }
    }

    #[test]
    fn completion_that_table_lacks_is_found() {
        let mut events = batch(vec![good()]);
        events.retain(|event| !matches!(event, Event::Settled { .. }));
        let found = violations(&events);
        let wanted = "Completed, of which the table has the completion is 1 in the metrics and 0";
        assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
    }

    #[test]
    fn batch_of_dead_worker_is_listed() {
        for (measured, uncounted, listed) in [
            (
                vec![],
                1,
                "in no counter (messages: 1): 1\n  worker 7, batch 1 (Killed): m-1\n",
            ),
            (
                vec![good()],
                0,
                "before its answer (messages: 1): 1\n  worker 7, batch 1 (Killed): m-1\n",
            ),
        ] {
            let mut events = batch(measured);
            for event in &mut events {
                if let Event::Returned { end, .. } = event {
                    *end = End::WorkerDied;
                }
            }
            events.push(died(7, Death::Killed));
            let wanted = "worker 7, batch 1: was answered, or its worker did not die";
            assert!(violations(&events).iter().any(|found| found == wanted));
            events.retain(|event| !is_answer(event));
            let alive = &events[..events.len() - 1];
            assert_eq!(violations(alive), [wanted]);
            let measurements = Measurements::of(&events);
            assert_eq!(measurements.violations(), [""; 0]);
            assert_eq!(measurements.uncounted(), uncounted);
            let report = measurements.to_string();
            assert!(report.contains(listed), "{report}");
        }
    }

    /// Two batches at the same time in one process.
    #[test]
    fn metrics_of_concurrent_batches_are_told_apart() {
        let completed = |request: &str, cold: f64| metrics(request, &[("ColdStart", cold)]);
        let invalid = |request: &str, cold: f64| {
            let counters = [("Completed", 0.0), ("Invalid", 1.0), ("ColdStart", cold)];
            metrics(request, &counters)
        };
        let both = |second_request: &str, measured: [Event; 2]| {
            let mut events = vec![delivered(2, 7)];
            if let Event::Delivered { invocation, .. } = &mut events[0] {
                *invocation = 2;
            }
            let mut said = said(2, 7, "invalid");
            if let Event::DeliveryLog { request_id, .. } = &mut said {
                second_request.clone_into(request_id);
            }
            events.push(said);
            events.extend([
                Event::Answered {
                    worker: 7,
                    invocation: 2,
                },
                returned(2, 7, End::ReportedFailed),
            ]);
            events.extend(batch(measured.into()));
            violations(&events)
        };
        let good = |first: f64, second: f64| [completed("r-7", first), invalid("r-8", second)];
        assert_eq!(both("r-8", good(1.0, 0.0)), [""; 0]);
        // The second batch ended first, but the first wrote its line first.
        assert_eq!(both("r-8", good(0.0, 1.0)), [""; 0]);
        for (cold_starts, (first, second)) in [(0, (0.0, 0.0)), (2, (1.0, 1.0))] {
            let wanted = format!("worker 7: {cold_starts} batches have its cold start");
            assert_eq!(both("r-8", good(first, second)), [wanted]);
        }
        let swapped = [completed("r-8", 1.0), invalid("r-7", 0.0)];
        assert!(!both("r-8", swapped).is_empty());
        let found = both("r-7", good(1.0, 0.0));
        let wanted = "worker 7, batch 2 and worker 7, batch 1 have one request id";
        assert!(found.iter().any(|found| found == wanted), "{found:?}");
    }

    #[test]
    fn line_that_cannot_be_read_is_found() {
        let line = "{\"message\":{".to_owned();
        let found = violations(&[Event::Unreadable { worker: 7, line }]);
        let wanted = "worker 7 wrote a line that cannot be read: {\"message\":{";
        assert_eq!(found, [wanted]);
    }
}
