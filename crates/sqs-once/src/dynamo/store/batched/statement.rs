//! PartiQL statements for a claim over nothing, and for the two settlements that end most claims.
//!
//! Each statement makes the same write as its ordinary request in `expressions`, with the same or a stricter
//! condition.

use aws_sdk_dynamodb::types::{
    AttributeValue, BatchStatementRequest, ReturnValuesOnConditionCheckFailure::AllOld,
};

use crate::{
    dynamo::{
        item::{Item, number, string},
        store::{
            expressions::REMOVED_BY_COMPLETION,
            field::Field,
            item::{COMPLETED, FAILED, IN_PROGRESS, millis, result_field},
            layout::Layout,
        },
    },
    protocol::{FencingToken, Settlement, Timestamp},
};

/// Settlements with a longer text go out as ordinary requests. A large write gains little from batching, and
/// would delay the others. The record of a claim has at most 8 KB.
const MAX_BYTES: usize = 16 * 1024;

/// A statement, with its values in the order of its placeholders.
struct Statement {
    text: String,
    values: Vec<AttributeValue>,
}

impl Statement {
    /// Starts a statement, with the quoted table name between `start` and `end`.
    fn new(start: &str, table: &str, end: &str) -> Self {
        let mut text = String::with_capacity(512);
        text.push_str(start);
        push_quoted(&mut text, '"', table);
        text.push_str(end);
        Self {
            text,
            values: Vec::with_capacity(16),
        }
    }

    fn push(&mut self, before: &str, name: &str, after: &str, value: AttributeValue) {
        self.text.push_str(before);
        push_quoted(&mut self.text, '"', name);
        self.text.push_str(after);
        self.values.push(value);
    }

    fn set(&mut self, layout: &Layout, field: Field, value: AttributeValue) {
        self.push(" SET ", layout.name(field), " = ?", value);
    }

    fn remove(&mut self, layout: &Layout, field: Field) {
        self.text.push_str(" REMOVE ");
        push_quoted(&mut self.text, '"', layout.name(field));
    }

    /// Adds a member to a set. `set_add` creates the set if the record has none.
    fn add_to_set(&mut self, layout: &Layout, field: Field, member: &str) {
        let name = layout.name(field);
        self.text.push_str(" SET ");
        push_quoted(&mut self.text, '"', name);
        let set = AttributeValue::Ss(vec![member.to_owned()]);
        self.push(" = set_add(", name, ", ?)", set);
    }

    /// Sets the status FAILED, as `expressions` does.
    fn set_failed(&mut self, layout: &Layout) {
        self.set(layout, Field::Status, string(FAILED));
        self.remove(layout, Field::LeaseUntil);
    }

    /// Adds the condition of the fencing token. Implements
    /// [`may_settle`](crate::protocol::decision::may_settle).
    fn fenced(&mut self, layout: &Layout, fence: &FencingToken) {
        let mut before = " WHERE ";
        for (name, value) in sorted(layout.primary_key(fence.key.as_str())) {
            self.push(before, &name, " = ?", value);
            before = " AND ";
        }
        let owner = string(fence.owner.as_str());
        self.push(before, layout.name(Field::Owner), " = ?", owner);
        let status = layout.name(Field::Status);
        self.push(before, status, " = ?", string(IN_PROGRESS));
        if let Some(lease_until) = fence.lease_until {
            let lease = layout.name(Field::LeaseUntil);
            self.push(before, lease, " = ?", millis(lease_until));
        }
        if let Some(first_claimed_at) = fence.first_claimed_at {
            let first = layout.name(Field::FirstClaimedAt);
            self.push(before, first, " = ?", millis(first_claimed_at));
        }
    }

    fn build(self) -> BatchStatementRequest {
        let statement = BatchStatementRequest::builder()
            .statement(self.text)
            .set_parameters(Some(self.values))
            .return_values_on_condition_check_failure(AllOld);
        #[expect(clippy::expect_used, reason = "the one required field is set")]
        statement.build().expect("the statement has a text")
    }
}

/// Builds the statement that writes a claim's record, `item`, if no item exists.
///
/// DynamoDB does not return the existing item (`DuplicateItem`). An expired item also exists until TTL
/// deletes it.
pub(super) fn claim(table: &str, item: Item) -> BatchStatementRequest {
    let mut insert = Statement::new("INSERT INTO ", table, " VALUE {");
    let mut before = "";
    for (name, value) in sorted(item) {
        insert.text.push_str(before);
        // Attribute names are keys of a tuple here, so we write them as string literals.
        push_quoted(&mut insert.text, '\'', &name);
        insert.text.push_str(": ?");
        insert.values.push(value);
        before = ", ";
    }
    insert.text.push('}');
    insert.build()
}

/// Builds the statement that settles a claim. `None` if there is no statement for this settlement, or it is
/// too large for a batch.
///
/// There are statements for completions and permanent failures. There is none to undo a claim, because a
/// conditional `DELETE` of a missing item succeeds silently, and none to end or renew a lease, because that
/// is rare.
pub(super) fn settle(
    layout: &Layout,
    table: &str,
    fence: &FencingToken,
    settlement: &Settlement,
    now: Timestamp,
) -> Option<BatchStatementRequest> {
    let mut update = Statement::new("UPDATE ", table, "");
    update.set(layout, Field::UpdatedAt, millis(now));
    match settlement {
        Settlement::Complete { result, expires_at } => {
            update.set(layout, Field::Status, string(COMPLETED));
            let (field, text) = result_field(result);
            if text.len() > MAX_BYTES {
                return None;
            }
            update.set(layout, field, string(text));
            update.set(layout, Field::ExpiresAt, number(*expires_at));
            for field in REMOVED_BY_COMPLETION {
                update.remove(layout, field);
            }
        }
        Settlement::Fail {
            error,
            message_id,
            first_open,
            expires_at,
        } => {
            if error.len() + message_id.len() > MAX_BYTES {
                return None;
            }
            update.set_failed(layout);
            update.set(layout, Field::Error, string(error));
            update.set(layout, Field::ExpiresAt, number(*expires_at));
            update.add_to_set(layout, Field::FailedMessageIds, message_id);
            update.remove(layout, Field::ExclusiveAttempts);
            if *first_open {
                update.remove(layout, Field::FirstClaimedAt);
            }
        }
        Settlement::Release { .. } | Settlement::Restore(_) | Settlement::Renew { .. } => {
            return None;
        }
    }
    update.fenced(layout, fence);
    Some(update.build())
}

/// Sorts attributes by name, so that equal requests have equal text.
fn sorted(item: Item) -> Vec<(String, AttributeValue)> {
    let mut attributes: Vec<_> = item.into_iter().collect();
    attributes.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    attributes
}

/// Quotes a name. A quote inside the name is doubled.
fn push_quoted(text: &mut String, quote: char, name: &str) {
    text.push(quote);
    for part in name.split_inclusive(quote) {
        text.push_str(part);
        if part.ends_with(quote) {
            text.push(quote);
        }
    }
    text.push(quote);
}
