//! Test of the rule for informed workers, as in `mod.rs`.

use crate::chaos::{
    audit_selftest::{
        caught, charge, claimed, clean, delivered, ended, informed, returned, sent, settled,
        settled_by,
    },
    ledger::{ChargeEnd, End, Event, Settled},
    plan::Kind,
};

/// A first attempt that is settled as `first`, and a second one by worker 8 that is `informed`.
fn attempts(first: Settled, informed: Option<Event>) -> Vec<Event> {
    let mut events = vec![
        sent(1, Kind::Good, None),
        delivered(1, 7),
        claimed(1, "a", 1000),
        charge(1, 7),
        ended(3, ChargeEnd::Busy),
        settled(1, first),
        returned(1, 7, End::ReportedFailed),
        delivered(1, 8),
        claimed(1, "b", 5000),
        charge(1, 8),
        ended(9, ChargeEnd::Answered),
        settled_by(1, "b", Settled::Completed),
        returned(1, 8, End::Acknowledged),
    ];
    events.extend(informed);
    events
}

#[test]
fn uninformed_charge_over_open_attempt_is_found() {
    let open = |informed| attempts(Settled::LeaseEnded, informed);
    clean(&open(Some(informed(8, 1))));
    let wanted = "not informed of an attempt open since 1970-01-01T00:00:01Z";
    caught(&open(None), wanted);
    // Information about a later attempt of another worker.
    caught(&open(Some(informed(8, 5))), wanted);
    caught(&open(Some(informed(7, 1))), wanted);
}

#[test]
fn history_without_open_attempt_is_found() {
    clean(&attempts(Settled::Restored, None));
    let wanted = "open since 1970-01-01T00:00:01Z, and no attempt was open";
    caught(&attempts(Settled::Restored, Some(informed(8, 1))), wanted);
}

/// The third attempt is informed of the first, which is open longest, and not of the second.
#[test]
fn history_with_time_of_second_attempt_is_found() {
    let third = |since| {
        let mut events = attempts(Settled::LeaseEnded, None);
        // The second fails as the first did.
        events.truncate(10);
        events.extend([
            ended(9, ChargeEnd::Busy),
            settled_by(1, "b", Settled::LeaseEnded),
            returned(1, 8, End::ReportedFailed),
            informed(8, 1),
        ]);
        let charged = events.len() + 2;
        events.extend([
            delivered(1, 9),
            claimed(1, "c", 9000),
            charge(1, 9),
            ended(charged, ChargeEnd::Answered),
            settled_by(1, "c", Settled::Completed),
            returned(1, 9, End::Acknowledged),
            informed(9, since),
        ]);
        events
    };
    clean(&third(1));
    let wanted = "not informed of an attempt open since 1970-01-01T00:00:01Z";
    for since in [5, 9] {
        caught(&third(since), wanted);
    }
}
