//! What few worlds have: settings that differ between two versions of the consumer, a layer, a second queue, many
//! invocations in a process. In some worlds, many of these meet.

use std::time::Duration;

use crate::{
    dice::Dice,
    operator::{Act, Work},
    plan::{
        CALL_KEY_LIFETIME, HOUR, KeyFrom, Keys, Kind, Level, MANAGED_INSTANCES, Message, Mode,
        Plan, Scheme, seconds,
    },
};

/// The longest work of a handler, so that a batch of ten has enough time on one environment.
const LONGEST_WORK: Duration = seconds(600);
const MIB: usize = 1 << 20;
/// More than the four payloads whose failures a record keeps apart.
const DECLINED_PAYLOADS: usize = 6;

/// Numbers of one draw. In a crowded world, what is rare is likely.
struct Draw {
    dice: Dice,
    is_crowded: bool,
}

impl Draw {
    fn chance(&mut self, rare: f64, crowded: f64) -> bool {
        let probability = if self.is_crowded { crowded } else { rare };
        self.dice.chance(probability)
    }
}

impl Plan {
    pub(crate) fn draw_rarities(&mut self, seed: u64) {
        let is_crowded = Dice::new(seed ^ 0x0c40_3ded).chance(0.1);
        let draw = |number| Draw {
            dice: Dice::new(seed ^ number),
            is_crowded,
        };
        if is_crowded {
            self.crowd(&mut draw(0x0c40_3d00));
        }
        self.draw_key_function(&mut draw(0x0f0c_7100));
        self.draw_deduplication_ids(&mut draw(0xded0_1d00));
        self.draw_rivals(&mut draw(0x419a_1500));
        self.draw_declines(&mut draw(0xdec1_1e00));
        self.draw_slow_neighbours(&mut draw(0x0510_3000));
        self.draw_layer(&mut draw(0x1a7e_4000));
        self.draw_stop(&mut draw(0x0057_0900));
        self.draw_fingerprints(&mut draw(0xf19e_4000));
        self.draw_isolation(&mut draw(0x1501_a700));
        self.draw_lookups(&mut draw(0x100c_0901));
        self.draw_lifetimes(&mut draw(0x11fe_7100));
        self.draw_instances(&mut draw(0x1057_a0ce));
        self.draw_wire_batches(&mut draw(0xba7c_4e50));
        self.draw_memory(&mut draw(0x0e0e_4000));
        self.draw_other_queue(&mut draw(0x07e4_c0e0));
    }

    /// Makes room for what needs two releases, a lookup or several invocations.
    fn crowd(&mut self, draw: &mut Draw) {
        let dice = &mut draw.dice;
        if let [only] = self.releases[..] {
            let mut next = only;
            next.from = dice.between(Duration::ZERO, self.healed);
            self.releases.push(next);
        }
        if self.mode.claims() && self.key.names_operation() && dice.chance(0.5) {
            self.gateway.keys = Keys::Never;
            self.gateway.is_looked_up = true;
            for release in &mut self.releases {
                release.call_key_lifetime = None;
            }
        }
        if self.invocations == 1 && dice.chance(0.3) {
            self.invocations = 4;
        }
    }

    fn draw_key_function(&mut self, draw: &mut Draw) {
        if self.key != KeyFrom::MessageId && draw.chance(0.12, 0.5) {
            self.key = KeyFrom::Function;
        }
    }

    /// Keys from the deduplication ids of a FIFO queue. Some messages are dead letters more than once, and keep theirs.
    fn draw_deduplication_ids(&mut self, draw: &mut Draw) {
        if !self.fifo || self.gateway.is_looked_up || !draw.chance(0.4, 0.6) {
            return;
        }
        self.key = KeyFrom::DeduplicationId;
        let dice = &mut draw.dice;
        if !dice.chance(0.7) {
            return;
        }
        self.direct_dead_letters = true;
        let kind = dice.pick(&[Kind::Declined, Kind::Undecodable]);
        self.make_orders(dice, kind);
        for _ in 0..2 + dice.below(2) {
            let at = dice.between(self.healed / 2, self.healed);
            let what = Work::Redrive { mended: false };
            self.operator.push(Act { at, what });
        }
        self.operator.sort_by_key(|act| act.at);
    }

    /// Orders with another payload, in another group than those under whose attempts they wait, and orders behind them.
    fn draw_rivals(&mut self, draw: &mut Draw) {
        let can_have = self.fifo && self.mode.claims() && self.key.names_operation();
        if !can_have || !draw.chance(0.3, 0.5) {
            return;
        }
        let dice = &mut draw.dice;
        for n in 0..1 + dice.below(3) {
            let first = dice.below(self.messages.len());
            if self.messages[first].kind == Kind::Good {
                self.messages[first].kind = Kind::Hangs(1 + dice.below(3) as u32);
            }
            let rival = Message {
                id: format!("rival-{n}"),
                group: Some("g-rivals".to_owned()),
                kind: Kind::Good,
                payload: 1,
                sent: self.messages[first].sent + dice.between(Duration::ZERO, seconds(60)),
                ..self.messages[first].clone()
            };
            let behind = Message {
                id: format!("behind-{n}"),
                order: format!("o-behind-{n}"),
                payload: 0,
                ..rival.clone()
            };
            self.messages.extend([rival, behind]);
        }
        self.messages.sort_by_key(|message| message.sent);
    }

    /// An order of which as many payloads are declined as a record keeps, and most of them more than once.
    fn draw_declines(&mut self, draw: &mut Draw) {
        let can_have = self.mode.claims() && self.key.names_operation();
        if !can_have || !draw.chance(0.06, 0.3) {
            return;
        }
        let dice = &mut draw.dice;
        // Without copies, each comes back until its receives are used up.
        self.direct_dead_letters &= dice.chance(0.5);
        let first = self.messages[dice.below(self.messages.len())].clone();
        for n in 0..10 {
            self.messages.push(Message {
                id: format!("declined-{n}"),
                order: "o-declined".to_owned(),
                kind: Kind::Declined,
                payload: dice.below(DECLINED_PAYLOADS) as u32,
                sent: first.sent + dice.between(Duration::ZERO, HOUR),
                in_other_queue: false,
                ..first.clone()
            });
        }
        self.messages.sort_by_key(|message| message.sent);
    }

    /// Messages that end their process, beside handlers that take more than half of the time.
    fn draw_slow_neighbours(&mut self, draw: &mut Draw) {
        let isolates = self.always(|of| of.isolates);
        // The messages of a group take more than an invocation together.
        let can_have =
            self.mode.claims() && isolates && !self.fifo && self.batch > 1 && self.batch <= 10;
        if !can_have || !draw.chance(0.05, 0.2) {
            return;
        }
        let part = 50 + draw.dice.below(15) as u32;
        self.gateway.work = self.timeouts.function * part / 100;
        for release in &mut self.releases {
            release.concurrency = 10;
        }
        let kind = Kind::Kills(1 + draw.dice.below(2) as u32);
        self.make_orders(&mut draw.dice, kind);
    }

    /// A layer that lets few handlers run, and handlers that hang in it.
    fn draw_layer(&mut self, draw: &mut Draw) {
        if draw.chance(0.1, 0.6) {
            self.layer = Some(draw.dice.pick(&[1, 1, 2]));
            // They run one after the other, so an invocation needs time for many.
            self.gateway.work = self.gateway.work.min(self.timeouts.function / 20);
            if draw.dice.chance(0.6) {
                self.gateway.patience = None;
                self.batch = self.batch.max(10);
                for release in &mut self.releases {
                    release.concurrency = 10;
                }
                let kind = Kind::Hangs(1 + draw.dice.below(2) as u32);
                self.make_orders(&mut draw.dice, kind);
            }
        }
    }

    /// Makes one to three good orders something else.
    fn make_orders(&mut self, dice: &mut Dice, kind: Kind) {
        for _ in 0..1 + dice.below(3) {
            let order = self.messages[dice.below(self.messages.len())].order.clone();
            let messages = self.messages.iter_mut();
            messages
                .filter(|of| of.order == order && of.kind == Kind::Good)
                .for_each(|of| of.kind = kind);
        }
    }

    fn draw_stop(&mut self, draw: &mut Draw) {
        self.stops_groups = self.fifo && draw.chance(0.25, 0.8);
    }

    fn draw_fingerprints(&mut self, draw: &mut Draw) {
        if self.mode == Mode::Item || !draw.chance(0.2, 0.7) {
            return;
        }
        for release in &mut self.releases {
            release.fingerprint = draw.dice.pick(&[Scheme::Body, Scheme::Parts, Scheme::Off]);
        }
    }

    fn draw_isolation(&mut self, draw: &mut Draw) {
        // Without isolation, such a message takes others with it until its receives are used up.
        let has_killers = self.messages.iter().any(|of| of.kind == Kind::Killer);
        let can_change = self.always(|of| of.isolates) && !has_killers;
        if can_change && self.releases.len() > 1 && draw.chance(0.5, 0.8) {
            for release in &mut self.releases {
                release.isolates = draw.dice.chance(0.5);
            }
        }
    }

    fn draw_lookups(&mut self, draw: &mut Draw) {
        if self.gateway.is_looked_up && self.releases.len() > 1 && draw.chance(0.8, 0.9) {
            for release in &mut self.releases {
                release.looks_up = draw.dice.chance(0.5);
            }
        }
    }

    fn draw_lifetimes(&mut self, draw: &mut Draw) {
        if !self.mode.claims() || !draw.chance(0.2, 0.6) {
            return;
        }
        let (half_an_hour, six_hours) = (seconds(1800), HOUR * 6);
        let lifetimes = match self.gateway.keys {
            // A key must not be used once the gateway has forgotten it.
            Keys::ForADay => [half_an_hour, six_hours, CALL_KEY_LIFETIME].map(Some),
            Keys::Forever | Keys::Never => [None, Some(HOUR), Some(CALL_KEY_LIFETIME)],
        };
        for release in &mut self.releases {
            release.call_key_lifetime = draw.dice.pick(&lifetimes);
        }
    }

    /// More invocations in a process, and in some worlds the timeouts and the work of Lambda Managed Instances.
    fn draw_instances(&mut self, draw: &mut Draw) {
        if self.invocations == 1 {
            return;
        }
        if draw.chance(0.5, 0.8) {
            self.invocations = draw.dice.pick(&[8, 16]);
            self.environments = self.environments.min(2);
        }
        if !draw.chance(0.4, 0.8) {
            return;
        }
        self.timeouts = MANAGED_INSTANCES;
        if self.batch <= 10 && draw.dice.chance(0.6) {
            self.gateway.work = draw.dice.scaled(LONGEST_WORK);
        }
        if self.mode.claims() && self.deadly() == 0 && draw.dice.chance(0.5) {
            let kind = Kind::Kills(1 + draw.dice.below(3) as u32);
            self.make_orders(&mut draw.dice, kind);
        }
    }

    /// Batches of a hundred at the wire, whose writes are batched. Only few, because they take long.
    fn draw_wire_batches(&mut self, draw: &mut Draw) {
        let can_have = self.level == Level::Wire && !self.fifo && self.mode != Mode::Item;
        if !can_have || !draw.chance(0.03, 0.1) {
            return;
        }
        let dice = &mut draw.dice;
        self.batch = 100;
        self.window = dice.pick(&[seconds(1), seconds(60)]);
        self.gateway.work = Duration::ZERO;
        // Requests of which DynamoDB refuses some statements.
        self.rates.throttled = 0.4;
        let at = dice.between(Duration::ZERO, self.healed / 2);
        let most = self.messages.len() + 40 + dice.below(40);
        self.add_orders(dice, most);
        for message in &mut self.messages {
            if message.order.starts_with("o-more") {
                message.sent = at + dice.between(Duration::ZERO, seconds(5));
            }
        }
        self.messages.sort_by_key(|message| message.sent);
        for release in &mut self.releases {
            release.batches_writes = dice.chance(0.8);
            release.concurrency = dice.pick(&[10, 50, 100]);
        }
    }

    /// As many handlers as the memory holds: `CONSUMER_CONCURRENCY=auto`. With outputs in S3 it means ten.
    fn draw_memory(&mut self, draw: &mut Draw) {
        let rare = if self.batch > 10 { 0.5 } else { 0.08 };
        if self.mode != Mode::Claim || self.outputs_in_s3 || !draw.chance(rare, 0.6) {
            return;
        }
        for release in &mut self.releases {
            release.memory = Some(draw.dice.pick(&[10, 30, 100, 1000]) * MIB);
        }
    }

    /// Some orders come from another queue too, whose consumer has the same namespace by mistake.
    fn draw_other_queue(&mut self, draw: &mut Draw) {
        if !self.key.names_operation() || !draw.chance(0.08, 0.6) {
            return;
        }
        let dice = &mut draw.dice;
        for n in 0..1 + dice.below(10) {
            let of = self.messages[dice.below(self.messages.len())].clone();
            let later = if dice.chance(0.5) { HOUR } else { seconds(1) };
            self.messages.push(Message {
                id: format!("other-{n}"),
                group: of.group.map(|group| format!("other-{group}")),
                sent: of.sent + dice.between(Duration::ZERO, later),
                in_other_queue: true,
                ..of
            });
        }
        self.messages.sort_by_key(|message| message.sent);
    }
}
