//! Promises 1 to 3 and 6: the record of each key, the runs of its handlers and their charges.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::Bench;
use crate::{
    ledger::{Event, Run, Told, Worker},
    plan::{Keys, Scheme},
};

#[derive(Default)]
pub(super) struct Records {
    keys: HashMap<String, OfKey>,
    runs: HashMap<Run, OfRun>,
    /// Runs that have not ended, by worker.
    running: HashMap<Worker, BTreeSet<Run>>,
}

#[derive(Default)]
struct OfKey {
    completed: bool,
    failed: BTreeSet<String>,
    /// Messages with this content that were sent until then do not run.
    failed_at: HashMap<Content, Duration>,
    /// Runs that may have had their effect, and whether each has asked the gateway.
    open: BTreeMap<Run, bool>,
    /// What the fingerprint of the last claim covers.
    scheme: Option<Scheme>,
    /// Two claims can't be compared, so any payload may be that of the record.
    is_mixed: bool,
    charges: Vec<(Run, Duration)>,
    claim: Option<Claim>,
}

/// See [`Message::content`](crate::plan::Message::content).
type Content = (bool, u32);

/// The last claim of a key.
struct Claim {
    worker: Worker,
    message: String,
    is_suspect: bool,
    /// It replaced a claim without a recorded end.
    is_over_unsettled: bool,
    /// Its handler began.
    began: bool,
    /// Nothing was recorded since the claim, or since its handler began.
    is_unsettled: bool,
}

struct OfRun {
    key: String,
    content: Content,
    worker: Worker,
    is_alone: bool,
    began: Duration,
    end: Option<&'static str>,
}

impl Records {
    pub(super) fn event(&mut self, at: Duration, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Claimed { .. } => self.claimed(event, bench),
            Event::Settled {
                key,
                worker,
                was,
                is,
                ..
            } => self.settled(key, *worker, (was, is), bench),
            Event::ClaimsAlone { key, worker } => {
                let running = self.running.entry(*worker).or_default();
                let holds = running.is_empty();
                bench.check("P6 suspect is claimed in its turn", holds, &[key], || {
                    format!("worker {worker} claimed {key} while it ran {running:?}")
                });
            }
            // A new operation begins.
            Event::Deleted { key } | Event::Forgotten { key } => {
                self.keys.remove(key);
            }
            Event::HandlerStarted {
                run,
                message,
                key,
                told,
                worker,
                ..
            } => self.started(at, *run, (message, key), *worker, *told, bench),
            Event::HandlerEnded { run, how } => {
                if let Some(of_run) = self.runs.get_mut(run) {
                    of_run.end = Some(how);
                    let running = self.running.entry(of_run.worker).or_default();
                    running.remove(run);
                    if *how == "no effect"
                        && let Some(of_key) = self.keys.get_mut(&of_run.key)
                    {
                        of_key.open.remove(run);
                    }
                }
            }
            Event::GatewayRefused { run } => self.asked(at, *run, bench),
            Event::Charged { run, key, taken } => {
                self.asked(at, *run, bench);
                if *taken {
                    self.charged(at, *run, key, bench);
                }
            }
            _ => {}
        }
    }

    fn key(&mut self, key: &str) -> &mut OfKey {
        self.keys.entry(key.to_owned()).or_default()
    }

    fn asked(&mut self, at: Duration, run: Run, bench: &mut Bench<'_>) {
        let Some(of_run) = self.runs.get(&run) else {
            return;
        };
        let (key, worker) = (of_run.key.clone(), of_run.worker);
        let rates = &bench.plan.rates;
        if rates.late == 0.0 && rates.doubled == 0.0 {
            self.not_too_old(at, run, &key, worker, bench);
        }
        let of_key = self.keys.get_mut(&key);
        if let Some(asked) = of_key.and_then(|of_key| of_key.open.get_mut(&run)) {
            *asked = true;
        }
    }

    fn claimed(&mut self, event: &Event, bench: &mut Bench<'_>) {
        let Event::Claimed {
            key,
            message,
            worker,
            was,
            lease_left_ms,
            attempts_alone,
            ..
        } = event
        else {
            return;
        };
        let left = lease_left_ms.unwrap_or(i64::MIN);
        if *was == "IN_PROGRESS" {
            // By a clock that is ahead, the lease has ended. Its margin makes up for that.
            let most = bench.plan.skew_ms as i64;
            bench.check("P1 one live claim", left <= most, &[key, message], || {
                format!("{key} was claimed for {message} while another's lease had {left} ms left")
            });
        }
        let content = bench.messages[message].content();
        let release = bench.release_of(*worker);
        let of_key = self.key(key);
        let before = of_key.scheme.replace(release.fingerprint);
        of_key.is_mixed |= release.fingerprint == Scheme::Off
            || before.is_some_and(|before| before != release.fingerprint);
        let other = of_key.claim.as_ref().is_some_and(|before| {
            bench.messages[&before.message].content() != content
                && of_key.open.values().any(|asked| *asked)
                && !of_key.is_mixed
        });
        bench.check(
            "P3 another payload does not take over",
            *was != "IN_PROGRESS" || !other,
            &[key, message],
            || format!("{key} was claimed for {message} over an open attempt of another payload"),
        );
        if let Some(failed_at) = of_key.failed_at.get(&content).copied() {
            let sent = bench.messages[message].sent;
            bench.check(
                "P2 message sent before a failure is never claimed",
                sent > failed_at,
                &[key, message],
                || format!("{key} was claimed for {message}, sent at {sent:?}, after a failure at {failed_at:?}"),
            );
        }
        bench.check(
            "P2 completed is never claimed",
            !of_key.completed,
            &[key, message],
            || format!("{key} was claimed for {message} after its completion"),
        );
        bench.check(
            "P2 failed message is never claimed",
            !of_key.failed.contains(message),
            &[key, message],
            || format!("{key} was claimed for {message}, whose failure is recorded"),
        );
        let before = of_key.claim.take();
        let is_over_unsettled =
            *was == "IN_PROGRESS" && before.is_some_and(|before| before.is_unsettled);
        let is_suspect = release.isolates && is_over_unsettled;
        of_key.claim = Some(Claim {
            worker: *worker,
            message: message.clone(),
            is_suspect,
            is_over_unsettled,
            began: false,
            is_unsettled: true,
        });
        // Without isolation, those before it stay counted.
        let is_counted = *attempts_alone > 0;
        bench.check(
            "P6 attempt alone is counted in its claim",
            is_suspect == is_counted || !release.isolates && is_over_unsettled,
            &[key, message],
            || format!("the claim of {key} for {message} (suspect: {is_suspect}) counts {attempts_alone}"),
        );
    }

    fn settled(
        &mut self,
        key: &str,
        worker: Worker,
        (was, is): (&str, &str),
        bench: &mut Bench<'_>,
    ) {
        bench.check(
            "P5 no result is overwritten",
            was != "COMPLETED",
            &[key],
            || format!("{key} became {is} after its completion"),
        );
        bench.check(
            "P2 no worker deletes a record",
            is != "nothing",
            &[key],
            || format!("worker {worker} deleted the record of {key}"),
        );
        let of_worker = |run: &&OfRun| run.key == key && run.worker == worker;
        let last = self
            .runs
            .values()
            .filter(of_worker)
            .max_by_key(|run| run.began);
        // The gateway would have answered with an earlier success.
        let is_declined = last.is_some_and(|run| run.end == Some("declined"));
        let of_key = self.key(key);
        let Some(claim) = &mut of_key.claim else {
            return;
        };
        bench.check(
            "P5 only the claimant settles",
            claim.worker == worker,
            &[key, &claim.message],
            || {
                format!(
                    "worker {worker} settled {key}, which worker {} has claimed",
                    claim.worker
                )
            },
        );
        // An undo before the handler began leaves what was known of the attempt before.
        claim.is_unsettled = claim.is_over_unsettled && !claim.began;
        if is == "COMPLETED" {
            of_key.completed = true;
            of_key.open.clear();
        } else if is == "FAILED" && bench.has_failed(key) {
            let sent = bench.messages[&claim.message].sent;
            of_key.failed.insert(claim.message.clone());
            let content = bench.messages[&claim.message].content();
            let before = of_key.failed_at.get(&content).copied();
            let at = before.max(bench.failed_at(key)).max(Some(sent));
            of_key.failed_at.extend(at.map(|at| (content, at)));
            if is_declined {
                of_key.open.clear();
            }
        }
    }

    fn started(
        &mut self,
        at: Duration,
        run: Run,
        (message, key): (&str, &str),
        worker: Worker,
        told: Option<Told>,
        bench: &mut Bench<'_>,
    ) {
        let key_of_message = bench.key(&bench.messages[message]);
        let content = bench.messages[message].content();
        bench.check(
            "a handler gets its message's key",
            key == key_of_message,
            &[key, message],
            || format!("run {run} of {message} got {key} in place of {key_of_message}"),
        );
        let of_key = self.keys.entry(key.to_owned()).or_default();
        // Without a claim, a handler may run again. Then its write is not applied.
        if !bench.plan.mode.claims() || bench.orphans.contains(&run) {
            self.begin(at, run, key, worker, false, content);
            return;
        }
        bench.check(
            "P2 completed never runs again",
            !of_key.completed,
            &[key, message],
            || format!("{message} ran as run {run} after {key} was completed"),
        );
        bench.check(
            "P2 failed message never runs again",
            !of_key.failed.contains(message),
            &[key, message],
            || format!("{message} ran as run {run} after its failure was recorded"),
        );
        if let Some(failed_at) = of_key.failed_at.get(&content).copied() {
            let sent = bench.messages[message].sent;
            bench.check(
                "P2 message sent before a failure never runs",
                sent > failed_at,
                &[key, message],
                || format!("{message}, sent at {sent:?}, ran as run {run} after a failure at {failed_at:?}"),
            );
        }
        let open = of_key.open.iter().filter(|(_, asked)| **asked);
        let mut open = open.map(|(earlier, _)| *earlier);
        if let Some(earlier) = open.clone().next() {
            bench.check(
                "P3 told of earlier attempts",
                told.is_some(),
                &[key, message],
                || format!("run {run} of {key} was not told of run {earlier}"),
            );
        }
        let is_other = |earlier: &Run| self.runs[earlier].content != content;
        if let Some(other) = open.find(is_other).filter(|_| !of_key.is_mixed) {
            bench.check(
                "P3 told of another payload",
                told.is_some_and(|told| told.other_payload),
                &[key, message],
                || format!("run {run} of {key} was not told that run {other} had another payload"),
            );
        }
        self.not_too_old(at, run, key, worker, bench);
        let of_key = self.key(key);
        let mut is_alone = false;
        // Nothing is recorded of a run under a claim that an operator has deleted.
        if let Some(claim) = of_key.claim.as_mut().filter(|of| of.worker == worker) {
            of_key.open.insert(run, false);
            is_alone = claim.is_suspect;
            claim.began = true;
            claim.is_unsettled = true;
        }
        let running = self.running.entry(worker).or_default();
        let alone = running.iter().find(|other| self.runs[other].is_alone);
        if is_alone || alone.is_some() {
            let holds = running.is_empty();
            bench.check("P6 suspect runs alone", holds, &[key, message], || {
                format!(
                    "run {run} of {key} began beside {running:?} (alone: {is_alone}, {alone:?})"
                )
            });
        }
        self.begin(at, run, key, worker, is_alone, content);
    }

    /// A handler does not repeat a request whose call key the gateway may have forgotten. A lookup tells without it.
    fn not_too_old(
        &mut self,
        at: Duration,
        run: Run,
        key: &str,
        worker: Worker,
        bench: &mut Bench<'_>,
    ) {
        let release = bench.release_of(worker);
        let looks_up = bench.plan.gateway.is_looked_up && release.looks_up;
        let Some(lifetime) = release.call_key_lifetime.filter(|_| !looks_up) else {
            return;
        };
        let of_key = self.keys.get(key);
        // Runs are numbered in the order of their starts.
        let open = of_key.and_then(|of_key| {
            let mut open = of_key.open.iter();
            open.find(|(other, asked)| **asked && **other != run)
        });
        let Some((earliest, _)) = open else {
            return;
        };
        let least = at.saturating_sub(2 * bench.skew());
        let began = self.runs[earliest].began;
        bench.check(
            "a call key is not used beyond its lifetime",
            began + lifetime >= least,
            &[key],
            || format!("run {run} of {key} repeated run {earliest} of {began:?}"),
        );
    }

    fn begin(
        &mut self,
        at: Duration,
        run: Run,
        key: &str,
        worker: Worker,
        is_alone: bool,
        content: Content,
    ) {
        self.running.entry(worker).or_default().insert(run);
        self.runs.insert(
            run,
            OfRun {
                key: key.to_owned(),
                content,
                worker,
                is_alone,
                began: at,
                end: None,
            },
        );
    }

    /// A charge that the gateway has taken.
    fn charged(&mut self, at: Duration, run: Run, key: &str, bench: &mut Bench<'_>) {
        if bench.orphans.contains(&run) {
            return;
        }
        let of_key = self.keys.entry(key.to_owned()).or_default();
        let charges = of_key.charges.len() + 1;
        // A request of one run that the network doubled or delayed has no other cause.
        let began = self.runs.get(&run).map_or(at, |of_run| of_run.began);
        let looks_up = |run: Run| {
            let of_run = self.runs.get(&run);
            of_run.is_some_and(|of_run| bench.release_of(of_run.worker).looks_up)
        };
        let check = if bench.plan.gateway.is_looked_up {
            looks_up(run).then_some("charged once, by looking up")
        } else {
            (bench.plan.gateway.keys != Keys::Never).then_some("charged once")
        };
        // A run of a release without the lookup waits for nobody, and may charge while this one works.
        let known = of_key.charges.iter().filter(|(earlier, charged)| {
            !bench.plan.gateway.is_looked_up || looks_up(*earlier) || *charged < began
        });
        let known = known.count();
        if let Some(check) = check {
            bench.check(check, known == 0, &[key], || {
                format!("{key} was charged {charges} times")
            });
        }
        of_key.charges.push((run, at));
    }
}
