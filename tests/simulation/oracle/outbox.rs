//! The outbox: events are published with the record of their operation, and the relay sends each of them, in the order of
//! its group.

use std::{collections::BTreeMap, time::Duration};

use super::Bench;
use crate::{
    ledger::Event,
    stream::{CHARGED, events},
};

/// Age at which the relay gives up an event that fails (docs/outbox.md).
const MAX_AGE: Duration = Duration::from_secs(15 * 60);

#[derive(Default)]
pub(super) struct Outbox {
    operations: BTreeMap<String, Operation>,
    events: BTreeMap<String, OfEvent>,
    /// Ids of each group, in the order of the commits.
    groups: BTreeMap<String, Vec<String>>,
    /// When the relay last could not know whether an event was taken: without an answer, in a new process, or where its
    /// mapping has lost its place.
    in_doubt: Duration,
    /// When an event of each group was last refused. Everything behind its record comes again.
    refused: BTreeMap<String, Duration>,
}

/// What was published since the last record of an operation began.
#[derive(Default)]
struct Operation {
    events: Vec<(String, String, String)>,
    is_completed: bool,
}

struct OfEvent {
    name: String,
    group: String,
    body: String,
    /// Time in the first item of the event.
    stamp: Duration,
    /// When it was last published, and last taken by its target or the dead-letter queue.
    published: Duration,
    taken: Option<Duration>,
    /// How often it was published and not yet taken: after its record was deleted, an operation publishes again.
    owed: u32,
    /// When the invocation began in which it was taken.
    invoked: Duration,
}

impl Outbox {
    pub(super) fn event(&mut self, at: Duration, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Published {
                key,
                id,
                name,
                group,
                body,
                stamp,
            } => {
                let operation = self.operations.entry(key.clone()).or_default();
                let published = (id.clone(), name.clone(), group.clone());
                operation.events.push(published);
                let known = self.events.entry(id.clone()).or_insert_with(|| {
                    let of_group = self.groups.entry(group.clone()).or_default();
                    of_group.push(id.clone());
                    OfEvent {
                        name: name.clone(),
                        group: group.clone(),
                        body: body.clone(),
                        stamp: *stamp,
                        published: at,
                        taken: None,
                        owed: 0,
                        invoked: at,
                    }
                });
                known.published = at;
                known.owed += 1;
            }
            Event::Settled {
                key,
                is: "COMPLETED",
                ..
            } if bench.plan.outbox.is_some() => {
                let operation = self.operations.entry(key.clone()).or_default();
                operation.is_completed = true;
                operation.events.sort();
                let expected = (0..).zip(events(key));
                let expected = expected
                    .map(|(n, (name, group))| (format!("{key}#{n:02}"), name.to_owned(), group));
                let published = &operation.events;
                bench.check(
                    "events commit with their record",
                    expected.eq(published.iter().cloned()),
                    &[key],
                    || format!("{key} is completed, and has published {published:?}"),
                );
            }
            // A new operation begins.
            Event::Deleted { key } | Event::Forgotten { key } => {
                self.operations.remove(key);
            }
            Event::Relayed {
                id,
                name,
                body,
                group,
                dead,
            } => {
                if let Some(of) = self.events.get(id) {
                    bench.check(
                        "an event is sent as it was published",
                        (name, body) == (&of.name, &of.body),
                        &[id],
                        || format!("{id} was sent as {name} with {body}, and not {}", of.body),
                    );
                }
                self.relayed(at, (id, group.as_ref()), dead.as_deref(), bench);
            }
            Event::SqsFault { .. }
            | Event::ReadAgain { .. }
            | Event::InvocationLost { .. }
            | Event::Started { .. } => self.in_doubt = at,
            Event::EventRefused { id } | Event::EventThrottled { id } => {
                if let Some(of) = self.events.get(id) {
                    self.refused.insert(of.group.clone(), at);
                }
            }
            _ => {}
        }
    }

    fn relayed(
        &mut self,
        at: Duration,
        (id, group): (&String, Option<&String>),
        dead: Option<&str>,
        bench: &mut Bench<'_>,
    ) {
        let event = self.events.get(id);
        let is_known = event.is_some_and(|of| group.is_none_or(|group| *group == of.group));
        bench.check("a sent event was committed", is_known, &[id], || {
            format!("{id} of group {group:?} was sent")
        });
        let Some(event) = event else { return };
        let mut is_owed = true;
        let has_target = event.name == CHARGED;
        let is_old = at + bench.skew() >= event.stamp + MAX_AGE;
        let holds = match dead {
            None => has_target,
            Some("NoTarget") => !has_target,
            // The target works.
            Some("RequestThrottled") => false,
            Some(_) => has_target && is_old,
        };
        bench.check("a dead event has a cause", holds, &[id], || {
            format!("{id} of {:?} is a dead letter: {dead:?}", event.stamp)
        });
        if let Some(taken) = event.taken {
            let rates = &bench.plan.rates;
            let comes_twice = rates.doubled > 0.0 || rates.late > 0.0;
            let others = self.refused.iter().filter(|(of, _)| **of != event.group);
            let is_behind = others.map(|(_, at)| *at).any(|at| at >= event.invoked);
            let has_cause = comes_twice || is_behind || self.in_doubt >= event.invoked;
            is_owed = event.owed > 0 && !has_cause;
            let holds = has_cause || is_owed;
            let check = "an event is repeated only with a cause";
            bench.check(check, holds, &[id], || {
                format!("{id} was sent again, and the relay knew of {taken:?}")
            });
        } else {
            let mut ahead = self.groups[&event.group].iter();
            let waiting = ahead.find(|other| self.events[*other].taken.is_none());
            bench.check(
                "order of a group's events",
                waiting == Some(id),
                &[id],
                || format!("{id} was sent before {waiting:?} of its group"),
            );
        }
        if let Some(event) = self.events.get_mut(id) {
            event.taken = Some(at);
            event.owed -= u32::from(is_owed);
            event.invoked = bench.at_work.relay_since().unwrap_or(at);
        }
    }

    pub(super) fn end(&self, bench: &mut Bench<'_>) {
        for (key, operation) in &self.operations {
            let check = "events commit with their record";
            bench.check(check, operation.is_completed, &[key], || {
                format!(
                    "{key} has published {:?}, and is not completed",
                    operation.events
                )
            });
        }
        for (id, event) in &self.events {
            let is_sent = event.taken.is_some_and(|taken| taken >= event.published);
            bench.check("every event is sent", is_sent, &[id], || {
                format!("{id} was published at {:?}, and not sent", event.published)
            });
        }
    }
}
