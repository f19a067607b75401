//! [`FingerprintSource`]: which part of a message must not change under one key.

use std::{str::FromStr, sync::Once};

use sha2::{Digest as _, Sha256};

use super::{
    canonical::Canonical,
    document::{Document, one_at_a_time},
    pointer::Pointers,
};
use crate::{InvalidValue, handler::without_bom, protocol::Fingerprint};

/// The part of a message that must not change under one key.
///
/// | setting | compared |
/// | --- | --- |
/// | `body` | the whole body |
/// | `body:/amount,/currency` | the values at these pointers, which work as in [`KeySource`](super::KeySource); if none of them finds a value, the whole body |
/// | `off` | nothing |
///
/// JSON of at most 64 KiB is compared by its values. The order of members and white space don't matter, and numbers are equal if
/// their exact decimal values are (`1`, `1.0` and `1e0`). Only numbers with an exponent of more than nine digits are compared as
/// text. Everything else is compared byte by byte: longer JSON, other text, and JSON with more than 127 levels or with half of a
/// surrogate pair. A byte-order mark before the body is ignored.
///
/// If no pointer finds a value in a message, the process logs one warning with the pointers, because one may be misspelt.
///
/// ```
/// use sqs_once::sqs::FingerprintSource;
///
/// assert_eq!("body".parse(), Ok(FingerprintSource::Body));
/// assert_eq!("off".parse(), Ok(FingerprintSource::Off));
/// assert!("body:amount".parse::<FingerprintSource>().is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FingerprintSource {
    /// The whole body.
    #[default]
    Body,
    /// The values at these pointers into the body.
    Parts(Pointers),
    /// Nothing is compared.
    Off,
}

impl FingerprintSource {
    /// Version of the canonical form. Increase the version with every change that gives a payload another hash: to the form
    /// of JSON, or to the length above which we hash bytes.
    const FORM: u8 = 3;
    /// Longest scheme that names its pointers, in bytes. A longer scheme contains their hash.
    const MAX_SCHEME_BYTES: usize = 64;

    /// Returns the fingerprint of a message. If it covers the whole body, we hash `whole`. The process warns
    /// only once about pointers that find nothing: `warned` remembers it.
    pub(super) fn of(&self, body: &str, whole: &str, warned: &Once) -> Option<Fingerprint> {
        let hash = Fingerprint::of_hash(self.hash(body, without_bom(whole), warned)?);
        Some(hash.with_scheme(self.scheme()))
    }

    /// Returns what is hashed and how, in the form that records store.
    ///
    /// The scheme depends only on the setting, not on the body. So under one setting, a body that is JSON
    /// differs from one that is not.
    fn scheme(&self) -> Option<String> {
        let form = Self::FORM;
        match self {
            Self::Off => None,
            Self::Body => Some(format!("body;{form}")),
            Self::Parts(pointers) => {
                let scheme = format!("body:{pointers};{form}");
                Some(if scheme.len() <= Self::MAX_SCHEME_BYTES {
                    scheme
                } else {
                    format!(
                        "sha256:{}",
                        &Fingerprint::of(scheme.as_bytes()).as_str()[..32]
                    )
                })
            }
        }
    }

    fn hash(&self, body: &str, whole: &str, warned: &Once) -> Option<Sha256> {
        let mut hash = Sha256::new();
        let _turn = one_at_a_time();
        match self {
            Self::Off => return None,
            Self::Body => add_to(&mut hash, whole),
            Self::Parts(pointers) => {
                let mut has_found = false;
                if let Ok(json) = Document::parse(body) {
                    // Each value has its own list, so that a missing value differs from null.
                    let mut before = "[[";
                    for pointer in pointers.iter() {
                        hash.update(before);
                        if let Some(value) = json.find(pointer) {
                            has_found = true;
                            add_to(&mut hash, &value);
                        }
                        before = "],[";
                    }
                    hash.update("]]");
                }
                if !has_found {
                    warned.call_once(|| {
                        tracing::warn!(
                            %pointers,
                            "no pointer of IDEMPOTENCY_FINGERPRINT finds a value in this message, so its whole body is compared: check their names"
                        );
                    });
                    // No list of parts begins like this.
                    hash = Sha256::new_with_prefix("body:");
                    add_to(&mut hash, whole);
                }
            }
        }
        Some(hash)
    }
}

/// Hashes the canonical form, or the bytes if there is none.
fn add_to(hash: &mut Sha256, text: &str) {
    match Canonical::of(text) {
        Some(canonical) => hash.update(canonical.text),
        None => hash.update(text),
    }
}

impl FromStr for FingerprintSource {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let fault = InvalidValue::new(
            "must be `body`, `off`, or `body:` and JSON pointers such as `body:/amount,/currency`",
        );
        match text {
            "body" => Ok(Self::Body),
            "off" => Ok(Self::Off),
            _ => {
                let pointers = text.strip_prefix("body:").and_then(Pointers::new);
                pointers.map(Self::Parts).ok_or(fault)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            canonical::MAX_CANONICAL_BYTES,
            identity::tests::{facts, fingerprint, identity_by},
            key_source::KeySource,
        },
        *,
    };

    #[test]
    fn scheme_names_what_was_hashed() {
        let scheme = |source: &str| source.parse::<FingerprintSource>().unwrap().scheme();
        assert_eq!(scheme("body").as_deref(), Some("body;3"));
        for spelling in ["body:/amount,/currency", "body: /amount , /currency "] {
            let parts = scheme(spelling);
            assert_eq!(parts.as_deref(), Some("body:/amount,/currency;3"));
        }
        let long = scheme(&format!("body:/{}", "x".repeat(60))).unwrap();
        assert!(long.starts_with("sha256:") && long.len() == 39, "{long}");
        assert_eq!(scheme("off"), None);
        // A body that is not JSON also has the scheme, so that it differs from a body that is.
        let print = identity_by(&facts(), "text", &KeySource::MessageId, "body");
        let print = print.unwrap().fingerprint.unwrap();
        assert_eq!(print.scheme(), Some("body;3"));
    }

    #[test]
    fn fingerprint_covers_canonical_body() {
        let of = |hashed: &str| Some(Fingerprint::of(hashed.as_bytes()));
        let body = "\u{feff}{\"b\": [1.0, \"\\u20ac\"], \"a\": {}}";
        assert_eq!(fingerprint(body, "body"), of(r#"{"a":{},"b":[1,"€"]}"#));
        let parts = fingerprint(body, "body:/b,/c,/a");
        assert_eq!(parts, of(r#"[[[1,"€"]],[],[{}]]"#));
    }

    #[test]
    fn fingerprint_without_canonical_form_covers_the_bytes() {
        let deep = ["[".repeat(1_000), "]".repeat(1_000)].concat();
        let long = format!("[{} 1.0]", " ".repeat(MAX_CANONICAL_BYTES));
        for value in [&*deep, &long, r#""\ud83d""#, r#"{ "\ud83d" : 1}"#] {
            let of = |hashed: &str| Some(Fingerprint::of(hashed.as_bytes()));
            let body = format!(r#"{{ "a" : {value} }}"#);
            assert_eq!(fingerprint(&body, "body"), of(&body));
            assert_eq!(fingerprint(&format!("\u{feff}{body}"), "body"), of(&body));
            let part = of(&format!("[[{value}]]"));
            assert_eq!(fingerprint(&body, "body:/a"), part);
        }
        for text in ["plain text", "[1][2]", "{} x", ""] {
            for (source, prefix) in [("body", ""), ("body:/a,/b", "body:")] {
                let expected = Fingerprint::of(format!("{prefix}{text}").as_bytes());
                assert_eq!(fingerprint(text, source), Some(expected));
            }
        }
    }

    #[test]
    fn fingerprint_ignores_json_formatting() {
        let one = fingerprint(r#"{"amount": 1.0, "currency": "EUR"}"#, "body");
        assert_eq!(one, fingerprint(r#"{"currency":"EUR","amount":1}"#, "body"));
        assert_ne!(one, fingerprint(r#"{"currency":"EUR","amount":2}"#, "body"));
        assert_ne!(
            one,
            fingerprint(r#"{"currency":"EUR","amount":"1"}"#, "body")
        );
        assert_ne!(
            fingerprint("plain text", "body"),
            fingerprint("plain  text", "body")
        );
        assert_eq!(fingerprint("{}", "off"), None);
    }

    #[test]
    fn fingerprint_covers_chosen_parts_alone() {
        let of = |body| fingerprint(body, "body:/amount,/currency");
        let one = of(r#"{"amount": 1, "currency": "EUR", "sentAt": 1}"#);
        assert_eq!(one, of(r#"{"sentAt": 2, "currency": "EUR", "amount": 1}"#));
        assert_ne!(one, of(r#"{"amount": 2, "currency": "EUR"}"#));
        assert_ne!(
            of(r#"{"amount": 1}"#),
            of(r#"{"amount": 1, "currency": null}"#)
        );
        assert_ne!(of(r#"{"amount": 1}"#), of(r#"{"currency": 1}"#));
    }

    #[test]
    fn pointers_that_find_nothing_cover_the_whole_body() {
        let of = |body: &str| fingerprint(body, "body:/price,/money").unwrap();
        let one = of(r#"{"amount": 1.0, "currency": "EUR"}"#);
        assert_eq!(one, of(r#"{"currency":"EUR","amount":1}"#));
        assert_ne!(one, of(r#"{"currency":"EUR","amount":2}"#));
        // A value that a pointer finds is a part, even if it's null.
        assert_eq!(of(r#"{"price":null,"x":1}"#), of(r#"{"price":null,"x":2}"#));
        // A body that looks like the parts of another.
        for (value, body) in [("1", "[[1],[]]"), (r#""],[""#, r#"[["],["],[]]"#)] {
            let parts = of(&format!(r#"{{"price":{value}}}"#));
            assert_ne!(parts, of(body));
            assert_ne!(parts, of(&format!("body:{body}")));
        }
        let off = identity_by(&facts(), "{}", &KeySource::MessageId, "body:/a").unwrap();
        assert_eq!(off.fingerprint.unwrap().scheme(), Some("body:/a;3"));
    }

    #[test]
    fn invalid_source_is_refused() {
        for text in ["", "on", "body:", "body:x"] {
            assert!(text.parse::<FingerprintSource>().is_err(), "{text}");
        }
    }
}
