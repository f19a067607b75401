//! Whatever happens between the consumer and its table: the real SDK over HTTP, against a
//! DynamoDB that fails on purpose.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

mod support;

use std::io;

use support::{dynamo::Dynamo, faults::Fault};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Asks on a connection of its own to count the table's items, and reads until the server
/// closes or, after an answer, has nothing more to say.
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
async fn a_fault_is_on_the_wire_what_it_is_called() {
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

    assert_eq!(dynamo.heal().await, 14);
    let answer = ask(&dynamo).await.unwrap();
    assert!(answer.ends_with(counted), "{answer}");
}
