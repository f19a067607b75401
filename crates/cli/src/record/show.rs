//! `record show`: prints one record, with its result if asked to.

use clap::Args;

use super::{
    read,
    view::{Part, View},
};
use crate::{
    next_delivery::Rules,
    output::{CommandEnd, Error, Format},
    table::TableArgs,
};

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The key, as logs show it: payments#order-1.
    key: String,
    /// Shows the stored result, even if it is in S3. It is payload.
    #[arg(long)]
    result: bool,
    /// Lambda function whose settings decide what the next message does. Without this, the defaults decide.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    #[command(flatten)]
    table: TableArgs,
}

impl Show {
    pub(super) async fn run(self, format: Format) -> Result<CommandEnd, Error> {
        let stored = read(&self.table.open().await?, &self.key).await?;
        let part = match &stored.record {
            Ok(record) if self.result => Part::output_of(record).await?,
            _ => Part::Size,
        };
        let rules = match &self.function {
            Some(name) => Rules::of_function(name).await?,
            None => Rules::default(),
        };
        let view = View::under(rules, &stored, &part);
        view.print(format)?;
        match part {
            Part::Output(Err(why)) => Err(Error::negative(why)),
            _ => Ok(CommandEnd::Done),
        }
    }
}
