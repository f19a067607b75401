//! `sqs-once dlq redrive --dry-run`: what each redriven message will do.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use sqs_once::protocol::Fingerprint;

use crate::{
    Ended,
    dead_letters::in_a_world,
    records::{TABLE, World as Records, before, failures, item, s},
    tool,
};

const BODY: &str = r#"{"orderId":"o-1","amount":"1"}"#;

/// The fingerprint of a text with its scheme, as records have it.
fn payload(text: &str, scheme: &str) -> [(&'static str, AttributeValue); 1] {
    let hash = Fingerprint::of(text.as_bytes());
    [("fingerprint", s(&format!("{}:{scheme}", hash.as_str())))]
}

#[tokio::test]
async fn preview_says_what_each_redriven_message_does() {
    in_a_world(false, async |world| {
        let records = Records::new().await;
        let put = async |key: &str, status, more: &[_]| {
            records.dynamo.put(TABLE, item(key, status, more)).await;
        };
        let canonical = r#"{"amount":"1","orderId":"o-1"}"#;
        let failed = failures(1);
        put("p#declined", "FAILED", std::slice::from_ref(&failed)).await;
        let open = |hours: u64| ("first_claimed_at", before(hours * 3600));
        put("p#open", "FAILED", &[failed.clone(), open(1)]).await;
        put("p#old", "FAILED", &[failed, open(21)]).await;
        let [fingerprint] = payload("other", "body;3");
        let ended = ("lease_until", before(60));
        put("p#conflict", "IN_PROGRESS", &[fingerprint, ended, open(1)]).await;
        put("p#done", "COMPLETED", &payload(canonical, "body;3")).await;
        put("p#reused", "COMPLETED", &payload("other", "body;3")).await;
        put("p#hashed", "COMPLETED", &payload("other", "sha256:0123")).await;
        put("p#message-1", "COMPLETED", &[]).await;
        put("p#o-1", "COMPLETED", &payload(canonical, "body;3")).await;
        let mut wanted = Vec::new();
        for (key, next) in [
            ("p#declined", "runs"),
            ("p#open", "runs_with_prior_attempt"),
            ("p#old", "too_old"),
            ("p#conflict", "payload_conflict"),
            ("p#done", "duplicate"),
            ("p#reused", "key_reused"),
            ("p#hashed", "duplicate_or_key_reused"),
            ("p#message-1", "new_operation"),
            ("p#expired", "no_record"),
            ("", "key_unknown"),
        ] {
            let attributes = [("SqsOnceReason", "permanent_failure"), ("SqsOnceKey", key)];
            let attributes = if key.is_empty() { &[] } else { &attributes[..] };
            wanted.push((world.dead_letter(BODY, attributes, None).await, next));
        }
        let preview = async |more: &[&str]| {
            let (dead, orders) = (&*world.dead, &*world.orders);
            let arguments = ["dlq", "redrive", dead, "--to", orders, "--all", "--dry-run"];
            let mut command = tool(&world.endpoint, &[&arguments, more].concat());
            command.env("AWS_ENDPOINT_URL_DYNAMODB", records.dynamo.endpoint());
            Ended::of(command.output().await.unwrap())
        };
        let table = ["--table", TABLE, "--output", "json"];
        let of = |json: &Value, id: &str| {
            let mut messages = json["messages"].as_array().unwrap().iter();
            messages
                .find(|message| message["message_id"] == id)
                .unwrap()
                .clone()
        };
        let next = |json: &Value, id: &str| of(json, id)["next"].as_str().unwrap().to_owned();
        let json = preview(&table).await.json_of_success();
        for (id, wanted) in &wanted {
            assert_eq!(next(&json, id), *wanted, "{json}");
        }
        let (id, _) = wanted.last().unwrap();
        for (source, expected) in [
            ("body:/orderId", "duplicate"),
            ("body:/none", "no_key"),
            ("message-id", "new_operation"),
        ] {
            let rule = ["--key", source, "--namespace", "p"];
            let json = preview(&[&table[..], &rule].concat())
                .await
                .json_of_success();
            assert_eq!(next(&json, id), expected, "{source}");
            let has_key = of(&json, id)["key"].is_string();
            assert_eq!(has_key, source == "body:/orderId", "{json}");
        }
        let json = preview(&["--output", "json"]).await.json_of_success();
        assert_eq!(next(&json, id), "not_read");
        assert_eq!(json["sent"], json!(0));
        let text = preview(&["--table", TABLE]).await.stdout;
        for told in ["1         too_old", "10 messages would be moved."] {
            assert!(text.contains(told), "{text}");
        }
        assert_eq!(world.count_hidden().await, 0);
    })
    .await;
}
