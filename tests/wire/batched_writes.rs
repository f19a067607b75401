//! Groups of claims and settlements in one `BatchExecuteStatement`: the traps of that operation, and
//! the ordinary request that follows each of them.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use aws_sdk_dynamodb::types::{AttributeValue, BatchStatementRequest};
use futures_util::future::{join, join_all};
use serde_json::Value;
use sqs_once::{
    Deadline, DeliveryMetadata, Failure, Once, Operation, Outcome,
    internal::{Delivery, Meter},
    protocol::{
        AttemptEnd, ClaimRequest, Fingerprint, Key, Owner, PriorState, ResultPointer, Settlement,
        StoredResult, Timestamp,
    },
    store::{
        AnyStore, Batched, ClaimResponse, DynamoStore, RequestContext, SettleResponse, Store,
        StoreError,
    },
};
use support::{CONTEXT, PATIENCE, consumer::namespace, dynamo::Dynamo, faults::Fault, log};
use tokio::{sync::Barrier, time::Instant};

const TABLE: &str = "idempotency";
const SECOND: Duration = Duration::from_secs(1);

async fn dynamo() -> Dynamo {
    let dynamo = Dynamo::start().await;
    dynamo.create_table(TABLE).await;
    dynamo
}

/// The store of a worker whose SDK would retry.
fn store(dynamo: &Dynamo) -> Batched {
    Batched::new(DynamoStore::new(dynamo.worker(Some(10 * SECOND)), TABLE))
}

fn key(part: &str) -> Key {
    Key::new(&namespace(), [part]).unwrap()
}

fn request(part: &str) -> ClaimRequest {
    let now = Timestamp::now();
    let lease_until = now + 30 * SECOND;
    let expires_at = (now + 3600 * SECOND).as_secs();
    let mut request = ClaimRequest::new(
        key(part),
        Owner::fresh(),
        "m-1",
        now,
        lease_until,
        expires_at,
    );
    request.fingerprint = Some(Fingerprint::of(b"payload"));
    request
}

fn requests<const N: usize>(parts: [&str; N]) -> [ClaimRequest; N] {
    parts.map(request)
}

fn complete(request: &ClaimRequest) -> Settlement {
    Settlement::Complete {
        result: StoredResult::Json("1".into()),
        expires_at: request.expires_at + 60,
    }
}

fn fail(request: &ClaimRequest, first_open: bool) -> Settlement {
    let message_id = request.message_id.clone();
    Settlement::fail(
        "declined".into(),
        message_id,
        first_open,
        request.expires_at + 60,
    )
}

/// Claims in the same turn of the runtime.
async fn claim_all(store: &impl Store, requests: &[ClaimRequest]) -> Vec<ClaimResponse> {
    claim_all_within(store, requests, &CONTEXT).await
}

async fn claim_all_within(
    store: &impl Store,
    requests: &[ClaimRequest],
    context: &RequestContext,
) -> Vec<ClaimResponse> {
    let claims: Vec<_> = requests.iter().collect();
    together(3, &claims, async |request| {
        store.claim(request, context).await
    })
    .await
}

/// Settles in the same turn of the runtime.
async fn settle_all(
    store: &impl Store,
    requests: &[ClaimRequest],
    settlement: impl Fn(&ClaimRequest) -> Settlement,
) -> Vec<SettleResponse> {
    let settle = async |request: &&ClaimRequest| {
        let (fence, settlement) = (request.fence(), settlement(request));
        let now = request.now + SECOND;
        store.settle(&fence, &settlement, now, &CONTEXT).await
    };
    let requests: Vec<_> = requests.iter().collect();
    together(2, &requests, settle).await
}

/// Sends requests in the same turn of the runtime, and those without an answer again, also in one turn:
/// callers that wait for their own timeouts would send their copies one after the other.
async fn together<R, T>(
    copies: usize,
    requests: &[R],
    send: impl AsyncFn(&R) -> Result<T, StoreError>,
) -> Vec<T> {
    let mut answers: Vec<_> = requests.iter().map(|_| None).collect();
    for _ in 0..copies {
        let open = answers.iter_mut().zip(requests);
        let open = open.filter(|(answer, _)| answer.is_none());
        let sent = open.map(async |(answer, request)| *answer = send(request).await.ok());
        join_all(sent).await;
    }
    answers.into_iter().map(Option::unwrap).collect()
}

const FRESH: ClaimResponse = ClaimResponse::Applied { replaced: None };

fn counts(dynamo: &Dynamo) -> Vec<(String, usize)> {
    dynamo.reset_counts().into_iter().collect()
}

/// Requests by name, in the order of the names.
macro_rules! assert_sent {
    ($dynamo:expr, $($name:literal: $count:expr),*) => {
        assert_eq!(counts(&$dynamo), [$(($name.to_owned(), $count)),*]);
    };
}

async fn record(dynamo: &Dynamo, part: &str) -> Option<support::dynamo::Item> {
    dynamo.record(TABLE, key(part).as_str()).await
}

fn operation(part: &str, now: Timestamp, budget: Duration) -> Operation {
    let deadline = Deadline::after(now, budget, budget / 4);
    Operation::new(key(part), None, Delivery::new(part), deadline)
}

// ---- groups --------------------------------------------------------------------------------------

#[tokio::test]
async fn calls_of_one_turn_share_requests() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let requests: Vec<_> = (0..10).map(|n| request(&n.to_string())).collect();
    assert_eq!(claim_all(&store, &requests).await, vec![FRESH; 10]);
    assert_sent!(dynamo, "ClaimGroup": 1);
    let settled = settle_all(&store, &requests, complete).await;
    assert_eq!(settled, vec![SettleResponse::Applied; 10]);
    assert_sent!(dynamo, "SettlementGroup": 1);
    for request in &requests {
        let answer = store.claim(request, &CONTEXT).await.unwrap();
        let expected = complete(request).apply(&request.record(None), request.now + SECOND);
        assert_eq!(answer, ClaimResponse::ConditionFailed(expected.unwrap()));
    }
}

#[tokio::test]
async fn lone_call_is_the_ordinary_request() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let request = request("a");
    assert_eq!(store.claim(&request, &CONTEXT).await.unwrap(), FRESH);
    let settled = settle_all(&store, std::slice::from_ref(&request), complete).await;
    assert_eq!(settled, [SettleResponse::Applied]);
    assert_sent!(dynamo, "Claim": 1, "UpdateItem": 1);
}

/// Its record exists, and an `INSERT` would be refused.
#[tokio::test]
async fn claim_of_a_later_receive_is_the_ordinary_request() {
    let dynamo = dynamo().await;
    let once = Once::new(store(&dynamo));
    let deliver = async |part: &str, receive_count| {
        let mut operation = operation(part, Timestamp::now(), 30 * SECOND);
        let facts = operation.delivery.facts().clone();
        operation.delivery = DeliveryMetadata {
            receive_count,
            ..facts
        }
        .into();
        let busy = async |_| Err::<(), _>(Failure::retryable("busy"));
        once.run(operation, busy).await
    };
    for (receive_count, claims) in [(1, ("ClaimGroup", 1)), (2, ("Claim", 2))] {
        let outcomes = join(deliver("a", receive_count), deliver("b", receive_count)).await;
        assert!(matches!(
            outcomes,
            (Outcome::RetryableFailure(_), Outcome::RetryableFailure(_))
        ));
        let (name, number) = claims;
        let sent = [(name.to_owned(), number), ("UpdateItem".to_owned(), 2)];
        assert_eq!(counts(&dynamo), sent);
    }
}

#[tokio::test]
async fn group_holds_at_most_25_statements() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let requests: Vec<_> = (0..205).map(|n| request(&n.to_string())).collect();
    assert_eq!(claim_all(&store, &requests).await, vec![FRESH; 205]);
    assert_sent!(dynamo, "ClaimGroup": 9);
}

/// Tasks on several threads push and leave the queue at any time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_of_several_threads_are_all_answered() {
    let dynamo = dynamo().await;
    let store = Batched::new(DynamoStore::new(dynamo.worker(None), TABLE));
    let tasks = (0..400).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let request = request(&n.to_string());
            let answer = store.claim(&request, &CONTEXT).await.unwrap();
            let own = ClaimResponse::ConditionFailed(request.record(None));
            assert!(answer == FRESH || answer == own, "{answer:?}");
            let (fence, complete) = (request.fence(), complete(&request));
            let answer = store
                .settle(&fence, &complete, request.now, &CONTEXT)
                .await
                .unwrap();
            let done = complete.apply(&request.record(None), request.now);
            let own = SettleResponse::ConditionFailed(done);
            assert!(
                answer == SettleResponse::Applied || answer == own,
                "{answer:?}"
            );
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let sent: usize = dynamo.reset_counts().values().sum();
    assert!(sent < 800, "{sent} requests for 800 writes");
}

#[tokio::test]
async fn grouped_claim_writes_the_ordinary_item() {
    let dynamo = dynamo().await;
    dynamo.create_table("plain").await;
    let grouped = store(&dynamo);
    let plain = DynamoStore::new(dynamo.client(), "plain");
    let printed = request("printed");
    let mut unprinted = request("unprinted");
    unprinted.fingerprint = None;
    let requests = [printed, unprinted];
    dynamo.reset_counts();
    assert_eq!(claim_all(&grouped, &requests).await, [FRESH, FRESH]);
    assert_sent!(dynamo, "ClaimGroup": 1);
    for request in &requests {
        assert_eq!(plain.claim(request, &CONTEXT).await.unwrap(), FRESH);
        let id = request.key.as_str();
        let written = dynamo.record(TABLE, id).await.unwrap();
        assert_eq!(dynamo.record("plain", id).await.unwrap(), written);
    }
}

#[tokio::test]
async fn grouped_settlement_writes_the_ordinary_item() {
    let dynamo = dynamo().await;
    dynamo.create_table("plain").await;
    let omitted = |request: &ClaimRequest| Settlement::Complete {
        result: StoredResult::Omitted("too long".into()),
        expires_at: request.expires_at,
    };
    let in_s3 = |request: &ClaimRequest| Settlement::Complete {
        result: StoredResult::InS3(Box::new(ResultPointer::new(
            "outputs",
            &request.key,
            &request.owner,
            b"1",
        ))),
        expires_at: request.expires_at,
    };
    type Settle = fn(&ClaimRequest) -> Settlement;
    let settlements: [Settle; 5] = [
        complete,
        omitted,
        in_s3,
        |request| fail(request, true),
        |request| fail(request, false),
    ];
    let grouped = AnyStore::Batched(store(&dynamo));
    let plain = AnyStore::DynamoDb(DynamoStore::new(dynamo.client(), "plain"));
    for (n, settlement) in settlements.into_iter().enumerate() {
        for failed_before in [false, true] {
            let case = format!("{n} {failed_before}");
            let mut pair = requests([&case, &format!("{case}, company")]);
            for store in [&grouped, &plain] {
                let _ = claim_all(store, &pair).await;
            }
            if failed_before {
                for store in [&grouped, &plain] {
                    let _ = settle_all(store, &pair, |request| fail(request, true)).await;
                }
                for request in &mut pair {
                    request.message_id = "m-2".into();
                    request.owner = Owner::fresh();
                }
                for store in [&grouped, &plain] {
                    let _ = claim_all(store, &pair).await;
                }
            }
            dynamo.reset_counts();
            let settled = settle_all(&grouped, &pair, settlement).await;
            assert_eq!(settled, vec![SettleResponse::Applied; 2], "{case}");
            assert_sent!(dynamo, "SettlementGroup": 1);
            let _ = settle_all(&plain, &pair, settlement).await;
            for request in &pair {
                let id = request.key.as_str();
                let written = dynamo.record(TABLE, id).await.unwrap();
                assert_eq!(dynamo.record("plain", id).await.unwrap(), written, "{case}");
            }
        }
    }
}

/// A conditional `DELETE` of a missing item succeeds silently.
#[tokio::test]
async fn release_and_end_of_lease_are_never_grouped() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let requests = requests(["a", "b"]);
    let _ = claim_all(&store, &requests).await;
    dynamo.reset_counts();
    let end = |_: &ClaimRequest| Settlement::Release {
        last_end: Some(AttemptEnd::Retryable),
    };
    let _ = settle_all(&store, &requests, end).await;
    assert_sent!(dynamo, "UpdateItem": 2);
    let restore = |_: &ClaimRequest| Settlement::Restore(PriorState::over(None));
    let settled = settle_all(&store, &requests, restore).await;
    assert_eq!(settled, [SettleResponse::Applied, SettleResponse::Applied]);
    assert_sent!(dynamo, "DeleteItem": 2);
    let settled = settle_all(&store, &requests, restore).await;
    assert_eq!(
        settled,
        [
            SettleResponse::ConditionFailed(None),
            SettleResponse::ConditionFailed(None)
        ]
    );
}

#[tokio::test]
async fn large_writes_are_never_grouped() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let large = requests(["a", "b"]);
    let _ = claim_all(&store, &large).await;
    dynamo.reset_counts();
    let complete = |request: &ClaimRequest| Settlement::Complete {
        result: StoredResult::Json("1".repeat(16 * 1024 + 1)),
        expires_at: request.expires_at,
    };
    let settled = settle_all(&store, &large, complete).await;
    assert_eq!(settled, [SettleResponse::Applied, SettleResponse::Applied]);
    assert_sent!(dynamo, "UpdateItem": 2);
}

// ---- answers -------------------------------------------------------------------------------------

/// `DuplicateItem` comes without the item.
#[tokio::test]
async fn duplicate_in_group_is_refused_with_its_record() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let [first, new] = requests(["a", "b"]);
    let _ = store.claim(&first, &CONTEXT).await.unwrap();
    dynamo.reset_counts();
    let answers = claim_all(&store, &[request("a"), new]).await;
    assert_eq!(
        answers,
        [ClaimResponse::ConditionFailed(first.record(None)), FRESH]
    );
    assert_sent!(dynamo, "Claim": 1, "ClaimGroup": 1);
}

#[tokio::test]
async fn takeover_in_group_returns_replaced_record() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let mut dead = request("a");
    dead.lease_until = Timestamp::from_millis(dead.now.as_millis() - 1);
    let _ = store.claim(&dead, &CONTEXT).await.unwrap();
    let mut expired = request("b");
    expired.expires_at = 1;
    let _ = store.claim(&expired, &CONTEXT).await.unwrap();
    let answers = claim_all(&store, &requests(["a", "b"])).await;
    let replaced = Some(dead.record(None));
    assert_eq!(answers, [ClaimResponse::Applied { replaced }, FRESH]);
}

/// DynamoDB refuses a whole request with the same key twice.
#[tokio::test]
async fn same_key_twice_is_never_in_one_group() {
    let dynamo = dynamo().await;
    let insert = BatchStatementRequest::builder()
        .statement(format!("INSERT INTO \"{TABLE}\" VALUE {{'id': ?}}"))
        .parameters(AttributeValue::S("twice".into()))
        .build()
        .unwrap();
    let twice = dynamo.client().batch_execute_statement();
    let twice = twice.statements(insert.clone()).statements(insert);
    let refused = twice.send().await.unwrap_err().into_service_error();
    let refused = refused.meta().message().unwrap().to_owned();
    assert!(refused.contains("duplicates"), "{refused}");
    dynamo.reset_counts();

    let store = store(&dynamo);
    let same = requests(["a", "a", "b", "a"]);
    let answers = claim_all(&store, &same).await;
    // The group and the lone requests are under way at the same time, so any of the three may arrive first.
    let first = [0, 1, 3].into_iter().find(|n| answers[*n] == FRESH);
    let first = first.expect("one of the three claims succeeds");
    let mut expected = [FRESH; 4];
    for n in [0, 1, 3].into_iter().filter(|n| *n != first) {
        expected[n] = ClaimResponse::ConditionFailed(same[first].record(None));
    }
    assert_eq!(answers, expected);
    // The group, and a lone request for each further claim. An insert in a group is refused without its item, so a
    // request of its own follows.
    let claims = if first == 0 { 2 } else { 3 };
    assert_sent!(dynamo, "Claim": claims, "ClaimGroup": 1);
}

#[tokio::test]
async fn update_creates_no_record() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let absent = requests(["a", "b"]);
    for settlement in [complete, |request: &ClaimRequest| fail(request, true)] {
        let settled = settle_all(&store, &absent, settlement).await;
        assert_eq!(
            settled,
            [
                SettleResponse::ConditionFailed(None),
                SettleResponse::ConditionFailed(None)
            ]
        );
        assert_sent!(dynamo, "SettlementGroup": 1, "UpdateItem": 2);
    }
    assert_eq!(dynamo.records(TABLE).await, []);
}

/// With `ALL_OLD`, the answer to a refused statement holds the record, and no second request
/// follows.
#[tokio::test]
async fn refused_update_returns_its_record() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let claimed = requests(["a", "b"]);
    let _ = claim_all(&store, &claimed).await;
    dynamo.reset_counts();
    let late = claimed.clone().map(|mut request| {
        request.owner = Owner::fresh();
        request
    });
    let records =
        claimed.map(|request| SettleResponse::ConditionFailed(Some(request.record(None))));
    for settlement in [complete, |request: &ClaimRequest| fail(request, true)] {
        assert_eq!(settle_all(&store, &late, settlement).await, records);
        assert_sent!(dynamo, "SettlementGroup": 1);
    }
}

#[tokio::test]
async fn statement_that_fails_alone_is_sent_alone() {
    let dynamo = dynamo().await;
    for code in [
        "ThrottlingError",
        "ProvisionedThroughputExceeded",
        "TransactionConflict",
        "InternalServerError",
        "ValidationError",
    ] {
        let store = store(&dynamo);
        let pair = requests([&format!("{code} a"), &format!("{code} b")]);
        dynamo.fail("ClaimGroup", Fault::FirstStatement(code));
        assert_eq!(claim_all(&store, &pair).await, [FRESH, FRESH], "{code}");
        assert_sent!(dynamo, "Claim": 1, "ClaimGroup": 1);
        dynamo.fail("SettlementGroup", Fault::FirstStatement(code));
        let settled = settle_all(&store, &pair, complete).await;
        assert_eq!(
            settled,
            [SettleResponse::Applied, SettleResponse::Applied],
            "{code}"
        );
        assert_sent!(dynamo, "SettlementGroup": 1, "UpdateItem": 1);
    }
}

#[tokio::test]
async fn failed_group_goes_out_again_as_a_group() {
    let dynamo = dynamo().await;
    for fault in [
        Fault::Throttle,
        Fault::InternalError,
        Fault::CutBefore,
        Fault::HoldRequest,
    ] {
        let store = store(&dynamo);
        let pair = requests([&format!("{fault:?} a"), &format!("{fault:?} b")]);
        dynamo.fail("ClaimGroup", fault);
        assert_eq!(claim_all(&store, &pair).await, [FRESH, FRESH], "{fault:?}");
        assert_sent!(dynamo, "ClaimGroup": 2);
        dynamo.heal().await;
    }
}

/// Something on the way lets no groups through.
#[tokio::test]
async fn second_group_without_answer_is_followed_by_single_requests() {
    let dynamo = dynamo().await;
    for fault in [Fault::InternalError, Fault::CutBefore] {
        let store = store(&dynamo);
        let pair = requests([&format!("{fault:?} a"), &format!("{fault:?} b")]);
        dynamo.fail_all("ClaimGroup", fault);
        assert_eq!(claim_all(&store, &pair).await, [FRESH, FRESH], "{fault:?}");
        assert_sent!(dynamo, "Claim": 2, "ClaimGroup": 2);
        dynamo.heal().await;
    }
}

/// Sends three pairs of claims. Returns the one warning about the end of the groups.
async fn assert_first_group_is_last(dynamo: &Dynamo, fault: Fault) -> Value {
    let store = store(dynamo);
    let meter = Meter::default();
    dynamo.fail("ClaimGroup", fault);
    for turn in 0..3 {
        let pair = [0, 1].map(|m| request(&format!("{fault:?} {turn} {m}")));
        let own = pair
            .clone()
            .map(|request| ClaimResponse::ConditionFailed(request.record(None)));
        let context = RequestContext::until(Instant::now() + 10 * SECOND, &meter);
        let answers = claim_all_within(&store.clone(), &pair, &context).await;
        // A copy of a claim without an answer finds its own record.
        let fresh =
            |(answer, own): (&ClaimResponse, &ClaimResponse)| *answer == FRESH || answer == own;
        assert!(answers.iter().zip(&own).all(fresh), "{answers:?}");
    }
    assert_eq!(dynamo.reset_counts()["ClaimGroup"], 1, "{fault:?}");
    assert!(meter.readings().batches_ended, "{fault:?}");
    let mut lines = log::lines_containing("each write is sent alone for an hour");
    let line = lines.pop().unwrap();
    assert!(lines.is_empty(), "{fault:?}");
    assert_eq!(line["fields"]["table"], TABLE);
    line["fields"].clone()
}

#[tokio::test]
async fn denied_access_ends_grouping_and_is_logged_once() {
    log::start();
    let dynamo = dynamo().await;
    for fault in [Fault::Denied, Fault::FirstStatement("AccessDenied")] {
        let line = assert_first_group_is_last(&dynamo, fault).await;
        let needs = line["needs"].as_str().unwrap();
        assert!(needs.contains("dynamodb:PartiQLInsert"), "{needs}");
    }
}

#[tokio::test]
async fn unknown_answer_ends_grouping_and_is_logged_once() {
    log::start();
    let dynamo = dynamo().await;
    for (fault, answer) in [
        (Fault::OneResponseLess, "1 responses to 2 statements"),
        (Fault::OneResponseMore, "3 responses to 2 statements"),
        (
            Fault::FirstStatement("SomethingNew"),
            "the error code SomethingNew",
        ),
    ] {
        let line = assert_first_group_is_last(&dynamo, fault).await;
        assert_eq!(line["answer"], answer);
    }
}

/// Claims this number of pairs, one pair after the other, while each batch that `refuses` says is refused. Returns
/// the number of batches, and whether the metric says that they ended.
async fn claim_pairs(
    dynamo: &Dynamo,
    fault: Fault,
    pairs: usize,
    refuses: impl Fn(usize) -> bool,
) -> (usize, bool) {
    let store = store(dynamo);
    let meter = Meter::default();
    dynamo.reset_counts();
    for n in 0..pairs {
        if refuses(n) {
            dynamo.fail("ClaimGroup", fault);
        }
        let pair = [0, 1].map(|m| request(&format!("{fault:?} {pairs} {n} {m}")));
        let context = RequestContext::until(Instant::now() + 10 * SECOND, &meter);
        let answers = claim_all_within(&store, &pair, &context).await;
        assert_eq!(answers, [FRESH, FRESH], "{fault:?} {n}");
    }
    dynamo.heal().await;
    let batches = dynamo.reset_counts()["ClaimGroup"];
    (batches, meter.readings().batches_ended)
}

#[tokio::test]
async fn three_refused_batches_end_batching_with_a_warning() {
    log::start();
    let dynamo = dynamo().await;
    for code in ["ValidationException", "UnknownOperationException"] {
        let ended = claim_pairs(&dynamo, Fault::Code(code), 6, |_| true).await;
        assert_eq!(ended, (3, true), "{code}");
        let lines = log::lines_containing("each write is sent alone for an hour");
        assert_eq!(lines.len(), 1, "{code}");
        let answer = lines[0]["fields"]["answer"].as_str().unwrap();
        assert!(answer.contains(code), "{answer}");
    }
}

/// Two refused batches, one that is accepted, and so on.
#[tokio::test]
async fn refused_batches_with_others_between_end_nothing() {
    let dynamo = dynamo().await;
    let refused = Fault::Code("ValidationException");
    let ended = claim_pairs(&dynamo, refused, 8, |n| n % 3 != 2).await;
    assert_eq!(ended, (8, false));
}

#[tokio::test]
async fn denial_that_can_pass_does_not_end_batching() {
    let dynamo = dynamo().await;
    for code in [
        "InvalidSignatureException",
        "ExpiredTokenException",
        "ResourceNotFoundException",
    ] {
        let ended = claim_pairs(&dynamo, Fault::Code(code), 6, |_| true).await;
        assert_eq!(ended, (6, false), "{code}");
    }
}

/// The other statement of each batch has no record, which tells nothing.
#[tokio::test]
async fn refused_statement_counts_as_a_refused_batch() {
    log::start();
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let claimed: Vec<_> = (0..5).map(|n| request(&n.to_string())).collect();
    let _ = claim_all(&store, &claimed).await;
    dynamo.reset_counts();
    dynamo.fail_all("SettlementGroup", Fault::FirstStatement("ValidationError"));
    for claimed in claimed {
        let settled = settle_all(&store, &[claimed, request("absent")], complete).await;
        let expected = [
            SettleResponse::Applied,
            SettleResponse::ConditionFailed(None),
        ];
        assert_eq!(settled, expected);
    }
    assert_sent!(dynamo, "SettlementGroup": 3, "UpdateItem": 10);
    assert_eq!(log::lines_containing("sent alone for an hour").len(), 1);
}

/// As DynamoDB Local answers: each ordinary request returns the record.
#[tokio::test]
async fn condition_that_failed_without_its_item_is_followed_by_requests() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let pair = requests(["a", "b", "c"]);
    let _ = claim_all(&store, &pair).await;
    let late = pair.clone().map(|request| ClaimRequest {
        owner: Owner::fresh(),
        ..request
    });
    dynamo.reset_counts();
    dynamo.fail("SettlementGroup", Fault::NoItems);
    let records = pair.map(|request| SettleResponse::ConditionFailed(Some(request.record(None))));
    assert_eq!(settle_all(&store, &late, complete).await, records);
    assert_sent!(dynamo, "SettlementGroup": 1, "UpdateItem": 3);
}

// ---- lost answers, drops, deadlines --------------------------------------------------------------

/// Two operations in the same turn, whose handlers return in the same turn. Returns each outcome, and
/// for each handler true if it was informed of an earlier attempt.
async fn run_both(
    once: &Once<Batched>,
    clock: fn() -> Timestamp,
    budget: Duration,
) -> ([Outcome; 2], Vec<bool>) {
    let (informed, both) = (Mutex::new(Vec::new()), Barrier::new(2));
    let run = |part| {
        let (informed, both) = (&informed, &both);
        once.run(
            operation(part, clock(), budget),
            async move |attempt: sqs_once::Attempt| {
                informed.lock().unwrap().push(attempt.prior().is_some());
                both.wait().await;
                Ok(())
            },
        )
    };
    let (a, b) = join(run("a"), run("b")).await;
    ([a, b], informed.into_inner().unwrap())
}

#[tokio::test]
async fn lost_answer_of_group_leaves_claims_fresh() {
    let dynamo = dynamo().await;
    dynamo.fail("ClaimGroup", Fault::CutAfter);
    dynamo.fail("SettlementGroup", Fault::CutAfter);
    let (outcomes, informed) = run_both(&Once::new(store(&dynamo)), Timestamp::now, PATIENCE).await;
    assert_eq!(outcomes.each_ref().map(Outcome::name), ["completed"; 2]);
    assert_eq!(informed, [false, false]);
    // The second group finds the records of the first.
    assert_sent!(dynamo, "Claim": 2, "ClaimGroup": 2, "SettlementGroup": 2);
    for item in dynamo.records(TABLE).await {
        assert_eq!(support::dynamo::number(&item, "attempts"), 1);
    }
}

/// The ordinary claim is denied, so it was not applied. The group may have been: the claim's lease
/// must end.
#[tokio::test]
async fn lost_group_before_denied_claim_is_abandoned() {
    let dynamo = dynamo().await;
    dynamo.fail("ClaimGroup", Fault::CutAfter);
    dynamo.fail_all("Claim", Fault::Denied);
    let (outcomes, informed) = run_both(&Once::new(store(&dynamo)), Timestamp::now, PATIENCE).await;
    assert_eq!(
        outcomes.each_ref().map(Outcome::name),
        ["store_unavailable"; 2]
    );
    assert_eq!(informed, [] as [bool; 0]);
    let records = dynamo.records(TABLE).await;
    assert_eq!(records.len(), 2);
    for item in records {
        let number = |name| support::dynamo::number(&item, name);
        assert!(number("lease_until") <= number("updated_at"), "{item:?}");
    }
}

/// The INSERT is on its way for as long as the worker works. The group's wait is at most half of the
/// time left, on a client without timeouts.
#[tokio::test]
async fn hanging_group_leaves_half_of_the_time() {
    let dynamo = dynamo().await;
    dynamo.fail("ClaimGroup", Fault::HoldRequest);
    dynamo.fail("SettlementGroup", Fault::HoldRequest);
    let once = Once::new(Batched::new(DynamoStore::new(dynamo.worker(None), TABLE)));
    let (outcomes, informed) = run_both(&once, Timestamp::now, 2 * SECOND).await;
    assert_eq!(outcomes.each_ref().map(Outcome::name), ["completed"; 2]);
    assert_eq!(informed, [false, false]);
    // The statements arrive now, and change nothing.
    let before: BTreeSet<String> = records_in_text(&dynamo).await;
    assert!(dynamo.heal().await.contains_key("ClaimGroup"));
    assert_eq!(records_in_text(&dynamo).await, before);
}

async fn records_in_text(dynamo: &Dynamo) -> BTreeSet<String> {
    let records = dynamo.records(TABLE).await;
    let sorted = |item: support::dynamo::Item| {
        let item: std::collections::BTreeMap<_, _> = item.into_iter().collect();
        format!("{item:?}")
    };
    records.into_iter().map(sorted).collect()
}

/// An INSERT is on its way while the claim is undone. So the claim's lease is ended, and the INSERT is
/// refused when it arrives.
#[tokio::test]
async fn insert_arriving_after_release_is_refused() {
    let dynamo = dynamo().await;
    dynamo.fail("ClaimGroup", Fault::HoldRequest);
    let once = Once::new(store(&dynamo));
    let release = |part| {
        once.run(operation(part, Timestamp::now(), 3 * SECOND), async |_| {
            Err::<(), _>(Failure::no_effect("closed"))
        })
    };
    let (a, b) = join(release("a"), release("b")).await;
    assert_eq!([a.name(), b.name()], ["no_effect"; 2]);
    let before = records_in_text(&dynamo).await;
    assert_eq!(before.len(), 2);
    assert_eq!(dynamo.heal().await["ClaimGroup"], 1);
    assert_eq!(records_in_text(&dynamo).await, before);
    let (outcomes, informed) = run_both(&once, Timestamp::now, PATIENCE).await;
    assert_eq!(outcomes.each_ref().map(Outcome::name), ["completed"; 2]);
    assert_eq!(informed, [false, false]);
}

/// A store on paused time, whose client has no timeouts.
async fn paused() -> (Dynamo, Batched) {
    let dynamo = Dynamo::in_memory();
    dynamo.create_table(TABLE).await;
    let store = Batched::new(DynamoStore::new(dynamo.worker(None), TABLE));
    (dynamo, store)
}

/// Waits until no task can go on. Time is paused, so it takes none.
async fn idle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Settles in a task of its own, in vain if the table holds the request back.
fn settle_in_task(store: &Batched, request: &ClaimRequest, settlement: Settlement) {
    let (store, request) = (store.clone(), request.clone());
    tokio::spawn(async move {
        let fence = request.fence();
        let answer = store
            .settle(&fence, &settlement, request.now, &CONTEXT)
            .await;
        drop(answer);
    });
}

/// With four requests in flight, a call waits for others. This one has no time for that.
#[tokio::test(start_paused = true)]
async fn completion_with_little_time_left_goes_alone() {
    for left in [20, 150, 300, 1000].map(Duration::from_millis) {
        let (dynamo, store) = paused().await;
        let requests: Vec<_> = (0..5).map(|n| request(&n.to_string())).collect();
        let _ = claim_all(&store, &requests).await;
        dynamo.reset_counts();
        for held in &requests[..4] {
            dynamo.fail("UpdateItem", Fault::HoldRequest);
            settle_in_task(&store, held, complete(held));
            idle().await;
        }
        assert_sent!(dynamo, "UpdateItem": 4);
        let last = &requests[4];
        let context = RequestContext::until(Instant::now() + left, &Meter::default());
        let (fence, complete) = (last.fence(), complete(last));
        let settled = store.settle(&fence, &complete, last.now, &context).await;
        assert_eq!(settled.unwrap(), SettleResponse::Applied, "{left:?}");
        assert_sent!(dynamo, "UpdateItem": 1);
    }
}

/// As many claims and releases as may be in flight hang, and others wait for their slots.
#[tokio::test(start_paused = true)]
async fn completions_pass_waiting_claims_and_releases() {
    let (dynamo, store) = paused().await;
    let requests: Vec<_> = (0..3).map(|n| request(&n.to_string())).collect();
    let _ = claim_all(&store, &requests).await;
    let later = CONTEXT.clone().expecting_record(true);
    for (operation, fault) in ["Claim", "ClaimGroup", "DeleteItem"].map(|o| (o, Fault::HoldRequest))
    {
        dynamo.fail_all(operation, fault);
    }
    dynamo.reset_counts();
    for n in 0..100 {
        let held = request(&format!("held {n}"));
        settle_in_task(&store, &held, Settlement::Restore(PriorState::over(None)));
        for context in [&later, &CONTEXT] {
            let (store, context) = (store.clone(), context.clone());
            tokio::spawn(
                async move { drop(store.claim(&request(&format!("{n}")), &context).await) },
            );
        }
    }
    idle().await;
    let in_flight: usize = dynamo.reset_counts().values().sum();
    assert!((48..=64).contains(&in_flight), "{in_flight} in flight");

    let began = Instant::now();
    let settled = settle_all(&store, &requests[..1], complete).await;
    assert_eq!(settled, [SettleResponse::Applied]);
    let settled = settle_all(&store, &requests[1..], complete).await;
    assert_eq!(settled, [SettleResponse::Applied, SettleResponse::Applied]);
    assert_sent!(dynamo, "SettlementGroup": 1, "UpdateItem": 1);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// The costs of a batch of messages.
#[tokio::test(start_paused = true)]
async fn batches_of_messages_share_requests() {
    let (dynamo, store) = paused().await;
    for (messages, claims, settlements) in [(1, 1, 1), (10, 1, 1), (100, 4, 4)] {
        let requests: Vec<_> = (0..messages)
            .map(|n| request(&format!("{messages} {n}")))
            .collect();
        dynamo.reset_counts();
        let _ = claim_all(&store, &requests).await;
        assert_eq!(dynamo.reset_counts().values().sum::<usize>(), claims);
        let _ = settle_all(&store, &requests, complete).await;
        assert_eq!(dynamo.reset_counts().values().sum::<usize>(), settlements);
    }
}

#[tokio::test]
async fn dropped_call_spares_its_group() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let [dropped, kept] = requests(["a", "b"]);
    dynamo.fail("ClaimGroup", Fault::HoldAnswer);
    let mut dropped = Box::pin(store.claim(&dropped, &CONTEXT));
    let mut kept = Box::pin(store.claim(&kept, &CONTEXT));
    let held_back = async {
        while dynamo.met("ClaimGroup") == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = &mut dropped => panic!("{answer:?}"),
        answer = &mut kept => panic!("{answer:?}"),
        () = held_back => {}
    }
    drop(dropped);
    let (answer, met) = join(kept, dynamo.heal()).await;
    assert_eq!(met["ClaimGroup"], 1);
    assert_eq!(answer.unwrap(), FRESH);
    assert_sent!(dynamo, "ClaimGroup": 1);
}

/// The first call of a turn would start the group. Dropped before, it leaves that to the others.
#[tokio::test]
async fn first_call_dropped_in_its_turn_starves_none() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let requests = requests(["a", "b", "c"]);
    let mut first = Box::pin(store.claim(&requests[0], &CONTEXT));
    assert!(futures_util::poll!(&mut first).is_pending());
    drop(first);
    assert_eq!(claim_all(&store, &requests[1..]).await, [FRESH, FRESH]);
    assert!(record(&dynamo, "a").await.is_none());
    assert_sent!(dynamo, "ClaimGroup": 1);
}

/// Calls of two runtimes share a group. The one that sends it ends.
#[test]
fn end_of_a_runtime_hangs_no_call_of_another() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (server, doomed, living) = (runtime(), runtime(), runtime());
    let dynamo = server.block_on(dynamo());
    let store = store(&dynamo);
    let [theirs, ours] = requests(["a", "b"]);
    let mut claim = Box::pin(store.claim(&ours, &CONTEXT));
    // In the queue, before its turn.
    living.block_on(async { assert!(futures_util::poll!(&mut claim).is_pending()) });
    dynamo.fail_all("ClaimGroup", Fault::HoldRequest);
    doomed.spawn({
        let store = store.clone();
        async move { store.claim(&theirs, &CONTEXT).await }
    });
    while dynamo.counts().is_empty() {
        std::thread::yield_now();
    }
    doomed.shutdown_background();
    let unanswered = living.block_on(claim).unwrap_err();
    assert!(unanswered.may_have_been_applied());
    assert_eq!(
        living.block_on(store.claim(&ours, &CONTEXT)).unwrap(),
        FRESH
    );
}

#[test]
fn debug_text_of_a_store_holds_no_payload() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = store(&Dynamo::start().await);
        let request = request("private-order");
        let mut call = Box::pin(store.claim(&request, &CONTEXT));
        assert!(futures_util::poll!(&mut call).is_pending());
        assert!(!format!("{store:?}").contains("private-order"));
    });
}
