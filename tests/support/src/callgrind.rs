//! Instructions of a release build, counted by callgrind. Hardly anything disturbs this figure.

use std::path::Path;

use tokio::process::Command;

use super::runtime_api::{Env, Lambda};

/// Starts a function that writes its profile to this file at its end, and waits for the end of its init phase.
pub async fn start(program: &Path, env: Env, profile: &Path) -> Lambda {
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program);
    let mut lambda = Lambda::spawn_command(command, env).await;
    lambda.ready().await;
    lambda
}

/// Ends a function after this number of batches, and returns the instructions of its life.
pub async fn end(lambda: Lambda, batches: usize) -> u64 {
    // After the last response has been processed.
    lambda.polls(batches + 1).await;
    let pid = lambda.pid().to_string();
    let ended = Command::new("kill").args(["-TERM", &pid]).status().await;
    assert!(ended.unwrap().success());
    let output = lambda.exit().await.output;
    let count = output
        .iter()
        .find_map(|line| line.split_once("Collected : "));
    count.unwrap().1.trim().parse().unwrap()
}
