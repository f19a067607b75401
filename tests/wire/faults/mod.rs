//! Injected faults between the consumer and its table, at every request of the protocol. The real SDK talks
//! to a DynamoDB that fails on purpose: in memory and on paused time, where a test is about time, and else over HTTP.

mod results;
mod story;

use std::{
    io,
    num::NonZeroUsize,
    sync::{Arc, OnceLock},
    time::Duration,
};

use aws_config::{retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata as _, SdkError},
    operation::scan::ScanError,
};
use futures_util::future::join_all;
use sqs_once::{
    Attempt, Consumer, Deadline, Once, Operation, handler_fn,
    internal::Delivery,
    protocol::{Key, Timestamp},
    store::{AnyStore, Batched, DynamoStore},
};
use story::{Act, Before, FaultDuration, Grouping, RecordState, Step, Story, TABLE, When};
use support::{
    PATIENCE,
    consumer::{namespace, process, within},
    dynamo::Dynamo,
    event::{batch, record},
    faults::Fault,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A fault, and whether DynamoDB applies the request. Each is repeated at least once.
type Row = (Fault, bool);

const FAULTS: [Row; 14] = [
    (Fault::CutBefore, false),
    (Fault::CutAfter, true),
    (Fault::HalfAnswer, true),
    (Fault::Garbage, true),
    (Fault::GarbageInstead, false),
    (Fault::HoldRequest, false),
    (Fault::HoldAnswer, true),
    (Fault::Throttle, false),
    (Fault::ThroughputExceeded, false),
    (Fault::InternalError, false),
    (Fault::Unavailable, false),
    (Fault::Refuse, false),
    (Fault::TransactionConflict, false),
    (Fault::Denied, false),
];

const EMPTY: [Row; 2] = [(Fault::Empty, true), (Fault::EmptyInstead, false)];

#[rustfmt::skip]
const STEPS: [Step; 13] = {
    use {Act::*, Before::{Delivery, OtherMessage, UnansweredClaim}, RecordState::{Completed, Dead, Failed, Live, Undone}};
    [
        step("claim", "Claim", Before::Nothing, &[Succeed], [Completed, Undone, RecordState::Nothing]),
        step("retry's read", "GetItem", Delivery, &[Fail, Succeed], [Completed, Dead, Dead]),
        step("retry's claim", "Claim", Delivery, &[Panic, Succeed], [Completed, Dead, Dead]),
        step("duplicate's read", "GetItem", Delivery, &[Succeed], [Completed, Completed, Completed]),
        step("second message's claim", "Claim", OtherMessage, &[Succeed], [Completed, Completed, Completed]),
        step("complete", "UpdateItem", Before::Nothing, &[Succeed], [Completed, Completed, Live]),
        step("fail", "UpdateItem", Before::Nothing, &[Decline], [Failed, Failed, Live]),
        step("end of the lease", "UpdateItem", Before::Nothing, &[Fail], [Dead, Dead, Live]),
        step("undo", "UpdateItem", Before::Nothing, &[NoEffect], [Undone, Undone, Live]),
        step("retry's undo", "UpdateItem", Delivery, &[Panic, NoEffect], [Dead, Dead, Live]),
        step("end of the lease after a panic", "UpdateItem", Before::Nothing, &[Panic], [Dead, Dead, Live]),
        step("end of the lease at the deadline", "UpdateItem", Before::Nothing, &[Hang], [Dead, Dead, Live]),
        step("end of an unanswered claim's lease", "UpdateItem", UnansweredClaim, &[Succeed], [Undone, Undone, Live]),
    ]
};

const fn step(
    name: &'static str,
    request: &'static str,
    before: Before,
    acts: &'static [Act],
    [answered, applied, not_applied]: [RecordState; 3],
) -> Step {
    Step {
        name,
        request,
        before,
        acts,
        answered,
        applied,
        not_applied,
    }
}

/// Every fault at every step, run once and shared by all tests.
fn stories() -> &'static [(Story, Row)] {
    static STORIES: OnceLock<Vec<(Story, Row)>> = OnceLock::new();
    STORIES.get_or_init(|| live(&FAULTS))
}

fn live(faults: &[Row]) -> Vec<(Story, Row)> {
    let mut plots = Vec::new();
    let ungrouped = STEPS.map(|step| (Grouping::Off, step));
    // The other steps are the same with and without groups.
    let grouped = STEPS.into_iter().filter(|step| step.group().is_some());
    let grouped = grouped.map(|step| (Grouping::On, step));
    for (grouping, step) in ungrouped.into_iter().chain(grouped) {
        for row in faults {
            let lastings: &[FaultDuration] = match row.0 {
                Fault::Refuse => &[FaultDuration::Throughout],
                Fault::HoldRequest | Fault::HoldAnswer => &[
                    FaultDuration::Once,
                    FaultDuration::Throughout,
                    FaultDuration::UntilTheDeadline,
                ],
                _ => &[FaultDuration::Once, FaultDuration::Throughout],
            };
            let lastings = lastings.iter();
            plots.extend(lastings.map(|lasting| (grouping, step, *row, *lasting)));
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let share = plots.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let shares = plots.chunks(share);
        let shares = shares.map(|share| scope.spawn(move || share.iter().map(live_one).collect()));
        let threads: Vec<_> = shares.collect();
        let lived = threads.into_iter().map(|thread| thread.join().unwrap());
        lived.flat_map(|stories: Vec<_>| stories).collect()
    })
}

type Plot = (Grouping, Step, Row, FaultDuration);

fn live_one(&(grouping, step, row, lasting): &Plot) -> (Story, Row) {
    let mut paused = tokio::runtime::Builder::new_current_thread();
    let runtime = paused.enable_all().start_paused(true).build().unwrap();
    let story = Story::live(grouping, step, row.0, lasting);
    (runtime.block_on(story), row)
}

/// True if the failed request received a response in the end.
fn answered(story: &Story) -> bool {
    let step = &story.step;
    // The ordinary request follows a group.
    if story.grouping == Grouping::On {
        return story.lasting != FaultDuration::Throughout;
    }
    let repeated = step.before != Before::UnansweredClaim;
    story.lasting == FaultDuration::Once && repeated
}

#[test]
fn every_story_meets_its_fault() {
    for (story, _) in stories() {
        assert!(story.met > 0, "{story}");
    }
}

/// Promise 5.
#[test]
fn acknowledged_message_is_completed() {
    for (story, _) in stories() {
        acknowledged_only_if_completed(story);
    }
}

fn acknowledged_only_if_completed(story: &Story) {
    for delivery in &story.deliveries {
        let completed = delivery.left == RecordState::Completed;
        assert!(completed || !delivery.acknowledged, "{story}");
    }
}

/// Promise 5.
#[test]
fn result_is_never_overwritten() {
    for (story, _) in stories() {
        let mut results = story.deliveries.iter().filter_map(|d| d.result.as_ref());
        let first = results.next();
        assert!(results.all(|result| Some(result) == first), "{story}");
    }
}

#[test]
fn batch_is_answered_before_deadline() {
    for (story, _) in stories() {
        let in_time = story.deliveries.iter().all(|d| d.in_time);
        assert!(in_time, "{story}");
    }
}

/// Promise 3.
#[test]
fn repeated_effect_is_announced_to_handler() {
    for (story, _) in stories() {
        assert_informed_of_effects(story);
    }
}

/// Only a run that declares so is sure to have had no effect.
fn assert_informed_of_effects(story: &Story) {
    let mut effects = std::collections::BTreeMap::<_, usize>::new();
    for run in &story.runs {
        let effects = effects.entry(&run.key).or_default();
        assert!(*effects == 0 || run.informed, "{story}");
        *effects += usize::from(run.act != Act::NoEffect);
    }
}

#[test]
fn retried_fault_changes_nothing() {
    for (story, row) in stories().iter().filter(|(story, _)| answered(story)) {
        let (step, first) = (&story.step, story.first());
        let succeeds = step.answered == RecordState::Completed;
        let runs = step.before != Before::UnansweredClaim && first.found != RecordState::Completed;
        let seen = (first.acknowledged, first.runs.len(), first.left);
        assert_eq!(
            seen,
            (succeeds, usize::from(runs), step.answered),
            "{row:?} {story}"
        );
    }
}

#[test]
fn unanswered_request_fails_message_and_keeps_write() {
    for (story, row) in stories().iter().filter(|(story, _)| !answered(story)) {
        let (step, first) = (&story.step, story.first());
        let (_, applied) = *row;
        let left = if applied {
            step.applied
        } else {
            step.not_applied
        };
        // An unanswered read or claim runs no handler.
        let claims = ["GetItem", "Claim"].contains(&step.request);
        let claimed = !claims && step.before != Before::UnansweredClaim;
        let seen = (first.acknowledged, first.runs.len(), first.left);
        assert_eq!(seen, (false, usize::from(claimed), left), "{row:?} {story}");
    }
}

/// Promise 2.
#[test]
fn redelivery_after_fault_follows_record() {
    for (story, _) in stories() {
        for redelivery in story.redeliveries() {
            let informed: Vec<_> = redelivery.runs.iter().map(|run| run.informed).collect();
            let seen = (&informed[..], redelivery.acknowledged, redelivery.left);
            let expected: (&[bool], bool, RecordState) = match (redelivery.found, redelivery.when) {
                (RecordState::Nothing | RecordState::Undone, _) => {
                    (&[false], true, RecordState::Completed)
                }
                (RecordState::Live, When::Now) => (&[], false, RecordState::Live),
                (RecordState::Dead, _) | (RecordState::Live, When::Later) => {
                    (&[true], true, RecordState::Completed)
                }
                (RecordState::Completed, _) => (&[], true, RecordState::Completed),
                (RecordState::Failed, _) => (&[], false, RecordState::Failed),
            };
            assert_eq!(seen, expected, "{redelivery:?} of {story}");
        }
    }
}

#[test]
fn every_message_settles_after_lease_ends() {
    for (story, _) in stories() {
        let [.., later, again] = &story.deliveries[..] else {
            unreachable!()
        };
        for delivery in [later, again] {
            let settled = match delivery.left {
                RecordState::Completed => delivery.acknowledged,
                RecordState::Failed => !delivery.acknowledged,
                _ => false,
            };
            assert!(settled, "{story}");
        }
        assert!(again.runs.is_empty(), "{story}");
    }
}

#[test]
fn empty_response_is_rejected() {
    for (story, _) in live(&EMPTY) {
        acknowledged_only_if_completed(&story);
        assert_informed_of_effects(&story);
    }
}

/// One message at a time, so that the fault hits all tries of the first message's request and no
/// other request.
fn store(dynamo: &Dynamo, grouping: bool) -> AnyStore {
    let store = DynamoStore::new(dynamo.worker(None), TABLE);
    match grouping {
        true => AnyStore::Batched(Batched::new(store)),
        false => AnyStore::DynamoDb(store),
    }
}

/// Promise 6.
#[tokio::test(start_paused = true)]
async fn fault_of_one_message_spares_others() {
    use Fault::{
        HoldAnswer, HoldRequest, Refuse, Throttle, ThroughputExceeded, TransactionConflict,
    };
    let counted = FAULTS.iter().filter(|(fault, ..)| {
        // These injected faults end by a timeout or persist.
        ![HoldRequest, HoldAnswer, Refuse].contains(fault)
    });
    let stories = counted.flat_map(|row| [("Claim", row), ("UpdateItem", row)]);
    let stories = stories.map(|(request, &(fault, _))| async move {
        let dynamo = Dynamo::in_memory();
        dynamo.create_table(TABLE).await;
        // The worker outlasts contention, and every fault of a settlement.
        let outlasted = [Throttle, ThroughputExceeded, TransactionConflict].contains(&fault)
            || request == "UpdateItem";
        (0..Dynamo::CLAIM_COPIES).for_each(|_| dynamo.fail(request, fault));
        let once = Once::new(DynamoStore::new(dynamo.worker(None), TABLE));
        let handler = |(): (), _: Attempt| async { Ok::<_, sqs_once::Failure>(()) };
        let consumer = Consumer::without_aws(once, namespace(), handler_fn(handler))
            .concurrency(NonZeroUsize::MIN);
        let event = batch((1..=3).map(|n| record(&format!("m-{n}"), "null")));
        let failed = process(&Arc::new(consumer), event, within(PATIENCE)).await;
        let expected: &[&str] = if outlasted { &[] } else { &["m-1"] };
        assert_eq!(failed, expected, "{fault:?} at {request}");
    });
    join_all(stories).await;
}

/// A rejected claim was not applied, so no lease has to end.
#[tokio::test(start_paused = true)]
async fn rejected_claim_is_sent_once_more() {
    let dynamo = Dynamo::in_memory();
    // The table does not exist.
    for (fault, code) in [
        (Some(Fault::Denied), "AccessDeniedException"),
        (None, "ResourceNotFoundException"),
    ] {
        if let Some(fault) = fault {
            (0..2).for_each(|_| dynamo.fail("Claim", fault));
        }
        let once = Once::new(DynamoStore::new(dynamo.worker(None), TABLE));
        let outcome = once.run(operation("m-1", PATIENCE), async |_| Ok(())).await;
        assert_eq!(outcome.name(), "store_unavailable");
        assert!(outcome.to_string().contains(code), "{outcome}");
        let sent: Vec<_> = dynamo.reset_counts().into_iter().collect();
        assert_eq!(sent, [("Claim".to_owned(), 2)]);
        dynamo.heal().await;
    }
}

/// The process was frozen after it had signed. A batch of one sends a single request, a larger one a batch.
#[tokio::test(start_paused = true)]
async fn signature_refused_once_fails_no_message() {
    for messages in [1, 2, 3] {
        let dynamo = Dynamo::in_memory();
        dynamo.create_table(TABLE).await;
        let refused = Fault::Code("InvalidSignatureException");
        for claim in ["Claim", "ClaimGroup"] {
            dynamo.fail(claim, refused);
        }
        let consumer = Consumer::without_aws(
            Once::new(store(&dynamo, true)),
            namespace(),
            handler_fn(async |(): (), _: Attempt| Ok::<_, sqs_once::Failure>(())),
        );
        let event = batch((1..=messages).map(|n| record(&format!("m-{n}"), "null")));
        let failed = process(&Arc::new(consumer), event, within(PATIENCE)).await;
        assert_eq!(failed, [""; 0], "{messages} messages");
    }
}

/// Ten messages while every write is throttled: ten claims, and three repetitions of each.
#[tokio::test(start_paused = true)]
async fn throttled_batch_sends_at_most_forty_requests() {
    for grouping in [false, true] {
        let dynamo = Dynamo::in_memory();
        dynamo.create_table(TABLE).await;
        for write in ["Claim", "ClaimGroup", "UpdateItem", "PutItem"] {
            dynamo.fail_all(write, Fault::Throttle);
        }
        let store = store(&dynamo, grouping);
        let consumer = Consumer::without_aws(
            Once::new(store),
            namespace(),
            handler_fn(async |(): (), _: Attempt| Ok::<_, sqs_once::Failure>(())),
        );
        let event = batch((1..=10).map(|n| record(&format!("m-{n}"), "null")));
        let failed = process(&Arc::new(consumer), event, within(PATIENCE)).await;
        assert_eq!(failed.len(), 10);
        let counts = dynamo.reset_counts();
        let sent: usize = counts.values().sum();
        assert!(sent <= 40, "{counts:?}");
        // Each claim is sent at least once, alone or in a group.
        assert!(sent > 1, "{counts:?}");
    }
}

/// Errors that pass within seconds, at the claim and at the completion.
#[tokio::test(start_paused = true)]
async fn passing_errors_are_outlasted() {
    for (request, code, times) in [
        ("Claim", "ReplicatedWriteConflictException", 3),
        ("Claim", "InvalidSignatureException", 1),
        ("Claim", "ExpiredTokenException", 1),
        ("UpdateItem", "InvalidSignatureException", 3),
        ("UpdateItem", "ReplicatedWriteConflictException", 3),
        ("UpdateItem", "ExpiredTokenException", 3),
        ("UpdateItem", "UnrecognizedClientException", 3),
    ] {
        let dynamo = Dynamo::in_memory();
        dynamo.create_table(TABLE).await;
        (0..times).for_each(|_| dynamo.fail(request, Fault::Code(code)));
        let once = Once::new(DynamoStore::new(dynamo.worker(None), TABLE));
        let outcome = once.run(operation("m-1", PATIENCE), async |_| Ok(())).await;
        assert_eq!(outcome.name(), "completed", "{request} {code}: {outcome}");
        assert_eq!(
            dynamo.reset_counts()[request],
            times + 1,
            "{request} {code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn table_with_another_key_is_explained() {
    let dynamo = Dynamo::in_memory();
    dynamo.create_table_keyed(TABLE, &["pk"]).await;
    for grouping in [false, true] {
        let store = store(&dynamo, grouping);
        let primed = DynamoStore::new(dynamo.worker(None), TABLE);
        let primed = primed.warm_up(PATIENCE).await.unwrap_err().to_string();
        let once = Once::new(store);
        let runs = ["m-1", "m-2"].map(|id| once.run(operation(id, PATIENCE), async |_| Ok(())));
        for outcome in join_all(runs).await {
            assert_eq!(outcome.name(), "store_unavailable");
            for text in [&outcome.to_string(), &primed] {
                assert!(text.contains("the primary key `id`"), "{text}");
                assert!(text.contains("IDEMPOTENCY_ATTRIBUTES"), "{text}");
            }
        }
    }
}

/// One SDK client for all messages, as in a process. DynamoDB throttles claims until the SDK's
/// retry quota is used up, and then a completion until shortly before its deadline.
#[tokio::test(start_paused = true)]
async fn throttled_completion_is_recorded_in_time() {
    throttled_completion(false).await;
}

#[tokio::test(start_paused = true)]
async fn throttled_grouped_completion_is_recorded() {
    throttled_completion(true).await;
}

async fn throttled_completion(grouping: bool) {
    let dynamo = Dynamo::in_memory();
    dynamo.create_table(TABLE).await;
    let store = store(&dynamo, grouping);
    let once = Once::new(store);
    for claim in ["Claim", "ClaimGroup"] {
        dynamo.fail_all(claim, Fault::Throttle);
    }
    let claims = (0..60).map(|n| {
        let operation = operation(&format!("throttled-{n}"), 4 * SECOND);
        once.run(operation, async |_| Ok(()))
    });
    for outcome in join_all(claims).await {
        assert_eq!(outcome.name(), "store_unavailable");
        assert!(outcome.to_string().contains("throttled"), "{outcome}");
    }
    dynamo.heal().await;

    for fault in [
        Fault::Throttle,
        Fault::TransactionConflict,
        Fault::InternalError,
    ] {
        let id = format!("{fault:?}");
        let operation = operation(&id, 4 * SECOND);
        // The last outcome can be written an eighth of the time before the end.
        let throttled = Duration::from_millis(3500 - 700);
        dynamo.fail_all("UpdateItem", fault);
        let (outcome, ()) = tokio::join!(once.run(operation, async |_| Ok(())), async {
            tokio::time::sleep(throttled).await;
            dynamo.heal().await;
        });
        assert_eq!(outcome.name(), "completed", "{fault:?}: {outcome}");
        let sent = dynamo.reset_counts()["UpdateItem"];
        assert!(sent < 40, "{fault:?}: {sent} requests");
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Half of the time is reserve.
fn operation(id: &str, budget: Duration) -> Operation {
    Operation::new(
        Key::new(&namespace(), [id]).unwrap(),
        None,
        Delivery::new(id),
        Deadline::after(Timestamp::now(), budget, budget / 2),
    )
}

/// Sends a request to count the table's items on a new connection. Reads until the server
/// closes, or is silent after its response.
async fn ask(dynamo: &Dynamo) -> io::Result<String> {
    let address = dynamo.endpoint().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await?;
    let body = r#"{"TableName":"idempotency","Select":"COUNT"}"#;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         x-amz-target: DynamoDB_20120810.Scan\r\ncontent-type: application/x-amz-json-1.0\r\n\
         authorization: AWS4-HMAC-SHA256 Credential=test/20260101/eu-central-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0\r\n\
         x-amz-date: 20260101T000000Z\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn fault_on_the_wire_matches_its_name() {
    const OK: &str = "HTTP/1.1 200 OK";
    let dynamo = Dynamo::start().await;
    dynamo.create_table("idempotency").await;
    let counted = r#"{"Count":0,"ScannedCount":0}"#;
    let (half, _) = counted.split_at(counted.len() / 2);
    let canceled = r#""CancellationReasons":[{"Code":"None"},{"Code":"TransactionConflict","#;
    for (fault, status, end) in [
        (Fault::CutBefore, "", ""),
        (Fault::CutAfter, "", ""),
        (Fault::HalfAnswer, OK, half),
        (Fault::Garbage, OK, "log in"),
        (Fault::Empty, OK, "\r\n\r\n"),
        (Fault::GarbageInstead, OK, "log in"),
        (Fault::EmptyInstead, OK, "\r\n\r\n"),
        (Fault::Throttle, "HTTP/1.1 400", "#ThrottlingException\","),
        (
            Fault::ThroughputExceeded,
            "HTTP/1.1 400",
            "#ProvisionedThroughputExceededException\",",
        ),
        (
            Fault::InternalError,
            "HTTP/1.1 500",
            "#InternalServerError\",",
        ),
        (Fault::Unavailable, "HTTP/1.1 503", "</html>"),
        (
            Fault::Canceled(&["None", "TransactionConflict"]),
            "HTTP/1.1 400",
            canceled,
        ),
        (
            Fault::TransactionInProgress,
            "HTTP/1.1 400",
            "#TransactionInProgressException\",",
        ),
        (
            Fault::TransactionConflict,
            "HTTP/1.1 400",
            "#TransactionConflictException\",",
        ),
        (Fault::Denied, "HTTP/1.1 400", "#AccessDeniedException\","),
        (Fault::Refuse, "", ""),
    ] {
        dynamo.fail("Scan", fault);
        let answer = ask(&dynamo).await.unwrap();
        let as_called = match (status, end) {
            ("", _) => answer.is_empty(),
            (OK, end) => answer.starts_with(OK) && answer.ends_with(end),
            (status, part) => answer.starts_with(status) && answer.contains(part),
        };
        assert!(as_called, "{fault:?}: {answer}");
    }
    let refused = ask(&dynamo).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);

    assert_eq!(dynamo.heal().await["Scan"], 16);
    let answer = ask(&dynamo).await.unwrap();
    assert!(answer.ends_with(counted), "{answer}");
}

/// What the SDK makes of a fault decides what the library does. It must not depend on the way to the proxy.
#[tokio::test]
async fn faults_are_the_same_in_memory() {
    let (on_wire, in_memory) = (Dynamo::start().await, Dynamo::in_memory());
    for (fault, ..) in FAULTS.into_iter().chain(EMPTY) {
        // A client without a timeout waits for these for ever, in both ways.
        if let Fault::HoldRequest | Fault::HoldAnswer = fault {
            continue;
        }
        let mut classes = Vec::new();
        for dynamo in [&on_wire, &in_memory] {
            dynamo.heal().await;
            dynamo.create_table(&format!("{fault:?}")).await;
            dynamo.fail("Scan", fault);
            let scan = || async {
                // A connection of its own.
                let client = dynamo.client_with(RetryConfig::disabled(), TimeoutConfig::disabled());
                class(client.scan().table_name(format!("{fault:?}")).send().await)
            };
            classes.push([scan().await, scan().await]);
        }
        assert_eq!(classes[0], classes[1], "{fault:?}");
    }
}

/// Kind of an error, as far as retries and outcomes depend on it.
fn class<T>(answer: Result<T, SdkError<ScanError, HttpResponse>>) -> String {
    match answer {
        Ok(_) => "success".into(),
        Err(SdkError::DispatchFailure(failure)) => {
            let (io, timeout) = (failure.is_io(), failure.is_timeout());
            format!(
                "dispatch, io {io}, timeout {timeout}, {:?}",
                failure.as_other()
            )
        }
        Err(SdkError::ResponseError(_)) => "response".into(),
        Err(SdkError::ServiceError(error)) => {
            let status = error.raw().status();
            format!("service, {status}, {:?}", error.err().code())
        }
        Err(error) => format!("{error:?}"),
    }
}
