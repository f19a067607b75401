//! [`Key`] identifies an operation. [`Fingerprint`] detects a different payload under the same key.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::flawed::flawed;

/// Maximum size of a DynamoDB partition key, in bytes (*Amazon DynamoDB Developer Guide*,
/// "Constraints in Amazon DynamoDB").
pub const MAX_KEY_BYTES: usize = 2048;

/// Maximum size of a [`Namespace`], in bytes.
pub(crate) const MAX_NAMESPACE_BYTES: usize = 256;

/// The first part of every key. A namespace separates consumers that share a table.
///
/// ```
/// use sqs_once::protocol::Namespace;
///
/// assert!(Namespace::new("payments").is_ok());
/// assert!(Namespace::new("").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace(String);

impl Namespace {
    /// Creates a namespace from 1 to 256 bytes of any text.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::NamespaceLength`] if `name` is empty or longer.
    pub fn new(name: impl Into<String>) -> Result<Self, KeyError> {
        let name = name.into();
        if (1..=MAX_NAMESPACE_BYTES).contains(&name.len()) {
            Ok(Self(name))
        } else {
            Err(KeyError::NamespaceLength { bytes: name.len() })
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An idempotency key: a namespace and one or more parts, written as one string.
///
/// The string is unambiguous: equal strings have equal namespaces and equal parts. `#` joins the parts, and
/// `\` escapes `#` and `\` inside a part. Escaped text never contains these two markers:
///
/// - `\json:` precedes the canonical form of a JSON value that is not a string. In a key, the number 7 is
///   `\json:7` and the string `"7"` is `7`.
/// - `\sha256:` precedes the SHA-256 of all parts, when the key would otherwise exceed [`MAX_KEY_BYTES`].
///
/// ```
/// use sqs_once::protocol::{Key, Namespace};
///
/// let payments = Namespace::new("payments")?;
/// assert_eq!(Key::new(&payments, ["order-1"])?.as_str(), "payments#order-1");
/// assert_ne!(Key::new(&payments, ["a#b", "c"])?, Key::new(&payments, ["a", "b#c"])?);
/// assert!(Key::new(&payments, [""]).is_err());
/// # Ok::<(), sqs_once::protocol::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// Joins `namespace` and `parts`.
    ///
    /// # Errors
    ///
    /// - [`KeyError::NoParts`] if `parts` is empty.
    /// - [`KeyError::EmptyPart`] if a part is empty. Otherwise two messages without a key would be the same
    ///   operation.
    pub fn new<'a>(
        namespace: &Namespace,
        parts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, KeyError> {
        Self::of_parts(namespace, parts.into_iter().map(KeyPart::from))
    }

    /// Joins `namespace` and parts that need not be text.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new).
    pub fn of_parts<'a>(
        namespace: &Namespace,
        parts: impl IntoIterator<Item = KeyPart<'a>>,
    ) -> Result<Self, KeyError> {
        let mut key = KeyBuilder::new(namespace);
        for part in parts {
            key.push(&part)?;
        }
        key.finish()
    }

    /// Creates a key from its text in the table.
    #[doc(hidden)]
    pub fn from_stored(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the name under which a called system knows the operation: a UUID of 36 characters (RFC 9562, version 8).
    ///
    /// We make it from the SHA-256 of the key and `generation`, the number of attempts that the called system
    /// [declined](crate::Failure::declined).
    ///
    /// ```
    /// use sqs_once::protocol::{Key, Namespace};
    ///
    /// let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// assert_eq!(key.call_key(0), "eecd95da-5d42-8573-93e9-19fb668faa58");
    /// assert_ne!(key.call_key(0), key.call_key(1));
    /// # Ok::<(), sqs_once::protocol::KeyError>(())
    /// ```
    #[must_use]
    pub fn call_key(&self, generation: u64) -> String {
        let mut hash = Sha256::new_with_prefix(self.0.as_bytes());
        // The generation's length is fixed, so no other key and generation have the same bytes.
        hash.update(generation.to_be_bytes());
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&hash.finalize()[..16]);
        uuid[6] = uuid[6] & 0x0F | 0x80; // version 8
        uuid[8] = uuid[8] & 0x3F | 0x80; // variant of RFC 9562
        let digits = hex(&uuid);
        let groups = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
        groups.map(|(from, to)| &digits[from..to]).join("-")
    }

    /// Returns the key as stored in the table: 1 to [`MAX_KEY_BYTES`] bytes of UTF-8.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One part of a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart<'a> {
    /// A string.
    Text(Cow<'a, str>),
    /// The canonical form of a JSON value that is not a string.
    Json(String),
}

impl<'a> From<&'a str> for KeyPart<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for KeyPart<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

/// The number 7 makes the same key as a 7 at a JSON pointer, but a different one than the text `7`.
impl From<u64> for KeyPart<'_> {
    fn from(number: u64) -> Self {
        Self::Json(number.to_string())
    }
}

/// Works like the conversion from `u64`.
impl From<i64> for KeyPart<'_> {
    fn from(number: i64) -> Self {
        Self::Json(number.to_string())
    }
}

/// Joins namespace and parts into a [`Key`]. The builder never keeps more bytes than a key may have, however long the parts are.
pub(crate) struct KeyBuilder {
    id: String,
    namespace_end: usize,
    parts: usize,
    /// The hash of all parts. `None` until they are too long for a key.
    hash: Option<Sha256>,
}

impl KeyBuilder {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        let mut key = Self {
            id: String::with_capacity(namespace.0.len() + 64),
            namespace_end: 0,
            parts: 0,
            hash: None,
        };
        key.append_escaped(&namespace.0);
        key.namespace_end = key.id.len();
        key
    }

    /// Adds a part. Fails if the part is an empty string.
    pub(crate) fn push(&mut self, part: &KeyPart<'_>) -> Result<(), KeyError> {
        self.append("#");
        match part {
            KeyPart::Text(text) if text.is_empty() => {
                return Err(KeyError::EmptyPart { index: self.parts });
            }
            KeyPart::Text(text) => self.append_escaped(text),
            KeyPart::Json(canonical) => {
                self.append("\\json:");
                self.append_escaped(canonical);
            }
        }
        self.parts += 1;
        Ok(())
    }

    /// Returns the key. Fails if no part was added.
    pub(crate) fn finish(mut self) -> Result<Key, KeyError> {
        if self.parts == 0 {
            return Err(KeyError::NoParts);
        }
        if let Some(hash) = self.hash {
            self.id.push_str("#\\sha256:");
            self.id.push_str(&hex(&hash.finalize()));
        }
        Ok(Key(self.id))
    }

    fn append_escaped(&mut self, mut text: &str) {
        while let Some(at) = text.find(['#', '\\']) {
            let (before, rest) = text.split_at(at);
            let (mark, rest) = rest.split_at(1);
            self.append(before);
            self.append("\\");
            self.append(mark);
            text = rest;
        }
        self.append(text);
    }

    fn append(&mut self, text: &str) {
        if self.hash.is_none() && self.id.len() + text.len() > MAX_KEY_BYTES {
            let parts = &self.id[self.namespace_end..];
            self.hash = Some(Sha256::new_with_prefix(parts));
            self.id.truncate(self.namespace_end);
        }
        match &mut self.hash {
            Some(hash) => hash.update(text),
            None => self.id.push_str(text),
        }
    }
}

/// Why a [`Key`] cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The namespace was empty or too long.
    #[error(
        "the idempotency namespace has {bytes} bytes, but must have 1 to {MAX_NAMESPACE_BYTES}"
    )]
    NamespaceLength {
        /// Size of the namespace in bytes.
        bytes: usize,
    },
    /// The key had no parts.
    #[error("the idempotency key has no parts: name at least one")]
    NoParts,
    /// A part was the empty string.
    #[error("part {index} of the idempotency key is empty: give every message a key")]
    EmptyPart {
        /// Position of the part, from 0.
        index: usize,
    },
}

/// The SHA-256 of the part of a payload that must not change under one key.
///
/// A fingerprint is displayed as 64 lower-case hex digits.
///
/// A fingerprint can name its scheme: what was hashed, and how. We do not compare fingerprints of two
/// different known schemes ([`differs_from`](Self::differs_from)), so you can change the scheme while older
/// records are still kept.
///
/// ```
/// use sqs_once::protocol::Fingerprint;
///
/// let print = Fingerprint::of(b"{\"amount\":1}");
/// assert_eq!(print.to_string().len(), 64);
/// assert_ne!(print, Fingerprint::of(b"{\"amount\":2}"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Returns the fingerprint of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_hash(Sha256::new_with_prefix(bytes))
    }

    /// Returns the fingerprint of everything hashed so far.
    pub(crate) fn of_hash(hash: Sha256) -> Self {
        Self(hex(&hash.finalize()))
    }

    /// Creates a fingerprint from the text in a record: hex digits, then a colon and the scheme if it has one.
    #[must_use]
    pub const fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// Sets the scheme, which says what was hashed and how. `None` removes the scheme.
    #[must_use]
    pub fn with_scheme(self, scheme: impl Into<Option<String>>) -> Self {
        let digits = self.digits();
        Self(match scheme.into() {
            Some(scheme) => format!("{digits}:{scheme}"),
            None => digits.to_owned(),
        })
    }

    /// Returns the text as a record stores it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the hex digits.
    #[must_use]
    pub fn digits(&self) -> &str {
        self.0.split_once(':').map_or(&self.0, |(digits, _)| digits)
    }

    /// Returns the scheme, which says what was hashed and how, or `None` if it is unknown.
    #[must_use]
    pub fn scheme(&self) -> Option<&str> {
        self.0.split_once(':').map(|(_, scheme)| scheme)
    }

    /// Returns whether two payloads may be the same. We rule that out only if both fingerprints are known and differ.
    pub(crate) fn may_be_same(one: &Option<Self>, other: &Option<Self>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => !one.differs_from(other),
            _ => true,
        }
    }

    /// Returns whether the two payloads are known to differ. Different hashes prove it, unless they come from two different
    /// known schemes.
    ///
    /// ```
    /// use sqs_once::protocol::Fingerprint;
    ///
    /// let [one, other] = [b"1", b"2"].map(|payload| Fingerprint::of(payload));
    /// assert!(one.differs_from(&other));
    /// let by = |print: &Fingerprint, scheme: &str| print.clone().with_scheme(scheme.to_owned());
    /// assert!(by(&one, "body").differs_from(&by(&other, "body")));
    /// assert!(by(&one, "body").differs_from(&other));
    /// assert!(!by(&one, "body").differs_from(&by(&other, "amount")));
    /// ```
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> bool {
        let schemes_differ = matches!(
            (self.scheme(), other.scheme()),
            (Some(one), Some(other)) if one != other
        );
        self.digits() != other.digits()
            && (!schemes_differ || flawed("fingerprints of two schemes are compared"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.digits())
    }
}

/// Returns `bytes` as lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        hex.push(char::from(DIGITS[usize::from(byte >> 4)]));
        hex.push(char::from(DIGITS[usize::from(byte & 0xf)]));
    }
    hex
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ns(name: &str) -> Namespace {
        Namespace::new(name).unwrap()
    }

    #[test]
    fn long_key_is_hashed_within_namespace() {
        let long = "x".repeat(MAX_KEY_BYTES);
        for name in ["ns".to_owned(), "#".repeat(MAX_NAMESPACE_BYTES)] {
            let key = Key::new(&ns(&name), [long.as_str()]).unwrap();
            assert!(key.as_str().starts_with(&name.replace('#', "\\#")), "{key}");
            assert!(key.as_str().contains("#\\sha256:"), "{key}");
            assert!(key.as_str().len() <= MAX_KEY_BYTES);
        }
    }

    #[test]
    fn longest_key_that_fits_is_not_hashed() {
        let part = "x".repeat(MAX_KEY_BYTES - "ns#".len());
        assert_eq!(
            Key::new(&ns("ns"), [part.as_str()]).unwrap().as_str(),
            format!("ns#{part}")
        );
    }

    #[test]
    fn hash_of_a_long_key_covers_all_its_parts() {
        let long = |part: &str| part.repeat(MAX_KEY_BYTES);
        for parts in [
            [long("x"), "é".into()],
            ["a#".into(), long("#")],
            ["x".repeat(MAX_KEY_BYTES - 4), "\\".into()],
        ] {
            let key = Key::new(&ns("n"), parts.iter().map(String::as_str)).unwrap();
            let escaped = parts.map(|part| part.replace('\\', r"\\").replace('#', r"\#"));
            let hash = Fingerprint::of(format!("#{}", escaped.join("#")).as_bytes());
            assert_eq!(key.as_str(), format!(r"n#\sha256:{hash}"));
        }
    }

    #[test]
    fn short_key_never_equals_hashed_key() {
        let long = "x".repeat(MAX_KEY_BYTES);
        let hashed = Key::new(&ns("ns"), [long.as_str()]).unwrap();
        let forged = hashed.as_str().strip_prefix("ns#").unwrap();
        assert_ne!(Key::new(&ns("ns"), [forged]).unwrap(), hashed);
    }

    #[test]
    fn empty_key_is_an_error() {
        assert_eq!(
            Namespace::new(""),
            Err(KeyError::NamespaceLength { bytes: 0 })
        );
        assert_eq!(Key::new(&ns("ns"), []), Err(KeyError::NoParts));
        assert_eq!(
            Key::new(&ns("ns"), ["a", ""]),
            Err(KeyError::EmptyPart { index: 1 })
        );
    }

    #[test]
    fn fingerprint_is_sha_256() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            Fingerprint::of(b"abc").as_str(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn fingerprint_keeps_its_scheme() {
        let unknown = Fingerprint::of(b"abc");
        assert_eq!(unknown.scheme(), None);
        let of_body = unknown.clone().with_scheme("body".to_owned());
        assert_eq!(of_body.scheme(), Some("body"));
        assert_eq!(of_body.with_scheme(None), unknown);
    }

    fn part() -> impl Strategy<Value = KeyPart<'static>> {
        // Short words that contain the separator and the escape, so that a wrong encoding produces
        // collisions.
        let word = "[a#\\\\]{1,3}|[é\0]|x{700}|\\\\json:7|json:7|7";
        (word, any::<bool>()).prop_map(|(word, is_text)| {
            if is_text {
                KeyPart::Text(word.into())
            } else {
                KeyPart::Json(word)
            }
        })
    }

    fn words() -> impl Strategy<Value = (String, Vec<KeyPart<'static>>)> {
        ("[a#\\\\]{1,3}", prop::collection::vec(part(), 1..5))
    }

    proptest! {
        #[test]
        fn different_parts_make_different_keys(a in words(), b in words()) {
            let key = |(name, parts): &(String, Vec<KeyPart<'static>>)| {
                Key::of_parts(&ns(name), parts.iter().cloned()).unwrap()
            };
            prop_assert_eq!(a == b, key(&a) == key(&b));
            prop_assert!((1..=MAX_KEY_BYTES).contains(&key(&a).as_str().len()));
        }
    }
}
