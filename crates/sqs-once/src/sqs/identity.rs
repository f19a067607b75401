//! [`Identity`]: the key and the fingerprint of a message.

use std::sync::Once;

use super::{
    envelope,
    fingerprint_source::FingerprintSource,
    key_source::{KeySource, NoKey},
};
use crate::{
    flawed::flawed,
    handler::{Attribute, AttributeValue, DeliveryMetadata, InvalidMessage},
    protocol::{Fingerprint, Key, Namespace},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: Key,
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// The namespace and settings from which we make the identity of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentitySources<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) key: &'a KeySource,
    pub(crate) fingerprint: &'a FingerprintSource,
    /// Makes this process warn only once about fingerprint pointers that find nothing.
    pub(crate) warned: &'a Once,
}

impl IdentitySources<'_> {
    /// Makes the identity of a message. However many bodies are in progress, this takes at most four times the
    /// size of the largest, plus some MB. A fingerprint of the whole body covers `whole`.
    pub(super) fn identity(
        &self,
        body: &str,
        whole: &str,
        delivery: &DeliveryMetadata,
    ) -> Result<Identity, NoKey> {
        Ok(Identity {
            key: if flawed("each key is a message id") {
                KeySource::MessageId.key(self.namespace, body, delivery)?
            } else {
                self.key.key(self.namespace, body, delivery)?
            },
            fingerprint: self.fingerprint.of(body, whole, self.warned),
        })
    }
}

/// Returns the key of a message whose envelope is removed. The command-line tool calls this when it reads dead-letter queues.
/// `texts` are the message attributes.
///
/// # Errors
///
/// Returns why the message has no key.
pub fn key_of(
    source: &KeySource,
    namespace: &Namespace,
    body: &str,
    texts: impl IntoIterator<Item = (String, String)>,
    mut delivery: DeliveryMetadata,
) -> Result<Key, String> {
    let attribute = |(name, text)| {
        let data_type = "String".into();
        let value = AttributeValue::Text(text);
        (name, Attribute { data_type, value })
    };
    delivery.attributes = texts.into_iter().map(attribute).collect();
    let key = source.key(namespace, body, &delivery);
    key.map_err(|error| match error {
        NoKey::Invalid(InvalidMessage(why)) => why,
        NoKey::Panicked => "the key function panicked".into(),
    })
}

/// Returns whether a message, or the one inside its envelopes, has the same payload as a record. Returns `None` if the
/// record's scheme does not say what was hashed.
#[must_use]
pub fn has_payload(body: &str, recorded: &Fingerprint) -> Option<bool> {
    let (source, _) = recorded.scheme()?.rsplit_once(';')?;
    let source: FingerprintSource = source.parse().ok()?;
    let of = |body: &str| source.of(body, body, &Once::new());
    let made = of(body)?;
    let inside = envelope::open(body).ok().flatten();
    let inside = inside.and_then(|content| of(&content.body));
    (made.scheme() == recorded.scheme())
        .then(|| made == *recorded || inside.as_ref() == Some(recorded))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::sqs) fn facts() -> DeliveryMetadata {
        DeliveryMetadata {
            message_id: "m-1".into(),
            ..DeliveryMetadata::default()
        }
    }

    pub(in crate::sqs) fn identity_by(
        facts: &DeliveryMetadata,
        body: &str,
        key: &KeySource,
        fingerprint: &str,
    ) -> Result<Identity, String> {
        let sources = IdentitySources {
            namespace: &Namespace::new("ns").unwrap(),
            key,
            fingerprint: &fingerprint.parse().unwrap(),
            warned: &Once::new(),
        };
        let identity = sources.identity(body, body, facts);
        identity.map_err(|error| match error {
            NoKey::Invalid(InvalidMessage(why)) => why,
            NoKey::Panicked => "panicked".into(),
        })
    }

    pub(in crate::sqs) fn identity(
        facts: &DeliveryMetadata,
        body: &str,
        key: &str,
    ) -> Result<Identity, String> {
        identity_by(facts, body, &key.parse().unwrap(), "off")
    }

    pub(in crate::sqs) fn key(body: &str, source: &str) -> Result<String, String> {
        identity(&facts(), body, source).map(|identity| identity.key.to_string())
    }

    pub(in crate::sqs) fn fingerprint(body: &str, source: &str) -> Option<Fingerprint> {
        let identity = identity_by(&facts(), body, &KeySource::MessageId, source);
        Some(identity.unwrap().fingerprint?.with_scheme(None))
    }

    #[test]
    fn payload_is_compared_by_the_scheme_of_a_record() {
        let body = r#"{"id":"o-1","amount":1.0}"#;
        for source in ["body", "body:/id,/amount"] {
            let identity = identity_by(&facts(), body, &KeySource::MessageId, source).unwrap();
            let recorded = identity.fingerprint.unwrap();
            let same = r#"{"amount": 1, "id": "o-1"}"#;
            let event = serde_json::json!({
                "id": "e", "source": "shop", "detail-type": "Order", "time": "2026-11-28T08:00:00Z",
                "detail": {"id": "o-1", "amount": 1},
            });
            for same in [same, &event.to_string()] {
                assert_eq!(has_payload(same, &recorded), Some(true), "{source}: {same}");
            }
            let other = r#"{"amount": 2, "id": "o-1"}"#;
            assert_eq!(has_payload(other, &recorded), Some(false), "{source}");
            let newer = recorded.clone().with_scheme(format!("{source};99"));
            for unknown in [newer, recorded.with_scheme("sha256:0123".to_owned())] {
                assert_eq!(has_payload(body, &unknown), None, "{unknown}");
            }
        }
    }

    #[test]
    fn long_body_has_the_key_of_its_values() {
        let body = |order: &str, length: usize| {
            format!(
                r#"{{"id":"{order}","cents":7,"note":"{}"}}"#,
                "x".repeat(length)
            )
        };
        let long = 2 * 1024 * 1024;
        let source = "body:/id";
        let short = key(&body("o-1", 0), source).unwrap();
        assert_eq!(key(&body("o-1", long), source).unwrap(), short);
        assert!(key(&body("", long), source).is_err());
        assert!(key(&body("o-1", long)[1..], source).is_err());
        let part = "body:/cents";
        let fingerprints = [0, long].map(|length| fingerprint(&body("o-1", length), part));
        assert_eq!(fingerprints[0], fingerprints[1]);
        let whole = fingerprint(&body("o-1", long), "body");
        assert_eq!(whole, fingerprint(&body("o-1", long), "body"));
        assert_ne!(whole, fingerprint(&body("o-2", long), "body"));
    }
}
