//! [`World`]: everything outside of the processes, on one thread with paused time.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::{Either, select};
use sqs_once::{
    internal::system::{Process, sleep},
    protocol::{Key, Namespace, Timestamp},
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep as wait},
};

use crate::{
    dice::Dice,
    gateway::Gateway,
    ledger::{Event, Ledger, Worker},
    plan::{Message, Plan, Release, Service},
    queue::Queue,
    s3::Objects,
    stream::Stream,
    table::Table,
};

/// 26 November 2026, 00:00 UTC.
pub const EPOCH: Timestamp = Timestamp::from_millis(1_795_651_200_000);

/// How long a client of the table waits for an answer.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub ledger: Ledger,
    pub queue: Queue,
    pub table: Table,
    pub gateway: Gateway,
    pub objects: Objects,
    /// Of the outbox.
    pub stream: Stream,
    /// Processes that were started, and batches of all mappings.
    workers: AtomicUsize,
    batches: AtomicUsize,
    start: Instant,
    dice: Mutex<Dice>,
}

/// A process and its number.
#[derive(Clone, Debug)]
pub struct Member {
    pub process: Process,
    pub worker: Worker,
}

/// How a request travels. `None` in place of a time: it is lost.
pub struct Way {
    there: Option<Duration>,
    back: Option<Duration>,
    /// A second copy arrives this long after the first.
    again: Option<Duration>,
}

impl Way {
    /// The same way, on which nothing is doubled.
    pub fn once(self) -> Self {
        Self {
            again: None,
            ..self
        }
    }
}

impl World {
    pub fn new(plan: Plan) -> Arc<Self> {
        Arc::new(Self {
            ledger: Ledger::default(),
            queue: Queue::new(&plan),
            table: Table::new(plan.level),
            gateway: Gateway::default(),
            objects: Objects::default(),
            stream: Stream::default(),
            workers: AtomicUsize::new(0),
            batches: AtomicUsize::new(0),
            start: Instant::now(),
            // Not the seed itself, with which the plan was drawn.
            dice: Mutex::new(Dice::new(plan.seed ^ 0x5eed_5eed_5eed_5eed)),
            plan,
        })
    }

    pub fn note(&self, event: Event) {
        self.ledger.note(event);
    }

    /// The true time, by the clocks of AWS.
    pub fn wall(&self) -> Timestamp {
        EPOCH + self.start.elapsed()
    }

    /// Time since the start of the world.
    pub fn age(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn at(&self, age: Duration) -> Instant {
        self.start + age
    }

    pub fn dice(&self) -> MutexGuard<'_, Dice> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_healed(&self) -> bool {
        self.age() >= self.plan.healed
    }

    /// Returns whether a fault of this probability happens now.
    pub fn strikes(&self, probability: f64) -> bool {
        !self.is_healed() && self.dice().chance(probability)
    }

    pub fn is_out(&self, service: Service) -> bool {
        let age = self.age();
        let outages = self.plan.outages.iter();
        outages
            .filter(|outage| outage.of == service)
            .any(|outage| outage.during.contains(&age))
    }

    /// Returns whether an operator will send dead letters back.
    pub fn is_redrive_due(&self) -> bool {
        let age = self.age();
        self.plan.redrives().any(|at| at > age)
    }

    /// Returns the key of a message.
    pub fn key(&self, message: &Message) -> Option<Key> {
        Key::new(&namespace(), self.plan.parts_of_key(message)).ok()
    }

    /// Starts a process with a release, whose wall clock is a little wrong.
    pub fn start_process(&self, release: usize) -> Member {
        let member = Member {
            process: Process::start(self.wall()),
            worker: self.workers.fetch_add(1, Relaxed),
        };
        self.note(Event::Started {
            worker: member.worker,
            release,
        });
        self.set_clock(&member);
        member
    }

    /// Returns the number of another batch.
    pub fn next_batch(&self) -> usize {
        self.batches.fetch_add(1, Relaxed)
    }

    /// Sets the wall clock of a process, a little wrong.
    pub fn set_clock(&self, member: &Member) {
        let most = Duration::from_millis(2 * self.plan.skew_ms);
        let skew = self.dice().between(Duration::ZERO, most);
        let ahead = i64::try_from(skew.as_millis()).unwrap_or(0);
        let ahead_ms = ahead - i64::try_from(self.plan.skew_ms).unwrap_or(0);
        member.process.set_wall_clock(ahead_ms);
        self.note(Event::ClockSet {
            worker: member.worker,
            ahead_ms,
        });
    }

    /// Returns the number of the release that is deployed now, and its settings.
    pub fn release(&self) -> (usize, Release) {
        let age = self.age();
        let mut releases = self.plan.releases.iter().copied().enumerate();
        let released = releases.rfind(|(_, release)| release.from <= age);
        released.unwrap_or_default()
    }

    /// Deletes records whose time to live is over, as the table does within some days.
    pub fn sweep(&self) {
        for message in &self.plan.messages {
            let Some(key) = self.key(message) else {
                continue;
            };
            let record = self.table.get(&key);
            let is_over = record.is_some_and(|record| record.expires_at < self.wall().as_secs());
            if is_over && self.dice().chance(0.1) && self.table.delete(&key) {
                let key = key.to_string();
                self.note(Event::Forgotten { key });
            }
        }
    }

    /// Returns whether a record is over at this time in epoch seconds, by a clock that may be ahead. Notes it.
    pub fn forgets(&self, key: &str, expires_at: u64) -> bool {
        let ahead = Duration::from_millis(self.plan.skew_ms);
        let is_over = expires_at < (self.wall() + ahead).as_secs();
        if is_over {
            let key = key.to_owned();
            self.note(Event::Forgotten { key });
        }
        is_over
    }

    pub fn way(&self) -> Way {
        let rates = &self.plan.rates;
        let ms = Duration::from_millis;
        let lost = [rates.request_lost, rates.answer_lost].map(|rate| self.strikes(rate));
        let (late, twice) = (self.strikes(rates.late), self.strikes(rates.doubled));
        let mut dice = self.dice();
        let mut there = dice.between(ms(1), ms(10));
        if late {
            there += dice.scaled(Duration::from_secs(600));
        }
        Way {
            there: (!lost[0]).then_some(there),
            back: (!lost[1]).then(|| dice.between(ms(1), ms(10))),
            again: twice.then(|| dice.scaled(Duration::from_secs(600))),
        }
    }

    /// Sends a request of a process, and waits for its answer for `patience`, by the clock of the process. What is
    /// under way arrives even if the process ends. A dead process sends nothing.
    pub async fn exchange<T: Send + 'static>(
        self: &Arc<Self>,
        from: &Member,
        patience: Duration,
        apply: impl Fn(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let way = self.way();
        self.exchange_on(way, from, patience, apply).await
    }

    /// The same, on a way that is already drawn.
    pub async fn exchange_on<T: Send + 'static>(
        self: &Arc<Self>,
        way: Way,
        from: &Member,
        patience: Duration,
        apply: impl Fn(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        if from.process.is_dead() {
            return None;
        }
        let world = Arc::clone(self);
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let Some(there) = way.there else { return };
            wait(there).await;
            let first = apply(&world);
            if let Some(back) = way.back {
                wait(back).await;
                drop(answer.send(first));
            }
            if let Some(again) = way.again {
                wait(again).await;
                drop(apply(&world));
            }
        });
        let answered = async {
            match answered.await {
                Ok(answer) => answer,
                // Lost: only the client's patience ends this.
                Err(_) => std::future::pending().await,
            }
        };
        match select(pin!(answered), sleep(patience)).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }
}

/// The namespace of all keys.
pub fn namespace() -> Namespace {
    Namespace::new("orders").expect("a namespace")
}
