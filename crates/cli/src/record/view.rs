//! A record as the commands show it: as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};
use sqs_once::{
    internal::StoredRecord,
    protocol::{AttemptEnd, Record, RecordedFailure, State, StoredResult, Timestamp},
    store::{Results, S3Results},
};

use crate::{
    aws,
    next_delivery::{NextDelivery, Rules},
    output::{Error, Format, answer, at, in_words},
};

/// Longest download of an output from S3: 10 MiB at 3 Mbit/s.
const MAX_OUTPUT_TIME: Duration = Duration::from_secs(30);

/// How much of an output is shown.
#[derive(Debug)]
pub(super) enum Part {
    Size,
    /// The output, or why S3 does not have it.
    Output(Result<String, String>),
}

impl Part {
    pub(super) async fn output_of(record: &Record) -> Result<Self, Error> {
        let State::Completed { result } = &record.state else {
            return Ok(Self::Size);
        };
        Ok(match result {
            StoredResult::Json(json) => Self::Output(Ok(json.clone())),
            StoredResult::InS3(pointer) => {
                let results =
                    Results::outside(S3Results::new(&aws::config().await?, &*pointer.bucket));
                Self::Output(results.read_within(MAX_OUTPUT_TIME, pointer).await)
            }
            StoredResult::Omitted(_) => Self::Size,
        })
    }

    fn output(&self) -> Option<&str> {
        match self {
            Self::Output(Ok(json)) => Some(json),
            _ => None,
        }
    }
}

/// A record as the commands show it.
pub(super) struct View<'a> {
    stored: &'a StoredRecord,
    next_delivery: NextDelivery,
    rules: Rules,
    now: Timestamp,
    part: &'a Part,
}

impl<'a> View<'a> {
    /// Creates the view, for a consumer with the default settings.
    pub(super) fn of(stored: &'a StoredRecord, part: &'a Part) -> Self {
        Self::under(Rules::default(), stored, part)
    }

    /// Creates the view, for a consumer with these settings.
    pub(super) fn under(rules: Rules, stored: &'a StoredRecord, part: &'a Part) -> Self {
        let now = Timestamp::now();
        Self {
            stored,
            next_delivery: NextDelivery::by(stored, &rules, now),
            rules,
            now,
            part,
        }
    }

    pub(super) fn print(&self, format: Format) -> Result<(), Error> {
        answer(format, || self.text(), || self.json())
    }

    /// Returns status and lease.
    fn status(&self) -> String {
        match &self.stored.record {
            Err(found) => format!("unreadable: {}", found.reason),
            Ok(record) if record.is_expired(self.now) => {
                format!(
                    "{}, past its retention: counts as absent",
                    record.state.name()
                )
            }
            Ok(record) => match record.state {
                State::InProgress { lease_until } if lease_until >= self.now => {
                    let left = in_words(self.now.until(lease_until));
                    format!("IN_PROGRESS, {left} of the lease left")
                }
                State::InProgress { lease_until } => {
                    let since = in_words(lease_until.until(self.now));
                    format!("IN_PROGRESS, lease ended {since} ago")
                }
                State::Completed { .. } | State::Failed => record.state.name().to_owned(),
            },
        }
    }

    pub(super) fn text(&self) -> String {
        let mut lines = vec![("key", self.stored.key.clone()), ("status", self.status())];
        if let Err(found) = &self.stored.record {
            lines.push(("raw", found.raw.clone()));
        }
        if let Ok(record) = &self.stored.record {
            let time = |time| Some(at(time, self.now));
            let mut line = |name, value: Option<String>| {
                if let Some(value) = value {
                    lines.push((name, value));
                }
            };
            if let State::InProgress { lease_until } = record.state {
                line("lease until", time(lease_until));
            }
            line("owner", Some(record.stamp.owner.to_string()));
            line("version", Some(record.stamp.version.to_string()));
            line("message", Some(record.message_id.clone()));
            line("queue", record.source.clone());
            line("attempts", Some(record.attempts.to_string()));
            line("updated", time(record.updated_at));
            let kept = Timestamp::from_millis(record.expires_at.saturating_mul(1000));
            line("kept until", time(kept));
            line(
                "open attempt",
                record.first_claimed_at.map(|since| {
                    let since = at(since, self.now);
                    let end = match record.state {
                        State::Failed => "permanent",
                        _ => record.last_end.map_or("not recorded", AttemptEnd::name),
                    };
                    let other = if record.open_other {
                        "; one may have had another payload"
                    } else {
                        ""
                    };
                    format!(
                        "since {since}; end of the last attempt: {end}; it may have had its effect{other}"
                    )
                }),
            );
            line(
                "died alone",
                Some(record.exclusive_attempts)
                    .filter(|count| *count > 0 && record.last_end.is_none())
                    .map(|number| {
                        let times = times(number);
                        format!("{times}: attempts that ran alone and have no recorded end")
                    }),
            );
            line(
                "declined",
                Some(record.generation)
                    .filter(|count| *count > 0)
                    .map(times),
            );
            line("call key", self.stored.call_key());
            for failure in &record.failures {
                let RecordedFailure {
                    at: failed_at,
                    error,
                    message_id,
                    ..
                } = failure;
                let failed_at = at(*failed_at, self.now);
                line(
                    "failed",
                    Some(format!("{failed_at}, message {message_id}: {error}")),
                );
            }
            line("result", self.result_text(record));
        }
        let failed = matches!(&self.stored.record, Ok(record) if record.state == State::Failed);
        let but = match self.next_delivery {
            NextDelivery::Runs | NextDelivery::RunsWithPriorAttempt | NextDelivery::TooOld
                if failed =>
            {
                "; one with a payload that failed, sent before that, finds the stored error"
            }
            _ => "",
        };
        lines.push((
            "next message",
            format!("{}{but}", self.next_delivery.text()),
        ));
        if matches!(&self.stored.record, Ok(record) if record.first_claimed_at.is_some()) {
            lines.push(("by settings", self.rules.text()));
        }
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        lines
            .iter()
            .map(|(name, value)| format!("{name:width$}  {value}"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn result_text(&self, record: &Record) -> Option<String> {
        let State::Completed { result } = &record.state else {
            return None;
        };
        if let Some(output) = self.part.output() {
            return Some(output.to_owned());
        }
        Some(match result {
            StoredResult::Json(json) => format!("{} bytes; --result shows it", json.len()),
            StoredResult::InS3(pointer) => format!(
                "{} bytes in {pointer}, with the SHA-256 {}; --result reads it",
                pointer.bytes, pointer.sha256
            ),
            StoredResult::Omitted(why) => why.clone(),
        })
    }

    pub(super) fn json(&self) -> Value {
        let key = &self.stored.key;
        let record = match &self.stored.record {
            Ok(record) => record,
            Err(found) => {
                // Text that is no JSON is shown as text.
                let raw = serde_json::from_str(&found.raw).unwrap_or_else(|_| json!(found.raw));
                return json!({"key": key, "unreadable": found.reason, "raw": raw});
            }
        };
        let time = |time: Timestamp| time.to_string();
        let failures = record.failures.iter().map(|failure| {
            json!({
                "failed_at": time(failure.at),
                "message_id": failure.message_id,
                "error": failure.error,
            })
        });
        let mut shown = json!({
            "key": key,
            "status": record.state.name(),
            "expired": record.is_expired(self.now),
            "owner": record.stamp.owner.as_str(),
            "version": record.stamp.version,
            "message_id": record.message_id,
            "source": record.source,
            "attempts": record.attempts,
            "updated_at": time(record.updated_at),
            "expires_at": time(Timestamp::from_millis(record.expires_at.saturating_mul(1000))),
            "open_attempt": record.first_claimed_at.is_some(),
            "first_claimed_at": record.first_claimed_at.map(time),
            "last_end": record.last_end.map(AttemptEnd::name),
            "exclusive_attempts": record.exclusive_attempts,
            "open_other": record.open_other,
            "failures": failures.collect::<Vec<_>>(),
            "generation": record.generation,
            "call_key": self.stored.call_key(),
            "next_message": self.next_delivery.name(),
            "settings": self.rules.text(),
        });
        match &record.state {
            State::InProgress { lease_until } => {
                shown["lease_until"] = json!(time(*lease_until));
                shown["lease_left_s"] = json!(self.now.until(*lease_until).as_secs());
            }
            State::Completed { result } => {
                match result {
                    StoredResult::Json(text) => shown["result_bytes"] = json!(text.len()),
                    StoredResult::InS3(pointer) => {
                        shown["result_bytes"] = json!(pointer.bytes);
                        shown["result_in_s3"] = json!(pointer.to_string());
                        shown["result_sha256"] = json!(pointer.sha256);
                    }
                    StoredResult::Omitted(why) => shown["result_omitted"] = json!(why),
                }
                match self.part {
                    // A result that is not JSON is shown as text.
                    Part::Output(Ok(text)) => {
                        let value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
                        shown["result"] = value;
                    }
                    Part::Output(Err(why)) => shown["result_error"] = json!(why),
                    Part::Size => {}
                }
            }
            State::Failed => {}
        }
        shown
    }
}

fn times(number: u64) -> String {
    format!("{number} {}", if number == 1 { "time" } else { "times" })
}
