//! Keys and fingerprints of generated JSON: they differ exactly if the values do.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use sqs_once::{
    Attempt, Consumer, Failure, Once, handler_fn,
    protocol::{Fingerprint, Key},
    store::MemoryStore,
};
use support::{
    PATIENCE,
    consumer::{namespace, process, within},
    event::{batch, record},
};

/// Any JSON whose numbers differ by value.
fn payload() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1_i64 << 53)..1 << 53).prop_map(Value::from),
        (0..9_i32).prop_map(Value::from),
        any::<i32>().prop_map(|n| Value::from(f64::from(n) + 0.25)),
        "[a\"\\\\/\0\u{1f}é😀]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[ab#\"é😀￿]{0,2}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Choices of formatting for a value: one after the other, from the start again when they end.
struct JsonFormat<'a> {
    choices: std::iter::Cycle<std::slice::Iter<'a, u8>>,
}

impl JsonFormat<'_> {
    fn choose<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[usize::from(*self.choices.next().unwrap()) % N]
    }

    fn space(&mut self) -> &'static str {
        self.choose(["", " ", "\n\t", "\r\n  "])
    }

    fn write(&mut self, value: &Value) -> String {
        let (before, after) = (self.space(), self.space());
        let text = match value {
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| self.write(item)).collect();
                format!("[{}{}]", items.join(","), self.space())
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members
                    .iter()
                    .map(|(name, value)| format!("{}:{}", self.string(name), self.write(value)))
                    .collect();
                let len = members.len().max(1);
                members.rotate_left(usize::from(self.choose([0_u8, 1, 2, 3])) % len);
                format!("{{{}{}}}", members.join(","), self.space())
            }
            Value::String(text) => self.string(text),
            other => other.to_string(),
        };
        format!("{before}{text}{after}")
    }

    /// Each character as it is, if JSON allows that, or by its number.
    fn string(&mut self, text: &str) -> String {
        let mut json = String::new();
        for c in text.chars() {
            if self.choose([true, false]) {
                let quoted = Value::from(c.to_string()).to_string();
                json.push_str(&quoted[1..quoted.len() - 1]);
            } else {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    json.push_str(&format!("\\u{unit:04X}"));
                }
            }
        }
        format!("\"{json}\"")
    }
}

/// Records of a consumer that has processed these bodies.
fn records(key: &str, bodies: &[String]) -> MemoryStore {
    async fn take(_: Value, _: Attempt) -> Result<(), Failure> {
        Ok(())
    }
    let store = MemoryStore::default();
    let consumer = Consumer::without_aws(Once::new(store.clone()), namespace(), handler_fn(take));
    let consumer = Arc::new(consumer.key(key.parse().unwrap()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let messages = bodies.iter().enumerate();
    let messages = messages.map(|(n, body)| record(&format!("m-{}", n + 1), body));
    let event = batch(messages);
    let failed = runtime.block_on(async { process(&consumer, event, within(PATIENCE)).await });
    assert_eq!(failed, [""; 0], "{bodies:?}");
    store
}

/// Fingerprint that a consumer stores for a body.
fn fingerprint(body: &str) -> Fingerprint {
    let store = records("message-id", &[body.to_owned()]);
    let key = Key::new(&namespace(), ["m-1"]).unwrap();
    store.record(&key).unwrap().fingerprint.unwrap()
}

/// Whether there is something in the value beside null and empty texts.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => list.iter().any(says_something),
        Value::Object(members) => members.values().any(says_something),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// JSON that can be a key: it says something, and has no two numbers with the same double.
fn id() -> impl Strategy<Value = Value> {
    payload().prop_filter("a key", |value| {
        let text = value.to_string();
        says_something(value) && !text.contains('.') && !text.contains("9007199254740992")
    })
}

/// The value, changed in one place or wrapped.
fn changed(value: &Value, how: u8) -> Value {
    match (value, how % 3) {
        (Value::Array(items), 0) if !items.is_empty() => {
            let mut items = items.clone();
            let last = items.pop().unwrap();
            items.push(changed(&last, how / 3));
            items.into()
        }
        (Value::Object(members), 0) if !members.is_empty() => {
            let mut members = members.clone();
            let value = members.values_mut().next().unwrap();
            *value = changed(value, how / 3);
            members.into()
        }
        (Value::Null, 1) => json!({}),
        (Value::Bool(truth), 1) => json!(!truth),
        (Value::Number(n), 1) => json!(n.to_string()),
        (Value::String(text), 1) => json!(format!("{text}\0")),
        _ => json!([value]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn json_formatting_keeps_fingerprint(
        value in payload(),
        one in prop::collection::vec(any::<u8>(), 1..32),
        other in prop::collection::vec(any::<u8>(), 1..32),
    ) {
        let [one, other] = [&one, &other].map(|choices| {
            JsonFormat { choices: choices.iter().cycle() }.write(&value)
        });
        prop_assert_eq!(fingerprint(&one), fingerprint(&other), "{} and {}", one, other);
    }

    #[test]
    fn other_payload_has_other_fingerprint(a in payload(), b in payload(), how: u8) {
        let print = |value: &Value| fingerprint(&value.to_string());
        prop_assert_eq!(a == b, print(&a) == print(&b));
        let changed = changed(&a, how);
        prop_assert_ne!(print(&a), print(&changed), "{} and {}", a, changed);
    }

    #[test]
    fn json_ids_share_a_key_only_if_equal(a in id(), b in id(), how: u8) {
        let text = json!(a.to_string());
        for other in [&a, &b, &changed(&a, how), &text] {
            let bodies = [&a, other].map(|id| json!({ "id": id }).to_string());
            let keys = records("body:/id", &bodies).len();
            prop_assert_eq!(keys == 1, a == *other, "{} and {}", a, other);
        }
    }
}
