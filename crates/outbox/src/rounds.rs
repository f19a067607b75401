//! Sends groups of events in rounds: in each round, the first event of every group.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use futures_util::future::join_all;

use crate::{
    Relay,
    report::RelayReport,
    send::{ATTRIBUTE_BYTES, MAX_CALL_BYTES, MAX_ENTRIES, OutgoingEvent, Sent},
    stream::{Group, Pending},
    targets::Target,
};
use sqs_once::{
    Deadline,
    internal::{
        flawed, is_contended,
        system::{self, Instant, timeout_at},
    },
    protocol::Timestamp,
};

/// Reason for an event whose name has no target.
const NO_TARGET: &str = "NoTarget";
/// Reason for an event that was not sent because an earlier call got no response.
const EARLIER_SILENCE: &str = "the target did not respond to an earlier call of this invocation";

/// Error codes if KMS throttles requests for a target's key: one from SNS, and one from each of the two protocols of SQS.
const KMS_THROTTLING: [&str; 3] = ["KMSThrottling", "KMS.ThrottlingException", "KmsThrottled"];

/// The fate of one event in this batch.
enum EventEnd {
    Sent,
    DeadLettered(String),
    Failed(String),
}

/// The rounds of an invocation: their limits, and the targets that we no longer call.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// No round starts after this.
    pub(crate) start_by: Instant,
    /// Calls are cut off at this time, and their events fail.
    stop: Instant,
    /// If an event was published before this time and fails, it goes to the dead-letter queue.
    pub(crate) oldest: Option<Timestamp>,
    /// Targets that did not respond in time. Another call would take just as long, while other targets wait.
    silent: BTreeSet<Target>,
}

impl Rounds {
    pub(crate) const fn new(deadline: Deadline) -> Self {
        Self {
            start_by: deadline.start_by(),
            stop: deadline.handler_cutoff(),
            oldest: None,
            silent: BTreeSet::new(),
        }
    }

    /// Returns whether an event that failed goes to the dead-letter queue. The event must be old, and we must have called
    /// its target. If the target throttled the call, the event stays, because a target that throttles works.
    fn gives_up(&self, event: &Pending, why: &str) -> bool {
        let is_old = (event.published_at.zip(self.oldest))
            .is_some_and(|(published_at, oldest)| published_at < oldest);
        (is_old || flawed("a failed event is given up at once"))
            && (!is_throttled(why) || flawed("a throttled event is given up"))
            && why != EARLIER_SILENCE
    }
}

/// A group's events that were not sent. If an event failed, it is the first.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub(crate) events: Group,
    /// False if the only reason is that no time was left for another round.
    pub(crate) has_failed: bool,
}

impl Relay {
    /// Sends groups in parallel, and the events of each group one after the other. Returns the groups that still have events.
    pub(crate) async fn send_groups(
        &self,
        mut groups: Vec<Group>,
        run: &mut Rounds,
        report: &mut RelayReport,
    ) -> Vec<Unsent> {
        let mut unsent = Vec::new();
        while !groups.is_empty() {
            if system::instant() >= run.start_by {
                let rest = |events| Unsent {
                    events,
                    has_failed: false,
                };
                unsent.extend(groups.into_iter().map(rest));
                break;
            }
            let ends = self.send_first_of_each(&groups, run).await;
            let mut next = Vec::with_capacity(groups.len());
            for (mut events, end) in groups.into_iter().zip(ends) {
                if !settle(&events, end, report) && !flawed("a group continues after a failure") {
                    let has_failed = true;
                    unsent.push(Unsent { events, has_failed });
                    continue;
                }
                events.pop_front();
                if !events.is_empty() {
                    next.push(events);
                }
            }
            groups = next;
        }
        unsent
    }

    /// Sends the first event of each group. Returns what became of each, in the order of the groups.
    async fn send_first_of_each(&self, groups: &[Group], run: &mut Rounds) -> Vec<EventEnd> {
        let heads: Vec<&Pending> = groups.iter().filter_map(Group::front).collect();
        let mut sent = self.send(&heads, run).await;
        for (head, sent) in heads.iter().zip(&mut sent) {
            if let Sent::Failed(why) | Sent::Silent(why) = sent
                && run.gives_up(head, why)
            {
                *sent = Sent::Refused(mem::take(why));
            }
        }
        let refused: Vec<_> = heads
            .iter()
            .zip(&sent)
            .filter_map(|(head, sent)| match sent {
                Sent::Refused(reason) => Some(OutgoingEvent {
                    event: &head.event,
                    reason: Some(reason),
                }),
                _ => None,
            })
            .collect();
        let to = |_: &OutgoingEvent<'_>| Some(&self.dead_letters);
        let mut dead_lettered = self.send_parcels(&refused, to, run).await.into_iter();
        let end = |sent| match sent {
            Sent::Confirmed => EventEnd::Sent,
            Sent::Failed(why) | Sent::Silent(why) => EventEnd::Failed(why),
            Sent::Refused(reason) => match dead_lettered.next() {
                Some(Sent::Confirmed) => EventEnd::DeadLettered(reason),
                Some(Sent::Failed(why) | Sent::Silent(why) | Sent::Refused(why)) => {
                    EventEnd::Failed(format!("{reason}, and the dead-letter queue: {why}"))
                }
                None => EventEnd::Failed(reason),
            },
        };
        sent.into_iter().map(end).collect()
    }

    async fn send(&self, heads: &[&Pending], run: &mut Rounds) -> Vec<Sent> {
        let parcels: Vec<_> = heads
            .iter()
            .map(|head| OutgoingEvent {
                event: &head.event,
                reason: head.fault,
            })
            .collect();
        let to = |parcel: &OutgoingEvent<'_>| match parcel.reason {
            None => self.targets.of(&parcel.event.name),
            Some(_) => None,
        };
        self.send_parcels(&parcels, to, run).await
    }

    /// Sends each event to its target, in as few calls as the limits allow. Rejects an event without a target,
    /// and does not call a target that was silent earlier.
    async fn send_parcels<'a>(
        &'a self,
        parcels: &[OutgoingEvent<'a>],
        target: impl Fn(&OutgoingEvent<'a>) -> Option<&'a Target>,
        run: &mut Rounds,
    ) -> Vec<Sent> {
        let stop = run.stop;
        let mut of_target: BTreeMap<&Target, Vec<usize>> = BTreeMap::new();
        let mut sent = Vec::with_capacity(parcels.len());
        for (index, parcel) in parcels.iter().enumerate() {
            let Some(target) = target(parcel) else {
                let reason = parcel.reason.unwrap_or(NO_TARGET);
                sent.push(Sent::Refused(reason.to_owned()));
                continue;
            };
            sent.push(Sent::Failed(EARLIER_SILENCE.to_owned()));
            if !run.silent.contains(target) {
                of_target.entry(target).or_default().push(index);
            }
        }
        let planned = of_target.into_iter().flat_map(|(target, indices)| {
            let calls = calls(indices, |index| parcels[index].event.body.len());
            calls.into_iter().map(move |indices| (target, indices))
        });
        let calls = planned.map(|(target, indices)| async move {
            let of_call: Vec<_> = indices.iter().map(|&index| parcels[index]).collect();
            let call = timeout_at(stop, self.sender.send(target, &of_call)).await;
            let late =
                |_| vec![Sent::Silent("no answer before the deadline".to_owned()); of_call.len()];
            (target, indices, call.unwrap_or_else(late))
        });
        for (target, indices, results) in join_all(calls).await {
            if results.iter().any(|sent| matches!(sent, Sent::Silent(_))) {
                run.silent.insert(target.clone());
            }
            for (index, result) in indices.into_iter().zip(results) {
                sent[index] = result;
            }
        }
        sent
    }
}

/// Returns whether a target or its KMS key throttles.
fn is_throttled(code: &str) -> bool {
    is_contended(code) || KMS_THROTTLING.contains(&code)
}

/// Reports what became of a group's first event. Returns whether the next event may be sent.
fn settle(group: &Group, end: EventEnd, report: &mut RelayReport) -> bool {
    let Some(first) = group.front() else {
        return true;
    };
    let (event_id, event_name) = (&first.event.id, &first.event.name);
    match end {
        EventEnd::Sent => report.sent(first.published_at),
        EventEnd::DeadLettered(reason) => {
            tracing::error!(
                event_id,
                event_name,
                reason,
                "the target did not take the event: it is in the dead-letter queue"
            );
            report.dead_lettered();
        }
        EventEnd::Failed(reason) => {
            tracing::warn!(
                event_id,
                event_name,
                reason,
                waiting = group.len() - 1,
                "the event was not sent: it and the later events of its group are sent again"
            );
            return false;
        }
    }
    true
}

/// Divides entries into calls within the limits of the services.
fn calls(indices: Vec<usize>, bytes: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let (mut calls, mut total): (Vec<Vec<_>>, _) = (Vec::new(), 0);
    for index in indices {
        let size = bytes(index) + ATTRIBUTE_BYTES;
        total += size;
        match calls.last_mut() {
            Some(call) if call.len() < MAX_ENTRIES && total <= MAX_CALL_BYTES => call.push(index),
            _ => {
                total = size;
                calls.push(vec![index]);
            }
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_keep_limits_of_the_services() {
        let sizes = |sizes: &[usize]| {
            let calls = calls((0..sizes.len()).collect(), |index| sizes[index]);
            calls.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[1; 23]), [10, 10, 3]);
        assert_eq!(sizes(&[127 * 1024, 127 * 1024, 1]), [2, 1]);
        assert_eq!(sizes(&[255 * 1024, 1, 255 * 1024]), [1, 1, 1]);
    }
}
