//! Stories that many worlds were needed to find, told to the oracle: what it takes for a cause, and what it doesn't.

use std::{collections::BTreeMap, time::Duration};

use simulation::{
    ledger::Event,
    oracle::judge,
    outage::plans,
    plan::{Kind, Mode, Outage, Plan, Service},
};

type Story = Vec<(Duration, Event)>;

const HOUR: Duration = Duration::from_secs(3600);
const ORDER: &str = "order of a group";
const NO_CAUSE: &str = "P7 no dead letter without a cause";

/// Returns a world in which nothing goes wrong, with messages of one group.
fn world(orders: &[(&str, Kind)]) -> Plan {
    let Some(mut plan) = plans(&[], 10).next() else {
        unreachable!("there is a plan for each timeout");
    };
    plan.fifo = true;
    plan.messages.truncate(orders.len());
    for (message, (order, kind)) in plan.messages.iter_mut().zip(orders) {
        message.order = (*order).to_owned();
        message.group = Some("g".to_owned());
        message.kind = *kind;
    }
    plan
}

fn violates(check: &str, plan: &Plan, story: &Story) -> bool {
    let violations = judge(plan, story).violations;
    violations.iter().any(|violation| violation.check == check)
}

/// Puts a minute between the events.
fn story(events: impl IntoIterator<Item = Event>) -> Story {
    let minutes = (1..).map(|n| n * Duration::from_secs(60));
    minutes.zip(events).collect()
}

fn claimed(message: &str, order: &str, worker: usize, was: &'static str, alone: u64) -> Event {
    Event::Claimed {
        key: format!("orders#{order}"),
        message: message.to_owned(),
        worker,
        was,
        lease_left_ms: None,
        attempts_alone: alone,
        made_ms: 0,
    }
}

fn started(message: &str, order: &str, worker: usize, run: usize) -> Event {
    Event::HandlerStarted {
        run,
        message: message.to_owned(),
        key: format!("orders#{order}"),
        order: order.to_owned(),
        worker,
        told: None,
        call_key: String::new(),
        kind: Kind::Good,
    }
}

/// The failure of a message is recorded, over this status.
fn failed(message: &str, order: &str, was: &'static str, error: &str) -> [Event; 2] {
    let key = format!("orders#{order}");
    [
        Event::Failed {
            key: key.clone(),
            message: message.to_owned(),
            error: error.to_owned(),
        },
        Event::Settled {
            key,
            worker: 0,
            was,
            is: "FAILED",
            output: None,
        },
    ]
}

fn copied(message: &str, reason: &str, error: &str) -> Event {
    Event::Copied {
        attributes: BTreeMap::new(),
        message: message.to_owned(),
        reason: reason.to_owned(),
        error: error.to_owned(),
    }
}

#[test]
fn failure_over_a_failure_lets_its_group_go_on() {
    let declined = ("o-0", Kind::Declined);
    let mut plan = world(&[declined, declined, ("o-1", Kind::Good)]);
    plan.mode = Mode::Inbox;
    let first = [claimed("m-0", "o-0", 0, "nothing", 0)]
        .into_iter()
        .chain(failed("m-0", "o-0", "nothing", "declined"));
    let second = [claimed("m-1", "o-0", 0, "FAILED", 0)]
        .into_iter()
        .chain(failed("m-1", "o-0", "FAILED", "declined"));
    let mut events: Vec<_> = first.chain(second).collect();
    events.push(started("m-2", "o-1", 0, 1));
    // The second one was sent after the first had failed, which is no answer to it.
    plan.messages[1].sent = Duration::from_secs(210);
    plan.messages[2].sent = Duration::from_secs(211);
    assert!(!violates(ORDER, &plan, &story(events.clone())));
    events.retain(|event| !matches!(event, Event::Failed { message, .. } if message == "m-1"));
    assert!(violates(ORDER, &plan, &story(events)));
}

#[test]
fn outcome_alone_lets_no_group_go_on() {
    let plan = world(&[("o-0", Kind::Undecodable), ("o-1", Kind::Good)]);
    for outcome in ["invalid", "crashed", "key_reused", "failed_before"] {
        let told = Event::Outcome {
            message: "m-0".to_owned(),
            count: 1,
            outcome,
            worker: 0,
        };
        let events = [told, started("m-1", "o-1", 0, 1)];
        assert!(violates(ORDER, &plan, &story(events)), "{outcome}");
    }
}

#[test]
fn message_is_given_up_after_four_deaths_alone() {
    let plan = world(&[("o-0", Kind::Kills(3))]);
    let error = "the process ended 4 times while the handler of this message ran alone";
    let after = |deaths: usize| {
        let mut events = vec![claimed("m-0", "o-0", 0, "nothing", 0)];
        events.push(Event::Killed { worker: 0 });
        for worker in 1..=deaths {
            events.push(claimed("m-0", "o-0", worker, "IN_PROGRESS", worker as u64));
            // The world's kills may come between the claim and the start of the handler.
            if worker > 2 {
                events.push(started("m-0", "o-0", worker, worker));
            }
            events.push(Event::Killed { worker });
        }
        events.push(claimed("m-0", "o-0", 9, "IN_PROGRESS", deaths as u64));
        events.extend(failed("m-0", "o-0", "IN_PROGRESS", error));
        events.push(copied("m-0", "crashed", error));
        story(events)
    };
    assert!(violates(NO_CAUSE, &plan, &after(3)));
    assert!(!violates(NO_CAUSE, &plan, &after(4)));
}

#[test]
fn attempt_is_too_old_after_the_lifetime_of_its_call_key() {
    let mut plan = world(&[("o-0", Kind::Good)]);
    for release in &mut plan.releases {
        release.call_key_lifetime = Some(simulation::plan::CALL_KEY_LIFETIME);
    }
    let error = "too old to repeat: look by hand";
    let after = |age: Duration| {
        let mut events = vec![
            (HOUR, claimed("m-0", "o-0", 0, "nothing", 0)),
            (HOUR, started("m-0", "o-0", 0, 1)),
        ];
        let end = HOUR + age;
        events.push((end, claimed("m-0", "o-0", 1, "IN_PROGRESS", 0)));
        let failed = failed("m-0", "o-0", "IN_PROGRESS", error);
        events.extend(failed.into_iter().map(|event| (end, event)));
        events.push((end, copied("m-0", "permanent_failure", error)));
        events
    };
    assert!(violates(NO_CAUSE, &plan, &after(19 * HOUR)));
    assert!(!violates(NO_CAUSE, &plan, &after(20 * HOUR)));
}

#[test]
fn outage_excuses_a_dead_letter_if_it_stops_the_message() {
    use Service::*;
    let dies = |of: Service, from: u32| {
        let mut plan = world(&[("o-0", Kind::Good)]);
        let during = Duration::ZERO..13 * HOUR;
        plan.outages = vec![Outage { of, during }];
        plan.messages[0].sent = from * HOUR;
        let message = "m-0".to_owned();
        let events = vec![(14 * HOUR, Event::ReceivesUsedUp { message })];
        violates(NO_CAUSE, &plan, &events)
    };
    for of in [Table, Gateway, Credentials, Workers, Lambda] {
        assert!(!dies(of, 0), "{of:?}");
        // Of its life, less than half a day.
        assert!(dies(of, 2), "{of:?}");
    }
    // Nothing of this world is in S3.
    for of in [Sqs, S3, DeadLetters, Target] {
        assert!(dies(of, 0), "{of:?}");
    }
}

/// The group waits with the message that is refused.
#[test]
fn refusals_for_half_a_day_excuse_a_dead_letter_behind_them() {
    let plan = world(&[("o-0", Kind::Refused(5)), ("o-1", Kind::Good)]);
    let receive = |message: &str, batch| Event::Received {
        message: message.to_owned(),
        count: 1,
        batch,
    };
    // Receives an hour apart, and what happens in each.
    let dies = |receives: usize, happens: fn(usize) -> Vec<Event>, dead: &str| {
        let mut events = Vec::new();
        for batch in 1..=receives {
            let at = u32::try_from(batch).unwrap() * HOUR;
            let invoked = Event::Invoked { batch, worker: 0 };
            let received = [receive("m-0", batch), receive("m-1", batch), invoked];
            let answered = Event::Answered {
                batch,
                worker: 0,
                took: Duration::ZERO,
                failed: vec!["m-0".to_owned(), "m-1".to_owned()],
            };
            let run = started("m-0", "o-0", 0, batch);
            let events_of_batch = received.into_iter().chain([run]).chain(happens(batch));
            events.extend(events_of_batch.chain([answered]).map(|event| (at, event)));
        }
        let message = dead.to_owned();
        events.push((40 * HOUR, Event::ReceivesUsedUp { message }));
        violates(NO_CAUSE, &plan, &events)
    };
    let refused = |run| {
        let how = "retryable";
        vec![
            Event::GatewayRefused { run },
            Event::HandlerEnded { run, how },
        ]
    };
    assert!(!dies(13, refused, "m-1"));
    assert!(dies(12, refused, "m-1"));
    let fails = |run| {
        let how = "retryable";
        vec![Event::HandlerEnded { run, how }]
    };
    assert!(dies(13, fails, "m-1"), "not by the gateway");
    let succeeds = |run| {
        let how = "ok";
        vec![
            Event::GatewayRefused { run },
            Event::HandlerEnded { run, how },
        ]
    };
    assert!(dies(13, succeeds, "m-1"), "the run did not fail");
    let crashes = |run| {
        let how = "dropped";
        let killed = Event::Killed { worker: 0 };
        vec![
            Event::GatewayRefused { run },
            killed,
            Event::HandlerEnded { run, how },
        ]
    };
    assert!(dies(13, crashes, "m-1"), "a crash is no refusal");
    let sometimes = |run| match run % 2 {
        0 => Vec::new(),
        _ => vec![
            Event::GatewayRefused { run },
            Event::HandlerEnded {
                run,
                how: "retryable",
            },
        ],
    };
    assert!(dies(30, sometimes, "m-1"), "no two receives in a row");
}

#[test]
fn duplicate_is_of_the_record_that_answered_it() {
    let mut plan = world(&[
        ("o-0", Kind::Good),
        ("o-0", Kind::Good),
        ("o-0", Kind::Good),
    ]);
    plan.fifo = false;
    plan.messages[2].in_other_queue = true;
    let completes = |message: &str| {
        let settled = Event::Settled {
            key: "orders#o-0".to_owned(),
            worker: 1,
            was: "IN_PROGRESS",
            is: "COMPLETED",
            output: None,
        };
        [claimed(message, "o-0", 1, "nothing", 0), settled]
    };
    let deleted = || Event::Deleted {
        key: "orders#o-0".to_owned(),
    };
    let invoked = || {
        let message = "m-1".to_owned();
        let received = Event::Received {
            message,
            count: 1,
            batch: 0,
        };
        [
            received,
            Event::Invoked {
                batch: 0,
                worker: 0,
            },
        ]
    };
    let told = || {
        let outcome = Event::Outcome {
            message: "m-1".to_owned(),
            count: 1,
            outcome: "duplicate",
            worker: 0,
        };
        let counts = BTreeMap::from([("Duplicates", 1), ("BatchSize", 1)]);
        [outcome, Event::Metrics { batch: 0, counts }]
    };
    let check = "metrics: duplicates of another queue";
    let during = (invoked().into_iter())
        .chain(completes("m-0"))
        .chain([deleted()])
        .chain(completes("m-2"))
        .chain(told());
    assert!(!violates(check, &plan, &story(during)));
    let before = (completes("m-0").into_iter())
        .chain([deleted()])
        .chain(invoked())
        .chain(completes("m-2"))
        .chain(told());
    assert!(violates(check, &plan, &story(before)));
}

#[test]
fn run_of_a_deleted_claim_opens_no_attempt_of_another() {
    let mut plan = world(&[("o-0", Kind::Good), ("o-0", Kind::Good)]);
    plan.fifo = false;
    let repeats_after_a_run_of = |message: &str| {
        let key = "orders#o-0".to_owned();
        let undone = Event::Settled {
            key: key.clone(),
            worker: 0,
            was: "IN_PROGRESS",
            is: "IN_PROGRESS",
            output: None,
        };
        story([
            claimed("m-0", "o-0", 0, "nothing", 0),
            Event::Deleted { key },
            claimed("m-1", "o-0", 0, "nothing", 0),
            started(message, "o-0", 0, 1),
            undone,
            claimed("m-1", "o-0", 1, "IN_PROGRESS", 0),
            started("m-1", "o-0", 1, 2),
        ])
    };
    let check = "P3 told of the earliest open attempt";
    assert!(!violates(check, &plan, &repeats_after_a_run_of("m-0")));
    assert!(violates(check, &plan, &repeats_after_a_run_of("m-1")));
}
