//! What is sent and what is injected, out of one seed.
//!
//! Each decision is a roll of its own: of the seed and of what it is about (this write to this
//! key, this delivery of this message). So the seed fixes what is injected where; it does not fix
//! the timing of real processes, and with it which delivery meets which fault.

use std::{
    env,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::json;

/// `CHAOS_SEED`, or one drawn now; it is printed with every report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(pub(crate) u64);

impl Seed {
    pub(crate) fn from_env() -> Self {
        let given = env::var("CHAOS_SEED").ok();
        let given = given.map(|seed| seed.parse().expect("CHAOS_SEED is a whole number"));
        Self(given.unwrap_or_else(|| fastrand::u64(..)))
    }

    /// The dice for `what`, the same ones for one seed and one release of Rust.
    pub(crate) fn dice(self, what: impl Hash) -> fastrand::Rng {
        let mut hasher = DefaultHasher::new();
        (self.0, what).hash(&mut hasher);
        fastrand::Rng::with_seed(hasher.finish())
    }
}

/// How many messages are sent: `variable`, or `default`.
pub(crate) fn size(variable: &str, default: usize) -> usize {
    let given = env::var(variable).ok();
    given.map_or(default, |size| size.parse().expect("a number of messages"))
}

/// What the gateway, or nobody, makes of a message's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Good,
    /// 503 to the first call.
    Busy,
    /// The first call is taken, and answered later than anybody waits.
    Slow,
    /// The first call is taken, and its answer cut off.
    Cut,
    /// 402 to all calls.
    Declined,
    /// No order at all: it never gets as far as the gateway.
    Undecodable,
}

impl Kind {
    /// Whether it fails however often it is tried.
    pub(crate) fn is_permanent(self) -> bool {
        matches!(self, Kind::Declined | Kind::Undecodable)
    }

    /// The card that makes the gateway treat the order so.
    fn card(self) -> String {
        format!("{self:?}")
    }

    pub(crate) fn of_card(card: &str) -> Self {
        let kinds = [Kind::Busy, Kind::Slow, Kind::Cut, Kind::Declined];
        let named = kinds.into_iter().find(|kind| kind.card() == card);
        named.unwrap_or(Kind::Good)
    }
}

/// A message as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) order: String,
    /// The operation that its idempotency key names. Messages with one key are one operation.
    pub(crate) operation: String,
    pub(crate) kind: Kind,
    /// The FIFO group.
    pub(crate) group: Option<String>,
    pub(crate) body: String,
}

impl Message {
    /// A message whose key is its order's id.
    pub(crate) fn new(n: usize, order: String, kind: Kind, group: Option<String>) -> Self {
        let body = match kind {
            Kind::Undecodable if n.is_multiple_of(2) => "{\"orderId\":".to_owned(),
            Kind::Undecodable => json!({"amount": 1, "currency": "EUR"}).to_string(),
            _ => json!({"orderId": order, "amount": 9.5, "currency": "EUR", "paymentToken": kind.card()})
                .to_string(),
        };
        let id = format!("m-{n}");
        Self {
            id,
            operation: order.clone(),
            order,
            kind,
            group,
            body,
        }
    }

    /// A message whose key is its own id.
    pub(crate) fn keyed_by_id(self) -> Self {
        let operation = self.id.clone();
        Self { operation, ..self }
    }
}

/// Orders in messages of a standard queue. So many of a hundred repeat an order sent before, in
/// another message.
pub(crate) fn orders(seed: Seed, size: usize, resent: u32) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::with_capacity(size);
    for n in 0..size {
        let mut dice = seed.dice(("order", n));
        let resent = dice.u32(..100) < resent;
        let first = resent.then(|| dice.choice(&messages)).flatten();
        let (order, kind) = match first.filter(|first| first.kind != Kind::Undecodable) {
            Some(first) => (first.order.clone(), first.kind),
            None => (format!("o-{n}"), kind(&mut dice)),
        };
        messages.push(Message::new(n, order, kind, None));
    }
    messages
}

/// Orders in FIFO groups. The messages behind one that fails permanently are to be charged.
pub(crate) fn grouped_orders(seed: Seed, size: usize, groups: usize) -> Vec<Message> {
    let message = |n| {
        let kind = kind(&mut seed.dice(("grouped", n)));
        let group = format!("g-{}", n % groups);
        Message::new(n, format!("o-{n}"), kind, Some(group))
    };
    (0..size).map(message).collect()
}

fn kind(dice: &mut fastrand::Rng) -> Kind {
    match dice.u32(..100) {
        0..5 => Kind::Busy,
        5..8 => Kind::Slow,
        8..11 => Kind::Cut,
        11..16 => Kind::Declined,
        16..21 => Kind::Undecodable,
        _ => Kind::Good,
    }
}
