//! `record release` and `record delete`: end a lease or delete a record, after asking.

use clap::Args;
use serde_json::json;
use sqs_once::{
    internal::StoredRecord,
    protocol::{Record, State, Timestamp},
};

use super::{
    OPEN_TRANSACTION, read,
    view::{Part, View},
};
use crate::{
    output::{End, Error, Format, answer, at, clean, confirm},
    table::{Records, Table},
};

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

impl Change {
    pub(super) async fn release(self, format: Format) -> Result<End, Error> {
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
            Err(found) => return Err(unreadable(&self.key, &found.reason)),
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
        let applied = records.release(&shown, Timestamp::now()).await;
        self.done(format, "released", applied.map_err(Error::remote)?)
    }

    pub(super) async fn delete(self, format: Format) -> Result<End, Error> {
        let records = self.table.open().await?;
        let shown = self.read(&records).await?;
        if !self.yes {
            let view = View::of(&shown, &self.table, &Part::Size);
            eprintln!("{}\n", clean(&view.text()));
            eprintln!(
                "Without the record, the next message under this key runs as the first one, with its effect."
            );
        }
        if let (Ok(record), Some(call_key)) = (&shown.record, shown.call_key())
            && (record.first_claimed_at.is_some() || record.generation > 0)
        {
            eprintln!(
                "The called system may know the operation under the call key {call_key}. Look there first: after the deletion, \
                 nothing tells the next attempt of it."
            );
        }
        confirm("Shall the record be deleted?", self.yes)?;
        let applied = records.delete_record(&shown).await;
        self.done(format, "deleted", applied.map_err(Error::remote)?)
    }

    /// Reads the record to change. If an open transaction locks it, that transaction decides about the
    /// record.
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
        "nothing was changed: the table has no valid record under `{key}` ({reason}); in DynamoDB, check --attributes"
    ))
}
