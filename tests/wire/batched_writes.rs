//! Batches of swaps in one `BatchExecuteStatement`: the traps of that operation, and the ordinary request that follows
//! each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use aws_sdk_dynamodb::types::{AttributeValue, BatchStatementRequest};
use futures_util::future::{join, join_all};
use serde_json::Value;
use sqs_once::{
    Deadline, Failure, Once, Operation, Outcome,
    internal::{Delivery, Meter, Refused, Writes},
    protocol::{
        AttemptEnd, Claim, Effect, End, Expect, Key, Owner, Record, StoredResult, Swap, Timestamp,
    },
    store::{Batched, DynamoStore, RequestContext, Store, Swapped},
};
use support::{
    CONTEXT, NOTHING, PATIENCE,
    consumer::namespace,
    dynamo::{Dynamo, Item, attempts, number},
    faults::Fault,
    log,
};
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

/// A first claim.
fn claim(part: impl AsRef<str>) -> Swap {
    Swap {
        key: key(part.as_ref()),
        expect: Expect::Absent,
        to: Record::claimed(&new_claim(), 1, None, None),
    }
}

fn new_claim() -> Claim {
    let now = Timestamp::now();
    let expires_at = (now + 3600 * SECOND).as_secs();
    Claim::new(Owner::fresh(), "m-1", now, now + 30 * SECOND, expires_at)
}

/// The swap that ends a claim.
fn end(claim: &Swap, end: &End) -> Swap {
    let now = claim.to.updated_at + SECOND;
    Swap {
        key: claim.key.clone(),
        expect: Expect::Unchanged(claim.to.clone()),
        to: claim.to.ended(None, end, claim.to.stamp.version + 1, now),
    }
}

fn complete(claim: &Swap) -> Swap {
    complete_with(claim, "1")
}

fn complete_with(claim: &Swap, result: &str) -> Swap {
    let result = StoredResult::Json(result.into());
    let expires_at = claim.to.expires_at + 60;
    end(claim, &End::Completed { result, expires_at })
}

fn fail(claim: &Swap) -> Swap {
    let failed = End::Failed {
        error: "declined".into(),
        effect: Effect::Possible,
        sent_at: None,
        expires_at: claim.to.expires_at + 60,
    };
    end(claim, &failed)
}

/// The claim of another attempt, over the record that a swap wrote.
fn take_over(before: &Swap) -> Swap {
    let version = before.to.stamp.version + 1;
    Swap {
        key: before.key.clone(),
        expect: Expect::Unchanged(before.to.clone()),
        to: Record::claimed(&new_claim(), version, Some(&before.to), None),
    }
}

/// Sends swaps in the same turn of the runtime, and those without an answer again, also in one turn: callers that
/// wait for their own timeouts would send their copies one after the other.
async fn swap_all(store: &impl Store<With = Writes>, swaps: &[Swap]) -> Vec<Swapped<Refused>> {
    swap_all_within(store, swaps, &CONTEXT).await
}

async fn swap_all_within(
    store: &impl Store<With = Writes>,
    swaps: &[Swap],
    context: &RequestContext,
) -> Vec<Swapped<Refused>> {
    let mut answers: Vec<_> = swaps.iter().map(|_| None).collect();
    for _copy in 0..3 {
        let open = answers.iter_mut().zip(swaps);
        let open = open.filter(|(answer, _)| answer.is_none());
        join_all(
            open.map(async |(answer, swap)| {
                *answer = store.swap(swap, &NOTHING, context).await.ok()
            }),
        )
        .await;
    }
    answers.into_iter().map(Option::unwrap).collect()
}

/// Sends swaps that are all applied.
async fn apply_all(store: &impl Store<With = Writes>, swaps: &[Swap]) {
    assert_applied(&swap_all(store, swaps).await);
}

#[track_caller]
fn assert_applied(answers: &[Swapped<Refused>]) {
    let applied = answers.iter().all(|answer| *answer == Swapped::Applied);
    assert!(applied, "{answers:?}");
}

fn found(swap: &Swap) -> Swapped<Refused> {
    Swapped::Found(Some(swap.to.clone()))
}

fn counts(dynamo: &Dynamo) -> Vec<(String, usize)> {
    dynamo.reset_counts().into_iter().collect()
}

/// Requests by name, in the order of the names.
macro_rules! assert_sent {
    ($dynamo:expr, $($name:literal: $count:expr),*) => {
        assert_eq!(counts(&$dynamo), [$(($name.to_owned(), $count)),*]);
    };
}

fn operation(part: &str, now: Timestamp, budget: Duration) -> Operation {
    let deadline = Deadline::after(now, budget, budget / 4);
    Operation::new(key(part), None, Delivery::new(part), deadline)
}

// ---- batches -------------------------------------------------------------------------------------

/// The costs of a batch of messages.
#[tokio::test(start_paused = true)]
async fn calls_of_one_turn_share_requests() {
    let (dynamo, store) = paused().await;
    for (messages, batches) in [(2, 1), (10, 1), (25, 1), (27, 2), (100, 4), (205, 9)] {
        let claims: Vec<_> = (0..messages)
            .map(|n| claim(format!("{messages} {n}")))
            .collect();
        let completions: Vec<_> = claims.iter().map(complete).collect();
        dynamo.reset_counts();
        apply_all(&store, &claims).await;
        assert_sent!(dynamo, "ClaimGroup": batches);
        apply_all(&store, &completions).await;
        assert_sent!(dynamo, "SettlementGroup": batches);
        let failures: Vec<_> = claims.iter().map(fail).collect();
        let answers = swap_all(&store, &failures).await;
        assert_eq!(answers, completions.iter().map(found).collect::<Vec<_>>());
        assert_sent!(dynamo, "SettlementGroup": batches);
    }
}

#[tokio::test]
async fn lone_call_is_the_ordinary_request() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let claim = claim("a");
    apply_all(&store, std::slice::from_ref(&claim)).await;
    apply_all(&store, &[complete(&claim)]).await;
    assert_sent!(dynamo, "Claim": 1, "UpdateItem": 1);
}

/// A retry reads, and its claim is an `UPDATE`.
#[tokio::test]
async fn claims_over_records_share_requests() {
    let dynamo = dynamo().await;
    let once = Once::new(store(&dynamo));
    let deliver = async |part: &str, receive_count| {
        let mut operation = operation(part, Timestamp::now(), 30 * SECOND);
        operation.delivery = operation.delivery.receive_count(receive_count);
        let busy = async |_| Err::<(), _>(Failure::retryable("busy"));
        once.run(operation, busy).await
    };
    for (receive_count, reads) in [(1, None), (2, Some(("GetItem".to_owned(), 2)))] {
        // A lease that has just ended lasts until the next millisecond.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let (a, b) = join(deliver("a", receive_count), deliver("b", receive_count)).await;
        assert_eq!([a.name(), b.name()], ["retryable_failure"; 2]);
        // Ends of leases are never in a batch.
        let claims = Some(("ClaimGroup".to_owned(), 1));
        let sent = [claims, reads, Some(("UpdateItem".to_owned(), 2))];
        assert_eq!(
            counts(&dynamo),
            sent.into_iter().flatten().collect::<Vec<_>>()
        );
    }
}

/// Tasks on several threads push and leave the queue at any time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_of_several_threads_are_all_answered() {
    let dynamo = dynamo().await;
    let store = Batched::new(DynamoStore::new(dynamo.worker(None), TABLE));
    let tasks = (0..400).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let claim = claim(n.to_string());
            for swap in [&claim, &complete(&claim)] {
                let answer = store.swap(swap, &NOTHING, &CONTEXT).await.unwrap();
                assert!(
                    answer == Swapped::Applied || answer == found(swap),
                    "{answer:?}"
                );
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let sent: usize = dynamo.reset_counts().values().sum();
    assert!(sent < 800, "{sent} requests for 800 writes");
}

#[tokio::test]
async fn ends_of_leases_and_large_results_are_never_batched() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let largest = "1".repeat(16 * 1024);
    type MakeEnd<'a> = &'a dyn Fn(&Swap) -> Swap;
    let ends: [(MakeEnd<'_>, _, _); 4] = [
        (&|swap| complete_with(swap, &largest), "SettlementGroup", 1),
        (
            &|swap| complete_with(swap, &format!("{largest}1")),
            "UpdateItem",
            2,
        ),
        (
            &|swap| end(swap, &End::Open(AttemptEnd::Retryable)),
            "UpdateItem",
            2,
        ),
        (
            &|swap| end(swap, &End::Undone { began: false }),
            "UpdateItem",
            2,
        ),
    ];
    for (n, (end, request, number)) in ends.into_iter().enumerate() {
        let pair = ["a", "b"].map(|part| claim(format!("{part} {n}")));
        apply_all(&store, &pair).await;
        dynamo.reset_counts();
        apply_all(&store, &pair.each_ref().map(end)).await;
        assert_eq!(counts(&dynamo), [(request.to_owned(), number)], "{n}");
    }
}

// ---- answers -------------------------------------------------------------------------------------

/// `DuplicateItem` comes without the item.
#[tokio::test]
async fn refused_insert_is_followed_by_a_read() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let first = claim("a");
    apply_all(&store, std::slice::from_ref(&first)).await;
    dynamo.reset_counts();
    let answers = swap_all(&store, &[claim("a"), claim("b")]).await;
    assert_eq!(answers, [found(&first), Swapped::Applied]);
    assert_sent!(dynamo, "ClaimGroup": 1, "GetItem": 1);
}

/// With `ALL_OLD`, the answer to a refused `UPDATE` has the record. Without a record, the ordinary request follows,
/// and creates none.
#[tokio::test]
async fn refused_update_is_answered_with_its_record() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let pair = [claim("a"), claim("b")];
    for refused in [complete, fail, take_over] {
        let refused = pair.each_ref().map(refused);
        let answers = swap_all(&store, &refused).await;
        assert_eq!(answers, [Swapped::Found(None), Swapped::Found(None)]);
    }
    assert_sent!(dynamo, "Claim": 2, "ClaimGroup": 1, "SettlementGroup": 2, "UpdateItem": 4);
    assert_eq!(dynamo.records(TABLE).await, []);

    apply_all(&store, &pair).await;
    let done = pair.each_ref().map(complete);
    apply_all(&store, &done).await;
    dynamo.reset_counts();
    for refused in [complete, fail, take_over] {
        let answers = swap_all(&store, &pair.each_ref().map(refused)).await;
        // A take-over has an owner of its own.
        assert_eq!(answers, done.each_ref().map(found));
    }
    assert_sent!(dynamo, "ClaimGroup": 1, "SettlementGroup": 2);
}

/// As DynamoDB Local answers: each ordinary request returns the record.
#[tokio::test]
async fn condition_that_failed_without_its_item_is_followed_by_requests() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let held = ["a", "b", "c"].map(claim);
    apply_all(&store, &held).await;
    let done = held.each_ref().map(complete);
    apply_all(&store, &done).await;
    dynamo.reset_counts();
    dynamo.fail("SettlementGroup", Fault::NoItems);
    let answers = swap_all(&store, &held.each_ref().map(fail)).await;
    assert_eq!(answers, done.each_ref().map(found));
    assert_sent!(dynamo, "SettlementGroup": 1, "UpdateItem": 3);
}

/// DynamoDB refuses a whole request with the same key twice.
#[tokio::test]
async fn same_key_twice_is_never_in_one_batch() {
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
    let same = ["a", "a", "b", "a"].map(claim);
    let answers = swap_all(&store, &same).await;
    // The batch and the lone requests are under way at the same time, so any of the three may arrive first.
    let first = [0, 1, 3]
        .into_iter()
        .find(|n| answers[*n] == Swapped::Applied);
    let first = first.expect("one of the three claims is applied");
    let expected = [0, 1, 2, 3].map(|n| match n {
        2 => Swapped::Applied,
        n if n == first => Swapped::Applied,
        _ => found(&same[first]),
    });
    assert_eq!(answers, expected);
    let mut sent = dynamo.reset_counts();
    // The read after an `INSERT` that was refused in the batch.
    assert_eq!(sent.remove("GetItem"), (first != 0).then_some(1));
    let lone = [("Claim".to_owned(), 2), ("ClaimGroup".to_owned(), 1)];
    assert_eq!(sent.into_iter().collect::<Vec<_>>(), lone);
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
        let pair = ["a", "b"].map(|part| claim(format!("{code} {part}")));
        dynamo.fail("ClaimGroup", Fault::FirstStatement(code));
        apply_all(&store, &pair).await;
        assert_sent!(dynamo, "Claim": 1, "ClaimGroup": 1);
        dynamo.fail("SettlementGroup", Fault::FirstStatement(code));
        apply_all(&store, &pair.each_ref().map(complete)).await;
        assert_sent!(dynamo, "SettlementGroup": 1, "UpdateItem": 1);
    }
}

#[tokio::test]
async fn failed_batch_goes_out_again_as_a_batch() {
    let dynamo = dynamo().await;
    for fault in [
        Fault::Throttle,
        Fault::InternalError,
        Fault::CutBefore,
        Fault::HoldRequest,
    ] {
        let store = store(&dynamo);
        dynamo.fail("ClaimGroup", fault);
        let pair = ["a", "b"].map(|part| claim(format!("{fault:?} {part}")));
        apply_all(&store, &pair).await;
        assert_sent!(dynamo, "ClaimGroup": 2);
        dynamo.heal().await;
    }
}

/// Something on the way lets no batches through.
#[tokio::test]
async fn second_batch_without_answer_is_followed_by_single_requests() {
    let dynamo = dynamo().await;
    for fault in [Fault::InternalError, Fault::CutBefore] {
        let store = store(&dynamo);
        dynamo.fail_all("ClaimGroup", fault);
        let pair = ["a", "b"].map(|part| claim(format!("{fault:?} {part}")));
        apply_all(&store, &pair).await;
        assert_sent!(dynamo, "Claim": 2, "ClaimGroup": 2);
        dynamo.heal().await;
    }
}

// ---- the end of batching -------------------------------------------------------------------------

/// Claims this number of pairs, one pair after the other, while each batch that `meets` names meets the fault. Returns
/// the number of batches, and whether the metric says that they ended.
async fn claim_pairs(
    dynamo: &Dynamo,
    fault: Fault,
    pairs: usize,
    meets: impl Fn(usize) -> bool,
) -> (usize, bool) {
    let (store, meter) = (store(dynamo), Meter::default());
    dynamo.reset_counts();
    for n in 0..pairs {
        if meets(n) {
            dynamo.fail("ClaimGroup", fault);
        }
        let pair = [0, 1].map(|m| claim(format!("{fault:?} {pairs} {n} {m}")));
        let context = RequestContext::until(Instant::now() + 10 * SECOND, &meter);
        let answers = swap_all_within(&store.clone(), &pair, &context).await;
        for (answer, swap) in answers.iter().zip(&pair) {
            // A copy of a claim without an answer finds its own record.
            assert!(
                *answer == Swapped::Applied || *answer == found(swap),
                "{answer:?}"
            );
        }
    }
    dynamo.heal().await;
    let batches = dynamo.reset_counts()["ClaimGroup"];
    (batches, meter.readings().batches_ended)
}

/// The first batch meets the fault and is the last. Returns the one warning.
async fn assert_first_batch_is_last(dynamo: &Dynamo, fault: Fault) -> Value {
    let ended = claim_pairs(dynamo, fault, 3, |n| n == 0).await;
    assert_eq!(ended, (1, true), "{fault:?}");
    let mut lines = log::lines_containing("each write is sent alone for an hour");
    let line = lines.pop().unwrap();
    assert!(lines.is_empty(), "{fault:?}");
    assert_eq!(line["fields"]["table"], TABLE);
    line["fields"].clone()
}

#[tokio::test]
async fn denied_access_ends_batching_with_a_warning() {
    log::start();
    let dynamo = dynamo().await;
    for fault in [Fault::Denied, Fault::FirstStatement("AccessDenied")] {
        let line = assert_first_batch_is_last(&dynamo, fault).await;
        let needs = line["needs"].as_str().unwrap();
        assert!(needs.contains("dynamodb:PartiQLInsert"), "{needs}");
    }
}

#[tokio::test]
async fn unknown_answer_ends_batching_with_a_warning() {
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
        let line = assert_first_batch_is_last(&dynamo, fault).await;
        assert_eq!(line["answer"], answer);
    }
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
    let claims: Vec<_> = (0..5).map(|n| claim(n.to_string())).collect();
    apply_all(&store, &claims).await;
    dynamo.reset_counts();
    dynamo.fail_all("SettlementGroup", Fault::FirstStatement("ValidationError"));
    for held in &claims {
        let answers = swap_all(&store, &[complete(held), complete(&claim("absent"))]).await;
        assert_eq!(answers, [Swapped::Applied, Swapped::Found(None)]);
    }
    assert_sent!(dynamo, "SettlementGroup": 3, "UpdateItem": 10);
    assert_eq!(log::lines_containing("sent alone for an hour").len(), 1);
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
async fn lost_answer_of_batch_leaves_claims_fresh() {
    let dynamo = dynamo().await;
    dynamo.fail("ClaimGroup", Fault::CutAfter);
    dynamo.fail("SettlementGroup", Fault::CutAfter);
    let (outcomes, informed) = run_both(&Once::new(store(&dynamo)), Timestamp::now, PATIENCE).await;
    assert_eq!(outcomes.each_ref().map(Outcome::name), ["completed"; 2]);
    assert_eq!(informed, [false, false]);
    // The second batch finds the records of the first.
    assert_sent!(dynamo, "ClaimGroup": 2, "GetItem": 2, "SettlementGroup": 2);
    for item in dynamo.records(TABLE).await {
        assert_eq!(attempts(&item), 1);
    }
}

/// The read after the refused `INSERT` is denied, so nothing is known. The batch was applied: the claim's lease must
/// end.
#[tokio::test]
async fn lost_batch_before_denied_read_is_abandoned() {
    let dynamo = dynamo().await;
    dynamo.fail("ClaimGroup", Fault::CutAfter);
    dynamo.fail_all("GetItem", Fault::Denied);
    // The copies of the two claims follow different pauses, so each is alone.
    let store = Batched::with_lone_calls(DynamoStore::new(dynamo.worker(None), TABLE));
    let (outcomes, informed) = run_both(&Once::new(store), Timestamp::now, PATIENCE).await;
    assert_eq!(
        outcomes.each_ref().map(Outcome::name),
        ["store_unavailable"; 2]
    );
    assert_eq!(informed, [] as [bool; 0]);
    let records = dynamo.records(TABLE).await;
    assert_eq!(records.len(), 2);
    for item in records {
        let number = |name| number(&item, name);
        assert!(number("lease_until") <= number("updated_at"), "{item:?}");
        assert!(!item.contains_key("first_claimed_at"), "{item:?}");
    }
}

/// The INSERT is on its way for as long as the worker works. The batch's wait is at most half of the
/// time left, on a client without timeouts.
#[tokio::test]
async fn hanging_batch_leaves_half_of_the_time() {
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
    let sorted = |item: Item| {
        let item: BTreeMap<_, _> = item.into_iter().collect();
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

/// Swaps in a task of its own, in vain if the table holds the request back.
fn swap_in_task(store: &Batched, swap: Swap) {
    let store = store.clone();
    tokio::spawn(async move { drop(store.swap(&swap, &NOTHING, &CONTEXT).await) });
}

/// Sends four completions that the table holds back.
async fn four_in_flight(dynamo: &Dynamo, store: &Batched, claims: &[Swap]) {
    for held in &claims[..4] {
        dynamo.fail("UpdateItem", Fault::HoldRequest);
        swap_in_task(store, complete(held));
        idle().await;
    }
    assert_sent!(dynamo, "UpdateItem": 4);
}

/// With four requests in flight, a call waits for others. This one has no time for that.
#[tokio::test(start_paused = true)]
async fn completion_with_little_time_left_goes_alone() {
    for left in [20, 150, 300, 1000].map(Duration::from_millis) {
        let (dynamo, store) = paused().await;
        let claims: Vec<_> = (0..5).map(|n| claim(n.to_string())).collect();
        apply_all(&store, &claims).await;
        dynamo.reset_counts();
        four_in_flight(&dynamo, &store, &claims).await;
        let context = RequestContext::until(Instant::now() + left, &Meter::default());
        let answer = store.swap(&complete(&claims[4]), &NOTHING, &context).await;
        assert_eq!(answer.unwrap(), Swapped::Applied, "{left:?}");
        assert_sent!(dynamo, "UpdateItem": 1);
    }
}

/// While four requests are in flight, calls wait for each other at most 100 ms.
#[tokio::test(start_paused = true)]
async fn calls_wait_for_others_behind_four_requests() {
    let (dynamo, store) = paused().await;
    let claims: Vec<_> = (0..7).map(|n| claim(n.to_string())).collect();
    apply_all(&store, &claims).await;
    dynamo.reset_counts();
    four_in_flight(&dynamo, &store, &claims).await;
    let began = Instant::now();
    for later in &claims[4..6] {
        swap_in_task(&store, complete(later));
        idle().await;
    }
    assert!(dynamo.reset_counts().is_empty());
    apply_all(&store, &[complete(&claims[6])]).await;
    assert_sent!(dynamo, "SettlementGroup": 1);
    let waited = began.elapsed();
    assert!(waited <= Duration::from_millis(102), "{waited:?}");
}

/// As many claims and ends of leases as may be in flight hang, and others wait for their slots.
#[tokio::test(start_paused = true)]
async fn completions_pass_waiting_claims_and_releases() {
    let (dynamo, store) = paused().await;
    let claims = ["a", "b"].map(claim);
    apply_all(&store, &claims).await;
    for operation in ["Claim", "ClaimGroup", "UpdateItem", "GetItem"] {
        dynamo.fail_all(operation, Fault::HoldRequest);
    }
    dynamo.reset_counts();
    for n in 0..100 {
        let held = claim(format!("held {n}"));
        swap_in_task(&store, end(&held, &End::Undone { began: false }));
        swap_in_task(&store, claim(n.to_string()));
        swap_in_task(&store, take_over(&held));
        let (store, key) = (store.clone(), held.key);
        tokio::spawn(async move { drop(store.get(&key, &CONTEXT).await) });
    }
    idle().await;
    let in_flight: usize = dynamo.reset_counts().values().sum();
    assert!((48..=64).contains(&in_flight), "{in_flight} in flight");

    let began = Instant::now();
    apply_all(&store, &claims.each_ref().map(complete)).await;
    assert_sent!(dynamo, "SettlementGroup": 1);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn dropped_call_spares_its_batch() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let [dropped, kept] = ["a", "b"].map(claim);
    dynamo.fail("ClaimGroup", Fault::HoldAnswer);
    let mut dropped = Box::pin(store.swap(&dropped, &NOTHING, &CONTEXT));
    let mut kept = Box::pin(store.swap(&kept, &NOTHING, &CONTEXT));
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
    assert_eq!(answer.unwrap(), Swapped::Applied);
    assert_sent!(dynamo, "ClaimGroup": 1);
}

/// The first call of a turn would start the batch. Dropped before, it leaves that to the others.
#[tokio::test]
async fn first_call_dropped_in_its_turn_starves_none() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let claims = ["a", "b", "c"].map(claim);
    let mut first = Box::pin(store.swap(&claims[0], &NOTHING, &CONTEXT));
    assert!(futures_util::poll!(&mut first).is_pending());
    drop(first);
    apply_all(&store, &claims[1..]).await;
    assert_eq!(dynamo.record(TABLE, key("a").as_str()).await, None);
    assert_sent!(dynamo, "ClaimGroup": 1);
}

/// Calls of two runtimes share a batch. The one that sends it ends.
#[test]
fn end_of_a_runtime_hangs_no_call_of_another() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (server, doomed, living) = (runtime(), runtime(), runtime());
    let dynamo = server.block_on(dynamo());
    let store = store(&dynamo);
    let [theirs, ours] = ["a", "b"].map(claim);
    let mut call = Box::pin(store.swap(&ours, &NOTHING, &CONTEXT));
    // In the queue, before its turn.
    living.block_on(async { assert!(futures_util::poll!(&mut call).is_pending()) });
    dynamo.fail_all("ClaimGroup", Fault::HoldRequest);
    doomed.spawn({
        let store = store.clone();
        async move { store.swap(&theirs, &NOTHING, &CONTEXT).await }
    });
    while dynamo.counts().is_empty() {
        std::thread::yield_now();
    }
    doomed.shutdown_background();
    let unanswered = living.block_on(call).unwrap_err();
    assert!(unanswered.may_have_been_applied());
    let answer = living
        .block_on(store.swap(&ours, &NOTHING, &CONTEXT))
        .unwrap();
    assert_eq!(answer, Swapped::Applied);
}

#[test]
fn debug_text_of_a_store_holds_no_payload() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = store(&Dynamo::start().await);
        let claim = claim("private-order");
        let mut call = Box::pin(store.swap(&claim, &NOTHING, &CONTEXT));
        assert!(futures_util::poll!(&mut call).is_pending());
        assert!(!format!("{store:?}").contains("private-order"));
    });
}
