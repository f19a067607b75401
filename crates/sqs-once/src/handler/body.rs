//! [`FromMessage`]: the types that a handler can take, made from a message.

use serde::de::DeserializeOwned;

use super::{DeliveryMetadata, InvalidMessage, without_bom};

/// A type that a handler takes as its message.
///
/// | type | value | fails permanently |
/// | --- | --- | --- |
/// | `T` that implements [`serde::Deserialize`] | the body as JSON, with or without a byte-order mark | other JSON, and text that is not JSON |
/// | [`Json<T>`](Json) | the same | the same |
/// | [`Text`] | the body as text | nothing |
/// | your own type | what [`from_message`](Self::from_message) makes of it | what it refuses |
///
/// Implement it for a body in a format of your own: compressed, Protocol Buffers, CSV. The type must not
/// implement `Deserialize`, because that already makes it a JSON body; wrap such a type in a struct.
///
/// ```
/// use sqs_once::{Attempt, DeliveryMetadata, Failure, FromMessage, InvalidMessage, handler_fn};
///
/// /// A body such as `o-1;12950`, of the tenant in an attribute.
/// struct Order { tenant: String, id: String, cents: u64 }
///
/// impl FromMessage for Order {
///     fn from_message(body: &str, delivery: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
///         let tenant = delivery.attribute("tenant").ok_or("no attribute `tenant`")?;
///         let (id, cents) = body.split_once(';').ok_or("the body has no `;`")?;
///         let cents = cents.parse().map_err(|_| "the amount is not a number")?;
///         Ok(Self { tenant: tenant.into(), id: id.into(), cents })
///     }
/// }
///
/// async fn ship(order: Order, _: Attempt) -> Result<String, Failure> {
///     Ok(format!("shipped {} of {} for {}", order.id, order.tenant, order.cents))
/// }
/// let handler = handler_fn(ship);
///
/// assert!(Order::from_message("o-1;12950", &DeliveryMetadata::default()).is_err()); // no tenant
/// ```
///
/// Key and fingerprint come from the text of the body, not from this value. If JSON pointers can't read the
/// body, [make the key in code](crate::sqs::KeySource::from_fn).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the message of a handler: it does not implement `serde::Deserialize`",
    label = "the body is read as JSON, so the message must implement `serde::Deserialize`",
    note = "add `#[derive(serde::Deserialize)]` to `{Self}`; for a body that is not JSON, implement `sqs_once::FromMessage` for it, or take `sqs_once::Text`"
)]
pub trait FromMessage: Sized + Send {
    /// Creates the value from the body, without its envelope, and from the delivery with its message attributes.
    ///
    /// The conversion is part of the attempt, after the claim. If it panics or ends the process, the message is retried,
    /// and the next attempt sees the prior one. Nothing limits its time and memory but your own code. An error is final, so
    /// the same message must always give the same result: don't ask another system here.
    ///
    /// # Errors
    ///
    /// An error makes the message fail permanently, with the outcome `invalid` and the error's text. The handler is
    /// not called. The text is logged and sent to the dead-letter queue, so keep payload out of it.
    fn from_message(body: &str, delivery: &DeliveryMetadata) -> Result<Self, InvalidMessage>;
}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + Send> FromMessage for T {
    fn from_message(body: &str, _: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
        serde_json::from_str(without_bom(body)).map_err(|error| InvalidMessage::body(body, &error))
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
    fn from_message(body: &str, delivery: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
        T::from_message(body, delivery).map(Self)
    }
}

/// A body as plain text.
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
    fn from_message(body: &str, _: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
        Ok(Self(body.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_mark_is_no_part_of_json() {
        let read = |body| u64::from_message(body, &DeliveryMetadata::default());
        assert_eq!(read("\u{feff}7"), Ok(7));
        assert!(read("\u{feff}\u{feff}7").is_err());
        let Ok(Text(text)) = Text::from_message("\u{feff}7", &DeliveryMetadata::default()) else {
            panic!("every body is a text");
        };
        assert_eq!(text, "\u{feff}7");
    }
}
