//! [`Content`]: what is inside an envelope. Its members stay unparsed JSON, because we never need most of them.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::handler::{Attribute, EnvelopeMetadata};

#[derive(Debug)]
pub(super) struct Content {
    pub(super) body: String,
    /// Attributes inside the envelope.
    pub(super) attributes: HashMap<String, Attribute>,
    pub(super) facts: EnvelopeMetadata,
}

/// The text of an object's member, or `None` if the object lacks it.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// Parses a JSON object, and rejects a list, because serde would take the list's elements for the members of a struct.
pub(super) fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    json.starts_with('{')
        .then(|| serde_json::from_str(json).ok())?
}

/// Parses a string. Returns `None` if the member is missing or isn't a string.
pub(super) fn text(member: Raw<'_>) -> Option<String> {
    serde_json::from_str(member?.get()).ok()
}
