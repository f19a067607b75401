//! `record release`, `record decline` and `record delete`: ask, then end a lease, close open attempts, or delete a record.

use clap::Args;
use serde_json::json;
use sqs_once::{
    internal::StoredRecord,
    protocol::{Record, Timestamp},
};

use super::{
    read,
    view::{Part, View},
};
use crate::{
    output::{CommandEnd, Error, Format, answer, at, clean, confirm},
    table::TableArgs,
};

#[derive(Args, Debug)]
pub(crate) struct ChangeArgs {
    /// The key, as logs show it: payments#order-1.
    key: String,
    /// Does not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    table: TableArgs,
}

impl ChangeArgs {
    pub(super) async fn release(self, format: Format) -> Result<CommandEnd, Error> {
        let records = self.table.open().await?;
        let shown = read(&records, &self.key).await?;
        let view = View::of(&shown, &Part::Size);
        let record = self.readable(&shown)?;
        let Some(lease_until) = record.lease_until() else {
            return Err(Error::negative(format!(
                "nothing was changed: the record is {} and has no lease",
                record.state.name()
            )));
        };
        let now = Timestamp::now();
        if lease_until < now {
            return Err(Error::negative(format!(
                "nothing was changed: the lease ended {}; the next delivery takes over, or looks up first if its handler has a lookup",
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
        let released = record.released(Timestamp::now());
        let applied = records.replace(&shown, released).await;
        self.done(format, "released", applied.map_err(Error::remote)?)
    }

    pub(super) async fn decline(self, format: Format) -> Result<CommandEnd, Error> {
        let records = self.table.open().await?;
        let shown = read(&records, &self.key).await?;
        let record = self.readable(&shown)?;
        let Some(declined) = record.declined(Timestamp::now()) else {
            return Err(Error::negative(match record.lease_until() {
                Some(until) => format!(
                    "nothing was changed: a worker holds the lease until {until}, and may have its effect until then"
                ),
                None => "nothing was changed: the operation is completed".to_owned(),
            }));
        };
        if !self.yes {
            eprintln!("{}\n", clean(&View::of(&shown, &Part::Size).text()));
            eprintln!(
                "The next attempt is told of no earlier one, and has a new call key: if one of them had its effect, it happens twice."
            );
        }
        confirm(
            "Have you looked in the called system, and found no effect?",
            self.yes,
        )?;
        let applied = records.replace(&shown, declined).await;
        self.done(format, "declined", applied.map_err(Error::remote)?)
    }

    pub(super) async fn delete(self, format: Format) -> Result<CommandEnd, Error> {
        let records = self.table.open().await?;
        let shown = read(&records, &self.key).await?;
        if !self.yes {
            let view = View::of(&shown, &Part::Size);
            eprintln!("{}\n", clean(&view.text()));
            eprintln!(
                "Without the record, the next message under this key runs as the first one, with its effect."
            );
        }
        if let Ok(record) = &shown.record
            && (record.first_claimed_at.is_some() || record.generation > 0)
        {
            let name = match shown.call_key() {
                Some(call_key) => format!("the call key {call_key}"),
                None => "the call key in its log lines".to_owned(),
            };
            eprintln!(
                "The called system may know the operation under {name}. Look there first: after the deletion, \
                 nothing tells the next attempt of it."
            );
        }
        confirm("Shall the record be deleted?", self.yes)?;
        let applied = records.delete_record(&shown).await;
        self.done(format, "deleted", applied.map_err(Error::remote)?)
    }

    fn readable<'a>(&self, shown: &'a StoredRecord) -> Result<&'a Record, Error> {
        let found = shown.record.as_ref();
        found.map_err(|found| {
            Error::negative(format!(
                "nothing was changed: the table has no valid record under `{}` ({}): check --attributes",
                self.key, found.reason
            ))
        })
    }

    fn done(&self, format: Format, word: &str, applied: bool) -> Result<CommandEnd, Error> {
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
        Ok(CommandEnd::Done)
    }
}
