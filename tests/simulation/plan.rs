//! [`Plan`]: the script of one world: its settings, its messages and its faults, all drawn from the seed.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use crate::{
    dice::Dice,
    operator::{Act, Work},
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const HOUR: Duration = seconds(3600);

/// How long the handler waits for the gateway.
const PATIENCE: Duration = seconds(5);
pub const MOST_IN_FLIGHT: usize = 120_000;
/// Of the template.
pub const RETENTION: Duration = HOUR.saturating_mul(4 * 24);

/// Messages at the wire, where a receive takes ten times as long.
const MOST_AT_THE_WIRE: usize = 20;

/// The level at which requests to the table fail. Calls to SQS go through the SDK at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// At the trait of stores.
    Store,
    /// At the wire, below the shipped store and the SDK.
    Wire,
    /// The same with batched writes.
    Batched,
}

/// The script of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub level: Level,
    pub fifo: bool,
    /// Most messages of a batch.
    pub batch: usize,
    /// Batching window.
    pub window: Duration,
    /// Execution environments at a time.
    pub environments: usize,
    /// Invocations of a process at a time.
    pub invocations: usize,
    /// Handlers of a batch at a time.
    pub concurrency: usize,
    pub timeouts: Timeouts,
    /// The key is the order's id, not the message's.
    pub keyed_by_order: bool,
    pub gateway: Gateway,
    pub direct_dead_letters: bool,
    /// Most milliseconds by which a process's wall clock is wrong, in both directions.
    pub skew_ms: u64,
    pub messages: Vec<Message>,
    pub rates: Rates,
    pub outages: Vec<Outage>,
    pub operator: Vec<Act>,
    /// Most messages in flight. SQS has 120,000, and 20,000 for a FIFO queue.
    pub in_flight: usize,
    /// How long the queue keeps a message.
    pub retention: Duration,
    /// From then on nothing goes wrong any more.
    pub healed: Duration,
}

/// What the template derives from the function's timeout (docs/operations.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub function: Duration,
    pub visibility: Duration,
    pub max_receives: u32,
    pub cap: Duration,
}

const TIMEOUTS: [Timeouts; 5] = [
    of_template(30),
    of_template(60),
    of_template(120),
    of_template(300),
    of_template(900),
];

/// Function timeouts that the template admits, in seconds.
pub const FUNCTION_TIMEOUTS: [u64; 7] = [2, 10, 30, 60, 120, 300, 900];

/// Returns what the template derives from a function timeout in seconds. A test compares them.
pub const fn of_template(function: u64) -> Timeouts {
    match function {
        0..=60 => timeouts(function, 420, 130, 15),
        61..=120 => timeouts(function, 780, 130, 15),
        121..=300 => timeouts(function, 1860, 130, 15),
        _ => timeouts(function, 5460, 47, 40),
    }
}

const fn timeouts(function: u64, visibility: u64, max_receives: u32, cap_minutes: u64) -> Timeouts {
    Timeouts {
        function: seconds(function),
        visibility: seconds(visibility),
        max_receives,
        cap: seconds(cap_minutes * 60),
    }
}

/// A message of a producer, or of an operator who redrives.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub id: String,
    pub order: String,
    pub group: Option<String>,
    pub kind: Kind,
    pub sent: Duration,
    /// Attributes that the consumer has added to a copy.
    pub attributes: BTreeMap<String, String>,
}

/// The payment gateway, and how the handler calls it.
#[derive(Clone, Debug)]
pub struct Gateway {
    pub keys: Keys,
    /// It stores a decline under its key, and answers with it again.
    pub remembers_declines: bool,
    /// The handler takes a 503 as a promise that nothing was charged.
    pub is_trusted: bool,
    /// How long the handler waits for an answer. `None`: as long as the consumer lets it.
    pub patience: Option<Duration>,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            keys: Keys::Forever,
            remembers_declines: false,
            is_trusted: false,
            patience: Some(PATIENCE),
        }
    }
}

/// The default of `CONSUMER_CALL_KEY_LIFETIME`, for a gateway that forgets keys after a day.
pub const CALL_KEY_LIFETIME: Duration = HOUR.saturating_mul(20);

/// How long the gateway remembers an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    Forever,
    ForADay,
    Never,
}

/// What happens when a message is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Good,
    /// The gateway declines it.
    Declined,
    /// Its body is not an order.
    Undecodable,
    /// Its handler panics this many times, and then succeeds.
    Panics(u32),
    /// The gateway answers it 503 this many times.
    Refused(u32),
    /// The gateway does not answer this many times.
    Hangs(u32),
    /// Its handler ends the process whenever it runs.
    Killer,
    /// Its handler ends the process this many times, and then succeeds.
    Kills(u32),
}

/// Probabilities of faults.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Of a request to the table or the gateway.
    pub request_lost: f64,
    pub answer_lost: f64,
    pub doubled: f64,
    pub late: f64,
    /// Of a request to the table.
    pub throttled: f64,
    pub server_error: f64,
    /// Of a request to the gateway.
    pub busy: f64,
    /// Of a call to SQS.
    pub sqs_refused: f64,
    /// Of an invocation.
    pub killed: f64,
    pub frozen: f64,
    pub throttled_invocation: f64,
    /// Of a delivery, on a standard queue.
    pub delivered_twice: f64,
    pub deletion_lost: f64,
}

/// Something that does not work for a while.
#[derive(Clone, Debug)]
pub struct Outage {
    pub of: Service,
    pub during: Range<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    Table,
    Gateway,
    Sqs,
    /// Each process ends soon after its invocation begins.
    Workers,
    /// Sends to the dead-letter queue.
    DeadLetters,
    /// Lambda throttles every invocation.
    Lambda,
}

impl Plan {
    /// Draws the script of a seed. Each world has some of the faults, because all of them at once hide each other.
    pub fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let fifo = dice.chance(0.3);
        let timeouts = dice.pick(&TIMEOUTS);
        let span = dice.scaled(HOUR * 10).max(seconds(60));
        let keyed_by_order = dice.chance(0.7);
        let batch = dice.pick(&[1, 2, 5, 10, 10, 10]);
        let mut rates = Rates::default();
        for (rate, most) in [
            (&mut rates.request_lost, 0.1),
            (&mut rates.answer_lost, 0.1),
            (&mut rates.doubled, 0.2),
            (&mut rates.late, 0.1),
            (&mut rates.throttled, 0.2),
            (&mut rates.server_error, 0.1),
            (&mut rates.busy, 0.3),
            (&mut rates.sqs_refused, 0.3),
            (&mut rates.killed, 0.2),
            (&mut rates.frozen, 0.2),
            (&mut rates.throttled_invocation, 0.2),
            (&mut rates.delivered_twice, 0.2),
            (&mut rates.deletion_lost, 0.2),
        ] {
            if dice.chance(0.4) {
                *rate = most * dice.below(1000) as f64 / 1000.0;
            }
        }
        if fifo {
            rates.delivered_twice = 0.0;
        }
        let mut outages = Vec::new();
        for of in [Service::Table, Service::Gateway, Service::Sqs] {
            if dice.chance(0.3) {
                let from = dice.between(Duration::ZERO, span);
                let during = from..from + dice.scaled(HOUR * 10);
                outages.push(Outage { of, during });
            }
        }
        let ends = outages.iter().map(|outage| outage.during.end);
        let mut plan = Self {
            seed,
            level: match seed % 20 {
                9 => Level::Wire,
                19 => Level::Batched,
                _ => Level::Store,
            },
            fifo,
            batch,
            window: dice.pick(&[Duration::ZERO, Duration::ZERO, seconds(1), seconds(60)]),
            environments: 1 + dice.below(6),
            invocations: dice.pick(&[1, 1, 1, 4]),
            concurrency: dice.pick(&[1, 4, 10]),
            timeouts,
            keyed_by_order,
            gateway: Gateway::default(),
            direct_dead_letters: dice.chance(0.8),
            skew_ms: dice.pick(&[0, 100, 499]),
            healed: ends.chain([span]).max().unwrap_or(span),
            messages: messages(&mut dice, fifo, span),
            rates,
            outages,
            operator: Vec::new(),
            in_flight: MOST_IN_FLIGHT,
            retention: RETENTION,
        };
        // With numbers of their own: a draw more here changes nothing above.
        if plan.level != Level::Store {
            plan.messages.truncate(MOST_AT_THE_WIRE);
        }
        plan.draw_surroundings(&mut Dice::new(seed ^ 0x00ac_ce55), span);
        plan
    }

    /// Draws the gateway's habits, an operator, and limits of the queue.
    fn draw_surroundings(&mut self, dice: &mut Dice, span: Duration) {
        self.gateway = Gateway {
            keys: dice.pick(&[Keys::Forever, Keys::Forever, Keys::ForADay, Keys::Never]),
            remembers_declines: dice.chance(0.5),
            patience: Some(PATIENCE).filter(|_| dice.chance(0.8)),
            is_trusted: dice.chance(0.3),
        };
        for of in [Service::DeadLetters, Service::Lambda] {
            if dice.chance(0.2) {
                let from = dice.between(Duration::ZERO, span);
                let during = from..from + dice.scaled(HOUR * 4);
                self.healed = self.healed.max(during.end);
                self.outages.push(Outage { of, during });
            }
        }
        if dice.chance(0.4) {
            let least = self.healed;
            for _ in 0..=dice.below(6) {
                let message = dice.below(self.messages.len());
                let what = match dice.below(4) {
                    0 => Work::Release { message },
                    1 => Work::Delete { message },
                    _ => Work::Redrive {
                        mended: dice.chance(0.5),
                    },
                };
                // A redrive may come weeks later.
                let at = match what {
                    Work::Redrive { .. } if dice.chance(0.3) => least + dice.scaled(HOUR * 40),
                    _ => dice.between(Duration::ZERO, least),
                };
                self.operator.push(Act { at, what });
            }
            self.operator.sort_by_key(|act| act.at);
        }
        if dice.chance(0.15) {
            self.in_flight = self.batch.max(5) + dice.below(20);
        }
        if dice.chance(0.1) {
            self.retention = dice.pick(&[HOUR * 6, HOUR * 24]);
        }
    }
}

impl Plan {
    /// Returns the key of a message, as the ledger names it.
    pub fn key(&self, message: &Message) -> String {
        format!("orders#{}", self.id_of_operation(message))
    }

    /// Returns the part of a message's key that is its own.
    pub fn id_of_operation<'a>(&self, message: &'a Message) -> &'a str {
        if self.keyed_by_order {
            &message.order
        } else {
            &message.id
        }
    }

    /// Returns how many messages end their process.
    pub fn deadly(&self) -> u32 {
        let deadly = |message: &&Message| matches!(message.kind, Kind::Killer | Kind::Kills(_));
        self.messages.iter().filter(deadly).count() as u32
    }
}

/// Draws the messages, in the order in which they are sent.
fn messages(dice: &mut Dice, fifo: bool, span: Duration) -> Vec<Message> {
    let number = 5 + dice.below(98);
    let repeated = dice.pick(&[0.0, 0.1, 0.5]);
    let odd = dice.pick(&[0.0, 0.1, 0.3]);
    let deadly = dice.pick(&[0.0, 0.0, 0.05]);
    let mut sent: Vec<_> = (0..number)
        .map(|_| dice.between(Duration::ZERO, span))
        .collect();
    if dice.chance(0.3) {
        sent.fill(Duration::ZERO);
    }
    sent.sort_unstable();
    let mut orders: Vec<(String, Kind, Option<String>)> = Vec::new();
    let mut messages = Vec::new();
    for (n, sent) in sent.into_iter().enumerate() {
        let n_order = if orders.is_empty() || !dice.chance(repeated) {
            let kind = kind(dice, deadly, odd);
            let group = fifo.then(|| format!("g-{}", dice.below(4)));
            orders.push((format!("o-{}", orders.len()), kind, group));
            orders.len() - 1
        } else {
            dice.below(orders.len())
        };
        let (order, kind, group) = orders[n_order].clone();
        messages.push(Message {
            id: format!("m-{n}"),
            order,
            group,
            kind,
            sent,
            attributes: BTreeMap::new(),
        });
    }
    messages
}

fn kind(dice: &mut Dice, deadly: f64, odd: f64) -> Kind {
    if dice.chance(deadly) {
        dice.pick(&[Kind::Killer, Kind::Kills(1), Kind::Kills(2), Kind::Kills(3)])
    } else if dice.chance(odd) {
        dice.pick(&[
            Kind::Declined,
            Kind::Undecodable,
            Kind::Panics(1),
            Kind::Panics(3),
            Kind::Refused(1),
            Kind::Refused(5),
            Kind::Hangs(1),
            Kind::Hangs(2),
        ])
    } else {
        Kind::Good
    }
}
