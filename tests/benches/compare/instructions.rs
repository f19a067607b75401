//! Instructions per message, counted by callgrind. Hardly anything disturbs this figure.

use std::path::Path;

use support::{callgrind, stub::Stub};

use crate::{
    candidates::Candidate,
    process::{Failed, Function},
};

/// Messages in a batch, and the numbers of batches whose difference is counted.
const COUNTED: [(usize, usize, usize); 4] = [(1, 20, 120), (10, 5, 25), (100, 2, 4), (1000, 1, 2)];

/// Batch sizes with a count.
pub(crate) fn sizes() -> impl Iterator<Item = usize> {
    COUNTED.iter().map(|(messages, _, _)| *messages)
}

/// Instructions per message in batches of each of [`sizes`], start and end of the process excluded.
pub(crate) async fn per_message(
    candidate: &Candidate,
    stub: &Stub,
    messages: usize,
) -> Result<f64, Failed> {
    let counted = COUNTED.iter().find(|(size, _, _)| *size == messages);
    let &(_, few, many) = counted.unwrap();
    let mut counts = [0.0; 2];
    for (count, batches) in counts.iter_mut().zip([few, many]) {
        stub.reset(0);
        *count = of_process(candidate, stub, messages, batches).await?;
    }
    Ok((counts[1] - counts[0]) / (messages * (many - few)) as f64)
}

async fn of_process(
    candidate: &Candidate,
    stub: &Stub,
    messages: usize,
    batches: usize,
) -> Result<f64, Failed> {
    let env = candidate.env(&stub.endpoint, messages);
    let lambda = callgrind::start(&candidate.program, env, Path::new("/dev/null")).await;
    let mut function = Function::of(lambda);
    for _ in 0..batches {
        function.batch(messages).await?;
    }
    Ok(callgrind::end(function.lambda, batches).await as f64)
}
