//! One table for this consumer and for Powertools for AWS Lambda (Python). Each program honours the
//! other's records, in either order.
//!
//! The tests run the real library, from `.venv` (`make test` installs it) or `POWERTOOLS_PYTHON`.

mod both;

use std::time::Duration;

use both::{Both, ours, theirs};
use serde_json::{Value, json};
use sqs_once::{
    protocol::{PriorState, Settlement, State, StoredResult, Timestamp},
    store::{Layout, SettleResponse, Store},
};
use sqs_once_core::handler::{History, PriorAttempt};
use support::{CONTEXT, event::order};

/// Both directions of the promise, on one table.
async fn assert_completed_is_shared(both: &Both) {
    let first = both.there(&order("theirs")).await;
    assert_eq!(
        first,
        json!({"ran": true, "answer": theirs(), "error": null})
    );
    let second = both.here(&order("theirs")).await;
    assert_eq!((second.ran, second.acknowledged), (None, true));
    let State::Completed {
        result: StoredResult::Json(json),
    } = both.kept("theirs").await.state
    else {
        panic!("not completed")
    };
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), theirs());

    let first = both.here(&order("ours")).await;
    assert_eq!(
        (first.ran, first.acknowledged),
        (Some(History::fresh()), true)
    );
    let second = both.there(&order("ours")).await;
    assert_eq!(
        second,
        json!({"ran": false, "answer": ours(), "error": null})
    );
}

/// Makes two modules of tests, one whose workers send groups of writes, and one without groups.
macro_rules! with_and_without_groups {
    ($($test:ident)+) => {
        mod without_groups {
            $(#[tokio::test]
            async fn $test() {
                super::$test(false).await;
            })+
        }
        mod with_groups {
            $(#[tokio::test]
            async fn $test() {
                super::$test(true).await;
            })+
        }
    };
}

with_and_without_groups! {
    completed_is_duplicate_on_both_sides
    prefix_sort_key_and_names_are_shared
    in_progress_is_conflict_on_both_sides
    ended_lease_is_taken_over_on_both_sides
    expired_record_is_absent_on_both_sides
    powertools_reruns_permanent_failure
    other_payload_is_refused_on_both_sides
}

async fn completed_is_duplicate_on_both_sides(grouping: bool) {
    assert_completed_is_shared(&Both::new(grouping).await).await;
}

async fn prefix_sort_key_and_names_are_shared(grouping: bool) {
    let layout = Layout::powertools()
        .rename([("id", "pk"), ("expires_at", "ttl")])
        .unwrap();
    let layout = layout.sort_key("sk", "idempotency#payments").unwrap();
    let mut both = Both::with(&["pk", "sk"], layout, grouping).await;
    both.prefix = "orders";
    both.function = json!({"key_prefix": "orders"});
    both.layer = json!({"key_attr": "pk", "sort_key_attr": "sk", "expiry_attr": "ttl"});
    assert_completed_is_shared(&both).await;
}

async fn in_progress_is_conflict_on_both_sides(grouping: bool) {
    let both = Both::new(grouping).await;
    let limits = [("timed", Some(60_000)), ("untimed", None)];
    for (id, remaining_ms) in limits {
        both.powertools(&order(id), "die", remaining_ms).await;
        let second = both.here(&order(id)).await;
        assert_eq!((second.ran, second.acknowledged), (None, false), "{id}");

        let left = both.kept(id).await;
        let State::InProgress { lease_until } = left.state else {
            panic!("not in progress: {left:?}")
        };
        let lease = Timestamp::now().until(lease_until).as_secs();
        // Without a Lambda context, Powertools locks the key for as long as the record is kept.
        let expected = if remaining_ms.is_some() {
            30..=60
        } else {
            3500..=3600
        };
        assert!(expected.contains(&lease), "{id}: {lease} s");
        // The record has no owner here, so no worker settles it.
        let restore = Settlement::Restore(PriorState::over(None));
        for wanted in [restore, Settlement::Release { last_end: None }] {
            let answer = both.settle(&both.claim(id), wanted).await;
            assert!(
                matches!(answer, SettleResponse::ConditionFailed(Some(record)) if record.owner.is_none())
            );
        }
    }

    let _ = both
        .store()
        .claim(&both.claim("ours"), &CONTEXT)
        .await
        .unwrap();
    let second = both.there(&order("ours")).await;
    assert_eq!(second["ran"], false);
    assert_eq!(second["error"], "IdempotencyAlreadyInProgressError");
}

async fn ended_lease_is_taken_over_on_both_sides(grouping: bool) {
    let both = Both::new(grouping).await;
    both.powertools(&order("theirs"), "die", Some(0)).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let second = both.here(&order("theirs")).await;
    assert!(second.acknowledged);
    // The handler is informed, without a time: Powertools records none.
    let without_time = PriorAttempt {
        first_claimed_at: None,
        last_end: None,
    };
    assert_eq!(second.ran, Some(History::with_prior(0, without_time)));
    assert_eq!(both.there(&order("theirs")).await["answer"], ours());

    let mine = both.claim("ours");
    let _ = both.store().claim(&mine, &CONTEXT).await.unwrap();
    let abandoned = both
        .settle(&mine, Settlement::Release { last_end: None })
        .await;
    assert_eq!(abandoned, SettleResponse::Applied);
    assert_eq!(both.there(&order("ours")).await["answer"], theirs());
    // The late completion is refused, as Powertools recorded a newer result.
    let complete = Settlement::Complete {
        result: StoredResult::Json("\"late\"".into()),
        expires_at: mine.expires_at,
    };
    let late = both.settle(&mine, complete).await;
    assert!(
        matches!(late, SettleResponse::ConditionFailed(Some(record)) if record.owner.is_none())
    );
    assert!(both.here(&order("ours")).await.ran.is_none());
}

async fn expired_record_is_absent_on_both_sides(grouping: bool) {
    let mut both = Both::new(grouping).await;
    // Powertools writes EXPIRED when a function ends after its record expired, as in this case.
    both.config = json!({"expires_after_seconds": -10});
    assert_eq!(both.there(&order("theirs")).await["ran"], true);
    assert_eq!(
        both.here(&order("theirs")).await.ran,
        Some(History::fresh())
    );

    both.config = json!({});
    let mine = both.claim("ours");
    let _ = both.store().claim(&mine, &CONTEXT).await.unwrap();
    let complete = Settlement::Complete {
        result: StoredResult::Json("1".into()),
        expires_at: mine.now.as_secs() - 10,
    };
    assert_eq!(both.settle(&mine, complete).await, SettleResponse::Applied);
    assert_eq!(both.there(&order("ours")).await["answer"], theirs());
}

async fn powertools_reruns_permanent_failure(grouping: bool) {
    let both = Both::new(grouping).await;
    for _ in 0..2 {
        let declined = both.declined_here(&order("o-1")).await;
        assert!(!declined.acknowledged);
    }
    let kept = both.kept("o-1").await;
    assert_eq!(kept.state, State::Failed);
    assert_eq!(kept.error.as_deref(), Some("declined"));
    assert!(
        both.here(&order("o-1")).await.ran.is_none(),
        "the same message"
    );
    // An exception deletes the record, also one of sqs-once: Powertools has no fence.
    let again = both.powertools(&order("o-1"), "raise", Some(60_000)).await;
    assert_eq!(
        again,
        json!({"ran": true, "answer": null, "error": "ValueError"})
    );
    assert_eq!(both.here(&order("o-1")).await.ran, Some(History::fresh()));

    both.declined_here(&order("o-2")).await;
    assert_eq!(both.there(&order("o-2")).await["answer"], theirs());
    assert!(both.here(&order("o-2")).await.acknowledged);
}

async fn other_payload_is_refused_on_both_sides(grouping: bool) {
    let mut both = Both::new(grouping).await;
    both.config =
        json!({"payload_validation_jmespath": "powertools_json(body).[amount, currency]"});
    both.fingerprint = "powertools:body:/amount,/currency";
    assert_completed_is_shared(&both).await;

    let mut changed = order("theirs");
    changed["amount"] = json!(100);
    let here = both.here(&changed).await;
    assert_eq!((here.ran, here.acknowledged), (None, false));
    changed["orderId"] = json!("ours");
    let there = both.there(&changed).await;
    assert_eq!(there["error"], "IdempotencyValidationError");
}
