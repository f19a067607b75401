//! `sqs-once`: creates projects, reads and changes records, moves dead letters, and checks deployed stacks.
//!
//! Works on AWS and on any other endpoint that you configure for the SDK (`AWS_ENDPOINT_URL`).

#[cfg(feature = "aws")]
mod aws;
#[cfg(feature = "aws")]
mod dead_letters;
#[cfg(feature = "aws")]
mod dlq;
#[cfg(feature = "aws")]
mod doctor;
#[cfg(feature = "aws")]
mod message_move;
mod new;
#[cfg(feature = "aws")]
mod next_delivery;
#[cfg_attr(
    not(feature = "aws"),
    allow(dead_code, reason = "the command `new` needs a part of it")
)]
mod output;
#[cfg(feature = "aws")]
mod preview;
#[cfg(feature = "aws")]
mod record;
#[cfg(feature = "aws")]
mod redrive;
#[cfg(feature = "aws")]
mod stop;
#[cfg(feature = "aws")]
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::json;

use output::{CommandEnd, Error, Format};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  not done, or only in part: see the help of the command
  2  the command line or a setting is invalid, or a question cannot be asked; nothing was changed
  3  AWS did not answer, or refused the request

Credentials, Region and endpoint are those of the AWS SDK: AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL.";

/// Looks after the records and dead letters of an sqs-once consumer.
#[derive(Debug, Parser)]
#[command(name = "sqs-once", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Format of the output. JSON is for scripts.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text, help_heading = "Output")]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = "\
Example: sqs-once new charge-cards

Needs no network and no AWS. When it fails, nothing is left.")]
    New(new::New),
    #[cfg(feature = "aws")]
    /// Reads and changes records in the idempotency table.
    #[command(subcommand)]
    Record(record::RecordCommand),
    #[cfg(feature = "aws")]
    /// Lists and moves the messages of a dead-letter queue.
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    #[cfg(feature = "aws")]
    /// Checks a deployed stack, or single functions, for mistakes that break a promise.
    #[command(after_help = "\
Examples: sqs-once doctor orders-stack
          sqs-once doctor --function orders-consumer

Each finding says its effect on messages, and the fix. Nothing is changed.

Exit code 1: there are findings, or there is no consumer and no relay.")]
    Doctor(doctor::Doctor),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command, cli.output) {
        Ok(CommandEnd::Done) => ExitCode::SUCCESS,
        Ok(CommandEnd::NotDone) => ExitCode::from(1),
        Err(error) => {
            eprintln!("sqs-once: {error}");
            ExitCode::from(match error {
                Error::Negative(_) => 1,
                Error::Usage(_) => 2,
                Error::Remote(_) => 3,
            })
        }
    }
}

#[cfg(feature = "aws")]
#[tokio::main(flavor = "current_thread")]
async fn run(command: Command, format: Format) -> Result<CommandEnd, Error> {
    match command {
        Command::New(new) => make_project(new, format),
        Command::Record(command) => command.run(format).await,
        Command::Dlq(command) => command.run(format).await,
        Command::Doctor(doctor) => doctor.run(format).await,
    }
}

#[cfg(not(feature = "aws"))]
fn run(Command::New(new): Command, format: Format) -> Result<CommandEnd, Error> {
    make_project(new, format)
}

fn make_project(new: new::New, format: Format) -> Result<CommandEnd, Error> {
    let project = new
        .run()
        .map_err(|error| Error::negative(error.to_string()))?;
    let project = project.display().to_string();
    output::answer(
        format,
        || format!("Next: cd {project} && cargo test"),
        || json!({ "project": project }),
    )?;
    Ok(CommandEnd::Done)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
