//! [`Encoding`]: base64 and gzip around a body.

use std::{borrow::Cow, io, io::Read as _, mem, num::NonZeroU32, str::FromStr};

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use flate2::read::MultiGzDecoder;

use crate::{
    InvalidValue,
    handler::{AttributeValue, Body, Content, DeliveryMetadata, InvalidMessage},
};

/// Message attribute with the encoding of one message.
const ATTRIBUTE: &str = "Content-Encoding";

/// Accepts base64 with or without padding, because producers differ.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The encoding of a body: base64, or gzip.
///
/// The consumer removes the envelope first and then decodes the body. Key, fingerprint and handler see the
/// decoded body; only [`Raw`](crate::Raw) holds the body as it was before. So an order has the same key and
/// fingerprint whether or not it was compressed.
///
/// | setting | the body is |
/// | --- | --- |
/// | `none` | as it is; base64 if the handler takes [`Bytes`](crate::Bytes) |
/// | `base64` | base64 with the standard alphabet, with or without padding and line breaks |
/// | `gzip`, `base64+gzip` | gzip (RFC 1952), in base64 if it is text, as every body in a queue is |
///
/// The message attribute `Content-Encoding` overrides the setting. Its value is one of these or `identity`,
/// in upper or lower case and in any order, such as `gzip,base64`. Other values are permanent failures.
///
/// A gzip body may have several members; the consumer joins their contents. A gzip body fails permanently if
/// it is truncated, contains anything after its last member, or is larger than
/// [`max_body_bytes`](crate::Consumer::max_body_bytes) after decompression.
///
/// ```
/// use sqs_once::sqs::Encoding;
///
/// assert_eq!("base64".parse(), Ok(Encoding::Base64));
/// assert_eq!("base64+gzip".parse(), Ok(Encoding::Gzip));
/// assert!("deflate".parse::<Encoding>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// The body is as the producer made it.
    #[default]
    None,
    /// Base64.
    Base64,
    /// Gzip, in base64 if the body is text.
    Gzip,
}

impl FromStr for Encoding {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "none" => Ok(Self::None),
            "base64" => Ok(Self::Base64),
            "gzip" | "base64+gzip" => Ok(Self::Gzip),
            _ => Err(InvalidValue::new(
                "must be `none`, `base64`, `gzip` or `base64+gzip`",
            )),
        }
    }
}

/// How bodies are decoded: the encoding of messages that name none, and a size limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoding {
    pub(crate) encoding: Encoding,
    pub(crate) max_body_bytes: NonZeroU32,
}

impl Default for Decoding {
    fn default() -> Self {
        Self {
            encoding: Encoding::None,
            max_body_bytes: const { NonZeroU32::new(2 << 20).unwrap() },
        }
    }
}

impl Decoding {
    /// Returns whether the decoded body may be larger than the one in the queue.
    pub(crate) fn may_grow(self, facts: &DeliveryMetadata) -> bool {
        matches!(self.encoding(facts), Ok(Encoding::Gzip))
    }

    /// Returns the encoding of a message, from its attribute or otherwise from the setting.
    fn encoding(self, facts: &DeliveryMetadata) -> Result<Encoding, InvalidMessage> {
        attribute(facts).map_or(Ok(self.encoding), of_attribute)
    }

    /// Decodes a body. `is_binary` is true for a handler that takes bytes.
    pub(crate) fn decode<'a>(
        self,
        raw: Body<'a>,
        facts: &DeliveryMetadata,
        is_binary: bool,
    ) -> Result<Content<'a>, InvalidMessage> {
        let decoded = match (self.encoding(facts)?, &raw) {
            (Encoding::None, Body::Text(text)) if is_binary => Some(base64(text)?),
            (Encoding::None, _) => None,
            (Encoding::Base64, Body::Text(text)) => Some(base64(text)?),
            (Encoding::Base64, Body::Binary(_)) => return Err(not_base64()),
            (Encoding::Gzip, Body::Text(text)) => Some(self.gunzip(&base64(text)?)?),
            (Encoding::Gzip, Body::Binary(bytes)) => Some(self.gunzip(bytes)?),
        };
        Ok(Content::new(raw, decoded.map(Body::from)))
    }

    /// Decompresses at most one byte more than the limit.
    fn gunzip(self, bytes: &[u8]) -> Result<Vec<u8>, InvalidMessage> {
        let limit = u64::from(self.max_body_bytes.get());
        let mut body = Vec::new();
        let read = MultiGzDecoder::new(bytes)
            .take(limit + 1)
            .read_to_end(&mut body);
        match read {
            Ok(read) if u64::try_from(read).is_ok_and(|read| read <= limit) => Ok(body),
            Ok(_) => Err(InvalidMessage(format!(
                "the body has more than {limit} bytes after decompression: CONSUMER_MAX_BODY_BYTES is {limit}"
            ))),
            // The decoder's texts contain no payload.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(invalid("truncated gzip"))
            }
            Err(error) => Err(invalid(&format!("not gzip: {error}"))),
        }
    }
}

/// Returns the value of the message attribute.
fn attribute(facts: &DeliveryMetadata) -> Option<&str> {
    // A message has at most ten attributes. Comparing their names costs less than one hash.
    let mut attributes = facts.attributes.iter();
    match &attributes.find(|(name, _)| *name == ATTRIBUTE)?.1.value {
        AttributeValue::Text(value) => Some(value),
        AttributeValue::Binary(_) => None,
    }
}

/// Parses a list such as `gzip,base64`, in any order. Rejects an encoding that is named twice: it was applied
/// twice, and we would remove only one of them.
fn of_attribute(value: &str) -> Result<Encoding, InvalidMessage> {
    let (mut base64, mut gzip) = (false, false);
    for token in value.split([',', '+', ';']) {
        let named = match token.trim().to_ascii_lowercase().as_str() {
            "none" | "identity" => continue,
            "base64" => &mut base64,
            "gzip" => &mut gzip,
            _ => return Err(unknown_encoding()),
        };
        if mem::replace(named, true) {
            return Err(unknown_encoding());
        }
    }
    Ok(match (gzip, base64) {
        (true, _) => Encoding::Gzip,
        (false, true) => Encoding::Base64,
        (false, false) => Encoding::None,
    })
}

fn unknown_encoding() -> InvalidMessage {
    InvalidMessage(format!(
        "the message attribute {ATTRIBUTE} is not `none`, `identity`, `base64`, `gzip` or `base64+gzip`"
    ))
}

fn base64(text: &str) -> Result<Vec<u8>, InvalidMessage> {
    let is_break = |byte: u8| byte.is_ascii_whitespace();
    let text = if text.bytes().any(is_break) {
        let rest = text.bytes().filter(|byte| !is_break(*byte));
        Cow::Owned(rest.collect())
    } else {
        Cow::Borrowed(text.as_bytes())
    };
    // We drop the error, because it quotes a byte of the payload.
    BASE64.decode(text).map_err(|_| not_base64())
}

fn not_base64() -> InvalidMessage {
    invalid("not base64")
}

fn invalid(what: &str) -> InvalidMessage {
    InvalidMessage(format!(
        "the body can't be decoded: {what}; check the producer, CONSUMER_ENCODING and the message attribute {ATTRIBUTE}"
    ))
}
