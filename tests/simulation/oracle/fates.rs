//! Promises 5 and 7: what becomes of each message, and the order of message groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::Bench;
use crate::{
    ledger::Event,
    plan::{Kind, Message, Mode, Plan, Service},
};

/// How long a cause must last before it takes a message to the dead-letter queue.
const HALF_A_DAY: Duration = Duration::from_secs(12 * 3600);

#[derive(Default)]
pub(super) struct Fates {
    acknowledged: BTreeSet<String>,
    expired: BTreeSet<String>,
    /// Messages in the dead-letter queue, the reason and the time. Without a reason, SQS moved it.
    dead: BTreeMap<String, (Option<String>, Duration)>,
    /// Messages behind which their group may go on.
    settled: BTreeSet<String>,
    completed: BTreeSet<String>,
    /// Keys that an operator has changed, and when each was deleted.
    released: BTreeSet<String>,
    deleted: BTreeMap<String, Duration>,
    /// Messages given up because their process died each time, and those whose key another payload had.
    crashed: BTreeSet<String>,
    reused: BTreeSet<String>,
    /// When a failure was last recorded for a key and a payload, and messages that got such a failure as their answer.
    failed: BTreeMap<(String, (bool, u32)), Duration>,
    failed_before: BTreeSet<String>,
    /// When a key was first claimed.
    first_claim: BTreeMap<String, Duration>,
    /// Messages that the consumer said to have failed permanently.
    permanent: BTreeSet<String>,
    /// Orders that were declined.
    declined: BTreeSet<String>,
    invoked: BTreeMap<usize, Duration>,
    orders: BTreeMap<usize, String>,
}

impl Fates {
    pub(super) fn event(&mut self, at: Duration, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Invoked { batch, .. } => {
                self.invoked.insert(*batch, at);
            }
            Event::Settled { key, is, .. } => {
                let has_failed = *is == "FAILED" && bench.has_failed(key);
                if has_failed && let Some(id) = bench.claimed_for(key) {
                    let content = bench.messages[id].content();
                    self.failed.insert((key.clone(), content), at);
                }
                if *is == "COMPLETED" || has_failed {
                    self.settled.extend(bench.claimed_for(key).cloned());
                }
                if *is == "COMPLETED" {
                    self.completed.insert(key.clone());
                }
            }
            Event::Released { key } => {
                self.released.insert(key.clone());
            }
            Event::Deleted { key } | Event::Forgotten { key } => {
                self.deleted.insert(key.clone(), at);
            }
            Event::Claimed { key, .. } => {
                self.first_claim.entry(key.clone()).or_insert(at);
            }
            Event::HandlerStarted {
                run,
                message,
                order,
                ..
            } => {
                self.orders.insert(*run, order.clone());
                self.started(message, bench);
            }
            Event::HandlerEnded {
                run,
                how: "permanent" | "declined",
            } => self.declined.extend(self.orders.get(run).cloned()),
            Event::Acknowledged {
                message,
                completed,
                batch,
            } => {
                let key = bench.key(&bench.messages[message]);
                // The record may have been there during the invocation.
                let was_deleted =
                    (self.deleted.get(&key)).is_some_and(|deleted| *deleted >= self.invoked[batch]);
                let copied = matches!(self.dead.get(message), Some((Some(_), _)));
                bench.check(
                    "P5 acknowledged only when recorded",
                    *completed || copied || was_deleted && self.completed.contains(&key),
                    &[message],
                    || format!("{message} was acknowledged, and is neither completed nor copied"),
                );
                self.acknowledged.insert(message.clone());
                self.settled.insert(message.clone());
            }
            Event::Copied { message, reason } => {
                let dead = (Some(reason.clone()), at);
                self.dead.insert(message.clone(), dead);
                self.settled.insert(message.clone());
            }
            Event::ReceivesUsedUp { message } => {
                self.dead.entry(message.clone()).or_insert((None, at));
                self.settled.insert(message.clone());
            }
            Event::Expired { message } => {
                self.expired.insert(message.clone());
                self.settled.insert(message.clone());
            }
            Event::Outcome {
                message,
                outcome: outcome @ ("invalid" | "crashed" | "key_reused" | "failed_before"),
                ..
            } => {
                if *outcome != "invalid" || records_unreadable(bench.plan) {
                    self.settled.insert(message.clone());
                }
                // A body that cannot be read has no run. Over a failure, its own looks like an undo of the claim.
                if *outcome == "invalid" && !bench.plan.key.needs_body() {
                    let message = &bench.messages[message];
                    self.failed
                        .insert((bench.key(message), message.content()), at);
                }
                match *outcome {
                    "crashed" => self.crashed.insert(message.clone()),
                    "key_reused" => self.reused.insert(message.clone()),
                    "failed_before" => self.failed_before.insert(message.clone()),
                    _ => false,
                };
            }
            Event::Outcome {
                message,
                outcome: "permanent_failure" | "failure_unrecorded",
                ..
            } => {
                self.permanent.insert(message.clone());
            }
            _ => {}
        }
    }

    fn started(&self, id: &str, bench: &mut Bench<'_>) {
        let message = &bench.messages[id];
        let Some(group) = &message.group else { return };
        let key = bench.key(message);
        let ahead = bench.order.iter().take_while(|other| *other != id);
        let waits_for = |other: &&String| {
            let other = &bench.messages[*other];
            // The failure of an undecodable message is recorded before its batch tells its outcome.
            other.group.as_ref() == Some(group)
                && (other.kind != Kind::Undecodable || !records_unreadable(bench.plan))
                // It may wait for an attempt of this one.
                && (bench.key(other) != key || other.content() == message.content())
                && !self.settled.contains(&other.id)
                && !self.completed.contains(&bench.key(other))
                && !self.failed_after(other, bench)
        };
        let waiting = ahead.clone().find(waits_for).cloned();
        bench.check("order of a group", waiting.is_none(), &[id], || {
            format!("{id} ran before {waiting:?} of its group was settled")
        });
    }

    pub(super) fn end(&self, bench: &mut Bench<'_>) {
        for id in bench.order.clone() {
            let message = bench.messages[&id].clone();
            let (acknowledged, dead) = (self.acknowledged.contains(&id), self.dead.get(&id));
            let expired = self.expired.contains(&id);
            let is_somewhere = acknowledged || expired || matches!(dead, Some((None, _)));
            bench.check("nothing is lost", is_somewhere, &[&id], || {
                format!("{id} is neither acknowledged nor in the dead-letter queue nor expired")
            });
            if message.kind.fails_always() {
                // Unless another message of its key has succeeded meanwhile.
                let excused = expired || self.completed.contains(&bench.key(&message));
                bench.check(
                    "a permanent failure is a dead letter",
                    dead.is_some() || excused,
                    &[&id],
                    || format!("{id} ({:?}) is not in the dead-letter queue", message.kind),
                );
            } else {
                let excused = dead.is_none_or(|dead| self.has_cause(&message, dead, bench));
                bench.check("P7 no dead letter without a cause", excused, &[&id], || {
                    format!(
                        "{id} ({:?}) is in the dead-letter queue: {dead:?}",
                        message.kind
                    )
                });
            }
        }
    }

    /// Returns whether a failure was recorded for the key and the payload of a message after the message was sent. Where
    /// payloads can't be compared, a failure is that of each.
    fn failed_after(&self, message: &Message, bench: &Bench<'_>) -> bool {
        let key = bench.key(message);
        let is_answer = |at: &Duration| *at + bench.skew() >= message.sent;
        if bench.plan.tells_payloads_apart() {
            let failed = self.failed.get(&(key, message.content()));
            return failed.is_some_and(is_answer);
        }
        let mut failed = self.failed.iter();
        failed.any(|((of, _), at)| *of == key && is_answer(at))
    }

    /// Returns whether a message failed permanently, by its kind or by what the consumer said.
    fn has_failed(&self, message: &Message) -> bool {
        message.kind.fails_always()
            || [
                &self.permanent,
                &self.crashed,
                &self.reused,
                &self.failed_before,
            ]
            .iter()
            .any(|failed| failed.contains(&message.id))
    }

    /// Returns whether a message that could have succeeded has a reason to be in the dead-letter queue.
    fn has_cause(
        &self,
        message: &Message,
        (reason, at): &(Option<String>, Duration),
        bench: &Bench<'_>,
    ) -> bool {
        // Whatever keeps messages from being handled. Two outages at a time last no longer than their union.
        let outages = bench.plan.outages.iter();
        let keeps = |of| !matches!(of, Service::DeadLetters | Service::Target);
        let outages = outages.filter(|outage| keeps(outage.of));
        let mut outages: Vec<_> = outages.map(|outage| outage.during.clone()).collect();
        outages.sort_by_key(|during| during.start);
        let mut reached = message.sent;
        let lasted: Duration = outages
            .into_iter()
            .map(|during| {
                let (from, to) = (during.start.max(reached), during.end.min(*at));
                reached = reached.max(to);
                to.saturating_sub(from)
            })
            .sum();
        let mut of_key = bench
            .messages
            .values()
            .filter(|other| other.order == message.order);
        // The gateway has stored the decline of an earlier message.
        let is_declined =
            bench.plan.gateway.remembers_declines && self.declined.contains(&message.order);
        // The process died with another message of its key, or an operator ended its rests.
        let is_killed = bench.plan.rates.killed > 0.0 || bench.plan.has_outage(Service::Workers);
        let may_crash = self.released.contains(&bench.key(message))
            || of_key.any(|other| match other.kind {
                Kind::Killer => true,
                // Its process was killed while it ran alone, too.
                Kind::Kills(_) => is_killed,
                _ => false,
            });
        let has_crashed = self.crashed.contains(&message.id) && may_crash;
        // Another message of its key failed after this one was sent.
        let has_failed =
            self.failed_before.contains(&message.id) && self.failed_after(message, bench);
        let has_lasted = reason.is_none() && lasted >= HALF_A_DAY;
        // An attempt that is too old to repeat, or the answer that another message of its key got for that.
        let first_claim = self.first_claim.get(&bench.key(message));
        let lifetimes = bench.plan.releases.iter();
        let lifetime = lifetimes.filter_map(|of| of.call_key_lifetime).min();
        let is_too_old = matches!(
            reason.as_deref(),
            Some("permanent_failure" | "failed_before")
        ) && first_claim
            .zip(lifetime)
            .is_some_and(|(first, lifetime)| *first + lifetime <= *at + bench.skew());
        // A failure that is not recorded stops its group until its receives are used up, and the messages behind it are
        // received with it.
        let stops = |other: &Message| match bench.plan.mode {
            _ if bench.plan.stops_groups => self.has_failed(other),
            Mode::Item => other.kind.fails_always(),
            _ => other.kind == Kind::Undecodable && !records_unreadable(bench.plan),
        };
        let is_behind = reason.is_none()
            && message.group.is_some()
            && (bench.messages.values()).any(|other| other.group == message.group && stops(other));
        // Another payload was processed under its key, or left an attempt open when it was given up.
        let others = bench.messages.values().filter(|other| {
            bench.key(other) == bench.key(message) && other.content() != message.content()
        });
        let is_second = others.clone().count() > 0
            && if self.reused.contains(&message.id) {
                self.completed.contains(&bench.key(message))
            } else {
                let is_given_up =
                    |id: &String| self.dead.contains_key(id) || self.expired.contains(id);
                reason.is_none() && others.clone().any(|other| is_given_up(&other.id))
            };
        is_too_old
            || is_declined
            || has_crashed
            || has_failed
            || has_lasted
            || is_behind
            || is_second
    }
}

/// Returns whether the failure of a body that can't be decoded has a record. Without a key there is none, and an item has no
/// failures.
pub(super) fn records_unreadable(plan: &Plan) -> bool {
    plan.mode != Mode::Item && !plan.key.needs_body()
}
