//! [`Once`] as a [`Mode`]: claim -> handler -> end. With a lease, a claim is one swap, or a read and a swap.

use std::time::Duration;

use super::{
    Mode, Once, Operation, Outcome, Turns,
    held::{Held, HeldClaim, Unwritten},
    mode::Claimed,
    output::{Lease, Output},
    rejected::rejected,
    repeat::{Answered, GivenUp, Patience, repeat},
    run::run_work,
    work::HandlerEnd,
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{Attempt, Failure, HandlerOutput, History},
    protocol::{
        Claim, Decision, End, Expect, Plan, Record, Runs, Start, Swap, Timestamp, decide,
        plan_claim,
    },
    store::{RequestContext, Results, Store, StoreError, Swapped},
    system::{self, timeout_at},
};

/// How many swaps a claim or a commit tries. Each replaces the record that the last one found.
pub(super) const MOST_SWAPS: usize = 4;
/// How long we try to undo the claim of a message that would run alone.
const LONGEST_UNDO: Duration = Duration::from_secs(30);

/// A swap that a claim has sent, the record that it would replace, and what would run afterwards.
#[derive(Debug)]
struct SentSwap {
    swap: Swap,
    replaced: Option<Record>,
    runs: Runs,
}

impl<S: Store, L: Lease> Once<S, L> {
    /// Runs one operation: claims it, runs `work`, and records its end.
    ///
    /// Doesn't run `work` if the operation is completed, or if another worker holds the claim. A recorded failure also
    /// stops `work` if it is permanent, has the same payload and isn't older than this message. If the delivery has no send
    /// time, only a failure of the same message id stops `work`. Cuts `work` off when
    /// [`Deadline::time_left`](crate::Deadline::time_left) is zero. Catches panics of `work`, except in a build with
    /// `panic = "abort"`.
    ///
    /// Dropping the returned future is like a crash: the claim stays until its lease expires, and the next attempt sees
    /// this one as the prior attempt. The next attempt runs alone: the handlers of other calls wait for it. An
    /// [`Inbox`](super::Inbox) has no claim, so nothing stays and nobody waits.
    ///
    /// With claims, `work` must not call `run` on the same `Once` or a clone of it. Such a call ends as
    /// [`Outcome::NotStarted`](super::Outcome::NotStarted), with an error in the log. We can't see such a call in a task
    /// that `work` spawns. It may wait for its own caller's turn until no time is left. `work` may call `run` on another
    /// `Once`.
    pub async fn run<W, F, A>(&self, operation: Operation, work: W) -> Outcome
    where
        Self: Mode<A>,
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send,
        A: HandlerOutput,
    {
        // Without a claim nothing is a suspect, and nothing waits for a turn.
        let no_turns = Turns::default();
        let turns = if L::IS_WRITTEN {
            &self.turns
        } else {
            &no_turns
        };
        run_work(self, turns, operation, work).await
    }

    /// Reads the record of a message that may have one. Writes nothing yet: this mode writes only when the attempt ends.
    async fn opened(&self, operation: &Operation) -> Claimed<Held> {
        let claim = self.records.claim(operation, self.records.now(), None);
        let mut found = None;
        // At its first receive, a message probably has no record, so we don't read. If it has one, the swap at the attempt's
        // end finds it.
        if operation.delivery.facts().expects_record() {
            found = match self.records.read(operation).await {
                Ok(found) => found,
                Err(outcome) => return Claimed::Ended(outcome),
            };
            if let Decision::Rejected(rejection) = decide(found.as_ref(), &claim) {
                return Claimed::Ended(rejected(rejection, operation));
            }
        }
        let held = Held::Unleased(Unwritten::new(claim, found));
        Claimed::run(held, History::fresh())
    }

    /// Claims an operation, and decides how its handler runs.
    async fn claimed(&self, operation: &Operation, start: Start) -> Claimed<Held> {
        let deadline = operation.deadline;
        if self.health.has_given_up(deadline) {
            let why = "the last claims of this process got no answer, so this one was not sent";
            let error = StoreError::unanswered("claim", &operation.key, "the table", why);
            return Claimed::Ended(Outcome::store_unavailable(error));
        }
        let lease_until = if flawed("a lease ends at once") {
            self.records.now()
        } else {
            deadline.invocation_end() + self.lease_margin
        };
        let quarantine = operation.quarantine;
        let quarantine = quarantine.map(|wait| self.lease_margin.saturating_add(wait));
        let claim = self.records.claim(operation, lease_until, quarantine);
        let claimed = self.send_claim(operation, &claim, start).await;
        claimed.unwrap_or_else(Claimed::Ended)
    }

    async fn send_claim(
        &self,
        operation: &Operation,
        claim: &Claim,
        start: Start,
    ) -> Result<Claimed<Held>, Outcome> {
        let (key, deadline) = (&operation.key, operation.deadline);
        let context = RequestContext::until(deadline.handler_cutoff(), &operation.meter);
        // At its first receive, a message probably has no record, so we don't read.
        let mut found = if start == Start::Alone || operation.delivery.facts().expects_record() {
            let read = || self.records.store.get(key, &context);
            let answered = repeat(Patience::Claim, &context, "read", key, read).await;
            self.answer(answered, deadline)?
        } else {
            None
        };
        let mut sent: Vec<SentSwap> = Vec::new();
        let nothing = S::With::default();
        let mut version = 0;
        loop {
            let (to, keeps, runs) =
                match plan_claim(found.as_ref(), claim, version, start, &self.crash_waits) {
                    Plan::Reject(rejection) => return Err(rejected(rejection, operation)),
                    Plan::Suspend { exclusive_attempts } => {
                        return Ok(Claimed::Suspect { exclusive_attempts });
                    }
                    Plan::Mine => {
                        let stamp = found.map(|record| record.stamp);
                        let mine = sent
                            .into_iter()
                            .find(|sent| Some(&sent.swap.to.stamp) == stamp.as_ref());
                        return self.prepare(operation, mine, version).await;
                    }
                    // We check the limit only here, because the record that the last swap found may be our own claim.
                    Plan::Write { .. } if sent.len() == MOST_SWAPS => break,
                    Plan::Write { to, keeps, runs } => (*to, keeps, runs),
                };
            version = to.stamp.version;
            let replaced = found.as_ref().filter(|_| keeps).cloned();
            let swap = Swap {
                key: key.clone(),
                expect: found.take().map_or(Expect::Absent, Expect::Unchanged),
                to,
            };
            let this = SentSwap {
                swap,
                replaced,
                runs,
            };
            let store = &self.records.store;
            let send = || store.swap(&this.swap, &nothing, &context);
            let answered = match repeat(Patience::Claim, &context, "claim", key, send).await {
                Err(given_up) if given_up.may_have_been_applied => {
                    sent.push(this);
                    // Undo the claim now. Otherwise the message waits for the lease at its next receive, and the handler is
                    // told of an attempt that never began.
                    self.abandon(operation, &sent, version).await;
                    return self.answer(Err(given_up), deadline);
                }
                answered => self.answer(answered, deadline)?,
            };
            match answered {
                Swapped::Applied => return self.prepare(operation, Some(this), version).await,
                Swapped::Found(record) => found = record,
                // A claim has no writes that the store could refuse.
                Swapped::Refused(_) => break,
            }
            sent.push(this);
        }
        Err(Outcome::store_unavailable(StoreError::contended(
            "claim",
            key,
            "the table",
            "other workers changed the record before each write",
        )))
    }

    /// Interprets the response to a claim's request.
    fn answer<T>(
        &self,
        answered: Result<Answered<T>, GivenUp>,
        deadline: Deadline,
    ) -> Result<T, Outcome> {
        match answered {
            Ok(answered) => {
                self.health.answered();
                Ok(answered.answer)
            }
            Err(GivenUp { error, .. }) => {
                if error.is_unanswered() {
                    self.health.unanswered(deadline);
                } else {
                    self.health.answered();
                }
                Err(Outcome::store_unavailable(error))
            }
        }
    }

    /// Prepares what follows a successful claim. If the process died too often while the message ran alone, nothing runs.
    ///
    /// The rare ends are boxed, so that the future of every other message is smaller.
    async fn prepare(
        &self,
        operation: &Operation,
        sent: Option<SentSwap>,
        version: u64,
    ) -> Result<Claimed<Held>, Outcome> {
        let Some(SentSwap {
            swap,
            replaced,
            runs,
        }) = sent
        else {
            let why = "the record has the owner of this claim, and a version that it never sent";
            let error = StoreError::invalid("claim", &operation.key, "the table", why);
            return Err(Outcome::store_unavailable(error));
        };
        let held = HeldClaim::new(swap.to, replaced, version);
        if runs == Runs::Nothing {
            let mut held = Held::Leased(held);
            return Err(Box::pin(self.crashed(operation, &mut held, false)).await);
        }
        // The handler may call the system until the invocation ends. A lookup doesn't need the call key.
        let last_request = operation.deadline.invocation_end() + self.lease_margin;
        if operation.quarantine.is_none()
            && let Some(since) = held.open_too_long(self.call_key_lifetime, last_request)
        {
            let call_key = operation.key.call_key(held.record.generation);
            let mut held = Held::Leased(held);
            return Err(Box::pin(self.too_old(operation, &mut held, since, &call_key)).await);
        }
        if held.is_counted() {
            tracing::warn!(
                key = %operation.key,
                exclusive_attempts = held.earlier_exclusive_attempts(),
                "an earlier attempt has no recorded end: the handler runs alone"
            );
        }
        Ok(Claimed::Run {
            history: held.history(),
            claim: Held::Leased(held),
            only_looks_up: runs == Runs::LookUp,
        })
    }

    /// Undoes a claim that got no response. If another swap of the claim turns out to be applied, undoes that one. If an
    /// undo gets no response either, the claim stays until its lease ends.
    async fn abandon(&self, operation: &Operation, sent: &[SentSwap], version: u64) {
        let mut applied = sent.last();
        let mut version = version;
        while let Some(SentSwap { swap, replaced, .. }) = applied {
            let mut claim = HeldClaim::new(swap.to.clone(), replaced.clone(), version);
            let end = End::Undone { began: false };
            let undo = claim.ending(&swap.key, &end, self.records.now());
            version = undo.to.stamp.version;
            let found = self.send_undo(operation, &undo, claim.is_counted()).await;
            let stamp = found.map(|found| found.stamp);
            let stamp = stamp.filter(|stamp| *stamp != swap.to.stamp);
            applied = sent
                .iter()
                .find(|other| Some(&other.swap.to.stamp) == stamp.as_ref());
        }
    }

    /// Sends the undo of a claim. Returns the record that the store found in place of the claim's.
    async fn send_undo(
        &self,
        operation: &Operation,
        undo: &Swap,
        is_counted: bool,
    ) -> Option<Record> {
        let (until, meter) = (operation.deadline.write_until(), &operation.meter);
        let nothing = S::With::default();
        let answer = if is_counted {
            // Without this undo, it looks as if the process died while the message ran alone, and the message waits for a long
            // time. We limit the retries, because no other handler of the process runs meanwhile.
            let end = until.min(system::instant() + LONGEST_UNDO);
            let context = RequestContext::until(end, meter);
            let send = || self.records.store.swap(undo, &nothing, &context);
            let undone = repeat(Patience::AfterEffect, &context, "undo", &undo.key, send).await;
            undone
                .inspect_err(|GivenUp { error, .. }| {
                    tracing::warn!(
                        key = %operation.key,
                        %error,
                        "a claim got no response and could not be undone: if it was applied, the message waits as after a crash"
                    );
                })
                .ok()?
                .answer
        } else {
            // This undo only shortens a wait.
            let end = Patience::Brief.until(until);
            let context = RequestContext::until(end, meter);
            let undone = timeout_at(end, self.records.store.swap(undo, &nothing, &context));
            meter.timed(undone).await.ok()?.ok()?
        };
        match answer {
            Swapped::Found(found) => found,
            Swapped::Applied | Swapped::Refused(_) => None,
        }
    }
}

impl<S, L> super::mode::sealed::Sealed for Once<S, L> {}

#[diagnostic::do_not_recommend]
impl<S: Store, L: Lease, O: Output<S, L>> Mode<O> for Once<S, L> {
    type Claim = Held;

    async fn claim(&self, operation: &Operation, start: Start) -> Claimed<Held> {
        if !operation.deadline.may_start() {
            Claimed::Ended(Outcome::NotStarted)
        } else if L::IS_WRITTEN {
            self.claimed(operation, start).await
        } else {
            self.opened(operation).await
        }
    }

    /// This is not an `async fn`, whose future would hold `claim` and `end` twice.
    fn finish(
        &self,
        operation: &Operation,
        claim: Held,
        end: HandlerEnd<O>,
    ) -> impl Future<Output = Outcome> + Send {
        self.finished(operation, claim, end)
    }

    async fn without_body(&self, operation: &Operation) -> Option<Outcome> {
        self.records.without_body(operation).await
    }

    fn now(&self) -> Timestamp {
        self.records.now()
    }

    fn results(&self) -> Results {
        self.records.results.clone()
    }
}
