//! The key lives on the item that is changed: no record, one conditional write.

mod change;
mod processed_keys;
mod send;
mod version;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    types::{ConditionCheck, Put, Update},
};
use serde::Serialize;

pub use change::Change;
use change::{Kind, Modify};
use processed_keys::{ProcessedKeys, Recall};
use send::Sent;
use version::Unchanged;

use super::{
    Mode, Operation, Outcome,
    commit::{Backoff, Declined, decide},
    mode::{Ended, guard},
};
use crate::{
    deadline::Deadline,
    dynamodb::{
        empty_response::reject_empty_responses,
        item::Item,
        refused::{Refused, RefusedWrite},
        without_retries,
        write::{Action, Write},
    },
    handler::{Attempt, Failure, History},
    protocol::{Fingerprint, Key, StoredResult, Timestamp},
};

/// Runs operations whose whole effect is one change of one item. There is no record: the item
/// itself remembers the idempotency keys of its changes.
///
/// ```text
/// attempt 1  handler ── change, on condition that the item has not seen the key
/// attempt 2  handler ────── refused by the item: a duplicate
/// ```
///
/// | change | round trips | the item gets |
/// | --- | --- | --- |
/// | [`Change::create`] | 1 | `processed_events`, a string set |
/// | [`Change::update`] | 1 | the key added to it |
/// | [`Change::modify`] | 2, and 1 more for each collision | that, and `version` |
///
/// With [`retention`](Self::retention) or [`check_payload`](Self::check_payload), `processed_until`
/// takes its place, a map of each key to its end in epoch seconds, and an update takes 2 round
/// trips.
///
/// # What it asks of a handler
///
/// - Which item it changes follows from the message alone. A fresh id, or whatever cart is the
///   current one, would send the next delivery to an item that has not seen the key.
/// - Whether the change may be made is judged by its condition, or in the closure of `modify`,
///   which are not asked again once it was made. A handler that reads the item and fails may be
///   failing for its own effect.
/// - No effect of its own, and none in the closures: they may run again for an operation that
///   is done.
///
/// # What it does without
///
/// No result is kept: a duplicate's is [omitted](StoredResult::Omitted), so
/// [`Handler::on_duplicate`](crate::Handler::on_duplicate) finds no output. No failure is kept: a
/// message that fails permanently runs again with each delivery, until it is in the dead-letter
/// queue. No fingerprint is kept, unless [`check_payload`](Self::check_payload) says so: a key that
/// comes back with another payload is taken for a duplicate. Other programs that write to the item
/// must leave its memory alone, and an item that is deleted forgets.
///
/// # Limits
///
/// An item has at most 400 KB, its memory included: about 10,000 keys of 36 bytes. What does not
/// fit is a permanent failure that says what grew. The role needs `dynamodb:GetItem`, `PutItem`
/// and `UpdateItem`, as far as the changes do.
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
    /// For reads: the SDK retries them.
    client: Client,
    /// For changes, which are repeated until the deadline: the SDK does not retry them.
    changing: Client,
    retention: Option<Duration>,
    checks_payload: bool,
    clock: fn() -> Timestamp,
}

/// How often an item may be changed by others while it is being modified.
const MOST_COLLISIONS: usize = 20;

impl OnItem {
    /// Changes items through `client` (see [`crate::aws::config`] for one whose timeouts suit a
    /// Lambda), and lets them remember for ever.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let client = reject_empty_responses(client);
        Self {
            changing: without_retries(&client),
            client,
            retention: None,
            checks_payload: false,
            clock: Timestamp::now,
        }
    }

    /// Lets an item forget an operation after so long: longer than the queue keeps a message and
    /// somebody might redrive it.
    ///
    /// It can be set at any time: what items have in `processed_events` still counts. It also
    /// stays there; remove the attribute once none of its keys can come back.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self {
            retention: Some(retention),
            ..self
        }
    }

    /// Compares payloads: an operation whose key an item remembers from another payload is
    /// [`Outcome::KeyReused`]. Without this option it is a duplicate.
    ///
    /// Off by default, for what it costs:
    ///
    /// - An item holds 16 hex digits of the [fingerprint](Operation::fingerprint) more for each
    ///   key, as decimals of the key's end in `processed_until`.
    /// - An update takes 2 round trips, as with a [`retention`](Self::retention). Without one the
    ///   end is 9999999999, in the year 2286.
    ///
    /// The option can be set and taken back at any time. A message whose key was remembered without
    /// the option is a duplicate, whatever its payload.
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

    /// Another wall clock than the system's, for tests.
    #[must_use]
    pub fn clock(self, clock: fn() -> Timestamp) -> Self {
        Self { clock, ..self }
    }

    /// Runs one operation; see [`Mode::run`].
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
        } = operation;
        if !deadline.may_start() {
            return Outcome::NotStarted;
        }
        let attempt = Attempt::new(key.clone(), delivery, History::fresh(), deadline);
        let mut answer = guard(deadline, async { work(attempt).await }).await;
        let changing = Changing {
            on_item: self,
            key: &key,
            fingerprint: fingerprint.filter(|_| self.checks_payload),
            deadline,
        };
        loop {
            let change = match answer {
                Ended::Well(change) => change,
                Ended::Failed(failure) => return failure.into(),
                Ended::Panicked => return Outcome::Panicked,
                Ended::OutOfTime => return Outcome::OutOfTime,
            };
            let item = change.on_refused.is_some().then(|| change.kind.item());
            let declined = match change.kind {
                Kind::Create { put, key, result } => changing.create(put, &key, result).await,
                Kind::Update { update, result } => changing.update(update, result).await,
                Kind::Modify { target, modify } => changing.modify(target, modify).await,
            };
            answer = match declined {
                Ok(outcome) => return outcome,
                Err(declined) => decide(declined, change.on_refused),
            };
            // The next delivery begins with the first change, and only its item can tell it that
            // the operation is done.
            if let (Ended::Well(next), Some(item)) = (&answer, item)
                && !next.kind.is_of(&item)
            {
                return Outcome::PermanentFailure(change::OTHER_ITEM.into());
            }
        }
    }
}

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

/// One operation's change, on its way.
struct Changing<'a> {
    on_item: &'a OnItem,
    key: &'a Key,
    /// If payloads are compared.
    fingerprint: Option<Fingerprint>,
    deadline: Deadline,
}

/// An outcome, or that nothing was written.
type Changed = Result<Outcome, Declined>;

impl Changing<'_> {
    fn memory(&self) -> ProcessedKeys<'_> {
        ProcessedKeys {
            key: self.key,
            now: (self.on_item.clock)(),
            retention: self.on_item.retention,
            fingerprint: self.fingerprint.as_ref(),
        }
    }

    async fn create(&self, put: Write<Put>, key: &str, result: StoredResult) -> Changed {
        let memory = self.memory();
        let put = sendable(put)?;
        if !put.action.item.contains_key(key) {
            return Err(Declined::Invalid(format!(
                "the item to create has no attribute `{key}`, which is said to be of its primary key; nothing was written"
            )));
        }
        let mut put = memory.compose_create(put, key);
        put = put.return_item();
        let sent = self.put(&put.action).await;
        self.changed(&memory, sent, &put, result)
    }

    async fn update(&self, update: Write<Update>, result: StoredResult) -> Changed {
        let update = sendable(update)?;
        for _ in 0..=MOST_COLLISIONS {
            let memory = self.memory();
            let mut found = None;
            if memory.looks_first() {
                let (table, key) = (&update.action.table_name, &update.action.key);
                found = match self.read(table, key, Some(ProcessedKeys::PROJECTION)).await {
                    Ok(found) => found,
                    Err(outcome) => return Ok(outcome),
                };
                remembers(found.as_ref())?;
                if let Some(known) = known(&memory, found.as_ref()) {
                    return Ok(known);
                }
            }
            let seen = memory.see(found.as_ref());
            let mut write = memory.compose(update.clone(), &seen);
            write = write.return_item();
            let sent = self.update_item(&write.action).await;
            if let Sent::Refused { item, .. } = &sent
                && memory.looks_first()
                && !memory.holds(&seen, item.as_ref())
                && known(&memory, item.as_ref()).is_none()
            {
                // Another attempt changed the item's memory meanwhile.
                continue;
            }
            return self.changed(&memory, sent, &write, result);
        }
        Ok(contended(update.table()))
    }

    async fn modify(&self, target: Write<ConditionCheck>, mut modify: Modify) -> Changed {
        let target = sendable(target)?.action;
        let (table, key) = (&target.table_name, &target.key);
        let Some(key_name) = key.keys().next() else {
            return Err(Declined::Invalid("a change without a key".into()));
        };
        let mut backoff = Backoff::until(self.deadline.stop());
        let mut found = match self.read(table, key, None).await {
            Ok(found) => found,
            Err(outcome) => return Ok(outcome),
        };
        for _ in 0..=MOST_COLLISIONS {
            let memory = self.memory();
            remembers(found.as_ref())?;
            if let Some(known) = known(&memory, found.as_ref()) {
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
            memory.keep(found.as_ref(), &mut item);
            memory.note(&mut item);
            let mut put = unchanged.put(table, key_name, item);
            if let Some(found) = &found {
                put = memory.compose_unchanged(put, found);
            }
            put = put.return_item();
            match self.put(&put.action).await {
                // A copy that is late meets another version.
                Sent::Refused { item, .. } if known(&memory, item.as_ref()).is_none() => {
                    found = item;
                }
                sent => return self.changed(&memory, sent, &put, result),
            }
            if !backoff.pause().await {
                break;
            }
        }
        Ok(contended(table))
    }

    /// The outcome of a change whose answer is known.
    fn changed<A: Action>(
        &self,
        memory: &ProcessedKeys<'_>,
        sent: Sent,
        write: &Write<A>,
        result: StoredResult,
    ) -> Changed {
        match sent {
            Sent::Applied => Ok(Outcome::Done(result)),
            Sent::Refused { item, unanswered } => {
                if let Some(known) = known(memory, item.as_ref()) {
                    return Ok(known);
                }
                if let Some(error) = unanswered {
                    // A copy may still arrive when the condition is met, so nothing is decided.
                    return Ok(Outcome::CommitUnknown(Arc::new(error)));
                }
                remembers(item.as_ref())?;
                Err(Declined::Conditions(Refused::new(vec![RefusedWrite {
                    index: 0,
                    label: write.label.clone(),
                    table: write.table().to_owned(),
                    item,
                }])))
            }
            Sent::Invalid(why) => Err(Declined::Invalid(why)),
            Sent::Contended(why) => Ok(Outcome::RetryableFailure(why)),
            Sent::Unknown(error) if error.may_have_been_applied() => {
                Ok(Outcome::CommitUnknown(Arc::new(error)))
            }
            Sent::Unknown(error) => Ok(Outcome::StoreUnavailable(Arc::new(error))),
        }
    }
}

/// A change that can be sent: nothing of it failed to be serialized.
fn sendable<A>(write: Write<A>) -> Result<Write<A>, Declined> {
    match write.fault {
        Some(fault) => Err(Declined::Invalid(format!("{fault}; nothing was written"))),
        None => Ok(write),
    }
}

/// That an item's memory can be read.
fn remembers(item: Option<&Item>) -> Result<(), Declined> {
    match item.and_then(ProcessedKeys::fault) {
        Some(fault) => Err(Declined::Invalid(fault)),
        None => Ok(()),
    }
}

/// The outcome of an operation that the item, if there is one, remembers.
fn known(memory: &ProcessedKeys<'_>, item: Option<&Item>) -> Option<Outcome> {
    match memory.recall(item?) {
        Recall::Nothing => None,
        Recall::Operation => Some(Outcome::Duplicate(StoredResult::Omitted(
            "the item keeps the key and no result".into(),
        ))),
        Recall::OtherPayload => Some(Outcome::KeyReused),
    }
}

fn contended(table: &str) -> Outcome {
    Outcome::RetryableFailure(format!(
        "others changed the item of table `{table}` each time before this change was written"
    ))
}
