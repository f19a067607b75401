//! [`OnItem`]: one conditional write changes an item and stores the key on the item.

mod change;
mod processed_keys;
mod send;
mod version;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    types::{ConditionCheck, Put, Update},
};
use serde::Serialize;

pub use change::Change;
use change::{Kind, Modify};
use processed_keys::{Lookup, ProcessedKeys};
use send::Sent;
use version::Unchanged;

use super::{
    declined::{Declined, DeclinedAnswer, write_until_accepted},
    empty_response::reject_empty_responses,
    item::Item,
    refused::{Refused, RefusedWrite},
    store::Places,
    without_retries,
    write::{Action, Write},
};
use sqs_once_core::{
    deadline::Deadline,
    handler::{Attempt, Failure, History},
    once::{Mode, Operation, Outcome, repeat::RetryPauses, work::guard},
    protocol::{Fingerprint, Key, StoredResult, Timestamp},
};

/// Mode for operations whose whole effect is one change of one item.
///
/// The idempotency table is not used. The item itself stores the idempotency keys of its changes,
/// the *processed keys*.
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
/// With [`retention`](Self::retention) or [`check_payload`](Self::check_payload), new keys go into
/// the attribute `processed_until` instead. This map holds the end of each key's retention, in
/// epoch seconds. An update then takes 2 round trips.
///
/// # Requirements for the handler
///
/// - The message alone determines the item. With a new id, or the customer's current cart, the next
///   delivery would change another item, which does not have the key.
/// - The condition of the change, or the closure of `modify`, decides whether to make the change.
///   Both are skipped once the change was applied. A handler that reads the item itself may fail
///   because of its own earlier effect.
/// - The handler and its closures have no other effect, because both may run again for a completed
///   operation.
///
/// # Not stored
///
/// | not stored | consequence |
/// | --- | --- |
/// | results | a duplicate's result is [`StoredResult::Omitted`] |
/// | failures | a message that fails permanently runs again on each delivery |
/// | fingerprints | a key with another payload is a duplicate |
///
/// So [`Handler::on_duplicate`](sqs_once_core::Handler::on_duplicate) gets no output. SQS moves a message
/// that fails permanently to the dead-letter queue by the queue's redrive policy.
/// [`check_payload`](Self::check_payload) stores fingerprints.
///
/// Other programs that write to the item must keep the processed keys. A deleted item loses its
/// processed keys.
///
/// # Limits
///
/// An item has at most 400 KB, including the processed keys: about 10,000 keys of 36 bytes. A
/// change beyond this limit is a permanent failure, whose error names the largest attributes.
///
/// The role needs `dynamodb:GetItem`, `PutItem` and `UpdateItem`, according to the changes used.
///
/// ```
/// use aws_sdk_dynamodb::Client;
/// use sqs_once::{Attempt, Change, Consumer, Failure, OnItem, Write, handler_fn, protocol::Namespace};
///
/// async fn like(post: String, _: Attempt) -> Result<Change<()>, Failure> {
///     Ok(Change::update((), Write::update("posts", "ADD likes :one").key("id", post).value(":one", 1)))
/// }
///
/// # fn consumer(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let week = std::time::Duration::from_secs(7 * 24 * 3600);
/// let on_item = OnItem::new(client).retention(week);
/// let consumer = Consumer::new(on_item, Namespace::new("likes")?, handler_fn(like));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct OnItem {
    /// Client for reads, which the SDK retries.
    client: Client,
    /// Client for changes, without the SDK's retries. The mode retries changes until the deadline.
    changing: Client,
    /// Bound on the changes in flight.
    places: Places,
    retention: Option<Duration>,
    checks_payload: bool,
    clock: fn() -> Timestamp,
}

/// Maximum number of retries after other workers changed the item between read and write.
const MAX_COLLISIONS: usize = 20;

impl OnItem {
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
    /// A message that arrives after the retention runs again. Choose a longer time than the message
    /// retention periods of the queue and its dead-letter queue together.
    ///
    /// The option can be set at any time: keys in `processed_events` stay valid. They are never
    /// removed. Remove the attribute after the last possible redelivery of its keys.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self {
            retention: Some(retention),
            ..self
        }
    }

    /// Compares payloads. A key with another payload is then [`Outcome::KeyReused`], instead of a
    /// duplicate.
    ///
    /// The option is off by default because of its costs:
    ///
    /// - The item stores 16 hex digits of the [fingerprint](Operation::fingerprint) for each key,
    ///   as decimals of the number in `processed_until`.
    /// - An update takes 2 round trips, as with a [`retention`](Self::retention). Without a
    ///   retention, the number in `processed_until` is 9999999999, in the year 2286.
    ///
    /// You can switch the option on and off at any time. A key that was stored without the option matches
    /// every payload.
    ///
    /// Don't change the source of the fingerprint (`IDEMPOTENCY_FINGERPRINT`) while the option is on.
    /// The number has no room for what was hashed, so duplicates of earlier messages would be
    /// [`Outcome::KeyReused`]. Switch the option off with the change, and on again after the retention.
    ///
    /// ```
    /// # fn on_item(client: aws_sdk_dynamodb::Client) {
    /// let on_item = sqs_once::OnItem::new(client).check_payload();
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
            // Without a claim there is no isolation.
            gate: _,
        } = operation;
        if !deadline.may_start() {
            return Outcome::NotStarted;
        }
        let attempt = Attempt::new(key.clone(), delivery, History::fresh(), deadline);
        let writer = ChangeWriter {
            on_item: self,
            key: &key,
            fingerprint: fingerprint.filter(|_| self.checks_payload),
            deadline,
        };
        let change = guard(deadline, async { work(attempt).await }).await;
        // The next delivery begins with the first change. Only the item of that change can show
        // that the operation is completed.
        let item = match &change {
            Ok(change) if change.on_refused.is_some() => Some(change.kind.item()),
            _ => None,
        };
        let write = |round, change| writer.write(round, change, item.as_ref());
        match write_until_accepted(change, write).await {
            Ok(outcome) => outcome,
            Err((_, end)) => end.into(),
        }
    }
}

impl sqs_once_core::once::mode::sealed::Sealed for OnItem {}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Mode<Change<O>> for OnItem {
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

/// Writes the changes of one operation.
struct ChangeWriter<'a> {
    on_item: &'a OnItem,
    key: &'a Key,
    /// `None` if payloads are not compared.
    fingerprint: Option<Fingerprint>,
    deadline: Deadline,
}

/// An outcome, or the reason why nothing was written.
type WriteResult = Result<Outcome, Declined>;

impl ChangeWriter<'_> {
    /// Writes a change. After the first round, the change must apply to the `item` of the first.
    async fn write<O>(
        &self,
        round: usize,
        change: Change<O>,
        item: Option<&(String, Item)>,
    ) -> Result<Outcome, DeclinedAnswer<Change<O>>> {
        if round > 0 && item.is_none_or(|item| !change.kind.applies_to(item)) {
            return Ok(Outcome::PermanentFailure(change::OTHER_ITEM.into()));
        }
        let written = match change.kind {
            Kind::Create { put, key, result } => self.create(put, &key, result).await,
            Kind::Update { update, result } => self.update(update, result).await,
            Kind::Modify { target, modify } => self.modify(target, modify).await,
        };
        written.map_err(|declined| DeclinedAnswer {
            declined,
            on_refused: change.on_refused,
        })
    }

    fn processed_keys(&self) -> ProcessedKeys<'_> {
        ProcessedKeys {
            key: self.key,
            now: (self.on_item.clock)(),
            retention: self.on_item.retention,
            fingerprint: self.fingerprint.as_ref(),
        }
    }

    async fn create(&self, put: Write<Put>, key: &str, result: StoredResult) -> WriteResult {
        let keys = self.processed_keys();
        let put = serializable(put)?;
        if !put.action.item.contains_key(key) {
            return Err(Declined::Invalid(format!(
                "the item to create lacks the primary key attribute `{key}`; nothing was written"
            )));
        }
        let mut put = keys.compose_create(put, key);
        put = put.return_item();
        let sent = self.put(&put.action).await;
        self.changed(&keys, sent, &put, result)
    }

    async fn update(&self, update: Write<Update>, result: StoredResult) -> WriteResult {
        let update = serializable(update)?;
        for _ in 0..=MAX_COLLISIONS {
            let keys = self.processed_keys();
            let mut found = None;
            if keys.reads_before_update() {
                let (table, key) = (&update.action.table_name, &update.action.key);
                found = match self.read(table, key, Some(ProcessedKeys::PROJECTION)).await {
                    Ok(found) => found,
                    Err(outcome) => return Ok(outcome),
                };
                check_processed_keys(found.as_ref())?;
                if let Some(known) = known_outcome(&keys, found.as_ref()) {
                    return Ok(known);
                }
            }
            let facts = keys.update_facts(found.as_ref());
            let mut write = keys.compose(update.clone(), &facts);
            write = write.return_item();
            let sent = self.update_item(&write.action).await;
            if let Sent::Refused { item, .. } = &sent
                && keys.reads_before_update()
                && !keys.facts_hold(&facts, item.as_ref())
                && known_outcome(&keys, item.as_ref()).is_none()
            {
                // Another worker changed the processed keys meanwhile.
                continue;
            }
            return self.changed(&keys, sent, &write, result);
        }
        Ok(contended(update.table()))
    }

    async fn modify(&self, target: Write<ConditionCheck>, mut modify: Modify) -> WriteResult {
        let target = serializable(target)?.action;
        let (table, key) = (&target.table_name, &target.key);
        let Some(key_name) = key.keys().next() else {
            return Err(Declined::Invalid(
                "the change has no primary key; nothing was written".into(),
            ));
        };
        let mut pauses = RetryPauses::until(self.deadline.stop());
        let mut found = match self.read(table, key, None).await {
            Ok(found) => found,
            Err(outcome) => return Ok(outcome),
        };
        for _ in 0..=MAX_COLLISIONS {
            let keys = self.processed_keys();
            check_processed_keys(found.as_ref())?;
            if let Some(known) = known_outcome(&keys, found.as_ref()) {
                return Ok(known);
            }
            let modified = catch_unwind(AssertUnwindSafe(|| modify(found.as_ref())));
            let (mut item, result) = match modified {
                Ok(Ok(modified)) => modified,
                Ok(Err(failure)) => return Ok(failure.into()),
                Err(_panic) => return Ok(Outcome::Panicked),
            };
            let unchanged = Unchanged::since(found.as_ref()).map_err(Declined::Invalid)?;
            item.extend(key.clone());
            keys.copy(found.as_ref(), &mut item);
            keys.insert(&mut item);
            let mut put = unchanged.put(table, key_name, item);
            if let Some(found) = &found {
                put = keys.compose_unchanged(put, found);
            }
            put = put.return_item();
            match self.put(&put.action).await {
                // An earlier copy of the request that arrives later fails its version condition.
                Sent::Refused { item, .. } if known_outcome(&keys, item.as_ref()).is_none() => {
                    found = item;
                }
                sent => return self.changed(&keys, sent, &put, result),
            }
            if !pauses.pause().await {
                break;
            }
        }
        Ok(contended(table))
    }

    /// Interprets the result of sending a change.
    fn changed<A: Action>(
        &self,
        keys: &ProcessedKeys<'_>,
        sent: Sent,
        write: &Write<A>,
        result: StoredResult,
    ) -> WriteResult {
        match sent {
            Sent::Applied => Ok(Outcome::Completed(result)),
            Sent::Refused { item, unanswered } => {
                if let Some(known) = known_outcome(keys, item.as_ref()) {
                    return Ok(known);
                }
                if let Some(error) = unanswered {
                    // The earlier copy may still arrive, and its condition may then be met.
                    return Ok(Outcome::commit_unknown(error));
                }
                check_processed_keys(item.as_ref())?;
                Err(Declined::Conditions(Refused::new(vec![RefusedWrite {
                    index: 0,
                    label: write.label.clone(),
                    table: write.table().to_owned(),
                    item,
                }])))
            }
            Sent::Invalid(why) => Err(Declined::Invalid(why)),
            Sent::Contended(why) => Ok(Outcome::RetryableFailure(why)),
            Sent::Unknown(error) => Ok(Outcome::commit_unknown(error)),
            Sent::Unwritten(error) => Ok(Outcome::store_unavailable(error)),
        }
    }
}

/// Returns the write, if all its values could be serialized.
fn serializable<A>(write: Write<A>) -> Result<Write<A>, Declined> {
    match write.fault {
        Some(error) => Err(Declined::Invalid(format!("{error}; nothing was written"))),
        None => Ok(write),
    }
}

/// Checks that the item's processed keys are readable.
fn check_processed_keys(item: Option<&Item>) -> Result<(), Declined> {
    match item.and_then(ProcessedKeys::type_error) {
        Some(error) => Err(Declined::Invalid(error)),
        None => Ok(()),
    }
}

/// Returns the outcome of an operation whose key is on the item.
fn known_outcome(keys: &ProcessedKeys<'_>, item: Option<&Item>) -> Option<Outcome> {
    match keys.lookup(item?) {
        Lookup::Absent => None,
        Lookup::Processed => Some(Outcome::Duplicate(StoredResult::Omitted(
            "an item stores keys and no results".into(),
        ))),
        Lookup::OtherPayload => Some(Outcome::KeyReused),
    }
}

fn contended(table: &str) -> Outcome {
    Outcome::RetryableFailure(format!(
        "other workers changed the item of table `{table}` before each write"
    ))
}
