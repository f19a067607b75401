//! The event source mapping of the queue: polls it, invokes the consumer, deletes what a response does not report as
//! failed.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::{join, join_all, select};
use tokio::time::{Instant, sleep};

use crate::{
    consumer::consumer,
    event::{event, failures},
    lambda::{Answer, Pause, Slot},
    ledger::Event,
    operator::operate,
    plan::{Kind, Mode, RECORDS_KEPT},
    queue::Received,
    stream::relay,
    world::World,
};

/// How long after the last fault everything must have come to an end.
const QUIET: Duration = Duration::from_secs(48 * 3600);
/// The rests of a message that ends its processes take 12 hours and 20 minutes, or the leases if they are longer. Messages
/// of one key rest one after the other.
const RESTS: Duration = Duration::from_secs(13 * 3600);

/// Pause between two looks for records whose time to live is over.
const SWEEP: Duration = Duration::from_secs(6 * 3600);

/// Runs until queue and stream are empty, or too much time has passed.
pub async fn run(world: &Arc<World>) {
    let plan = &world.plan;
    let rests = RESTS + 4 * plan.timeouts.function;
    let rests = plan.deadly() * rests * (1 + plan.redrives().count() as u32);
    let sent = plan.messages.iter().map(|message| message.sent);
    let last = plan.redrives().chain(sent).chain([plan.healed]).max();
    // An item has no failures, and neither has a message without a key, so it stops its group until its receives are used up.
    let failing = plan.messages.iter().filter(|of| of.kind.fails_always());
    let stopping = failing.clone().filter(|of| {
        plan.mode == Mode::Item || of.kind == Kind::Undecodable && !plan.records_unreadable()
    });
    let unrecorded = if plan.fifo {
        plan.timeouts.cap * plan.timeouts.max_receives * stopping.count() as u32
    } else {
        Duration::ZERO
    };
    let stops = if plan.stops_groups {
        // Whatever fails may stop its group, as long as the queue keeps it.
        unrecorded.max(plan.retention)
    } else {
        unrecorded
    };
    // A message that fails is in flight until its receives are used up, but for moments, and the first ones fit in the quiet.
    // Where only a few may be in flight, the others wait for these. The queue of an account has 120,000, and keeps its
    // messages for four days, so the product has nothing to do with it, and the world ends later.
    let turns = failing.count().div_ceil(plan.in_flight.max(1));
    let one_turn = (plan.timeouts.cap + plan.timeouts.function) * plan.timeouts.max_receives;
    let turns = one_turn * turns.saturating_sub(1) as u32;
    let until = world.at(last.unwrap_or_default() + QUIET + rests + stops + turns);
    let has_other = plan.messages.iter().any(|of| of.in_other_queue);
    let others = if has_other { plan.environments } else { 0 };
    let queues = [(false, plan.environments), (true, others)];
    let slots: Vec<_> = queues
        .into_iter()
        .flat_map(|(other, slots)| (0..slots).map(move |_| (Slot::new(world, consumer), other)))
        .collect();
    let pollers = slots.iter().flat_map(|(slot, other)| {
        (0..plan.invocations).map(move |_| poll(world, slot, until, *other))
    });
    let consuming = async {
        join(join_all(pollers), operate(world)).await;
        world.stream.close();
    };
    let sweeping = async {
        loop {
            sleep(SWEEP).await;
            if plan.records_kept < RECORDS_KEPT {
                world.sweep();
            }
        }
    };
    let done = join(consuming, relay(world, until));
    select(pin!(done), pin!(sweeping)).await;
    let left = world.queue.left();
    world.note(Event::Quiet { left });
}

async fn poll(world: &Arc<World>, slot: &Slot, until: Instant, other: bool) {
    let plan = &world.plan;
    let mut pause = Pause::default();
    let queue = &world.queue;
    while let Some(mut batch) = queue.receive(world, plan.batch, until, other).await {
        let received = Instant::now();
        if batch.len() < plan.batch && !plan.window.is_zero() {
            sleep(plan.window).await;
            batch.extend(queue.receive_now(world, plan.batch - batch.len(), other));
        }
        let number = world.next_batch();
        for received in &batch {
            world.note(Event::Received {
                message: received.message.id.clone(),
                count: received.count,
                batch: number,
            });
        }
        // Lambda tries a throttled invocation again, until the visibility timeout is over (*AWS Lambda Developer
        // Guide*, "Processing messages from Amazon SQS"). Then the receive is wasted.
        let end = received + plan.timeouts.visibility;
        if pause.is_throttled(world, number, end).await {
            continue;
        }
        match slot.invoke(number, event(&batch, world)).await {
            Some(answer) => {
                settle(world, number, &batch, &answer);
                pause = Pause::default();
            }
            None => pause.wait().await,
        }
    }
}

/// Deletes what the response does not name.
fn settle(world: &World, number: usize, batch: &[Received], answer: &Answer) {
    let failed = match failures(&answer.response, batch) {
        Ok(failed) => failed,
        Err(why) => {
            world.note(Event::BadResponse { batch: number, why });
            return;
        }
    };
    world.note(Event::Answered {
        batch: number,
        worker: answer.worker,
        took: answer.took,
        failed: failed.clone(),
    });
    for received in batch {
        let id = &received.message.id;
        if failed.contains(id) {
            continue;
        }
        let key = world.key(&received.message);
        let completed = key.is_some_and(|key| world.table.has_completed(world.plan.mode, &key));
        world.note(Event::Acknowledged {
            message: id.clone(),
            completed,
            batch: number,
        });
        if world.strikes(world.plan.rates.deletion_lost) {
            let after = world.dice().scaled(Duration::from_secs(3600));
            world.queue.forget_deletion(id, after);
        } else {
            world.queue.delete(world, received);
        }
    }
}
