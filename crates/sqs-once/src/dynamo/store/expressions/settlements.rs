//! Expressions of settlements, whose condition is the fencing token of the claim.

use aws_sdk_dynamodb::types::{
    AttributeValue, Delete, ReturnValuesOnConditionCheckFailure::AllOld, Update,
};

use super::builder::Expression;
use crate::{
    dynamo::{
        item::{number, string},
        store::{
            field::Field,
            item::{COMPLETED, millis, result_field},
            layout::Layout,
        },
    },
    protocol::{FencingToken, PreviousRecord, Settlement, State, Timestamp, decision::PriorState},
};

/// Attributes that a completion removes: those of the claim and of earlier attempts.
pub(in crate::dynamo::store) const REMOVED_BY_COMPLETION: [Field; 6] = [
    Field::LeaseUntil,
    Field::FirstClaimedAt,
    Field::LastEnd,
    Field::ExclusiveAttempts,
    Field::Error,
    Field::FailedMessageIds,
];

impl Expression<'_> {
    /// Returns the condition of the fencing token. Implements
    /// [`may_settle`](crate::protocol::decision::may_settle).
    fn fenced(&mut self, fence: &FencingToken) -> String {
        self.name(Field::Owner);
        self.value(":me", string(fence.owner.as_str()));
        let mut condition = format!("#owner = :me AND {}", self.in_progress());
        if let Some(lease_until) = fence.lease_until {
            self.name(Field::LeaseUntil);
            self.value(":held_until", millis(lease_until));
            condition.push_str(" AND #lease_until = :held_until");
        }
        if let Some(first_claimed_at) = fence.first_claimed_at {
            self.name(Field::FirstClaimedAt);
            self.value(":claimed_at", millis(first_claimed_at));
            condition.push_str(" AND #first_claimed_at = :claimed_at");
        }
        condition
    }
}

/// Builds the update that settles a claim. `None` if the settlement deletes the record.
pub(in crate::dynamo::store) fn settle(
    layout: &Layout,
    table: &str,
    fence: &FencingToken,
    settlement: &Settlement,
    now: Timestamp,
) -> Option<Update> {
    let mut with = Expression::new(layout);
    with.set(Field::UpdatedAt, millis(now));
    match settlement {
        Settlement::Complete { result, expires_at } => {
            with.set(Field::Status, string(COMPLETED));
            let (field, text) = result_field(result);
            with.set(field, string(text));
            with.set(Field::ExpiresAt, number(*expires_at));
            for field in REMOVED_BY_COMPLETION {
                with.remove(field);
            }
        }
        Settlement::Fail {
            error,
            message_id,
            first_open,
            expires_at,
        } => {
            with.set_failed();
            with.set(Field::Error, string(error));
            with.set(Field::ExpiresAt, number(*expires_at));
            let failed = AttributeValue::Ss(vec![message_id.clone()]);
            with.add(Field::FailedMessageIds, failed);
            with.remove(Field::ExclusiveAttempts);
            if *first_open {
                with.remove(Field::FirstClaimedAt);
            }
        }
        Settlement::Release { last_end } => {
            with.set(Field::LeaseUntil, millis(now));
            with.set_or_remove(Field::LastEnd, last_end.map(|end| string(end.name())));
            if last_end.is_some() {
                with.remove(Field::ExclusiveAttempts);
            }
        }
        Settlement::Restore(claimed) => restore(&mut with, claimed, now)?,
        Settlement::Renew {
            lease_until,
            expires_at,
            exclusive_attempts,
        } => {
            with.set(Field::LeaseUntil, millis(*lease_until));
            with.set(Field::ExpiresAt, number(*expires_at));
            with.set(Field::ExclusiveAttempts, number(*exclusive_attempts));
        }
    }
    let condition = with.fenced(fence);
    let key = layout.primary_key(fence.key.as_str());
    Some(with.into_update(table, key, condition))
}

fn restore(with: &mut Expression<'_>, claimed: &PriorState, now: Timestamp) -> Option<()> {
    match &claimed.before {
        PreviousRecord::Nothing => return None,
        PreviousRecord::Record(before) => {
            if before.state == State::Failed {
                with.set_failed();
                with.set(Field::ExpiresAt, number(before.expires_at));
            } else {
                with.set(Field::LeaseUntil, millis(now));
            }
            with.set_fingerprint(before.fingerprint.as_ref());
            let message_id = before.message_id.as_deref();
            with.set_or_remove(Field::MessageId, message_id.map(string));
        }
        PreviousRecord::Unknown => with.set(Field::LeaseUntil, millis(now)),
    }
    let last_end = claimed.last_end.map(|end| string(end.name()));
    with.set_or_remove(Field::LastEnd, last_end);
    let count = Some(claimed.exclusive_attempts).filter(|count| *count > 0);
    with.set_or_remove(Field::ExclusiveAttempts, count.map(number));
    if claimed.is_first_open() {
        with.remove(Field::FirstClaimedAt);
    }
    Some(())
}

/// Builds the delete of a claim that had no effect and replaced no record.
pub(in crate::dynamo::store) fn delete(
    layout: &Layout,
    table: &str,
    fence: &FencingToken,
) -> Delete {
    let mut with = Expression::new(layout);
    let condition = with.fenced(fence);
    Delete::builder()
        .table_name(table)
        .set_key(Some(layout.primary_key(fence.key.as_str())))
        .condition_expression(condition)
        .set_expression_attribute_names(Some(with.names))
        .set_expression_attribute_values(Some(with.values))
        .return_values_on_condition_check_failure(AllOld)
        .build()
        .expect("every required field is set")
}
