//! A record as the commands show it, in JSON.

use std::time::Duration;

use serde_json::{Value, json};
use sqs_once::{
    internal::StoredRecord,
    protocol::{AttemptEnd, Record, State, StoredResult, Timestamp},
    store::{Results, S3Results},
};

use crate::{
    aws,
    next_delivery::{NextDelivery, Rules},
    output::{Error, Format, answer},
};

/// How long downloading an output from S3 may take: 10 MiB at 3 Mbit/s.
const MAX_OUTPUT_TIME: Duration = Duration::from_secs(30);

/// How much of an output we show.
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
}

pub(super) struct View<'a> {
    stored: &'a StoredRecord,
    next_delivery: NextDelivery,
    rules: Rules,
    now: Timestamp,
    part: &'a Part,
}

impl<'a> View<'a> {
    /// Creates the view for a consumer with default settings.
    pub(super) fn of(stored: &'a StoredRecord, part: &'a Part) -> Self {
        Self::under(Rules::default(), stored, part)
    }

    /// Creates the view for a consumer with these settings.
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

    /// Returns the record as text for a terminal: the JSON, then a line that says what the next message will do.
    pub(super) fn text(&self) -> String {
        let record = self.stored.record.as_ref().ok();
        let but = match self.next_delivery {
            NextDelivery::Runs | NextDelivery::RunsWithPriorAttempt | NextDelivery::TooOld
                if record.is_some_and(|record| record.state == State::Failed) =>
            {
                "; one with a payload that failed, sent before that, finds the stored error"
            }
            _ => "",
        };
        let (json, next) = (self.json(), self.next_delivery.text());
        format!("{json:#}\n\nThe next message: {next}{but}")
    }

    pub(super) fn json(&self) -> Value {
        let key = &self.stored.key;
        let record = match &self.stored.record {
            Ok(record) => record,
            Err(found) => {
                // If the item isn't JSON, we show it as text.
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
                    // If the result isn't JSON, we show it as text.
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
