//! [`Plan`]: the script of one world: its settings, its messages and its faults, all drawn from the seed.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use crate::{
    dice::Dice,
    operator::{Act, Work},
};

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const HOUR: Duration = seconds(3600);

/// How long the handler waits for the gateway.
const PATIENCE: Duration = seconds(5);
pub const MOST_IN_FLIGHT: usize = 120_000;
/// Of the template.
pub const RETENTION: Duration = HOUR.saturating_mul(4 * 24);
pub const RECORDS_KEPT: Duration = HOUR.saturating_mul(20 * 24);

/// Handlers of a batch at a time, if their memory allows it.
pub const MOST_BY_MEMORY: usize = 100;

/// The part of every key that a function makes, in front of the order.
pub const PART_OF_FUNCTION: &str = "order";

/// Messages at the wire, where a receive takes ten times as long.
const MOST_AT_THE_WIRE: usize = 20;

/// The level at which requests to the table fail. Calls to SQS and S3 go through the SDK at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// At the trait of stores.
    Store,
    /// At the wire, below the shipped store and the SDK.
    Wire,
}

/// The mode in which messages are processed. Only [`Claim`](Self::Claim) works at each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A charge at the gateway.
    Claim,
    /// A charge at the gateway, and then a write that commits with the record.
    Commit,
    /// A write that commits with the record, without a claim.
    Inbox,
    /// A change of one item, which has the keys of its changes.
    Item,
}

impl Mode {
    /// A record says who works on an operation, and that an attempt is open.
    pub const fn claims(self) -> bool {
        matches!(self, Self::Claim | Self::Commit)
    }
}

/// Where the key of a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFrom {
    MessageId,
    /// The order in the body.
    Body,
    /// The order in a message attribute.
    Attribute,
    /// The message group, and the deduplication id, which is the order. Of FIFO queues only.
    DeduplicationId,
    /// A function of the body, which makes two parts.
    Function,
}

impl KeyFrom {
    /// As in `IDEMPOTENCY_KEY`. A function has no name there.
    pub const fn source(self) -> Option<&'static str> {
        match self {
            Self::MessageId => Some("message-id"),
            Self::Body => Some("body:/order"),
            Self::Attribute => Some("attribute:order"),
            Self::DeduplicationId => Some("deduplication-id"),
            Self::Function => None,
        }
    }

    /// Returns whether it names the operation, however often a producer sends it and an operator redrives it.
    pub const fn names_operation(self) -> bool {
        !matches!(self, Self::MessageId | Self::DeduplicationId)
    }

    /// Returns whether a body that is not an order has no key.
    pub const fn needs_body(self) -> bool {
        matches!(self, Self::Body | Self::Function)
    }
}

/// What the fingerprint of a message covers. Each payload under a key has another one, unless it is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Body,
    Parts,
    Off,
}

impl Scheme {
    /// As in `IDEMPOTENCY_FINGERPRINT`.
    pub const fn source(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Parts => "body:/order,/card",
            Self::Off => "off",
        }
    }
}

/// What is around an order in the body of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    Bare,
    Sns,
    EventBridge,
}

/// The settings of the consumer from a time on.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    pub from: Duration,
    /// Handlers of a batch at a time.
    pub concurrency: usize,
    /// As many handlers in place of that as fit into this many bytes.
    pub memory: Option<usize>,
    pub fingerprint: Scheme,
    /// Asks a gateway that is looked up.
    pub looks_up: bool,
    /// A message whose process ends runs alone, rests, and is given up in the end.
    pub isolates: bool,
    pub call_key_lifetime: Option<Duration>,
    pub has_breaker: bool,
    /// Only at the wire.
    pub batches_writes: bool,
    /// How much of an invocation's time is kept for its response.
    pub reserve: Duration,
}

impl Default for Release {
    fn default() -> Self {
        Self {
            from: Duration::ZERO,
            concurrency: 10,
            memory: None,
            fingerprint: Scheme::Body,
            looks_up: true,
            isolates: true,
            call_key_lifetime: None,
            has_breaker: true,
            batches_writes: false,
            reserve: Duration::from_millis(500),
        }
    }
}

/// The script of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub level: Level,
    pub mode: Mode,
    pub fifo: bool,
    /// Most messages of a batch.
    pub batch: usize,
    /// Batching window.
    pub window: Duration,
    /// Execution environments at a time.
    pub environments: usize,
    /// Invocations of a process at a time.
    pub invocations: usize,
    pub timeouts: Timeouts,
    pub key: KeyFrom,
    pub wrapping: Wrapping,
    pub bodies_in_s3: bool,
    pub outputs_in_s3: bool,
    /// Each version of the consumer, in order.
    pub releases: Vec<Release>,
    /// A layer in front of the handler holds messages back: so many handlers of a process run at a time.
    pub layer: Option<usize>,
    /// Behind a permanent failure, a group does not go on in the same batch.
    pub stops_groups: bool,
    pub gateway: Gateway,
    pub direct_dead_letters: bool,
    /// The handler publishes events. Only in modes that write with the record.
    pub outbox: Option<Outbox>,
    /// Most milliseconds by which a process's wall clock is wrong, in both directions.
    pub skew_ms: u64,
    pub messages: Vec<Message>,
    pub rates: Rates,
    pub outages: Vec<Outage>,
    pub operator: Vec<Act>,
    /// Most messages in flight. SQS has 120,000, and 20,000 for a FIFO queue.
    pub in_flight: usize,
    /// How long the queue keeps a message, and the table a record.
    pub retention: Duration,
    pub records_kept: Duration,
    /// From then on nothing goes wrong any more.
    pub healed: Duration,
}

/// How the relay sends events.
#[derive(Clone, Copy, Debug)]
pub struct Outbox {
    /// Most records of a batch.
    pub batch: usize,
    /// Its target is a FIFO queue.
    pub fifo: bool,
}

/// What the template derives from the function's timeout (docs/operations.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub function: Duration,
    pub visibility: Duration,
    pub max_receives: u32,
    /// First and longest backoff.
    pub base: Duration,
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
pub const FUNCTION_TIMEOUTS: [u64; 6] = [10, 30, 60, 120, 300, 900];

/// Returns what the template derives from a function timeout in seconds. A test compares them.
pub const fn of_template(function: u64) -> Timeouts {
    match function {
        0..=60 => timeouts(function, 420, 130, 15),
        61..=120 => timeouts(function, 780, 130, 15),
        121..=300 => timeouts(function, 1860, 130, 15),
        _ => timeouts(function, 5460, 47, 40),
    }
}

/// Of Lambda Managed Instances, whose functions may run for longer: the last row in docs/operations.md.
pub const MANAGED_INSTANCES: Timeouts = Timeouts {
    base: seconds(60),
    ..timeouts(5400, 10_800, 23, 90)
};

const fn timeouts(function: u64, visibility: u64, max_receives: u32, cap_minutes: u64) -> Timeouts {
    Timeouts {
        function: seconds(function),
        visibility: seconds(visibility),
        max_receives,
        base: seconds(10),
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
    /// A corrected order, or one that the producer has changed by mistake, has another one.
    pub payload: u32,
    pub sent: Duration,
    /// It is in the queue of another consumer, which has the same namespace by mistake.
    pub in_other_queue: bool,
    /// What the dead-letter queue has in place of the producer's deduplication id, which is the order.
    pub deduplication_id: Option<String>,
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
    /// It has no idempotency keys, and says whether it has charged.
    pub is_looked_up: bool,
    /// How long the handler works before it calls the gateway.
    pub work: Duration,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            keys: Keys::Forever,
            remembers_declines: false,
            is_trusted: false,
            patience: Some(PATIENCE),
            is_looked_up: false,
            work: Duration::ZERO,
        }
    }
}

/// Longer than a request to the gateway is under way.
pub const QUARANTINE: Duration = seconds(700);

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

impl Message {
    /// Returns what its fingerprint tells from others of its order.
    pub fn content(&self) -> (bool, u32) {
        (self.kind == Kind::Undecodable, self.payload)
    }

    pub fn deduplication_id(&self) -> &str {
        self.deduplication_id.as_ref().unwrap_or(&self.order)
    }

    /// Returns the producer's deduplication id, which a copy of the consumer's still has.
    pub fn first_deduplication_id(&self) -> &str {
        let first = self.attributes.get("SqsOnceDeduplicationId");
        first.map_or_else(|| self.deduplication_id(), String::as_str)
    }
}

impl Kind {
    /// Returns whether no attempt succeeds.
    pub const fn fails_always(self) -> bool {
        matches!(self, Self::Declined | Self::Undecodable | Self::Killer)
    }
}

/// Probabilities of faults.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Of a request to the table or the gateway.
    pub request_lost: f64,
    /// Also of an invocation of the relay, and of its mapping's place in the stream.
    pub answer_lost: f64,
    pub doubled: f64,
    pub late: f64,
    /// Of a request to the table, and of a call to the target of events.
    pub throttled: f64,
    pub server_error: f64,
    /// Of a request to the gateway.
    pub busy: f64,
    /// Of a call to SQS, and of each entry of one.
    pub sqs_refused: f64,
    /// Of a call to S3.
    pub s3_refused: f64,
    /// Of a request to the table: by a policy, or credentials that have just expired.
    pub denied: f64,
    /// Of an invocation.
    pub clock_stepped: f64,
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
    S3,
    /// The credentials of each process have expired.
    Credentials,
    /// Each process ends soon after its invocation begins.
    Workers,
    /// Sends to the dead-letter queue.
    DeadLetters,
    /// Sends to the target of events.
    Target,
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
            (&mut rates.s3_refused, 0.3),
            (&mut rates.denied, 0.1),
            (&mut rates.clock_stepped, 0.3),
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
        for (of, likely) in [
            (Service::Table, 0.3),
            (Service::Gateway, 0.3),
            (Service::Sqs, 0.3),
            (Service::S3, 0.3),
            (Service::Credentials, 0.2),
        ] {
            if dice.chance(likely) {
                let from = dice.between(Duration::ZERO, span);
                let during = from..from + dice.scaled(HOUR * 10);
                outages.push(Outage { of, during });
            }
        }
        let ends = outages.iter().map(|outage| outage.during.end);
        let mut plan = Self {
            seed,
            level: Level::Store,
            mode: Mode::Claim,
            fifo,
            batch,
            window: dice.pick(&[Duration::ZERO, Duration::ZERO, seconds(1), seconds(60)]),
            environments: 1 + dice.below(6),
            invocations: dice.pick(&[1, 1, 1, 4]),
            timeouts,
            key: KeyFrom::Body,
            wrapping: Wrapping::Bare,
            bodies_in_s3: false,
            outputs_in_s3: false,
            releases: Vec::new(),
            layer: None,
            stops_groups: false,
            gateway: Gateway::default(),
            direct_dead_letters: dice.chance(0.8),
            outbox: None,
            skew_ms: dice.pick(&[0, 100, 499]),
            healed: ends.chain([span]).max().unwrap_or(span),
            messages: messages(&mut dice, fifo, span),
            rates,
            outages,
            operator: Vec::new(),
            in_flight: MOST_IN_FLIGHT,
            retention: RETENTION,
            records_kept: RECORDS_KEPT,
        };
        // With numbers of their own: a draw more in one changes nothing in the others.
        plan.draw_consumer(&mut Dice::new(seed ^ 0x00c0_5e7e), span);
        plan.draw_surroundings(&mut Dice::new(seed ^ 0x00ac_ce55), span);
        plan.draw_latecomers(&mut Dice::new(seed ^ 0x01a7_ec03));
        plan.draw_outbox(&mut Dice::new(seed ^ 0x0e4e_4715));
        plan.draw_corrections(&mut Dice::new(seed ^ 0x0c04_4ec7));
        plan.draw_rarities(seed);
        plan
    }

    /// Draws how the consumer is set up.
    fn draw_consumer(&mut self, dice: &mut Dice, span: Duration) {
        self.mode = dice.pick(&[
            Mode::Claim,
            Mode::Claim,
            Mode::Claim,
            Mode::Claim,
            Mode::Commit,
            Mode::Inbox,
            Mode::Item,
        ]);
        if self.mode != Mode::Claim || dice.chance(0.2) {
            self.level = Level::Wire;
            self.messages.truncate(MOST_AT_THE_WIRE);
        }
        self.key = dice.pick(&[KeyFrom::MessageId, KeyFrom::Body, KeyFrom::Attribute]);
        self.wrapping = dice.pick(&[
            Wrapping::Bare,
            Wrapping::Bare,
            Wrapping::Sns,
            Wrapping::EventBridge,
        ]);
        self.bodies_in_s3 = dice.chance(0.2);
        // An item stores no outputs.
        self.outputs_in_s3 = dice.chance(0.2) && self.mode != Mode::Item;
        let isolates = self.mode.claims() && dice.chance(0.8);
        if !self.fifo && self.level == Level::Store && dice.chance(0.15) {
            self.batch = dice.pick(&[100, 1000]);
            self.window = dice.pick(&[seconds(1), seconds(60)]);
            if dice.chance(0.3) {
                self.add_orders(dice, 900);
            }
        }
        let releases = dice.pick(&[1, 1, 2, 3]);
        for n in 0..releases {
            let from = match n {
                0 => Duration::ZERO,
                _ => dice.between(Duration::ZERO, span),
            };
            self.releases.push(Release {
                from,
                concurrency: dice.pick(&[1, 4, 10]),
                isolates,
                has_breaker: dice.chance(0.8),
                batches_writes: self.level == Level::Wire && dice.chance(0.5),
                reserve: dice.pick(&[Duration::from_millis(500), seconds(3)]),
                ..Release::default()
            });
        }
        self.releases.sort_by_key(|release| release.from);
        if !isolates {
            // Without isolation, such a message takes others with it until its receives are used up.
            for message in &mut self.messages {
                if message.kind == Kind::Killer {
                    message.kind = Kind::Kills(2);
                }
            }
        }
    }

    /// Adds good orders, as many as make the messages `most`.
    pub(crate) fn add_orders(&mut self, dice: &mut Dice, most: usize) {
        let last = self
            .messages
            .last()
            .map_or(Duration::ZERO, |last| last.sent);
        for n in self.messages.len()..most {
            self.messages.push(Message {
                id: format!("m-{n}"),
                order: format!("o-more-{n}"),
                group: None,
                kind: Kind::Good,
                payload: 0,
                sent: dice.between(Duration::ZERO, last),
                in_other_queue: false,
                deduplication_id: None,
                attributes: BTreeMap::new(),
            });
        }
        self.messages.sort_by_key(|message| message.sent);
    }

    /// Draws a shorter life of records, and orders that are sent once more about when their record ends.
    fn draw_latecomers(&mut self, dice: &mut Dice) {
        if !dice.chance(0.2) {
            return;
        }
        let last = self.redrives().max().unwrap_or_default();
        // A message may come back as long as the queue keeps it, and a dead letter until the last redrive.
        self.records_kept = self.healed.max(last) + self.retention;
        let declined = |message: &&Message| message.kind == Kind::Declined;
        let declined: Vec<_> = self.messages.iter().filter(declined).cloned().collect();
        for n in 0..1 + dice.below(5) {
            let of = if !declined.is_empty() && dice.chance(0.5) {
                declined[dice.below(declined.len())].clone()
            } else {
                self.messages[dice.below(self.messages.len())].clone()
            };
            let later = self.records_kept + dice.between(Duration::ZERO, self.healed + HOUR * 72);
            let mut late = Message {
                id: format!("late-{n}"),
                sent: later,
                ..of
            };
            // A redrive begins with a read.
            if dice.chance(0.5) {
                let name = "SqsOnceRedriveOf".to_owned();
                late.attributes.insert(name, of.id);
            }
            self.messages.push(late);
        }
        if self.mode == Mode::Item {
            // By then, each item has keys that are to be removed, and several changes do so at once.
            let later = self.records_kept + self.healed + HOUR * 2;
            for n in 0..4 + dice.below(16) {
                let of = self.messages[dice.below(self.messages.len())].clone();
                self.messages.push(Message {
                    id: format!("burst-{n}"),
                    order: format!("o-burst-{n}"),
                    kind: Kind::Good,
                    sent: later + dice.between(Duration::ZERO, seconds(2)),
                    ..of
                });
            }
        }
        self.messages.sort_by_key(|message| message.sent);
    }

    /// Draws orders that are sent again with another payload: corrected after a decline, or changed by mistake.
    fn draw_corrections(&mut self, dice: &mut Dice) {
        if self.key == KeyFrom::MessageId || !self.mode.claims() || !dice.chance(0.3) {
            return;
        }
        let fails = |message: &&Message| matches!(message.kind, Kind::Declined | Kind::Undecodable);
        let failing: Vec<_> = self.messages.iter().filter(fails).cloned().collect();
        for n in 0..1 + dice.below(5) {
            let of = if !failing.is_empty() && dice.chance(0.7) {
                &failing[dice.below(failing.len())]
            } else {
                &self.messages[dice.below(self.messages.len())]
            };
            // Many wait in the queue beside the one that they correct.
            let waits = dice.chance(0.5);
            let later = if waits { seconds(1) } else { self.healed };
            let kind = dice.pick(&[Kind::Good, Kind::Good, Kind::Refused(2), Kind::Hangs(1)]);
            let corrected = Message {
                id: format!("fix-{n}"),
                kind,
                payload: 1 + dice.below(2) as u32,
                sent: of.sent + dice.between(Duration::ZERO, later),
                ..of.clone()
            };
            self.messages.push(corrected);
        }
        self.messages.sort_by_key(|message| message.sent);
    }

    /// Draws whether the handler publishes events, and the relay.
    fn draw_outbox(&mut self, dice: &mut Dice) {
        if matches!(self.mode, Mode::Commit | Mode::Inbox) && dice.chance(0.5) {
            self.outbox = Some(Outbox {
                batch: 1 + dice.below(10),
                fifo: dice.chance(0.5),
            });
            if dice.chance(0.5) {
                let from = dice.between(Duration::ZERO, self.healed);
                let during = from..dice.between(from, self.healed);
                let of = Service::Target;
                self.outages.push(Outage { of, during });
            }
        }
    }

    /// Draws the gateway's habits, an operator, and limits of the queue.
    fn draw_surroundings(&mut self, dice: &mut Dice, span: Duration) {
        let keys = dice.pick(&[Keys::Forever, Keys::Forever, Keys::ForADay, Keys::Never]);
        self.gateway = Gateway {
            keys,
            remembers_declines: dice.chance(0.5),
            patience: Some(PATIENCE).filter(|_| dice.chance(0.8)),
            is_trusted: dice.chance(0.3),
            // Its key must name the operation.
            is_looked_up: keys == Keys::Never
                && self.mode.claims()
                && self.key.names_operation()
                && dice.chance(0.6),
            work: Duration::ZERO,
        };
        let forgets = keys == Keys::ForADay;
        for release in &mut self.releases {
            release.call_key_lifetime = forgets.then_some(CALL_KEY_LIFETIME);
        }
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
        if dice.chance(0.15) {
            self.retention = dice.pick(&[HOUR * 6, HOUR * 24]);
        }
    }
}

impl Plan {
    /// Returns the key of a message, as the ledger names it.
    pub fn key(&self, message: &Message) -> String {
        format!("orders#{}", self.parts_of_key(message).join("#"))
    }

    /// Returns the parts of a message's key behind the namespace.
    pub fn parts_of_key<'a>(&self, message: &'a Message) -> Vec<&'a str> {
        match self.key {
            KeyFrom::MessageId => vec![&message.id],
            KeyFrom::Body | KeyFrom::Attribute => vec![&message.order],
            KeyFrom::Function => vec![PART_OF_FUNCTION, &message.order],
            KeyFrom::DeduplicationId => {
                let group = message.group.as_deref();
                vec![group.unwrap_or_default(), message.first_deduplication_id()]
            }
        }
    }

    /// Returns whether a setting is so in each version of the consumer.
    pub fn always(&self, is_so: impl Fn(&Release) -> bool) -> bool {
        self.releases.iter().all(is_so)
    }

    /// Returns whether a setting differs between two versions of the consumer.
    pub fn changes<T: PartialEq>(&self, setting: impl Fn(&Release) -> T) -> bool {
        let mut settings = self.releases.iter().map(setting);
        let first = settings.next();
        settings.any(|other| Some(other) != first)
    }

    /// Returns whether two payloads under one key are always told apart.
    pub fn tells_payloads_apart(&self) -> bool {
        self.always(|of| of.fingerprint != Scheme::Off) && !self.changes(|of| of.fingerprint)
    }

    /// Returns whether the failure of a body that can't be decoded has a record. Without a key there is none, and an item has no
    /// failures.
    pub fn records_unreadable(&self) -> bool {
        self.mode != Mode::Item && !self.key.needs_body()
    }

    /// Returns whether a service is out for a while.
    pub fn has_outage(&self, of: Service) -> bool {
        self.outages.iter().any(|outage| outage.of == of)
    }

    /// Returns when an operator sends dead letters back.
    pub fn redrives(&self) -> impl Iterator<Item = Duration> {
        let redrives = self.operator.iter();
        let redrives = redrives.filter(|act| matches!(act.what, Work::Redrive { .. }));
        redrives.map(|act| act.at)
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
            payload: 0,
            sent,
            in_other_queue: false,
            deduplication_id: None,
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
