//! `sqs-once record`: reads and changes records.

mod change;
mod list;
mod show;
mod view;

use clap::Subcommand;
use sqs_once::internal::StoredRecord;

use crate::{
    output::{End, Error, Format},
    table::Records,
};
use change::Change;
use list::List;
use show::Show;

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
    /// Closes the open attempts of a record, after you have looked for their effect and found none.
    #[command(after_help = "\
Shows the record, and asks. The next message runs, is told of no earlier attempt, and has a call key
that the called system has never seen. The record changes only if it is then as it was shown.

Exit code 1: nothing was changed. There is no record, it is COMPLETED or has a live lease, it changed
after it was shown, an open transaction locks it, or the answer was not yes.")]
    Decline(Change),
    /// Deletes a record, so that the next message under the key runs as the first.
    #[command(after_help = "\
Shows the record, and asks. The record is deleted only if it is then as it was shown.

Exit code 1: nothing was changed. There is no record, the record changed after it was shown, an open
transaction locks it, or the answer was not yes.")]
    Delete(Change),
}

impl Command {
    pub(crate) async fn run(self, format: Format) -> Result<End, Error> {
        match self {
            Self::Show(show) => show.run(format).await,
            Self::List(list) => list.run(format).await,
            Self::Release(change) => change.release(format).await,
            Self::Decline(change) => change.decline(format).await,
            Self::Delete(change) => change.delete(format).await,
        }
    }
}

async fn read(records: &Records, key: &str) -> Result<StoredRecord, Error> {
    let found = records.show(key).await.map_err(Error::remote)?;
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
    let form = if key.contains('#') {
        ""
    } else {
        ", which begins with the namespace, as in payments#order-1"
    };
    Err(Error::negative(format!(
        "no record under the key `{key}`: check the table and the key{form} (`record list --prefix TEXT` finds keys)"
    )))
}

/// The text that commands print for the transaction of [`StoredRecord::locked_by`].
const OPEN_TRANSACTION: &str = "A handler runs, or its worker was cut off. There is no lease to \
    release: PostgreSQL ends the transaction after the worker's deadline";
