//! [`ItemMode`]: one conditional write changes an item and stores the key on the item.

mod change;
mod processed_keys;
mod send;
mod version;
mod writer;

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use serde::Serialize;

pub use change::Change;
use writer::ChangeWriter;

use super::{
    empty_response::reject_empty_responses, not_written::write_until_accepted, store::Places,
    without_retries,
};
use sqs_once_core::{
    handler::{Attempt, Failure, History},
    once::{Mode, Operation, Outcome, work::guard},
    protocol::Timestamp,
};

/// The item mode: runs operations whose only effect is one change of one item.
///
/// This mode uses no idempotency table. The item itself stores the idempotency keys of its changes, the
/// *processed keys*.
///
/// ```text
/// attempt 1  handler ── change, on condition that the item does not have the key
/// attempt 2  handler ────── condition check fails, and the item has the key: duplicate
/// ```
///
/// | change | round trips | attributes added to the item |
/// | --- | --- | --- |
/// | [`Change::create`] | 1 | `processed_events`: a string set of keys |
/// | [`Change::update`] | 1 | `processed_events` |
/// | [`Change::modify`] | 2, and 1 more for each collision | `processed_events`, `version` |
///
/// With [`retention`](Self::retention) or [`check_payload`](Self::check_payload), new keys go into the
/// attribute `processed_until` instead. This map holds the end of each key's retention, in epoch seconds. An
/// update then takes 2 round trips.
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
/// | results | a duplicate's result is [`StoredResult::Omitted`](sqs_once_core::protocol::StoredResult::Omitted) |
/// | failures | a message that fails permanently runs again on each delivery |
/// | fingerprints | a key with a different payload is a duplicate |
///
/// So [`Handler::on_duplicate`](sqs_once_core::Handler::on_duplicate) gets no output. A message that fails
/// permanently reaches the dead-letter queue through the queue's redrive policy.
/// [`check_payload`](Self::check_payload) stores fingerprints.
///
/// Other programs that write to the item must keep the processed keys. A deleted item loses its processed
/// keys.
///
/// # Limits
///
/// An item has at most 400 KB, including the processed keys: about 10,000 keys of 36 bytes. A change beyond
/// this limit is a permanent failure, and its error names the largest attributes.
///
/// The role needs `dynamodb:GetItem`, `PutItem` and `UpdateItem`, according to the changes used.
///
/// ```
/// use aws_sdk_dynamodb::Client;
/// use sqs_once::{Attempt, Change, Consumer, Failure, ItemMode, Write, handler_fn, protocol::Namespace};
///
/// async fn like(post: String, _: Attempt) -> Result<Change<()>, Failure> {
///     Ok(Change::update((), Write::update("posts", "ADD likes :one").key("id", post).value(":one", 1)))
/// }
///
/// # fn consumer(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let week = std::time::Duration::from_secs(7 * 24 * 3600);
/// let item_mode = ItemMode::new(client).retention(week);
/// let consumer = Consumer::new(item_mode, Namespace::new("likes")?, handler_fn(like));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ItemMode {
    /// Client for reads, which the SDK retries.
    client: Client,
    /// Client for changes, without the SDK's retries. The mode retries changes until the deadline.
    changing: Client,
    /// Limits the changes in flight.
    places: Places,
    retention: Option<Duration>,
    checks_payload: bool,
    clock: fn() -> Timestamp,
}

impl ItemMode {
    /// Creates the mode without a [retention](Self::retention): items keep all processed keys.
    ///
    /// `aws::config` sets timeouts that suit a Lambda function.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let client = reject_empty_responses(client);
        Self {
            changing: without_retries(&client),
            client,
            places: Places::default(),
            retention: None,
            checks_payload: false,
            clock: Timestamp::now,
        }
    }

    /// Sets the retention of processed keys.
    ///
    /// A message that arrives later runs again. So choose more than the retention periods of the queue and
    /// its dead-letter queue together.
    ///
    /// You can set this option at any time. Keys in `processed_events` stay valid and are never removed, so
    /// remove that attribute yourself after the last possible redelivery of its keys.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self {
            retention: Some(retention),
            ..self
        }
    }

    /// Compares payloads. A key with a different payload is then [`Outcome::KeyReused`] and not a duplicate.
    ///
    /// The option is off by default because of its costs:
    ///
    /// - For each key, the item stores 16 hex digits of the [fingerprint](Operation::fingerprint), as
    ///   decimals of the number in `processed_until`.
    /// - An update takes 2 round trips, as with a [`retention`](Self::retention). Without a retention, the
    ///   number in `processed_until` is 9999999999, which is in the year 2286.
    ///
    /// You can switch the option on and off at any time. A key that was stored without the option matches
    /// every payload.
    ///
    /// Don't change the source of the fingerprint (`IDEMPOTENCY_FINGERPRINT`) while the option is on. The
    /// number has no room to say what was hashed, so duplicates of earlier messages would be
    /// [`Outcome::KeyReused`]. Switch the option off together with that change, and on again after the
    /// retention.
    ///
    /// ```
    /// # fn item_mode(client: aws_sdk_dynamodb::Client) {
    /// let item_mode = sqs_once::ItemMode::new(client).check_payload();
    /// # }
    /// ```
    #[must_use]
    pub fn check_payload(self) -> Self {
        Self {
            checks_payload: true,
            ..self
        }
    }

    /// Replaces the system's wall clock, for tests.
    #[must_use]
    pub fn clock(self, clock: fn() -> Timestamp) -> Self {
        Self { clock, ..self }
    }

    /// Runs one operation: see [`Mode::run`].
    pub async fn run<W, F, O>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F,
        F: Future<Output = Result<Change<O>, Failure>>,
    {
        let Operation {
            key,
            fingerprint,
            delivery,
            deadline,
            // Without a claim there is no isolation after a crash.
            gate: _,
            meter,
            ..
        } = operation;
        if !deadline.may_start() {
            return Outcome::NotStarted;
        }
        let attempt = Attempt::new(key.clone(), delivery, History::fresh(), deadline);
        let writer = ChangeWriter {
            item_mode: self,
            key: &key,
            fingerprint: fingerprint.filter(|_| self.checks_payload),
            deadline,
            meter,
        };
        let change = guard(deadline, async { work(attempt).await }).await;
        // The next delivery begins with the first change, and only the item of that change can show that the
        // operation is completed.
        let item = match &change {
            Ok(change) if change.on_condition_failed.is_some() => Some(change.kind.item()),
            _ => None,
        };
        let write = |round, change| writer.write(round, change, item.as_ref());
        match write_until_accepted(change, write).await {
            Ok(outcome) => outcome,
            Err((_, end)) => end.into(),
        }
    }
}

impl sqs_once_core::once::mode::sealed::Sealed for ItemMode {}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Mode<Change<O>> for ItemMode {
    fn run<W, F>(&self, operation: Operation, work: W) -> impl Future<Output = Outcome> + Send
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<Change<O>, Failure>> + Send,
    {
        Self::run(self, operation, work)
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn records_failures(&self) -> bool {
        false
    }
}
