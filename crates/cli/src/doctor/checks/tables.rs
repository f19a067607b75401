//! Checks the DynamoDB tables: the one for records, and the one for published events.

use aws_sdk_dynamodb::types::{KeyType, StreamViewType};
use sqs_once_dynamodb::store::Field;

use super::{Check, Findings};
use crate::doctor::facts::{Consumer, Records, Table};

/// Checks the table for records and the table for events.
pub(super) fn tables(consumer: &Consumer, findings: &mut Findings) {
    let name = |variable| consumer.function.variable(variable).unwrap_or_default();
    match &consumer.records {
        Records::DynamoDb(found) => {
            findings.about(format!("table {}", name("IDEMPOTENCY_TABLE_NAME")));
            match found {
                None => findings.add(
                    Check::Table,
                    "DynamoDB has no such table",
                    "every message fails, and reaches the dead-letter queue",
                    "correct IDEMPOTENCY_TABLE_NAME, or create the table",
                ),
                Some(found) => table(consumer, found, findings),
            }
        }
        Records::Postgres { .. } => {}
    }
    if let Some(outbox) = &consumer.outbox {
        findings.about(format!("table {}", name("OUTBOX_TABLE_NAME")));
        outbox_table(outbox.as_ref(), findings);
    }
}

/// Checks the table of published events.
fn outbox_table(table: Option<&Table>, findings: &mut Findings) {
    const NOT_PUBLISHED: &str =
        "each message whose answer publishes fails, and reaches the dead-letter queue";
    let key = |name: &str, role| (name.to_owned(), role, true);
    let wanted = [key("group", KeyType::Hash), key("sequence", KeyType::Range)];
    let Some(table) = table else {
        let fix =
            "correct OUTBOX_TABLE_NAME, or create the table: docs/outbox.md#relay-of-dynamodb";
        findings.add(
            Check::OutboxTable,
            "DynamoDB has no such table",
            NOT_PUBLISHED,
            fix,
        );
        return;
    };
    if let Some(what) = other_key(table, &wanted) {
        let fix = "create a table with that key, as examples/outbox.template.yaml has it";
        findings.add(Check::OutboxTable, what, NOT_PUBLISHED, fix);
    }
    if !matches!(
        table.stream,
        Some(StreamViewType::NewImage | StreamViewType::NewAndOldImages)
    ) {
        findings.add(
            Check::OutboxTable,
            "the table has no stream with new images",
            "no relay gets the events",
            "set StreamSpecification: { StreamViewType: NEW_IMAGE }",
        );
    }
}

/// A key attribute: its name, its role, and whether its type is string.
type KeyAttribute = (String, KeyType, bool);

/// Returns how the primary key of a table differs from the one that the consumer writes.
fn other_key(table: &Table, wanted: &[KeyAttribute]) -> Option<String> {
    (table.keys != wanted).then(|| {
        let (found, wanted) = (text(&table.keys), text(wanted));
        format!("the primary key is {found}, and the consumer writes {wanted}")
    })
}

/// Returns the key attributes as text, with their roles and types.
fn text(keys: &[KeyAttribute]) -> String {
    let text = |(name, role, string): &KeyAttribute| {
        let kind = if *string { "string" } else { "no string" };
        format!("{name} ({role}, {kind})")
    };
    keys.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Returns the name of a record's attribute in this consumer's layout.
fn attribute(consumer: &Consumer, field: Field) -> String {
    let names = consumer
        .function
        .variable("IDEMPOTENCY_ATTRIBUTES")
        .unwrap_or_default();
    let mut pairs = names.split(',').filter_map(|pair| pair.split_once('='));
    let renamed = pairs.rfind(|(native, _)| *native == field.native_name());
    let powertools = consumer.function.variable("IDEMPOTENCY_LAYOUT") == Some("powertools");
    match renamed {
        Some((_, name)) => name.to_owned(),
        None if powertools && field == Field::ExpiresAt => "expiration".to_owned(),
        None => field.native_name().to_owned(),
    }
}

fn table(consumer: &Consumer, table: &Table, findings: &mut Findings) {
    let mut wanted = vec![(attribute(consumer, Field::Id), KeyType::Hash, true)];
    if let Some(sort) = consumer.function.variable("IDEMPOTENCY_SORT_KEY") {
        let name = sort.split_once('=').map_or(sort, |(name, _)| name);
        wanted.push((name.to_owned(), KeyType::Range, true));
    }
    if let Some(what) = other_key(table, &wanted) {
        findings.add(
            Check::KeySchema,
            what,
            "DynamoDB refuses every claim: every message fails",
            "create a table with that key, or set IDEMPOTENCY_ATTRIBUTES and IDEMPOTENCY_SORT_KEY",
        );
    }
    let expires = attribute(consumer, Field::ExpiresAt);
    match &table.ttl_attribute {
        None => findings.add(
            Check::Ttl,
            "TTL is off",
            "DynamoDB never deletes records: the table and its cost grow without end",
            format!("enable TTL on the attribute `{expires}`"),
        ),
        Some(attribute) if *attribute != expires => findings.add(
            Check::Ttl,
            format!("TTL is on the attribute `{attribute}`"),
            "DynamoDB deletes records too early, and their messages run again; or never, and the table grows",
            format!("move TTL to the attribute `{expires}`"),
        ),
        Some(_) => {}
    }
    let region = table.arn.split(':').nth(3).unwrap_or_default();
    if !region.is_empty() && region != consumer.function.region {
        findings.add(
            Check::TableRegion,
            format!("the table is in {region}, and the function in {}", consumer.function.region),
            "each claim takes a request between Regions: messages are slow, and fail when either Region does",
            "use a table in the Region of the function",
        );
    }
    if table.strongly_consistent {
        findings.add(
            Check::GlobalTable,
            "the table is a global table with strong consistency",
            "it has no TTL and no transactions: records stay, and an inbox fails",
            "use a table in one Region",
        );
    } else if table.replicas.iter().any(|replica| replica != region) {
        findings.add(
            Check::GlobalTable,
            format!("the table has replicas: {}", table.replicas.join(", ")),
            "DynamoDB checks conditions in each Region separately: consumers in two Regions both run a message",
            "let the consumers of one Region write; if they do, pass --skip global-table",
        );
    }
}
