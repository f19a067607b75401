//! `sqs-once record`: reads and changes records.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use sqs_once::{
    protocol::{AttemptEnd, Owner, Record, State, StoredResult, Timestamp},
    store::{DynamoStore, RecordFilter, RecordStatus, StoredRecord},
};

use crate::{
    aws,
    output::{
        End, Error, Format, answer, at, clean, columns, confirm, count, distance, first_line,
        in_words,
    },
    progress::Progress,
    table::Table,
    verdict::Verdict,
};

/// Items of one page. DynamoDB ends a page after 1 MB too.
const PAGE: i32 = 1000;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows a record: status, lease, history, and the effect on the next delivery.
    #[command(after_help = "\
Example: sqs-once record show 'payments#order-1' --table idempotency

Exit code 1: there is no record under the key.")]
    Show(Show),
    /// Lists records. Reads the whole table, up to a limit, and names the cost.
    #[command(after_help = "\
Example: sqs-once record list --status in-progress --expired-lease --table idempotency

The exit code is 0 also if no record was found.")]
    List(List),
    /// Ends the lease of a record whose worker is known to be dead.
    #[command(after_help = "\
Shows the record, and asks. The lease ends only if the record is then as it was shown.

Exit code 1: nothing was changed. There is no record or no live lease, the record changed after it was
shown, or the answer was not yes.")]
    Release(Change),
    /// Deletes a record, so that the next message under the key runs as the first.
    #[command(after_help = "\
Shows the record, and asks. The record is deleted only if it is then as it was shown.

Exit code 1: nothing was changed. There is no record, the record changed after it was shown, or the
answer was not yes.")]
    Forget(Change),
    /// Shows a record, and again after each change, until it is completed, failed or deleted.
    #[command(after_help = "\
Exit code 1: --timeout ended first.")]
    Watch(Watch),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The key, as logs show it: payments#order-1.
    key: String,
    /// Shows the stored result. It is payload.
    #[arg(long)]
    result: bool,
    #[command(flatten)]
    table: Table,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// Records with this status.
    #[arg(long, value_enum)]
    status: Option<Status>,
    /// Records in progress whose lease has ended: their workers crashed or were cut off.
    #[arg(long)]
    expired_lease: bool,
    /// Records whose key begins with this text.
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Number of records to list.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Read units after which the command stops. A unit is 8 KB of the table.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    max_units: u32,
    /// Continues after this key, which an earlier list named.
    #[arg(long, value_name = "KEY")]
    after: Option<String>,
    #[command(flatten)]
    table: Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Status {
    InProgress,
    Completed,
    Failed,
}

#[derive(Args, Debug)]
pub(crate) struct Change {
    /// The key, as logs show it: payments#order-1.
    key: String,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    table: Table,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// The key, as logs show it: payments#order-1.
    key: String,
    /// Time between reads. Each read takes one read unit for every 4 KB of the record.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    interval: Duration,
    /// Time after which the command ends with exit code 1.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    table: Table,
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(span) if !span.is_zero() => Ok(span),
        _ => Err("must be a duration such as 500ms, 2s or 15m".into()),
    }
}

impl Command {
    pub(crate) async fn run(self, format: Format) -> Result<End, Error> {
        match self {
            Self::Show(show) => show.run(format).await,
            Self::List(list) => list.run(format).await,
            Self::Release(change) => change.release(format).await,
            Self::Forget(change) => change.forget(format).await,
            Self::Watch(watch) => watch.run(format).await,
        }
    }
}

impl Table {
    async fn open(&self) -> Result<DynamoStore, Error> {
        self.store(&aws::config().await?)
    }
}

async fn read(store: &DynamoStore, key: &str) -> Result<StoredRecord, Error> {
    let found = store.look_up(key).await.map_err(Error::aws)?;
    found.ok_or_else(|| {
        let form = match key.contains('#') {
            true => "",
            false => ", which begins with the namespace, as in payments#order-1",
        };
        Error::negative(format!(
            "no record under the key `{key}`: check the table and the key{form} (`record list --prefix TEXT` finds keys)"
        ))
    })
}

impl Show {
    async fn run(self, format: Format) -> Result<End, Error> {
        let stored = read(&self.table.open().await?, &self.key).await?;
        let results = if self.result {
            Results::Shown
        } else {
            Results::Size
        };
        View::of(&stored, &self.table, results).print(format)?;
        Ok(End::Done)
    }
}

impl Change {
    async fn release(self, format: Format) -> Result<End, Error> {
        let store = self.table.open().await?;
        let shown = read(&store, &self.key).await?;
        let view = View::of(&shown, &self.table, Results::Size);
        let lease_until = match &shown.record {
            Ok(Record {
                state: State::InProgress { lease_until },
                ..
            }) => *lease_until,
            Ok(record) => {
                return Err(Error::negative(format!(
                    "nothing was changed: the record is {} and has no lease",
                    record.state.name()
                )));
            }
            Err(reason) => return Err(unreadable(&self.key, reason)),
        };
        let now = Timestamp::now();
        if lease_until < now {
            return Err(Error::negative(format!(
                "nothing was changed: the lease ended {}; the next delivery takes over",
                at(lease_until, now)
            )));
        }
        if !self.yes {
            eprintln!("{}\n", clean(&view.text()));
            eprintln!(
                "A worker may still run. If the lease ends now, a second worker can run the same operation at the same time."
            );
        }
        confirm("Is that worker dead, and shall its lease end?", self.yes)?;
        let applied = store.release(&shown, Timestamp::now()).await;
        done(format, &self.key, "released", applied.map_err(Error::aws)?)
    }

    async fn forget(self, format: Format) -> Result<End, Error> {
        let store = self.table.open().await?;
        let shown = read(&store, &self.key).await?;
        if !self.yes {
            let view = View::of(&shown, &self.table, Results::Size);
            eprintln!("{}\n", clean(&view.text()));
            eprintln!(
                "Without the record, the next message under this key runs as the first one, with its effect."
            );
        }
        confirm("Shall the record be deleted?", self.yes)?;
        let applied = store.forget(&shown).await;
        done(format, &self.key, "forgotten", applied.map_err(Error::aws)?)
    }
}

fn done(format: Format, key: &str, word: &str, applied: bool) -> Result<End, Error> {
    if !applied {
        return Err(Error::negative(format!(
            "nothing was changed: another program changed the record of `{key}` after it was shown; show it again"
        )));
    }
    answer(
        format,
        || format!("{word}: {key}"),
        || json!({"key": key, "done": word}),
    )?;
    Ok(End::Done)
}

fn unreadable(key: &str, reason: &str) -> Error {
    Error::negative(format!(
        "nothing was changed: the item under `{key}` is no record ({reason}); check --layout and --attributes"
    ))
}

impl Watch {
    async fn run(self, format: Format) -> Result<End, Error> {
        let store = self.table.open().await?;
        let end = Timestamp::now() + self.timeout;
        let mut seen = None;
        loop {
            let stored = store.look_up(&self.key).await.map_err(Error::aws)?;
            let record = stored.as_ref().map(|stored| stored.record.clone());
            if seen.as_ref() != Some(&record) {
                match &stored {
                    Some(stored) => {
                        View::of(stored, &self.table, Results::Size).print_line(format)?
                    }
                    None => answer(
                        format,
                        || format!("{}  {}  no record", Timestamp::now(), self.key),
                        || json!({"key": self.key, "status": null}),
                    )?,
                }
            }
            let ended = match &record {
                Some(Ok(record)) => !matches!(record.state, State::InProgress { .. }),
                // A record that was never there may still come.
                None => seen.as_ref().is_some_and(Option::is_some),
                Some(Err(_)) => true,
            };
            if ended {
                return Ok(End::Done);
            }
            if Timestamp::now() + self.interval > end {
                return Err(Error::negative(format!(
                    "the record did not end within {}",
                    in_words(self.timeout)
                )));
            }
            seen = Some(record);
            tokio::time::sleep(self.interval).await;
        }
    }
}

impl List {
    async fn run(self, format: Format) -> Result<End, Error> {
        if self.expired_lease && !matches!(self.status, None | Some(Status::InProgress)) {
            return Err(Error::usage(
                "--expired-lease is for records in progress: omit --status, or pass --status in-progress",
            ));
        }
        let store = self.table.open().await?;
        let filter = RecordFilter {
            status: match self.status {
                None if self.expired_lease => Some(RecordStatus::InProgress),
                None => None,
                Some(Status::InProgress) => Some(RecordStatus::InProgress),
                Some(Status::Completed) => Some(RecordStatus::Completed),
                Some(Status::Failed) => Some(RecordStatus::Failed),
            },
            expired_lease: self.expired_lease,
            prefix: self.prefix.clone(),
        };
        let now = Timestamp::now();
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let (mut records, mut next) = (Vec::new(), self.after.clone());
        let (mut items, mut units) = (0, 0.0);
        let (max_units, progress) = (f64::from(self.max_units), Progress::new());
        loop {
            let page = store.list(&filter, next.as_deref(), PAGE, now).await;
            let page = page.map_err(Error::aws)?;
            items += page.read;
            units += page.units;
            records.extend(page.records);
            next = page.next;
            let found = records.len();
            let share = (found as f64 / f64::from(self.limit)).max(units / max_units);
            progress.show(
                share,
                &format!("{items} items, {units} read units, {found} found"),
            );
            if next.is_none() || found >= limit || units >= max_units {
                break;
            }
        }
        drop(progress);
        // The rest of the last page is listed again after the last record of this one.
        if records.len() > limit {
            records.truncate(limit);
            next = records.last().map(|last| last.key.clone());
        }
        self.print(format, &records, next.as_deref(), (items, units))?;
        Ok(End::Done)
    }

    fn print(
        &self,
        format: Format,
        records: &[StoredRecord],
        next: Option<&str>,
        (items, units): (usize, f64),
    ) -> Result<(), Error> {
        let views = || {
            records
                .iter()
                .map(|stored| View::of(stored, &self.table, Results::Unread))
        };
        let text = || {
            let header = ["KEY", "STATUS", "ATTEMPTS", "UPDATED", "MESSAGE", "ERROR"];
            let mut text = String::new();
            if !records.is_empty() {
                text = columns(header, views().map(|view| view.row())) + "\n\n";
            }
            text.push_str(&format!(
                "{} found. Cost: {units} read units, for {}.",
                count(records.len(), "record"),
                count(items, "item"),
            ));
            if let Some(next) = next {
                text.push_str(&format!(
                    "\nThe table was not read to its end. Continue with --after '{next}'"
                ));
            }
            text
        };
        let json = || {
            let records: Vec<_> = views().map(|view| view.json()).collect();
            json!({"records": records, "items_read": items, "read_units": units, "next": next})
        };
        answer(format, text, json)
    }
}

/// A record as it is shown.
struct View<'a> {
    stored: &'a StoredRecord,
    verdict: Verdict,
    now: Timestamp,
    results: Results,
}

/// The part of a result that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Results {
    /// A list does not read results.
    Unread,
    Size,
    Shown,
}

impl<'a> View<'a> {
    fn of(stored: &'a StoredRecord, table: &Table, results: Results) -> Self {
        let now = Timestamp::now();
        let verdict = match &stored.record {
            Ok(record) => Verdict::of(Some(record), table.after_failure(), now),
            Err(_) => Verdict::Unknown,
        };
        Self {
            stored,
            verdict,
            now,
            results,
        }
    }

    fn print(&self, format: Format) -> Result<(), Error> {
        answer(format, || self.text(), || self.json())
    }

    /// One line for each change.
    fn print_line(&self, format: Format) -> Result<(), Error> {
        let text = || {
            let attempts = self
                .stored
                .record
                .as_ref()
                .map_or(0, |record| record.attempts);
            let key = &self.stored.key;
            format!("{}  {key}  {}  attempt {attempts}", self.now, self.status())
        };
        answer(format, text, || self.json())
    }

    /// Status and lease.
    fn status(&self) -> String {
        match &self.stored.record {
            Err(reason) => format!("unreadable: {reason}"),
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

    fn row(&self) -> [String; 6] {
        let Ok(record) = &self.stored.record else {
            let none = String::new;
            return [
                self.stored.key.clone(),
                self.status(),
                none(),
                none(),
                none(),
                none(),
            ];
        };
        [
            self.stored.key.clone(),
            self.status(),
            record.attempts.to_string(),
            record
                .updated_at
                .map(|time| distance(time, self.now))
                .unwrap_or_default(),
            record.message_id.clone().unwrap_or_default(),
            record.error.as_deref().map(first_line).unwrap_or_default(),
        ]
    }

    fn text(&self) -> String {
        let mut lines = vec![("key", self.stored.key.clone()), ("status", self.status())];
        if let Ok(record) = &self.stored.record {
            let time = |time: Option<Timestamp>| time.map(|time| at(time, self.now));
            let mut line = |name, value: Option<String>| {
                if let Some(value) = value {
                    lines.push((name, value));
                }
            };
            if let State::InProgress { lease_until } = record.state {
                line("lease until", time(Some(lease_until)));
            }
            line("owner", record.owner.as_ref().map(Owner::to_string));
            line("message", record.message_id.clone());
            line("attempts", Some(record.attempts.to_string()));
            line("created", time(record.created_at));
            line("updated", time(record.updated_at));
            let kept = Timestamp::from_millis(record.expires_at.saturating_mul(1000));
            line("kept until", time(Some(kept)));
            line(
                "open attempt",
                record.first_claimed_at.map(|since| {
                    let since = match since.as_millis() {
                        0 => "since an unknown time".to_owned(),
                        _ => format!("since {}", at(since, self.now)),
                    };
                    let end = record.last_end.map_or("not recorded", AttemptEnd::name);
                    format!("{since}; end of the last attempt: {end}; it may have had its effect")
                }),
            );
            if !record.failed_message_ids.is_empty() {
                let ids: Vec<_> = record.failed_message_ids.iter().cloned().collect();
                line("failed for", Some(ids.join(", ")));
            }
            line("error", record.error.clone());
            line("result", self.result_text(record));
        }
        let failed = matches!(&self.stored.record, Ok(record) if record.state == State::Failed);
        let but = match self.verdict {
            Verdict::Runs if failed => "; a message that failed before finds the stored error",
            _ => "",
        };
        lines.push(("next message", format!("{}{but}", self.verdict.text())));
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines = lines
            .iter()
            .map(|(name, value)| format!("{name:width$}  {value}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn result_text(&self, record: &Record) -> Option<String> {
        let State::Completed { result } = &record.state else {
            return None;
        };
        Some(match result {
            StoredResult::Json(json) if self.results == Results::Shown => json.clone(),
            StoredResult::Json(json) => format!("{} bytes; --result shows it", json.len()),
            StoredResult::InS3(pointer) => format!(
                "{} bytes in {pointer}, with the SHA-256 {}",
                pointer.bytes, pointer.sha256
            ),
            StoredResult::Omitted(why) => why.clone(),
        })
    }

    fn json(&self) -> Value {
        let key = &self.stored.key;
        let record = match &self.stored.record {
            Ok(record) => record,
            Err(reason) => return json!({"key": key, "unreadable": reason}),
        };
        let time = |time: Timestamp| time.to_string();
        let known = |time: &Timestamp| time.as_millis() > 0;
        let mut shown = json!({
            "key": key,
            "status": record.state.name(),
            "expired": record.is_expired(self.now),
            "owner": record.owner.as_ref().map(Owner::as_str),
            "message_id": record.message_id,
            "attempts": record.attempts,
            "created_at": record.created_at.map(time),
            "updated_at": record.updated_at.map(time),
            "expires_at": time(Timestamp::from_millis(record.expires_at.saturating_mul(1000))),
            "open_attempt": record.first_claimed_at.is_some(),
            "first_claimed_at": record.first_claimed_at.filter(known).map(time),
            "last_end": record.last_end.map(AttemptEnd::name),
            "failed_message_ids": record.failed_message_ids,
            "error": record.error,
            "next_message": self.verdict.name(),
        });
        match &record.state {
            State::InProgress { lease_until } => {
                shown["lease_until"] = json!(time(*lease_until));
                shown["lease_left_s"] = json!(self.now.until(*lease_until).as_secs());
            }
            State::Completed { .. } if self.results == Results::Unread => {}
            State::Completed { result } => match result {
                StoredResult::Json(text) => {
                    shown["result_bytes"] = json!(text.len());
                    if self.results == Results::Shown {
                        // A result that is no JSON is shown as text.
                        let value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
                        shown["result"] = value;
                    }
                }
                StoredResult::InS3(pointer) => {
                    shown["result_bytes"] = json!(pointer.bytes);
                    shown["result_in_s3"] = json!(pointer.to_string());
                    shown["result_sha256"] = json!(pointer.sha256);
                }
                StoredResult::Omitted(why) => shown["result_omitted"] = json!(why),
            },
            State::Failed => {}
        }
        shown
    }
}
