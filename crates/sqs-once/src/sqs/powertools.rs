//! The hashes of Powertools for AWS Lambda, so that its records and ours have the same ids.
//!
//! Powertools for Python writes the value that its JMESPath expression finds with `json.dumps(value,
//! sort_keys=True)`, and takes the MD5 of that text (`BasePersistenceLayer._generate_hash`).

use md5::{Digest, Md5};
use serde_json::{Number, Value};

use crate::protocol::key::hex;

/// Returns the hash that Powertools for Python makes from a value. An id has it after its prefix and `#`, and
/// the attribute `validation` has it for the payload.
///
/// MD5 is Powertools' choice and default (`hash_function` in its `IdempotencyConfig`).
///
/// ```
/// use serde_json::json;
/// use sqs_once::{protocol::{Key, Namespace}, sqs::powertools};
///
/// let prefix = Namespace::new("payments.app.charge")?;
/// let id = Key::new(&prefix, [powertools::hash(&json!("order-1")).as_str()])?;
/// assert_eq!(id.as_str(), "payments.app.charge#729040816f7330c4cb31f54a56f59a7b");
/// # Ok::<(), sqs_once::protocol::KeyError>(())
/// ```
#[must_use]
pub fn hash(value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, value);
    hex(&Md5::digest(text))
}

/// Returns the value of a JMESPath expression: the only value, or the list that a multi-select makes.
pub(super) fn one_or_list(mut values: Vec<Value>) -> Value {
    match values.len() {
        1 => values.remove(0),
        _ => values.into(),
    }
}

/// Writes `json.dumps(value, sort_keys=True)`.
fn write(text: &mut String, value: &Value) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(truth) => text.push_str(if *truth { "true" } else { "false" }),
        Value::Number(number) => write_number(text, number),
        Value::String(string) => write_string(text, string),
        Value::Array(items) => {
            text.push('[');
            for (n, item) in items.iter().enumerate() {
                text.push_str(if n == 0 { "" } else { ", " });
                write(text, item);
            }
            text.push(']');
        }
        Value::Object(members) => {
            // By code point, which is also the order of UTF-8 bytes.
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (n, (name, value)) in sorted.into_iter().enumerate() {
                text.push_str(if n == 0 { "" } else { ", " });
                write_string(text, name);
                text.push_str(": ");
                write(text, value);
            }
            text.push('}');
        }
    }
}

/// Writes a string with everything but printable ASCII escaped.
fn write_string(text: &mut String, string: &str) {
    text.push('"');
    for unit in string.encode_utf16() {
        match unit {
            0x22 => text.push_str("\\\""),
            0x5c => text.push_str("\\\\"),
            0x08 => text.push_str("\\b"),
            0x09 => text.push_str("\\t"),
            0x0a => text.push_str("\\n"),
            0x0c => text.push_str("\\f"),
            0x0d => text.push_str("\\r"),
            0x20..=0x7e => text.extend(char::from_u32(unit.into())),
            _ => text.push_str(&format!("\\u{unit:04x}")),
        }
    }
    text.push('"');
}

/// Writes whole numbers by their digits, and doubles as Python's `repr` does: the shortest digits that read
/// back as the same double, with an exponent below 1e-4 and from 1e16 on.
fn write_number(text: &mut String, number: &Number) {
    let double = match number.as_f64() {
        Some(double) if number.is_f64() => double,
        _ => return text.push_str(&number.to_string()),
    };
    // The same digits, as `-d.ddde-x`.
    let scientific = format!("{double:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        text.push_str(&format!("{double:?}"));
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        text.push_str(&format!("{digits}e{sign}{:02}", exponent.unsigned_abs()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        // Left: JSON input. Right: output of `json.dumps(json.loads(input), sort_keys=True)` in
        // CPython 3.11.
        for (json, python) in [
            (r##""order-1""##, r##""order-1""##),
            (
                r##"{"b":[1,-2,{}],"a":null,"é":true,"😀":0,"￿":1,"A":false}"##,
                r##"{"A": false, "a": null, "b": [1, -2, {}], "\u00e9": true, "\uffff": 1, "\ud83d\ude00": 0}"##,
            ),
            (
                r##""\"\\\/\b\f\n\r\t\u0000\u001f\u007f~ é€😀""##,
                r##""\"\\/\b\f\n\r\t\u0000\u001f\u007f~ \u00e9\u20ac\ud83d\ude00""##,
            ),
            (r##"[]"##, r##"[]"##),
            (r##"["acme", "o-1"]"##, r##"["acme", "o-1"]"##),
            (
                r##"[0, 18446744073709551615, -9223372036854775808]"##,
                r##"[0, 18446744073709551615, -9223372036854775808]"##,
            ),
            (
                r##"[1.0, -0.0, 99.99, 0.1, 1e2]"##,
                r##"[1.0, -0.0, 99.99, 0.1, 100.0]"##,
            ),
            (
                r##"[0.0001, 0.00001, 1.5e-7, 1e15, 1234567890123456.0, 9999999999999998.0, 1e16, 1.5e300, 5e-324, 333333333.33333329]"##,
                r##"[0.0001, 1e-05, 1.5e-07, 1000000000000000.0, 1234567890123456.0, 9999999999999998.0, 1e+16, 1.5e+300, 5e-324, 333333333.3333333]"##,
            ),
        ] {
            let mut text = String::new();
            write(&mut text, &serde_json::from_str(json).unwrap());
            assert_eq!(text, python);
        }
    }
}
