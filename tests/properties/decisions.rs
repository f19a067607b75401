//! The decision tables over random records, those of other programs included.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use proptest::prelude::*;
use sqs_once::{
    protocol::{
        AfterFailure, ClaimRefused, ClaimRequest, Fingerprint, Key, Namespace, Owner, Record,
        Refusal, Settlement, SettlementRefused, State, StoredResult, Timestamp,
        decision::{claim_refused, may_claim, may_settle, settlement_refused},
    },
    store::{ClaimAnswer, DynamoStore, SettleAnswer, Store},
};

use crate::support::dynamo::{Dynamo, Item};

/// Few enough that they meet.
fn owner() -> impl Strategy<Value = Owner> {
    (0..3).prop_map(|n| Owner::from_stored(format!("owner-{n}")))
}

fn fingerprint() -> impl Strategy<Value = Option<Fingerprint>> {
    prop::option::of((0..2_u8).prop_map(|n| Fingerprint::of(&[n])))
}

fn message_id() -> impl Strategy<Value = String> {
    (0..3).prop_map(|n| format!("m-{n}"))
}

/// Around a bound of seconds and one of milliseconds, so that some are equal.
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
    ]
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        3 => time().prop_map(|lease_until| State::InProgress { lease_until }),
        1 => result().prop_map(|result| State::Completed { result }),
        1 => (0..2_u8).prop_map(|n| State::Failed { error: n.to_string() }),
    ]
}

prop_compose! {
    fn record()(
        state in state(),
        owner in prop::option::weighted(0.9, owner()),
        expires_at in expiry(),
        fingerprint in fingerprint(),
        message_id in prop::option::weighted(0.9, message_id()),
        (created_at, updated_at) in (prop::option::of(time()), prop::option::of(time())),
    ) -> Record {
        Record { state, owner, expires_at, fingerprint, message_id, created_at, updated_at }
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
        ClaimRequest { key: key("key"), owner, fingerprint, message_id, now, lease_until, expires_at, after_failure }
    }
}

fn settlement() -> impl Strategy<Value = Settlement> {
    prop_oneof![
        (result(), expiry())
            .prop_map(|(result, expires_at)| Settlement::Complete { result, expires_at }),
        ((0..2_u8), expiry()).prop_map(|(n, at)| Settlement::fail(n.to_string(), at)),
        Just(Settlement::Release),
        Just(Settlement::Abandon),
    ]
}

fn key(part: &str) -> Key {
    Key::new(&Namespace::new("properties").unwrap(), [part]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn what_a_refused_claim_means_is_borne_out_by_the_record(record in record(), mine in request()) {
        if may_claim(Some(&record), &mine) {
            return Ok(());
        }
        prop_assert!(record.expires_at >= mine.now.as_secs(), "it is kept no longer");
        match claim_refused(record.clone(), &mine) {
            ClaimRefused::Mine => {
                prop_assert_eq!(record.owner.as_ref(), Some(&mine.owner));
                // What is held can be ended.
                prop_assert!(may_settle(Some(&record), &mine.fence()));
            }
            ClaimRefused::NotMine(Refusal::KeyReused) => {
                prop_assert!(record.fingerprint.is_some() && mine.fingerprint.is_some());
                prop_assert_ne!(record.fingerprint, mine.fingerprint);
            }
            ClaimRefused::NotMine(Refusal::Duplicate(result)) => {
                prop_assert_eq!(record.state, State::Completed { result });
            }
            ClaimRefused::NotMine(Refusal::FailedBefore(error)) => {
                prop_assert_eq!(record.state, State::Failed { error });
            }
            ClaimRefused::NotMine(Refusal::Conflict { owner, lease_until }) => {
                prop_assert_eq!(record.state, State::InProgress { lease_until });
                prop_assert!(lease_until >= mine.now, "the lease that is waited for is over");
                prop_assert_ne!(record.owner.as_ref(), Some(&mine.owner));
                prop_assert_eq!(record.owner, owner);
            }
        }
    }

    #[test]
    fn a_fresh_claim_keeps_everybody_out_until_its_lease_or_its_record_ends(
        holder in request(),
        other in request(),
    ) {
        let live = other.now <= holder.lease_until && other.now.as_secs() <= holder.expires_at;
        prop_assert!(!live || !may_claim(Some(&holder.record()), &other));
    }

    #[test]
    fn nobody_but_the_owner_of_a_claim_may_end_it_and_only_once(
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
        // An abandoned record stays its owner's, until somebody takes over.
        let ended = wanted != Settlement::Abandon;
        prop_assert_eq!(!may_settle(left.as_ref(), &fence), ended);
        if ended {
            let again = settlement_refused(left.as_ref(), &fence, &wanted);
            prop_assert_eq!(again, SettlementRefused::AlreadySettled);
        }
    }

    #[test]
    fn a_refused_settlement_counts_as_made_only_where_the_record_says_so(
        record in prop::option::weighted(0.9, record()),
        asker in request(),
        wanted in settlement(),
    ) {
        if may_settle(record.as_ref(), &asker.fence()) {
            return Ok(());
        }
        let meaning = settlement_refused(record.as_ref(), &asker.fence(), &wanted);
        if meaning == SettlementRefused::LeaseLost {
            return Ok(());
        }
        let Some(record) = record else {
            prop_assert_eq!(wanted, Settlement::Release);
            return Ok(());
        };
        prop_assert_eq!(record.owner, Some(asker.owner));
        match (wanted, record.state) {
            (Settlement::Complete { result, .. }, State::Completed { result: kept }) => {
                prop_assert_eq!(result, kept);
            }
            (Settlement::Fail { .. }, State::Failed { .. }) => {}
            (wanted, kept) => prop_assert!(false, "{wanted:?} taken for made in {kept:?}"),
        }
    }
}

/// One thing that somebody does to a key.
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

/// As the native layout has it. Written out here, so that the store's own writer is not both
/// sides of the comparison.
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
        State::Failed { error } => {
            item.insert("error", text(error));
        }
    }
    let optional = [
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

/// The table's conditions are text that DynamoDB reads; the rules are functions. Over any record
/// and whatever is then done to it, step by step, both give the same answers.
#[test]
fn a_table_answers_each_step_as_the_rules_do() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (dynamo, table) = runtime.block_on(async {
        let dynamo = Dynamo::start().await;
        dynamo.create_table("idempotency").await;
        let table = DynamoStore::new(dynamo.client(), "idempotency");
        (dynamo, table)
    });
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        // Its seeds would be kept by the name of the file alone.
        failure_persistence: None,
        ..ProptestConfig::with_cases(256)
    });
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
                    dynamo.put("idempotency", item(&key, record)).await;
                }
                for step in steps {
                    known = same_answer(&table, known, &key, step).await?;
                }
                Ok(())
            })
        })
        .unwrap();
}

/// Checks one step against the rules; answers the record it leaves.
async fn same_answer(
    table: &DynamoStore,
    known: Option<Record>,
    key: &Key,
    step: Step,
) -> Result<Option<Record>, TestCaseError> {
    match step {
        Step::Claim(request) => {
            let request = ClaimRequest {
                key: key.clone(),
                ..request
            };
            let answer = table.claim(&request).await.unwrap();
            if may_claim(known.as_ref(), &request) {
                prop_assert_eq!(answer, ClaimAnswer::Applied { replaced: known });
                Ok(Some(request.record()))
            } else {
                let record = known.unwrap();
                prop_assert_eq!(answer, ClaimAnswer::Refused(record.clone()));
                Ok(Some(record))
            }
        }
        Step::Settle(by, wanted, at) => {
            let fence = ClaimRequest {
                key: key.clone(),
                ..by
            }
            .fence();
            let answer = table.settle(&fence, &wanted, at).await.unwrap();
            if may_settle(known.as_ref(), &fence) {
                prop_assert_eq!(answer, SettleAnswer::Applied);
                Ok(known.and_then(|record| wanted.apply(&record, at)))
            } else {
                prop_assert_eq!(answer, SettleAnswer::Refused(known.clone()));
                Ok(known)
            }
        }
    }
}
