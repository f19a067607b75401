//! Permanent failures, and injected faults while they are recorded: no effect, never acknowledged.

use futures_util::future::join_all;
use sqs_once::{Deadline, Done, Failure, Outcome};

use super::{
    crashes::{LEASE, Meets, STORIES},
    world::{THINGS, World, ample, one_more, operation, pass, short},
};

const ID: &str = "m-1";

/// Modes that record a failure, by the failing part, and the requests for that.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fails {
    ClaimByHandler,
    ClaimByCondition,
    InboxByPlan,
    InboxByCondition,
}
use Fails::{ClaimByCondition, ClaimByHandler, InboxByCondition, InboxByPlan};

impl Fails {
    const fn requests(self) -> &'static [&'static str] {
        match self {
            ClaimByHandler => &["Claim", "UpdateItem"],
            ClaimByCondition => &["Claim", "TransactWriteItems", "UpdateItem"],
            InboxByPlan => &["PutItem"],
            InboxByCondition => &["TransactWriteItems", "PutItem"],
        }
    }

    async fn attempt(self, world: &World, deadline: Deadline) -> Outcome {
        let handler = async |_| {
            if matches!(self, ClaimByHandler | InboxByPlan) {
                return Err(Failure::permanent("declined"));
            }
            Ok(Done::new(()).with(one_more(ID).when("attribute_exists(id)")))
        };
        let client = &world.short_timeout_client();
        let operation = operation(ID, deadline);
        match self {
            ClaimByHandler | ClaimByCondition => world.once(client).run(operation, handler).await,
            InboxByPlan | InboxByCondition => world.inbox(client).run(operation, handler).await,
        }
    }

    /// A world whose first attempt met a fault at the `nth` of its requests, and has ended.
    async fn met_by(self, nth: usize, meets: Meets) -> World {
        let request = self.requests()[nth];
        let world = World::start_paused().await;
        world.fail(request, meets);
        let outcome = self.attempt(&world, short()).await;
        assert!(!outcome.is_success(), "{self:?} {nth} {meets:?}: {outcome}");
        let met = world.dynamo.heal().await;
        assert!(
            met.contains_key(request),
            "{self:?} {nth} {meets:?}: {met:?}"
        );
        world
    }
}

async fn failure_survives_every_fault(fails: Fails) {
    let stories = STORIES.iter().filter(|(.., item_mode)| {
        // A dead worker has no outcome, and the other injected faults concern effects of transactions.
        !item_mode.is_empty()
    });
    let stories = stories.flat_map(|&(meets, ..)| {
        let requests = 0..fails.requests().len();
        requests.map(move |nth| async move { (nth, meets, fails.met_by(nth, meets).await) })
    });
    let met = join_all(stories).await;
    pass(LEASE);
    for (nth, meets, world) in met {
        let story = format!("{fails:?} {nth} {meets:?}");
        let again = fails.attempt(&world, ample()).await;
        let recorded = ["permanent_failure", "failed_before"];
        assert!(recorded.contains(&again.name()), "{story}: {again}");
        let known = fails.attempt(&world, ample()).await;
        assert_eq!(known.name(), "failed_before", "{story}: {known}");
        let (status, _) = world.ended(ID).await.unwrap();
        assert_eq!(status, "FAILED", "{story}");
        assert_eq!(world.dynamo.record(THINGS, ID).await, None, "{story}");
    }
}

#[tokio::test(start_paused = true)]
async fn handler_failure_after_claim_survives_every_fault() {
    failure_survives_every_fault(ClaimByHandler).await;
}

#[tokio::test(start_paused = true)]
async fn refused_commit_survives_every_fault() {
    failure_survives_every_fault(ClaimByCondition).await;
}

#[tokio::test(start_paused = true)]
async fn inbox_plan_failure_survives_every_fault() {
    failure_survives_every_fault(InboxByPlan).await;
}

#[tokio::test(start_paused = true)]
async fn refused_inbox_write_survives_every_fault() {
    failure_survives_every_fault(InboxByCondition).await;
}
