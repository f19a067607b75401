//! Isolation after a crash. Each property also runs against rules with a mistake, and must find it.

use std::{collections::BTreeSet, time::Duration};

use proptest::{prelude::*, test_runner::TestError};
use sqs_once::{
    internal::{Standing, lease_alone, standing},
    protocol::{
        AttemptEnd, ClaimRequest, CrashWaits, Key, Namespace, Owner, PreviousRecord, PriorState,
        Record, Settlement, State, StoredResult, Timestamp, decision::may_claim,
    },
};

use crate::waiting::{Waiting, may_start_beside, next_suspect};

use super::runner;

/// The rules, so that one of them can be replaced by a mistake.
#[derive(Clone, Copy)]
struct Rules {
    standing: fn(&PriorState, &CrashWaits) -> Standing,
    lease_alone: fn(u64, &CrashWaits, Timestamp, Timestamp) -> Timestamp,
    next_suspect: fn(&Waiting) -> Option<usize>,
    may_start_beside: fn(bool, Duration, Duration) -> bool,
}

const SOUND: Rules = Rules {
    standing,
    lease_alone,
    next_suspect,
    may_start_beside,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: u64 = 3600;

/// The fate of four to nine messages that are received together.
#[derive(Clone, Debug)]
struct Story {
    /// True for each message whose handler always ends its process.
    killers: Vec<bool>,
    /// Seconds in which every handler ends its process.
    bad_build: u64,
    /// Seconds in which no request to the table is answered. Every second claim is applied.
    outage: (u64, u64),
    /// Place from which the messages of a batch start.
    first: usize,
}

fn story() -> impl Strategy<Value = Story> {
    let killers = prop::collection::vec(prop::bool::weighted(0.2), 4..10);
    let bad_build = prop_oneof![Just(0), 1..11 * HOUR];
    let outage = (0..14 * HOUR, 0..2 * HOUR).prop_map(|(from, length)| (from, from + length));
    (killers, bad_build, outage, 0..10_usize).prop_map(|(killers, bad_build, outage, first)| {
        Story {
            killers,
            bad_build,
            outage,
            first,
        }
    })
}

#[derive(Default)]
struct Message {
    record: Option<Record>,
    /// Seconds.
    visible_at: u64,
    deaths: u64,
    last_death_alone: Option<u64>,
    end: Option<&'static str>,
}

const START: u64 = 1_800_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis((START + seconds) * 1000)
}

/// Lets the messages be received until each has ended.
fn run(story: &Story, rules: Rules) -> Result<(), TestCaseError> {
    let waits = CrashWaits::default();
    let mut messages: Vec<Message> = story.killers.iter().map(|_| Message::default()).collect();
    for _batch in 0..2000 {
        let open = (0..messages.len()).filter(|&n| messages[n].end.is_none());
        let Some(now) = open.clone().map(|n| messages[n].visible_at).min() else {
            return Ok(());
        };
        let mut batch: Vec<_> = open.filter(|&n| messages[n].visible_at <= now).collect();
        let first = story.first % batch.len();
        batch.rotate_left(first);
        let kills = |n: usize| story.killers[n] || now < story.bad_build;
        let (mut clear, mut suspects) = (Vec::new(), Vec::new());
        for &n in &batch {
            let message = &mut messages[n];
            // Back after the visibility timeout, if nothing else is said.
            message.visible_at = now + 420;
            let request = claim(n, at(now));
            if !may_claim(message.record.as_ref(), &request) {
                message.visible_at = now + 60;
                continue;
            }
            let claimed = PriorState::over(message.record.clone());
            let record = request.record(message.record.as_ref());
            if story.outage.0 <= now && now < story.outage.1 {
                if n % 2 == 0 {
                    let is_first = claimed.is_first_open();
                    let last_end = is_first.then_some(AttemptEnd::NotStarted);
                    message.record = Settlement::Release { last_end }.apply(&record, at(now));
                }
                continue;
            }
            message.record = Some(record);
            match (rules.standing)(&claimed, &waits) {
                Standing::Clear => clear.push(n),
                Standing::Suspect { exclusive_attempts } => suspects.push((exclusive_attempts, n)),
                Standing::Crashed { .. } => {
                    prop_assert!(story.killers[n], "crashed, and never ended its process");
                    message.end = Some("crashed");
                }
            }
        }
        let active = clear.len();
        let mut waiting = Waiting { active, suspects };
        let early = (rules.next_suspect)(&waiting);
        prop_assert!(active == 0 || early.is_none(), "a suspect beside others");
        let mut died = false;
        for n in clear {
            died |= kills(n);
            messages[n].deaths += u64::from(kills(n));
            if died {
                break;
            }
            messages[n].end = Some("completed");
        }
        waiting.active = 0;
        while !died && let Some(n) = (rules.next_suspect)(&waiting) {
            let place = waiting.suspects.iter().position(|(_, place)| *place == n);
            let (count, _) = waiting.suspects.remove(place.unwrap());
            let fewest = waiting.suspects.iter().all(|(other, _)| *other >= count);
            prop_assert!(fewest, "one with more deaths goes first");
            let message = &mut messages[n];
            let lease_until = (rules.lease_alone)(count + 1, &waits, at(now), at(now + 31));
            prop_assert!(lease_until >= at(now + 31), "the lease became shorter");
            let renewal = Settlement::Renew {
                lease_until,
                expires_at: START + 480 * HOUR,
                exclusive_attempts: count + 1,
            };
            message.record = renewal.apply(message.record.as_ref().unwrap(), at(now));
            if kills(n) {
                died = true;
                message.deaths += 1;
                let rested = message.last_death_alone.map(|last| now - last);
                let wait = waits.after_death(count).map_or(0, |wait| wait.as_secs());
                prop_assert!(rested.is_none_or(|rested| rested >= wait), "no rest");
                message.last_death_alone = Some(now);
            } else {
                message.end = Some("completed");
                let complete = Settlement::Complete {
                    result: StoredResult::Json("1".into()),
                    expires_at: START + 480 * HOUR,
                };
                message.record = complete.apply(message.record.as_ref().unwrap(), at(now));
            }
        }
        for (message, killer) in messages.iter().zip(&story.killers) {
            let most = if *killer { 5 } else { u64::MAX };
            prop_assert!(message.deaths <= most, "a killer died more than five times");
        }
    }
    Err(TestCaseError::fail("a message does not end"))
}

fn claim(n: usize, now: Timestamp) -> ClaimRequest {
    let key = Key::new(&Namespace::new("isolation").unwrap(), [&*n.to_string()]).unwrap();
    let lease_until = now + 31 * SECOND;
    let expires_at = now.as_secs() + 480 * HOUR;
    ClaimRequest::new(
        key,
        Owner::fresh(),
        format!("m-{n}"),
        now,
        lease_until,
        expires_at,
    )
}

/// Any record that a claim may replace, and the count of attempts alone.
fn replaced() -> impl Strategy<Value = Record> {
    let end = prop::sample::select(vec![None, Some(AttemptEnd::Retryable)]);
    let state = prop::sample::select(vec![
        State::InProgress { lease_until: at(0) },
        State::Failed,
    ]);
    (state, end, 0..6_u64, any::<bool>()).prop_map(|(state, last_end, exclusive_attempts, open)| {
        let mut record = Record::new(state, START + HOUR);
        record.last_end = last_end;
        record.exclusive_attempts = exclusive_attempts;
        record.first_claimed_at = open.then(|| at(0));
        record
    })
}

/// The rule table of standings, in other words.
fn follows_table(record: &Record, rules: Rules) -> Result<(), TestCaseError> {
    let claimed = PriorState::over(Some(record.clone()));
    let standing = (rules.standing)(&claimed, &CrashWaits::default());
    let ended = record.last_end.is_some();
    let count = record.exclusive_attempts;
    match standing {
        Standing::Clear => {
            let failed = record.state == State::Failed;
            prop_assert!(ended || failed || count == 0 && record.first_claimed_at.is_none());
        }
        Standing::Suspect { .. } => {
            prop_assert!(!ended && count <= 3 && record.state != State::Failed)
        }
        Standing::Crashed { .. } => {
            prop_assert!(!ended && count >= 4 && record.state != State::Failed)
        }
    }
    let off = (rules.standing)(&claimed, &CrashWaits::off());
    prop_assert_eq!(off, Standing::Clear);
    Ok(())
}

fn waiting() -> impl Strategy<Value = Waiting> {
    let suspects = prop::collection::vec((0..4_u64, 0..100_usize), 0..5);
    (0..2_usize, suspects).prop_map(|(active, suspects)| Waiting { active, suspects })
}

/// No suspect starts beside others. Else one starts, of those with the fewest attempts alone.
fn follows_order(waiting: &Waiting, rules: Rules) -> Result<(), TestCaseError> {
    let Some(next) = (rules.next_suspect)(waiting) else {
        prop_assert!(waiting.active > 0 || waiting.suspects.is_empty());
        return Ok(());
    };
    prop_assert_eq!(waiting.active, 0);
    let fewest = waiting.suspects.iter().map(|(count, _)| *count).min();
    let of_next = waiting.suspects.iter().filter(|(_, place)| *place == next);
    prop_assert_eq!(of_next.map(|(count, _)| *count).min(), fewest);
    Ok(())
}

fn keeps_half_for_suspects(rules: Rules, time: u64, left: u64) -> Result<(), TestCaseError> {
    let [time, left] = [2 * time, left].map(Duration::from_millis);
    let may = |wait| (rules.may_start_beside)(wait, time, left);
    prop_assert!(may(false));
    prop_assert_eq!(may(true), 2 * left >= time);
    Ok(())
}

fn check(rules: Rules) -> Result<(), String> {
    let runner = || runner(512);
    let said = |error: String| Err(error);
    let table = runner().run(&replaced(), |record| follows_table(&record, rules));
    if let Err(TestError::Fail(why, _)) = table {
        return said(why.to_string());
    }
    let halves = runner().run(&(2..1000_u64, 0..1000_u64), |(time, left)| {
        keeps_half_for_suspects(rules, time, left)
    });
    if let Err(TestError::Fail(why, _)) = halves {
        return said(why.to_string());
    }
    let order = runner().run(&waiting(), |waiting| follows_order(&waiting, rules));
    if let Err(TestError::Fail(why, _)) = order {
        return said(why.to_string());
    }
    match runner().run(&story(), |story| run(&story, rules)) {
        Ok(()) => Ok(()),
        Err(error) => said(error.to_string()),
    }
}

/// Promises 6 and 7.
#[test]
fn only_killers_crash_after_five_deaths() {
    check(SOUND).unwrap();
}

#[test]
fn every_mistake_in_isolation_is_found() {
    fn all_clear(_: &PriorState, _: &CrashWaits) -> Standing {
        Standing::Clear
    }
    fn every_retry_is_suspect(claimed: &PriorState, waits: &CrashWaits) -> Standing {
        let claimed = PriorState {
            last_end: None,
            ..claimed.clone()
        };
        standing(&claimed, waits)
    }
    fn failure_is_no_end(claimed: &PriorState, waits: &CrashWaits) -> Standing {
        let in_progress = |record: &Record| Record {
            state: State::InProgress {
                lease_until: Timestamp::default(),
            },
            ..record.clone()
        };
        let before = match &claimed.before {
            PreviousRecord::Record(record) => PreviousRecord::Record(in_progress(record).into()),
            other => other.clone(),
        };
        let claimed = PriorState {
            before,
            ..claimed.clone()
        };
        standing(&claimed, waits)
    }
    fn count_alone_decides(claimed: &PriorState, waits: &CrashWaits) -> Standing {
        match standing(claimed, waits) {
            Standing::Suspect {
                exclusive_attempts: 0,
            } => Standing::Clear,
            other => other,
        }
    }
    let mistakes: [(&str, Rules); 8] = [
        (
            "nobody is a suspect",
            Rules {
                standing: all_clear,
                ..SOUND
            },
        ),
        (
            "a recorded end is ignored",
            Rules {
                standing: every_retry_is_suspect,
                ..SOUND
            },
        ),
        (
            "a recorded failure is ignored",
            Rules {
                standing: failure_is_no_end,
                ..SOUND
            },
        ),
        (
            "an open attempt is ignored",
            Rules {
                standing: count_alone_decides,
                ..SOUND
            },
        ),
        (
            "no rest",
            Rules {
                lease_alone: |_, _, _, lease| lease,
                ..SOUND
            },
        ),
        (
            "beside others",
            Rules {
                next_suspect: |waiting| {
                    next_suspect(&Waiting {
                        active: 0,
                        ..waiting.clone()
                    })
                },
                ..SOUND
            },
        ),
        (
            "most deaths first",
            Rules {
                next_suspect: |waiting| {
                    let most = waiting.suspects.iter().max();
                    Some(most.filter(|_| waiting.active == 0)?.1)
                },
                ..SOUND
            },
        ),
        (
            "no half for suspects",
            Rules {
                may_start_beside: |_, _, _| true,
                ..SOUND
            },
        ),
    ];
    let unfound: BTreeSet<_> = mistakes
        .iter()
        .filter(|(_, rules)| check(*rules).is_ok())
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(unfound, BTreeSet::new());
}
