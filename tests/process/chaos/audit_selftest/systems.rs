//! Test of the rules for outages, dead connections, skewed clocks, expired records and redriven messages, as in
//! `mod.rs`.

use std::{collections::HashMap, time::Duration};

use crate::chaos::{
    audit::audit,
    audit_selftest::{
        caught, charge, claimed, clean, dead_lettered, delivered, ended, lasted, returned, said,
        sent, settled, settled_by,
    },
    environment::APART_MS,
    ledger::{ChargeEnd, Death, End, Event, Settled, System},
    plan::{Kind, Message},
};

/// A good message whose one receive, by worker 7, fails with this outcome after `during`.
fn failed(outcome: &str, during: Vec<Event>) -> Vec<Event> {
    let mut events = vec![sent(1, Kind::Good, None), delivered(1, 7)];
    events.extend(during);
    events.push(returned(1, 7, End::ReportedFailed));
    events.push(dead_lettered(1));
    events.push(said(1, 7, outcome));
    events
}

/// Worker 7 sent a request on a dead connection, and gave up after this time.
fn unheard(ms: u64) -> Event {
    Event::Unheard {
        worker: 7,
        waited: Duration::from_millis(ms),
    }
}

fn outage(of: System, begins: bool) -> Event {
    Event::Outage { of, begins }
}

#[test]
fn unavailable_store_without_outage_is_found() {
    let wanted = "store_unavailable () after 0ns, without a cause";
    let ends = || outage(System::Table, false);
    clean(&failed(
        "store_unavailable",
        vec![outage(System::Table, true)],
    ));
    clean(&failed("store_unavailable", vec![ends()]));
    let mut before = failed("store_unavailable", vec![]);
    before.insert(1, outage(System::Table, true));
    clean(&before);
    before.insert(2, ends());
    caught(&before, wanted);
    let gateway = vec![outage(System::Gateway, true)];
    caught(&failed("store_unavailable", gateway), wanted);
}

#[test]
fn open_circuit_without_twenty_failures_is_found() {
    let after = |failures: usize| {
        let mut events = failed("circuit_open", vec![]);
        for n in 2..failures + 2 {
            let failed = [
                sent(n, Kind::Good, None),
                delivered(n, 7),
                returned(n, 7, End::ReportedFailed),
                dead_lettered(n),
                said(n, 7, "retryable_failure"),
            ];
            events.extend(lasted(failed.to_vec(), 2000));
        }
        events
    };
    clean(&after(20));
    let wanted = "circuit_open () after 0ns, without a cause";
    caught(&after(19), wanted);
    // The worker ends before the batch of the last failure has logged its messages.
    let unlogged = |how| {
        let mut events = after(19);
        events.extend([sent(90, Kind::Good, None), delivered(90, 7)]);
        events.extend([claimed(90, "a", 1000), charge(90, 7)]);
        events.push(ended(events.len() - 1, how));
        let death = Death::Killed;
        events.push(Event::Died { worker: 7, death });
        events.push(returned(90, 7, End::WorkerDied));
        events.push(dead_lettered(90));
        events
    };
    clean(&unlogged(ChargeEnd::Busy));
    caught(&unlogged(ChargeEnd::Answered), wanted);
}

/// After a rest, requests on dead connections are lost. That is no reason to fail.
#[test]
fn failure_on_dead_connections_is_found() {
    let rested = |invocation| {
        let worker = 7;
        let mut events = failed("store_unavailable", vec![unheard(1000)]);
        events.insert(1, Event::Rested { worker, invocation });
        lasted(events, 1500)
    };
    caught(
        &rested(1),
        "store_unavailable () after 1.5s, without a cause",
    );
    // In another invocation it lasted as long as the worker waits.
    clean(&rested(2));
}

#[test]
fn long_wait_on_dead_connection_is_found() {
    let beside = |unheard| {
        let mut events = vec![sent(1, Kind::Good, None), delivered(1, 7)];
        events.extend([unheard, claimed(1, "a", 1000), charge(1, 7)]);
        events.extend([
            ended(4, ChargeEnd::Answered),
            settled(1, Settled::Completed),
        ]);
        events.push(returned(1, 7, End::Acknowledged));
        events
    };
    clean(&beside(unheard(2000)));
    let wanted = "worker 7 waited 2.001s for an answer on a dead connection";
    caught(&beside(unheard(2001)), wanted);
    let mut frozen = beside(unheard(2001));
    frozen.insert(0, Event::Frozen { worker: 7 });
    if let Event::ChargeEnded { charge, .. } = &mut frozen[6] {
        *charge += 1;
    }
    clean(&frozen);
}

/// A claim is refused because its worker's clock is behind that of the worker that ended the lease.
#[test]
fn conflict_with_ended_lease_needs_skewed_clocks() {
    let conflict = |delivered_ms| {
        let mut ended_early = settled(1, Settled::LeaseEnded);
        if let Event::Settled { lease_until_ms, .. } = &mut ended_early {
            *lease_until_ms = Some(1500);
        }
        let mut events = vec![sent(1, Kind::Good, None), delivered(1, 7)];
        events.extend([
            claimed(1, "a", 1000),
            charge(1, 7),
            ended(3, ChargeEnd::Busy),
        ]);
        events.extend([ended_early, returned(1, 7, End::ReportedFailed)]);
        let mut second = delivered(1, 8);
        if let Event::Delivered { at_ms, .. } = &mut second {
            *at_ms = delivered_ms;
        }
        events.push(second);
        events.extend([returned(1, 8, End::ReportedFailed), dead_lettered(1)]);
        events.push(said(1, 7, "retryable_failure"));
        events.push(Event::DeliveryLog {
            delivery: ("m-1".into(), 8),
            request_id: "r-8".into(),
            outcome: "conflict".into(),
            detail: "lease held by a until".into(),
        });
        events
    };
    clean(&conflict(1500 + APART_MS));
    caught(
        &conflict(1500 + APART_MS + 1),
        "no other attempt held a claim",
    );
}

/// m-1 is done, and m-2 charges the same order again, after `between`.
fn twice(between: Vec<Event>, over_expired: bool) -> Vec<Event> {
    let sent = |n| Event::Sent(Message::new(n, "o-1".into(), Kind::Good, None));
    let mut events = vec![sent(1), sent(2)];
    events.extend([delivered(1, 7), claimed(1, "a", 1000), charge(1, 7)]);
    events.extend([
        ended(4, ChargeEnd::Answered),
        settled(1, Settled::Completed),
    ]);
    events.push(returned(1, 7, End::Acknowledged));
    events.extend(between);
    let mut second = claimed(1, "b", 20_000);
    if let Event::Claimed {
        message,
        over_expired: over,
        ..
    } = &mut second
    {
        "m-2".clone_into(message);
        *over = over_expired;
    }
    events.extend([delivered(2, 8), second, charge(1, 8)]);
    let charged = events.len() - 1;
    events.extend([
        ended(charged, ChargeEnd::Answered),
        settled_by(1, "b", Settled::Completed),
    ]);
    events.push(returned(2, 8, End::Acknowledged));
    events
}

#[test]
fn charge_before_time_to_live_is_over_is_found() {
    let deleted = || Event::Expired {
        key: "chaos#o-1".into(),
    };
    clean(&twice(vec![deleted()], false));
    clean(&twice(vec![], true));
    caught(
        &twice(vec![], false),
        "was charged by worker 8 when it was Completed",
    );
    // The lease was still live.
    let mut early = twice(vec![], true);
    early.retain(|event| !matches!(event, Event::Settled { owner, .. } if owner == "a"));
    for event in &mut early {
        match event {
            Event::Claimed {
                lease_until_ms,
                owner,
                ..
            } if owner == "a" => {
                *lease_until_ms = 30_000;
            }
            Event::ChargeEnded { charge, .. } if *charge > 4 => *charge -= 1,
            _ => {}
        }
    }
    caught(&early, "was claimed while another's claim was live");
}

/// The table lost a record before its time.
#[test]
fn lost_record_is_found() {
    let kept = |between: Vec<Event>| {
        let until = 8 + between.len();
        let mut events = twice(between, false);
        events.truncate(until);
        events.retain(|event| !matches!(event, Event::Sent(message) if message.id == "m-2"));
        for event in &mut events {
            if let Event::ChargeEnded { charge, .. } = event {
                *charge -= 1;
            }
        }
        audit(&events, &HashMap::new()).violations
    };
    let key = "chaos#o-1".to_owned();
    assert_eq!(kept(vec![Event::Expired { key }]), [""; 0]);
    assert_eq!(
        kept(vec![]),
        ["m-1 was acknowledged, and its record is None"]
    );
}

/// A message that comes back from the dead-letter queue is a new message, and not lost.
#[test]
fn lost_redriven_message_is_found() {
    let unfunded = || Message::new(1, "o-1".into(), Kind::Unfunded, None);
    let again = unfunded().redriven().unwrap();
    assert!(again.redriven().is_none());
    let mut events = vec![Event::Sent(unfunded()), delivered(1, 7)];
    events.extend([
        claimed(1, "a", 1000),
        charge(1, 7),
        ended(3, ChargeEnd::Answered),
    ]);
    events.extend([
        settled(1, Settled::Failed),
        returned(1, 7, End::ReportedFailed),
    ]);
    events.extend([dead_lettered(1), said(1, 7, "permanent_failure")]);
    clean(&events);
    events.push(Event::Sent(again));
    caught(&events, "m-1-again is lost, or left in the queue");
}
