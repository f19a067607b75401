//! Bounds how long a message takes to reach the dead-letter queue, with the template's values and the waits from the code. `make
//! simulate OUTAGE=1` simulates whole outages.

use std::{collections::BTreeSet, time::Duration};

use super::delay::{Backoff, LEAST_OUTAGE, Receive, Rule, survived_outage};
use crate::{
    modes::Outcome, protocol::Timestamp, settings::variables::table::CONSUMER_BACKOFF_BASE,
};

#[path = "../../../../../tests/support/src/template.rs"]
#[allow(unreachable_pub, reason = "shared with tests/support")]
mod template;

use template::Template;

const SECOND: u64 = 1000;
/// Shortest allowed time from the first receive to the dead-letter queue, in seconds.
const SHORTEST: u64 = LEAST_OUTAGE.as_secs();

/// Reads the values of the queue and its consumer in a template.
fn queue(template: &Template) -> QueueValues {
    let number = |path| -> u64 { template.property(path).parse().unwrap() };
    let cap = template.property("Consumer/Environment/Variables/CONSUMER_BACKOFF_CAP");
    let duration = |text| humantime::parse_duration(text).unwrap();
    QueueValues {
        timeout: number("Consumer/Timeout"),
        visibility_timeout: number("OrdersQueue/VisibilityTimeout"),
        receives: number("OrdersQueue/RedrivePolicy/maxReceiveCount")
            .try_into()
            .unwrap(),
        retention: number("OrdersQueue/MessageRetentionPeriod"),
        backoff: Backoff {
            base: duration(CONSUMER_BACKOFF_BASE.default),
            cap: duration(&cap),
        },
    }
}

/// The values of a queue and its consumer. All times given as numbers are in seconds.
#[derive(Clone, Debug)]
struct QueueValues {
    timeout: u64,
    visibility_timeout: u64,
    receives: u32,
    retention: u64,
    backoff: Backoff,
}

fn least(_: u64) -> u64 {
    0
}

fn most(most: u64) -> u64 {
    most
}

impl QueueValues {
    fn wait(&self, outcome: &Outcome, count: u32, jitter: fn(u64) -> u64) -> u64 {
        let rule = Rule {
            now: Timestamp::default(),
            begun: Timestamp::default(),
            backoff: self.backoff,
            quarantine: None,
            jitter,
        };
        let receive = Receive::of_standard_queue(count);
        rule.seconds(outcome, receive).unwrap().into()
    }

    /// Returns the sum of the waits between a message's receives. `wait` returns the shortest wait after a receive.
    fn shortest(&self, wait: impl Fn(u32) -> u64) -> u64 {
        (1..self.receives).map(wait).sum()
    }

    /// Returns the longest outage that every message survives, in seconds, as the consumer's warning and `doctor` report it.
    fn survived(&self) -> u64 {
        let visibility_timeout = Duration::from_secs(self.visibility_timeout);
        let Backoff { base, cap } = self.backoff;
        survived_outage((base, cap), self.receives, visibility_timeout).as_secs()
    }

    /// Returns the time by which a message has certainly used up its receives, if it never waits for an invocation.
    fn longest(&self, window: u64) -> u64 {
        let failed = retryable();
        let failing = |count| self.wait(&failed, count, most) + self.timeout + window;
        (1..=self.receives)
            .map(|count| failing(count).max(self.visibility_timeout))
            .sum()
    }
}

fn retryable() -> Outcome {
    Outcome::RetryableFailure("busy".into())
}

fn timeouts() -> Vec<String> {
    let template = Template::with(&[]);
    template.parameter("FunctionTimeout")["AllowedValues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|timeout| template.text(timeout))
        .collect()
}

/// Returns the values of `docs/operations.md` for an invocation of 5,400 s on Lambda Managed Instances, which the
/// template does not allow.
fn of_managed_instances() -> QueueValues {
    QueueValues {
        timeout: 5400,
        visibility_timeout: 10_800,
        receives: 23,
        backoff: Backoff {
            base: Duration::from_secs(60),
            cap: Duration::from_secs(90 * 60),
        },
        ..queue(&Template::with(&[]))
    }
}

/// Returns the function timeouts of `docs/operations.md`, each with its values.
fn queues() -> impl Iterator<Item = (String, QueueValues)> {
    let of = |timeout: String| {
        let queue = queue(&Template::with(&[("FunctionTimeout", &timeout)]));
        (timeout, queue)
    };
    let managed = ("5400".to_owned(), of_managed_instances());
    timeouts().into_iter().map(of).chain([managed])
}

/// Returns the longest batching window that the overlay allows, in seconds.
fn longest_window() -> u64 {
    let overlay = template::read("overlays/large-batches.yaml");
    let longest = overlay["Parameters"]["BatchingWindow"]["MaxValue"].as_u64();
    longest.unwrap()
}

/// Returns the waits of a message whose handlers fail, and of one whose workers die. A message that isn't
/// started at its first receive is visible again at once.
fn shortest_waits(queue: &QueueValues) -> [impl Fn(u32) -> u64; 2] {
    let (failed, dies) = (retryable(), [false, true]);
    dies.map(|dies| {
        let failed = failed.clone();
        move |count| match (dies, count) {
            (true, _) => queue.visibility_timeout,
            (false, 1) => 0,
            (false, _) => queue.wait(&failed, count, least),
        }
    })
}

#[test]
fn way_to_the_dead_letter_queue_lasts_half_a_day() {
    for (timeout, queue) in queues() {
        let [failing, dying] = shortest_waits(&queue);
        for (cause, way) in [
            ("handlers fail", queue.shortest(&failing)),
            ("workers die", queue.shortest(&dying)),
            ("either", queue.survived()),
        ] {
            assert!(way >= SHORTEST, "{timeout} s, {cause}: {way} s");
        }
        let waits = queue.shortest(|n| failing(n).min(dying(n)));
        assert_eq!(queue.survived(), waits, "{timeout} s");
    }
}

#[test]
fn way_to_the_dead_letter_queue_ends_before_retention() {
    for (timeout, queue) in queues() {
        let longest = queue.longest(longest_window());
        assert!(
            longest <= queue.retention * 3 / 4,
            "{timeout} s: {longest} s"
        );
    }
}

#[test]
fn operations_page_has_the_values_and_their_bounds() {
    let page = include_str!("../../../../../docs/operations.md");
    assert!(page.contains("CONSUMER_BACKOFF_BASE: 1m, CONSUMER_BACKOFF_CAP: 90m"));
    let hours = |seconds| Duration::from_secs(seconds).as_secs_f64() / 3600.0;
    for (timeout, queue) in queues() {
        let label = match &*timeout {
            "10" | "30" | "60" => "10 to 60 s".to_owned(),
            "5400" => "[5400 s](#lambda-managed-instances)".to_owned(),
            timeout => format!("{timeout} s"),
        };
        let end = match &*timeout {
            "10" | "30" => String::new(),
            _ => format!(" | {:.0} h |", hours(queue.longest(longest_window()))),
        };
        let row = format!(
            "| {label} | {} s | {} | {} min | {:.1} h{end}",
            queue.visibility_timeout,
            queue.receives,
            queue.backoff.cap.as_secs() / 60,
            hours(queue.survived()),
        );
        assert!(page.contains(&row), "{row}");
    }
}

// ---- many copies of one key ----------------------------------------------------------------------

/// Returns how many copies of one message use up their receives within twelve hours, if their handler takes
/// this many seconds and fails. Each batch is received at once, and contains only copies of this message.
fn dead_copies(queue: &QueueValues, copies: usize, handler: u64) -> usize {
    fastrand::seed(10);
    let jitter = |most| fastrand::u64(..=most);
    let mut visible: BTreeSet<_> = (0..copies).map(|copy| (0, copy)).collect();
    let (mut receives, mut dead) = (vec![0; copies], 0);
    let (mut lease_until, mut held_until) = (0, 0);
    while let Some(&(now, _)) = visible.first()
        && now < SHORTEST
    {
        let mut batch = Vec::new();
        while batch.len() < 10
            && let Some(&(at, copy)) = visible.first()
            && at == now
        {
            visible.pop_first();
            if receives[copy] == queue.receives {
                dead += 1;
            } else {
                receives[copy] += 1;
                batch.push(copy);
            }
        }
        let mut end = now;
        let outcome = if now < held_until {
            Outcome::Conflict {
                owner: None,
                lease_until: Timestamp::from_millis((lease_until - now) * SECOND),
            }
        } else {
            // The failure ends the lease.
            (lease_until, held_until) = (now + queue.timeout + 1, now + handler);
            end = held_until;
            retryable()
        };
        for copy in batch {
            let wait = queue.wait(&outcome, receives[copy], jitter);
            visible.insert((end + wait, copy));
        }
    }
    dead
}

#[test]
fn copies_of_one_key_survive_twelve_hours() {
    let queue = queue(&Template::with(&[("FunctionTimeout", "30")]));
    for copies in [50, 200, 1000] {
        for handler in [5, 29] {
            let dead = dead_copies(&queue, copies, handler);
            assert_eq!(dead, 0, "{copies} copies, handler of {handler} s");
        }
    }
}
