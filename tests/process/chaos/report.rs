//! Summary of the run in numbers.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    time::Duration,
};

use crate::chaos::{
    account::Account,
    ledger::{ChargeEnd, End, Event},
    plan::Seed,
};

pub(crate) struct Report {
    title: &'static str,
    seeds: Vec<u64>,
    took: Duration,
    numbers: BTreeMap<String, usize>,
}

impl Report {
    pub(crate) fn of(
        title: &'static str,
        seed: Seed,
        took: Duration,
        events: &[Event],
        accounts: &[Account],
    ) -> Self {
        let mut report = Self {
            title,
            seeds: vec![seed.0],
            took,
            numbers: BTreeMap::new(),
        };
        report.add("messages lost or left", 0);
        let mut thawed = HashSet::new();
        let mut charges: HashMap<&str, (usize, bool)> = HashMap::new();
        let mut keys: HashMap<&str, HashSet<&str>> = HashMap::new();
        for event in events {
            match event {
                Event::Sent(_) => report.count("messages, sent"),
                Event::Redriven => report.count("messages redriven"),
                Event::Started { pace, .. } => {
                    report.count(format!("workers started, with time limits times {pace}"));
                }
                Event::Delivered { .. } => report.count("deliveries"),
                Event::Returned { end, .. } => report.count(format!("deliveries, {end:?}")),
                Event::DeadLettered { .. } => report.count("in the dead-letter queue"),
                Event::Charge {
                    order,
                    key,
                    taken,
                    worker,
                } => {
                    if thawed.contains(worker) {
                        report.count("charges by thawed workers");
                    }
                    keys.entry(order).or_default().insert(key);
                    let (requests, charged) = charges.entry(key).or_default();
                    *requests += 1;
                    *charged |= taken;
                    report.count("charges, as requests at the gateway");
                }
                Event::ChargeEnded { how, .. } if *how != ChargeEnd::Answered => {
                    report.count(format!("gateway fault, {how:?}"));
                }
                Event::Faulted { fault, .. } => report.count(format!("DynamoDB fault, {fault:?}")),
                Event::Died { death, .. } => report.count(format!("workers, {death:?}")),
                Event::Thawed { worker, .. } => {
                    thawed.insert(*worker);
                    report.count("workers, thawed");
                }
                Event::Rested => report.count("workers, rested"),
                Event::Expired { .. } => report.count("records, deleted after their time to live"),
                Event::Claimed {
                    over_expired: true, ..
                } => report.count("records, claimed over after their time to live"),
                Event::Outage { of, begins: true } => report.count(format!("outage, {of:?}")),
                Event::DeliveryLog { outcome, .. } => report.count(format!("outcome, {outcome}")),
                _ => {}
            }
        }
        for (requests, charged) in charges.into_values() {
            if charged {
                report.count("charges, effective (one a key)");
            }
            report.count(format!("keys with {requests} requests at the gateway"));
        }
        for keys in keys.into_values().filter(|keys| keys.len() > 1) {
            report.count(format!("orders charged under {} keys", keys.len()));
        }
        for account in accounts {
            match (account.acknowledged(), account.dead_lettered) {
                (true, _) => {
                    report.count("messages acknowledged");
                    if account.message.redriven().is_none() {
                        report.count("redriven messages acknowledged");
                    }
                }
                (false, true) => {
                    let why = account
                        .reason()
                        .unwrap_or_else(|| "for no known reason".into());
                    report.count(format!("in the dead-letter queue, {why}"));
                }
                (false, false) => report.count("messages lost or left"),
            }
            let ends = account.ends.values();
            let acknowledged = ends.filter(|end| **end == End::Acknowledged);
            for _ in acknowledged.skip(1) {
                report.count("messages acknowledged once more");
            }
        }
        report
    }

    fn count(&mut self, what: impl Into<String>) {
        self.add(what, 1);
    }

    pub(crate) fn add(&mut self, what: impl Into<String>, n: usize) {
        *self.numbers.entry(what.into()).or_default() += n;
    }

    /// Adds the numbers of a run with another seed.
    pub(crate) fn with(mut self, other: Self) -> Self {
        self.seeds.extend(other.seeds);
        self.took = self.took.max(other.took);
        for (what, n) in other.numbers {
            self.add(what, n);
        }
        self
    }

    /// Asserts that each of these was counted.
    pub(crate) fn assert_some(&self, wanted: &[&str]) {
        for wanted in wanted {
            assert!(self.number(wanted) > 0, "{wanted}: none\n{self}");
        }
    }

    /// Count of `what`, including entries that begin with it.
    pub(crate) fn number(&self, what: &str) -> usize {
        let of = |(name, n): (&String, &usize)| name.starts_with(what).then_some(*n);
        self.numbers.iter().filter_map(of).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seeds: Vec<_> = self.seeds.iter().map(u64::to_string).collect();
        let (seeds, took) = (seeds.join(" and "), self.took.as_secs_f64());
        writeln!(f, "{}: CHAOS_SEED={seeds}, {took:.1} s", self.title)?;
        for (what, n) in &self.numbers {
            writeln!(f, "{n:>9}  {what}")?;
        }
        Ok(())
    }
}
