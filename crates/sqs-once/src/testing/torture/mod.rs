//! [`Torture`]: kills, freezes and repeats a handler at every place up to a bound, and tells how its effect happened twice or
//! was lost.

mod director;
mod ledger;
mod run;
mod story;
mod table;
mod world;

use serde::Serialize;

use crate::{Consumer, Handler, Mode, Once};

pub use ledger::{Ledger, NoAnswer};
pub use story::Story;
pub use table::Table;
pub use world::World;

/// Runs your handler through every crash up to a bound, without AWS, in a test of its own.
///
/// The handler's effects go through a [`Ledger`], which stands for the system that it calls: it does nothing twice under one
/// key. A message is delivered to your consumer again and again until it is done. Meanwhile the worker is killed before and
/// after each effect and at each write of its record, frozen until another worker takes over, or given the message twice;
/// answers of the called system and of the table are lost; the producer [sends the message again](Self::sent_again); and a
/// message that failed permanently is redriven. All combinations of up to two of these are tried, hundreds of runs in less
/// than a second.
///
/// Three things are findings: an effect that happens twice; an effect that is lost, although the record says `COMPLETED`; and
/// two attempts that send different things under one key, because a gateway refuses a known key with another body.
///
/// A handler that passes the [call key](crate::Attempt::call_key) on survives:
///
/// ```
/// use serde_json::{Value, json};
/// use sqs_once::testing::{Ledger, Torture};
/// use sqs_once::{Attempt, Failure, handler_fn};
///
/// async fn charge(ledger: Ledger, order: Value, attempt: Attempt) -> Result<String, Failure> {
///     let receipt = || format!("receipt of {}", order["orderId"]);
///     Ok(ledger.effect(attempt.call_key(), &order, receipt).await?)
/// }
///
/// let survived = Torture::new(&json!({ "orderId": "o-1" })).run(|world| {
///     let ledger = world.ledger();
///     let handler = handler_fn(move |order, attempt| charge(ledger.clone(), order, attempt));
///     world.consumer(handler).key("body:/orderId".parse().unwrap())
/// });
/// assert!(survived.unwrap().runs > 100);
/// ```
///
/// One that makes a key of its own for each attempt does not, and the error tells the story.
///
/// # Limits
///
/// The handler runs on a runtime of tokio with paused time and without sockets, since nothing real may be killed halfway: a
/// handler that opens one is refused. One message runs at a time, in claim mode. What the handler does besides its
/// effects, such as writes to a static, is not undone.
#[derive(Clone, Debug)]
#[must_use]
pub struct Torture {
    body: String,
    again: Option<String>,
    most_faults: u32,
}

/// A handler survived: no run had a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survived {
    /// Runs of a message until it was done, each with other faults.
    pub runs: usize,
    /// Deliveries in all runs.
    pub receives: usize,
    /// Freezes of a worker that held the claim, after which another worker took over.
    pub takeovers: usize,
}

impl Torture {
    /// Creates a torture of a message with this body as JSON.
    ///
    /// # Panics
    ///
    /// If `body` cannot be written as JSON.
    pub fn new(body: &impl Serialize) -> Self {
        Self {
            body: json_of(body),
            again: None,
            most_faults: 2,
        }
    }

    /// Sets what the producer sends if it sends the message again, such as the same order with another send time. It must
    /// have the key and the fingerprint of the message.
    ///
    /// Without this, the message that is sent again has one more member, which no pointer of the fingerprint names, and its
    /// members are in another order. If the fingerprint covers the whole body, only their order and white space differ. With
    /// a `message-id` key it would be another operation, so it is not sent again.
    ///
    /// # Panics
    ///
    /// If `body` cannot be written as JSON.
    pub fn sent_again(self, body: &impl Serialize) -> Self {
        Self {
            again: Some(json_of(body)),
            ..self
        }
    }

    /// Sets how many faults a run has at most. The default is 2. With 3, there are ten to a hundred times as many runs.
    pub fn most_faults(self, most_faults: u32) -> Self {
        Self {
            most_faults,
            ..self
        }
    }

    /// Tortures the consumers that `make` makes, one for each worker.
    ///
    /// # Errors
    ///
    /// The shortest [`Story`] of a finding; or the reason why the handler cannot be tortured: it opens a socket, does not
    /// succeed in a run without faults, or has no effect in the ledger there.
    ///
    /// # Panics
    ///
    /// On a thread that runs a runtime of tokio: call it in a plain `#[test]`.
    pub fn run<H: Handler>(
        &self,
        make: impl Fn(&World) -> Consumer<Once<Table>, H>,
    ) -> Result<Survived, Story>
    where
        Once<Table>: Mode<H::Output>,
    {
        let again = director::sent_again(&self.body, self.again.as_deref(), &make)?;
        let bodies = (&*self.body, again.as_deref());
        let mut survived = Survived {
            runs: 0,
            receives: 0,
            takeovers: 0,
        };
        let mut places = None;
        // Scripts with fewer faults come first, so the story is one of the shortest.
        let mut scripts = vec![Vec::new()];
        for _ in 0..=self.most_faults {
            let mut with_one_more = Vec::new();
            for script in scripts {
                let known = places.as_deref().unwrap_or_default();
                let ended = director::execute(&script, bodies, known, &make)?;
                places.get_or_insert(ended.places);
                survived.runs += 1;
                survived.receives += ended.receives;
                survived.takeovers += ended.freezes.iter().filter(|taken| **taken).count();
                for (at, faults) in ended.taken.iter().enumerate().skip(script.len()) {
                    with_one_more.extend((1..faults.len()).map(|other| {
                        let mut next = script.clone();
                        next.resize(at, 0);
                        next.push(other);
                        next
                    }));
                }
            }
            scripts = with_one_more;
        }
        Ok(survived)
    }
}

fn json_of(value: &(impl Serialize + ?Sized)) -> String {
    match serde_json::to_string(value) {
        Ok(json) => json,
        Err(error) => panic!("it cannot be written as JSON: {error}"),
    }
}
