//! `sqs-once dlq redrive --all` where SQS moves the messages itself, and `dlq cancel`.

use std::process::Stdio;

use futures_util::future::join_all;
use serde_json::json;
use support::sqs::{Moving, Sqs, SqsBehaviour};
use tokio::process::Child;

use crate::{Ended, run, tool};

const DEAD: &str = "https://sqs.example/123456789012/orders-dead";
const ORDERS: &str = "https://sqs.example/123456789012/orders";

async fn holding(moving: Moving) -> Sqs {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.holds(moving);
    sqs
}

async fn redrive(sqs: &Sqs, more: &[&str]) -> Ended {
    let arguments = ["dlq", "redrive", DEAD, "--to", ORDERS, "--all", "--yes"];
    run(sqs.endpoint(), &[&arguments, more].concat()).await
}

/// Sends a signal to a process.
pub(crate) async fn signal(process: &Child, name: &str) {
    let id = process.id().unwrap().to_string();
    let mut kill = tokio::process::Command::new("kill");
    assert!(kill.args([name, &id]).status().await.unwrap().success());
}

#[tokio::test]
async fn all_messages_of_standard_queue_are_moved_by_sqs() {
    let sqs = holding(Moving {
        visible: 1200,
        at_a_time: 500,
        ..Moving::default()
    })
    .await;
    let ended = redrive(&sqs, &["--rate", "500", "--output", "json"]).await;
    let json = ended.json_of_success();
    assert_eq!(json["by"], "sqs");
    assert_eq!(
        (&json["sent"], &json["at_start"]),
        (&json!(1200), &json!(1200))
    );
    assert!(
        ended.stderr.contains("500 of about 1200 messages moved"),
        "{ended:?}"
    );
    let start = &sqs.calls("StartMessageMoveTask")[0].body;
    let arn = |name| format!("arn:aws:sqs:eu-central-1:123456789012:{name}");
    let wanted = json!({
        "SourceArn": arn("orders-dead"),
        "DestinationArn": arn("orders"),
        "MaxNumberOfMessagesPerSecond": 500,
    });
    assert_eq!(*start, wanted);
    for operation in ["ReceiveMessage", "SendMessage", "DeleteMessage"] {
        assert!(sqs.calls(operation).is_empty(), "{operation}");
    }
}

/// An order that fails again at once would otherwise be moved for 36 hours.
#[tokio::test]
async fn message_that_fails_again_is_moved_about_once() {
    let sqs = holding(Moving {
        visible: 100,
        at_a_time: 60,
        comes_back: true,
        ..Moving::default()
    })
    .await;
    let ended = redrive(&sqs, &["--output", "json"]).await;
    let json = ended.json_of_success();
    assert_eq!(
        (&json["sent"], &json["end"]),
        (&json!(120), &json!("all_moved"))
    );
    assert_eq!(sqs.moving().status, Some("CANCELLED"));
}

#[tokio::test]
async fn signal_cancels_the_move() {
    let interrupted = async |name| {
        let sqs = holding(Moving {
            visible: 1000,
            at_a_time: 1,
            ..Moving::default()
        })
        .await;
        let arguments = ["dlq", "redrive", DEAD, "--to", ORDERS, "--all", "--yes"];
        let process = tool(
            sqs.endpoint(),
            &[&arguments[..], &["--output", "json"]].concat(),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        sqs.called("ListMessageMoveTasks", 3).await;
        signal(&process, name).await;
        let ended = Ended::of(process.wait_with_output().await.unwrap());
        assert_eq!(ended.code, 1, "{name}: {ended:?}");
        assert_eq!(ended.json()["end"], "interrupted");
        assert_eq!(sqs.moving().status, Some("CANCELLED"));
    };
    join_all(["-INT", "-TERM"].map(interrupted)).await;
}

#[tokio::test]
async fn cancel_ends_the_move_of_another_program() {
    let sqs = holding(Moving {
        visible: 1000,
        at_a_time: 10,
        status: Some("RUNNING"),
        ..Moving::default()
    })
    .await;
    let second = redrive(&sqs, &[]).await;
    assert_eq!(second.code, 2, "{second:?}");
    assert!(
        second.stderr.contains("sqs-once dlq cancel orders-dead"),
        "{second:?}"
    );
    assert!(sqs.calls("StartMessageMoveTask").is_empty());
    let cancel = ["dlq", "cancel", DEAD, "--output", "json"];
    let ended = run(sqs.endpoint(), &cancel).await;
    assert_eq!(ended.json_of_success()["sent"], 20, "{ended:?}");
    let again = run(sqs.endpoint(), &cancel).await;
    assert_eq!((again.code, &*again.stdout), (1, ""), "{again:?}");
}

#[tokio::test]
async fn move_whose_start_is_unanswered_is_followed() {
    let sqs = holding(Moving {
        visible: 30,
        at_a_time: 30,
        ..Moving::default()
    })
    .await;
    sqs.turn_for("StartMessageMoveTask", SqsBehaviour::Cut);
    let ended = redrive(&sqs, &["--output", "json"]).await;
    assert_eq!(ended.json_of_success()["by"], "sqs", "{ended:?}");
}

#[tokio::test]
async fn end_of_an_earlier_move_is_not_the_end() {
    let sqs = holding(Moving {
        visible: 30,
        at_a_time: 30,
        status: Some("COMPLETED"),
        late: 2,
        ..Moving::default()
    })
    .await;
    let ended = redrive(&sqs, &["--output", "json"]).await;
    assert_eq!(ended.json_of_success()["sent"], 30, "{ended:?}");
}

#[tokio::test]
async fn denied_actions_of_the_move_are_named() {
    for (operation, told) in [
        ("ListMessageMoveTasks", "grant sqs:ListMessageMoveTasks"),
        ("StartMessageMoveTask", "grant sqs:StartMessageMoveTask"),
        (
            "CancelMessageMoveTask",
            "SQS goes on with the move: `sqs-once dlq cancel orders-dead`",
        ),
    ] {
        let sqs = holding(Moving {
            visible: 10,
            at_a_time: 10,
            comes_back: true,
            ..Moving::default()
        })
        .await;
        sqs.turn_for(operation, SqsBehaviour::Denying);
        let ended = redrive(&sqs, &[]).await;
        assert_eq!(
            (ended.code, &*ended.stdout),
            (3, ""),
            "{operation}: {ended:?}"
        );
        assert!(ended.stderr.contains(told), "{ended:?}");
        assert!(sqs.calls("ReceiveMessage").is_empty());
    }
}

#[tokio::test]
async fn messages_hidden_from_the_move_are_said() {
    let sqs = holding(Moving {
        visible: 2,
        hidden: 3,
        at_a_time: 10,
        ..Moving::default()
    })
    .await;
    let ended = redrive(&sqs, &[]).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("SQS moved about 2 of about 5 messages"),
        "{ended:?}"
    );
    assert!(
        ended
            .stderr
            .contains("another receiver hides about 3 messages"),
        "{ended:?}"
    );
}

/// SQS moves only the messages of a queue that is a dead-letter queue of another.
#[tokio::test]
async fn refused_move_is_made_one_by_one() {
    let sqs = holding(Moving::default()).await;
    sqs.turn_for("StartMessageMoveTask", SqsBehaviour::Invalid("SourceArn"));
    let ended = redrive(&sqs, &[]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let told = "Moving one by one, 1000 at most: SQS does not start the move of this queue (InvalidParameterValue)";
    assert!(ended.stderr.contains(told), "{ended:?}");
    assert_eq!(sqs.calls("ReceiveMessage").len(), 1);
}
