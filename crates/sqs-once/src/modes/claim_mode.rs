//! [`Once`], the claim mode, and its settings.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use super::{
    health::Health,
    output::{Leased, Unleased},
    output_memory::OutputMemory,
    records::{RETENTION, Records},
    turns::Turns,
};
use crate::{
    handler::Stored,
    protocol::{StoredResult, Timestamp, isolation::CrashWaits},
    store::{Results, Store},
};

/// The claim mode: runs each operation once, with its record in a [`Store`].
///
/// Use it for effects outside DynamoDB, and for DynamoDB writes that commit together with the completion. `L` says whether a
/// claim is written before the handler runs: an [`Inbox`] is a `Once` without claims.
///
/// ```text
/// attempt 1  claim ──── handler ──────── cut off at the deadline, or crashed
///            |<────────────── lease ───────────────>|
/// attempt 2       claim: conflict                     claim: takeover, sees attempt 1
/// attempt 3                                                             claim: duplicate
/// ```
///
/// ```
/// use std::time::Duration;
/// use sqs_once::{Once, store::MemoryStore};
///
/// let once = Once::new(MemoryStore::default())
///     .retention(Duration::from_secs(7 * 24 * 3600))
///     .lease_margin(Duration::from_secs(2));
/// ```
///
/// The [module documentation](crate::modes) shows a complete run.
#[derive(Clone, Debug)]
pub struct Once<S, L = Leased> {
    /// Store, output storage, retention and clock.
    #[doc(hidden)]
    pub records: Records<S>,
    /// How long a lease outlasts the worker's right to run, because clocks differ.
    pub(super) lease_margin: Duration,
    pub(super) health: Arc<Health>,
    pub(super) crash_waits: CrashWaits,
    pub(super) turns: Turns,
    pub(super) output_memory: OutputMemory,
    pub(super) call_key_lifetime: Option<Duration>,
    lease: PhantomData<L>,
}

impl<S: Store> Once<S> {
    /// Creates a claim mode with records in `store`.
    ///
    /// The [retention](Self::retention) is 20 days and the [lease margin](Self::lease_margin) one
    /// second.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self {
            records: Records {
                store,
                results: Results::inline(),
                retention: RETENTION,
                clock: Timestamp::now,
            },
            lease_margin: Duration::from_secs(1),
            health: Arc::default(),
            crash_waits: CrashWaits::default(),
            turns: Turns::default(),
            output_memory: OutputMemory::default(),
            call_key_lifetime: Some(Duration::from_secs(20 * 60 * 60)),
            lease: PhantomData,
        }
    }

    /// Turns this mode into an inbox, which writes no claim before the handler runs.
    ///
    /// ```no_run
    /// # fn inbox(store: sqs_once::store::DynamoStore) {
    /// let inbox = sqs_once::Once::new(store).inbox();
    /// # }
    /// ```
    #[must_use]
    pub fn inbox(self) -> Inbox<S> {
        Once {
            records: self.records,
            lease_margin: self.lease_margin,
            health: self.health,
            crash_waits: self.crash_waits,
            turns: self.turns,
            output_memory: self.output_memory,
            call_key_lifetime: self.call_key_lifetime,
            lease: PhantomData,
        }
    }

    /// Sets how long records are kept.
    ///
    /// A message that arrives later runs again. So choose more than the retention periods of the queue and
    /// its dead-letter queue together. The default of 20 days suits 4 days in the queue and 14 days in the
    /// dead-letter queue, with 2 days to spare.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.records.retention = retention;
        self
    }

    /// Sets how long a lease outlasts the invocation. Choose at least the difference that you expect between
    /// the clocks of two workers. The default is 1 s.
    #[must_use]
    pub fn lease_margin(mut self, lease_margin: Duration) -> Self {
        self.lease_margin = lease_margin;
        self
    }

    /// Sets how long a message rests each time its process dies while the message runs alone. The default is
    /// 20 minutes, 2 hours and 10 hours. With [`CrashWaits::off`], no message ever runs alone.
    ///
    /// A handler that ends its process (out of memory, stack overflow, blocked past Lambda's timeout) takes down the other
    /// messages of the process. So if nobody recorded how a message's last attempt ended, its handler runs only while no
    /// other handler of this value and its clones is running. If the process dies in this way one time more than there are
    /// waits, the outcome is [`Outcome::Crashed`](super::Outcome::Crashed).
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Once, protocol::CrashWaits, store::MemoryStore};
    ///
    /// let minute = Duration::from_secs(60);
    /// let once = Once::new(MemoryStore::default()).crash_waits(CrashWaits::new([minute, 10 * minute]));
    /// ```
    #[must_use]
    pub fn crash_waits(mut self, crash_waits: CrashWaits) -> Self {
        self.crash_waits = crash_waits;
        self
    }

    /// Sets how long the called system remembers a [call key](crate::Attempt::call_key). `None` means for ever. The default of
    /// 20 hours suits gateways that forget after 24.
    ///
    /// The handler does not run if the earliest open attempt will be older when the invocation ends, because the called
    /// system might take its request for a new operation. The message fails permanently with "too old to repeat". If the
    /// handler has a [lookup](crate::LookUp), the consumer calls the lookup instead. With a lifetime that is no longer than
    /// an invocation, every retry is too old.
    ///
    /// ```
    /// use sqs_once::{Once, store::MemoryStore};
    ///
    /// let once = Once::new(MemoryStore::default()).call_key_lifetime(None);
    /// ```
    #[must_use]
    pub fn call_key_lifetime(mut self, lifetime: impl Into<Option<Duration>>) -> Self {
        self.call_key_lifetime = lifetime.into();
        self
    }

    /// Limits the memory for large outputs, in bytes, until their records are written.
    #[must_use]
    pub(crate) fn output_memory(mut self, bytes: usize) -> Self {
        self.output_memory = OutputMemory::of(bytes);
        self
    }

    /// Sets where outputs are stored: by default, in the record ([`Results::inline`]).
    #[must_use]
    pub fn results(mut self, results: Results) -> Self {
        self.records.results = results;
        self
    }

    /// Replaces the system's wall clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: fn() -> Timestamp) -> Self {
        self.records.clock = clock;
        self
    }
}

impl<S: Store, L> Once<S, L> {
    /// Returns the output of an operation that [`run`](Self::run) completed, in this or an earlier call.
    ///
    /// This call reads nothing. [`Stored::output`] fetches an output that is in S3.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sqs_once::{Deadline, Once, Operation, Outcome};
    /// # use sqs_once::protocol::{Key, Namespace, Timestamp};
    /// # use sqs_once::store::MemoryStore;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// # let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
    /// # let operation = Operation::new(key, None, "request-1", deadline);
    /// let once = Once::new(MemoryStore::default());
    /// let outcome = once.run(operation, |_attempt| async { Ok(17) }).await;
    /// if let Outcome::Completed(result) | Outcome::Duplicate(result) = outcome {
    ///     assert!(matches!(once.stored::<u64>(result).output().await, Ok(Some(17))));
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stored<O>(&self, result: StoredResult) -> Stored<O> {
        Stored::from_store(result, self.records.results.clone())
    }
}

/// The inbox mode: runs operations whose only effect is DynamoDB writes ([`Once::inbox`]).
///
/// The handler plans the writes. One transaction commits the writes and the record, without an earlier claim.
///
/// ```text
/// attempt 1  handler plans ──── commit: record COMPLETED + writes
/// attempt 2  handler plans ──────── commit: record's condition check fails: duplicate
/// ```
///
/// Two attempts may plan at the same time, and a handler may run again for a completed operation. So a
/// handler may read any data, but must have no effect other than its writes.
///
/// ```no_run
/// use sqs_once::{Attempt, Done, Failure, Settings, Write, handler_fn};
///
/// async fn register(user: String, _: Attempt) -> Result<Done<()>, Failure> {
///     Ok(Done::new(()).with(Write::put("users", serde_json::json!({ "id": user }))))
/// }
///
/// # async fn main_() -> Result<(), lambda_runtime::Error> {
/// let consumer = Settings::from_env().inbox(Ok(handler_fn(register))).await?;
/// sqs_once::run(consumer).await
/// # }
/// ```
pub type Inbox<S> = Once<S, Unleased>;
