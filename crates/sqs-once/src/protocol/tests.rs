//! Tests every row of the protocol's tables.

use std::time::Duration;

use super::{
    isolation::{Standing, standing},
    *,
};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn ago(span: Duration) -> Timestamp {
    let millis = u64::try_from(span.as_millis()).unwrap();
    Timestamp::from_millis(NOW.as_millis() - millis)
}

fn owner(name: &str) -> Owner {
    Owner::from_stored(name.to_owned())
}

fn operation(name: &str) -> Key {
    Key::new(&Namespace::new("payments").unwrap(), [name]).unwrap()
}

fn print(payload: &str) -> Option<Fingerprint> {
    Some(Fingerprint::of(payload.as_bytes()).with_scheme("body".to_owned()))
}

fn claim() -> Claim {
    Claim {
        owner: owner("mine"),
        fingerprint: print("1"),
        message_id: "m-2".into(),
        sent_at: Some(ago(10 * SECOND)),
        source: Some("orders".into()),
        now: NOW,
        lease_until: NOW + 30 * SECOND,
        expires_at: NOW.as_secs() + 3600,
        quarantine: None,
    }
}

/// The record of an attempt that died long ago.
fn died() -> Record {
    let first = Claim {
        owner: owner("theirs"),
        message_id: "m-1".into(),
        now: ago(MINUTE),
        lease_until: ago(SECOND),
        ..claim()
    };
    Record::claimed(&first, 1, None, None)
}

fn with(change: impl FnOnce(&mut Record)) -> Record {
    let mut record = died();
    change(&mut record);
    record
}

fn failure(at: Timestamp, payload: &str) -> RecordedFailure {
    RecordedFailure {
        at,
        error: "declined".into(),
        fingerprint: print(payload),
        message_id: "m-1".into(),
    }
}

fn failed(at: Timestamp) -> Record {
    with(|record| {
        record.state = State::Failed;
        record.failures = vec![failure(at, "1")];
    })
}

fn completed() -> Record {
    with(|record| {
        record.state = State::Completed {
            result: StoredResult::Json("1".into()),
        }
    })
}

fn in_progress(lease_until: Timestamp) -> Record {
    with(|record| record.state = State::InProgress { lease_until })
}

fn rejected(found: &Record, claim: &Claim) -> Rejection {
    match decide(Some(found), claim) {
        Decision::Rejected(rejection) => rejection,
        decision => panic!("{decision:?}"),
    }
}

#[test]
fn record_of_this_message_answers_without_its_body() {
    let own = Claim {
        message_id: "m-1".into(),
        fingerprint: None,
        ..claim()
    };
    let result = StoredResult::Json("1".into());
    let duplicate = Rejection::Duplicate {
        result,
        other_source: None,
        attempts: completed().attempts,
        generation: completed().generation,
        age: MINUTE,
    };
    let conflict = |until| Rejection::Conflict {
        owner: owner("theirs"),
        until,
    };
    let declined = Rejection::FailedBefore("declined".into());
    let live = in_progress(NOW);
    for (found, of_own, of_other) in [
        (Some(completed()), Some(duplicate), None),
        (Some(failed(NOW)), Some(declined.clone()), None),
        // The clocks of SQS and the worker don't matter.
        (Some(failed(ago(MINUTE))), Some(declined), None),
        (Some(live.clone()), Some(conflict(NOW)), Some(conflict(NOW))),
        (Some(in_progress(ago(SECOND))), None, None),
        (None, None, None),
    ] {
        let found = found.as_ref();
        assert_eq!(decide_without_body(found, &own), of_own, "{found:?}");
        assert_eq!(decide_without_body(found, &claim()), of_other, "{found:?}");
        let expired = found.map(|record| Record {
            expires_at: NOW.as_secs() - 1,
            ..record.clone()
        });
        assert_eq!(decide_without_body(expired.as_ref(), &own), None);
    }
    let looked_up = Claim {
        quarantine: Some(MINUTE),
        ..own
    };
    let until = conflict(ago(SECOND) + MINUTE);
    let waits = decide_without_body(Some(&in_progress(ago(SECOND))), &looked_up);
    assert_eq!(waits, Some(until));
}

#[test]
fn nothing_and_expired_records_are_replaced() {
    assert_eq!(decide(None, &claim()), Decision::First);
    for state in [completed(), failed(NOW), in_progress(NOW + MINUTE)] {
        let at = |expires_at| Record {
            expires_at,
            ..state.clone()
        };
        assert_eq!(
            decide(Some(&at(NOW.as_secs() - 1)), &claim()),
            Decision::First
        );
        assert_ne!(decide(Some(&at(NOW.as_secs())), &claim()), Decision::First);
    }
}

#[test]
fn record_of_the_claim_is_mine() {
    for mut record in [in_progress(NOW + MINUTE), failed(NOW), completed()] {
        record.stamp.owner = owner("mine");
        assert_eq!(decide(Some(&record), &claim()), Decision::Mine);
    }
}

#[test]
fn completed_operation_is_a_duplicate_of_the_same_payload() {
    let result = StoredResult::Json("1".into());
    let duplicate = |other_source: Option<&str>| Rejection::Duplicate {
        result: result.clone(),
        other_source: other_source.map(str::to_owned),
        attempts: completed().attempts,
        generation: completed().generation,
        age: MINUTE,
    };
    assert_eq!(rejected(&completed(), &claim()), duplicate(None));
    let other = Claim {
        fingerprint: print("2"),
        ..claim()
    };
    assert_eq!(rejected(&completed(), &other), Rejection::KeyReused);
    // One side has no fingerprint, or the setting changed.
    let unknown = Claim {
        fingerprint: None,
        ..claim()
    };
    assert_eq!(rejected(&completed(), &unknown), duplicate(None));
    let mut without = completed();
    without.fingerprint = None;
    assert_eq!(rejected(&without, &other), duplicate(None));
    let amount = Fingerprint::of(b"2").with_scheme("amount".to_owned());
    let changed = Claim {
        fingerprint: Some(amount),
        ..claim()
    };
    assert_eq!(rejected(&completed(), &changed), duplicate(None));
    // The completion wins over an earlier failure.
    let mut after_failure = completed();
    after_failure.failures = failed(NOW).failures;
    assert_eq!(rejected(&after_failure, &claim()), duplicate(None));
    // Another consumer uses the same namespace.
    let shipping = Claim {
        source: Some("shipping".into()),
        ..claim()
    };
    assert_eq!(rejected(&completed(), &shipping), duplicate(Some("orders")));
    let nowhere = Claim {
        source: None,
        ..claim()
    };
    assert_eq!(rejected(&completed(), &nowhere), duplicate(None));
}

#[test]
fn message_sent_at_or_before_a_failure_has_failed() {
    let sent = claim().sent_at.unwrap();
    let before = Rejection::FailedBefore("declined".into());
    for at in [sent, sent + SECOND] {
        assert_eq!(rejected(&failed(at), &claim()), before);
        // It still answers while a later message holds the claim, and after that claim has ended.
        for lease_until in [ago(SECOND), NOW + MINUTE] {
            let mut claimed = failed(at);
            claimed.state = State::InProgress { lease_until };
            assert_eq!(rejected(&claimed, &claim()), before);
        }
    }
    let earlier = failed(Timestamp::from_millis(sent.as_millis() - 1));
    assert_eq!(decide(Some(&earlier), &claim()), Decision::Over);
    // A corrected payload may have waited behind the one that failed.
    let corrected = Claim {
        fingerprint: print("2"),
        ..claim()
    };
    assert_eq!(decide(Some(&earlier), &corrected), Decision::Over);
    assert_eq!(decide(Some(&failed(NOW)), &corrected), Decision::Over);
    // Each payload has a failure of its own. A payload that can't be compared matches all of them.
    let mut both = failed(sent);
    both.failures.insert(
        0,
        RecordedFailure {
            error: "expired".into(),
            ..failure(NOW, "2")
        },
    );
    assert_eq!(rejected(&both, &claim()), before);
    let expired = Rejection::FailedBefore("expired".into());
    assert_eq!(rejected(&both, &corrected), expired);
    let no_fingerprint = Claim {
        fingerprint: None,
        ..claim()
    };
    assert_eq!(rejected(&both, &no_fingerprint), expired);
    // If nobody knows when the message was sent, its id decides, but not for the payloads that one failure stands for.
    let unknown = Claim {
        sent_at: None,
        ..claim()
    };
    assert_eq!(decide(Some(&failed(NOW)), &unknown), Decision::Over);
    let same = Claim {
        message_id: "m-1".into(),
        ..unknown
    };
    assert_eq!(rejected(&failed(NOW), &same), before);
    let mut of_many = failed(NOW);
    of_many.failures[0].fingerprint = None;
    assert_eq!(decide(Some(&of_many), &same), Decision::Over);
    assert_eq!(rejected(&of_many, &claim()), before);
}

#[test]
fn failure_with_open_attempt_waits_for_the_quarantine() {
    let looks_up = Claim {
        quarantine: Some(MINUTE),
        sent_at: Some(NOW),
        ..claim()
    };
    let conflict = |until| Rejection::Conflict {
        owner: owner("theirs"),
        until,
    };
    for (at, waits) in [
        (ago(SECOND), true),
        (ago(MINUTE), true),
        (ago(MINUTE + SECOND), false),
    ] {
        let open = failed(at);
        if waits {
            assert_eq!(rejected(&open, &looks_up), conflict(at + MINUTE));
        } else {
            assert_eq!(decide(Some(&open), &looks_up), Decision::Over);
        }
        let mut closed = open.clone();
        closed.first_claimed_at = None;
        assert_eq!(decide(Some(&closed), &looks_up), Decision::Over);
        let without = Claim {
            quarantine: None,
            ..looks_up.clone()
        };
        assert_eq!(decide(Some(&open), &without), Decision::Over);
    }
}

#[test]
fn claim_in_progress_waits_for_the_lease() {
    let conflict = |until| Rejection::Conflict {
        owner: owner("theirs"),
        until,
    };
    let other = Claim {
        fingerprint: print("2"),
        ..claim()
    };
    for until in [NOW, NOW + SECOND] {
        assert_eq!(rejected(&in_progress(until), &claim()), conflict(until));
        assert_eq!(rejected(&in_progress(until), &other), conflict(until));
    }
    let ended = in_progress(Timestamp::from_millis(NOW.as_millis() - 1));
    assert_eq!(decide(Some(&ended), &claim()), Decision::Over);
    let open_since = Some(ago(MINUTE));
    assert_eq!(
        rejected(&ended, &other),
        Rejection::PayloadConflict { open_since }
    );
    let looks_up = Claim {
        quarantine: Some(MINUTE),
        ..claim()
    };
    assert_eq!(
        rejected(&in_progress(ago(MINUTE)), &looks_up),
        conflict(NOW)
    );
    let waited = in_progress(ago(MINUTE + SECOND));
    assert_eq!(decide(Some(&waited), &looks_up), Decision::Over);
}

fn with_history() -> Record {
    with(|record| {
        record.attempts = 3;
        record.exclusive_attempts = 1;
        record.failures = vec![failure(ago(MINUTE), "1")];
        record.generation = 2;
        record.last_end = Some(AttemptEnd::Panic);
        record.first_claimed_at = Some(ago(2 * MINUTE));
    })
}

#[test]
fn claim_keeps_the_history() {
    let before = with_history();
    let mine = Record::claimed(&claim(), 7, Some(&before), None);
    let expected = Record {
        stamp: Stamp {
            owner: owner("mine"),
            version: 7,
        },
        state: State::InProgress {
            lease_until: NOW + 30 * SECOND,
        },
        expires_at: NOW.as_secs() + 3600,
        message_id: "m-2".into(),
        attempts: 4,
        last_end: None,
        updated_at: NOW,
        ..before.clone()
    };
    assert_eq!(mine, expected);
    let closed = Record {
        first_claimed_at: None,
        ..before
    };
    let mine = Record::claimed(&claim(), 7, Some(&closed), None);
    assert_eq!(mine.first_claimed_at, Some(NOW));
    let first = Record::claimed(&claim(), 1, None, None);
    assert_eq!((first.attempts, first.first_claimed_at), (1, Some(NOW)));
    assert_eq!((first.generation, first.exclusive_attempts), (0, 0));
    assert!(first.failures.is_empty() && !first.open_other);
}

#[test]
fn claim_keeps_the_earliest_open_attempt() {
    let rival = |first| with(|record| record.first_claimed_at = Some(first));
    for first in [ago(MINUTE), NOW, NOW + SECOND] {
        let mine = Record::claimed(&claim(), 2, Some(&rival(first)), None);
        assert_eq!(mine.first_claimed_at, Some(first.min(NOW)));
        let undone = mine.ended(Some(&rival(first)), &End::Undone { began: false }, 3, NOW);
        assert_eq!(undone.first_claimed_at, Some(first));
    }
}

#[test]
fn claim_over_an_open_attempt_of_another_payload_says_so() {
    let other = Claim {
        fingerprint: print("2"),
        ..claim()
    };
    let over = |replaced: &Record, claim: &Claim| Record::claimed(claim, 7, Some(replaced), None);
    let open = failed(ago(SECOND));
    assert!(!over(&open, &claim()).open_other);
    let second = over(&open, &other);
    assert!(second.open_other);
    // It stays set until no attempt is open.
    let fail = |effect| End::Failed {
        error: "expired".into(),
        effect,
        sent_at: None,
        expires_at: NOW.as_secs() + 99,
    };
    for (end, stays) in [
        (fail(Effect::Possible), true),
        (fail(Effect::None), true),
        (fail(Effect::Declined), false),
        (fail(Effect::NotCalled), true),
        (End::Open(AttemptEnd::Retryable), true),
        (End::Undone { began: true }, false),
    ] {
        let ended = second.ended(Some(&open), &end, 8, NOW);
        assert_eq!(ended.open_other, stays, "{end:?}");
    }
    let failed_too = second.ended(Some(&open), &fail(Effect::Possible), 8, NOW);
    assert!(over(&failed_too, &other).open_other);
    // Nothing was open.
    let closed = Record {
        first_claimed_at: None,
        ..open
    };
    let only = over(&closed, &other);
    assert!(!only.open_other);
    assert!(
        !only
            .ended(Some(&closed), &fail(Effect::None), 8, NOW)
            .open_other
    );
    assert!(over(&only, &claim()).open_other);
}

#[test]
fn declined_record_has_no_open_attempt() {
    let mut died = with_history();
    died.open_other = true;
    let declined = died.declined(NOW).unwrap();
    let expected = Record {
        stamp: Stamp {
            owner: declined.stamp.owner.clone(),
            version: 2,
        },
        fingerprint: None,
        first_claimed_at: None,
        open_other: false,
        last_end: Some(AttemptEnd::NoEffect),
        exclusive_attempts: 0,
        generation: 3,
        updated_at: NOW,
        ..died.clone()
    };
    assert_eq!(declined, expected);
    assert_ne!(declined.stamp.owner, died.stamp.owner);
    let corrected = Claim {
        fingerprint: print("2"),
        ..claim()
    };
    assert_eq!(decide(Some(&declined), &corrected), Decision::Over);
    assert!(failed(NOW).declined(NOW).is_some());
    assert_eq!(in_progress(NOW).declined(NOW), None);
    assert_eq!(completed().declined(NOW), None);
}

#[test]
fn attempt_alone_counts_and_rests() {
    let waits = CrashWaits::new([10 * SECOND, 10 * MINUTE, 600 * MINUTE]);
    for (count, rest) in [
        (0, 30 * SECOND),
        (1, 10 * MINUTE),
        (2, 600 * MINUTE),
        (3, 30 * SECOND),
    ] {
        let before = with(|record| record.exclusive_attempts = count);
        let mine = Record::claimed(&claim(), 2, Some(&before), Some(&waits));
        assert_eq!(mine.exclusive_attempts, count + 1);
        assert_eq!(mine.lease_until(), Some(NOW + rest));
        // The record outlives its lease.
        assert_eq!(
            mine.expires_at,
            (NOW.as_secs() + 3600).max((NOW + rest).as_secs_ceil())
        );
    }
    let looks_up = Claim {
        quarantine: Some(120 * MINUTE),
        ..claim()
    };
    let mine = Record::claimed(&looks_up, 1, None, None);
    assert_eq!(
        mine.expires_at,
        (NOW + 30 * SECOND + 120 * MINUTE).as_secs_ceil()
    );
}

#[test]
fn suspects_are_those_whose_end_nobody_recorded() {
    let waits = CrashWaits::new([MINUTE]);
    let clear = |record: Option<&Record>| assert_eq!(standing(record, &waits), Standing::Clear);
    clear(None);
    clear(Some(&completed()));
    clear(Some(&failed(NOW)));
    clear(Some(&with_history()));
    assert_eq!(standing(Some(&died()), &CrashWaits::off()), Standing::Clear);
    for exclusive_attempts in 0..=3 {
        let died = with(|record| record.exclusive_attempts = exclusive_attempts);
        let expected = if exclusive_attempts > 1 {
            Standing::Crashed { exclusive_attempts }
        } else {
            Standing::Suspect { exclusive_attempts }
        };
        assert_eq!(standing(Some(&died), &waits), expected);
    }
}

/// A claim over `replaced`, and its record after the end.
fn end(replaced: Option<&Record>, end: &End) -> (Record, Record) {
    let mine = Record::claimed(&claim(), 7, replaced, Some(&CrashWaits::default()));
    let ended = mine.ended(replaced, end, 8, NOW + SECOND);
    assert_eq!(
        ended.stamp,
        Stamp {
            owner: owner("mine"),
            version: 8
        }
    );
    assert_eq!(ended.updated_at, NOW + SECOND);
    assert_eq!(ended.attempts, mine.attempts);
    (mine, ended)
}

#[test]
fn completion_removes_the_history() {
    let before = with_history();
    let result = StoredResult::Json("7".into());
    let done = End::Completed {
        result: result.clone(),
        expires_at: 99,
    };
    let (mine, ended) = end(Some(&before), &done);
    let expected = Record {
        stamp: Stamp {
            owner: owner("mine"),
            version: 8,
        },
        state: State::Completed { result },
        expires_at: 99,
        first_claimed_at: None,
        last_end: None,
        exclusive_attempts: 0,
        failures: Vec::new(),
        updated_at: NOW + SECOND,
        ..mine
    };
    assert_eq!(ended, expected);
}

#[test]
fn failure_keeps_or_closes_open_attempts() {
    let open = with_history();
    let closed = Record {
        first_claimed_at: None,
        ..with_history()
    };
    let fail = |effect, sent_at| End::Failed {
        error: "expired".into(),
        effect,
        sent_at,
        expires_at: 99,
    };
    let now = NOW + SECOND;
    for (effect, over_open, over_closed, over_nothing, generation) in [
        (
            Effect::Possible,
            open.first_claimed_at,
            Some(NOW),
            Some(NOW),
            2,
        ),
        (Effect::None, open.first_claimed_at, None, None, 2),
        (Effect::Declined, None, None, None, 3),
        (Effect::NotCalled, open.first_claimed_at, None, None, 2),
    ] {
        let (mine, ended) = end(Some(&open), &fail(effect, None));
        assert_eq!(ended.state, State::Failed);
        assert_eq!(
            (ended.expires_at, ended.last_error()),
            (99, Some("expired"))
        );
        // It replaces the earlier failure of its payload.
        assert_eq!((ended.failures.len(), ended.failures[0].at), (1, now));
        assert_eq!(ended.exclusive_attempts, 0);
        let last_end = match effect {
            Effect::NotCalled => open.last_end,
            _ => Some(AttemptEnd::Permanent),
        };
        assert_eq!(ended.last_end, last_end);
        assert_eq!(
            (ended.generation, ended.first_claimed_at),
            (generation, over_open)
        );
        assert_eq!(
            (&ended.fingerprint, &ended.message_id),
            (&mine.fingerprint, &mine.message_id)
        );
        assert_eq!(
            end(Some(&closed), &fail(effect, None)).1.first_claimed_at,
            over_closed
        );
        assert_eq!(
            end(None, &fail(effect, None)).1.first_claimed_at,
            over_nothing
        );
    }
    // The failure gets the latest of three times: now, when the message was sent, and the earlier failure's.
    let sent = |sent_at| {
        end(Some(&open), &fail(Effect::None, Some(sent_at)))
            .1
            .last_failure()
    };
    assert_eq!(sent(now + SECOND), Some(now + SECOND));
    assert_eq!(sent(ago(SECOND)), Some(now));
    let later = Record {
        failures: vec![failure(now + MINUTE, "1")],
        ..open
    };
    assert_eq!(
        end(Some(&later), &fail(Effect::None, None))
            .1
            .last_failure(),
        Some(now + MINUTE)
    );
}

#[test]
fn long_error_is_cut() {
    let long = End::Failed {
        error: "é".repeat(4096),
        effect: Effect::None,
        sent_at: None,
        expires_at: 99,
    };
    let failed = end(None, &long).1;
    assert_eq!(failed.last_error().map(str::len), Some(4096));
}

#[test]
fn oldest_of_four_failures_answers_for_all_older_ones() {
    let mut failures = Vec::new();
    for (minute, payload) in ["2", "3", "1", "4", "5", "3"].into_iter().enumerate() {
        let long = RecordedFailure {
            error: "é".repeat(4096),
            ..failure(NOW + MINUTE * minute as u32, payload)
        };
        failures = long.added_to(&failures);
    }
    let kept: Vec<_> = failures.iter().map(|one| one.fingerprint.clone()).collect();
    assert_eq!(kept, [print("3"), print("5"), print("4"), None]);
    let times: Vec<_> = failures.iter().map(|one| NOW.until(one.at)).collect();
    assert_eq!(times, [5, 4, 3, 2].map(|minutes| MINUTE * minutes));
    let sizes: Vec<_> = failures.iter().map(|one| one.error.len()).collect();
    // A character of two bytes is not cut in half.
    assert_eq!(sizes, [4096, 200, 200, 199]);
    let of_many = "more than four payloads failed under this key, one with: éé";
    assert!(failures[3].error.starts_with(of_many));
}

#[test]
fn failure_without_a_fingerprint_replaces_no_other() {
    let mut failures = Vec::new();
    for fingerprint in [print("1"), None, print("2"), None] {
        let failure = RecordedFailure {
            fingerprint,
            ..failure(NOW, "1")
        };
        failures = failure.added_to(&failures);
    }
    let kept: Vec<_> = failures.iter().map(|one| one.fingerprint.clone()).collect();
    assert_eq!(kept, [None, print("2"), print("1")]);
}

#[test]
fn open_end_ends_the_lease_now() {
    for last_end in [
        AttemptEnd::Retryable,
        AttemptEnd::Panic,
        AttemptEnd::Deadline,
    ] {
        let before = with_history();
        let (mine, ended) = end(Some(&before), &End::Open(last_end));
        let expected = Record {
            stamp: Stamp {
                owner: owner("mine"),
                version: 8,
            },
            state: State::InProgress {
                lease_until: NOW + SECOND,
            },
            last_end: Some(last_end),
            exclusive_attempts: 0,
            updated_at: NOW + SECOND,
            ..mine
        };
        assert_eq!(ended, expected);
    }
}

#[test]
fn undone_claim_leaves_the_record_as_before() {
    let undone = |before: &Record, began| end(Some(before), &End::Undone { began }).1;
    let as_before = |before: &Record| Record {
        stamp: Stamp {
            owner: owner("mine"),
            version: 8,
        },
        expires_at: NOW.as_secs() + 3600,
        attempts: before.attempts + 1,
        updated_at: NOW + SECOND,
        ..before.clone()
    };
    let mut before = with_history();
    before.fingerprint = print("0");
    before.source = Some("old".into());
    let in_progress = |record: Record| Record {
        state: State::InProgress {
            lease_until: NOW + SECOND,
        },
        // The attempt ran alone, so its lease was longer.
        expires_at: record.expires_at.max((NOW + 120 * MINUTE).as_secs_ceil()),
        ..record
    };
    assert_eq!(undone(&before, false), in_progress(as_before(&before)));
    let began = Record {
        last_end: Some(AttemptEnd::NoEffect),
        exclusive_attempts: 0,
        ..in_progress(as_before(&before))
    };
    assert_eq!(undone(&before, true), began);
    let dead = with(|record| record.exclusive_attempts = 1);
    assert_eq!(undone(&dead, false).last_end, None);
    assert_eq!(undone(&dead, false).exclusive_attempts, 1);
    assert_eq!(
        standing(Some(&undone(&dead, true)), &CrashWaits::default()),
        Standing::Clear
    );
    for began in [false, true] {
        let failed = failed(ago(MINUTE));
        let expected = Record {
            expires_at: failed.expires_at,
            ..as_before(&failed)
        };
        assert_eq!(undone(&failed, began), expected);
    }
}

#[test]
fn undone_first_claim_is_no_suspect_and_has_no_payload() {
    for began in [false, true] {
        let (_, ended) = end(None, &End::Undone { began });
        assert_eq!(
            ended.state,
            State::InProgress {
                lease_until: NOW + SECOND
            }
        );
        assert_eq!(
            (ended.first_claimed_at, ended.exclusive_attempts),
            (None, 0)
        );
        assert_eq!(
            standing(Some(&ended), &CrashWaits::default()),
            Standing::Clear
        );
        let corrected = Claim {
            owner: owner("next"),
            fingerprint: print("2"),
            now: NOW + MINUTE,
            ..claim()
        };
        assert_eq!(decide(Some(&ended), &corrected), Decision::Over);
    }
}

#[test]
fn swap_compares_both_parts_of_the_stamp() {
    let swap = |expect| Swap {
        key: crate::protocol::Key::new(&crate::protocol::Namespace::new("n").unwrap(), ["k"])
            .unwrap(),
        expect,
        to: completed(),
    };
    assert!(swap(Expect::Absent).admits(None));
    assert!(!swap(Expect::Absent).admits(Some(&died())));
    let unchanged = swap(Expect::Unchanged(died()));
    assert!(!unchanged.admits(None));
    assert!(unchanged.admits(Some(&in_progress(NOW + MINUTE))));
    assert!(!unchanged.admits(Some(&with(|record| record.stamp.version = 2))));
    assert!(!unchanged.admits(Some(&with(|record| record.stamp.owner = owner("other")))));
}

#[test]
fn claim_over_a_death_waits_for_its_turn() {
    let waits = CrashWaits::new([MINUTE]);
    let open = died().first_claimed_at;
    for (deaths, first_claimed_at, has_look_up, runs, counts) in [
        (0, open, false, Runs::Handler, true),
        (1, open, true, Runs::Handler, true),
        (2, open, true, Runs::LookUp, true),
        (2, open, false, Runs::Nothing, false),
        (3, open, true, Runs::Nothing, false),
        // No attempt is open, so there is nothing to look up.
        (2, None, true, Runs::Nothing, false),
    ] {
        let died = with(|record| {
            record.exclusive_attempts = deaths;
            record.first_claimed_at = first_claimed_at;
        });
        let claim = Claim {
            quarantine: has_look_up.then_some(Duration::ZERO),
            ..claim()
        };
        let plan = |start| plan_claim(Some(&died), &claim, 7, start, &waits);
        let alone = counts.then_some(&waits);
        let write = Plan::Write {
            to: Box::new(Record::claimed(&claim, 8, Some(&died), alone)),
            keeps: true,
            runs,
        };
        assert_eq!(plan(Start::Alone), write, "{deaths} {has_look_up}");
        let suspend = Plan::Suspend {
            exclusive_attempts: deaths,
        };
        let beside = if counts { suspend } else { write };
        assert_eq!(plan(Start::Beside), beside, "{deaths} {has_look_up}");
    }
}

#[test]
fn claim_plans_what_is_decided() {
    let off = CrashWaits::off();
    let expired = with(|record| record.expires_at = 1);
    for (found, keeps, version) in [
        (None, false, 1),
        (Some(&expired), false, 2),
        (Some(&died()), true, 2),
    ] {
        let to = Record::claimed(&claim(), version, found.filter(|_| keeps), None);
        let write = Plan::Write {
            to: Box::new(to),
            keeps,
            runs: Runs::Handler,
        };
        assert_eq!(plan_claim(found, &claim(), 0, Start::Beside, &off), write);
    }
    let mine = Record::claimed(&claim(), 3, None, None);
    let plan = |found| plan_claim(Some(found), &claim(), 0, Start::Beside, &off);
    assert_eq!(plan(&mine), Plan::Mine);
    let Decision::Rejected(rejection) = decide(Some(&completed()), &claim()) else {
        panic!("a completed record rejects");
    };
    assert_eq!(plan(&completed()), Plan::Reject(rejection));
}

#[test]
fn write_of_a_record_is_named_in_errors() {
    let claimed = died();
    let ended = with(|record| record.updated_at = record.lease_until().unwrap());
    assert_eq!([claimed.action(), ended.action()], ["claim", "release"]);
    assert_eq!(failed(NOW).action(), "fail");
    let complete = End::Completed {
        result: StoredResult::not_wanted(),
        expires_at: 0,
    };
    let fail = End::Failed {
        error: String::new(),
        effect: Effect::None,
        sent_at: None,
        expires_at: 0,
    };
    let ends = [
        complete,
        fail,
        End::Open(AttemptEnd::Panic),
        End::Undone { began: true },
    ];
    assert_eq!(
        ends.map(|end| end.name()),
        ["complete", "fail", "release", "undo"]
    );
}

// ---- the record as it is written ----------------------------------------------------------------

/// Spells out every stored name, because tables outlive a release.
#[test]
fn record_is_written_and_read() {
    let failures = failure(ago(MINUTE), "2").added_to(&[]);
    let json =
        r#"[{"at":1799999940000,"error":"declined","fingerprint":"FP2","message_id":"m-1"}]"#;
    let pointer = ResultPointer::new("outputs", &operation("order-1"), &owner("theirs"), b"[1,2]");
    let completed = |result| {
        with(|record| {
            record.state = State::Completed { result };
            record.first_claimed_at = None;
        })
    };
    let common = |status: &str| {
        serde_json::json!({
            "expires_at": NOW.as_secs() + 3600,
            "fingerprint": print("1").unwrap().as_str(),
            "message_id": "m-1",
            "owner": "theirs",
            "source": "orders",
            "status": status,
            "version": 1,
        })
    };
    let full = with(|record| {
        record.attempts = 2;
        record.exclusive_attempts = 1;
        record.failures = failures;
        record.generation = 3;
        record.last_end = Some(AttemptEnd::Panic);
        record.open_other = true;
        record.updated_at = ago(SECOND);
    });
    let text = StoredResult::Json("[1,2]".into());
    let in_s3 = StoredResult::InS3(Box::new(pointer.clone()));
    let omitted = StoredResult::Omitted("too long".into());
    let lease = serde_json::json!({
        "first_claimed_at": ago(MINUTE).as_millis(),
        "lease_until": ago(SECOND).as_millis(),
    });
    let mut rest = lease.clone();
    rest.as_object_mut().unwrap().extend([
        ("attempts".to_owned(), 2.into()),
        ("exclusive_attempts".to_owned(), 1.into()),
        (
            "failures".to_owned(),
            json.replace("FP2", print("2").unwrap().as_str()).into(),
        ),
        ("generation".to_owned(), 3.into()),
        ("last_end".to_owned(), "panic".into()),
        ("open_other".to_owned(), 1.into()),
        ("updated_at".to_owned(), ago(SECOND).as_millis().into()),
    ]);
    let updated_at = ago(MINUTE).as_millis();
    let failed = with(|record| {
        record.state = State::Failed;
        record.first_claimed_at = None;
    });
    for (record, status, more) in [
        (died(), "IN_PROGRESS", lease),
        (full, "IN_PROGRESS", rest),
        (
            failed,
            "FAILED",
            serde_json::json!({ "updated_at": updated_at }),
        ),
        (
            completed(text),
            "COMPLETED",
            serde_json::json!({ "result": "[1,2]", "updated_at": updated_at }),
        ),
        (
            completed(in_s3),
            "COMPLETED",
            serde_json::json!({ "result_in_s3": pointer.to_json(), "updated_at": updated_at }),
        ),
        (
            completed(omitted),
            "COMPLETED",
            serde_json::json!({ "result_omitted": "too long", "updated_at": updated_at }),
        ),
    ] {
        let mut written = common(status);
        let members = written.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        assert_eq!(serde_json::to_value(&record).unwrap(), written);
        assert_eq!(serde_json::from_value::<Record>(written).unwrap(), record);
        assert_eq!(record.state.name(), status);
    }
    let pointer_json: serde_json::Value = serde_json::from_str(&pointer.to_json()).unwrap();
    assert_eq!(
        pointer_json,
        serde_json::json!({
            "bucket": "outputs",
            "bytes": 5,
            "key": pointer.key,
            "sha256": pointer.sha256,
        })
    );
    assert_eq!(pointer.to_string(), format!("s3://outputs/{}", pointer.key));
    assert!(pointer.is_of(b"[1,2]") && !pointer.is_of(b"[1,3]"));
}

#[test]
fn attempt_end_has_its_name_in_the_record() {
    for (end, name) in [
        (AttemptEnd::Retryable, "retryable"),
        (AttemptEnd::Panic, "panic"),
        (AttemptEnd::Deadline, "deadline"),
        (AttemptEnd::Permanent, "permanent"),
        (AttemptEnd::NoEffect, "no_effect"),
    ] {
        assert_eq!(end.name(), name);
        assert_eq!(AttemptEnd::from_name(name), Some(end));
    }
    assert_eq!(AttemptEnd::from_name("unknown"), None);
}

#[test]
fn record_expires_after_retention_and_lease() {
    for (kept_until, expires) in [(NOW, 60), (NOW + 90 * SECOND, 90)] {
        let at = record::expires_at(NOW, MINUTE, kept_until);
        assert_eq!(at, NOW.as_secs() + expires);
    }
}

#[test]
fn output_that_was_to_be_stored_is_missing() {
    let omitted = |why: &str| StoredResult::Omitted(why.to_owned());
    let mut stored = StoredResult::Json("1".into());
    assert_eq!(stored.take(), StoredResult::Json("1".into()));
    // It isn't missing if the record has it.
    assert_eq!(stored.missing(), None);
    assert_eq!(StoredResult::not_wanted().missing(), None);
    assert_eq!(omitted("too long").missing(), Some("too long"));
    let fits = "x".repeat(400 * 1024 - 8 * 1024);
    assert_eq!(StoredResult::fit(fits.clone()), StoredResult::Json(fits));
    let long = StoredResult::fit("x".repeat(400 * 1024 - 8 * 1024 + 1));
    assert!(
        long.missing()
            .is_some_and(|why| why.contains("401409 bytes"))
    );
}

#[test]
fn call_key_is_a_uuid_of_key_and_generation() {
    let key = operation("order-1");
    assert_eq!(key.call_key(0), "eecd95da-5d42-8573-93e9-19fb668faa58");
    assert_ne!(key.call_key(0), key.call_key(1));
    assert_eq!(key.to_string(), "payments#order-1");
    assert_eq!(owner("mine").to_string(), owner("mine").as_str());
    assert_eq!(owner("mine").as_str(), "mine");
}
