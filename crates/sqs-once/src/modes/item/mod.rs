//! [`ItemMode`]: one conditional write changes an item and stores the key on the item.

mod change;
#[cfg(feature = "testing")]
mod plan;
mod processed_keys;
mod send;
mod version;
mod writer;

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use serde::Serialize;

pub use change::Change;
pub(crate) use change::Kind;
use send::ItemClient;
use writer::ChangeWriter;

use crate::{
    dynamo::writes::Refused,
    handler::{Attempt, Failure},
    modes::{
        Mode, Operation, Outcome,
        mode::Claimed,
        records::RETENTION,
        run::run_here,
        work::{HandlerEnd, guard_now},
    },
    protocol::{Start, Timestamp},
};

/// The item mode: runs operations whose only effect is one change of one item.
///
/// This mode uses no idempotency table. The item itself stores the idempotency keys of its changes, the *processed keys*,
/// in the list `processed_events`. For each change, the list has its time in epoch seconds, then its key.
///
/// ```text
/// attempt 1  handler ── change, on condition that the item does not have the key
/// attempt 2  handler ────── condition check fails, and the item has the key: duplicate
/// ```
///
/// | change | round trips | attributes added to the item |
/// | --- | --- | --- |
/// | [`Change::create`] | 1 | `processed_events` |
/// | [`Change::update`] | 1, and 1 more to remove old keys | `processed_events` |
/// | [`Change::modify`] | 2, and 1 more for each collision | `processed_events`, `version` |
///
/// # Retention
///
/// An item keeps each key for at least the [retention](Self::retention). Changes remove older keys, so an item doesn't stay
/// full for ever. We limit the age of the keys and not their number, because otherwise a busy item could forget a message that
/// SQS can still deliver again, and change twice.
///
/// # Requirements for the handler
///
/// - The message alone must determine the item. If the handler uses a new id or the customer's current cart,
///   the next delivery may change a different item, which does not have the key.
/// - The condition of the change, or the closure of `modify`, must decide whether to make the change, because
///   both are skipped once the change was applied. A handler that reads the item itself may fail because of
///   its own earlier effect.
/// - The handler and its closures must have no other effect, because both may run again for a completed
///   operation.
///
/// # Not stored
///
/// | not stored | consequence |
/// | --- | --- |
/// | results | a duplicate's result is [`StoredResult::Omitted`](crate::protocol::StoredResult::Omitted) |
/// | failures | a message that fails permanently runs again on each delivery |
/// | fingerprints | a key with a different payload is a duplicate, not [`Outcome::KeyReused`] |
///
/// So [`Consumer::on_duplicate`](crate::Consumer::on_duplicate) gets no output. A message that fails permanently goes to
/// the dead-letter queue as in the other modes. On a FIFO queue, the message stops its message group until then. Without
/// direct dead-lettering, messages that are received with it also use up their receives.
///
/// Other programs that write to the item must keep the processed keys. A deleted item loses its processed
/// keys.
///
/// # Limits
///
/// An item has at most 400 KB, including the processed keys: about 8,000 keys of 36 bytes within the retention.
/// A change beyond this limit fails permanently.
///
/// The role needs `dynamodb:PutItem` for a create, `UpdateItem` for an update, and `GetItem` and `PutItem` for a
/// modify.
///
/// ```no_run
/// use sqs_once::{Attempt, Change, Failure, Settings, Write, handler_fn};
///
/// async fn like(post: String, _: Attempt) -> Result<Change<()>, Failure> {
///     Ok(Change::update((), Write::update("posts", "ADD likes :one").key("id", post).value(":one", 1)))
/// }
///
/// # async fn main_() -> Result<(), lambda_runtime::Error> {
/// let consumer = Settings::from_env().item_mode(Ok(handler_fn(like))).await?;
/// sqs_once::run(consumer).await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ItemMode {
    client: ItemClient,
    retention: Duration,
    clock: fn() -> Timestamp,
}

impl ItemMode {
    /// Creates the mode with a [retention](Self::retention) of 20 days.
    ///
    /// `aws::config` sets timeouts that suit a Lambda function.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client: ItemClient::new(client),
            retention: RETENTION,
            clock: Timestamp::now,
        }
    }

    /// Sets the minimum time for which an item keeps a processed key.
    ///
    /// A message that arrives later can run again. So choose more than the retention periods of the queue and
    /// its dead-letter queue together.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// Replaces the system's wall clock, for tests.
    #[must_use]
    pub fn clock(self, clock: fn() -> Timestamp) -> Self {
        Self { clock, ..self }
    }

    /// Runs one operation: gets a change from `work`, and makes it. See [`Once::run`](crate::Once::run).
    pub async fn run<W, F, O>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F,
        F: Future<Output = Result<Change<O>, Failure>>,
        O: Serialize + Send + 'static,
    {
        run_here(self, operation, work).await
    }
}

impl crate::modes::mode::sealed::Sealed for ItemMode {}

crate::explain_wrong_output!([] ItemMode);

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Mode<Change<O>> for ItemMode {
    type Claim = ();

    async fn claim(&self, operation: &Operation, _: Start) -> Claimed<()> {
        Claimed::without_record(operation)
    }

    async fn finish(&self, operation: &Operation, (): (), end: HandlerEnd<Change<O>>) -> Outcome {
        let writer = ChangeWriter {
            requests: self.client.requests(operation),
            retention: self.retention,
            clock: self.clock,
        };
        make_change(end, |kind| writer.write(kind)).await
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn records_failures(&self) -> bool {
        false
    }
}

/// Makes the change that a handler returned. After each failed condition check, asks the handler for another change of the same
/// item.
pub(crate) async fn make_change<O, F>(
    end: HandlerEnd<Change<O>>,
    write: impl Fn(Kind) -> F,
) -> Outcome
where
    F: Future<Output = Result<Outcome, Refused>>,
{
    let mut answer = match end.answer() {
        Ok(change) => change,
        Err(outcome) => return outcome,
    };
    // The next delivery begins with the first change, and only the item of that change can show that the
    // operation is completed.
    let item = match &answer {
        Ok(change) if change.on_condition_failed.is_some() => Some(change.kind.item()),
        _ => None,
    };
    loop {
        let Change {
            kind,
            on_condition_failed,
            ..
        } = match answer {
            Ok(change) => change,
            Err(end) => return end.into(),
        };
        answer = match write(kind).await {
            Ok(outcome) => return outcome,
            Err(refused) => {
                guard_now(|| Change::instead(refused, on_condition_failed, item.as_ref()))
            }
        };
    }
}
