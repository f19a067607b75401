//! Test of the rules for the end of a message, as in `mod.rs`.

use crate::chaos::{
    DEADLINE_RESERVE, GATEWAY_TIMEOUT, STORE_TIMEOUT,
    audit_selftest::{
        caught, charge, claimed, clean, dead_lettered, delivered, died, lasted, lasted_with_stall,
        returned, said, sent, settled,
    },
    faults::Fault,
    ledger::{Death, End, Event, Settled},
    pace::{FUNCTION_TIMEOUT, Machine, Pace},
    plan::Kind,
};

#[test]
fn dead_lettered_message_needs_a_reason() {
    let ends = |kind, told: &[&str]| {
        let mut events = vec![sent(1, kind, None)];
        events.extend([delivered(1, 7), returned(1, 7, End::ReportedFailed)]);
        events.extend(told.iter().map(|told| said(1, 7, told)));
        events.push(dead_lettered(1));
        events
    };
    clean(&ends(
        Kind::Declined,
        &["permanent_failure", "failed_before"],
    ));
    clean(&ends(Kind::Undecodable, &["invalid"]));
    caught(
        &ends(Kind::Good, &["invalid"]),
        "though nothing is wrong with it",
    );
    let unread = [sent(1, Kind::Good, None), dead_lettered(1)];
    caught(
        &unread,
        "m-1 is in the dead-letter queue for no known reason",
    );
    let mut charged = ends(Kind::Undecodable, &["invalid"]);
    charged.extend([claimed(1, "a", 1000), charge(1, 7)]);
    caught(&charged, "m-1 is no order, and was charged");
}

/// The nth delivery of m-1, to a worker that gets nothing else, with `during` between receive and verdict.
fn received(nth: u32, during: Vec<Event>, end: End) -> Vec<Event> {
    let mut events = vec![delivered(1, nth)];
    events.extend(during);
    events.push(returned(1, nth, end));
    events
}

/// A good message that used up its receives.
fn given_up(receives: Vec<Vec<Event>>) -> Vec<Event> {
    let mut events = vec![sent(1, Kind::Good, None)];
    events.extend(receives.into_iter().flatten());
    events.push(dead_lettered(1));
    events
}

fn conflict(receive: u32, owner: &str) -> Event {
    Event::DeliveryLog {
        delivery: ("m-1".into(), receive),
        request_id: "r-7".into(),
        outcome: "conflict".into(),
        detail: format!("lease held by {owner} until"),
    }
}

#[test]
fn good_message_given_up_needs_a_cause() {
    let killed = || {
        let mut events = received(7, vec![died(7, Death::Killed)], End::WorkerDied);
        events.insert(1, claimed(1, "a", 1000));
        events
    };
    let fault = |worker| Event::Faulted {
        key: "chaos#o-1".into(),
        worker,
        fault: Fault::Throttled,
    };
    let failed = |during| {
        let mut events = received(8, during, End::ReportedFailed);
        events.push(said(1, 8, "store_unavailable"));
        events
    };
    clean(&given_up(vec![killed(), failed(vec![fault(8)])]));
    caught(
        &given_up(vec![killed(), failed(vec![fault(7)])]),
        "m-1, receive 8: store_unavailable () after 0ns, without a cause",
    );
    // Its worker says that the message is done.
    let mut done = received(8, vec![], End::ReportedFailed);
    done.push(said(1, 8, "completed"));
    caught(
        &given_up(vec![killed(), done]),
        "m-1 was given up, and nothing came between at receive 8",
    );
    let unread = received(8, vec![], End::ReportedFailed);
    caught(&given_up(vec![unread]), "its worker says nothing");
}

#[test]
fn copy_without_recorded_failure_is_found() {
    let copied = |recorded: Option<Event>, reason: &str| {
        let copy = Event::Copied {
            message: "m-1".into(),
            reason: reason.into(),
        };
        let mut events = vec![sent(1, Kind::Declined, None), delivered(1, 7)];
        events.push(claimed(1, "a", 1000));
        events.extend(recorded);
        events.extend([copy, returned(1, 7, End::Acknowledged)]);
        events.push(said(1, 7, "permanent_failure"));
        events
    };
    let failed = || Some(settled(1, Settled::Failed));
    clean(&copied(failed(), "permanent_failure"));
    caught(
        &copied(None, "permanent_failure"),
        "m-1 was copied to the dead-letter queue for permanent_failure, and its failure was not recorded",
    );
    // The record expires after the worker has read it, and then before.
    let expired = || Event::Expired {
        key: "chaos#o-1".into(),
    };
    let mut events = copied(failed(), "permanent_failure");
    events.insert(4, expired());
    clean(&events);
    events.insert(5, returned(1, 7, End::WorkerDied));
    events.insert(6, delivered(1, 7));
    caught(&events, "and its failure was not recorded");
    // Acknowledged without a copy.
    let mut events = copied(failed(), "permanent_failure");
    events.retain(|event| !matches!(event, Event::Copied { .. }));
    caught(
        &events,
        "was acknowledged when its operation was not completed",
    );
}

/// On a slow machine a worker gives up without an injected fault, and no earlier than its time limit.
#[test]
fn failure_without_fault_before_its_time_limit_is_found() {
    let gives_up = |outcome| {
        let mut events = received(8, vec![], End::ReportedFailed);
        events.push(said(1, 8, outcome));
        given_up(vec![events])
    };
    for (outcome, limit) in [
        ("retryable_failure", GATEWAY_TIMEOUT),
        ("store_unavailable", STORE_TIMEOUT),
        (
            "not_started",
            FUNCTION_TIMEOUT - DEADLINE_RESERVE - GATEWAY_TIMEOUT,
        ),
        ("out_of_time", FUNCTION_TIMEOUT - DEADLINE_RESERVE),
    ] {
        let limit = limit.as_millis() as u64;
        clean(&lasted(gives_up(outcome), limit));
        caught(&lasted(gives_up(outcome), limit / 2), "without a cause");
        // The machine had time, so that the worker waited for nothing.
        let fast = lasted_with_stall(gives_up(outcome), limit, limit / 10);
        caught(&fast, "without a cause");
    }
    caught(&lasted(gives_up("unheard of"), 10_000), "without a cause");
    let timed_out = || {
        let died = vec![died(7, Death::TimedOut)];
        given_up(vec![received(7, died, End::WorkerDied)])
    };
    clean(&lasted(timed_out(), 2000));
    let fast = lasted_with_stall(timed_out(), 2000, 200);
    caught(&fast, "its worker: Some(TimedOut)");
    // Of two concurrent invocations, one lasts until the timeout and ends both.
    let mut both = timed_out();
    let beside = both.len() - 1;
    both.splice(beside..beside, [sent(2, Kind::Good, None), delivered(2, 7)]);
    both.push(dead_lettered(2));
    let mut both = lasted(both, 1000);
    both.extend(lasted(vec![returned(2, 7, End::WorkerDied)], 2000));
    clean(&both);
    caught(&lasted(timed_out(), 1000), "its worker: Some(TimedOut)");
}

/// On a slow machine the limits of a worker are longer. A worker that misses the longest one hangs.
#[test]
fn failure_before_limit_of_its_pace_is_found() {
    let slower = || {
        let machine = Machine::default();
        machine.is_slower_than(machine.pace());
        machine.pace()
    };
    let at = |pace, mut events: Vec<Event>| {
        events.insert(0, Event::Started { worker: 7, pace });
        events
    };
    let mut late = received(7, vec![], End::ReportedFailed);
    late.push(said(1, 7, "out_of_time"));
    let late = lasted(given_up(vec![late]), 1200);
    clean(&late);
    caught(&at(slower(), late), "without a cause");
    let died = vec![died(7, Death::TimedOut)];
    let died = given_up(vec![received(7, died, End::WorkerDied)]);
    let found = "its worker: Some(TimedOut)";
    caught(&at(slower(), lasted(died.clone(), 2000)), found);
    clean(&at(slower(), lasted(died.clone(), 4000)));
    let found = "worker 7 did not answer within 32s, and nothing had stopped it";
    caught(&at(Pace::SLOWEST, lasted(died, 32_000)), found);
}

#[test]
fn conflict_without_other_claim_is_found() {
    let with = |before: Vec<Event>, during: Vec<Event>, owner| {
        let mut events = given_up(vec![before, received(8, during, End::ReportedFailed)]);
        events.push(conflict(8, owner));
        events
    };
    let claim = |owner| vec![claimed(1, owner, 1000)];
    let killed = |mut events: Vec<Event>| {
        events.push(died(7, Death::Killed));
        events
    };
    clean(&with(killed(claim("a")), vec![], "a"));
    clean(&with(vec![], killed(claim("a")), "a"));
    caught(
        &with(claim("a"), vec![], "a"),
        "conflict with a claim that nothing should have left: its worker: None",
    );
    let over = vec![claimed(1, "a", 1000), settled(1, Settled::LeaseEnded)];
    for wrong in [
        with(vec![], vec![], "a"),
        with(claim("a"), vec![], "c"),
        with(over, vec![], "a"),
        // A conflict with its own claim, whose response was lost.
        with(vec![], claim("b"), "b"),
    ] {
        caught(&wrong, "no other attempt held a claim");
    }
}

/// A process with concurrent invocations may get a message twice, or two messages of one key.
#[test]
fn conflict_with_other_invocation_is_legal() {
    let at_work = |other: Option<Event>| {
        let mut events = given_up(vec![received(8, vec![], End::ReportedFailed)]);
        let delivered = events
            .iter()
            .position(|event| matches!(event, Event::Delivered { .. }))
            .unwrap();
        events.splice(
            delivered + 1..delivered + 1,
            other.into_iter().chain([claimed(1, "b", 1000)]),
        );
        events.push(conflict(8, "b"));
        events
    };
    let second = |invocation| Event::Delivered {
        delivery: ("m-1".into(), 9),
        worker: 8,
        invocation,
        at_ms: 0,
    };
    clean(&at_work(Some(second(2))));
    for alone in [None, Some(second(1))] {
        caught(&at_work(alone), "no other attempt held a claim");
    }
}

#[test]
fn blocked_group_without_failure_is_found() {
    let group = |group: Option<&str>, ahead| {
        let mut events = vec![sent(1, Kind::Good, group), sent(2, Kind::Good, group)];
        events.extend([1, 2].map(|n| delivered(n, 7)));
        events.push(Event::Faulted {
            key: "chaos#o-1".into(),
            worker: 7,
            fault: Fault::Throttled,
        });
        events.extend([1, 2].map(|n| returned(n, 7, End::ReportedFailed)));
        events.push(said(1, 7, ahead));
        let mut behind = said(2, 7, "not_started");
        if let Event::DeliveryLog { detail, .. } = &mut behind {
            "a message before this one in its FIFO group, or under its key, failed; the handler did not run"
                .clone_into(detail);
        }
        events.push(behind);
        events.extend([1, 2].map(dead_lettered));
        events
    };
    clean(&group(Some("g"), "store_unavailable"));
    for permanent in [
        "permanent_failure",
        "failed_before",
        "invalid",
        "key_reused",
    ] {
        let wanted = format!("behind {permanent}, which stops no group");
        caught(&group(Some("g"), permanent), &wanted);
    }
    // The failure itself was not recorded, so the group waits for it.
    clean(&group(Some("g"), "failure_unrecorded"));
    caught(&group(Some("g"), "completed"), "nothing ahead failed");
    caught(
        &group(None, "store_unavailable"),
        "nothing of its key failed",
    );
}
