//! [`InvalidMessage`]: why a message can never be processed.

use serde::de::IgnoredAny;

use super::without_bom;

/// Longest name of a type that an error quotes.
const MAX_NAME: usize = 64;
/// Shortest text that looks like base64. A shorter one may be a word.
const MIN_BASE64: usize = 16;
/// Advice for a producer or handler whose body is not plain JSON.
const CURE: &str = "send the JSON as it is, or decode the body in your own `FromMessage`, with a key in code or from an \
     attribute (examples/own_body.rs)";

/// Why a message can never be processed. The text contains none of the payload. `?` converts a string to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMessage(pub(crate) String);

impl From<&str> for InvalidMessage {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl From<String> for InvalidMessage {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl InvalidMessage {
    /// Creates the error for a message without a body.
    #[must_use]
    pub fn no_body() -> Self {
        Self("the message has no body".into())
    }

    /// Creates the error for a body that is not the JSON that the handler takes.
    ///
    /// serde's own error texts quote the payload ("invalid type: string \"4242…\""), except for a missing field, where they
    /// quote the handler's type. A path would also quote payload, because the keys of a map are payload. The only value
    /// that we quote is the name of an unknown variant, if it looks like a name.
    pub fn json(error: &serde_json::Error) -> Self {
        Self(format!(
            "the body can't be read: {}",
            Self::why_not_read(error)
        ))
    }

    /// Creates the same error, but names two common mistakes of producers: a body encoded twice, or in base64.
    pub(crate) fn body(body: &str, error: &serde_json::Error) -> Self {
        Self::encoded_twice(body).unwrap_or_else(|| {
            if !error.is_data() && looks_like_base64(body) {
                Self(format!("the body isn't JSON and looks like base64: {CURE}"))
            } else {
                Self::json(error)
            }
        })
    }

    /// Returns the error for a body that is a JSON string with JSON inside, or `None` for other bodies.
    pub(crate) fn encoded_twice(body: &str) -> Option<Self> {
        let json = without_bom(body);
        if !json.trim_start().starts_with('"') {
            return None;
        }
        let inside: String = serde_json::from_str(json).ok()?;
        let inside = without_bom(&inside);
        serde_json::from_str::<IgnoredAny>(inside).ok()?;
        let holds_values = inside.trim_start().starts_with(['{', '[', '"']);
        holds_values.then(|| {
            Self(format!(
                "the body is a JSON string that contains JSON (it was encoded twice): {CURE}"
            ))
        })
    }

    /// Returns why JSON can't be read, without quoting it.
    pub(super) fn why_not_read(error: &serde_json::Error) -> String {
        let text = error.to_string();
        let what = match error.classify() {
            serde_json::error::Category::Data => {
                let without_place = text
                    .rsplit_once(" at line ")
                    .map_or(&*text, |(before, _)| before);
                match without_place {
                    missing if missing.starts_with("missing field `") => missing.to_owned(),
                    other => unknown_variant(other)
                        .unwrap_or_else(|| "a value is not of the expected type".to_owned()),
                }
            }
            _ => "not valid JSON".to_owned(),
        };
        // Inside a tagged enum, serde doesn't know the line and the column.
        let place = match (error.line(), error.column()) {
            (0, _) => String::new(),
            (line, column) => format!(", at line {line}, column {column}"),
        };
        format!("{what}{place}")
    }
}

/// Returns whether a text has only base64 characters, of either alphabet, with or without line breaks.
fn looks_like_base64(text: &str) -> bool {
    let text = text.trim();
    let letters = text.trim_end_matches('=');
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "+/-_\r\n".contains(c);
    letters.len() >= MIN_BASE64 && text.len() - letters.len() <= 2 && letters.chars().all(is_letter)
}

/// Returns serde's text about an unknown variant, or `None` for other texts. Leaves out the variant's name if it may be
/// payload. The names after "expected" are those of the handler's type.
fn unknown_variant(text: &str) -> Option<String> {
    let (name, expected) = text
        .strip_prefix("unknown variant `")?
        .rsplit_once("`, expected ")?;
    let listed = expected.chars().all(|c| is_of_name(c) || " `,".contains(c));
    let name = if is_name(name) {
        format!(" `{name}`")
    } else {
        String::new()
    };
    listed.then(|| format!("unknown variant{name}, expected {expected}"))
}

/// Returns whether a value looks like the name of a message type: it begins with a letter and has at most
/// four digits, for a version or a year. Card, phone and account numbers look different.
fn is_name(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    text.len() <= MAX_NAME
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && digits <= 4
        && text.chars().all(is_of_name)
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.:/-".contains(c)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(tag = "type", rename_all = "snake_case")]
    enum Event {
        Placed {
            #[serde(rename = "channel")]
            _channel: Option<Channel>,
        },
        Cancelled,
    }

    #[derive(Debug, Deserialize)]
    enum Channel {
        Web,
    }

    fn rejection(body: &str) -> String {
        InvalidMessage::json(&serde_json::from_str::<Event>(body).unwrap_err()).0
    }

    #[test]
    fn unknown_type_is_named() {
        assert_eq!(
            rejection(r#"{"type":"order.shipped/v2","id":"SECRET"}"#),
            "the body can't be read: unknown variant `order.shipped/v2`, expected `placed` or \
             `cancelled`, at line 1, column 26"
        );
        assert_eq!(
            rejection(r#"{"type":"placed","channel":"Phone"}"#),
            "the body can't be read: unknown variant `Phone`, expected `Web`"
        );
        let missing = rejection(r#"{"id":"SECRET"}"#);
        assert!(missing.contains("missing field `type`"), "{missing}");
    }

    #[test]
    fn unknown_type_that_is_no_name_is_not_quoted() {
        let long = "x".repeat(MAX_NAME + 1);
        for name in [
            "4242-SECRET",
            "card-4242424242424242",
            "SECRET@example.com",
            "SECRET word",
            "SECRET`, expected `SECRET",
            "SECRET`, expected `placed",
            "SECRÉT",
            "",
            &long,
        ] {
            let refusal = rejection(&format!(r#"{{"type":"{name}"}}"#));
            let expected = "unknown variant, expected `placed` or `cancelled`, at line 1";
            assert!(refusal.contains(expected), "{refusal}");
            assert!(!refusal.contains("SECR"), "{refusal}");
            assert!(!refusal.contains("4242") && !refusal.contains("xx"));
        }
    }

    #[test]
    fn other_custom_text_is_not_quoted() {
        use serde::de::Error as _;
        for text in [
            "unknown variant `SECRET`",
            "unknown variant `a`, expected \"SECRET\"",
            "SECRET",
            "missing SECRET",
        ] {
            let InvalidMessage(why) = InvalidMessage::json(&serde_json::Error::custom(text));
            assert!(why.contains("not of the expected type"), "{why}");
        }
    }
}
