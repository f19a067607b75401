//! `sqs-once record show --result` of an output in S3.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::json;
use sqs_once::protocol::{Key, Namespace, Owner, ResultPointer};
use support::s3::{BUCKET, S3, S3Answer};

use crate::{
    Ended,
    records::{KEY, SECRET, TABLE, World, s},
    tool,
};

fn output() -> String {
    json!({"card": SECRET, "pages": "x".repeat(70_000)}).to_string()
}

fn pointer() -> ResultPointer {
    let key = Key::new(&Namespace::new("payments").unwrap(), ["order-1"]).unwrap();
    ResultPointer::new(BUCKET, &key, &Owner::fresh(), output().as_bytes())
}

fn stored(pointer: &ResultPointer) -> AttributeValue {
    let ResultPointer {
        bucket,
        key,
        sha256,
        bytes,
    } = pointer;
    let pointer = json!({"bucket": bucket, "key": key, "sha256": sha256, "bytes": bytes});
    s(&pointer.to_string())
}

/// Shows a record whose output S3 answers so.
async fn show(pointer: &ResultPointer, answer: S3Answer, arguments: &[&str]) -> (Ended, S3) {
    let (world, s3) = (World::new().await, S3::start().await);
    let in_s3 = [("result_in_s3", stored(pointer))];
    world.put(KEY, "COMPLETED", &in_s3).await;
    s3.put(&pointer.key, answer);
    let command = ["record", "show", KEY, "--table", TABLE];
    let mut command = tool(world.dynamo.endpoint(), &[&command, arguments].concat());
    let command = command.env("AWS_ENDPOINT_URL_S3", s3.endpoint());
    (Ended::of(command.output().await.unwrap()), s3)
}

#[tokio::test]
async fn output_in_s3_is_shown_like_an_inline_one() {
    let pointer = pointer();
    let object = || S3Answer::Object(output().into());
    let (shown, _) = show(&pointer, object(), &["--result"]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.contains(SECRET), "{}", shown.stdout);
    let (shown, _) = show(&pointer, object(), &["--result", "--output", "json"]).await;
    let shown = shown.json();
    assert_eq!(shown["result"]["card"], SECRET);
    assert_eq!(shown["result_in_s3"], pointer.to_string());
    assert_eq!(shown["result_bytes"], output().len());
}

#[tokio::test]
async fn output_in_s3_is_read_only_if_asked_for() {
    let (shown, s3) = show(&pointer(), S3Answer::Object(output().into()), &[]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(!shown.stdout.contains(SECRET), "{}", shown.stdout);
    assert!(s3.requests().is_empty());
}

#[tokio::test]
async fn unreadable_output_ends_with_1_after_record() {
    let altered = || output().replace("x", "y");
    let too_long = ResultPointer {
        bytes: (10 << 20) + 1,
        ..pointer()
    };
    for (pointer, answer, why) in [
        (
            pointer(),
            S3Answer::Error(404, "NoSuchKey"),
            "the object is lost",
        ),
        (
            pointer(),
            S3Answer::Object(altered().into()),
            "the object was altered",
        ),
        (pointer(), S3Answer::Endless, "the object was altered"),
        (
            pointer(),
            S3Answer::Error(403, "AccessDenied"),
            "grant s3:GetObject",
        ),
        (too_long, S3Answer::Endless, "at most 10485760 bytes"),
    ] {
        let arguments = ["--result", "--output", "json"];
        let (shown, _) = show(&pointer, answer, &arguments).await;
        assert_eq!(shown.code, 1, "{why}: {shown:?}");
        for wanted in [why, &pointer.to_string()] {
            assert!(shown.stderr.contains(wanted), "{wanted}: {}", shown.stderr);
        }
        let shown = shown.json();
        assert_eq!(shown["status"], "COMPLETED");
        let error = shown["result_error"].as_str().unwrap();
        assert!(error.contains(why), "{error}");
        assert_eq!(shown.get("result"), None);
    }
}
