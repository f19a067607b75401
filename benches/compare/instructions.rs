//! Instructions per message, counted by callgrind. Hardly anything disturbs this figure.

use std::{path::PathBuf, process::Command};

use crate::{
    candidates::Candidate,
    process::{Failed, Function},
    stub::Stub,
};

/// Messages in a batch, and the numbers of batches whose difference is counted.
const COUNTED: [(usize, usize, usize); 4] = [(1, 20, 120), (10, 5, 25), (100, 2, 4), (1000, 1, 2)];

/// Batch sizes with a count.
pub(crate) fn sizes() -> impl Iterator<Item = usize> {
    COUNTED.iter().map(|(messages, _, _)| *messages)
}

/// Instructions per message in batches of each of [`sizes`], start and end of the process excluded.
pub(crate) async fn per_message(
    valgrind: &PathBuf,
    candidate: &Candidate,
    stub: &Stub,
    messages: usize,
) -> Result<f64, Failed> {
    let counted = COUNTED.iter().find(|(size, _, _)| *size == messages);
    let &(_, few, many) = counted.unwrap();
    let mut counts = [0.0; 2];
    for (count, batches) in counts.iter_mut().zip([few, many]) {
        stub.reset(0);
        *count = of_process(valgrind, candidate, stub, messages, batches).await?;
    }
    Ok((counts[1] - counts[0]) / (messages * (many - few)) as f64)
}

async fn of_process(
    valgrind: &PathBuf,
    candidate: &Candidate,
    stub: &Stub,
    messages: usize,
    batches: usize,
) -> Result<f64, Failed> {
    let mut command = tokio::process::Command::new(valgrind);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(&candidate.program);
    let env = candidate.env(&stub.endpoint, messages);
    let mut function = Function::spawn_command(command, env).await;
    function.lambda.ready().await;
    for _ in 0..batches {
        function.batch(messages).await?;
    }
    // After the last response has been processed.
    function.lambda.polls(batches + 1).await;
    let pid = function.lambda.pid().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    let output = function.lambda.exit().await.output;
    let count = output
        .iter()
        .find_map(|line| line.split_once("Collected : "));
    Ok(count.unwrap().1.trim().parse().unwrap())
}
