//! [`Once`] as a [`Mode`]: claim -> handler -> end. A claim is one swap, or a read and a swap.

use serde::Serialize;

use super::{
    Mode, Once, Operation, Outcome,
    held::HeldClaim,
    mode::{Claimed, Start},
    rejected::rejected,
    repeat::{Answered, Effort, GivenUp, MAX_BRIEF, repeat},
    run::run_work,
    work::{HandlerEnd, guard_now},
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{Attempt, Failure, HandlerOutput, to_output},
    protocol::{
        Claim, Decision, End, Expect, Record, StoredResult, Swap, Timestamp, decide,
        isolation::{Standing, has_last_look_up, standing},
    },
    store::{RequestContext, Results, Store, StoreError, Swapped},
    system::{self, timeout_at},
};

/// How often a claim or a commit decides again with the record that its swap found.
pub(super) const MOST_SWAPS: usize = 4;

/// A swap that a claim has sent, and the record that it would replace.
#[derive(Debug)]
struct Sent {
    swap: Swap,
    replaced: Option<Record>,
}

impl<S: Store> Once<S> {
    /// Runs one operation: claims it, runs `work`, and records its end.
    ///
    /// Does not run `work` if the operation is completed, has failed permanently, or is claimed by another
    /// worker. Cuts `work` off when [`Deadline::time_left`](crate::Deadline::time_left) is zero. Catches
    /// panics of `work`, except in a build with `panic = "abort"`.
    ///
    /// Dropping the returned future is like a crash: the claim stays until its lease expires, and the next
    /// attempt sees this one as the prior attempt. That attempt runs alone: the handlers of other calls wait for it.
    ///
    /// `work` must not call `run` on the same `Once` or a clone of it: such a call ends as
    /// [`Outcome::NotStarted`](super::Outcome::NotStarted) with an error in the log. In a task that `work` spawns, we can't see
    /// that: there the call may wait for the turn of its own caller until no time is left. Another `Once` inside is fine.
    pub async fn run<W, F, A>(&self, operation: Operation, work: W) -> Outcome
    where
        Self: Mode<A>,
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send,
        A: HandlerOutput,
    {
        run_work(self, &self.turns, operation, work).await
    }

    /// Claims an operation, and decides how its handler runs.
    pub(super) async fn claimed(&self, operation: &Operation, start: Start) -> Claimed<HeldClaim> {
        let deadline = operation.deadline;
        if !deadline.may_start() {
            return Claimed::Ended(Outcome::NotStarted);
        }
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
        match self.send_claim(operation, &claim, start).await {
            Ok(Claimed::Run { claim, .. }) if !deadline.may_begin(self.records.now()) => {
                let outcome = Outcome::NotStarted;
                Claimed::Ended(self.undo(operation, &claim, false, outcome).await)
            }
            Ok(claimed) => claimed,
            Err(outcome) => Claimed::Ended(outcome),
        }
    }

    /// Returns the output to complete the operation with, or ends the claim without an output.
    pub(super) async fn output<O>(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        end: HandlerEnd<O>,
    ) -> Result<O, Outcome> {
        Err(match end {
            HandlerEnd::Returned(output) | HandlerEnd::Found(output) => return Ok(output),
            HandlerEnd::NotFound => self.crashed(operation, claim, true).await,
            HandlerEnd::NotStarted(Outcome::NoEffect(_))
                if flawed("a lookup without an answer finds the effect") =>
            {
                let none = StoredResult::not_wanted();
                self.complete(operation, claim, none).await
            }
            HandlerEnd::NoOutput(end) => self.end_without_output(operation, claim, end).await,
            HandlerEnd::NotStarted(outcome) => self.undo(operation, claim, false, outcome).await,
        })
    }

    async fn send_claim(
        &self,
        operation: &Operation,
        claim: &Claim,
        start: Start,
    ) -> Result<Claimed<HeldClaim>, Outcome> {
        let (key, deadline) = (&operation.key, operation.deadline);
        let context = RequestContext::until(deadline.handler_cutoff(), &operation.meter);
        let effort = Effort::claim(deadline, context);
        // At its first receive, a message has no record.
        let mut found = if start == Start::Alone || operation.delivery.facts().expects_record() {
            let read = || self.records.store.get(key, effort.context());
            let answered = repeat(&effort, "read", key, read).await;
            self.answer(answered, deadline)?
        } else {
            None
        };
        let mut sent: Vec<Sent> = Vec::new();
        let mut version = 0;
        for _ in 0..MOST_SWAPS {
            let replaced = match decide(found.as_ref(), claim) {
                Decision::Rejected(rejection) => {
                    return Err(rejected(rejection, operation));
                }
                Decision::First if !flawed("an expired record is history") => None,
                Decision::First | Decision::Over => found.clone(),
                Decision::Mine => {
                    let stamp = found.map(|record| record.stamp);
                    let mine = sent
                        .into_iter()
                        .find(|sent| Some(&sent.swap.to.stamp) == stamp.as_ref());
                    return self.held(operation, mine, version).await;
                }
            };
            let standing = standing(replaced.as_ref(), &self.crash_waits);
            let looks_up_last = |exclusive_attempts| {
                operation.quarantine.is_some()
                    && (replaced.as_ref()).is_some_and(|record| record.first_claimed_at.is_some())
                    && has_last_look_up(exclusive_attempts, &self.crash_waits)
            };
            let suspect = match standing {
                Standing::Clear => None,
                Standing::Suspect { exclusive_attempts } => Some(exclusive_attempts),
                Standing::Crashed { exclusive_attempts } => {
                    looks_up_last(exclusive_attempts).then_some(exclusive_attempts)
                }
            };
            if let Some(exclusive_attempts) = suspect
                && start == Start::Beside
            {
                return Ok(Claimed::Suspect { exclusive_attempts });
            }
            version = found
                .as_ref()
                .map_or(0, |record| record.stamp.version)
                .max(version)
                + 1;
            let alone = suspect.map(|_| &self.crash_waits);
            let swap = Swap {
                key: key.clone(),
                expect: found.take().map_or(Expect::Absent, Expect::Unchanged),
                to: Record::claimed(claim, version, replaced.as_ref(), alone),
            };
            let this = Sent { swap, replaced };
            let send = || self.records.store.swap(&this.swap, effort.context());
            let answered = match repeat(&effort, "claim", key, send).await {
                Err(given_up) if given_up.may_have_been_applied => {
                    sent.push(this);
                    self.abandon(operation, &sent, version).await;
                    return self.answer(Err(given_up), deadline);
                }
                answered => self.answer(answered, deadline)?,
            };
            match answered {
                Swapped::Applied => return self.held(operation, Some(this), version).await,
                Swapped::Found(record) => found = record,
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

    /// Interprets the answer to a request of a claim.
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

    /// Takes what was claimed. A message whose process died alone too often does not run.
    ///
    /// The rare ends are boxed, so that the future of every other message is smaller.
    async fn held(
        &self,
        operation: &Operation,
        sent: Option<Sent>,
        version: u64,
    ) -> Result<Claimed<HeldClaim>, Outcome> {
        let Some(Sent { swap, replaced }) = sent else {
            let why = "the record has the owner of this claim, and a version that it never sent";
            let error = StoreError::invalid("claim", &operation.key, "the table", why);
            return Err(Outcome::store_unavailable(error));
        };
        let is_crashed = matches!(
            standing(replaced.as_ref(), &self.crash_waits),
            Standing::Crashed { .. }
        );
        let held = HeldClaim::new(swap.to, replaced, version);
        if is_crashed && !held.is_counted() {
            return Err(Box::pin(self.crashed(operation, &held, false)).await);
        }
        // A lookup does not ask by the call key.
        if operation.quarantine.is_none()
            && let Some(since) = held.open_too_long(self.call_key_lifetime)
        {
            return Err(Box::pin(self.too_old(operation, &held, since)).await);
        }
        if held.is_counted() {
            tracing::warn!(
                key = %operation.key,
                exclusive_attempts = held.exclusive_attempts(),
                "an earlier attempt has no recorded end: the handler runs alone"
            );
        }
        Ok(Claimed::Run {
            history: held.history(),
            claim: held,
            runs_handler: !is_crashed,
        })
    }

    /// Undoes a claim without an answer, with one swap. If that finds another swap of the claim applied, undoes that one.
    /// If neither is answered, the claim stays until its lease ends.
    async fn abandon(&self, operation: &Operation, sent: &[Sent], version: u64) {
        let end = operation.deadline.write_until();
        let end = end.min(system::instant() + MAX_BRIEF);
        let context = RequestContext::until(end, &operation.meter);
        let mut applied = sent.last();
        let mut version = version;
        while let Some(Sent { swap, replaced }) = applied {
            version += 1;
            let now = self.records.now().max(swap.to.updated_at);
            let end_of_claim = End::Undone { began: false };
            let undo = Swap {
                key: swap.key.clone(),
                to: (swap.to).ended(replaced.as_ref(), &end_of_claim, version, now),
                expect: Expect::Unchanged(swap.to.clone()),
            };
            let swapped = self.records.store.swap(&undo, &context);
            applied = match operation.meter.timed(timeout_at(end, swapped)).await {
                Ok(Ok(Swapped::Found(Some(found)))) => sent
                    .iter()
                    .find(|other| other.swap.to.stamp == found.stamp)
                    .filter(|other| other.swap.to.stamp != swap.to.stamp),
                _ => None,
            };
        }
    }
}

impl<S> super::mode::sealed::Sealed for Once<S> {}

#[diagnostic::do_not_recommend]
impl<S: Store, O: Serialize + Send> Mode<O> for Once<S> {
    type Claim = HeldClaim;

    async fn claim(&self, operation: &Operation, start: Start) -> Claimed<HeldClaim> {
        self.claimed(operation, start).await
    }

    async fn finish(&self, operation: &Operation, claim: HeldClaim, end: HandlerEnd<O>) -> Outcome {
        let is_found = matches!(end, HandlerEnd::Found(_));
        let output = match self.output(operation, &claim, end).await {
            Ok(output) => output,
            Err(outcome) => return outcome,
        };
        // The application's code serializes the output, and may panic.
        let outcome = match guard_now(move || Ok(to_output(&output))) {
            Ok(output) => self.complete(operation, &claim, output).await,
            Err(end) => self.end_without_output(operation, &claim, end).await,
        };
        outcome.found(is_found)
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
