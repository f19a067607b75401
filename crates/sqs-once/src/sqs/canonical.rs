//! [`Canonical`]: the same text for every spelling of a JSON value.

use std::{fmt::Write as _, ops::Range};

use serde::de::IgnoredAny;

/// Longest JSON that gets a canonical form, in bytes. Sorting a longer text would take too much memory.
pub(super) const MAX_CANONICAL_BYTES: usize = 64 * 1024;
/// How deep lists and objects may be nested in a canonical form. The limit bounds the stack.
const MAX_LEVELS: usize = 127;
/// Longest exponent that we calculate with, in digits.
const MAX_EXPONENT_DIGITS: usize = 9;
/// Longest whole number that we write without an exponent, in digits. Every number below 2^53 fits.
const MAX_PLAIN_DIGITS: usize = 16;

/// A JSON value in canonical form.
///
/// Strings and the order of members follow RFC 8785. Numbers don't, because the RFC treats them as doubles. Here a number keeps
/// its exact decimal value: its digits without zeros at either end, and an exponent.
#[derive(Debug)]
pub(super) struct Canonical {
    pub(super) text: String,
    pub(super) content: JsonContent,
}

/// Facts about a JSON value that decide whether it can be part of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonContent {
    /// True if every number is a whole number below 2^53, written without fraction and exponent. Programs that read numbers
    /// as doubles can tell such numbers apart.
    pub(super) is_exact: bool,
    /// True if the value consists of nothing but null, empty strings, and lists and objects of them.
    pub(super) is_empty: bool,
}

impl Canonical {
    /// Returns the canonical form, or `None` if the text is longer than [`MAX_CANONICAL_BYTES`], is nested deeper than 127
    /// levels, or has half of a surrogate pair.
    pub(super) fn of(json: &str) -> Option<Self> {
        if json.len() > MAX_CANONICAL_BYTES {
            return None;
        }
        // The writer relies on this being valid JSON.
        serde_json::from_str::<IgnoredAny>(json).ok()?;
        let mut writer = Writer {
            rest: json,
            text: String::with_capacity(json.len()),
        };
        let content = writer.value(MAX_LEVELS)?;
        Some(Self {
            text: writer.text,
            content,
        })
    }
}

impl JsonContent {
    const NOTHING: Self = Self {
        is_exact: true,
        is_empty: true,
    };
    const SOMETHING: Self = Self {
        is_exact: true,
        is_empty: false,
    };

    fn and(self, other: Self) -> Self {
        Self {
            is_exact: self.is_exact && other.is_exact,
            is_empty: self.is_empty && other.is_empty,
        }
    }
}

/// Reads JSON from its start, and appends it to the text in canonical form. We don't let serde_json read numbers,
/// because it turns them into doubles, unless some crate of the program enables its feature `arbitrary_precision`.
struct Writer<'j> {
    rest: &'j str,
    text: String,
}

impl<'j> Writer<'j> {
    /// Writes the next value. Returns `None` if it is nested deeper than `levels`, or has half of a surrogate pair.
    fn value(&mut self, levels: usize) -> Option<JsonContent> {
        match self.peek()? {
            b'{' => self.object(levels.checked_sub(1)?),
            b'[' => self.list(levels.checked_sub(1)?),
            b'"' => {
                let text = self.string()?;
                self.push_string(&text)?;
                Some(if text.is_empty() {
                    JsonContent::NOTHING
                } else {
                    JsonContent::SOMETHING
                })
            }
            b'-' | b'0'..=b'9' => self.number(),
            _ => {
                let name = self.take_while(|c| c.is_ascii_lowercase());
                self.text.push_str(name);
                Some(if name == "null" {
                    JsonContent::NOTHING
                } else {
                    JsonContent::SOMETHING
                })
            }
        }
    }

    fn number(&mut self) -> Option<JsonContent> {
        let number = self.take_while(|c| c.is_ascii_digit() || "+-.eE".contains(c));
        push_decimal(&mut self.text, number)?;
        let whole = number.parse::<i64>().ok();
        let is_exact = whole.is_some_and(|whole| whole.unsigned_abs() < 1 << 53);
        Some(JsonContent {
            is_exact: is_exact && number != "-0",
            is_empty: false,
        })
    }

    fn list(&mut self, levels: usize) -> Option<JsonContent> {
        self.skip('[');
        let mut all = JsonContent::NOTHING;
        self.text.push('[');
        while !self.is_end(']') {
            all = all.and(self.value(levels)?);
            self.text.push(',');
        }
        close(&mut self.text, ']');
        Some(all)
    }

    fn object(&mut self, levels: usize) -> Option<JsonContent> {
        self.skip('{');
        let start = self.text.len();
        let mut members: Vec<(String, Range<usize>, JsonContent)> = Vec::new();
        while !self.is_end('}') {
            let name = self.string()?;
            self.skip(':');
            let from = self.text.len() - start;
            let content = self.value(levels)?;
            members.push((name, from..self.text.len() - start, content));
        }
        // RFC 8785, section 3.2.3. The sort is stable.
        members.sort_by(|(one, ..), (other, ..)| one.encode_utf16().cmp(other.encode_utf16()));
        let values = self.text.split_off(start);
        let mut all = JsonContent::NOTHING;
        self.text.push('{');
        // Of members with the same name, the last wins, as it does when serde_json builds a tree.
        for same_name in members.chunk_by(|(one, ..), (other, ..)| one == other) {
            if let [.., (name, value, content)] = same_name {
                all = all.and(*content);
                self.push_string(name)?;
                self.text.push(':');
                self.text.push_str(&values[value.clone()]);
                self.text.push(',');
            }
        }
        close(&mut self.text, '}');
        Some(all)
    }

    /// Reads the next value, which must be a string. Returns `None` if it has half of a surrogate pair.
    fn string(&mut self) -> Option<String> {
        let mut strings = serde_json::Deserializer::from_str(self.rest).into_iter();
        let text = strings.next()?.ok()?;
        self.rest = &self.rest[strings.byte_offset()..];
        Some(text)
    }

    /// serde_json escapes text just as RFC 8785, section 3.2.2.2, demands.
    fn push_string(&mut self, text: &str) -> Option<()> {
        self.text.push_str(&serde_json::to_string(text).ok()?);
        Some(())
    }

    /// Skips white space, and returns the next byte.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.bytes().next()
    }

    /// Skips white space, and then `next` if it follows. Returns whether it did.
    fn skip(&mut self, next: char) -> bool {
        self.peek();
        let rest = self.rest.strip_prefix(next);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Skips the comma before an element or member, or the closing bracket. Returns whether it was the bracket.
    fn is_end(&mut self, end: char) -> bool {
        let is_end = self.skip(end);
        if !is_end {
            self.skip(',');
            self.peek();
        }
        is_end
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'j str {
        let end = self.rest.find(|c| !is_part(c));
        let (taken, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }
}

/// Appends a JSON number. Two numbers get the same text if and only if their decimal values are equal.
///
/// The number is never written out, so `1e1000000` stays short. A number whose exponent has more than nine digits stays as it is.
fn push_decimal(text: &mut String, number: &str) -> Option<()> {
    let (sign, magnitude) = match number.strip_prefix('-') {
        Some(magnitude) => ("-", magnitude),
        None => ("", number),
    };
    let (mantissa, exponent) = magnitude.split_once(['e', 'E']).unwrap_or((magnitude, "0"));
    if exponent.trim_start_matches(['+', '-']).len() > MAX_EXPONENT_DIGITS {
        text.push_str(number);
        return Some(());
    }
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    let without_start = all.trim_start_matches('0');
    let digits = without_start.trim_end_matches('0');
    let length = |text: &str| i64::try_from(text.len()).ok();
    let exponent = exponent.parse::<i64>().ok()? - length(fraction)? + length(without_start)?
        - length(digits)?;
    let zeros = usize::try_from(exponent).ok();
    match zeros.filter(|zeros| digits.len() + zeros <= MAX_PLAIN_DIGITS) {
        _ if digits.is_empty() => text.push('0'),
        Some(zeros) => text.extend([sign, digits, &"0".repeat(zeros)]),
        None => write!(text, "{sign}{digits}e{exponent}").ok()?,
    }
    Some(())
}

/// Ends a list or object, in place of the comma after its last value.
fn close(text: &mut String, end: char) {
    if text.ends_with(',') {
        text.pop();
    }
    text.push(end);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn text(json: &str) -> Option<String> {
        Canonical::of(json).map(|canonical| canonical.text)
    }

    #[test]
    fn member_named_like_a_number_of_serde_is_a_member() {
        for json in [
            r#"{"$serde_json::private::Number":"7"}"#,
            r#"{"$serde_json::private::Number":"7","a":1}"#,
        ] {
            assert_eq!(text(json).as_deref(), Some(json));
        }
    }

    #[test]
    fn texts_and_members_are_as_in_rfc_8785() {
        // Sections 3.2.2 and 3.2.3.
        let example = r#"{
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        let canonical = r#"{"literals":[null,true,false],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
        assert_eq!(text(example).as_deref(), Some(canonical));
        let names =
            r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
        let sorted = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}";
        assert_eq!(text(names).as_deref(), Some(sorted));
        let odd = r#" { "b" : [ ] , "a" : { } , "b" : [ -0 , [ { } ] ] , "," : "]," } "#;
        let canonical = r#"{",":"],","a":{},"b":[0,[{}]]}"#;
        assert_eq!(text(odd).as_deref(), Some(canonical));
    }

    #[test]
    fn number_has_its_exact_decimal_value() {
        for (spellings, canonical) in [
            (&["0", "-0", "0.00", "0e5", "-0E-7"][..], "0"),
            (&["1", "1.0", "1e0", "10e-1", "0.001E+3"], "1"),
            (&["-1200", "-12e2", "-1.200e+03"], "-1200"),
            (&["0.1", "1e-1", "0.10"], "1e-1"),
            (
                &["0.1000000000000000055511151231257827021181583404541015625"],
                "1000000000000000055511151231257827021181583404541015625e-55",
            ),
            (
                &["9007199254740992", "9007199254740992.0"],
                "9007199254740992",
            ),
            (&["9007199254740993"], "9007199254740993"),
            (&["1e15", "1000000000000000"], "1000000000000000"),
            (&["1e16", "10000000000000000"], "1e16"),
            (
                &["12345678901234567890", "1.2345678901234567890e19"],
                "1234567890123456789e1",
            ),
            (&["1e1000000", "10e999999", "0.1e1000001"], "1e1000000"),
            (&["1e-1000000", "0.01E-999998"], "1e-1000000"),
            (&["1e999999999"], "1e999999999"),
            (&["1E+0999999999"], "1E+0999999999"),
            (&["0e99999999999"], "0e99999999999"),
            (&["-1.50E-99999999999"], "-1.50E-99999999999"),
        ] {
            for spelling in spellings {
                assert_eq!(text(spelling).as_deref(), Some(canonical), "{spelling}");
                let list = text(&format!("[{spelling}, {{\"a\": {spelling}}}]"));
                assert_eq!(list, Some(format!(r#"[{canonical},{{"a":{canonical}}}]"#)));
            }
        }
        let digits = "1234567890".repeat(6 * 1024);
        assert_eq!(
            text(&digits),
            Some(format!("{}e1", &digits[..digits.len() - 1]))
        );
        assert_eq!(
            text(&format!("0.{digits}")),
            Some(format!("{}e-61439", &digits[..digits.len() - 1]))
        );
        let zeros = format!("1{}", "0".repeat(60 * 1024));
        assert_eq!(text(&zeros).as_deref(), Some("1e61440"));
    }

    #[test]
    fn number_that_a_double_may_not_have_is_not_exact() {
        for (number, is_exact) in [
            ("9007199254740991", true),
            ("-9007199254740991", true),
            ("9007199254740992", false),
            ("1.0", false),
            ("1e2", false),
            ("-0", false),
            ("0", true),
        ] {
            let canonical = Canonical::of(&format!("[[{number}]]")).unwrap();
            assert_eq!(canonical.content.is_exact, is_exact, "{number}");
        }
    }

    #[test]
    fn value_without_canonical_form_has_none() {
        let nested =
            |levels, inner: &str| ["[".repeat(levels), inner.into(), "]".repeat(levels)].concat();
        for (json, has_form) in [
            (format!("\"{}\"", "x".repeat(MAX_CANONICAL_BYTES - 2)), true),
            (
                format!("\"{}\"", "x".repeat(MAX_CANONICAL_BYTES - 1)),
                false,
            ),
            (nested(127, ""), true),
            (nested(127, "1.5e3"), true),
            (nested(128, ""), false),
            (nested(128, "1.5e3"), false),
            (nested(10_000, "1"), false),
            (r#""\ud83d""#.into(), false),
            (r#"{"\ud83d":1}"#.into(), false),
            ("[1e999]".into(), true),
            ("1 2".into(), false),
            ("01".into(), false),
            ("plain text".into(), false),
            (String::new(), false),
        ] {
            assert_eq!(text(&json).is_some(), has_form, "{json:.40}");
        }
        let objects = [r#"{"a":"#.repeat(127), "1".into(), "}".repeat(127)].concat();
        assert_eq!(text(&objects), Some(objects));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,4}".prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((".{0,3}", inner), 0..6)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    /// Returns a JSON number with this value, its decimal point moved by `shift` digits.
    fn spelled(mantissa: i64, exponent: i64, shift: usize, zeros: usize) -> String {
        let sign = if mantissa < 0 { "-" } else { "" };
        let digits = format!(
            "{:0>1$}{2}",
            mantissa.unsigned_abs(),
            shift + 1,
            "0".repeat(zeros)
        );
        let (whole, fraction) = digits.split_at(digits.len() - shift);
        let whole = whole.trim_start_matches('0');
        let whole = if whole.is_empty() { "0" } else { whole };
        let point = if fraction.is_empty() { "" } else { "." };
        let exponent = exponent + i64::try_from(shift).unwrap() - i64::try_from(zeros).unwrap();
        format!("{sign}{whole}{point}{fraction}e{exponent:+}")
    }

    proptest! {
        #[test]
        fn value_has_one_canonical_form(value in value()) {
            let canonical = text(&value.to_string()).unwrap();
            prop_assert_eq!(&text(&serde_json::to_string_pretty(&value).unwrap()), &Some(canonical.clone()));
            prop_assert_eq!(&text(&canonical), &Some(canonical.clone()));
            let twice = format!(r#"{{"x":0.5,"x":{value}}}"#);
            prop_assert_eq!(text(&twice), Some(format!(r#"{{"x":{canonical}}}"#)));
        }

        #[test]
        fn numbers_are_equal_by_value_alone(
            mantissa in prop_oneof![any::<i64>(), -100..100_i64], exponent in -400..400_i64,
            (shift, zeros) in (0..30_usize, 0..30_usize), other in -100..100_i64,
        ) {
            let one = text(&spelled(mantissa, exponent, 0, 0)).unwrap();
            prop_assert_eq!(&text(&spelled(mantissa, exponent, shift, zeros)), &Some(one.clone()));
            let (other_mantissa, other_exponent) = (mantissa.wrapping_add(other), exponent);
            let differs = other != 0;
            prop_assert_eq!(text(&spelled(other_mantissa, other_exponent, shift, zeros)) != Some(one.clone()), differs);
            let moved = text(&spelled(mantissa, exponent + 1, shift, zeros));
            prop_assert_eq!(moved == Some(one), mantissa == 0);
        }
    }
}
