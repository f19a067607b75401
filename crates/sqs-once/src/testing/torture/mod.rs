//! [`Torture`]: kills, freezes and repeats a handler at every place, up to a number of faults, and tells you how its effect
//! happened twice or was lost.

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

/// Runs your handler through every combination of a few crashes and other faults, in a test without AWS.
///
/// The handler's effects go through a [`Ledger`], which stands for the system that it calls and does nothing twice under the
/// same key. Your consumer gets a message again and again until it is done. Meanwhile, these things go wrong:
///
/// - a worker is killed before or after an effect, or before or after it writes its record;
/// - a worker is frozen until another one takes over;
/// - the queue delivers the message twice;
/// - an answer of the called system or of the table is lost;
/// - the producer [sends the message again](Self::sent_again).
///
/// `Torture` tries every combination of up to two of these, hundreds of runs in less than a second. If a message fails
/// permanently, it is redriven.
///
/// `Torture` finds an effect that happens twice, and an effect that is lost although the record says `COMPLETED`. It also finds
/// two attempts that send different things under the same key, because a gateway refuses a known key with another body.
///
/// A handler that passes on the [call key](crate::Attempt::call_key) survives:
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
/// A handler that makes a new key for each attempt does not survive, and the error tells the story.
///
/// # Limits
///
/// The handler runs on a tokio runtime with paused time and without sockets, because nothing real may be killed halfway. A
/// handler that opens a socket is refused. One message runs at a time, in claim mode. `Torture` does not undo what the handler
/// does besides its effects, such as writes to a static.
#[derive(Clone, Debug)]
#[must_use]
pub struct Torture {
    body: String,
    again: Option<String>,
    most_faults: u32,
}

/// The handler survived: no run had a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survived {
    /// How many runs there were. Each takes one message until it is done, with different faults.
    pub runs: usize,
    /// How many deliveries there were in all runs.
    pub receives: usize,
    /// How many times another worker took over because the one that held the claim was frozen.
    pub takeovers: usize,
}

impl Torture {
    /// Creates a torture with a message that has this body as JSON.
    ///
    /// # Panics
    ///
    /// Panics if `body` can't be written as JSON.
    pub fn new(body: &impl Serialize) -> Self {
        Self {
            body: json_of(body),
            again: None,
            most_faults: 2,
        }
    }

    /// Sets the body that the producer sends the second time, such as the same order with another send time. It must have the
    /// same key and fingerprint as the message.
    ///
    /// By default, the message that is sent again has its members in another order, and one more member, which no pointer
    /// of the fingerprint names. If the fingerprint covers the whole body, only order and white space differ. With a
    /// `message-id` key, the second message would be another operation, so it is not sent.
    ///
    /// # Panics
    ///
    /// Panics if `body` can't be written as JSON.
    pub fn sent_again(self, body: &impl Serialize) -> Self {
        Self {
            again: Some(json_of(body)),
            ..self
        }
    }

    /// Sets how many faults a run may have. The default is 2. With 3, there are ten to a hundred times as many runs.
    pub fn most_faults(self, most_faults: u32) -> Self {
        Self {
            most_faults,
            ..self
        }
    }

    /// Tortures your consumer. `make` creates it anew for each worker.
    ///
    /// # Errors
    ///
    /// Returns the shortest [`Story`] of a finding. If the handler can't be tortured, returns the reason: it opens a socket, or
    /// in a run without faults it doesn't succeed or has no effect in the ledger.
    ///
    /// # Panics
    ///
    /// Panics on a thread that runs a tokio runtime, so call it in a plain `#[test]`.
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
