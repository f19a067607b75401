//! Test of the audit: each rule must find its violation in the ledger of a good run with one thing
//! wrong.

mod crashes;
mod ends;
mod informed;
mod systems;

use std::{collections::HashMap, time::Duration};

use crate::chaos::{
    audit::{Findings, audit},
    environment::APART_MS,
    faults::Fault,
    ledger::{ChargeEnd, Death, End, Event, Settled},
    plan::{Kind, Message},
};

pub(crate) fn sent(n: usize, kind: Kind, group: Option<&str>) -> Event {
    Event::Sent(Message::new(
        n,
        format!("o-{n}"),
        kind,
        group.map(str::to_owned),
    ))
}

/// Worker n gets a message at its nth receive.
pub(crate) fn delivered(n: usize, worker: u32) -> Event {
    let delivery = (format!("m-{n}"), worker);
    Event::Delivered {
        delivery,
        worker,
        invocation: 1,
        at_ms: 0,
    }
}

pub(crate) fn returned(n: usize, worker: u32, end: End) -> Event {
    let delivery = (format!("m-{n}"), worker);
    Event::Returned {
        delivery,
        worker,
        end,
        took: Duration::ZERO,
        stalled: Duration::ZERO,
    }
}

/// The receives that have ended lasted so long, on a machine that was stalled for so much of it.
pub(crate) fn lasted_with_stall(mut events: Vec<Event>, ms: u64, stalled_ms: u64) -> Vec<Event> {
    for event in &mut events {
        if let Event::Returned { took, stalled, .. } = event {
            (*took, *stalled) = (Duration::from_millis(ms), Duration::from_millis(stalled_ms));
        }
    }
    events
}

/// The receives that have ended lasted so long, on a machine that was stalled for half of it.
pub(crate) fn lasted(events: Vec<Event>, ms: u64) -> Vec<Event> {
    lasted_with_stall(events, ms, ms / 2)
}

pub(crate) fn charge(n: usize, worker: u32) -> Event {
    Event::Charge {
        order: format!("o-{n}"),
        key: format!("chaos#o-{n}"),
        worker,
        taken: true,
    }
}

pub(crate) fn ended(charge: usize, how: ChargeEnd) -> Event {
    Event::ChargeEnded { charge, how }
}

pub(crate) fn claimed(n: usize, owner: &str, at_ms: u64) -> Event {
    Event::Claimed {
        key: format!("chaos#o-{n}"),
        owner: owner.into(),
        message: format!("m-{n}"),
        worker: u32::from(owner.as_bytes()[0] - b'a') + 7,
        made_ms: at_ms,
        at_ms,
        lease_until_ms: at_ms + 2000,
        over_expired: false,
    }
}

/// A worker is informed of an attempt at o-1 that is open since this second.
pub(crate) fn informed(worker: u32, since: u32) -> Event {
    Event::Informed {
        worker,
        key: "chaos#o-1".into(),
        since: format!("1970-01-01T00:00:{since:02}Z"),
    }
}

pub(crate) fn settled(n: usize, as_what: Settled) -> Event {
    settled_by(n, "a", as_what)
}

pub(crate) fn settled_by(n: usize, owner: &str, as_what: Settled) -> Event {
    Event::Settled {
        key: format!("chaos#o-{n}"),
        owner: owner.into(),
        as_what,
        lease_until_ms: None,
        failed_at_ms: None,
    }
}

pub(crate) fn dead_lettered(n: usize) -> Event {
    let message = format!("m-{n}");
    Event::DeadLettered { message }
}

pub(crate) fn said(n: usize, worker: u32, outcome: &str) -> Event {
    Event::DeliveryLog {
        delivery: (format!("m-{n}"), worker),
        request_id: format!("r-{worker}"),
        outcome: outcome.into(),
        detail: String::new(),
    }
}

pub(crate) fn died(worker: u32, death: Death) -> Event {
    Event::Died { worker, death }
}

/// One message, one attempt, no fault. The charge is event 3.
fn good() -> Vec<Event> {
    vec![
        sent(1, Kind::Good, None),
        delivered(1, 7),
        claimed(1, "a", 1000),
        charge(1, 7),
        ended(3, ChargeEnd::Answered),
        settled(1, Settled::Completed),
        returned(1, 7, End::Acknowledged),
    ]
}

/// The first attempt charges and ends as `cut` says, the second succeeds.
fn again(cut: Vec<Event>) -> Vec<Event> {
    let mut events = good();
    events.truncate(4);
    events.extend(cut);
    let second = events.len();
    events.extend([
        delivered(1, 8),
        claimed(1, "b", 9000),
        charge(1, 8),
        ended(second + 2, ChargeEnd::Answered),
        settled_by(1, "b", Settled::Completed),
        returned(1, 8, End::Acknowledged),
        informed(8, 1),
    ]);
    events
}

pub(crate) fn audited(events: &[Event]) -> Findings {
    let statuses = [1, 2].map(|n| (format!("chaos#o-{n}"), "COMPLETED".to_owned()));
    audit(events, &HashMap::from(statuses))
}

#[track_caller]
pub(crate) fn clean(events: &[Event]) {
    assert_eq!(audited(events).violations, [""; 0], "{events:#?}");
}

#[track_caller]
pub(crate) fn caught(events: &[Event], wanted: &str) {
    let found = audited(events).violations;
    assert!(
        found.iter().any(|found| found.contains(wanted)),
        "{found:?}"
    );
}

#[test]
fn lost_message_is_found() {
    clean(&good());
    caught(&good()[..6], "lost, or left in the queue");
    caught(&[sent(1, Kind::Good, None)], "lost, or left in the queue");
}

#[test]
fn acknowledgement_before_completion_is_found() {
    let mut events = good();
    events.swap(5, 6);
    caught(
        &events,
        "was acknowledged when its operation was not completed",
    );
    events.pop();
    caught(
        &events,
        "was acknowledged when its operation was not completed",
    );
    let never_charged = [
        sent(1, Kind::Good, None),
        settled(1, Settled::Completed),
        returned(1, 7, End::Acknowledged),
    ];
    caught(&never_charged, "never charged");
    let found = audit(&good(), &HashMap::new()).violations;
    assert_eq!(found, ["m-1 was acknowledged, and its record is None"]);
}

#[test]
fn second_charge_is_found_unless_first_was_cut_off() {
    let answered = || ended(3, ChargeEnd::Answered);
    let failed = || returned(1, 7, End::ReportedFailed);
    let gone = || returned(1, 7, End::WorkerDied);
    let fault = |worker| Event::Faulted {
        key: "chaos#o-1".into(),
        worker,
        fault: Fault::CutAfter,
    };
    for (cut, excuse) in [
        (vec![answered(), died(7, Death::Killed), gone()], "Killed"),
        (vec![ended(3, ChargeEnd::Busy), failed()], "Busy"),
        (
            vec![
                ended(3, ChargeEnd::Unanswered),
                failed(),
                said(1, 7, "retryable_failure"),
            ],
            "Unanswered",
        ),
        (vec![answered(), fault(7), failed()], "CutAfter"),
    ] {
        let events = lasted(again(cut), 500);
        clean(&events);
        assert_eq!(audited(&events).charged_again[excuse], 1);
    }
    for cut in [
        vec![answered(), failed()],
        // The worker had responded when it died.
        vec![answered(), failed(), died(7, Death::Killed)],
        vec![answered(), died(9, Death::Killed), failed()],
        vec![answered(), fault(9), failed()],
    ] {
        let events = again(cut);
        caught(&events, "though nothing cut off worker 7");
        assert_eq!(audited(&events).charged_again["nothing"], 1);
    }
    caught(&again(vec![failed()]), "charged by two at once");
    for outcome in ["retryable_failure", "out_of_time", "completion_unrecorded"] {
        let mut events = again(vec![answered(), failed()]);
        events.push(said(1, 7, outcome));
        caught(&events, "without a cause");
        let slow = lasted(events, 2000);
        clean(&slow);
        let after = format!("{outcome}, by its log");
        assert_eq!(audited(&slow).charged_again[&after], 1);
    }
}

/// The message is delivered twice to concurrent invocations of one process, and one of them charges.
#[test]
fn second_charge_by_concurrent_invocation_is_found() {
    let with = |outcomes: [&str; 2]| {
        let first_failed = returned(1, 7, End::ReportedFailed);
        let mut second_failed = returned(1, 9, End::ReportedFailed);
        if let Event::Returned { worker, .. } = &mut second_failed {
            *worker = 7;
        }
        let mut events = again(vec![
            ended(4, ChargeEnd::Answered),
            first_failed,
            second_failed,
        ]);
        let second = Event::Delivered {
            delivery: ("m-1".into(), 9),
            worker: 7,
            invocation: 2,
            at_ms: 0,
        };
        events.insert(2, second);
        for event in &mut events {
            if let Event::ChargeEnded { charge, .. } = event
                && *charge > 4
            {
                *charge += 1;
            }
        }
        let [first, second] = outcomes;
        let mut other = said(1, 9, second);
        if let Event::DeliveryLog { request_id, .. } = &mut other {
            "r-10".clone_into(request_id);
        }
        events.extend([said(1, 7, first), other]);
        lasted(events, 2000)
    };
    clean(&with(["retryable_failure", "lease_lost"]));
    clean(&with(["lease_lost", "retryable_failure"]));
    caught(
        &with(["lease_lost", "duplicate"]),
        "though nothing cut off worker 7",
    );
}

#[test]
fn charge_after_recorded_end_is_found() {
    for sealed in [Settled::Completed, Settled::Failed, Settled::Declined] {
        let events = again(vec![
            ended(3, ChargeEnd::Answered),
            settled(1, sealed),
            died(7, Death::Killed),
            returned(1, 7, End::WorkerDied),
        ]);
        caught(
            &events,
            match sealed {
                Settled::Completed => "when it was Completed",
                _ => "was claimed for m-1, whose failure was recorded",
            },
        );
    }
    // A claim for another message does not permit it.
    let mut events = again(vec![
        ended(3, ChargeEnd::Answered),
        settled(1, Settled::Failed),
        returned(1, 7, End::ReportedFailed),
    ]);
    for event in &mut events {
        if let Event::Claimed { owner, message, .. } = event
            && owner == "b"
        {
            "another".clone_into(message);
        }
    }
    caught(
        &events,
        "for the message \"another\", which was not given to it",
    );
}

/// A declined order that was sent in two messages: each message is charged once.
#[test]
fn second_message_of_failed_order_charges_once() {
    let of_order_1 = |n| Event::Sent(Message::new(n, "o-1".into(), Kind::Declined, None));
    let attempt = |n, worker, at| {
        let declined = Event::Charge {
            order: "o-1".into(),
            key: "chaos#o-1".into(),
            worker,
            taken: false,
        };
        let claimed = Event::Claimed {
            key: "chaos#o-1".into(),
            owner: "a".into(),
            message: format!("m-{n}"),
            worker,
            made_ms: u64::from(worker) * 10_000,
            at_ms: u64::from(worker) * 10_000,
            lease_until_ms: u64::from(worker) * 10_000 + 2000,
            over_expired: false,
        };
        [
            delivered(n, worker),
            claimed,
            declined,
            ended(at + 2, ChargeEnd::Answered),
            settled(1, Settled::Failed),
            returned(n, worker, End::ReportedFailed),
        ]
    };
    let mut events = vec![of_order_1(1), of_order_1(2)];
    events.extend(attempt(1, 7, 2));
    events.extend(attempt(2, 8, 8));
    events.extend([dead_lettered(1), dead_lettered(2)]);
    events.extend([1, 2].map(|n| said(n, n as u32 + 6, "permanent_failure")));
    clean(&events);
    // Both in the first batch, in which m-2 shares the outcome of m-1.
    let mut shared = events.clone();
    shared.insert(3, delivered(2, 7));
    for event in &mut shared {
        if let Event::ChargeEnded { charge, .. } = event {
            *charge += 1;
        }
    }
    clean(&shared);
    let again = events.len();
    events.extend(attempt(1, 9, again));
    caught(&events, "was claimed for m-1, whose failure was recorded");
}

#[test]
fn two_live_claims_are_found() {
    let two = |between: Option<Event>, at_ms| {
        let mut events = good();
        let place = between.is_some();
        events.splice(3..3, between);
        events.insert(3 + usize::from(place), claimed(1, "b", at_ms));
        // The charge has moved.
        events.retain(|event| !matches!(event, Event::ChargeEnded { .. }));
        for event in events.iter_mut().skip(4) {
            if let Event::Settled { owner, .. } = event {
                "b".clone_into(owner);
            }
        }
        events
    };
    // The claim's lease ends at 3000.
    caught(
        &two(None, 2999 - APART_MS),
        "while another's claim was live",
    );
    clean(&two(None, 3000 - APART_MS));
    clean(&two(Some(settled(1, Settled::Restored)), 1500));
    clean(&two(Some(settled(1, Settled::LeaseEnded)), 1500));
}

/// As [`thawed_at`], long after its lease.
fn thawed(frozen: usize, late: Vec<Event>) -> Vec<Event> {
    thawed_at(9_000, frozen, late)
}

/// Frozen in its charge, given up, taken over by worker 8, and thawed; then `late` happens.
fn thawed_at(at_ms: u64, frozen: usize, late: Vec<Event>) -> Vec<Event> {
    let died = died(7, Death::FrozenUntilTimeout);
    let mut events = again(vec![died, returned(1, 7, End::WorkerDied)]);
    events.insert(frozen, Event::Frozen { worker: 7 });
    events.push(Event::Thawed { worker: 7, at_ms });
    events.extend(late);
    for event in &mut events {
        if let Event::ChargeEnded { charge, .. } = event {
            // Moved by the freeze.
            *charge += 1;
        }
    }
    events
}

#[test]
fn thawed_worker_acting_after_lease_is_found() {
    clean(&thawed(4, vec![]));
    // The request was in flight, and arrives after the other worker is done.
    clean(&thawed(4, vec![charge(1, 7)]));
    caught(&thawed(2, vec![charge(1, 7)]), "began when it was thawed");
    // The claim's lease ends at 3000, by a clock that may be behind.
    let over = 3000 + APART_MS;
    clean(&thawed_at(over - 1, 2, vec![charge(1, 7)]));
    caught(
        &thawed_at(over, 2, vec![charge(1, 7)]),
        "began when it was thawed",
    );
    // With its own claim it is an ordinary worker.
    caught(
        &thawed(2, vec![claimed(1, "a", 99_000), charge(1, 7)]),
        "was charged by worker 7 when it was Completed",
    );
    let mut over = claimed(1, "a", 99_000);
    if let Event::Claimed { lease_until_ms, .. } = &mut over {
        *lease_until_ms = 98_000;
    }
    caught(
        &thawed(2, vec![over, charge(1, 7)]),
        "began when it was thawed",
    );
    caught(
        &thawed(4, vec![settled(1, Settled::Completed)]),
        "was Completed when it was Completed",
    );
    let mut early = thawed(4, vec![]);
    early.retain(|event| !matches!(event, Event::ChargeEnded { .. }));
    let mut claims = early.iter();
    let second = claims.rposition(|event| matches!(event, Event::Claimed { .. }));
    early.insert(second.unwrap() + 1, settled(1, Settled::Completed));
    caught(&early, "was Completed by a when b held its claim");
}

#[test]
fn changed_or_shared_key_is_found() {
    let with_key = |at: usize, key: &str| {
        let mut events = again(vec![ended(3, ChargeEnd::Unanswered)]);
        events.extend([sent(2, Kind::Good, None), charge(2, 8)]);
        let Some(Event::Charge { key: is, .. }) = events.get_mut(at) else {
            panic!("{at} is no charge: {events:#?}")
        };
        key.clone_into(is);
        events
    };
    caught(&with_key(7, "other#o-1"), "with two keys");
    let found = "o-1 was charged under the key chaos#other, which is that of None";
    caught(&with_key(7, "chaos#other"), found);
    let found = "o-2 was charged under the key chaos#o-1, which is that of Some(\"o-1\")";
    caught(&with_key(13, "chaos#o-1"), found);
}

/// An order sent twice, keyed by message id: each message is charged once.
#[test]
fn second_charge_under_message_id_is_found() {
    let sent = |n| {
        let message = Message::new(n, "o-1".into(), Kind::Good, None);
        Event::Sent(message.keyed_by_id())
    };
    let attempt = |n, key: usize, at: usize| {
        let mut events = [
            delivered(n, 7),
            claimed(n, "a", 1000),
            charge(1, 7),
            ended(at + 2, ChargeEnd::Answered),
            settled(n, Settled::Completed),
            returned(n, 7, End::Acknowledged),
        ];
        for event in &mut events {
            if let Event::Claimed { key: is, .. }
            | Event::Charge { key: is, .. }
            | Event::Settled { key: is, .. } = event
            {
                *is = format!("chaos#m-{key}");
            }
        }
        events
    };
    let run = |second| {
        let mut events = vec![sent(1), sent(2)];
        events.extend(attempt(1, 1, 2));
        events.extend(attempt(2, second, 8));
        let statuses = [1, 2].map(|n| (format!("chaos#m-{n}"), "COMPLETED".to_owned()));
        audit(&events, &HashMap::from(statuses)).violations
    };
    assert_eq!(run(2), [""; 0]);
    let found = run(1);
    let wanted = "m-1 was charged by worker 7 when it was Completed";
    assert!(found.iter().any(|found| found == wanted), "{found:?}");
}

#[test]
fn crash_or_unreadable_response_is_found() {
    let mut events = good();
    events.push(died(7, Death::Crashed));
    caught(&events, "ended by itself");
    events = good();
    events.insert(6, returned(1, 7, End::BatchFailed));
    caught(&events, "failed with its whole batch");
}

#[test]
fn success_reported_as_failed_is_found() {
    let reported = |end, outcome| {
        let mut events = good();
        events.insert(6, returned(1, 7, end));
        events.push(said(1, 7, outcome));
        events
    };
    for outcome in ["completed", "duplicate"] {
        let mut events = reported(End::ReportedFailed, outcome);
        let wanted = format!("reported as failed, and its worker says: {outcome}");
        caught(&events, &wanted);
        // The worker could not wait for the charge.
        let message = "m-1".to_owned();
        events.push(Event::Late { message, worker: 7 });
        clean(&events);
        let mut died_before = reported(End::WorkerDied, outcome);
        died_before.push(died(7, Death::Killed));
        clean(&died_before);
    }
    for outcome in ["lease_lost", "not_started"] {
        clean(&reported(End::ReportedFailed, outcome));
    }
}

#[test]
fn fifo_group_out_of_order_is_found() {
    let charged = |n| {
        [
            delivered(n, 7),
            claimed(n, "a", 1000),
            charge(n, 7),
            settled(n, Settled::Completed),
        ]
    };
    let group = |first: usize, second: usize, before: Option<Event>| {
        let mut events = vec![
            sent(1, Kind::Good, Some("g")),
            sent(2, Kind::Good, Some("g")),
        ];
        events.extend(before);
        events.extend(charged(first));
        events.extend(charged(second));
        events.extend([1, 2].map(|n| returned(n, 7, End::Acknowledged)));
        events
    };
    clean(&group(1, 2, None));
    let wanted = "o-2 was charged when o-1, sent before it in its group, was not settled";
    caught(&group(2, 1, None), wanted);
    clean(&group(2, 1, Some(dead_lettered(1))));
    // A recorded failure is settled; an unreadable message has nothing to settle.
    for (kind, settled) in [
        (Kind::Declined, Some(settled(1, Settled::Failed))),
        (Kind::Undecodable, None),
        (Kind::Declined, None),
    ] {
        let holds_back = kind == Kind::Declined && settled.is_none();
        let mut events = vec![sent(1, kind, Some("g")), sent(2, Kind::Good, Some("g"))];
        events.push(delivered(1, 7));
        events.extend(settled);
        events.extend(charged(2));
        events.extend([returned(2, 7, End::Acknowledged), dead_lettered(1)]);
        events.push(said(1, 7, "permanent_failure"));
        if holds_back {
            caught(&events, wanted);
        } else {
            clean(&events);
        }
    }
    // Its worker was killed after the charge, and still holds the group.
    let mut unsettled = group(1, 2, None);
    let first = unsettled
        .iter()
        .position(|event| matches!(event, Event::Settled { .. }));
    let first = unsettled.remove(first.unwrap());
    let second = unsettled
        .iter()
        .rposition(|event| matches!(event, Event::Charge { .. }));
    unsettled.insert(second.unwrap() + 1, first);
    caught(&unsettled, wanted);
}
