//! Handlers whose effect is a write: they plan it, and it commits with the record.

use serde_json::{Value, json};
use sqs_once::{Attempt, Done, Failure, Outcome, Write, internal::Delivery};

use crate::schedules::{
    handler::{HandlerEnd, Inside, obey, once, operation},
    line::pause,
    promises::DECLINED,
    world::{Shared, World, lock},
};

/// Claim, then commit together: `Once` with `Done`.
pub async fn claim_plan_commit(world: Shared, worker: usize, delivery: Delivery) -> Outcome {
    let once = once(&world, worker);
    let operation = operation(&world, worker, delivery);
    let work = async |attempt: Attempt| {
        let enters = move |world: &mut World| {
            let (message, history) = (attempt.message_id(), attempt.history());
            world.promises.enters(worker, message, history);
        };
        plan(world, worker, enters).await
    };
    once.run(operation, work).await
}

/// No claim: `Inbox`. Several workers may plan at the same time, and plan a completed operation
/// again.
pub async fn plan_commit(world: Shared, worker: usize, delivery: Delivery) -> Outcome {
    let inbox = once(&world, worker).inbox();
    let operation = operation(&world, worker, delivery);
    let begins = move |world: &mut World| world.promises.begins(worker);
    let work = async |_| plan(world, worker, begins).await;
    inbox.run(operation, work).await
}

/// Sells the last piece by a planned write. The handler has no effect itself.
async fn plan(
    world: Shared,
    worker: usize,
    begins: impl FnOnce(&mut World),
) -> Result<Done<Value>, Failure> {
    let _inside = Inside(&world, worker);
    begins(&mut lock(&world));
    lock(&world).log(worker, || "plans".into());
    pause().await;
    let word = lock(&world).plans(worker);
    obey(word)?;
    Ok(sale(&world, worker, json!(worker)))
}

/// The item belongs to the table (`table.rs`), which counts the writes and ignores their content.
fn sale(world: &Shared, worker: usize, output: Value) -> Done<Value> {
    let write = Write::update("stock", "ADD sold :one")
        .key("id", "last one")
        .value(":one", 1)
        .when("attribute_not_exists(sold)");
    let world = world.clone();
    let sale_of_one = Done::new(output).with(write);
    sale_of_one.on_condition_failed(move |_| {
        let word = lock(&world).decides(worker);
        match word {
            HandlerEnd::NotWritten => Ok(Done::new(json!(DECLINED))),
            word => obey(word).map(|()| sale(&world, worker, json!([worker]))),
        }
    })
}

impl World {
    pub fn plans(&mut self, worker: usize) -> HandlerEnd {
        let words = [
            HandlerEnd::Done,
            HandlerEnd::Retryable,
            HandlerEnd::NoEffect,
            HandlerEnd::Permanent,
            HandlerEnd::Panic,
        ];
        let word = words[self.choose(worker, words.len())];
        self.says(worker, word);
        word
    }

    /// The writes were refused.
    fn decides(&mut self, worker: usize) -> HandlerEnd {
        let words = [
            HandlerEnd::NotWritten,
            HandlerEnd::Permanent,
            HandlerEnd::Retryable,
            HandlerEnd::Panic,
            // A changed plan, under another token.
            HandlerEnd::Done,
        ];
        let word = words[self.choose(worker, words.len())];
        self.says(worker, word);
        word
    }
}
