//! How a worker ends its claim.

use std::sync::Arc;

use sqs_once::protocol::{FencingToken, PriorState, Settlement, StoredResult};

use crate::processes::{
    state::{AttemptFacts, End, Reason, Receive, Request, Step, message_id, seconds, time},
    step::Next,
};

impl Next<'_> {
    pub fn completes(&mut self, receive: Receive) {
        let Some((_, clock)) = self.process(receive) else {
            return;
        };
        let complete = Settlement::Complete {
            result: StoredResult::Json(receive.owner().to_string()),
            expires_at: (time(clock) + seconds(self.world.retention)).as_secs_ceil(),
        };
        self.settles(receive, complete, End::Done, None);
    }

    pub fn fails(&mut self, receive: Receive, reason: Reason) {
        let Some((_, clock)) = self.process(receive) else {
            return;
        };
        let expires_at = (time(clock) + seconds(self.world.retention)).as_secs_ceil();
        let message = message_id(receive.message);
        let fail = Settlement::fail("failed".into(), message, false, expires_at);
        self.settles(receive, fail, End::Failed(reason), Some(reason));
    }

    pub fn undoes(&mut self, receive: Receive, prior: &PriorState) {
        let Some((_, task)) = self.at(receive) else {
            return;
        };
        let (may_arrive, began) = (task.copies > 0, task.began);
        let undo = self.world.rules.undo(prior.clone(), may_arrive, began);
        let end = End::Returns(self.state.now + 1);
        self.settles(receive, undo, end, None);
    }

    pub fn settles(
        &mut self,
        receive: Receive,
        settlement: Settlement,
        end: End,
        reason: Option<Reason>,
    ) {
        let Some((_, task)) = self.at(receive) else {
            return;
        };
        task.step = Step::Settles(end);
        let fence = task.claim.fence();
        self.sends_settlement(receive, fence, settlement, reason);
    }

    pub fn abandons(&mut self, receive: Receive, is_second: bool) {
        let Some((_, task)) = self.at(receive) else {
            return;
        };
        task.step = Step::Abandons(is_second);
        let claim = Arc::clone(&task.claim);
        let [first, second] = self.world.rules.abandon(&claim);
        let (fence, release) = if is_second { second } else { first };
        self.sends_settlement(receive, fence, release, None);
    }

    pub fn sends_settlement(
        &mut self,
        receive: Receive,
        fence: FencingToken,
        settlement: Settlement,
        reason: Option<Reason>,
    ) {
        let Some((process, task)) = self.at(receive) else {
            return;
        };
        let attempt = AttemptFacts {
            began: task.began,
            alone: task.alone,
            reason,
        };
        let (claimed_at, lease_until) = (task.claim.now, task.claim.lease_until);
        let clock = time(self.state.clock(process));
        let now = self.world.rules.settled_at(clock, claimed_at, lease_until);
        let request = Request::Settle {
            fence,
            settlement,
            now,
            attempt,
        };
        self.sends(receive, Arc::new(request));
    }
}
