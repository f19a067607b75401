//! Injected faults between the consumer and its table. The real SDK talks to a DynamoDB that fails on purpose: in memory
//! and on paused time, where a test is about time, and else over HTTP.

mod results;

use std::{io, num::NonZeroUsize, sync::Arc, time::Duration};

use aws_config::{retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata as _, SdkError},
    operation::scan::ScanError,
};
use futures_util::future::join_all;
use sqs_once::{
    Attempt, Consumer, Deadline, Done, Once, Operation, Write, handler_fn,
    internal::Delivery,
    protocol::{
        Claim, Expect, Key, Owner, Record,
        RequestErrorKind::{self, Contended, Denied, Unanswered},
        Swap, Timestamp,
    },
    store::{AnyStore, Batched, DynamoStore, Store as _, StoreError, Swapped},
};
use support::{
    CONTEXT, NOTHING, PATIENCE,
    consumer::{namespace, process, within},
    dynamo::{Dynamo, number},
    event::{batch, record},
    faults::Fault,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A fault, the kind of the error of a request that meets nothing else, and whether DynamoDB applies it.
type Row = (Fault, RequestErrorKind, bool);

const FAULTS: [Row; 16] = [
    (Fault::CutBefore, Unanswered, false),
    (Fault::CutAfter, Unanswered, true),
    (Fault::HalfAnswer, Unanswered, true),
    (Fault::Garbage, Unanswered, true),
    (Fault::GarbageInstead, Unanswered, false),
    (Fault::Empty, Unanswered, true),
    (Fault::EmptyInstead, Unanswered, false),
    (Fault::HoldRequest, Unanswered, false),
    (Fault::HoldAnswer, Unanswered, true),
    (Fault::InternalError, Unanswered, false),
    (Fault::Unavailable, Unanswered, false),
    (Fault::Refuse, Unanswered, false),
    (Fault::Throttle, Contended, false),
    (Fault::ThroughputExceeded, Contended, false),
    (Fault::TransactionConflict, Contended, false),
    (Fault::Denied, Denied, false),
];

/// The rest of the library knows two things of a fault: whether the request may have been applied, and whether a repetition
/// may help. A copy of the request is applied if the first one was not, and changes nothing else.
#[tokio::test(start_paused = true)]
async fn each_fault_has_its_kind() {
    let now = Timestamp::now();
    let claim = Claim::new(Owner::fresh(), "m-1", now, now + SECOND, now.as_secs() + 60);
    let claim = Swap {
        key: Key::new(&namespace(), ["o-1"]).unwrap(),
        expect: Expect::Absent,
        to: Record::claimed(&claim, 1, None, None),
    };
    let one_more = Write::update(TABLE, "ADD n :one").key("id", "count");
    let effect = Done::new(()).with(one_more.value(":one", 1)).into();
    for (fault, kind, is_applied) in FAULTS {
        for (request, with) in [("Claim", &*NOTHING), ("TransactWriteItems", &effect)] {
            let dynamo = Dynamo::in_memory();
            dynamo.create_table(TABLE).await;
            let store = DynamoStore::new(dynamo.worker(Some(SECOND)), TABLE);
            dynamo.fail_all(request, fault);
            let error = store.swap(&claim, with, &CONTEXT).await.unwrap_err();
            let StoreError::Unavailable { kind: told, .. } = error else {
                panic!("{request} {fault:?}: {error}")
            };
            assert_eq!(told, kind, "{request} {fault:?}");
            let record = dynamo.record(TABLE, claim.key.as_str()).await;
            assert_eq!(record.is_some(), is_applied, "{request} {fault:?}");
            assert!(!is_applied || error.may_have_been_applied());

            // A request that is held back arrives now.
            dynamo.heal().await;
            let copy = store.swap(&claim, with, &CONTEXT).await.unwrap();
            let own = Swapped::Found(Some(claim.to.clone()));
            assert!(copy == Swapped::Applied || copy == own, "{copy:?}");
            let record = store.get(&claim.key, &CONTEXT).await.unwrap();
            assert_eq!(record.as_ref(), Some(&claim.to), "{request} {fault:?}");
            if request == "TransactWriteItems" {
                let count = dynamo.record(TABLE, "count").await.unwrap();
                assert_eq!(number(&count, "n"), 1, "{request} {fault:?}");
            }
        }
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
    let stories = stories.map(|(request, &(fault, ..))| async move {
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

const TABLE: &str = "idempotency";
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
    for (fault, ..) in FAULTS {
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
