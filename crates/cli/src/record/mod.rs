//! `sqs-once record`: reads and changes records.

mod change;
mod show;
mod view;

use clap::Subcommand;
use sqs_once::{internal::StoredRecord, store::DynamoStore};

use crate::output::{CommandEnd, Error, Format};
use change::ChangeArgs;
use show::Show;

#[derive(Debug, Subcommand)]
pub(crate) enum RecordCommand {
    /// Shows a record: status, lease, history, and what the next delivery will do.
    #[command(after_help = "\
Example: sqs-once record show 'payments#order-1' --table idempotency

Exit code 1: there is no record under the key, or --result could not read the output from S3.")]
    Show(Show),
    /// Ends the lease of a record whose worker is known to be dead.
    #[command(after_help = "\
Shows the record, and asks. The lease ends only if the record is then as it was shown.

Exit code 1: nothing was changed. There is no record or no live lease, the record changed after it was
shown, or the answer was not yes.")]
    Release(ChangeArgs),
    /// Closes the open attempts of a record, after you have looked for their effect and found none.
    #[command(after_help = "\
Shows the record, and asks. The next message runs, is told of no earlier attempt, and has a call key
that the called system has never seen. The record changes only if it is then as it was shown.

Exit code 1: nothing was changed. There is no record, it is COMPLETED or has a live lease, it changed
after it was shown, or the answer was not yes.")]
    Decline(ChangeArgs),
    /// Deletes a record, so that the next message under the key runs as if it were the first.
    #[command(after_help = "\
Shows the record, and asks. The record is deleted only if it is then as it was shown.

Exit code 1: nothing was changed. There is no record, the record changed after it was shown, or the
answer was not yes.")]
    Delete(ChangeArgs),
    #[command(hide = true)]
    List {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _options: Vec<String>,
    },
}

impl RecordCommand {
    pub(crate) async fn run(self, format: Format) -> Result<CommandEnd, Error> {
        match self {
            Self::Show(show) => show.run(format).await,
            Self::Release(change) => change.release(format).await,
            Self::Decline(change) => change.decline(format).await,
            Self::Delete(change) => change.delete(format).await,
            Self::List { .. } => Err(Error::usage(
                "`record list` is gone: scan the table, as in docs/runbook.md, \"A record stuck in progress\"",
            )),
        }
    }
}

async fn read(records: &DynamoStore, key: &str) -> Result<StoredRecord, Error> {
    let found = records.show(key).await.map_err(Error::remote)?;
    found.ok_or_else(|| {
        let form = if key.contains('#') {
            ""
        } else {
            ", which begins with the namespace, as in payments#order-1"
        };
        Error::negative(format!(
            "no record under the key `{key}`: check the table and the key{form} (the consumer's log lines have the key)"
        ))
    })
}
