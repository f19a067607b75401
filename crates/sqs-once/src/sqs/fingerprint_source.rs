//! [`FingerprintSource`]: which part of a message must not change under one key.

use std::str::FromStr;

use serde_json::Value;

use super::{
    document::Document,
    pointer::{Pointers, canonical},
};
use crate::{InvalidValue, protocol::Fingerprint};

/// The part of a message that must not change under one key.
///
/// | setting | compared |
/// | --- | --- |
/// | `body` | the whole body. JSON is compared in canonical form (RFC 8785): the order of members and white space do not matter, and numbers are doubles (beyond 2^53 some whole numbers are equal). Any other body, and JSON of more than 1 MiB, is compared byte by byte |
/// | `body:/amount,/currency` | the values at these pointers, which work as in [`KeySource`](super::KeySource) |
/// | `off` | nothing |
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
    /// Version of the canonical form. Change it with everything that changes the hash of a payload: the form
    /// of JSON, and the length above which we hash bytes.
    const FORM: u8 = 1;
    /// Longest scheme that names its pointers. A longer scheme contains their hash.
    const MAX_SCHEME_BYTES: usize = 64;

    pub(super) fn of(&self, body: &str, json: Option<Document<'_>>) -> Option<Fingerprint> {
        let hash = self.hash(body, json)?;
        Some(hash.with_scheme(self.scheme()))
    }

    /// Returns what is hashed and how, as records store it.
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

    fn hash(&self, body: &str, json: Option<Document<'_>>) -> Option<Fingerprint> {
        let compared = match (self, json) {
            (Self::Off, _) => return None,
            (_, None) | (Self::Body, Some(Document::Long(_))) => {
                return Some(Fingerprint::of(body.as_bytes()));
            }
            (Self::Body, Some(Document::Tree(tree))) => tree,
            // Each value is in a separate list, so a missing value differs from null.
            (Self::Parts(pointers), Some(json)) => pointers
                .iter()
                .map(|pointer| {
                    json.find(pointer)
                        .map_or_else(Vec::new, |v| vec![v.into_owned()])
                })
                .map(Value::from)
                .collect(),
        };
        Some(Fingerprint::of(canonical(&compared).as_bytes()))
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
            document::MAX_TREE_BYTES,
            identity::tests::{facts, fingerprint, identity_by},
            key_source::KeySource,
        },
        *,
    };

    #[test]
    fn scheme_names_what_was_hashed() {
        let scheme = |source: &str| source.parse::<FingerprintSource>().unwrap().scheme();
        assert_eq!(scheme("body").as_deref(), Some("body;1"));
        let parts = scheme("body:/amount,/currency");
        assert_eq!(parts.as_deref(), Some("body:/amount,/currency;1"));
        let long = scheme(&format!("body:/{}", "x".repeat(60))).unwrap();
        assert!(long.starts_with("sha256:") && long.len() == 39, "{long}");
        assert_eq!(scheme("off"), None);
        // Also for a body that is not JSON, so that it differs from one that is.
        let print = identity_by(&facts(), "text", &KeySource::MessageId, "body");
        let print = print.unwrap().fingerprint.unwrap();
        assert_eq!(print.scheme(), Some("body;1"));
    }

    #[test]
    fn fingerprint_covers_canonical_body() {
        // The example of RFC 8785, section 3.2.2.
        let example = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        let canonical = r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
        assert_eq!(
            fingerprint(example, "body"),
            Some(Fingerprint::of(canonical.as_bytes()))
        );
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
    fn fingerprint_of_a_long_body_without_a_tree_covers_its_bytes() {
        let blank = " ".repeat(MAX_TREE_BYTES);
        for source in ["body", "body:/0"] {
            let of = |cents: u32| fingerprint(&format!("{blank}[1e999, {cents}]"), source);
            assert_ne!(of(1), of(2), "{source}");
        }
    }

    #[test]
    fn invalid_source_is_refused() {
        for text in ["", "on", "body:", "body:x"] {
            assert!(text.parse::<FingerprintSource>().is_err(), "{text}");
        }
    }
}
