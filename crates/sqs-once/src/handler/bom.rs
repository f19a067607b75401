//! [`without_bom`]: JSON without its byte-order mark.

/// Returns JSON without a byte-order mark before it. RFC 8259, section 8.1, allows a reader to ignore the mark
/// that some producers add.
pub(crate) fn without_bom(json: &str) -> &str {
    json.strip_prefix('\u{feff}').unwrap_or(json)
}
