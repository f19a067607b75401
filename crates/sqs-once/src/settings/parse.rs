//! Parses the values of settings.

use std::{
    convert::Infallible,
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use crate::{entries::entries, protocol::isolation::CrashWaits, sqs::Visibility};

pub(crate) fn on_or_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("must be `on` or `off`"),
    }
}

/// Parses a duration such as `500ms`, `30s`, `5m` or `24h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration such as 500ms, 30s, 5m or 24h"))
}

/// Parses a duration of more than 0.
///
/// # Errors
///
/// Fails if `text` is not a duration, or is 0.
pub fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        span => Ok(span),
    }
}

pub(crate) fn backoff(text: &str) -> Result<Duration, String> {
    match positive(text)? {
        span if span > Visibility::LONGEST_BACKOFF => Err(
            "must be at most 11h 30m: SQS hides a message for no longer than 12 hours after its receive"
                .to_owned(),
        ),
        span => Ok(span),
    }
}

/// Parses a value that has an effect only with the `s3` feature. Without the feature, any value that isn't empty is an
/// error.
pub(crate) fn of_s3<T: Default>(
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> impl FnOnce(&str) -> Result<T, String> {
    |text| match text {
        "" => Ok(T::default()),
        _ if cfg!(feature = "s3") => parse(text),
        _ => Err("needs the feature `s3` of the crate sqs-once".to_owned()),
    }
}

/// Parses names of S3 buckets, separated by commas.
pub(crate) fn buckets(text: &str) -> Result<Vec<String>, String> {
    let names = entries(text, "")
        .into_iter()
        .map(bucket)
        .collect::<Result<_, _>>();
    names.map_err(|error| format!("{error}; separate names by commas"))
}

/// Parses the name of an S3 bucket (*Amazon S3 User Guide*, "Bucket naming rules").
pub(crate) fn bucket(name: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' || c == '-';
    let ends = !name.starts_with(['.', '-']) && !name.ends_with(['.', '-']);
    if (3..=63).contains(&name.len()) && ends && name.chars().all(inner) {
        Ok(name.to_owned())
    } else {
        Err(format!("`{name}` is not the name of an S3 bucket"))
    }
}

pub(crate) fn bytes(text: &str) -> Result<NonZeroU32, &'static str> {
    let parsed = text.parse();
    parsed.map_err(|_| "must be a whole number of bytes from 1 to 4294967295")
}

/// Parses a number of handlers. Returns `None` for `auto`.
pub(crate) fn concurrency(text: &str) -> Result<Option<NonZeroUsize>, &'static str> {
    match text {
        "auto" => Ok(None),
        number => {
            (number.parse().map(Some)).map_err(|_| "must be `auto`, or a whole number from 1")
        }
    }
}

/// Parses the lifetime of a call key. Returns `None` for `off`.
pub(crate) fn lifetime(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "off" => Ok(None),
        text => positive(text)
            .map(Some)
            .map_err(|error| format!("{error}, or must be `off`")),
    }
}

/// Parses whether messages run alone after a crash.
pub(crate) fn isolation(text: &str) -> Result<CrashWaits, &'static str> {
    Ok(if on_or_off(text)? {
        CrashWaits::default()
    } else {
        CrashWaits::off()
    })
}

/// Takes any text. Returns `None` if it is empty.
pub(crate) fn text(text: &str) -> Result<Option<String>, Infallible> {
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}
