//! [`DryRun`]: a mode that records writes instead of sending them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use serde::Serialize;

use crate::{
    Consumer, Handler, Mode, Operation, Outcome,
    dynamo::item::Item,
    handler::AnyLookUp,
    modes::{
        mode::{Claimed, sealed::Sealed},
        run::run_handler,
        work::HandlerEnd,
    },
    protocol::{Namespace, Start, Timestamp},
    testing::{
        Message, deadline,
        planned::Planned,
        plans::{PlannedWrite, Plans},
    },
};

/// Runs handlers in memory, whether they return an output, a [`Done`](crate::Done) or a
/// [`Change`](crate::Change).
///
/// A dry run keeps and compares records as in production, so a message that runs twice is a duplicate. It records the
/// writes of a `Done` and the item of a `Change`, but sends nothing. A dry run does not evaluate conditions: they hold,
/// unless [`fail_condition`](Self::fail_condition) says otherwise. To test the expressions themselves, you need DynamoDB
/// Local or a similar emulator.
///
/// Clones share everything. A `DryRun` is a [`Mode`], so you can build a [`Consumer`](crate::Consumer) with it.
///
/// ```
/// use sqs_once::testing::{DryRun, Message};
/// use sqs_once::{Attempt, Failure, Outcome, handler_fn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let charge = handler_fn(async |cents: u64, _: Attempt| match cents {
///     0 => Err(Failure::permanent("nothing to charge")),
///     _ => Ok(cents),
/// });
/// let dry_run = DryRun::new();
/// assert!(dry_run.run(&charge, Message::new("m-1", &1250)).await.is_success());
/// let again = dry_run.run(&charge, Message::new("m-1", &1250)).await;
/// assert!(matches!(again, Outcome::Duplicate(_)));
/// let declined = dry_run.run(&charge, Message::new("m-2", &0)).await;
/// assert!(matches!(declined, Outcome::PermanentFailure(why) if why == "nothing to charge"));
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct DryRun {
    plans: Plans,
    /// True if the next message should find an open attempt.
    interrupted: Arc<AtomicBool>,
}

impl DryRun {
    /// Creates a dry run without records, items or writes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `handler` for `message`, as a [`Consumer`](crate::Consumer) does in the namespace `test` with
    /// the message id as key and 30 seconds left. Does not call [`on_duplicate`](crate::Consumer::on_duplicate).
    ///
    /// If the body can't be decoded as the handler's type, the outcome is [`Outcome::Invalid`]. If the handler panics, the
    /// outcome is [`Outcome::Panicked`].
    pub async fn run<H: Handler>(&self, handler: &H, message: Message) -> Outcome
    where
        Self: Mode<H::Output>,
    {
        let read = Namespace::new("test")
            .map_err(|error| Outcome::Invalid(error.to_string()))
            .and_then(|test| Consumer::reader(test).read_message(message.into_sqs(), deadline()));
        match read {
            Ok((operation, body)) => self.call((handler, None), operation, body).await,
            Err(outcome) => outcome,
        }
    }

    /// Runs a message in `consumer`, but with this dry run in place of its mode. The dry run uses the consumer's key,
    /// fingerprint, envelope and lookup, so a test sees which messages are the same operation.
    ///
    /// # Panics
    ///
    /// Panics if the consumer would not start: see [`Consumer::check`].
    ///
    /// ```
    /// use serde::Deserialize;
    /// use serde_json::json;
    /// use sqs_once::testing::{DryRun, Message, settings};
    /// use sqs_once::{Attempt, Consumer, Failure, Handler, Mode, Outcome, Settings, SettingsError, handler_fn};
    ///
    /// #[derive(Deserialize)]
    /// #[serde(rename_all = "camelCase")]
    /// struct OrderKey { order_id: String }
    ///
    /// async fn charge(order: serde_json::Value, _: Attempt) -> Result<(), Failure> {
    ///     Ok(())
    /// }
    ///
    /// async fn consumer(settings: Settings) -> Result<Consumer<impl Mode<()>, impl Handler<Output = ()>>, SettingsError> {
    ///     let consumer = settings.once(Ok(handler_fn(charge))).await?;
    ///     Ok(consumer.key_by(|key: OrderKey| [key.order_id]))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (dry_run, consumer) = (DryRun::new(), consumer(settings(&[])).await?);
    /// let order = |id| Message::new(id, &json!({ "orderId": "o-1" }));
    /// assert!(matches!(dry_run.run_in(&consumer, order("m-1")).await, Outcome::Completed(_)));
    /// assert!(matches!(dry_run.run_in(&consumer, order("m-2")).await, Outcome::Duplicate(_)));
    /// # Ok(()) }
    /// ```
    pub async fn run_in<M, H: Handler>(
        &self,
        consumer: &Consumer<M, H>,
        message: Message,
    ) -> Outcome
    where
        Self: Mode<H::Output>,
    {
        if let Err(error) = consumer.check_key() {
            panic!("the consumer does not start: {error}");
        }
        match consumer.read_message(message.into_sqs(), deadline()) {
            Ok((operation, body)) => self.call(consumer.called(), operation, body).await,
            Err(outcome) => outcome,
        }
    }

    async fn call<H: Handler>(
        &self,
        called: (&H, Option<&dyn AnyLookUp<H>>),
        operation: Operation,
        message: H::Message,
    ) -> Outcome
    where
        Self: Mode<H::Output>,
    {
        if self.interrupted.swap(false, Relaxed) {
            self.plans.interrupt(&operation);
        }
        run_handler(self, called, operation, message).await
    }

    /// Lets the next message find an open attempt, as if a worker had claimed its operation long ago and crashed. This replaces
    /// any record of the operation. The handler sees a [prior attempt](crate::Attempt::prior), and the consumer calls its
    /// [lookup](crate::LookUp).
    ///
    /// ```
    /// use sqs_once::testing::{DryRun, Message, settings};
    /// use sqs_once::{Attempt, Failure, LookedUp, Outcome, handler_fn, look_up_fn};
    ///
    /// async fn send(_: String, _: Attempt) -> Result<&'static str, Failure> {
    ///     Ok("sent")
    /// }
    /// async fn sent(mail: &String, _: &Attempt) -> Result<LookedUp<&'static str>, Failure> {
    ///     Ok(if mail == "to Ada" { LookedUp::Found("sent before") } else { LookedUp::NotFound })
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let consumer = settings(&[]).once(Ok(handler_fn(send))).await?;
    /// let consumer = consumer.key_by(|mail: String| [mail]).look_up(look_up_fn(sent), std::time::Duration::from_secs(30));
    /// let dry_run = DryRun::new();
    /// dry_run.interrupted();
    /// let outcome = dry_run.run_in(&consumer, Message::new("m-1", &"to Ada")).await;
    /// assert!(matches!(outcome, Outcome::Reconciled(_)));
    /// # Ok(()) }
    /// ```
    pub fn interrupted(&self) {
        self.interrupted.store(true, Relaxed);
    }

    /// Returns the writes that a real mode would have made so far, in order. A [`Done`](crate::Done) adds its writes, and one
    /// put to the table `outbox` for each group of its events. A [`Change`](crate::Change) adds one write, without the item's
    /// processed keys.
    #[must_use]
    pub fn writes(&self) -> Vec<PlannedWrite> {
        self.plans.writes()
    }

    /// Makes the condition of the next write with this label fail. For a write without a label, `name` is its table. The dry
    /// run then records no write of that transaction. A second call makes one more condition fail.
    ///
    /// ```
    /// use sqs_once::testing::{DryRun, Message};
    /// use sqs_once::{Attempt, Change, Failure, Outcome, Write, handler_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let register = handler_fn(async |email: String, _: Attempt| {
    ///     let put = Write::put("users", serde_json::json!({ "email": email })).label("user");
    ///     let taken = |_: &sqs_once::ConditionFailed| Err(Failure::permanent("the address is taken"));
    ///     Ok::<_, Failure>(Change::create((), "email", put).on_condition_failed(taken))
    /// });
    /// let dry_run = DryRun::new();
    /// dry_run.fail_condition("user");
    /// let outcome = dry_run.run(&register, Message::new("m-1", &"ada@example.com")).await;
    /// assert!(matches!(outcome, Outcome::PermanentFailure(why) if why == "the address is taken"));
    /// assert!(dry_run.writes().is_empty());
    /// # }
    /// ```
    pub fn fail_condition(&self, name: impl Into<String>) {
        self.plans.fail_condition(name.into(), None);
    }

    /// Does the same as [`fail_condition`](Self::fail_condition), and the handler finds `item` in
    /// [`FailedWrite::item`](crate::FailedWrite::item).
    ///
    /// # Panics
    ///
    /// Panics if `item` is not a DynamoDB item, because it is not a map or a value can't be serialized.
    pub fn fail_condition_with(&self, name: impl Into<String>, item: impl Serialize) {
        self.plans.fail_condition(name.into(), Some(to_item(item)));
    }

    /// Puts an item into a table, for [`Change::modify`](crate::Change::modify) to read. Recorded writes do not change it.
    ///
    /// # Panics
    ///
    /// Panics if `item` is not a DynamoDB item, because it is not a map or a value can't be serialized.
    ///
    /// ```
    /// use serde_json::{Value, json};
    /// use sqs_once::testing::{DryRun, Message, output};
    /// use sqs_once::{Attempt, Change, Failure, handler_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let debit = handler_fn(async |cents: u64, _: Attempt| {
    ///     let key = json!({ "id": "a-1" });
    ///     Ok::<_, Failure>(Change::modify("accounts", key, move |account: Option<Value>| {
    ///         let balance = account.and_then(|account| account["balance"].as_u64());
    ///         let left = balance.and_then(|balance| balance.checked_sub(cents));
    ///         let left = left.ok_or_else(|| Failure::permanent("the balance is too low"))?;
    ///         Ok((json!({ "balance": left }), left))
    ///     }))
    /// });
    /// let dry_run = DryRun::new();
    /// dry_run.item("accounts", json!({ "id": "a-1", "balance": 100 }));
    /// let outcome = dry_run.run(&debit, Message::new("m-1", &30)).await;
    /// assert_eq!(output::<u64>(&outcome), Some(70));
    /// let put: Value = dry_run.writes()[0].put_item().unwrap();
    /// assert_eq!(put, json!({ "id": "a-1", "balance": 70 }));
    /// # }
    /// ```
    pub fn item(&self, table: impl Into<String>, item: impl Serialize) {
        self.plans.keep(table.into(), to_item(item));
    }
}

fn to_item(item: impl Serialize) -> Item {
    match serde_dynamo::to_item(item) {
        Ok(item) => item,
        Err(error) => panic!("not an item: {error}"),
    }
}

impl Sealed for DryRun {}

#[diagnostic::do_not_recommend]
impl<A: Planned> Mode<A> for DryRun {
    type Claim = <A::Mode as Mode<A>>::Claim;

    async fn claim(&self, operation: &Operation, start: Start) -> Claimed<Self::Claim> {
        A::mode(&self.plans).claim(operation, start).await
    }

    async fn finish(
        &self,
        operation: &Operation,
        claim: Self::Claim,
        end: HandlerEnd<A>,
    ) -> Outcome {
        A::mode(&self.plans).finish(operation, claim, end).await
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn records_failures(&self) -> bool {
        A::mode(&self.plans).records_failures()
    }
}
