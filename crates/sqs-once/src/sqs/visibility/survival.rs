//! Tests that messages survive an outage of half a day with the template's values. Computes bounds for the
//! way to the dead-letter queue, and simulates whole batches with the waits from the code.
//!
//! `make outage` prints the table of the simulation.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    sync::Arc,
    thread,
    time::Duration,
};

use serde_json::json;

use super::delay::{Backoff, Receive, Rule};
use crate::{modes::Outcome, protocol::Timestamp, store::StoreError};

#[path = "../../../../../tests/support/src/template.rs"]
#[allow(unreachable_pub, reason = "shared with tests/support")]
mod template;

use template::Template;

const HOUR: u64 = 3600;
/// The least time from the first receive to the dead-letter queue, in seconds.
const SHORTEST: u64 = 12 * HOUR;

/// The values of the queue and its consumer in a template.
fn queue(template: &Template) -> Queue {
    let number = |path| -> u64 { template.property(path).parse().unwrap() };
    let variable = |name| template.property(&format!("Consumer/Environment/Variables/{name}"));
    let duration = |name| humantime::parse_duration(&variable(name)).unwrap();
    Queue {
        timeout: number("Consumer/Timeout"),
        visibility_timeout: number("OrdersQueue/VisibilityTimeout"),
        receives: number("OrdersQueue/RedrivePolicy/maxReceiveCount")
            .try_into()
            .unwrap(),
        retention: number("OrdersQueue/MessageRetentionPeriod"),
        backoff: Backoff {
            base: duration("CONSUMER_BACKOFF_BASE"),
            cap: duration("CONSUMER_BACKOFF_CAP"),
        },
        // The value that `Consumer::new` sets.
        reserve: Duration::from_millis(500),
        // The smallest number that `auto` can mean.
        handlers: variable("CONSUMER_CONCURRENCY").parse().unwrap_or(10),
        invocations: template
            .text(&json!({"!Ref": "MaximumConcurrency"}))
            .parse()
            .unwrap(),
    }
}

/// The values of a queue and its consumer. Times are in seconds where they are numbers.
#[derive(Clone, Debug)]
struct Queue {
    timeout: u64,
    visibility_timeout: u64,
    receives: u32,
    retention: u64,
    backoff: Backoff,
    reserve: Duration,
    /// Handlers of one batch that run at a time.
    handlers: usize,
    invocations: usize,
}

fn least(_: u64) -> u64 {
    0
}

fn most(most: u64) -> u64 {
    most
}

impl Queue {
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

    /// Returns the sum of the waits between the receives of a message, each with the cause that gives the
    /// shortest wait.
    fn shortest(&self, wait: impl Fn(u32) -> u64) -> u64 {
        (1..self.receives).map(wait).sum()
    }

    /// Returns the time in which a message has certainly used up its receives, if it never waits for an
    /// invocation.
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

/// Function timeouts that the template admits.
fn timeouts() -> Vec<String> {
    let template = Template::with(&[]);
    template.parameter("FunctionTimeout")["AllowedValues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|timeout| template.text(timeout))
        .collect()
}

/// The longest batching window that the template admits, in seconds.
fn longest_window() -> u64 {
    let template = Template::with(&[]);
    let longest = template.parameter("BatchingWindow")["MaxValue"].as_u64();
    longest.unwrap()
}

/// Back-offs after the first receive. A template may allow some of them.
const BASES: [&str; 8] = ["1ms", "500ms", "1s", "2s", "10s", "1m", "999m", "99999s"];

/// Returns the waits of a message whose handlers fail, and of one whose workers die. A message that is not
/// started at its first receive is visible again at once.
fn shortest_waits(queue: &Queue) -> [impl Fn(u32) -> u64; 2] {
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
    let mut admitted = 0;
    for timeout in timeouts() {
        for base in BASES {
            let values = [
                ("FunctionTimeout", &*timeout),
                ("ConsumerBackoffBase", base),
            ];
            let template = Template::with(&values);
            if !template.admits() {
                continue;
            }
            admitted += 1;
            let queue = queue(&template);
            let [failing, dying] = shortest_waits(&queue);
            for (cause, way) in [
                ("handlers fail", queue.shortest(&failing)),
                ("workers die", queue.shortest(&dying)),
                ("either", queue.shortest(|n| failing(n).min(dying(n)))),
            ] {
                assert!(way >= SHORTEST, "{values:?}, {cause}: {way} s");
            }
        }
    }
    assert!(admitted >= 28, "{admitted}");
}

#[test]
fn way_to_the_dead_letter_queue_ends_before_retention() {
    let counts: Vec<_> = (1..=1000)
        .map(|count: u32| count.to_string())
        .chain([String::new()])
        .collect();
    let mut template = Template::with(&[]);
    let mut most_receives = Vec::new();
    for timeout in timeouts() {
        let mut largest = 0;
        for count in &counts {
            template.set(&[
                ("FunctionTimeout", &timeout),
                ("MaxReceiveCount", count),
                ("ConsumerBackoffBase", "999m"),
            ]);
            if !template.admits() {
                continue;
            }
            let queue = queue(&template);
            let longest = queue.longest(longest_window());
            let bound = queue.retention * 3 / 4;
            assert!(longest <= bound, "{timeout} s, {count}: {longest} s");
            largest = largest.max(queue.receives);
        }
        template.set(&[("FunctionTimeout", &timeout)]);
        assert_eq!(
            queue(&template).receives,
            largest,
            "the default is the most"
        );
        most_receives.push(largest);
    }
    assert_eq!(most_receives.len(), 7);
}

#[test]
fn operations_page_has_the_values_and_their_bounds() {
    let page = include_str!("../../../../../docs/operations.md");
    let hours = |seconds| Duration::from_secs(seconds).as_secs_f64() / 3600.0;
    for (timeout, label) in [
        ("2", ""),
        ("60", "2 to 60 s"),
        ("120", "120 s"),
        ("300", "300 s"),
        ("900", "900 s"),
    ] {
        let queue = queue(&Template::with(&[("FunctionTimeout", timeout)]));
        let [failing, dying] = shortest_waits(&queue);
        let values = format!(
            "{} s | {} | {} min | {:.1} h",
            queue.visibility_timeout,
            queue.receives,
            queue.backoff.cap.as_secs() / 60,
            hours(queue.shortest(|n| failing(n).min(dying(n)))),
        );
        let row = match label {
            "" => values,
            label => format!(
                "| {label} | {values} | {:.0} h |",
                hours(queue.longest(longest_window()))
            ),
        };
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn template_refuses_receives_that_outlive_the_queue() {
    let admits = |values: &[_]| Template::with(values).admits();
    for (timeout, count, admitted) in [
        ("30", "", true),
        ("30", "8", true),
        ("30", "130", true),
        ("30", "131", false),
        ("30", "0", false),
        ("900", "", true),
        ("900", "47", true),
        ("900", "48", false),
        ("900", "130", false),
    ] {
        let values = [("FunctionTimeout", timeout), ("MaxReceiveCount", count)];
        assert_eq!(admits(&values), admitted, "{values:?}");
    }
}

// ---- the simulation ------------------------------------------------------------------------------

/// The cause of an outage of half a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The called system rejects each call at once, so messages use up receives as fast as they can.
    SystemRefuses,
    /// Calls of the called system time out.
    SystemHangs,
    /// No claim gets a response.
    StoreSilent,
    /// Each worker ends within a second, without a response to Lambda.
    WorkersDie,
}

const CAUSES: [Cause; 4] = [
    Cause::SystemRefuses,
    Cause::SystemHangs,
    Cause::StoreSilent,
    Cause::WorkersDie,
];

const SECOND: u64 = 1000;
const OUTAGE: u64 = 12 * HOUR * SECOND;
/// Messages in the queue when the outage begins. Then one more arrives each second.
const WAITING: usize = 2000;
/// Duration of a handler when the called system works, in milliseconds.
const HEALTHY: u64 = 200;

#[derive(Clone, Copy, Debug, Default)]
struct Message {
    sent: u64,
    receives: u32,
    done: bool,
}

/// The waits of an outcome after each receive: the minimum, and the part that is jitter.
type Waits = Vec<(u64, u64)>;

/// A queue with its consumer, in virtual milliseconds. SQS counts visibility timeouts in seconds.
struct Simulation<'a> {
    queue: &'a Queue,
    cause: Cause,
    batch: usize,
    failed: Waits,
    not_started: Waits,
    now: u64,
    messages: Vec<Message>,
    visible: VecDeque<usize>,
    /// Messages by the second in which they become visible again.
    hidden: BTreeMap<u64, Vec<usize>>,
    /// Ends of the invocations in progress.
    running: BinaryHeap<Reverse<u64>>,
    result: Survival,
}

/// How the messages fared that were sent before the end of the outage.
#[derive(Clone, Copy, Debug, Default)]
struct Survival {
    done: usize,
    dead: usize,
    expired: usize,
    receives: u32,
    /// Age of the oldest message when it was done, in milliseconds.
    oldest: u64,
    /// When the last one was done.
    last: u64,
}

impl<'a> Simulation<'a> {
    fn new(queue: &'a Queue, cause: Cause, batch: usize) -> Self {
        let silent = || StoreError::OutOfTime {
            action: "claim",
            key: "k".into(),
        };
        let failed = match cause {
            Cause::StoreSilent => Outcome::StoreUnavailable(Arc::new(silent())),
            _ => retryable(),
        };
        let waits = |outcome: &Outcome| -> Waits {
            let of = |count| {
                let shortest = queue.wait(outcome, count, least);
                (shortest, queue.wait(outcome, count, most) - shortest)
            };
            (0..=queue.receives).map(of).collect()
        };
        Self {
            queue,
            cause,
            batch,
            failed: waits(&failed),
            not_started: waits(&Outcome::NotStarted),
            now: 0,
            messages: vec![Message::default(); WAITING],
            visible: (0..WAITING).collect(),
            hidden: BTreeMap::new(),
            running: BinaryHeap::new(),
            result: Survival::default(),
        }
    }

    fn run(mut self) -> Survival {
        fastrand::seed(10);
        let mut arrival = SECOND;
        let sent = WAITING + usize::try_from(OUTAGE / SECOND).unwrap();
        let ended = |of: &Survival| of.done + of.dead + of.expired == sent;
        while !ended(&self.result) {
            let returns = self.hidden.first_key_value();
            let events = [
                (arrival <= OUTAGE).then_some(arrival),
                returns.map(|(second, _)| second * SECOND),
                self.running.peek().map(|Reverse(end)| *end),
            ];
            self.now = events.into_iter().flatten().min().unwrap();
            if self.now == arrival && arrival <= OUTAGE {
                self.visible.push_back(self.messages.len());
                self.messages.push(Message {
                    sent: self.now,
                    ..Message::default()
                });
                arrival += SECOND;
            }
            while let Some(entry) = self.hidden.first_entry()
                && entry.key() * SECOND <= self.now
            {
                self.visible.extend(entry.remove());
            }
            while (self.running.peek()).is_some_and(|Reverse(end)| *end <= self.now) {
                self.running.pop();
            }
            while self.running.len() < self.queue.invocations && !self.visible.is_empty() {
                self.invoke();
            }
        }
        self.result
    }

    fn hide(&mut self, message: usize, until: u64) {
        let second = until.div_ceil(SECOND);
        self.hidden.entry(second).or_default().push(message);
    }

    /// Receives a batch and processes it to its end.
    fn invoke(&mut self) {
        let mut batch = Vec::new();
        while batch.len() < self.batch
            && let Some(message) = self.visible.pop_front()
        {
            let of = &mut self.messages[message];
            if of.sent + self.queue.retention * SECOND <= self.now {
                self.result.expired += 1;
            } else if of.receives == self.queue.receives {
                self.result.dead += 1;
            } else {
                of.receives += 1;
                self.result.receives = self.result.receives.max(of.receives);
                batch.push(message);
            }
        }
        if batch.is_empty() {
            return;
        }
        if self.cause == Cause::WorkersDie && self.now < OUTAGE {
            let until = self.now + self.queue.visibility_timeout * SECOND;
            for message in batch {
                self.hide(message, until);
            }
            return self.running.push(Reverse(self.now + SECOND));
        }
        // On a standard queue, the messages with the most receives start first.
        batch.sort_by_key(|message| Reverse(self.messages[*message].receives));
        let stop = self.now + self.queue.timeout * SECOND - millis(self.queue.reserve);
        let trouble = match self.cause {
            Cause::SystemRefuses => 50,
            // The template's handler takes at most 5 seconds, and the function has more.
            Cause::SystemHangs => 5 * SECOND,
            // Three attempts of 5 seconds each, and the release of the claim.
            Cause::StoreSilent => 16 * SECOND,
            Cause::WorkersDie => 0,
        };
        let lasts = trouble.min(self.queue.timeout * SECOND / 2);
        let latest_start = stop - lasts.max(HEALTHY);
        let mut places: BinaryHeap<_> = vec![Reverse(self.now); self.queue.handlers].into();
        let (mut failed, mut end) = (Vec::new(), self.now);
        for message in batch {
            let Reverse(begins) = *places.peek().unwrap();
            if begins > latest_start {
                failed.push((message, false));
                continue;
            }
            places.pop();
            let is_down = begins < OUTAGE;
            let ends = begins + if is_down { lasts } else { HEALTHY };
            places.push(Reverse(ends));
            end = end.max(ends);
            if is_down {
                failed.push((message, true));
            } else {
                self.complete(message, ends);
            }
        }
        for (message, started) in failed {
            let waits = [&self.not_started, &self.failed][usize::from(started)];
            let (shortest, jitter) = waits[self.messages[message].receives as usize];
            let wait = shortest + fastrand::u64(..=jitter);
            self.hide(message, end + wait * SECOND);
        }
        self.running.push(Reverse(end.max(self.now + 1)));
    }

    fn complete(&mut self, message: usize, at: u64) {
        let message = &mut self.messages[message];
        assert!(!message.done, "deleted, and received again");
        message.done = true;
        self.result.done += 1;
        self.result.oldest = self.result.oldest.max(at - message.sent);
        self.result.last = self.result.last.max(at);
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}

/// Simulates the outage for each cause, with the template's values for these function timeouts.
fn survivals(timeouts: &[String], batches: &[usize]) -> Vec<(Queue, Cause, usize, Survival)> {
    let of = |timeout: &String| queue(&Template::with(&[("FunctionTimeout", timeout)]));
    let queues: Vec<_> = timeouts.iter().map(of).collect();
    thread::scope(|scope| {
        let start = |cause| {
            let queues = &queues;
            let of = move |queue: &Queue, batch: &usize| {
                let survival = Simulation::new(queue, cause, *batch).run();
                (queue.clone(), cause, *batch, survival)
            };
            let of_queue = move |queue| batches.iter().map(move |batch| of(queue, batch));
            scope.spawn(move || queues.iter().flat_map(of_queue).collect::<Vec<_>>())
        };
        let runs: Vec<_> = CAUSES.into_iter().map(start).collect();
        let results = runs.into_iter().map(|run| run.join().unwrap());
        results.flatten().collect()
    })
}

/// Runs the simulation, prints its table, and asserts that every message survives.
fn assert_all_survive(timeouts: &[String], batches: &[usize]) {
    println!("timeout  cause          batch  receives (of)  dead  expired  oldest  done after");
    for (queue, cause, batch, of) in survivals(timeouts, batches) {
        let after = of.last.saturating_sub(OUTAGE) / 60 / SECOND;
        println!(
            "{:>5} s  {:13}  {batch:>5}  {:>8} ({:>3})  {:>4}  {:>7}  {:>4} h  {after:>6} min",
            queue.timeout,
            format!("{cause:?}"),
            of.receives,
            queue.receives,
            of.dead,
            of.expired,
            of.oldest / HOUR / SECOND,
        );
        assert_eq!((of.dead, of.expired), (0, 0));
        // Nothing shortens the wait of a message whose worker died.
        let hour = match cause {
            Cause::WorkersDie => queue.visibility_timeout.max(HOUR) * SECOND + 10 * 60 * SECOND,
            _ => HOUR * SECOND,
        };
        assert!(of.last <= OUTAGE + hour, "done after {after} minutes");
    }
}

/// Promise 7.
#[test]
fn every_message_survives_an_outage_of_twelve_hours() {
    assert_all_survive(&["30".into()], &[10, 1000]);
    assert_all_survive(&["900".into()], &[1000]);
}

#[test]
#[ignore = "takes a minute: make outage"]
fn every_message_survives_with_every_function_timeout() {
    assert_all_survive(&timeouts(), &[10, 100, 1000]);
}

// ---- many copies of one key ----------------------------------------------------------------------

/// Returns how many copies of one message use up their receives within twelve hours, while the handler of
/// this key lasts this many seconds and fails. Each batch is received at once, with copies of this key only.
fn dead_copies(queue: &Queue, copies: usize, handler: u64) -> usize {
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

/// Promise 7.
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

/// With too few receives, and in batches that circle, messages end in the dead-letter queue.
#[test]
fn simulation_finds_too_few_receives_and_circling_messages() {
    let queue = queue(&Template::with(&[]));
    let eight = Queue {
        receives: 8,
        ..queue.clone()
    };
    let survival = Simulation::new(&eight, Cause::SystemRefuses, 10).run();
    assert!(survival.dead > 40_000, "{survival:?}");
    let mut circling = Simulation::new(&queue, Cause::SystemHangs, 1000);
    circling.not_started.fill((0, 0));
    let survival = circling.run();
    assert!(survival.dead > 1000, "{survival:?}");
}
