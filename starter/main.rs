//! `make new`: the command `sqs-once new` alone.

#[path = "../crates/cli/src/new.rs"]
mod new;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "make new")]
struct Cli {
    #[command(flatten)]
    new: new::New,
}

fn main() -> ExitCode {
    match Cli::parse().new.run() {
        Ok(project) => {
            println!("Next: cd {} && make dev", project.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("make new: {error}");
            ExitCode::FAILURE
        }
    }
}
