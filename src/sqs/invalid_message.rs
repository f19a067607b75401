//! [`InvalidMessage`]: the reason why a message can never be processed.

/// The reason why a message can never be processed, without any of its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidMessage(pub(crate) String);

impl InvalidMessage {
    pub(crate) fn no_body() -> Self {
        Self("the message has no body".into())
    }

    /// serde's own texts quote the payload ("invalid type: string \"4242…\""), except for a missing
    /// field, where they quote the handler's type. A path would quote the payload too: the keys of a
    /// map.
    pub(crate) fn json(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let what = match error.classify() {
            serde_json::error::Category::Data => match text.split_once(" at line ") {
                Some((missing, _)) if missing.starts_with("missing field `") => missing,
                _ => "a value is not of the type the handler takes",
            },
            _ => "not valid JSON",
        };
        let (line, column) = (error.line(), error.column());
        Self(format!(
            "the body can't be read: {what}, at line {line}, column {column}"
        ))
    }
}
