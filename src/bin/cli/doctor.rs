//! `sqs-once doctor`: reads a deployed stack, and reports settings that silently break the promises.

mod checks;
mod facts;
mod policies;

use clap::{Args, builder::PossibleValuesParser};
use serde_json::json;

use crate::{
    aws,
    output::{End, Error, Format, answer, count},
};
use checks::{Check, Finding, check, notifications};
use facts::{Account, Function};

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Name or ARN of the CloudFormation stack.
    stack: String,
    /// Omits a check. Repeat the option for more than one.
    #[arg(long, value_name = "CHECK", value_parser = PossibleValuesParser::new(Check::NAMES))]
    skip: Vec<String>,
}

impl Doctor {
    pub(crate) async fn run(self, format: Format) -> Result<End, Error> {
        let account = Account::new(aws::config().await?);
        let skips = |check: Check| self.skip.iter().any(|name| name == check.name());
        let (mut functions, mut in_postgres) = (Vec::new(), Vec::new());
        let mut findings = Vec::new();
        for name in account.functions(&self.stack).await? {
            match account.function(&name, !skips(Check::Permissions)).await? {
                Function::Consumer(consumer) => {
                    findings.extend(check(&consumer));
                    functions.push(name);
                }
                Function::InPostgres => in_postgres.push(name),
                Function::Other => {}
            }
        }
        let not_checked = match in_postgres.is_empty() {
            true => String::new(),
            false => format!(
                "\nNot checked, because doctor reads only consumers with a DynamoDB table: {}",
                in_postgres.join(", ")
            ),
        };
        if functions.is_empty() {
            return Err(Error::negative(format!(
                "stack `{}` has no function with the variable IDEMPOTENCY_TABLE_NAME: nothing was checked{not_checked}",
                self.stack
            )));
        }
        if !skips(Check::AlarmActions)
            && let Some(told) = account.notifications(&self.stack).await?
        {
            findings.extend(notifications(&self.stack, &told));
        }
        findings.retain(|finding| !skips(finding.check));
        let text = || {
            let mut text: String = findings.iter().map(show).collect();
            let findings = count(findings.len(), "finding");
            text.push_str(&format!(
                "{}: {findings}{not_checked}",
                functions.join(", ")
            ));
            text
        };
        let json = || {
            let all: Vec<_> = findings.iter().map(Finding::json).collect();
            json!({
                "stack": self.stack,
                "functions": functions,
                "not_checked": in_postgres,
                "skipped": self.skip,
                "findings": all,
            })
        };
        answer(format, text, json)?;
        Ok(match findings.is_empty() {
            true => End::Done,
            false => End::NotDone,
        })
    }
}

fn show(finding: &Finding) -> String {
    format!(
        "{}: {}\n  found          {}\n  if it stays    {}\n  to fix it      {}\n\n",
        finding.check.name(),
        finding.resource,
        finding.found,
        finding.consequence,
        finding.fix
    )
}
