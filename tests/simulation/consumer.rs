//! [`consumer`]: the shipped consumer of a process, as the plan sets it up.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use serde::Deserialize;
use sqs_once::{
    Attempt, Consumer, Handler, ItemMode, Once, Stored,
    internal::HandlerOutput,
    protocol::CrashWaits,
    sqs::{Envelope, FifoAfterPermanent, S3Bodies, Visibility},
    store::{Results, S3Results},
    telemetry::Metrics,
};

use crate::{
    gateway::{Ask, ChangeItem, Charge, Commit},
    lambda::{Invoke, function},
    layer::Behind,
    ledger::Event,
    plan::{MOST_BY_MEMORY, Mode, PART_OF_FUNCTION, QUARANTINE, Release, Wrapping},
    s3::{self, BODIES},
    sqs,
    table::{Records, at_the_wire},
    wire,
    world::{Member, World, namespace},
};

/// Outputs of more bytes are in S3.
const INLINE_LIMIT: usize = 16;

/// Returns the consumer of a process. To be called as this process.
pub fn consumer(world: &Arc<World>, member: &Member, release: Release) -> Invoke {
    let charge = Charge {
        world: Arc::clone(world),
        member: member.clone(),
    };
    let of = Setup {
        world,
        member,
        release,
    };
    let layer = world.plan.layer;
    match world.plan.mode {
        Mode::Claim => {
            let once = of.once(Records::new(world, member, release));
            let ask = Ask(charge.clone());
            let consumer = Consumer::without_aws(once, namespace(), Behind::new(charge, layer));
            of.replaying(consumer.look_up(ask, of.quarantine()))
        }
        Mode::Commit => {
            let once = of.once(at_the_wire(world, member, release));
            let ask = Ask(charge.clone());
            let consumer =
                Consumer::without_aws(once, namespace(), Behind::new(Commit(charge), layer));
            of.replaying(consumer.look_up(ask, of.quarantine()))
        }
        Mode::Inbox => {
            let inbox = of.once(at_the_wire(world, member, release)).inbox();
            of.replaying(Consumer::without_aws(
                inbox,
                namespace(),
                Behind::new(Commit(charge), layer),
            ))
        }
        Mode::Item => {
            let items =
                ItemMode::new(wire::client(world, member)).retention(world.plan.records_kept);
            of.replaying(Consumer::without_aws(
                items,
                namespace(),
                Behind::new(ChangeItem(charge), layer),
            ))
        }
    }
}

/// The member of the body that the key function reads.
#[derive(Deserialize)]
struct OrderKey {
    order: String,
}

struct Setup<'a> {
    world: &'a Arc<World>,
    member: &'a Member,
    release: Release,
}

impl Setup<'_> {
    fn once<S: sqs_once::store::Store>(&self, store: S) -> Once<S> {
        let plan = &self.world.plan;
        let results = if plan.outputs_in_s3 {
            let outputs = S3Results::new(&s3::config(self.world, self.member), "outputs");
            Results::outside(outputs).inline_limit(INLINE_LIMIT)
        } else {
            Results::inline()
        };
        let once = Once::new(store)
            .call_key_lifetime(self.release.call_key_lifetime)
            .retention(plan.records_kept)
            .results(results);
        if self.release.isolates {
            once
        } else {
            once.crash_waits(CrashWaits::off())
        }
    }

    fn quarantine(&self) -> Option<Duration> {
        let is_looked_up = self.world.plan.gateway.is_looked_up;
        (is_looked_up && self.release.looks_up).then_some(QUARANTINE)
    }

    /// A consumer that sees its duplicates.
    fn replaying<M, H>(&self, consumer: Consumer<M, H>) -> Invoke
    where
        M: sqs_once::Mode<H::Output>,
        H: Handler<Output: HandlerOutput<Result = String>>,
    {
        let (world, worker) = (Arc::clone(self.world), self.member.worker);
        self.set_up(
            consumer.on_duplicate(move |_, stored: Stored<String>, attempt: Attempt| {
                let world = Arc::clone(&world);
                async move {
                    let key = attempt.key().to_string();
                    world.note(Event::CalledBack {
                        message: attempt.message_id().to_owned(),
                        count: attempt.receive_count(),
                        worker,
                        key: key.clone(),
                        call_key: attempt.call_key(),
                    });
                    let output = stored.output().await?;
                    world.note(Event::Replayed { key, output });
                    Ok(())
                }
            }),
        )
    }

    fn set_up<M, H>(&self, consumer: Consumer<M, H>) -> Invoke
    where
        M: sqs_once::Mode<H::Output>,
        H: Handler,
    {
        let (world, plan, release) = (self.world, &self.world.plan, self.release);
        let client = sqs::client(world, self.member);
        let visibility = Visibility::new(client)
            .backoff(plan.timeouts.base, plan.timeouts.cap)
            .dead_letter(plan.direct_dead_letters);
        let envelope = match plan.wrapping {
            Wrapping::Bare => Envelope::None,
            Wrapping::Sns | Wrapping::EventBridge => Envelope::Auto,
        };
        let (note_to, worker) = (Arc::clone(world), self.member.worker);
        let number = |of| NonZeroUsize::new(of).unwrap_or(NonZeroUsize::MIN);
        let consumer = match release.memory {
            Some(memory) => {
                consumer.concurrency_within(number(MOST_BY_MEMORY), memory / plan.invocations)
            }
            None => consumer.concurrency(number(release.concurrency)),
        };
        let consumer = match plan.key.source() {
            Some(source) => consumer.key(source.parse().expect("a key source")),
            None => consumer.key_by(|key: OrderKey| [PART_OF_FUNCTION.to_owned(), key.order]),
        };
        let fingerprint = release.fingerprint.source().parse();
        let mut consumer = consumer
            .fingerprint(fingerprint.expect("a fingerprint source"))
            .envelope(envelope)
            .circuit_breaker(release.has_breaker)
            .deadline_reserve(release.reserve)
            .visibility(visibility)
            .metrics(Metrics::new("sqs-once", "charge").expect("names of metrics"))
            .on_outcome(move |message| {
                note_to.note(Event::Outcome {
                    message: message.message_id.to_owned(),
                    count: message.receive_count,
                    outcome: message.outcome.name(),
                    worker,
                });
            });
        if plan.stops_groups {
            consumer = consumer.fifo_after_permanent(FifoAfterPermanent::Stop);
        }
        if plan.bodies_in_s3 {
            let config = s3::config(world, self.member);
            consumer = consumer.s3_bodies(S3Bodies::new(&config, [BODIES]));
        }
        function(consumer)
    }
}
