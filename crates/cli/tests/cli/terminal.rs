//! The questions of `sqs-once` on a pseudo-terminal.

use std::process::Stdio;

use support::PATIENCE;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Child,
    time::timeout,
};

use crate::{
    Ended, TOOL,
    dead_letters::in_a_world,
    program,
    records::{KEY, TABLE, World, after, failures, item, n, s},
};

/// A tool that has asked its question.
struct Asked {
    process: Child,
    /// The terminal's output, up to the question.
    shown: String,
}

/// Starts the tool on a terminal.
fn on_terminal(endpoint: &str, arguments: &[&str]) -> Child {
    let mut command = program("python3", endpoint);
    command
        .env("PATH", std::env::var_os("PATH").unwrap())
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/cli/terminal.py"
        ))
        .arg(TOOL)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

impl Asked {
    /// Starts the tool on a terminal, and waits for its question.
    async fn by(endpoint: &str, arguments: &[&str]) -> Self {
        let mut process = on_terminal(endpoint, arguments);
        let terminal = process.stderr.as_mut().unwrap();
        let mut shown = Vec::new();
        while !shown.ends_with(b"[y/N] ") {
            let read = timeout(PATIENCE, terminal.read_buf(&mut shown));
            let read = read.await.unwrap().unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&shown));
        }
        let shown = String::from_utf8(shown).unwrap();
        Self { process, shown }
    }

    /// Types an answer, and waits for the end of the tool. After the answer comes Control-D.
    async fn answer(mut self, text: &str) -> Ended {
        let mut keyboard = self.process.stdin.take().unwrap();
        keyboard.write_all(text.as_bytes()).await.unwrap();
        drop(keyboard);
        let output = timeout(PATIENCE, self.process.wait_with_output()).await;
        Ended::of(output.unwrap().unwrap())
    }
}

/// Answers that do not confirm: no, the default, a word that is no answer, Control-D.
const NO: [&str; 4] = ["n\n", "\n", "yesterday\n", ""];

impl World {
    async fn asked(&self, command: &str) -> Asked {
        let arguments = ["record", command, KEY, "--table", TABLE];
        Asked::by(self.dynamo.endpoint(), &arguments).await
    }
}

#[tokio::test]
async fn delete_removes_after_yes_and_only_then() {
    let world = World::new().await;
    let failed = item(KEY, "FAILED", &[failures(1)]);
    world.dynamo.put(TABLE, failed.clone()).await;
    for no in NO {
        let asked = world.asked("delete").await;
        assert!(asked.shown.contains("declined"), "{}", asked.shown);
        let ended = asked.answer(no).await;
        assert_eq!((ended.code, &*ended.stdout), (1, ""), "{no:?}: {ended:?}");
        assert!(ended.stderr.contains("not confirmed"), "{ended:?}");
        let record = world.dynamo.record(TABLE, KEY).await;
        assert_eq!(record.as_ref(), Some(&failed), "{no:?}");
    }
    for yes in ["y\n", "YES\n"] {
        world.dynamo.put(TABLE, failed.clone()).await;
        let ended = world.asked("delete").await.answer(yes).await;
        assert_eq!(ended.code, 0, "{yes:?}: {ended:?}");
        assert!(world.dynamo.record(TABLE, KEY).await.is_none());
    }
}

#[tokio::test]
async fn release_ends_lease_after_yes_and_only_then() {
    let world = World::new().await;
    let held = item(KEY, "IN_PROGRESS", &[("lease_until", after(600))]);
    world.dynamo.put(TABLE, held.clone()).await;
    for no in NO {
        let asked = world.asked("release").await;
        assert!(
            asked.shown.contains("\"lease_left_s\": "),
            "{}",
            asked.shown
        );
        let ended = asked.answer(no).await;
        assert_eq!((ended.code, &*ended.stdout), (1, ""), "{no:?}: {ended:?}");
        let record = world.dynamo.record(TABLE, KEY).await;
        assert_eq!(record.as_ref(), Some(&held), "{no:?}");
    }
    let ended = world.asked("release").await.answer("y\n").await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let record = world.dynamo.record(TABLE, KEY).await.unwrap();
    assert_ne!(record["lease_until"], held["lease_until"]);
}

#[tokio::test]
async fn record_changed_after_question_is_not_touched() {
    let world = World::new().await;
    for command in ["release", "delete"] {
        let held = item(KEY, "IN_PROGRESS", &[("lease_until", after(600))]);
        world.dynamo.put(TABLE, held.clone()).await;
        let asked = world.asked(command).await;
        let mut next = held;
        next.insert("owner".into(), s("owner-2"));
        next.insert("attempts".into(), n(3));
        world.dynamo.put(TABLE, next.clone()).await;
        let ended = asked.answer("y\n").await;
        assert_eq!((ended.code, &*ended.stdout), (1, ""), "{ended:?}");
        let reason = "nothing was changed: another program changed the record";
        assert!(ended.stderr.contains(reason), "{ended:?}");
        assert_eq!(world.dynamo.record(TABLE, KEY).await, Some(next));
    }
}

#[tokio::test]
async fn redrive_moves_after_yes_and_only_then() {
    in_a_world(false, async |world| {
        let id = world.failed("permanent_failure", "payments#1").await;
        let (dead, orders) = (&world.dead, &world.orders);
        let arguments = ["dlq", "redrive", dead, "--to", orders, "--all"];
        for no in NO {
            let asked = Asked::by(&world.endpoint, &arguments).await;
            for told in [
                "1         not_read  no table is named",
                "Move all messages from",
                "which has about 1 message, to",
            ] {
                assert!(asked.shown.contains(told), "{}", asked.shown);
            }
            // The preview has made it visible again.
            assert_eq!(world.count_hidden().await, 0);
            let ended = asked.answer(no).await;
            assert_eq!((ended.code, &*ended.stdout), (1, ""), "{no:?}: {ended:?}");
            assert_eq!((world.count(dead).await, world.count(orders).await), (1, 0));
        }
        let ended = Asked::by(&world.endpoint, &arguments).await;
        let ended = ended.answer("y\n").await;
        assert_eq!(ended.code, 0, "{ended:?}");
        world.moved_once(&[id]).await;
    })
    .await;
}
