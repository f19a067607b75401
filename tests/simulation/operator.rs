//! The operator: redrives dead letters, and changes records as `sqs-once record release` and `record delete` do.

use std::time::Duration;

use tokio::time::sleep_until;

use crate::{ledger::Event, world::World};

/// What an operator does.
#[derive(Clone, Debug)]
pub struct Act {
    pub at: Duration,
    pub what: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Moves all dead letters back to the queue. `mended`: what was wrong with them no longer is.
    Redrive { mended: bool },
    /// Ends the lease of the first record that has one, from this message on.
    Release { message: usize },
    /// Deletes the record of this message.
    Delete { message: usize },
}

/// Does the operator's work at its times.
pub async fn operate(world: &World) {
    for act in &world.plan.operator {
        sleep_until(world.at(act.at)).await;
        match act.what {
            Work::Redrive { mended } => world.queue.redrive(world, mended),
            Work::Release { message } => release(world, message),
            Work::Delete { message } => delete(world, message),
        }
    }
}

/// Ends the first lease that runs, from this message on.
fn release(world: &World, from: usize) {
    let (before, after) = world
        .plan
        .messages
        .split_at(from.min(world.plan.messages.len()));
    let mut keys = after.iter().chain(before).filter_map(|of| world.key(of));
    let released = keys.find(|key| world.table.release(key, world.wall()));
    if let Some(key) = released {
        let key = key.to_string();
        world.note(Event::Released { key });
    }
}

fn delete(world: &World, message: usize) {
    let message = world.plan.messages.get(message);
    let key = message.and_then(|message| world.key(message));
    let key = key.filter(|key| world.table.delete(key));
    if let Some(key) = key {
        let key = key.to_string();
        world.note(Event::Deleted { key });
    }
}
