//! The built `sqs-once`, the command-line tool, against a DynamoDB and an SQS of the tests' own. `new` needs none of them.

#![allow(
    clippy::unwrap_used,
    reason = "in a test, what cannot be set up is a failure"
)]

#[path = "cli/credentials.rs"]
mod credentials;
#[path = "cli/dead_letters.rs"]
mod dead_letters;
#[path = "cli/doctor.rs"]
mod doctor;
#[path = "cli/message_move.rs"]
mod message_move;
#[path = "cli/new.rs"]
mod new;
#[path = "cli/outputs.rs"]
mod outputs;
#[path = "cli/preview.rs"]
mod preview;
#[path = "cli/records.rs"]
mod records;
#[path = "cli/redrive.rs"]
mod redrive;
#[path = "cli/terminal.rs"]
mod terminal;

use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::process::Command;

/// The end of a command.
#[derive(Debug)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code().unwrap(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// The output of a command that must succeed.
    #[track_caller]
    fn json_of_success(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        self.json()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

const TOOL: &str = env!("CARGO_BIN_EXE_sqs-once");

fn tool(endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = program(TOOL, endpoint);
    command.args(arguments);
    command
}

/// Prepares a program in an environment without the developer's settings.
fn program(program: &str, endpoint: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_REGION", support::REGION)
        .env("AWS_ACCESS_KEY_ID", support::ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", support::ACCESS_KEY)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn run(endpoint: &str, arguments: &[&str]) -> Ended {
    Ended::of(tool(endpoint, arguments).output().await.unwrap())
}

#[tokio::test]
async fn what_has_gone_says_what_to_do() {
    for (arguments, place) in [
        (
            &["record", "list", "--status", "failed"][..],
            "docs/runbook.md",
        ),
        (&["record", "show", "a"], "docs/effects-in-postgresql.md"),
    ] {
        let ended = run("http://127.0.0.1:1", arguments).await;
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains(place), "{ended:?}");
    }
}

#[tokio::test]
async fn invalid_command_line_ends_with_2() {
    for arguments in [
        &["record"][..],
        &["record", "show", "a"],
        &[
            "record",
            "show",
            "a",
            "--table",
            "t",
            "--attributes",
            "other",
        ],
        &["record", "show", "a", "--table", "t", "--sort-key", "SK"],
        &["dlq", "redrive", "orders-dead"],
        &["dlq", "redrive", "orders-dead", "--all", "--rate", "501"],
        &[
            "dlq",
            "redrive",
            "orders-dead",
            "--all",
            "--key",
            "message-id",
        ],
        &["doctor"],
        &["doctor", "shop", "--skip", "no-check"],
    ] {
        let ended = run("http://127.0.0.1:1", arguments).await;
        assert_eq!(ended.code, 2, "{arguments:?}: {ended:?}");
        assert!(
            !ended.stderr.is_empty() && ended.stdout.is_empty(),
            "{ended:?}"
        );
    }
}
