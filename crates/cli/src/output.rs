//! Prints the output and errors of commands, and puts times into words.

use std::{
    fmt::Display,
    io::{BufRead as _, IsTerminal as _, Write as _},
    time::Duration,
};

use clap::ValueEnum;
use serde_json::Value;
#[cfg(feature = "aws")]
use sqs_once::protocol::Timestamp;

/// The format of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    // For people. It may change between versions.
    Text,
    // One document on one line.
    Json,
}

/// How a command ended if it got all of its responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnd {
    /// Exit code 0.
    Done,
    /// Exit code 1. The output says why.
    NotDone,
}

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The request makes no sense in the current state, or the user did not confirm it.
    #[error("{0}")]
    Negative(String),
    /// The command line or a setting is invalid.
    #[error("{0}")]
    Usage(String),
    /// AWS did not respond, or rejected the request.
    #[error("{0}")]
    Remote(String),
}

impl Error {
    pub(crate) fn negative(text: impl Into<String>) -> Self {
        Self::Negative(text.into())
    }

    pub(crate) fn usage(text: impl Display) -> Self {
        Self::Usage(text.to_string())
    }

    pub(crate) fn remote(text: impl Display) -> Self {
        Self::Remote(text.to_string())
    }
}

/// Prints one line, or one JSON document on one line.
pub(crate) fn print(text: impl Display) -> Result<(), Error> {
    // If a reader closes the pipe early, as `head` does, that is not a failure of the command.
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::negative(
            format!("could not write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Prints the output in the requested form.
pub(crate) fn answer(
    format: Format,
    text: impl FnOnce() -> String,
    json: impl FnOnce() -> Value,
) -> Result<(), Error> {
    match format {
        Format::Text => print(clean(&text())),
        Format::Json => print(escape(&json().to_string())),
    }
}

/// Replaces control characters except line breaks, because a terminal obeys them, and keys and errors come from other people.
pub(crate) fn clean(text: &str) -> String {
    let shown = |c: char| {
        if c.is_control() && c != '\n' {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(shown).collect()
}

/// Escapes the control characters that JSON allows in strings: DEL and those after it.
fn escape(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Returns a number with a noun: `1 record`, `2 records`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns at most 80 characters of a text's first line.
pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

/// Aligns rows in columns, without borders. Empty cells show a dash.
pub(crate) fn columns<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = vec![header.map(str::to_owned)];
    let dashed = |cell: String| {
        if cell.is_empty() {
            "-".to_owned()
        } else {
            cell
        }
    };
    table.extend(rows.into_iter().map(|row| row.map(dashed)));
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:width$}  "))
            .collect();
        line.trim_end().to_owned()
    };
    table.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns an error if there is no terminal to ask on.
pub(crate) fn can_ask() -> Result<(), Error> {
    if std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Error::usage(
        "nothing was changed: standard input is no terminal to ask on; pass --yes to confirm",
    ))
}

/// Asks for confirmation on the terminal, unless `yes` is set.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<(), Error> {
    if yes {
        return Ok(());
    }
    can_ask()?;
    eprint!("{question} [y/N] ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    let confirmed = read.is_ok() && ["y", "yes"].contains(&line.trim().to_lowercase().as_str());
    confirmed
        .then_some(())
        .ok_or_else(|| Error::negative("nothing was changed: not confirmed"))
}

/// Returns a duration in its two largest units: `3m 2s`.
pub(crate) fn in_words(span: Duration) -> String {
    let (seconds, part) = (span.as_secs(), |count: u64, unit| {
        (count > 0).then(|| format!("{count}{unit}"))
    });
    let parts = [
        part(seconds / 86_400, "d"),
        part(seconds / 3600 % 24, "h"),
        part(seconds / 60 % 60, "m"),
        part(seconds % 60, "s"),
    ];
    let largest = parts.iter().position(Option::is_some).unwrap_or(4);
    let shown: Vec<_> = parts.into_iter().skip(largest).take(2).flatten().collect();
    if shown.is_empty() {
        return "0s".to_owned();
    }
    shown.join(" ")
}

/// Returns how far a time is from now: `3m 2s ago`.
#[cfg(feature = "aws")]
pub(crate) fn distance(time: Timestamp, now: Timestamp) -> String {
    if time > now {
        format!("in {}", in_words(now.until(time)))
    } else {
        format!("{} ago", in_words(time.until(now)))
    }
}

/// Returns a time and how far it is from now: `2026-11-21T10:50:00Z (3m 2s ago)`.
#[cfg(feature = "aws")]
pub(crate) fn at(time: Timestamp, now: Timestamp) -> String {
    format!("{time} ({})", distance(time, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "aws")]
    #[test]
    fn time_is_shown_with_distance_from_now() {
        let now = Timestamp::from_millis(1_795_258_200_000);
        let later = now + Duration::from_millis(3_723_999);
        assert_eq!(at(later, now), "2026-11-21T11:52:03Z (in 1h 2m)");
        assert_eq!(at(now, later), "2026-11-21T10:50:00Z (1h 2m ago)");
        assert_eq!(at(now, now), "2026-11-21T10:50:00Z (0s ago)");
    }

    #[test]
    fn duration_is_shown_in_two_largest_units() {
        for (seconds, words) in [
            (0, "0s"),
            (59, "59s"),
            (3600, "1h"),
            (3601, "1h"),
            (172_799, "1d 23h"),
            (1_639_380, "18d 23h"),
        ] {
            assert_eq!(in_words(Duration::from_secs(seconds)), words);
        }
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\r\nc"), "a\u{fffd}[2Jb\u{fffd}\nc");
        let value = serde_json::json!({"key": "a\u{9b}2J\u{7f}\n"});
        let escaped = escape(&value.to_string());
        assert!(!escaped.chars().any(char::is_control), "{escaped}");
        assert_eq!(serde_json::from_str::<Value>(&escaped).unwrap(), value);
    }

    #[test]
    fn columns_are_aligned_and_empty_cells_shown() {
        let rows = [["a".into(), String::new()], ["long".into(), "b".into()]];
        let lines = columns(["key", "status"], rows);
        assert_eq!(
            lines.lines().collect::<Vec<_>>(),
            ["key   status", "a     -", "long  b"]
        );
    }
}
