//! Handlers under torture: which survive, and what the story of the others says.

use std::time::Duration;

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Failure, Handler, LookUp, LookedUp, Once, Text, handler_fn,
    testing::{
        Ledger, Torture,
        torture::{Story, Survived, Table, World},
    },
};

fn order() -> Value {
    json!({ "orderId": "o-1", "amount": 5 })
}

/// How often a handler was tortured, or its story.
type Ended = Result<Survived, Story>;

fn tortured<H: Handler>(make: impl Fn(&World) -> Consumer<Once<Table>, H>) -> Ended
where
    Once<Table>: sqs_once::Mode<H::Output>,
{
    Torture::new(&order()).run(|world| make(world).key(KEY.parse().unwrap()))
}

const KEY: &str = "body:/orderId";
/// Of what a handler may send under its call key.
const FINGERPRINT: &str = "body:/orderId,/amount";

/// Tortures a handler that sends what `sent` makes of its body, in a consumer with this fingerprint.
fn sending(
    torture: &Torture,
    fingerprint: &str,
    sent: impl Fn(&str) -> String + Copy + Send + Sync + 'static,
) -> Ended {
    torture.run(|world| {
        let ledger = world.ledger();
        let charge = handler_fn(move |Text(body): Text, attempt: Attempt| {
            let ledger = ledger.clone();
            async move {
                let sent = sent(&body);
                Ok::<_, Failure>(ledger.effect(attempt.call_key(), &sent, || 5).await?)
            }
        });
        let consumer = world.consumer(charge).key(KEY.parse().unwrap());
        consumer.fingerprint(fingerprint.parse().unwrap())
    })
}

/// The parts of an order that its fingerprint covers.
fn covered(body: &str) -> String {
    let order: Value = serde_json::from_str(body).unwrap();
    json!([order["orderId"], order["amount"]]).to_string()
}

fn assert_says(story: &str, parts: &[&str]) {
    println!("{story}");
    for part in parts {
        assert!(story.contains(part), "{part} is not in:\n{story}");
    }
}

#[test]
fn handler_that_sends_what_its_fingerprint_covers_survives() {
    for fingerprint in [FINGERPRINT, "body", "off"] {
        sending(&Torture::new(&order()), fingerprint, covered).unwrap();
    }
}

#[test]
fn handler_that_passes_its_body_on_fails_with_a_story() {
    let story = sending(&Torture::new(&order()), FINGERPRINT, str::to_owned);
    let story = story.unwrap_err().to_string();
    assert_says(
        &story,
        &[
            "torture.rs:",
            "different things were sent under one key for test#o-1",
            "the message, which its producer has sent again",
            "sentAgain",
            "what the fingerprint covers",
        ],
    );
}

/// White space and the order of members are in no fingerprint.
#[test]
fn handler_that_passes_its_text_on_fails() {
    sending(&Torture::new(&order()), "body", str::to_owned).unwrap_err();
    let parsed = |body: &str| serde_json::from_str::<Value>(body).unwrap().to_string();
    sending(&Torture::new(&order()), "body", parsed).unwrap();
    // Nothing else of a text can change.
    let text = Torture::new(&"o-1");
    let by_id = text.run(|world| {
        let ledger = world.ledger();
        world.consumer(handler_fn(move |Text(body): Text, attempt: Attempt| {
            let ledger = ledger.clone();
            async move { Ok::<_, Failure>(ledger.effect(attempt.call_key(), &body, || 5).await?) }
        }))
    });
    by_id.unwrap();
}

#[test]
fn message_sent_again_is_the_one_that_the_test_gives() {
    let at = |time: &str| json!({ "orderId": "o-1", "amount": 5, "meta": { "sentAt": time } });
    let send_time = |body: &str| {
        let order: Value = serde_json::from_str(body).unwrap();
        order["meta"]["sentAt"].to_string()
    };
    // A member that is added is not sent.
    let torture = Torture::new(&at("10:00"));
    sending(&torture, FINGERPRINT, send_time).unwrap();
    let torture = torture.sent_again(&at("10:03"));
    let story = sending(&torture, FINGERPRINT, send_time).unwrap_err();
    assert_says(&story.to_string(), &["10:03", "10:00"]);
    // It must be the same operation with the same payload.
    let story = sending(&torture, "body", send_time).unwrap_err();
    assert_says(&story.to_string(), &["another fingerprint"]);
    let other = Torture::new(&order()).sent_again(&json!({ "orderId": "o-2" }));
    let story = sending(&other, "off", covered).unwrap_err();
    assert_says(&story.to_string(), &["another key"]);
}

/// With such keys, a message that is sent again is another operation.
#[test]
fn message_id_keys_are_not_sent_again() {
    let survived = Torture::new(&order()).run(|world| {
        let ledger = world.ledger();
        world.consumer(handler_fn(move |order: Value, attempt: Attempt| {
            let ledger = ledger.clone();
            async move { Ok::<_, Failure>(ledger.effect(attempt.call_key(), &order, || 5).await?) }
        }))
    });
    survived.unwrap();
}

#[test]
fn message_sent_again_may_be_refused_by_its_type() {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Strict {
        order_id: String,
        amount: u32,
    }
    let survived = Torture::new(&order()).run(|world| {
        let ledger = world.ledger();
        let charge = handler_fn(move |order: Strict, attempt: Attempt| {
            let ledger = ledger.clone();
            let sent = (order.order_id, order.amount);
            async move { Ok::<_, Failure>(ledger.effect(attempt.call_key(), &sent, || 5).await?) }
        });
        let consumer = world.consumer(charge).key(KEY.parse().unwrap());
        consumer.fingerprint(FINGERPRINT.parse().unwrap())
    });
    survived.unwrap();
}

/// What somebody writes when torture complains of a double.
#[test]
fn handler_that_trusts_a_prior_attempt_loses_its_effect() {
    let story = tortured(|world| {
        let ledger = world.ledger();
        world.consumer(handler_fn(move |_: Value, attempt: Attempt| {
            let ledger = ledger.clone();
            async move {
                if attempt.prior().is_none() {
                    let request = attempt.receive_count();
                    ledger.effect(request, "5", || 5).await?;
                }
                Ok::<_, Failure>(())
            }
        }))
    });
    assert_says(
        &story.unwrap_err().to_string(),
        &[
            "torture.rs:",
            "its effect is lost",
            "for test#o-1",
            "attempt 1 is killed",
            "records: complete",
        ],
    );
}

/// A lookup that finds the first of two effects completes the operation without the second.
#[test]
fn second_effect_that_no_attempt_has_is_lost() {
    #[derive(Clone)]
    struct Two(Ledger);

    impl Handler for Two {
        type Message = Value;
        type Output = u64;

        async fn handle(&self, _: Value, attempt: Attempt) -> Result<u64, Failure> {
            let charged = self.0.effect(attempt.call_key(), "charge", || 5).await?;
            self.0.effect(attempt.call_key(), "mail", || 0).await?;
            Ok(charged)
        }
    }

    impl LookUp<Value, u64> for Two {
        async fn look_up(&self, _: &Value, _: &Attempt) -> Result<LookedUp<u64>, Failure> {
            Ok(self.0.find().map_or(LookedUp::NotFound, LookedUp::Found))
        }
    }

    tortured(|world| world.consumer(Two(world.ledger()))).unwrap();
    let story = tortured(|world| {
        let two = Two(world.ledger());
        let look_up = two.clone();
        world
            .consumer(two)
            .look_up(look_up, Duration::from_secs(30))
    });
    assert_says(&story.unwrap_err().to_string(), &["its effect is lost"]);
}

#[test]
fn handler_that_never_calls_the_ledger_is_refused() {
    let story = tortured(|world| {
        world.consumer(handler_fn(async |_: Value, _: Attempt| Ok::<_, Failure>(5)))
    });
    assert_says(
        &story.unwrap_err().to_string(),
        &["had no effect in the ledger"],
    );
}

#[test]
fn handler_that_passes_its_call_key_survives() {
    let survived = tortured(|world| {
        let ledger = world.ledger();
        world.consumer(handler_fn(move |_: Value, attempt: Attempt| {
            let ledger = ledger.clone();
            async move { Ok::<_, Failure>(ledger.effect(attempt.call_key(), "5", || 5).await?) }
        }))
    });
    let survived = survived.unwrap();
    println!("{survived:?}");
    assert!(survived.runs > 100 && survived.receives > survived.runs);
    assert!(survived.takeovers > 20);
}

/// A handler as in many a tutorial: a key for each request.
async fn naive(ledger: Ledger, attempt: Attempt) -> Result<u64, Failure> {
    let request = format!("request-{}", attempt.receive_count());
    Ok(ledger.effect(request, "5", || 5).await?)
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
    assert_says(
        &story,
        &[
            "torture.rs:",
            "happened twice for test#o-1",
            "10:00:00  attempt 1 HAS THE EFFECT",
            "attempt 2 HAS THE EFFECT",
            "under the key request-1",
            "Pass `attempt.call_key()`",
        ],
    );
}

/// A handler for a system without keys, and its lookup.
#[derive(Clone)]
struct Legacy(Ledger);

impl Handler for Legacy {
    type Message = Value;
    type Output = u64;

    async fn handle(&self, _: Value, attempt: Attempt) -> Result<u64, Failure> {
        let request = format!("{}-{}", attempt.message_id(), attempt.receive_count());
        Ok(self.0.effect(request, "5", || 5).await?)
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
                let charged = ledger.effect(attempt.call_key(), "5", || 5).await?;
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
