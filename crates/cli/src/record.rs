//! `sqs-once record`: reads and changes records.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use sqs_once::{
    protocol::{AttemptEnd, Owner, Record, State, StoredResult, Timestamp},
    store::{Results, S3Results},
};
use sqs_once_core::store::{RecordFilter, RecordPage, RecordStatus, StoredRecord};

use crate::{
    aws,
    output::{
        End, Error, Format, answer, at, clean, columns, confirm, count, distance, first_line,
        in_words,
    },
    progress::Progress,
    table::{Records, Table},
    verdict::Verdict,
};

/// Items or rows of one page. DynamoDB ends a page after 1 MB too.
const PAGE: i32 = 1000;

/// Read units of DynamoDB after which a list ends by default.
const MAX_UNITS: u32 = 1000;

/// Rows of PostgreSQL after which a list ends.
const MAX_ROWS: usize = 100_000;

/// Maximum time for an output's way from S3: 10 MiB at 3 Mbit/s.
const MAX_OUTPUT_TIME: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows a record: status, lease, history, and the effect on the next delivery.
    #[command(after_help = "\
Example: sqs-once record show 'payments#order-1' --table idempotency

Exit code 1: there is no record under the key, or --result could not read the output from S3.")]
    Show(Show),
    /// Lists records. Reads the whole table, up to a limit, and names the cost.
    #[command(after_help = "\
Example: sqs-once record list --status in-progress --expired-lease --table idempotency

The exit code is 0 also if no record was found.")]
    List(List),
    /// Ends the lease of a record whose worker is known to be dead.
    #[command(after_help = "\
Shows the record, and asks. The lease ends only if the record is then as it was shown. The open
transaction of a PostgreSQL consumer is no lease: PostgreSQL ends the transaction.

Exit code 1: nothing was changed. There is no record or no live lease, the record changed after it was
shown, an open transaction locks it, or the answer was not yes.")]
    Release(Change),
    /// Deletes a record, so that the next message under the key runs as the first.
    #[command(after_help = "\
Shows the record, and asks. The record is deleted only if it is then as it was shown.

Exit code 1: nothing was changed. There is no record, the record changed after it was shown, an open
transaction locks it, or the answer was not yes.")]
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
    /// Shows the stored result, also one in S3. It is payload.
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
    /// Read units of DynamoDB after which the command stops, 1000 by default. A unit is 8 KB of the
    /// table. In PostgreSQL the command stops after 100,000 rows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_units: Option<u32>,
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
    /// Time between reads. In DynamoDB, each read takes one read unit for every 4 KB of the record.
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

async fn read(records: &Records, key: &str) -> Result<StoredRecord, Error> {
    let found = records.look_up(key).await.map_err(Error::remote)?;
    if let Some(found) = found {
        return Ok(found);
    }
    match records.has_open_claim(key).await {
        Ok(false) => {}
        Ok(true) => {
            return Err(Error::negative(format!(
                "no record under the key `{key}` yet: an open transaction claims it. {OPEN_TRANSACTION}"
            )));
        }
        Err(error) => eprintln!("sqs-once: {error}; an open transaction may claim the key"),
    }
    let form = match key.contains('#') {
        true => "",
        false => ", which begins with the namespace, as in payments#order-1",
    };
    Err(Error::negative(format!(
        "no record under the key `{key}`: check the table and the key{form} (`record list --prefix TEXT` finds keys)"
    )))
}

/// The words for the transaction of [`StoredRecord::locked_by`].
const OPEN_TRANSACTION: &str = "A handler runs, or its worker was cut off. There is no lease to \
    release: PostgreSQL ends the transaction after the worker's deadline";

impl Show {
    async fn run(self, format: Format) -> Result<End, Error> {
        let stored = read(&self.table.open().await?, &self.key).await?;
        let part = match &stored.record {
            Ok(record) if self.result => Part::output_of(record).await?,
            _ => Part::Size,
        };
        let view = View::of(&stored, &self.table, &part);
        view.print(format)?;
        match part {
            Part::Output(Err(why)) => Err(Error::negative(why)),
            _ => Ok(End::Done),
        }
    }
}

impl Change {
    async fn release(self, format: Format) -> Result<End, Error> {
        let records = self.table.open().await?;
        let shown = self.read(&records).await?;
        let view = View::of(&shown, &self.table, &Part::Size);
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
        let applied = records.release(&shown, Timestamp::now()).await;
        self.done(format, "released", applied.map_err(Error::remote)?)
    }

    async fn forget(self, format: Format) -> Result<End, Error> {
        let records = self.table.open().await?;
        let shown = self.read(&records).await?;
        if !self.yes {
            let view = View::of(&shown, &self.table, &Part::Size);
            eprintln!("{}\n", clean(&view.text()));
            eprintln!(
                "Without the record, the next message under this key runs as the first one, with its effect."
            );
        }
        confirm("Shall the record be deleted?", self.yes)?;
        let applied = records.forget(&shown).await;
        self.done(format, "forgotten", applied.map_err(Error::remote)?)
    }

    /// Reads the record to change. An open transaction decides about the record that it locks.
    async fn read(&self, records: &Records) -> Result<StoredRecord, Error> {
        let found = read(records, &self.key).await?;
        match found.locked_by {
            None => Ok(found),
            Some(session) => Err(Error::negative(format!(
                "nothing was changed: an open transaction of the PostgreSQL session {session} locks the record. \
                 {OPEN_TRANSACTION}"
            ))),
        }
    }

    fn done(&self, format: Format, word: &str, applied: bool) -> Result<End, Error> {
        let key = &self.key;
        if !applied {
            return Err(Error::negative(format!(
                "nothing was changed: another program changed the record of `{key}` after it was shown, or claims it; show it again"
            )));
        }
        answer(
            format,
            || format!("{word}: {key}"),
            || json!({"key": key, "done": word}),
        )?;
        Ok(End::Done)
    }
}

fn unreadable(key: &str, reason: &str) -> Error {
    Error::negative(format!(
        "nothing was changed: the table has no valid record under `{key}` ({reason}); in DynamoDB, check --layout and --attributes"
    ))
}

impl Watch {
    async fn run(self, format: Format) -> Result<End, Error> {
        let records = self.table.open().await?;
        let end = Timestamp::now() + self.timeout;
        let mut seen = None;
        loop {
            let stored = records.look_up(&self.key).await.map_err(Error::remote)?;
            let found = stored
                .as_ref()
                .map(|stored| (stored.record.clone(), stored.locked_by));
            if seen.as_ref() != Some(&found) {
                match &stored {
                    Some(stored) => {
                        View::of(stored, &self.table, &Part::Size).print_line(format)?
                    }
                    None => answer(
                        format,
                        || format!("{}  {}  no record", Timestamp::now(), self.key),
                        || json!({"key": self.key, "status": null}),
                    )?,
                }
            }
            let ended = match &found {
                // The transaction decides about the next state.
                Some((_, Some(_))) => false,
                Some((Ok(record), None)) => !matches!(record.state, State::InProgress { .. }),
                // A record that was never there may still come.
                None => seen.as_ref().is_some_and(Option::is_some),
                Some((Err(_), None)) => true,
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
            seen = Some(found);
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
        let records = self.table.open().await?;
        if self.max_units.is_some() && !matches!(records, Records::DynamoDb(_)) {
            return Err(Error::usage(
                "--max-units is for DynamoDB: PostgreSQL has no read units",
            ));
        }
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
        let (mut found, mut next) = (Vec::new(), self.after.clone());
        let mut cost = Cost::default();
        let (max_units, progress) = (self.max_units.unwrap_or(MAX_UNITS), Progress::new());
        loop {
            let page = records.list(&filter, next.as_deref(), PAGE, now).await;
            let page = page.map_err(Error::remote)?;
            cost.add(&page);
            found.extend(page.records);
            next = page.next;
            let share = (found.len() as f64 / f64::from(self.limit)).max(cost.share(max_units));
            progress.show(share, &format!("{}, {} found", cost.text(), found.len()));
            if next.is_none() || share >= 1.0 {
                break;
            }
        }
        drop(progress);
        // The rest of the last page is listed again after the last record of this one.
        if found.len() > limit {
            found.truncate(limit);
            next = found.last().map(|last| last.key.clone());
        }
        self.print(format, &found, next.as_deref(), &cost)?;
        Ok(End::Done)
    }

    fn print(
        &self,
        format: Format,
        records: &[StoredRecord],
        next: Option<&str>,
        cost: &Cost,
    ) -> Result<(), Error> {
        let views = || {
            records
                .iter()
                .map(|stored| View::of(stored, &self.table, &Part::Unread))
        };
        let text = || {
            let header = ["KEY", "STATUS", "ATTEMPTS", "UPDATED", "MESSAGE", "ERROR"];
            let mut text = String::new();
            if !records.is_empty() {
                text = columns(header, views().map(|view| view.row())) + "\n\n";
            }
            let found = count(records.len(), "record");
            text.push_str(&match cost.units {
                Some(units) => format!(
                    "{found} found. Cost: {units} read units, for {}.",
                    count(cost.items, "item")
                ),
                None => format!("{found} found in {}.", count(cost.items, "row")),
            });
            if let Some(next) = next {
                text.push_str(&format!(
                    "\nThe table was not read to its end. Continue with --after '{next}'"
                ));
            }
            text
        };
        let json = || {
            let records: Vec<_> = views().map(|view| view.json()).collect();
            json!({"records": records, "items_read": cost.items, "read_units": cost.units, "next": next})
        };
        answer(format, text, json)
    }
}

/// The reads of a list.
#[derive(Default)]
struct Cost {
    /// Items of DynamoDB, or rows of PostgreSQL.
    items: usize,
    /// Read units of DynamoDB.
    units: Option<f64>,
}

impl Cost {
    fn add(&mut self, page: &RecordPage) {
        self.items += page.read;
        let units = page.units.map(|units| units + self.units.unwrap_or(0.0));
        self.units = units;
    }

    /// The part of the permitted reads.
    fn share(&self, max_units: u32) -> f64 {
        match self.units {
            Some(units) => units / f64::from(max_units),
            None => self.items as f64 / MAX_ROWS as f64,
        }
    }

    fn text(&self) -> String {
        match self.units {
            Some(units) => format!("{} items, {units} read units", self.items),
            None => format!("{} rows", self.items),
        }
    }
}

/// The part of an output that is shown.
#[derive(Debug)]
enum Part {
    /// A list does not read outputs.
    Unread,
    Size,
    /// The output, or the reason why S3 does not have it.
    Output(Result<String, String>),
}

impl Part {
    async fn output_of(record: &Record) -> Result<Self, Error> {
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

/// A record as it is shown.
struct View<'a> {
    stored: &'a StoredRecord,
    verdict: Verdict,
    now: Timestamp,
    part: &'a Part,
}

impl<'a> View<'a> {
    fn of(stored: &'a StoredRecord, table: &Table, part: &'a Part) -> Self {
        let now = Timestamp::now();
        Self {
            stored,
            verdict: Verdict::by(stored, table.after_failure(), now),
            now,
            part,
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

    /// Status, and lease or lock.
    fn status(&self) -> String {
        match self.stored.locked_by {
            Some(_) => format!("{}; locked by an open transaction", self.state()),
            None => self.state(),
        }
    }

    fn state(&self) -> String {
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
            line(
                "locked by",
                self.stored
                    .locked_by
                    .map(|session| format!("PostgreSQL session {session}. {OPEN_TRANSACTION}")),
            );
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
            line(
                "died alone",
                Some(record.exclusive_attempts)
                    .filter(|count| *count > 0 && record.last_end.is_none())
                    .map(|count| {
                        let times = if count == 1 { "time" } else { "times" };
                        format!("{count} {times}: attempts that ran alone and have no recorded end")
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
            "locked_by_session": self.stored.locked_by,
            "owner": record.owner.as_ref().map(Owner::as_str),
            "message_id": record.message_id,
            "attempts": record.attempts,
            "created_at": record.created_at.map(time),
            "updated_at": record.updated_at.map(time),
            "expires_at": time(Timestamp::from_millis(record.expires_at.saturating_mul(1000))),
            "open_attempt": record.first_claimed_at.is_some(),
            "first_claimed_at": record.first_claimed_at.filter(known).map(time),
            "last_end": record.last_end.map(AttemptEnd::name),
            "exclusive_attempts": record.exclusive_attempts,
            "failed_message_ids": record.failed_message_ids,
            "error": record.error,
            "next_message": self.verdict.name(),
        });
        match &record.state {
            State::InProgress { lease_until } => {
                shown["lease_until"] = json!(time(*lease_until));
                shown["lease_left_s"] = json!(self.now.until(*lease_until).as_secs());
            }
            State::Completed { .. } if matches!(self.part, Part::Unread) => {}
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
                    // A result that is no JSON is shown as text.
                    Part::Output(Ok(text)) => {
                        let value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
                        shown["result"] = value;
                    }
                    Part::Output(Err(why)) => shown["result_error"] = json!(why),
                    Part::Unread | Part::Size => {}
                }
            }
            State::Failed => {}
        }
        shown
    }
}
