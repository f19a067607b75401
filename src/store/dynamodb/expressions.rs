//! A record's writes, as DynamoDB takes them. The only file with condition expressions on
//! records.

#![expect(
    clippy::expect_used,
    reason = "a builder fails only where a required field is missing, and all are set"
)]

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{
    AttributeValue, Delete, Put, ReturnValuesOnConditionCheckFailure, Update,
};

use crate::{
    protocol::{AfterFailure, ClaimRequest, Fence, Record, Settlement, StoredResult, Timestamp},
    store::{
        item::{millis, number, string},
        layout::{Field, Layout},
    },
};

/// The claim's condition, by its parts. The rule they write down is
/// [`may_claim`](crate::protocol::decision::may_claim).
///
/// A layout may have one word for in progress and failed; then the error tells them apart.
mod claimable {
    pub(super) const NEW: &str = "attribute_not_exists(#id)";
    pub(super) const EXPIRED: &str = "#expires_at < :now_s";
    pub(super) const DEAD: &str =
        "#status = :in_progress AND attribute_not_exists(#error) AND #lease_until < :now_ms";
    pub(super) const SAME_PAYLOAD: &str =
        "(attribute_not_exists(#fingerprint) OR #fingerprint = :fingerprint)";
    pub(super) const FAILED_FOR_ANOTHER: &str =
        "#status = :failed AND attribute_exists(#error) AND #message_id <> :message_id";
}

/// The fence. The rule it writes down is
/// [`may_settle`](crate::protocol::decision::may_settle).
const MINE: &str = "#owner = :me AND #status = :in_progress AND attribute_not_exists(#error)";

/// What completing and failing have in common.
const SETTLE: &str =
    "SET #status = :status, #outcome = :outcome, #expires_at = :expires_at, #updated_at = :now";

/// What stands for the names and values in an expression.
struct Placeholders<'a> {
    layout: &'a Layout,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

impl<'a> Placeholders<'a> {
    fn new(layout: &'a Layout) -> Self {
        let (names, values) = (HashMap::new(), HashMap::new());
        Self {
            layout,
            names,
            values,
        }
    }

    fn name(&mut self, placeholder: &str, field: Field) -> &mut Self {
        let name = self.layout.name(field).to_owned();
        self.names.insert(placeholder.to_owned(), name);
        self
    }

    fn value(&mut self, placeholder: &str, value: AttributeValue) -> &mut Self {
        self.values.insert(placeholder.to_owned(), value);
        self
    }

    /// What [`MINE`] speaks of.
    fn mine(&mut self, fence: &Fence) -> &mut Self {
        let in_progress = string(&*self.layout.words.in_progress);
        self.name("#owner", Field::Owner)
            .name("#status", Field::Status)
            .name("#error", Field::Error)
            .value(":me", string(fence.owner.as_str()))
            .value(":in_progress", in_progress)
    }
}

/// Puts `record` where `request` may claim.
pub(super) fn put(layout: &Layout, table: &str, request: &ClaimRequest, record: &Record) -> Put {
    let mut with = Placeholders::new(layout);
    with.name("#id", Field::Id)
        .name("#expires_at", Field::ExpiresAt)
        .name("#status", Field::Status)
        .name("#error", Field::Error)
        .name("#lease_until", Field::LeaseUntil)
        .value(":now_s", number(request.now.as_secs()))
        .value(":now_ms", millis(request.now))
        .value(":in_progress", string(&*layout.words.in_progress));
    let mut dead = claimable::DEAD.to_owned();
    if let Some(fingerprint) = &request.fingerprint {
        dead = format!("{dead} AND {}", claimable::SAME_PAYLOAD);
        with.name("#fingerprint", Field::Fingerprint)
            .value(":fingerprint", string(fingerprint.as_str()));
    }
    let mut condition = format!("{} OR {} OR ({dead})", claimable::NEW, claimable::EXPIRED);
    if request.after_failure == AfterFailure::Retry {
        condition = format!("{condition} OR ({})", claimable::FAILED_FOR_ANOTHER);
        with.name("#message_id", Field::MessageId)
            .value(":failed", string(&*layout.words.failed))
            .value(":message_id", string(&request.message_id));
    }
    Put::builder()
        .table_name(table)
        .set_item(Some(layout.item(&request.key, record)))
        .condition_expression(condition)
        .set_expression_attribute_names(Some(with.names))
        .set_expression_attribute_values(Some(with.values))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .build()
        .expect("every required field is set")
}

/// Ends a claim and keeps its record.
pub(super) fn update(
    layout: &Layout,
    table: &str,
    fence: &Fence,
    settlement: &Settlement,
    now: Timestamp,
) -> Update {
    let mut with = Placeholders::new(layout);
    with.mine(fence)
        .name("#lease_until", Field::LeaseUntil)
        .name("#updated_at", Field::UpdatedAt)
        .value(":now", millis(now));
    let words = &layout.words;
    let outcome = match settlement {
        Settlement::Complete { result, expires_at } => {
            let (field, text) = match result {
                StoredResult::Json(json) => (Field::Result, json),
                StoredResult::Omitted(why) => (Field::ResultOmitted, why),
            };
            Some((&words.completed, field, text, *expires_at))
        }
        Settlement::Fail { error, expires_at } => {
            Some((&words.failed, Field::Error, error, *expires_at))
        }
        Settlement::Abandon | Settlement::Release => None,
    };
    let expression = match outcome {
        None => "SET #lease_until = :now, #updated_at = :now".to_owned(),
        Some((status, field, text, expires_at)) => {
            with.name("#outcome", field)
                .name("#expires_at", Field::ExpiresAt)
                .value(":status", string(&**status))
                .value(":outcome", string(text))
                .value(":expires_at", number(expires_at));
            // Who takes a failed record for one in progress must not wait for it.
            if *status == words.in_progress {
                with.value(":zero", number(0));
                format!("{SETTLE}, #lease_until = :zero")
            } else {
                format!("{SETTLE} REMOVE #lease_until")
            }
        }
    };
    Update::builder()
        .table_name(table)
        .set_key(Some(layout.primary_key(fence.key.as_str())))
        .update_expression(expression)
        .condition_expression(MINE)
        .set_expression_attribute_names(Some(with.names))
        .set_expression_attribute_values(Some(with.values))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .build()
        .expect("every required field is set")
}

/// Ends a claim as if it had not been.
pub(super) fn delete(layout: &Layout, table: &str, fence: &Fence) -> Delete {
    let mut with = Placeholders::new(layout);
    with.mine(fence);
    Delete::builder()
        .table_name(table)
        .set_key(Some(layout.primary_key(fence.key.as_str())))
        .condition_expression(MINE)
        .set_expression_attribute_names(Some(with.names))
        .set_expression_attribute_values(Some(with.values))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .build()
        .expect("every required field is set")
}
