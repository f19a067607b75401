//! [`FromMessage`]: the types that a handler can take, made from a message's body.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use super::InvalidMessage;

/// A type that a handler takes as its message.
///
/// | type | value | bodies that fail permanently |
/// | --- | --- | --- |
/// | `T` that implements [`serde::Deserialize`] | the decoded body as JSON | other JSON, and text that is not JSON |
/// | [`Json<T>`](Json) | the same | the same |
/// | [`Text`] | the decoded body as text | bytes that are not UTF-8 |
/// | [`Bytes`] | the decoded body as bytes; without an encoding, the body is base64 | text that is not base64 |
/// | [`Raw`] | the body before decoding | nothing |
///
/// The decoded body is the body without its envelope (`CONSUMER_ENVELOPE`), base64 and compression
/// (`CONSUMER_ENCODING`). For every type, a body that cannot be decoded is a permanent failure. No other type
/// implements this trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the message of a handler: it does not implement `serde::Deserialize`",
    label = "the body is read as JSON, so the message must implement `serde::Deserialize`",
    note = "add `#[derive(serde::Deserialize)]` to `{Self}`, or take `sqs_once::Text`, `Bytes` or `Raw` for a body that is not JSON"
)]
pub trait FromMessage: Sized + Send {
    /// True for the type that takes bytes. For that type, a text body is base64.
    #[doc(hidden)]
    const IS_BINARY: bool = false;

    // The types of this signature have no public path, so no other crate can implement the trait.
    #[doc(hidden)]
    fn from_message(content: Content<'_>) -> Result<Self, InvalidMessage>;
}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + Send> FromMessage for T {
    fn from_message(content: Content<'_>) -> Result<Self, InvalidMessage> {
        let parsed = content.decoded().parse();
        parsed.map_err(|error| InvalidMessage::json(&error))
    }
}

/// A JSON body. A handler that takes `Json<T>` works like one that takes `T`.
///
/// ```
/// use serde::Deserialize;
/// use sqs_once::{Attempt, Failure, Json, handler_fn};
///
/// #[derive(Deserialize)]
/// struct Order { id: String }
///
/// async fn ship(Json(order): Json<Order>, _: Attempt) -> Result<String, Failure> {
///     Ok(format!("shipped {}", order.id))
/// }
/// let handler = handler_fn(ship);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + Send> FromMessage for Json<T> {
    fn from_message(content: Content<'_>) -> Result<Self, InvalidMessage> {
        T::from_message(content).map(Self)
    }
}

/// A decoded body that is text.
///
/// ```
/// use sqs_once::{Attempt, Failure, Text, handler_fn};
///
/// async fn import(Text(csv): Text, _: Attempt) -> Result<usize, Failure> {
///     Ok(csv.lines().count())
/// }
/// let handler = handler_fn(import);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub String);

impl FromMessage for Text {
    fn from_message(content: Content<'_>) -> Result<Self, InvalidMessage> {
        match content.into_decoded() {
            Body::Text(text) => Ok(Self(text.into_owned())),
            Body::Binary(_) => Err(InvalidMessage("the body is not UTF-8 text".into())),
        }
    }
}

/// A decoded body as bytes.
///
/// A queue carries text, so producers send bytes as base64. For a handler that takes `Bytes`, the encoding
/// `none` therefore means `base64`. Key and fingerprint come from the bytes.
///
/// ```
/// use sqs_once::{Attempt, Bytes, Failure, handler_fn};
///
/// async fn print(Bytes(label): Bytes, _: Attempt) -> Result<usize, Failure> {
///     Ok(label.len())
/// }
/// let handler = handler_fn(print);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl FromMessage for Bytes {
    const IS_BINARY: bool = true;

    fn from_message(content: Content<'_>) -> Result<Self, InvalidMessage> {
        Ok(Self(content.into_decoded().into_bytes()))
    }
}

/// A body before decoding, in base64 or compressed as the producer sent it. Only the envelope is removed.
///
/// Key and fingerprint still come from the decoded body, as for every other type.
///
/// ```
/// use sqs_once::{Attempt, Failure, Raw, handler_fn};
///
/// async fn archive(Raw(body): Raw, _: Attempt) -> Result<usize, Failure> {
///     Ok(body.len())
/// }
/// let handler = handler_fn(archive);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raw(pub Vec<u8>);

impl FromMessage for Raw {
    fn from_message(content: Content<'_>) -> Result<Self, InvalidMessage> {
        Ok(Self(content.raw.into_bytes()))
    }
}

/// The body of a message, as sent and as decoded.
#[derive(Debug)]
pub struct Content<'a> {
    raw: Body<'a>,
    /// `None` if the body has no encoding.
    decoded: Option<Body<'a>>,
}

impl<'a> Content<'a> {
    /// Creates the content from a body, and from its decoded form if it has an encoding.
    #[must_use]
    pub fn new(raw: Body<'a>, decoded: Option<Body<'a>>) -> Self {
        Self { raw, decoded }
    }

    /// Returns the decoded body.
    #[must_use]
    pub fn decoded(&self) -> &Body<'a> {
        self.decoded.as_ref().unwrap_or(&self.raw)
    }

    fn into_decoded(self) -> Body<'a> {
        self.decoded.unwrap_or(self.raw)
    }
}

/// A body: text if it is UTF-8, otherwise bytes.
#[derive(Debug)]
pub enum Body<'a> {
    /// Text, in UTF-8.
    Text(Cow<'a, str>),
    /// Bytes that are not UTF-8.
    Binary(Vec<u8>),
}

impl<'a> From<&'a str> for Body<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<Vec<u8>> for Body<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(Cow::Owned(text)),
            Err(error) => Self::Binary(error.into_bytes()),
        }
    }
}

impl Body<'_> {
    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.into_owned().into_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// Parses the body as JSON.
    pub fn parse<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        match self {
            Self::Text(text) => serde_json::from_str(text),
            Self::Binary(bytes) => serde_json::from_slice(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary<'a>() -> Content<'a> {
        Content::new("/w==".into(), Some(vec![0xff].into()))
    }

    #[test]
    fn each_type_takes_its_part_of_the_content() {
        let text = || Content::new("WyJhIl0=".into(), Some(br#"["a"]"#.to_vec().into()));
        let list = vec!["a".to_owned()];
        assert_eq!(Vec::<String>::from_message(text()), Ok(list.clone()));
        assert_eq!(Json::from_message(text()), Ok(Json(list)));
        assert_eq!(Text::from_message(text()), Ok(Text(r#"["a"]"#.into())));
        assert_eq!(Bytes::from_message(text()), Ok(Bytes(br#"["a"]"#.to_vec())));
        assert_eq!(Raw::from_message(text()), Ok(Raw(b"WyJhIl0=".to_vec())));
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_no_text() {
        assert_eq!(Bytes::from_message(binary()), Ok(Bytes(vec![0xff])));
        assert_eq!(Raw::from_message(binary()), Ok(Raw(b"/w==".to_vec())));
        let InvalidMessage(why) = Text::from_message(binary()).unwrap_err();
        assert_eq!(why, "the body is not UTF-8 text");
        let InvalidMessage(why) = String::from_message(binary()).unwrap_err();
        assert!(why.contains("not valid JSON"), "{why}");
    }
}
