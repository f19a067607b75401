//! Ends an attempt with one swap, which also commits the writes that the handler returned.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::{
    Once, Operation, Outcome,
    claim::MOST_SWAPS,
    held::Held,
    output::{Lease, Output},
    rejected::rejected,
    repeat::{Answered, GivenUp, Patience, repeat},
    work::{HandlerEnd, NoOutput, guard_now},
};
use crate::{
    flawed::flawed,
    handler::{Answer, Failure, FailureKind},
    protocol::{
        AttemptEnd, Decision, Effect, End, Key, Record, RequestErrorKind, State, StoredResult,
        Timestamp,
    },
    store::{RequestContext, Store, StoreError, Swapped, With},
    system,
};

/// The answer to the swap that ends an attempt.
enum Settled<R> {
    Applied,
    /// Another worker, or another write of this one, has already recorded the outcome.
    Recorded(Outcome),
    /// The store refuses to commit `with`.
    Refused(R),
    Unknown(GivenUp),
}

impl<S: Store, L: Lease> Once<S, L> {
    pub(super) async fn finished<O: Output<S, L>>(
        &self,
        operation: &Operation,
        mut held: Held,
        end: HandlerEnd<O>,
    ) -> Outcome {
        let is_found = matches!(end, HandlerEnd::Found(_));
        let without_output = || Ok(Answer::of(StoredResult::not_wanted()));
        let mut answer = match end {
            // The application's code serializes the output, and may panic.
            HandlerEnd::Returned(output) | HandlerEnd::Found(output) => {
                guard_now(move || output.answer())
            }
            HandlerEnd::EffectNotFound => return self.crashed(operation, &mut held, true).await,
            HandlerEnd::NoOutput(NoOutput::Failed(failure))
                if failure.kind() == FailureKind::PermanentNoEffect
                    && flawed("an unreadable message is completed") =>
            {
                without_output()
            }
            HandlerEnd::NotStarted(Outcome::NoEffect(_))
                if flawed("a lookup without an answer finds the effect") =>
            {
                without_output()
            }
            HandlerEnd::NoOutput(end) => Err(end),
            HandlerEnd::NotStarted(outcome) => {
                return self.undo(operation, &mut held, false, outcome).await;
            }
        };
        // Each round has new writes, which the handler returned after the store refused the previous ones.
        loop {
            answer = match answer {
                Ok(answer) => match self.complete(operation, &mut held, answer).await {
                    Ok(outcome) => return outcome.found(is_found),
                    Err(replaced) => replaced,
                },
                Err(end) => return self.end_without_output(operation, &mut held, end).await,
            };
        }
    }

    /// Stores the output, and records the completion together with the handler's writes.
    ///
    /// # Errors
    ///
    /// Returns the handler's next answer if the store refused its writes, or a failure if the record is too large.
    async fn complete(
        &self,
        operation: &Operation,
        held: &mut Held,
        answer: Answer<S::With>,
    ) -> Result<Outcome, Result<Answer<S::With>, NoOutput>> {
        let Answer {
            output,
            with,
            on_refused,
        } = answer;
        if held.is_first() && flawed("a success is forgotten") {
            let end = End::Open(AttemptEnd::Retryable);
            let outcome = Outcome::RetryableFailure("forgotten".into());
            return Ok(self.give_back(operation, held, &end, outcome).await);
        }
        // Store the output first: a crash may then leave an object without a record, but never a record without its object.
        let (_memory, mut result) = self.store(operation, held, output).await;
        if flawed("an output is lost") {
            result = StoredResult::Json("\"\"".to_owned());
        }
        let end = self.records.completion(&result);
        let patience = Self::patience();
        let GivenUp {
            error,
            may_have_been_applied,
        } = match self.settle(operation, held, patience, &end, &with).await {
            Settled::Applied => return Ok(Outcome::Completed(result)),
            Settled::Recorded(outcome) => return Ok(outcome),
            Settled::Refused(why) => return Err(guard_now(|| on_refused(why))),
            Settled::Unknown(given_up) => given_up,
        };
        // If the handler had its effect in another system, we leave the claim, so that no retry repeats the effect at once.
        let is_effect_elsewhere = L::IS_WRITTEN && with.is_empty();
        // The order matters. First comes a record that was too large to send, then a commit that may have been applied, then a
        // claim that stays.
        Ok(match error {
            StoreError::ItemTooLarge { .. } if !is_effect_elsewhere => {
                return Err(Err(NoOutput::Failed(Failure::permanent(error.to_string()))));
            }
            error if may_have_been_applied && !is_effect_elsewhere => {
                Outcome::commit_unknown(error)
            }
            error if L::IS_WRITTEN => Outcome::completion_unrecorded(error),
            StoreError::Unavailable {
                kind: RequestErrorKind::Contended,
                reason,
                ..
            } => Outcome::RetryableFailure(reason.into()),
            error => Outcome::store_unavailable(error),
        })
    }

    /// Stores the output where the settings say, and returns the result for the record. A large output also has a permit for
    /// its memory, which the caller holds until the record is written.
    async fn store(
        &self,
        operation: &Operation,
        held: &Held,
        output: StoredResult,
    ) -> (Option<OwnedSemaphorePermit>, StoredResult) {
        let (key, owner) = (&operation.key, held.owner());
        // Half of the time for writes is left for the completion itself.
        let write_until = operation.deadline.write_until();
        let left = write_until.saturating_duration_since(system::instant());
        let latest = write_until - left / 2;
        let memory = self.output_memory.wait(&output, latest).await;
        let stored = (self.records).store(key, owner, output, operation.deadline);
        (memory, stored.await)
    }

    async fn end_without_output(
        &self,
        operation: &Operation,
        held: &mut Held,
        end: NoOutput,
    ) -> Outcome {
        let last_end = match &end {
            NoOutput::Failed(failure) => match failure.kind() {
                kind @ (FailureKind::Permanent
                | FailureKind::PermanentNoEffect
                | FailureKind::Declined) => {
                    let facts = operation.delivery.facts();
                    if flawed("a redriven decline is not recorded")
                        && kind == FailureKind::Declined
                        && facts.attribute("SqsOnceRedriveOf").is_some()
                    {
                        return Outcome::PermanentFailure(failure.to_string());
                    }
                    let effect = match kind {
                        FailureKind::Declined => Effect::Declined,
                        FailureKind::PermanentNoEffect => Effect::None,
                        _ => Effect::Possible,
                    };
                    let error = failure.to_string();
                    return self.fail(operation, held, error, effect).await;
                }
                FailureKind::NoEffect => {
                    return self.undo(operation, held, true, end.into()).await;
                }
                FailureKind::Retryable if flawed("a retryable failure had no effect") => {
                    return self.undo(operation, held, true, end.into()).await;
                }
                FailureKind::Retryable => AttemptEnd::Retryable,
            },
            NoOutput::Panicked if L::IS_WRITTEN && flawed("a panic is a permanent failure") => {
                let error = "panicked".to_owned();
                return self.fail(operation, held, error, Effect::Possible).await;
            }
            NoOutput::Panicked => AttemptEnd::Panic,
            NoOutput::OutOfTime => AttemptEnd::Deadline,
        };
        self.give_back(operation, held, &End::Open(last_end), end.into())
            .await
    }

    /// Records a permanent failure. If another attempt has completed the operation, returns the outcome in the record. The
    /// handler of a duplicate may have failed only because of the first attempt's effect.
    async fn fail(
        &self,
        operation: &Operation,
        held: &mut Held,
        error: String,
        effect: Effect,
    ) -> Outcome {
        // Without a claim, no attempt is open.
        let effect = if L::IS_WRITTEN { effect } else { Effect::None };
        let end = self.records.failure(operation, error.clone(), effect);
        let (patience, nothing) = (Self::patience(), S::With::default());
        let reason = match self.settle(operation, held, patience, &end, &nothing).await {
            Settled::Applied => return Outcome::PermanentFailure(error),
            Settled::Unknown(given_up) => return unrecorded(error, given_up.error),
            Settled::Recorded(Outcome::RetryableFailure(why)) => why.text,
            Settled::Recorded(outcome) => return outcome,
            Settled::Refused(_) => "the store refused it".to_owned(),
        };
        let cause = StoreError::Rejected {
            action: "fail",
            key: operation.key.to_string(),
            reason,
        };
        unrecorded(error, cause)
    }

    /// Records that the earliest open attempt is too old. The called system may have forgotten the call key, and would then
    /// take a repeated request for a new operation.
    pub(super) async fn too_old(
        &self,
        operation: &Operation,
        held: &mut Held,
        open_since: Timestamp,
        call_key: &str,
    ) -> Outcome {
        let error = format!(
            "too old to repeat: look by hand. An attempt since {open_since} may have had its effect, and the called system may have forgotten its call key {call_key} (CONSUMER_CALL_KEY_LIFETIME). If you find no effect, `sqs-once record decline {}` lets a redrive run",
            operation.key
        );
        self.fail(operation, held, error, Effect::NotCalled).await
    }

    /// Records that the process died every time this message ran alone.
    pub(super) async fn crashed(
        &self,
        operation: &Operation,
        held: &mut Held,
        has_look_up: bool,
    ) -> Outcome {
        let times = match held {
            Held::Leased(claim) => claim.earlier_exclusive_attempts(),
            Held::Unleased(_) => 0,
        };
        let effect = if has_look_up {
            "the lookup found no effect"
        } else {
            "its effect may have happened"
        };
        let error = format!(
            "the process ended {times} times while the handler of this message ran alone; {effect}"
        );
        if flawed("a message that is given up is not recorded") {
            return Outcome::Crashed(error);
        }
        match self.fail(operation, held, error, Effect::NotCalled).await {
            Outcome::PermanentFailure(error) => Outcome::Crashed(error),
            other => other,
        }
    }

    async fn undo(
        &self,
        operation: &Operation,
        held: &mut Held,
        began: bool,
        outcome: Outcome,
    ) -> Outcome {
        self.give_back(operation, held, &End::Undone { began }, outcome)
            .await
    }

    /// Ends a claim whose message returns to the queue. If that fails, logs a warning and still returns `outcome`.
    async fn give_back(
        &self,
        operation: &Operation,
        held: &mut Held,
        end: &End,
        outcome: Outcome,
    ) -> Outcome {
        let Held::Leased(claim) = held else {
            // Nothing is written, so nothing is held.
            return outcome;
        };
        // If an attempt ran alone and has no recorded end, it looks as if the process had died, and the message waits for a
        // long time.
        let patience = if claim.is_counted() {
            Self::patience()
        } else {
            Patience::Brief
        };
        let nothing = S::With::default();
        match self.settle(operation, held, patience, end, &nothing).await {
            Settled::Applied | Settled::Refused(_) => outcome,
            Settled::Recorded(outcome) => outcome,
            Settled::Unknown(GivenUp { error, .. }) => {
                tracing::warn!(
                    key = %operation.key,
                    %error,
                    "settlement failed: the claim stays until its lease expires"
                );
                outcome
            }
        }
    }

    /// Retries the swap that ends the attempt until the store responds or `patience` ends. Without a lease, decides again if
    /// another worker has written the record meanwhile.
    async fn settle(
        &self,
        operation: &Operation,
        held: &mut Held,
        patience: Patience,
        end: &End,
        with: &S::With,
    ) -> Settled<<S::With as With>::Refused> {
        let key: &Key = &operation.key;
        let action = if with.is_empty() {
            end.name()
        } else {
            "commit"
        };
        let until = patience.until(operation.deadline.write_until());
        let context = RequestContext::until(until, &operation.meter);
        for swaps in 0.. {
            let swap = match held.ending(key, end, self.records.now()) {
                // We also look at what the last swap found, because it may settle the operation.
                Ok(_) if swaps == MOST_SWAPS => break,
                Ok(swap) => swap,
                Err(Decision::Rejected(rejection)) => {
                    return Settled::Recorded(rejected(rejection, operation));
                }
                // Only `Decision::Mine` is left. We don't reach it, because a swap that finds our own record returns below.
                Err(_) => return Settled::Applied,
            };
            let send = || self.records.store.swap(&swap, with, &context);
            let found = match repeat(patience, &context, action, key, send).await {
                Ok(Answered { answer, .. }) => match answer {
                    Swapped::Applied => return Settled::Applied,
                    Swapped::Refused(why) => return Settled::Refused(why),
                    Swapped::Found(found) => found,
                },
                Err(GivenUp {
                    may_have_been_applied: true,
                    ..
                }) if flawed("a write without an answer was applied") => return Settled::Applied,
                Err(given_up) => return Settled::Unknown(given_up),
            };
            match found {
                // An earlier copy was applied, and its answer was lost.
                Some(found) if found.stamp == swap.to.stamp => return Settled::Applied,
                Some(found) if found.stamp.owner == swap.to.stamp.owner => {
                    return Settled::Recorded(recorded(found));
                }
                found => match held {
                    Held::Leased(_) => return Settled::Recorded(Outcome::LeaseLost),
                    Held::Unleased(unwritten) => unwritten.found = found,
                },
            }
        }
        let why = "other workers changed the record before each commit";
        Settled::Recorded(Outcome::RetryableFailure(why.into()))
    }

    /// Returns how long we try to record an effect, or a failure that may have followed one. Without a claim, the commit is
    /// the effect itself.
    fn patience() -> Patience {
        if L::IS_WRITTEN {
            Patience::AfterEffect
        } else {
            Patience::Commit
        }
    }
}

fn unrecorded(error: String, cause: StoreError) -> Outcome {
    let cause = Arc::new(cause);
    Outcome::FailureUnrecorded { error, cause }
}

/// Returns the outcome in a record that this worker wrote with an earlier swap.
fn recorded(record: Record) -> Outcome {
    match record.state {
        State::Completed { result } => Outcome::Completed(result),
        State::Failed => {
            Outcome::PermanentFailure(record.last_error().unwrap_or_default().to_owned())
        }
        State::InProgress { .. } => Outcome::LeaseLost,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        future::pending,
        sync::{Mutex, PoisonError},
        time::Duration,
    };

    use super::*;
    use crate::{
        deadline::Deadline,
        dynamo::{
            done::Done,
            write::Write,
            writes::{Refused, Writes},
        },
        protocol::{Fingerprint, Namespace, Swap},
        store::{MemoryStore, RequestContext, SwappedIn},
        system::Instant,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn operation(id: &str, deadline: Deadline) -> Operation {
        let key = Key::new(&Namespace::new("test").unwrap(), [id]).unwrap();
        Operation::new(key, None, id, deadline)
    }

    /// Answers the first completion after this time, or never. Records when each one was sent.
    #[derive(Clone)]
    struct Slow {
        store: MemoryStore,
        answers_after: Option<Duration>,
        sent: Arc<Mutex<Vec<Instant>>>,
    }

    impl Slow {
        fn is_first(&self) -> bool {
            let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            sent.push(system::instant());
            sent.len() == 1
        }
    }

    impl Store for Slow {
        type With = ();

        async fn get(
            &self,
            key: &Key,
            context: &RequestContext,
        ) -> Result<Option<Record>, StoreError> {
            self.store.get(key, context).await
        }

        async fn swap(
            &self,
            swap: &Swap,
            (): &(),
            context: &RequestContext,
        ) -> Result<Swapped, StoreError> {
            if swap.to.action() == "complete" && self.is_first() {
                match self.answers_after {
                    Some(time) => system::sleep(time).await,
                    None => pending().await,
                }
            }
            self.store.swap(swap, &(), context).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_output_waits_for_memory_for_half_of_the_time() {
        // Outcomes can be written for 15 seconds.
        for (answers_after, waited) in [(Some(5 * SECOND), 5 * SECOND), (None, 15 * SECOND / 2)] {
            let store = Slow {
                store: MemoryStore::default(),
                answers_after,
                sent: Arc::default(),
            };
            let once = Once::new(store.clone()).output_memory(1);
            let deadline = Deadline::after(Timestamp::now(), 16 * SECOND, 4 * SECOND);
            let run = async |id: &str| {
                let large = "x".repeat(100 << 10);
                once.run(operation(id, deadline), async |_| Ok(large)).await
            };
            let (_, second) = tokio::join!(run("o-1"), run("o-2"));
            assert!(matches!(second, Outcome::Completed(_)), "{second:?}");
            let sent = store.sent.lock().unwrap();
            assert_eq!(sent[1] - sent[0], waited);
        }
    }

    /// Acts on the store before a swap, and may answer in its place.
    type Meet = dyn FnMut(&MemoryStore, &Swap, &Writes) -> Option<Swapped<Refused>> + Send;

    /// A store in which others write between the requests of a worker.
    #[derive(Clone)]
    struct Shared {
        store: MemoryStore,
        meet: Arc<Mutex<Meet>>,
    }

    impl Shared {
        fn new(
            meet: impl FnMut(&MemoryStore, &Swap, &Writes) -> Option<Swapped<Refused>> + Send + 'static,
        ) -> Self {
            Self {
                store: MemoryStore::default(),
                meet: Arc::new(Mutex::new(meet)),
            }
        }
    }

    impl Store for Shared {
        type With = Writes;

        async fn get(
            &self,
            key: &Key,
            context: &RequestContext,
        ) -> Result<Option<Record>, StoreError> {
            self.store.get(key, context).await
        }

        async fn swap(
            &self,
            swap: &Swap,
            with: &Writes,
            _: &RequestContext,
        ) -> Result<SwappedIn<Self>, StoreError> {
            let mut meet = self.meet.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = meet(&self.store, swap, with);
            Ok(answer.unwrap_or_else(|| self.store.apply(swap).widened()))
        }
    }

    /// The store refuses the handler's writes while an earlier copy of them is in flight. It applies the copy before the next
    /// request.
    #[tokio::test]
    async fn commit_behind_its_refusal_is_the_outcome() {
        let mut late = None;
        let once = Once::new(Shared::new(move |store, swap, with| {
            if !with.is_empty() {
                late = Some(swap.clone());
                return Some(Swapped::Refused(Refused::Invalid("refused".into())));
            }
            if let Some(late) = late.take() {
                assert_eq!(store.apply(&late), Swapped::Applied);
            }
            None
        }));
        let inbox = once.clone().inbox();
        let deadline = Deadline::after(Timestamp::now(), 20 * SECOND, SECOND);
        let work = async |_| {
            let put = Write::put("orders", serde_json::json!({"id": "o-1"}));
            Ok(Done::new(1).with(put))
        };
        for outcome in [
            once.run(operation("o-1", deadline), work).await,
            inbox.run(operation("o-2", deadline), work).await,
        ] {
            assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        }
    }
    /// Before each write, another worker replaces the record.
    #[tokio::test]
    async fn inbox_answers_with_what_its_last_commit_found() {
        let deadline = Deadline::after(Timestamp::now(), 20 * SECOND, SECOND);
        let key = operation("o-1", deadline).key;
        let of = |payload: &str| {
            let fingerprint = Fingerprint::of(payload.as_bytes());
            Operation::new(key.clone(), Some(fingerprint), payload, deadline)
        };
        let alone = Shared::new(|_, _, _| None);
        let inbox = Once::new(alone.clone()).inbox();
        let mut records = VecDeque::new();
        for payload in ["p-1", "p-2", "p-3", "p"] {
            let work = async |_| match payload {
                "p" => Ok(Done::new(1)),
                other => Err(Failure::permanent(other)),
            };
            let _ = inbox.run(of(payload), work).await;
            records.extend(alone.store.record(&key));
        }
        let rivals = Shared::new(move |store, swap, _| {
            if let Some(record) = records.pop_front() {
                store.put(&swap.key, Some(record));
            }
            None
        });
        let inbox = Once::new(rivals).inbox();
        let outcome = inbox.run(of("p"), async |_| Ok(Done::new(2))).await;
        assert!(matches!(outcome, Outcome::Duplicate(_)), "{outcome:?}");
    }
}
