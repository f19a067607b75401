//! Outages of half a day, with each function timeout of the template. Promise 7: no message may become a dead letter.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{
    Run,
    ledger::Event,
    oracle::Violation,
    plan::{
        FUNCTION_TIMEOUTS, Gateway, KeyFrom, Kind, Level, MOST_IN_FLIGHT, Message, Mode, Outage,
        Plan, RECORDS_KEPT, RETENTION, Rates, Release, Service, Timeouts, Wrapping, of_template,
    },
    run,
};

const HALF_A_DAY: Duration = Duration::from_secs(12 * 3600);
/// A message that waits for the longest backoff when the outage ends is done soon after it. See docs/operations.md.
const SOON: Duration = Duration::from_secs(10 * 60);
const HOUR: Duration = Duration::from_secs(3600);
/// The longest rest of a message during whose handler the process ended. See docs/operations.md.
const LONGEST_REST: Duration = Duration::from_secs(10 * 3600);
/// Messages that wait when the outage begins. As many arrive while it lasts.
const WAITING: u32 = 100;

/// What does not work for half a day. The waits for the gateway are the queue's, if SQS takes no others.
pub const OUTAGES: [&[Service]; 4] = [
    &[Service::Gateway],
    &[Service::Table],
    &[Service::Gateway, Service::Sqs],
    &[Service::Workers],
];

/// Most messages of a batch. In a hundred, some cannot start in time.
pub const BATCHES: [usize; 2] = [10, 100];

/// How the messages of an outage fared.
pub struct Survival {
    pub of: Vec<Service>,
    pub batch: usize,
    pub timeouts: Timeouts,
    /// Of all messages.
    pub receives: usize,
    /// Of one message.
    pub most_receives: u32,
    pub dead: usize,
    /// Time from the end of the outage to the last message.
    pub done_after: Duration,
    pub violations: Vec<Violation>,
}

/// Returns a world for each function timeout in which services are out for half a day, and nothing else goes wrong.
pub fn plans(of: &[Service], batch: usize) -> impl Iterator<Item = Plan> + use<> {
    let message = |n: u32| Message {
        id: format!("m-{n}"),
        order: format!("o-{n}"),
        group: None,
        kind: Kind::Good,
        payload: 0,
        in_other_queue: false,
        deduplication_id: None,
        attributes: BTreeMap::new(),
        sent: n.saturating_sub(WAITING) * (HALF_A_DAY / WAITING),
    };
    let messages: Vec<_> = (0..2 * WAITING).map(message).collect();
    let outage = |of: &Service| Outage {
        of: *of,
        during: Duration::ZERO..HALF_A_DAY,
    };
    let outages: Vec<_> = of.iter().map(outage).collect();
    FUNCTION_TIMEOUTS.into_iter().map(move |function| Plan {
        seed: 12,
        level: Level::Store,
        mode: Mode::Claim,
        fifo: false,
        batch,
        window: Duration::ZERO,
        environments: 4,
        invocations: 1,
        timeouts: of_template(function),
        key: KeyFrom::Body,
        wrapping: Wrapping::Bare,
        bodies_in_s3: false,
        outputs_in_s3: false,
        releases: vec![Release::default()],
        layer: None,
        stops_groups: false,
        gateway: Gateway::default(),
        direct_dead_letters: true,
        outbox: None,
        skew_ms: 100,
        messages: messages.clone(),
        rates: Rates::default(),
        outages: outages.clone(),
        operator: Vec::new(),
        in_flight: MOST_IN_FLIGHT,
        retention: RETENTION,
        records_kept: RECORDS_KEPT,
        healed: HALF_A_DAY,
    })
}

/// Runs an outage.
pub fn survive(plan: Plan) -> Survival {
    let (batch, timeouts) = (plan.batch, plan.timeouts);
    let of = plan.outages.iter().map(|outage| outage.of).collect();
    let Run {
        events, verdict, ..
    } = run(plan, None);
    let mut survival = Survival {
        of,
        batch,
        timeouts,
        receives: verdict.receives,
        most_receives: 0,
        dead: 0,
        done_after: Duration::ZERO,
        violations: verdict.violations,
    };
    for (at, event) in events {
        match event {
            Event::Received { count, .. } => {
                survival.most_receives = survival.most_receives.max(count);
            }
            Event::ReceivesUsedUp { .. } | Event::Copied { .. } => survival.dead += 1,
            Event::Acknowledged { .. } => {
                survival.done_after = at.saturating_sub(HALF_A_DAY);
            }
            _ => {}
        }
    }
    survival
}

impl Survival {
    /// Returns whether each message was charged, and soon.
    pub fn is_kept(&self) -> bool {
        self.violations.is_empty() && self.dead == 0 && self.done_after <= self.longest_after()
    }

    /// Nothing shortens the wait of a message whose worker died.
    fn longest_after(&self) -> Duration {
        if self.of == [Service::Workers] {
            LONGEST_REST + self.timeouts.visibility + SOON
        } else if self.of.contains(&Service::Sqs) {
            self.timeouts.visibility.max(HOUR) + SOON
        } else {
            HOUR
        }
    }
}

impl fmt::Display for Survival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of: Vec<_> = self.of.iter().map(|of| format!("{of:?}")).collect();
        write!(
            f,
            "{:>5} s  {:16}  {:>5}  {:>8}  {:>5} (of {:>3})  {:>4}  {:>6} min",
            self.timeouts.function.as_secs(),
            of.join(", "),
            self.batch,
            self.receives,
            self.most_receives,
            self.timeouts.max_receives,
            self.dead,
            self.done_after.as_secs() / 60,
        )
    }
}
