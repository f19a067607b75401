//! Handlers under torture: which survive, and what the story of the others says.

use std::time::Duration;

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Failure, Handler, LookUp, LookedUp, Once, handler_fn,
    testing::{
        Ledger, Torture,
        torture::{Story, Survived, Table, World},
    },
};

fn order() -> Value {
    json!({ "orderId": "o-1", "amount": 5 })
}

fn tortured<H: Handler>(
    make: impl Fn(&World) -> Consumer<Once<Table>, H>,
) -> Result<Survived, Story>
where
    Once<Table>: sqs_once::Mode<H::Output>,
{
    Torture::new(&order()).run(|world| make(world).key("body:/orderId".parse().unwrap()))
}

#[test]
fn handler_that_passes_its_call_key_survives() {
    let survived = tortured(|world| {
        let ledger = world.ledger();
        world.consumer(handler_fn(move |_: Value, attempt: Attempt| {
            let ledger = ledger.clone();
            async move { Ok::<_, Failure>(ledger.effect(attempt.call_key(), || 5).await?) }
        }))
    });
    let survived = survived.unwrap();
    println!("{survived:?}");
    assert!(survived.runs > 100 && survived.receives > survived.runs);
}

/// A handler as in many a tutorial: a key for each request.
async fn naive(ledger: Ledger, attempt: Attempt) -> Result<u64, Failure> {
    let request = format!("request-{}", attempt.receive_count());
    Ok(ledger.effect(request, || 5).await?)
}

#[test]
fn handler_of_a_tutorial_fails_with_a_story() {
    let story = tortured(|world| {
        let ledger = world.ledger();
        world.consumer(handler_fn(move |_: Value, attempt: Attempt| {
            naive(ledger.clone(), attempt)
        }))
    });
    let story = story.unwrap_err().to_string();
    println!("{story}");
    for part in [
        "torture.rs:",
        "happened twice for test#o-1",
        "10:00:00  attempt 1 HAS THE EFFECT",
        "attempt 2 HAS THE EFFECT",
        "under the key request-1",
        "Pass `attempt.call_key()`",
    ] {
        assert!(story.contains(part), "{part} is not in:\n{story}");
    }
}

/// A handler for a system without keys, and its lookup.
#[derive(Clone)]
struct Legacy(Ledger);

impl Handler for Legacy {
    type Message = Value;
    type Output = u64;

    async fn handle(&self, _: Value, attempt: Attempt) -> Result<u64, Failure> {
        let request = format!("{}-{}", attempt.message_id(), attempt.receive_count());
        Ok(self.0.effect(request, || 5).await?)
    }
}

impl LookUp<Value, u64> for Legacy {
    async fn look_up(&self, _: &Value, _: &Attempt) -> Result<LookedUp<u64>, Failure> {
        Ok(self.0.find().map_or(LookedUp::NotFound, LookedUp::Found))
    }
}

#[test]
fn handler_with_a_look_up_survives() {
    let legacy = |world: &World| {
        let legacy = Legacy(world.ledger());
        world
            .consumer(legacy.clone())
            .look_up(legacy, Duration::from_secs(30))
    };
    tortured(legacy).unwrap();
    // Without it, an answer that is lost charges again.
    tortured(|world| world.consumer(Legacy(world.ledger()))).unwrap_err();
}

/// A permanent failure after the effect, and a redrive.
#[test]
fn failure_of_a_later_step_keeps_the_call_key() {
    let survived = tortured(|world| {
        let ledger = world.ledger();
        world.consumer(handler_fn(move |_: Value, attempt: Attempt| {
            let ledger = ledger.clone();
            async move {
                let charged = ledger.effect(attempt.call_key(), || 5).await?;
                if attempt.prior().is_some() {
                    return Err(Failure::permanent("no stock"));
                }
                Ok(charged)
            }
        }))
    });
    survived.unwrap();
}

#[test]
fn handler_with_a_socket_is_refused() {
    let story = tortured(|world| {
        world.consumer(handler_fn(async |_: Value, _: Attempt| {
            let connected = tokio::net::TcpStream::connect("127.0.0.1:9").await;
            connected?;
            Ok::<_, Failure>(())
        }))
    });
    let story = story.unwrap_err().to_string();
    assert!(story.contains("has no sockets here"), "{story}");
}

#[test]
fn handler_that_never_succeeds_is_refused() {
    let story = tortured(|world| {
        world.consumer(handler_fn(async |_: Value, _: Attempt| {
            Err::<(), _>(Failure::permanent("never"))
        }))
    });
    let story = story.unwrap_err().to_string();
    assert!(
        story.contains("failed permanently in a run without faults (never)"),
        "{story}"
    );
}
