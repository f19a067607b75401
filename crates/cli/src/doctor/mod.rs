//! `sqs-once doctor`: reads a deployed stack, and reports settings that silently break the promises.

mod account;
mod checks;
mod facts;
mod policies;
mod reads;

use clap::{Args, builder::PossibleValuesParser};
use serde_json::json;

use crate::{
    aws,
    output::{End, Error, Format, answer, count},
};
use account::Account;
use checks::{Check, Client, Finding, Findings, NotChecked, check, check_relay, notifications};
use facts::Function;

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Name or ARN of the CloudFormation stack.
    stack: String,
    /// Omits a check. Repeat the option for more than one.
    #[arg(long, value_name = "CHECK", value_parser = PossibleValuesParser::new(Check::NAMES))]
    skip: Vec<String>,
    /// PostgreSQL database of the stack's functions, to check its connections, tables and privileges:
    /// postgres://user@host/database. Set PGPASSWORD for the password.
    #[arg(
        long,
        env = "IDEMPOTENCY_POSTGRES_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    postgres: Option<String>,
    /// Authentication in PostgreSQL: password, iam for a token of RDS, or the ARN of a secret.
    #[arg(long, env = "IDEMPOTENCY_POSTGRES_AUTH", value_name = "KIND")]
    postgres_auth: Option<String>,
}

impl Doctor {
    pub(crate) async fn run(self, format: Format) -> Result<End, Error> {
        let account = Account::new(aws::config().await?);
        let mut findings = Findings::default();
        let functions = self.check_stack(&account, &mut findings).await?;
        let Findings {
            mut all,
            not_checked,
            ..
        } = findings;
        all.retain(|finding| !self.skips(finding.check));
        if functions.is_empty() {
            return Err(Error::negative(format!(
                "stack `{}` has no function with the variable IDEMPOTENCY_TABLE_NAME, IDEMPOTENCY_POSTGRES_URL or OUTBOX_TARGETS: nothing was checked{}",
                self.stack,
                not_checked.iter().map(show_not_checked).collect::<String>()
            )));
        }
        let text = || {
            let mut text: String = all.iter().map(show).collect();
            let findings = count(all.len(), "finding");
            text.push_str(&format!("{}: {findings}", functions.join(", ")));
            text.extend(not_checked.iter().map(show_not_checked));
            text
        };
        let json = || {
            json!({
                "stack": self.stack,
                "functions": functions,
                "not_checked": not_checked.iter().map(NotChecked::json).collect::<Vec<_>>(),
                "skipped": self.skip,
                "findings": all.iter().map(Finding::json).collect::<Vec<_>>(),
            })
        };
        answer(format, text, json)?;
        Ok(if all.is_empty() {
            End::Done
        } else {
            End::NotDone
        })
    }

    /// Checks the stack with all its functions. Returns the functions that were checked.
    async fn check_stack(
        &self,
        account: &Account,
        findings: &mut Findings,
    ) -> Result<Vec<String>, Error> {
        let resources = account.resources(&self.stack).await?;
        let (mut functions, mut clients) = (Vec::new(), Vec::new());
        let of_lambda = resources
            .iter()
            .filter(|of| of.kind == "AWS::Lambda::Function");
        for name in of_lambda.map(|function| &function.physical) {
            let with_policies = !self.skips(Check::Permissions);
            match account.function(name, &resources, with_policies).await? {
                Function::Consumer(consumer) => {
                    check(&consumer, findings);
                    clients.extend(Client::consumer(&consumer));
                }
                Function::Relay(relay) => {
                    check_relay(&relay, &resources, findings);
                    clients.extend(Client::relay(&relay));
                }
                Function::Other => {
                    findings.about(format!("function {name}"));
                    findings.skip("no variable of a consumer or relay");
                    continue;
                }
            }
            functions.push(name.clone());
        }
        self.check_clients(account, &clients, findings).await?;
        if !functions.is_empty()
            && !self.skips(Check::AlarmActions)
            && let Some(told) = account.notifications(&self.stack).await?
        {
            findings.all.extend(notifications(&self.stack, &told));
        }
        Ok(functions)
    }

    fn skips(&self, check: Check) -> bool {
        self.skip.iter().any(|name| name == check.name())
    }

    /// Checks the functions that use PostgreSQL, and their database if `--postgres` names it.
    async fn check_clients(
        &self,
        account: &Account,
        clients: &[Client],
        findings: &mut Findings,
    ) -> Result<(), Error> {
        for client in clients {
            client.check(findings);
        }
        let url = self.postgres.as_ref().filter(|url| !url.is_empty());
        match url {
            Some(url) if !clients.is_empty() => {
                self.check_database(url, account, clients, findings).await
            }
            _ => {
                for client in clients {
                    client.was_not_read("pass --postgres URL", findings);
                }
                Ok(())
            }
        }
    }

    #[cfg(feature = "postgres")]
    async fn check_database(
        &self,
        url: &str,
        account: &Account,
        clients: &[Client],
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let auth = self.postgres_auth.as_deref().unwrap_or_default();
        let variables = [
            ("IDEMPOTENCY_POSTGRES_URL", url),
            ("IDEMPOTENCY_POSTGRES_AUTH", auth),
        ];
        let mut settings = sqs_once::Settings::from_vars(variables);
        let database = sqs_once_postgres::DatabaseSettings::read(&mut settings);
        let database = settings.check(database).map_err(Error::usage)?;
        let store = database.store(&account.config).map_err(Error::usage)?;
        let failed = |reason| Error::remote(format!("could not read the database: {reason}"));
        let (mut in_database, mut server) = (Vec::new(), None);
        for client in clients {
            let examined = store.examine(&client.user).await.map_err(failed)?;
            let examined: checks::Server =
                serde_json::from_value(examined).map_err(|error| failed(error.to_string()))?;
            if client.check_in(&examined, findings) {
                in_database.push(client);
                server = Some(examined);
            }
        }
        if let Some(server) = server {
            let oldest = store.oldest_event_age().await;
            checks::check_server(&in_database, &server, oldest, findings);
        }
        Ok(())
    }

    #[cfg(not(feature = "postgres"))]
    async fn check_database(
        &self,
        _url: &str,
        _account: &Account,
        _clients: &[Client],
        _findings: &mut Findings,
    ) -> Result<(), Error> {
        Err(crate::table::needs_postgres())
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

fn show_not_checked(not_checked: &NotChecked) -> String {
    format!(
        "\nnot checked: {}: {}",
        not_checked.resource, not_checked.reason
    )
}
