//! [`without_bom`]: JSON without its byte-order mark.

/// Removes the byte-order mark in front of a JSON text, if there is one. Some producers add it, and RFC 8259, section 8.1,
/// allows a reader to ignore it.
pub(crate) fn without_bom(json: &str) -> &str {
    json.strip_prefix('\u{feff}').unwrap_or(json)
}
