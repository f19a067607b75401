//! The permissions of a role, as its policies grant them.
//!
//! We read the policies and do not simulate them, because `iam:SimulatePrincipalPolicy` is seldom granted. We
//! assume that a statement with `Condition`, `NotAction` or `NotResource` may allow, and that it never
//! denies. We do not read permission boundaries and policies of the organization.

use aws_sdk_iam::Client;
use serde_json::Value;

use crate::{aws::failed, output::Error};

/// The statements of a role's policies.
#[derive(Debug, Default)]
pub(crate) struct Policies(Vec<Value>);

impl Policies {
    fn add(&mut self, document: &str) {
        let Ok(document) = serde_json::from_str::<Value>(document) else {
            return;
        };
        match &document["Statement"] {
            Value::Array(statements) => self.0.extend(statements.iter().cloned()),
            statement => self.0.push(statement.clone()),
        }
    }

    /// Returns whether the policies may allow `action` on `resource`.
    pub(crate) fn may_allow(&self, action: &str, resource: &str) -> bool {
        let covers = |statement: &&Value| {
            let open = !statement["NotAction"].is_null() || !statement["NotResource"].is_null();
            open || (any(
                &statement["Action"],
                &action.to_lowercase(),
                str::to_lowercase,
            ) && any(&statement["Resource"], resource, str::to_owned))
        };
        let certain = |statement: &&Value| {
            ["Condition", "NotAction", "NotResource"]
                .iter()
                .all(|name| statement[*name].is_null())
        };
        let of = |effect: &'static str| {
            let statements = self.0.iter();
            statements
                .filter(move |statement| statement["Effect"] == effect)
                .filter(covers)
        };
        of("Allow").next().is_some() && !of("Deny").any(|statement| certain(&statement))
    }

    /// Returns whether the policies may allow `action` on a resource whose ARN ends with a slash and this
    /// name, such as a database user. Ignores statements that deny.
    pub(crate) fn may_allow_name(&self, action: &str, name: &str) -> bool {
        let covers = |pattern: &str| match pattern.rsplit_once('/') {
            Some((_, pattern)) => matches(pattern, name),
            None => pattern.ends_with('*'),
        };
        let may = |statement: &Value| {
            statement["Effect"] == "Allow"
                && any(&statement["Action"], action, str::to_owned)
                && patterns(&statement["Resource"]).any(covers)
        };
        self.0.iter().any(may)
    }
}

/// Returns the patterns of a statement, which may be one text or a list.
fn patterns(patterns: &Value) -> impl Iterator<Item = &str> {
    let one = patterns.as_str().into_iter();
    let list = patterns.as_array().into_iter().flatten();
    one.chain(list.filter_map(Value::as_str))
}

/// Returns whether one of the patterns matches.
fn any(of: &Value, text: &str, fold: impl Fn(&str) -> String) -> bool {
    patterns(of).any(|pattern| matches(&fold(pattern), text))
}

/// Returns whether a pattern with `*` and `?` matches the whole text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = &pattern[1..];
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| matches(rest, &text[at..]))
        }
        Some(first) => text.chars().next().is_some_and(|c| {
            (first == '?' || first == c)
                && matches(&pattern[first.len_utf8()..], &text[c.len_utf8()..])
        }),
    }
}

/// Reads the policies of the role with this ARN.
pub(crate) async fn read(iam: &Client, role: &str) -> Result<Policies, Error> {
    let role = role.rsplit('/').next().unwrap_or_default();
    let action = format!("read the policies of role `{role}`; `--skip permissions` omits them");
    let mut policies = Policies::default();
    let mut inline = iam
        .list_role_policies()
        .role_name(role)
        .into_paginator()
        .items()
        .send();
    while let Some(name) = inline.next().await {
        let name = name.map_err(|error| failed(&action, "iam:ListRolePolicies", &error))?;
        let read = iam
            .get_role_policy()
            .role_name(role)
            .policy_name(name)
            .send()
            .await
            .map_err(|error| failed(&action, "iam:GetRolePolicy", &error))?;
        policies.add(&decoded(&read.policy_document));
    }
    let mut attached = iam
        .list_attached_role_policies()
        .role_name(role)
        .into_paginator()
        .items()
        .send();
    while let Some(policy) = attached.next().await {
        let permission = "iam:ListAttachedRolePolicies";
        let policy = policy.map_err(|error| failed(&action, permission, &error))?;
        let arn = policy.policy_arn.unwrap_or_default();
        let current = iam
            .get_policy()
            .policy_arn(&arn)
            .send()
            .await
            .map_err(|error| failed(&action, "iam:GetPolicy", &error))?;
        let version = current.policy.and_then(|policy| policy.default_version_id);
        let read = iam
            .get_policy_version()
            .policy_arn(&arn)
            .set_version_id(version)
            .send()
            .await
            .map_err(|error| failed(&action, "iam:GetPolicyVersion", &error))?;
        let document = read.policy_version.and_then(|version| version.document);
        policies.add(&decoded(&document.unwrap_or_default()));
    }
    Ok(policies)
}

/// Decodes IAM's response, which is percent-encoded JSON (RFC 3986).
fn decoded(document: &str) -> String {
    let mut bytes = Vec::with_capacity(document.len());
    let mut rest = document.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "arn:aws:dynamodb:eu-west-1:123456789012:table/records";

    fn policies(document: &str) -> Policies {
        let mut policies = Policies::default();
        policies.add(document);
        policies
    }

    #[test]
    fn wildcards_match_actions_and_resources() {
        for (document, wanted) in [
            (
                r#"{"Statement":{"Effect":"Allow","Action":"*","Resource":"*"}}"#,
                true,
            ),
            (
                r#"{"Statement":[{"Effect":"Allow","Action":["dynamodb:put*"],"Resource":"arn:aws:dynamodb:*:*:table/rec?rds"}]}"#,
                true,
            ),
            (
                r#"{"Statement":[{"Effect":"Allow","Action":"dynamodb:GetItem","Resource":"*"}]}"#,
                false,
            ),
            (
                r#"{"Statement":[{"Effect":"Allow","Action":"*","Resource":"arn:aws:dynamodb:*:*:table/other"}]}"#,
                false,
            ),
            (
                r#"{"Statement":[{"Effect":"Allow","NotAction":"iam:*","Resource":"*"}]}"#,
                true,
            ),
            (r#"{"Statement":[]}"#, false),
        ] {
            let allows = policies(document).may_allow("dynamodb:PutItem", TABLE);
            assert_eq!(allows, wanted, "{document}");
        }
    }

    #[test]
    fn deny_without_condition_wins() {
        let allow = r#"{"Effect":"Allow","Action":"*","Resource":"*"}"#;
        let deny = |more: &str| {
            let deny = format!(r#"{{"Effect":"Deny","Action":"dynamodb:*","Resource":"*"{more}}}"#);
            let policies = policies(&format!(r#"{{"Statement":[{allow},{deny}]}}"#));
            policies.may_allow("dynamodb:PutItem", TABLE)
        };
        assert!(!deny(""));
        assert!(deny(
            r#","Condition":{"Bool":{"aws:SecureTransport":"false"}}"#
        ));
    }

    #[test]
    fn database_user_is_the_end_of_its_arn() {
        let of = |resource: &str| {
            let document = format!(
                r#"{{"Statement":[{{"Effect":"Allow","Action":"rds-db:connect","Resource":["{resource}"]}}]}}"#
            );
            policies(&document).may_allow_name("rds-db:connect", "orders")
        };
        let users = "arn:aws:rds-db:eu-west-1:123456789012:dbuser:";
        for user in ["db-A1/orders", "*/ord*", "*"] {
            assert!(of(&format!("{users}{user}")), "{user}");
        }
        assert!(of("*"));
        for user in ["db-A1/other", "db-A1/orders2"] {
            assert!(!of(&format!("{users}{user}")), "{user}");
        }
    }

    #[test]
    fn document_is_percent_decoded() {
        assert_eq!(decoded("%7B%22a%22%3A%20%C3%A9%7D%"), "{\"a\": é}%");
    }
}
