//! Tools to test your handlers without AWS. Enable the feature `testing` in your dev-dependencies.
//!
//! | item | use |
//! | --- | --- |
//! | [`Message`] | an SQS message with body, attributes, receive count and FIFO group |
//! | [`DryRun`] | runs a handler, or a message in a consumer; records its writes instead of sending them |
//! | [`settings`] | settings for a consumer that makes no calls |
//! | [`Torture`] | kills, freezes and repeats a handler at every place, and tells you how its effect happened twice or was lost |
//! | [`output`] | gets the output of a completed operation |
//! | [`event`], [`process`] | run a batch through a [`Consumer`], as Lambda delivers it |
//! | [`attempt`] | an [`Attempt`] to call a handler with |
//! | [`conformance`] | the suite that every [`Store`](crate::store::Store) passes |
//!
//! A unit test of a handler:
//!
//! ```
//! use serde_json::{Value, json};
//! use sqs_once::testing::{DryRun, Message, output};
//! use sqs_once::{Attempt, Done, Failure, Write, handler_fn};
//!
//! async fn place(order: Value, _: Attempt) -> Result<Done<&'static str>, Failure> {
//!     let take = Write::update("products", "SET quantity = quantity - :one")
//!         .key("product", &order["product"])
//!         .when("quantity >= :one")
//!         .value(":one", 1)
//!         .label("stock");
//!     let placed = Done::new("placed").with(Write::put("orders", &order)).with(take);
//!     Ok(placed.on_condition_failed(|_| Ok(Done::new("out of stock"))))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! # order_takes_from_the_stock().await; }
//! // #[tokio::test]
//! async fn order_takes_from_the_stock() {
//!     let dry_run = DryRun::new();
//!     let order = |id| Message::new(id, &json!({ "id": id, "product": "p-1" }));
//!
//!     let outcome = dry_run.run(&handler_fn(place), order("o-1")).await;
//!     assert_eq!(output::<String>(&outcome).as_deref(), Some("placed"));
//!     assert_eq!(dry_run.writes()[0].put_item::<Value>().unwrap()["id"], "o-1");
//!
//!     dry_run.fail_condition("stock");
//!     let outcome = dry_run.run(&handler_fn(place), order("o-2")).await;
//!     assert_eq!(output::<String>(&outcome).as_deref(), Some("out of stock"));
//! }
//! ```

mod dry_run;
mod message;
pub(crate) mod planned;
pub(crate) mod plans;
pub mod torture;

use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_lambda_events::sqs::SqsEvent;
use serde::de::DeserializeOwned;

pub use crate::store::conformance;
pub use crate::testing::plans::PlannedWrite;
pub use dry_run::DryRun;
pub use message::{Message, event};
pub use torture::{Ledger, Torture};

use crate::{
    Attempt, BatchError, Consumer, Deadline, Handler, Mode, Outcome, Settings,
    protocol::{Key, KeyError, Namespace, StoredResult, Timestamp},
    settings::variables::table,
};

/// Processes a batch as in an invocation with 30 seconds left. Returns the ids of the messages that go back
/// to the queue.
///
/// # Errors
///
/// Returns a [`BatchError`] if the invocation would fail.
///
/// ```
/// use sqs_once::testing::{Message, event, process};
/// use sqs_once::{Attempt, Consumer, Failure, Once, handler_fn};
/// use sqs_once::{protocol::Namespace, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let double = handler_fn(async |n: u32, _: Attempt| Ok::<_, Failure>(n * 2));
/// let once = Once::new(MemoryStore::default());
/// let consumer = Consumer::without_aws(once, Namespace::new("numbers")?, double);
/// let batch = event([Message::new("m-1", &21), Message::new("m-2", &"no number")]);
/// assert_eq!(process(&consumer, batch).await?, ["m-2"]);
/// # Ok(()) }
/// ```
pub async fn process<M: Mode<H::Output>, H: Handler>(
    consumer: &Consumer<M, H>,
    event: SqsEvent,
) -> Result<Vec<String>, BatchError> {
    let response = consumer.process(event, deadline()).await?;
    let failures = response.batch_item_failures.into_iter();
    Ok(failures.map(|failure| failure.item_identifier).collect())
}

/// Creates the first attempt at the operation with this key, in the namespace `test`, with 30 seconds left.
///
/// [`Attempt::interrupted`] turns it into a later attempt.
///
/// # Errors
///
/// Returns [`KeyError::EmptyPart`] if `key` is empty.
///
/// ```
/// use sqs_once::{Attempt, Failure, Handler, handler_fn};
/// use sqs_once::testing::attempt;
///
/// async fn charge(order: String, attempt: Attempt) -> Result<String, Failure> {
///     let verb = if attempt.prior().is_some() { "look for" } else { "charge" };
///     Ok(format!("{verb} {order}"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let second = attempt("o-1")?.interrupted(None, None);
/// let output = handler_fn(charge).handle("o-1".into(), second).await;
/// assert!(matches!(output, Ok(output) if output == "look for o-1"));
/// # Ok(()) }
/// ```
pub fn attempt(key: &str) -> Result<Attempt, KeyError> {
    let key = Key::new(&Namespace::new("test")?, [key])?;
    Ok(Attempt::first(key, "m-1", deadline()))
}

/// Returns the output of an operation that is completed, now or earlier. Returns `None` for every other outcome, and for an
/// output that was not kept, is in S3, or is not a `T`.
///
/// [`DryRun`] shows it in use.
#[must_use]
pub fn output<T: DeserializeOwned>(outcome: &Outcome) -> Option<T> {
    match outcome {
        Outcome::Completed(StoredResult::Json(json))
        | Outcome::Duplicate(StoredResult::Json(json))
        | Outcome::Reconciled(StoredResult::Json(json)) => serde_json::from_str(json).ok(),
        _ => None,
    }
}

/// Returns settings for a consumer to run with [`DryRun::run_in`]. The consumer has the namespace `test`, and makes no
/// calls when it is created.
///
/// Pass the variables that the deployed function has in its environment, such as `IDEMPOTENCY_KEY`. All others have their
/// defaults, except that visibility timeouts and metrics are off. The process's environment is not read.
///
/// ```
/// # use sqs_once::{Attempt, Failure, handler_fn, testing::settings};
/// # async fn charge(_: String, _: Attempt) -> Result<(), Failure> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let settings = settings(&[("IDEMPOTENCY_KEY", "body:/orderId")]);
/// assert!(settings.once(Ok(handler_fn(charge))).await.is_ok());
/// # }
/// ```
#[must_use]
pub fn settings(variables: &[(&str, &str)]) -> Settings {
    let fixed = [
        ("AWS_LAMBDA_RUNTIME_API", "unused"),
        (table::IDEMPOTENCY_NAMESPACE.name, "test"),
        (table::IDEMPOTENCY_TABLE_NAME.name, "records"),
        (table::CONSUMER_VISIBILITY.name, "off"),
        (table::CONSUMER_METRICS.name, "off"),
    ];
    let nowhere = SdkConfig::builder().behavior_version(BehaviorVersion::latest());
    let variables = fixed.iter().chain(variables).copied();
    Settings::from_vars(variables)
        .warm_up(false)
        .sdk_config(nowhere.build())
}

/// Returns the deadline of an invocation with 30 seconds left.
fn deadline() -> Deadline {
    Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO)
}
