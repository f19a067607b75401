//! The fuzz targets with their seeds, on a stable compiler. cargo-fuzz starts from the same seeds.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::{fs, path::Path};

use serde_json::{Value, json};

/// Bodies around an order id. [`bodies`] adds the byte that selects key source and fingerprint.
const BODIES: [&str; 18] = [
    r#"{"orderId":"o-1","tenant":"t","amount":99.99,"currency":"EUR"}"#,
    r#"{"orderId":"","tenant":""}"#,
    r#"{"orderId":null}"#,
    r#"{"orderId":7,"tenant":18446744073709551615}"#,
    r#"{"orderId":0.1,"amount":99.98888888888888888888888888}"#,
    r#"{"orderId":{"b":[1,2],"a":null},"tenant":false}"#,
    r#"{"orderId":"a","orderId":"b"}"#,
    r##"{"orderId":"a#b\\\u0000","tenant":"#"}"##,
    r#"{"orderId":"\ud83d\ude00"}"#,
    r#"{"Message":"{\"orderId\":\"o-1\"}"}"#,
    r#""{\"orderId\":1}""#,
    r#"[1,2.5,-0.0,1e300,"x"]"#,
    r#"{"":{}}"#,
    r#"{"orderId":[null],"tenant":"t"}"#,
    r#"{"orderId":"o-1","tenant":"t","note":"\ud83d"}"#,
    "\u{feff}{\"orderId\":\"o-1\",\"tenant\":\"t\"}",
    "[[[[[[1e999999",
    "10000000020080000184",
];

fn bodies() -> Vec<Vec<u8>> {
    let long = format!(r#"{{"orderId":"{}"}}"#, "x".repeat(2_100));
    let bodies: Vec<_> = BODIES.into_iter().chain([long.as_str()]).collect();
    (0..targets::CHOICES)
        .flat_map(|choice| bodies.iter().map(move |body| (choice, body)))
        .map(|(choice, body)| [&[choice], body.as_bytes()].concat())
        .collect()
}

/// Samples of Lambda's events, and events of messages with these ids and bodies.
fn events() -> Vec<Vec<u8>> {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("events");
    let samples = fs::read_dir(samples).unwrap();
    let samples = samples.map(|sample| fs::read(sample.unwrap().path()).unwrap());
    let deep = "[".repeat(200) + &"]".repeat(200);
    let batches: &[&[(&str, &str)]] = &[
        &[],
        &[("a", "false")],
        &[("a", "1"), ("b", "null"), ("a", "1"), ("b", "null")],
        &[("a", "1"), ("a", "2"), ("b", "1")],
        &[("a", "1"), ("", "2")],
        &[("a", "{"), ("b", "null"), ("c", "1")],
        &[("a", "1e999999"), ("b", r#"{"n":1e999999}"#), ("c", "-0")],
        &[("a", &deep), ("b", "1")],
    ];
    let standard = batches.iter().map(|batch| event(batch, |_| {}));
    let fifo = batches.iter().map(|batch| {
        event(batch, |record| {
            record["attributes"]["MessageGroupId"] = json!("g");
            record["eventSourceARN"] = json!("arn:aws:sqs:r:1:q.fifo");
        })
    });
    let odd = [
        event(&[("a", "1")], |record| record["body"] = Value::Null),
        event(&[("a", "1")], |record| {
            record["attributes"]["ApproximateReceiveCount"] = json!("99999999999999999999");
        }),
        event(&[("a", "{}")], |record| {
            record["messageAttributes"] = json!({
                "n": { "stringValue": "1", "dataType": "Number.x" },
                "b": { "binaryValue": "AAE=", "dataType": "Binary" },
            });
        }),
    ];
    samples.chain(standard).chain(fifo).chain(odd).collect()
}

fn event(messages: &[(&str, &str)], change: impl Fn(&mut Value)) -> Vec<u8> {
    let record = |(id, body): &(&str, &str)| {
        let mut record = json!({
            "messageId": id,
            "body": body,
            "attributes": { "ApproximateReceiveCount": "1" },
            "messageAttributes": {},
        });
        change(&mut record);
        record
    };
    let records: Vec<_> = messages.iter().map(record).collect();
    json!({ "Records": records }).to_string().into_bytes()
}

fn each(seeds: Vec<Vec<u8>>, run: fn(&[u8])) {
    for seed in seeds {
        // Shown if the test fails: the last seed is the culprit.
        println!("{}", String::from_utf8_lossy(&seed));
        run(&seed);
    }
}

#[test]
fn seed_events_are_answered_by_the_rules() {
    each(events(), targets::event);
}

#[test]
fn seed_bodies_are_answered_by_the_rules() {
    each(bodies(), targets::body);
}

#[test]
#[ignore = "writes the seeds for cargo-fuzz"]
fn seeds_are_written() {
    for (target, seeds) in [("event", events()), ("body", bodies())] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("target/fuzz")
            .join(target);
        fs::create_dir_all(&folder).unwrap();
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
        }
    }
}
