//! `sqs-once doctor`: reads a deployed stack, and reports mistakes that break a promise.

pub(crate) mod account;
mod checks;
mod permissions;

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::{Value, json};

use crate::{
    aws,
    output::{CommandEnd, Error, Format, answer, count},
};
use account::{Account, Function};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("checked").required(true).multiple(true))]
pub(crate) struct Doctor {
    /// Name or ARN of the CloudFormation stack.
    #[arg(group = "checked")]
    stack: Option<String>,
    /// Checks this function, also without a stack. Repeat the option for more than one.
    #[arg(long, group = "checked", value_name = "NAME")]
    function: Vec<String>,
    /// Omits the findings of a check. Repeat the option for more than one.
    #[arg(long, value_enum, value_name = "CHECK")]
    skip: Vec<Check>,
}

/// A check. Its name is stable, because `--skip` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Lambda deletes failed messages, or events that were not sent.
    PartialResponses,
    /// The visibility timeout of a queue is too short.
    VisibilityTimeout,
    /// Messages reach the dead-letter queue too early, or too late for the queue's retention.
    Receives,
    /// A queue has no dead-letter queue.
    DeadLetterQueue,
    /// The dead-letter queue keeps messages no longer than the queue.
    DeadLetterRetention,
    /// Records are kept for a shorter time than messages.
    RecordRetention,
    /// Every retry is too old to repeat.
    CallKeyLifetime,
    /// A table is missing, or has a different primary key.
    KeySchema,
    /// TTL is off, or on a different attribute.
    Ttl,
    /// The table has replicas, or strong consistency.
    GlobalTable,
    /// The role lacks a permission.
    Permissions,
    /// Nothing starts the relay, or a target of it does not exist.
    Relay,
}

impl Check {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

/// Something that breaks a promise.
struct Finding {
    check: Check,
    resource: String,
    found: String,
    /// Says what happens to messages or alarms if nobody fixes it.
    consequence: &'static str,
    fix: String,
}

impl Finding {
    fn text(&self) -> String {
        let Self {
            check,
            resource,
            found,
            consequence,
            fix,
        } = self;
        format!(
            "{}: {resource}\n  found          {found}\n  if it stays    {consequence}\n  to fix it      {fix}\n\n",
            check.name()
        )
    }

    fn json(&self) -> Value {
        json!({
            "check": self.check.name(),
            "resource": self.resource,
            "found": self.found,
            "consequence": self.consequence,
            "fix": self.fix,
        })
    }
}

/// Collects the findings, one resource after the other.
#[derive(Default)]
struct Findings {
    all: Vec<Finding>,
    /// Resources, each with the reason why something about it was not checked.
    not_checked: Vec<(String, String)>,
    /// Resources, each with a state that stops messages or alarms, but that may be intended or temporary.
    notes: Vec<(String, String)>,
    resource: String,
}

impl Findings {
    fn add(
        &mut self,
        check: Check,
        found: impl Into<String>,
        consequence: &'static str,
        fix: impl Into<String>,
    ) {
        self.all.push(Finding {
            check,
            resource: self.resource.clone(),
            found: found.into(),
            consequence,
            fix: fix.into(),
        });
    }

    /// Notes that something about the resource was not checked.
    fn skip(&mut self, reason: impl Into<String>) {
        self.not_checked
            .push((self.resource.clone(), reason.into()));
    }

    fn note(&mut self, text: impl Into<String>) {
        self.notes.push((self.resource.clone(), text.into()));
    }

    /// Sets the resource that the next findings are about.
    fn about(&mut self, resource: impl Into<String>) {
        self.resource = resource.into();
    }

    fn not_checked(&self) -> String {
        lines("not checked", &self.not_checked)
    }
}

fn lines(label: &str, about: &[(String, String)]) -> String {
    let line = |(resource, text): &(String, String)| format!("\n{label}: {resource}: {text}");
    about.iter().map(line).collect()
}

impl Doctor {
    pub(crate) async fn run(self, format: Format) -> Result<CommandEnd, Error> {
        let account = Account::new(aws::config().await?);
        let mut findings = Findings::default();
        let mut checked = Vec::new();
        let mut names = self.function.clone();
        if let Some(stack) = &self.stack {
            for topic in account.resources(stack, "AWS::SNS::Topic").await? {
                findings.about(format!("topic {topic}"));
                checks::topic(&account, &topic, &mut findings).await;
            }
            names.extend(account.resources(stack, "AWS::Lambda::Function").await?);
        }
        for name in names {
            let function = account.function(name).await?;
            if self.check(&account, &function, &mut findings).await? {
                checked.push(function.name);
            }
        }
        if checked.is_empty() {
            return Err(Error::negative(format!(
                "found no function with variables of a consumer or a relay: nothing was checked{}",
                findings.not_checked()
            )));
        }
        findings
            .all
            .retain(|finding| !self.skip.contains(&finding.check));
        let all = &findings.all;
        let text = || {
            let mut text: String = all.iter().map(Finding::text).collect();
            let found = count(all.len(), "finding");
            text.push_str(&format!("{}: {found}", checked.join(", ")));
            text.push_str(&lines("note", &findings.notes));
            text.push_str(&findings.not_checked());
            text
        };
        let json = || {
            let not_checked = findings.not_checked.iter();
            let not_checked = not_checked
                .map(|(resource, reason)| json!({"resource": resource, "reason": reason}));
            let notes = findings.notes.iter();
            let notes = notes.map(|(resource, note)| json!({"resource": resource, "note": note}));
            let skipped = self.skip.iter().map(|check| check.name());
            json!({
                "stack": self.stack,
                "functions": checked,
                "notes": notes.collect::<Vec<_>>(),
                "not_checked": not_checked.collect::<Vec<_>>(),
                "skipped": skipped.collect::<Vec<_>>(),
                "findings": all.iter().map(Finding::json).collect::<Vec<_>>(),
            })
        };
        answer(format, text, json)?;
        Ok(if all.is_empty() {
            CommandEnd::Done
        } else {
            CommandEnd::NotDone
        })
    }

    /// Checks a function with its sources, tables and role. Returns false if it is neither a consumer nor a
    /// relay.
    async fn check(
        &self,
        account: &Account,
        function: &Function,
        findings: &mut Findings,
    ) -> Result<bool, Error> {
        findings.about(format!("function {}", function.name));
        if !function.is_ours() {
            findings.skip("no variable of a consumer or a relay");
            return Ok(false);
        }
        let mappings = account.mappings(&function.name).await?;
        let needed = if function.is_relay(&mappings) {
            checks::relay(account, function, &mappings, findings).await?
        } else {
            checks::consumer(account, function, &mappings, findings).await?
        };
        if !self.skip.contains(&Check::Permissions) {
            findings.about(format!("role of function {}", function.name));
            permissions::check(account, function, needed, findings).await;
        }
        Ok(true)
    }
}
