//! Test of the rules for crashed messages, as in `mod.rs`.

use crate::chaos::{
    DEATHS,
    audit_selftest::{
        caught, charge, claimed, clean, dead_lettered, delivered, died, ended, informed, returned,
        said, sent, settled_by,
    },
    faults::Fault,
    ledger::{ChargeEnd, Death, End, Event, Settled},
    plan::Kind,
};

const OWNERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn alone(worker: u32, owner: &str, lease_until_ms: u64) -> Event {
    Event::Alone {
        key: "chaos#o-1".into(),
        owner: owner.into(),
        worker,
        lease_until_ms,
    }
}

/// The message ends one process beside others, and so many when it runs alone. Then it has crashed.
fn crashed(kind: Kind, deaths: usize) -> Vec<Event> {
    let mut events = vec![sent(1, kind, None)];
    let (mut worker, mut at) = (7, 1000);
    for (n, owner) in OWNERS[..=deaths].iter().enumerate() {
        events.extend([delivered(1, worker), claimed(1, owner, at)]);
        if n > 0 {
            events.push(alone(worker, owner, at + 3000));
            events.push(informed(worker, 1));
        }
        events.push(charge(1, worker));
        let charged = events.len() - 1;
        events.push(died(worker, Death::KilledByMessage));
        events.push(returned(1, worker, End::WorkerDied));
        events.push(ended(charged, ChargeEnd::Unanswered));
        (worker, at) = (worker + 1, at + 10_000);
    }
    let owner = OWNERS[deaths + 1];
    events.extend([
        delivered(1, worker),
        claimed(1, owner, at),
        settled_by(1, owner, Settled::Failed),
        returned(1, worker, End::ReportedFailed),
        said(1, worker, "crashed"),
        dead_lettered(1),
    ]);
    events
}

#[test]
fn crash_without_enough_deaths_alone_is_found() {
    for kind in [Kind::Killer, Kind::Good] {
        clean(&crashed(kind, DEATHS));
        let few = crashed(kind, DEATHS - 1);
        caught(&few, "o-1 has crashed after 3 attempts alone, and 3 of");
    }
}

#[test]
fn crash_after_a_survivor_is_found() {
    for survives in [End::ReportedFailed, End::BatchFailed] {
        let mut events = crashed(Kind::Good, DEATHS);
        let last = |event: &Event| matches!(event, Event::Returned { worker: 11, .. });
        for event in events.iter_mut().filter(|event| last(event)) {
            *event = returned(1, 11, survives);
        }
        caught(&events, "after 4 attempts alone, and 3 of");
    }
    // A recorded end starts the count again.
    let mut events = crashed(Kind::Good, DEATHS);
    let at = |event: &Event| matches!(event, Event::Died { worker: 10, .. });
    let at = events.iter().position(at).unwrap();
    events.insert(at, settled_by(1, "d", Settled::LeaseEnded));
    for event in &mut events {
        if let Event::ChargeEnded { charge, .. } = event
            && *charge > at
        {
            *charge += 1;
        }
    }
    caught(&events, "after 1 attempts alone, and 1 of");
}

/// The last worker survives. It did not get the answer to its renewal, so it ran no handler.
#[test]
fn count_that_no_answer_confirmed_counts_as_a_death() {
    let survived = |events: &[Event]| {
        let mut all = crashed(Kind::Good, DEATHS);
        let of_last = |event: &Event| matches!(event, Event::Alone { worker: 11, .. });
        let at = all.iter().position(of_last).unwrap() + 1;
        // The information, the charge with its end, and the death.
        all.splice(at..at + 5, events.iter().cloned());
        all
    };
    let faulted = Event::Faulted {
        key: "chaos#o-1".into(),
        worker: 11,
        fault: Fault::Outage,
    };
    let failed = returned(1, 11, End::ReportedFailed);
    clean(&survived(&[faulted.clone(), failed.clone()]));
    let few = "after 4 attempts alone, and 3 of";
    caught(&survived(std::slice::from_ref(&failed)), few);
    let charged = [informed(11, 1), charge(1, 11), faulted, failed];
    caught(&survived(&charged), few);
}

#[test]
fn attempt_alone_without_a_claim_is_found() {
    let mut events = crashed(Kind::Killer, DEATHS);
    let at = |event: &Event| matches!(event, Event::Alone { .. });
    let at = events.iter().position(at).unwrap();
    events[at] = alone(8, "z", 14_000);
    caught(&events, "began alone under z when");
}

#[test]
fn claim_during_the_rest_is_found() {
    let mut events = crashed(Kind::Killer, DEATHS);
    for event in &mut events {
        if let Event::Alone { lease_until_ms, .. } = event {
            *lease_until_ms += 60_000;
        }
    }
    caught(&events, "was claimed while another's claim was live");
}

#[test]
fn killer_that_is_acknowledged_or_declined_is_found() {
    let of_killer = |end, outcome: &str| {
        [
            sent(1, Kind::Killer, None),
            delivered(1, 7),
            claimed(1, "a", 1000),
            charge(1, 7),
            ended(3, ChargeEnd::Answered),
            settled_by(1, "a", Settled::Completed),
            returned(1, 7, end),
            said(1, 7, outcome),
        ]
    };
    let events = of_killer(End::Acknowledged, "completed");
    caught(&events, "ends its process, and was acknowledged");
    let mut events = of_killer(End::ReportedFailed, "permanent_failure").to_vec();
    events.push(dead_lettered(1));
    caught(&events, "ends its process, and was given up as");
}
