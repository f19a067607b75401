//! The decision tables over random records.

use std::collections::{BTreeSet, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;
use proptest::prelude::*;
use sqs_once::{
    protocol::{
        AfterFailure, AttemptEnd, ClaimRequest, FailedClaim, FailedSettlement, FencingToken,
        Fingerprint, Key, Namespace, Owner, PreviousRecord, PriorState, Record, Rejection,
        ResultPointer, Settlement, State, StoredResult, Timestamp,
        decision::{failed_claim, failed_settlement, may_claim, may_settle},
    },
    store::{ClaimResponse, DynamoStore, SettleResponse, Store},
};
use support::{
    CONTEXT,
    dynamo::{Item, Table},
};

use super::runner;

/// Few enough values to collide.
fn owner() -> impl Strategy<Value = Owner> {
    (0..3).prop_map(|n| Owner::from_stored(format!("owner-{n}")))
}

fn fingerprint() -> impl Strategy<Value = Option<Fingerprint>> {
    let scheme = prop::option::of((0..2_u8).prop_map(|n| format!("scheme-{n}")));
    let print = (0..2_u8, scheme).prop_map(|(n, scheme)| Fingerprint::of(&[n]).with_scheme(scheme));
    prop::option::of(print)
}

fn message_id() -> impl Strategy<Value = String> {
    (0..3).prop_map(|n| format!("m-{n}"))
}

/// Around one bound in seconds and one in milliseconds, so that some values are equal.
fn time() -> impl Strategy<Value = Timestamp> {
    const TIMES: [u64; 7] = [9_999, 10_000, 10_001, 10_500, 10_999, 11_000, 11_001];
    prop::sample::select(&TIMES[..]).prop_map(Timestamp::from_millis)
}

fn expiry() -> impl Strategy<Value = u64> {
    9..12_u64
}

fn result() -> impl Strategy<Value = StoredResult> {
    prop_oneof![
        (0..2_u8).prop_map(|n| StoredResult::Json(n.to_string())),
        (0..2_u8).prop_map(|n| StoredResult::Omitted(n.to_string())),
        (0..2_usize).prop_map(|bytes| StoredResult::InS3(Box::new(pointer(bytes)))),
    ]
}

fn pointer(bytes: usize) -> ResultPointer {
    ResultPointer {
        bucket: "outputs".into(),
        key: "results/k".into(),
        sha256: "0".into(),
        bytes,
    }
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        3 => time().prop_map(|lease_until| State::InProgress { lease_until }),
        1 => result().prop_map(|result| State::Completed { result }),
        1 => Just(State::Failed),
    ]
}

fn last_end() -> impl Strategy<Value = Option<AttemptEnd>> {
    let ends = [
        AttemptEnd::Retryable,
        AttemptEnd::Panic,
        AttemptEnd::Deadline,
        AttemptEnd::NotStarted,
    ];
    prop::option::of(prop::sample::select(ends.to_vec()))
}

/// Sometimes one below the limit, or at it.
fn failed_message_ids() -> impl Strategy<Value = BTreeSet<String>> {
    let crowd = |n: usize| (0..n).map(|n| format!("another-{n}"));
    prop_oneof![
        6 => prop::collection::btree_set(message_id(), 0..3),
        1 => Just(crowd(20).collect()),
        1 => message_id().prop_map(move |id| crowd(18).chain([id]).collect()),
    ]
}

/// The latter two, on records that are not COMPLETED.
fn error() -> impl Strategy<Value = Option<String>> {
    prop::option::of((0..2_u8).prop_map(|n| n.to_string()))
}

prop_compose! {
    fn record()(
        state in state(),
        owner in prop::option::weighted(0.9, owner()),
        expires_at in expiry(),
        fingerprint in fingerprint(),
        message_id in prop::option::weighted(0.9, message_id()),
        (attempts, first_claimed_at) in (0..3_u64, prop::option::of(time())),
        (last_end, exclusive_attempts, error) in (last_end(), 0..3_u64, error()),
        failed_message_ids in failed_message_ids(),
        (created_at, updated_at) in (prop::option::of(time()), prop::option::of(time())),
    ) -> Record {
        let error = error.filter(|_| !matches!(state, State::Completed { .. }));
        let mut record = Record::new(state, expires_at);
        record.owner = owner;
        record.fingerprint = fingerprint;
        record.message_id = message_id;
        record.attempts = attempts;
        record.first_claimed_at = first_claimed_at;
        record.last_end = last_end;
        record.exclusive_attempts = exclusive_attempts;
        record.error = error;
        record.failed_message_ids = failed_message_ids;
        record.created_at = created_at;
        record.updated_at = updated_at;
        record
    }
}

prop_compose! {
    fn request()(
        owner in owner(),
        fingerprint in fingerprint(),
        message_id in message_id(),
        now in time(),
        lease_until in time(),
        expires_at in expiry(),
        retry in any::<bool>(),
    ) -> ClaimRequest {
        let after_failure = if retry { AfterFailure::Retry } else { AfterFailure::Replay };
        let mut request = ClaimRequest::new(key("key"), owner, message_id, now, lease_until, expires_at);
        request.fingerprint = fingerprint;
        request.after_failure = after_failure;
        request
    }
}

fn settlement() -> impl Strategy<Value = Settlement> {
    let before = prop_oneof![
        Just(PreviousRecord::Nothing),
        Just(PreviousRecord::Unknown),
        record().prop_map(|record| PreviousRecord::Record(Box::new(record))),
    ];
    prop_oneof![
        (result(), expiry())
            .prop_map(|(result, expires_at)| Settlement::Complete { result, expires_at }),
        ((0..2_u8), message_id(), any::<bool>(), expiry()).prop_map(|(n, message, first, at)| {
            Settlement::fail(n.to_string(), message, first, at)
        }),
        last_end().prop_map(|last_end| Settlement::Release { last_end }),
        (time(), expiry(), 1..3_u64).prop_map(|(lease_until, expires_at, exclusive_attempts)| {
            Settlement::Renew {
                lease_until,
                expires_at,
                exclusive_attempts,
            }
        }),
        (before, prop::option::of(time()), last_end(), 0..3_u64).prop_map(
            |(before, open_since, last_end, exclusive_attempts)| Settlement::Restore(PriorState {
                before,
                open_since,
                last_end,
                attempts: 0,
                exclusive_attempts,
            })
        ),
    ]
}

/// The fencing token of this settlement. A renewal's fencing token has the lease of its claim.
fn fence(by: &ClaimRequest, wanted: &Settlement) -> FencingToken {
    match wanted {
        Settlement::Renew { .. } => by.fence().with_lease(by.lease_until),
        Settlement::Release {
            last_end: Some(AttemptEnd::NotStarted),
        } => by.fence().with_first_claim(by.now),
        _ => by.fence(),
    }
}

fn key(part: &str) -> Key {
    Key::new(&Namespace::new("properties").unwrap(), [part]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn refused_claim_decision_matches_record(record in record(), mine in request()) {
        if may_claim(Some(&record), &mine) {
            return Ok(());
        }
        prop_assert!(record.expires_at >= mine.now.as_secs(), "it is kept no longer");
        let error = record.error.clone().unwrap_or("no error was stored".into());
        let failed = record.failed_message_ids.contains(&mine.message_id);
        let payloads = (record.fingerprint.as_ref(), mine.fingerprint.as_ref());
        let other_payload = matches!(payloads, (Some(theirs), Some(mine)) if theirs.differs_from(mine));
        match failed_claim(record.clone(), &mine) {
            FailedClaim::Held(claimed) => {
                prop_assert_eq!(record.owner.as_ref(), Some(&mine.owner));
                // A held claim can be settled.
                prop_assert!(may_settle(Some(&record), &mine.fence()));
                let is_open = |at: &Timestamp| *at != mine.now || record.error.is_some();
                let open = record.first_claimed_at.filter(is_open);
                prop_assert_eq!(claimed.open_since, open);
            }
            FailedClaim::Rejected(Rejection::KeyReused) => {
                prop_assert!(other_payload && !failed || record.state.name() == "COMPLETED");
                let in_progress = matches!(record.state, State::InProgress { .. });
                prop_assert!(other_payload && !in_progress);
            }
            FailedClaim::Rejected(Rejection::Duplicate(result)) => {
                prop_assert!(!other_payload);
                prop_assert_eq!(record.state, State::Completed { result });
            }
            FailedClaim::Rejected(Rejection::FailedBefore(told)) => {
                let replayed = mine.after_failure == AfterFailure::Replay;
                prop_assert!(failed || replayed && record.state == State::Failed);
                prop_assert_eq!(told, error);
            }
            FailedClaim::Rejected(Rejection::TooManyFailures(told)) => {
                prop_assert_eq!(record.failed_message_ids.len(), 20);
                prop_assert_eq!((record.state, told), (State::Failed, error));
            }
            FailedClaim::Rejected(Rejection::Conflict { owner, lease_until }) => {
                prop_assert_eq!(record.state, State::InProgress { lease_until });
                prop_assert!(lease_until >= mine.now, "the lease to wait for has ended");
                prop_assert_ne!(record.owner.as_ref(), Some(&mine.owner));
                prop_assert_eq!(record.owner.as_ref(), owner.as_ref());
            }
            FailedClaim::Rejected(Rejection::PayloadConflict { .. }) => {
                let State::InProgress { lease_until } = record.state else {
                    return Err(TestCaseError::fail("not in progress"));
                };
                prop_assert!(other_payload && lease_until < mine.now);
            }
        }
    }

    /// Promise 1.
    #[test]
    fn fresh_claim_excludes_others_until_lease_ends(
        holder in request(),
        other in request(),
    ) {
        let live = other.now <= holder.lease_until && other.now.as_secs() <= holder.expires_at;
        prop_assert!(!live || !may_claim(Some(&holder.record(None)), &other));
    }

    /// Promise 5.
    #[test]
    fn only_owner_settles_claim_and_once(
        record in record(),
        asker in request(),
        wanted in settlement(),
        now in time(),
    ) {
        let fence = asker.fence();
        if !may_settle(Some(&record), &fence) {
            return Ok(());
        }
        prop_assert_eq!(record.owner.as_ref(), Some(&asker.owner));
        let in_progress = matches!(record.state, State::InProgress { .. });
        prop_assert!(in_progress, "an outcome would be overwritten");
        let left = wanted.apply(&record, now);
        // A record whose lease ended belongs to its owner until another worker takes over.
        let ended = !may_settle(left.as_ref(), &fence);
        let lease = match wanted {
            Settlement::Renew { lease_until, .. } => lease_until,
            _ => now,
        };
        let leases = left.as_ref().map(|left| left.state.clone());
        prop_assert_eq!(ended, leases != Some(State::InProgress { lease_until: lease }));
        if ended {
            let again = failed_settlement(left.as_ref(), &fence, &wanted);
            prop_assert_eq!(again, FailedSettlement::AlreadySettled);
        }
    }

    #[test]
    fn refused_settlement_counts_only_if_recorded(
        record in prop::option::weighted(0.9, record()),
        asker in request(),
        wanted in settlement(),
    ) {
        let fence = fence(&asker, &wanted);
        if may_settle(record.as_ref(), &fence) {
            return Ok(());
        }
        let meaning = failed_settlement(record.as_ref(), &fence, &wanted);
        if meaning == FailedSettlement::LeaseLost {
            return Ok(());
        }
        let Some(record) = record else {
            let deletes = wanted.apply(&asker.record(None), asker.now).is_none();
            prop_assert!(deletes);
            return Ok(());
        };
        prop_assert_eq!(record.owner, Some(asker.owner));
        match (wanted, record.state) {
            (Settlement::Complete { result, .. }, State::Completed { result: kept }) => {
                prop_assert_eq!(result, kept);
            }
            (Settlement::Fail { .. } | Settlement::Restore(_), State::Failed) => {}
            (Settlement::Renew { lease_until, .. }, State::InProgress { lease_until: kept }) => {
                prop_assert_eq!(lease_until, kept);
            }
            (wanted, kept) => prop_assert!(false, "{wanted:?} taken for made in {kept:?}"),
        }
    }
}

/// One request for a key.
#[derive(Clone, Debug)]
enum Step {
    Claim(ClaimRequest),
    Settle(ClaimRequest, Settlement, Timestamp),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        request().prop_map(Step::Claim),
        (request(), settlement(), time()).prop_map(|(by, wanted, at)| Step::Settle(by, wanted, at)),
    ]
}

/// Condition values in the native layout. Written out here, so that the store's own writer is not
/// on both sides of the comparison.
fn item(id: &Key, record: &Record) -> Item {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let number = |n: u64| AttributeValue::N(n.to_string());
    let mut item = HashMap::from([
        ("id", text(id.as_str())),
        ("status", text(record.state.name())),
        ("expires_at", number(record.expires_at)),
    ]);
    match &record.state {
        State::InProgress { lease_until } => {
            item.insert("lease_until", number(lease_until.as_millis()));
        }
        State::Completed {
            result: StoredResult::Json(json),
        } => {
            item.insert("result", text(json));
        }
        State::Completed {
            result: StoredResult::Omitted(why),
        } => {
            item.insert("result_omitted", text(why));
        }
        State::Completed {
            result: StoredResult::InS3(pointer),
        } => {
            let bytes = pointer.bytes;
            let json =
                format!(r#"{{"bucket":"outputs","bytes":{bytes},"key":"results/k","sha256":"0"}}"#);
            item.insert("result_in_s3", text(&json));
        }
        State::Failed => {}
    }
    if record.attempts > 0 {
        item.insert("attempts", number(record.attempts));
    }
    if record.exclusive_attempts > 0 {
        item.insert("exclusive_attempts", number(record.exclusive_attempts));
    }
    if !record.failed_message_ids.is_empty() {
        let ids = record.failed_message_ids.iter().cloned().collect();
        item.insert("failed_message_ids", AttributeValue::Ss(ids));
    }
    let optional = [
        (
            "first_claimed_at",
            record.first_claimed_at.map(|at| number(at.as_millis())),
        ),
        ("last_end", record.last_end.map(|end| text(end.name()))),
        ("error", record.error.as_deref().map(text)),
        (
            "owner",
            record.owner.as_ref().map(|owner| text(owner.as_str())),
        ),
        (
            "fingerprint",
            record
                .fingerprint
                .as_ref()
                .map(|print| text(print.as_str())),
        ),
        (
            "fingerprint_scheme",
            record
                .fingerprint
                .as_ref()
                .and_then(Fingerprint::scheme)
                .map(text),
        ),
        ("message_id", record.message_id.as_deref().map(text)),
        (
            "created_at",
            record.created_at.map(|at| number(at.as_millis())),
        ),
        (
            "updated_at",
            record.updated_at.map(|at| number(at.as_millis())),
        ),
    ];
    for (name, value) in optional {
        item.extend(value.map(|value| (name, value)));
    }
    item.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The table's conditions are text that DynamoDB evaluates; the rules are functions. Both give the
/// same results, step by step, over any record and any sequence of requests.
#[test]
fn dynamodb_matches_rules_step_by_step() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let table = runtime.block_on(Table::create(&["id"]));
    let store = DynamoStore::new(table.client.clone(), &table.name);
    let mut runner = runner(256);
    let cases = std::cell::Cell::new(0);
    let steps = (
        prop::option::of(record()),
        prop::collection::vec(step(), 1..8),
    );
    runner
        .run(&steps, |(first, steps)| {
            cases.set(cases.get() + 1);
            let key = key(&cases.get().to_string());
            runtime.block_on(async {
                let mut known = first;
                if let Some(record) = &known {
                    table.put(item(&key, record)).await;
                }
                for step in steps {
                    known = same_answer(&store, known, &key, step).await?;
                }
                Ok(())
            })
        })
        .unwrap();
}

/// Checks one step against the rules, and returns the record after it.
async fn same_answer(
    store: &DynamoStore,
    known: Option<Record>,
    key: &Key,
    step: Step,
) -> Result<Option<Record>, TestCaseError> {
    match step {
        Step::Claim(mut request) => {
            request.key = key.clone();
            let answer = store.claim(&request, &CONTEXT).await.unwrap();
            if may_claim(known.as_ref(), &request) {
                let replaced = known.filter(|record| !record.is_expired(request.now));
                let left = request.record(replaced.as_ref());
                prop_assert_eq!(answer, ClaimResponse::Applied { replaced });
                Ok(Some(left))
            } else {
                let record = known.unwrap();
                prop_assert_eq!(answer, ClaimResponse::ConditionFailed(record.clone()));
                Ok(Some(record))
            }
        }
        Step::Settle(mut by, wanted, at) => {
            by.key = key.clone();
            let fence = fence(&by, &wanted);
            let answer = store.settle(&fence, &wanted, at, &CONTEXT).await.unwrap();
            if may_settle(known.as_ref(), &fence) {
                prop_assert_eq!(answer, SettleResponse::Applied);
                Ok(known.and_then(|record| wanted.apply(&record, at)))
            } else {
                prop_assert_eq!(answer, SettleResponse::ConditionFailed(known.clone()));
                Ok(known)
            }
        }
    }
}
