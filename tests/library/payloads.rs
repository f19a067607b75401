//! What counts as the same payload, and bodies that no handler can read: cases from the field.

use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Mode, Settings, SettingsError, handler_fn,
    store::MemoryStore,
};
use support::{
    consumer::{process, within},
    event::{batch, record},
    log,
};

const ONE_MINUTE: Duration = Duration::from_secs(60);

async fn take(_: Value, _: Attempt) -> Result<(), Failure> {
    Ok(())
}

/// Takes every JSON, also with numbers that a `Value` does not have.
async fn skip(_: IgnoredAny, _: Attempt) -> Result<(), Failure> {
    Ok(())
}

/// A consumer with these settings, and records in memory.
async fn consumer<H: Handler<Output = ()>>(
    handler: H,
    variables: &[(&str, &str)],
) -> Result<Consumer<impl Mode<()>, H>, SettingsError> {
    let needed = [
        ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001"),
        ("IDEMPOTENCY_NAMESPACE", "test"),
        ("CONSUMER_VISIBILITY", "off"),
        ("CONSUMER_METRICS", "off"),
    ];
    let version = aws_config::BehaviorVersion::latest();
    let config = aws_config::SdkConfig::builder().behavior_version(version);
    let variables = needed.into_iter().chain(variables.iter().copied());
    let settings = Settings::from_vars(variables).sdk_config(config.build());
    settings.once_in(MemoryStore::default(), Ok(handler)).await
}

/// Outcome and detail of each message, one batch after the other.
async fn outcomes<M: Mode<H::Output>, H: Handler>(
    consumer: Consumer<M, H>,
    bodies: &[&str],
) -> Vec<(String, String)> {
    let consumer = Arc::new(consumer);
    log::start();
    for (n, body) in bodies.iter().enumerate() {
        let event = batch([record(&format!("m-{n}"), body)]);
        process(&consumer, event, within(ONE_MINUTE)).await;
    }
    let lines = log::lines();
    let of_messages = lines
        .iter()
        .filter(|line| line["fields"]["message"] == "message processed");
    let text = |line: &Value, name: &str| line["fields"][name].as_str().unwrap_or("").to_owned();
    let outcomes = of_messages.map(|line| (text(line, "outcome"), text(line, "detail")));
    outcomes.collect()
}

/// The outcomes of two bodies, with these settings.
async fn pair(variables: &[(&str, &str)], bodies: [&str; 2]) -> [String; 2] {
    let consumer = consumer(handler_fn(skip), variables).await.unwrap();
    let outcomes = outcomes(consumer, &bodies).await;
    let names: Vec<_> = outcomes.into_iter().map(|(name, _)| name).collect();
    names.try_into().unwrap()
}

/// The text of a message that is refused for what its body is.
async fn refusal<H: Handler<Output = ()>>(handler: H, key: &str, body: &str) -> String {
    let consumer = consumer(handler, &[("IDEMPOTENCY_KEY", key)])
        .await
        .unwrap();
    let (outcome, detail) = outcomes(consumer, &[body]).await.remove(0);
    assert_eq!(outcome, "invalid", "{detail}");
    detail
}

const TEN_EUROS: &str = r#"{"tenant":"acme","orderId":"o-1","amount":10,"currency":"EUR"}"#;
const DOLLARS: &str = r#"{"tenant":"acme","orderId":"o-1","amount":999,"currency":"USD"}"#;

/// A space, a line break or a misspelt name: the second amount must not be a duplicate of the first.
#[tokio::test]
async fn white_space_in_settings_changes_no_payload() {
    for fingerprint in [
        "body:/amount,/currency",
        "body:/amount, /currency",
        " body: /amount ,\t/currency ",
        "body:/amount\n",
        "body:/price",
    ] {
        for key in [
            "body:/orderId",
            "body:/tenant, /orderId",
            "body:/orderId \r\n",
        ] {
            let variables = [
                ("IDEMPOTENCY_KEY", key),
                ("IDEMPOTENCY_FINGERPRINT", fingerprint),
            ];
            let outcomes = pair(&variables, [TEN_EUROS, DOLLARS]).await;
            assert_eq!(
                outcomes,
                ["completed", "key_reused"],
                "{key:?} {fingerprint:?}"
            );
            let outcomes = pair(&variables, [TEN_EUROS, TEN_EUROS]).await;
            assert_eq!(
                outcomes,
                ["completed", "duplicate"],
                "{key:?} {fingerprint:?}"
            );
        }
    }
}

#[tokio::test]
async fn pointers_that_find_nothing_are_named_once() {
    let variables = [
        ("IDEMPOTENCY_KEY", "body:/orderId"),
        ("IDEMPOTENCY_FINGERPRINT", "body:/price, /money"),
    ];
    let consumer = Arc::new(consumer(handler_fn(take), &variables).await.unwrap());
    log::start();
    for id in ["o-1", "o-2"] {
        let event = batch([record(id, &json!({"orderId": id, "amount": 7}))]);
        process(&consumer, event, within(ONE_MINUTE)).await;
    }
    let lines = log::lines_containing("IDEMPOTENCY_FINGERPRINT");
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["fields"]["pointers"], "/price,/money");
    assert!(!line.to_string().contains("o-1"), "{line}");
}

#[tokio::test]
async fn numbers_beyond_a_double_differ() {
    let payee = |account: &str| {
        format!(r#"{{"orderId":"o-1","amount":10,"currency":"EUR","payeeAccount":{account}}}"#)
    };
    for (one, other, expected) in [
        ("9007199254740992", "9007199254740993", "key_reused"),
        (
            "1000000000000000000001",
            "1000000000000000000002",
            "key_reused",
        ),
        ("0.1", "0.10000000000000000555", "key_reused"),
        ("1e1000000", "1e1000001", "key_reused"),
        ("1", "1.0", "duplicate"),
        ("1", "1e0", "duplicate"),
        ("1200", "12E+2", "duplicate"),
        ("1e1000000", "10e999999", "duplicate"),
    ] {
        for fingerprint in ["body", "body:/payeeAccount"] {
            let variables = [
                ("IDEMPOTENCY_KEY", "body:/orderId"),
                ("IDEMPOTENCY_FINGERPRINT", fingerprint),
            ];
            let outcomes = pair(&variables, [&payee(one), &payee(other)]).await;
            assert_eq!(
                outcomes,
                ["completed", expected],
                "{one} {other} {fingerprint}"
            );
        }
    }
}

/// Datadog's agent writes trace ids and a time into `detail`.
#[tokio::test]
async fn key_reused_names_what_changes_a_body() {
    let traced = |trace: &str| {
        json!({
            "version": "0", "id": trace, "detail-type": "OrderPlaced", "source": "shop",
            "account": "123456789012", "time": "2026-11-28T10:00:00Z", "region": "us-east-1", "resources": [],
            "detail": {"orderId": "o-1", "amount": 10, "_datadog": {"x-datadog-trace-id": trace}},
        })
        .to_string()
    };
    let bodies = ["7001", "7002"].map(traced);
    let bodies = [&*bodies[0], &*bodies[1]];
    let variables = [
        ("IDEMPOTENCY_KEY", "body:/orderId"),
        ("CONSUMER_ENVELOPE", "auto"),
    ];
    let whole = consumer(handler_fn(take), &variables).await.unwrap();
    let (outcome, detail) = outcomes(whole, &bodies).await.remove(1);
    assert_eq!(outcome, "key_reused");
    for part in ["IDEMPOTENCY_FINGERPRINT", "send time", "tracing agent"] {
        assert!(detail.contains(part), "{detail}");
    }
    let parts = ("IDEMPOTENCY_FINGERPRINT", "body:/orderId,/amount");
    let outcomes = pair(&[variables[0], variables[1], parts], bodies).await;
    assert_eq!(outcomes, ["completed", "duplicate"]);
}

/// The key that the pages give for S3 events.
fn documented_key_of_uploads(page: &str) -> String {
    let path = format!("{}/docs/{page}.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let (_, behind) = text
        .split_once("`body:/0/s3")
        .unwrap_or_else(|| panic!("{page}"));
    let (key, _) = behind.split_once('`').unwrap();
    format!("body:/0/s3{key}")
}

#[tokio::test]
async fn documented_key_of_uploads_tells_them_apart() {
    let upload = |bucket: &str, sequencer: &str| {
        json!({"Records": [{
            "eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put",
            "eventTime": format!("2026-11-27T06:00:00.{sequencer}Z"),
            "s3": {
                "bucket": {"name": bucket, "arn": format!("arn:aws:s3:::{bucket}")},
                "object": {"key": "daily/report.csv", "size": 1024, "sequencer": sequencer},
            },
        }]})
        .to_string()
    };
    let uploads = [
        ("incoming", "001"),
        ("incoming", "002"),
        ("outgoing", "001"),
    ];
    let mut bodies: Vec<_> = uploads
        .iter()
        .map(|(bucket, n)| upload(bucket, n))
        .collect();
    bodies.push(bodies[0].clone());
    let bodies: Vec<_> = bodies.iter().map(String::as_str).collect();
    for page in ["keys", "local-testing"] {
        let key = documented_key_of_uploads(page);
        let variables = [("IDEMPOTENCY_KEY", &*key), ("CONSUMER_ENVELOPE", "auto")];
        let consumer = consumer(handler_fn(take), &variables).await.unwrap();
        let outcomes = outcomes(consumer, &bodies).await;
        let names: Vec<_> = outcomes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["completed", "completed", "completed", "duplicate"],
            "{page}: {key}"
        );
    }
}

#[derive(serde::Deserialize)]
struct Order {
    #[serde(rename = "orderId")]
    _id: String,
}

async fn charge(_: Order, _: Attempt) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn body_encoded_twice_is_named_with_the_cure() {
    let once = r#"{"orderId": "SECRET", "amount": 10}"#;
    for twice in [
        Value::from(once).to_string(),
        format!("\u{feff} {} ", Value::from(format!(" {once}"))),
        Value::from(Value::from(once).to_string()).to_string(),
    ] {
        for key in ["body:/orderId", "message-id"] {
            let why = refusal(handler_fn(charge), key, &twice).await;
            for part in ["encoded twice", "JSON string", "own_body.rs"] {
                assert!(why.contains(part), "{key}: {why}");
            }
            assert!(!why.contains("SECRET"), "{why}");
        }
    }
    // A text is a message of its own.
    let why = refusal(handler_fn(charge), "message-id", r#""SECRET""#).await;
    assert!(
        !why.contains("encoded twice") && !why.contains("SECRET"),
        "{why}"
    );
    // JSON in a member stays readable.
    let inside = json!({"order": once}).to_string();
    let variables = [("IDEMPOTENCY_KEY", "body:/order/orderId")];
    let outcomes = pair(&variables, [&inside, &inside]).await;
    assert_eq!(outcomes, ["completed", "duplicate"]);
}

#[tokio::test]
async fn body_that_looks_like_base64_is_named_with_the_cure() {
    for body in [
        "eyJvcmRlcklkIjoiby0xIiwiYW1vdW50IjoxMCwiY3VycmVuY3kiOiJFVVIifQ==",
        "eyJvcmRlcklkIjoiby0xIiwiYW1vdW50IjoxMCwiY3VycmVuY3kiOiJF\r\nVVIifQ==\r\n",
        "eyJvcmRlcklkIjoiby0xIiwi_W1vdW50Ijox-CwiY3VycmVuY3kiOiJFVVIgfQ",
    ] {
        for key in ["body:/orderId", "message-id"] {
            let why = refusal(handler_fn(charge), key, body).await;
            for part in ["base64", "own_body.rs"] {
                assert!(why.contains(part), "{key}: {why}");
            }
            assert!(!why.contains("eyJ"), "{why}");
        }
    }
    for body in ["plain text, no base64", "o-1", "ping", "{\"orderId\"", ""] {
        let why = refusal(handler_fn(charge), "message-id", body).await;
        assert!(!why.contains("base64"), "{body}: {why}");
    }
}

#[tokio::test]
async fn event_whose_detail_is_a_text_is_named() {
    let event = json!({
        "version": "0", "id": "e-1", "detail-type": "OrderPlaced", "source": "shop",
        "account": "123456789012", "time": "2026-11-28T10:00:00Z", "region": "us-east-1", "resources": [],
        "detail": json!({"orderId": "SECRET"}).to_string(),
    });
    let notification = json!({
        "Type": "Notification", "MessageId": "s-1", "TopicArn": "arn:topic",
        "Message": event.to_string(), "Timestamp": "2026-11-22T08:00:00.000Z",
    });
    for body in [event, notification] {
        for key in ["body:/orderId", "message-id"] {
            let variables = [("IDEMPOTENCY_KEY", key), ("CONSUMER_ENVELOPE", "auto")];
            let consumer = consumer(handler_fn(charge), &variables).await.unwrap();
            let (outcome, why) = outcomes(consumer, &[&body.to_string()]).await.remove(0);
            assert_eq!(outcome, "invalid", "{why}");
            for part in ["`detail`", "is a text", "EventBridge"] {
                assert!(why.contains(part), "{key}: {why}");
            }
            assert!(!why.contains("SECRET"), "{why}");
        }
    }
}
