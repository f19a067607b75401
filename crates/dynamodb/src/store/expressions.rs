//! DynamoDB requests that write records. All condition expressions on records are in this file.

#![expect(
    clippy::expect_used,
    reason = "a builder fails only where a required field is missing, and all are set"
)]

use std::{collections::HashMap, mem};

use aws_sdk_dynamodb::types::{
    AttributeValue, Delete, Put, ReturnValuesOnConditionCheckFailure::AllOld, Update,
};

use super::{
    item::{millis, result_field},
    layout::{Field, Layout},
};
use crate::item::{Item, number, string};
use sqs_once_core::protocol::{
    AfterFailure, Before, ClaimRequest, Fence, Fingerprint, Record, Settlement, State, Timestamp,
    decision::Claimed, record::MAX_FAILED_MESSAGES,
};
use sqs_once_core::store::admin::{RecordFilter, RecordStatus};

/// Attributes that a completion removes: those of the claim and of earlier attempts.
pub(super) const REMOVED_BY_COMPLETION: [Field; 6] = [
    Field::LeaseUntil,
    Field::FirstClaimedAt,
    Field::LastEnd,
    Field::ExclusiveAttempts,
    Field::Error,
    Field::FailedMessageIds,
];

/// Placeholder of the request's time in epoch milliseconds.
const NOW: &str = ":now";
/// Placeholder of the status word IN_PROGRESS.
const IN_PROGRESS: &str = ":in_progress";

/// Builder of update and condition expressions, with names and values of their placeholders.
///
/// The placeholders contain the attribute's native name: `#owner` for the attribute, and `:owner`
/// for its new value. Values that several parts share have names of their own: `:now`.
struct Expression<'a> {
    layout: &'a Layout,
    /// True for each field in `names`, by the field's number.
    named: [bool; Field::ALL.len()],
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
    set: String,
    remove: String,
    add: String,
}

impl<'a> Expression<'a> {
    fn new(layout: &'a Layout) -> Self {
        Self {
            layout,
            named: [false; Field::ALL.len()],
            // A claim has 13, a completion 10.
            names: HashMap::with_capacity(14),
            // A claim has 11, a completion 6. Space for 14 exceeds the sizes that malloc finds quickly.
            values: HashMap::with_capacity(7),
            set: String::with_capacity(384),
            remove: String::with_capacity(128),
            add: String::new(),
        }
    }

    fn name(&mut self, field: Field) -> &'static str {
        let placeholder = field.name_placeholder();
        if !mem::replace(&mut self.named[field as usize], true) {
            let name = self.layout.name(field).to_owned();
            self.names.insert(placeholder.to_owned(), name);
        }
        placeholder
    }

    fn names<const N: usize>(&mut self, fields: [Field; N]) {
        for field in fields {
            self.name(field);
        }
    }

    fn value(&mut self, placeholder: &str, value: AttributeValue) {
        self.values.insert(placeholder.to_owned(), value);
    }

    fn new_value(&mut self, field: Field, value: AttributeValue) -> &'static str {
        let placeholder = field.value_placeholder();
        self.value(placeholder, value);
        placeholder
    }

    fn set(&mut self, field: Field, value: AttributeValue) {
        let placeholder = self.new_value(field, value);
        self.set_to(field, placeholder);
    }

    /// Sets an attribute to the value of a placeholder.
    fn set_to(&mut self, field: Field, placeholder: &str) {
        let name = self.name(field);
        push(&mut self.set, "SET ", &[name, " = ", placeholder]);
    }

    fn set_to_if_absent(&mut self, field: Field, placeholder: &str) {
        let name = self.name(field);
        let parts = [name, " = if_not_exists(", name, ", ", placeholder, ")"];
        push(&mut self.set, "SET ", &parts);
    }

    fn remove(&mut self, field: Field) {
        let name = self.name(field);
        push(&mut self.remove, "REMOVE ", &[name]);
    }

    fn set_or_remove(&mut self, field: Field, value: Option<AttributeValue>) {
        match value {
            Some(value) => self.set(field, value),
            None => self.remove(field),
        }
    }

    fn add(&mut self, field: Field, value: AttributeValue) {
        let (name, value) = (self.name(field), self.new_value(field, value));
        push(&mut self.add, "ADD ", &[name, " ", value]);
    }

    /// Sets the status FAILED, and removes the lease. If FAILED and IN_PROGRESS have the same word,
    /// sets `lease_until` to 0 instead.
    fn set_failed(&mut self) {
        let words = &self.layout.words;
        self.set(Field::Status, string(&*words.failed));
        let shared = words.failed_is_in_progress();
        self.set_or_remove(Field::LeaseUntil, shared.then(|| number(0)));
    }

    fn update_expression(&self) -> String {
        let clauses = [&*self.set, &self.remove, &self.add];
        let mut expression = String::with_capacity(clauses.iter().map(|of| of.len() + 1).sum());
        for clause in clauses.into_iter().filter(|of| !of.is_empty()) {
            if !expression.is_empty() {
                expression.push(' ');
            }
            expression.push_str(clause);
        }
        expression
    }

    /// The placeholder of the status word IN_PROGRESS.
    fn in_progress_word(&mut self) -> &'static str {
        let word = string(&*self.layout.words.in_progress);
        self.value(IN_PROGRESS, word);
        IN_PROGRESS
    }

    fn in_progress(&mut self) -> String {
        let word = self.in_progress_word();
        self.status(word, ">")
    }

    fn failed(&mut self) -> String {
        let word = string(&*self.layout.words.failed);
        self.value(":failed", word);
        self.status(":failed", "=")
    }

    /// The condition that the record has this status.
    ///
    /// If FAILED and IN_PROGRESS have the same word, the condition compares `lease_until` with 0.
    fn status(&mut self, placeholder: &str, lease: &str) -> String {
        self.name(Field::Status);
        if !self.layout.words.failed_is_in_progress() {
            return format!("#status = {placeholder}");
        }
        self.name(Field::LeaseUntil);
        self.value(":zero", number(0));
        format!("#status = {placeholder} AND #lease_until {lease} :zero")
    }

    /// The condition of the fence. Implements
    /// [`may_settle`](sqs_once_core::protocol::decision::may_settle).
    fn fenced(&mut self, fence: &Fence) -> String {
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

    /// The part of a claim's condition for records that are not expired.
    ///
    /// With `own`, a takeover requires a record of this crate, which counts attempts.
    fn claimable(&mut self, request: &ClaimRequest, own: bool) -> String {
        self.names([Field::FailedMessageIds, Field::LeaseUntil]);
        self.new_value(Field::MessageId, string(&request.message_id));
        self.value(NOW, millis(request.now));
        let mut taken_over = format!("{} AND #lease_until < :now", self.in_progress());
        if own {
            self.name(Field::Attempts);
            taken_over.push_str(" AND attribute_exists(#attempts)");
        }
        if let Some(fingerprint) = &request.fingerprint {
            self.name(Field::Fingerprint);
            self.new_value(Field::Fingerprint, string(fingerprint.as_str()));
            taken_over.push_str(
                " AND (attribute_not_exists(#fingerprint) OR #fingerprint = :fingerprint",
            );
            if let Some(scheme) = fingerprint.scheme() {
                self.name(Field::FingerprintScheme);
                self.new_value(Field::FingerprintScheme, string(scheme));
                taken_over.push_str(
                    " OR (attribute_exists(#fingerprint_scheme) \
                     AND #fingerprint_scheme <> :fingerprint_scheme)",
                );
            }
            taken_over.push(')');
        }
        let state = match request.after_failure {
            AfterFailure::Replay => taken_over,
            AfterFailure::Retry => {
                let failed = self.failed();
                self.value(":max", number(MAX_FAILED_MESSAGES as u64));
                format!(
                    "(({taken_over}) OR ({failed} AND (attribute_not_exists(#failed_message_ids) \
                     OR size(#failed_message_ids) < :max)))"
                )
            }
        };
        format!("NOT contains(#failed_message_ids, :message_id) AND {state}")
    }

    /// The condition of a claim by `UpdateItem`.
    ///
    /// An update keeps attributes of the record, so the record must not be expired. This condition
    /// is stricter than [`may_claim`](sqs_once_core::protocol::decision::may_claim). [`put_over`] replaces
    /// the other records that `may_claim` admits.
    fn claim_by_update(&mut self, request: &ClaimRequest) -> String {
        self.names([Field::Id, Field::ExpiresAt]);
        self.value(":now_s", number(request.now.as_secs()));
        let claimable = self.claimable(request, true);
        format!("attribute_not_exists(#id) OR (#expires_at >= :now_s AND {claimable})")
    }

    /// The condition of a claim by `PutItem`, which keeps no attribute of the record. Implements
    /// [`may_claim`](sqs_once_core::protocol::decision::may_claim).
    fn claim_by_put(&mut self, request: &ClaimRequest) -> String {
        self.names([Field::Id, Field::ExpiresAt]);
        self.value(":now_s", number(request.now.as_secs()));
        let claimable = self.claimable(request, false);
        format!("attribute_not_exists(#id) OR #expires_at < :now_s OR ({claimable})")
    }

    /// The condition that these attributes are as in `found`.
    fn unchanged(&mut self, found: &Item, fields: &[Field]) -> String {
        // The values as DynamoDB returned them: another program's numbers may have fractions.
        let unchanged = fields.iter().map(|&field| {
            let name = self.name(field);
            match found.get(self.layout.name(field)) {
                Some(value) => {
                    let placeholder = format!(":found_{}", field.native_name());
                    self.value(&placeholder, value.clone());
                    format!("{name} = {placeholder}")
                }
                None => format!("attribute_not_exists({name})"),
            }
        });
        unchanged.collect::<Vec<_>>().join(" AND ")
    }

    fn set_fingerprint(&mut self, fingerprint: Option<&Fingerprint>) {
        let hex = fingerprint.map(Fingerprint::as_str);
        self.set_or_remove(Field::Fingerprint, hex.map(string));
        let scheme = fingerprint.and_then(Fingerprint::scheme);
        self.set_or_remove(Field::FingerprintScheme, scheme.map(string));
    }

    /// Sets the attributes common to claims and inserts of a failure.
    fn set_claim(&mut self, request: &ClaimRequest, expires_at: u64) {
        self.set(Field::Owner, string(request.owner.as_str()));
        self.set(Field::ExpiresAt, number(expires_at));
        self.set(Field::MessageId, string(&request.message_id));
        self.set_fingerprint(request.fingerprint.as_ref());
        self.value(NOW, millis(request.now));
        self.set_to_if_absent(Field::CreatedAt, NOW);
        self.set_to(Field::UpdatedAt, NOW);
        self.remove(Field::LastEnd);
        self.add(Field::Attempts, number(1));
    }

    fn into_update(self, table: &str, key: Item, condition: String) -> Update {
        Update::builder()
            .table_name(table)
            .set_key(Some(key))
            .update_expression(self.update_expression())
            .condition_expression(condition)
            .set_expression_attribute_names(Some(self.names))
            .set_expression_attribute_values(Some(self.values))
            .return_values_on_condition_check_failure(AllOld)
            .build()
            .expect("every required field is set")
    }

    fn into_put(self, table: &str, item: Item, condition: String) -> Put {
        Put::builder()
            .table_name(table)
            .set_item(Some(item))
            .condition_expression(condition)
            .set_expression_attribute_names(Some(self.names))
            .set_expression_attribute_values(Some(self.values).filter(|values| !values.is_empty()))
            .return_values_on_condition_check_failure(AllOld)
            .build()
            .expect("every required field is set")
    }
}

/// Adds an action to a clause of an update expression.
fn push(clause: &mut String, keyword: &str, action: &[&str]) {
    clause.push_str(if clause.is_empty() { keyword } else { ", " });
    clause.extend(action.iter().copied());
}

/// Builds a claim.
pub(super) fn claim(layout: &Layout, table: &str, request: &ClaimRequest) -> Update {
    let mut with = Expression::new(layout);
    let in_progress = with.in_progress_word();
    with.set_to(Field::Status, in_progress);
    with.set(Field::LeaseUntil, millis(request.lease_until));
    with.set_claim(request, request.expires_at);
    with.set_to_if_absent(Field::FirstClaimedAt, NOW);
    let condition = with.claim_by_update(request);
    with.into_update(table, layout.primary_key(request.key.as_str()), condition)
}

/// Builds the put of an inbox: a COMPLETED record, on the condition of a claim.
pub(super) fn insert_completed(
    layout: &Layout,
    table: &str,
    request: &ClaimRequest,
    record: &Record,
) -> Put {
    let mut with = Expression::new(layout);
    let condition = with.claim_by_put(request);
    with.into_put(table, layout.item(&request.key, record), condition)
}

/// Builds the update of an inbox that records a permanent failure, on the condition of a claim.
pub(super) fn insert_failed(
    layout: &Layout,
    table: &str,
    request: &ClaimRequest,
    error: &str,
    expires_at: u64,
) -> Update {
    let mut with = Expression::new(layout);
    with.set_failed();
    with.set_claim(request, expires_at);
    with.set(Field::Error, string(error));
    let failed = AttributeValue::Ss(vec![request.message_id.clone()]);
    with.add(Field::FailedMessageIds, failed);
    let condition = with.claim_by_update(request);
    with.into_update(table, layout.primary_key(request.key.as_str()), condition)
}

/// Builds a put that replaces `found`, an item that is expired or another program's.
///
/// An update cannot replace such an item. The put's condition is that `found` is unchanged or was
/// deleted.
pub(super) fn put_over(layout: &Layout, table: &str, found: &Item, item: Item) -> Put {
    let mut with = Expression::new(layout);
    let unchanged = with.unchanged(
        found,
        &[
            Field::Status,
            Field::Owner,
            Field::LeaseUntil,
            Field::ExpiresAt,
        ],
    );
    let id = with.name(Field::Id);
    let condition = format!("attribute_not_exists({id}) OR ({unchanged})");
    with.into_put(table, item, condition)
}

/// Builds the update that settles a claim. `None` if the settlement deletes the record.
pub(super) fn settle(
    layout: &Layout,
    table: &str,
    fence: &Fence,
    settlement: &Settlement,
    now: Timestamp,
) -> Option<Update> {
    let mut with = Expression::new(layout);
    with.set(Field::UpdatedAt, millis(now));
    match settlement {
        Settlement::Complete { result, expires_at } => {
            with.set(Field::Status, string(&*layout.words.completed));
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
        Settlement::EndLease { last_end } => {
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
            if let Some(count) = exclusive_attempts {
                with.set(Field::ExclusiveAttempts, number(*count));
            }
        }
    }
    let condition = with.fenced(fence);
    let key = layout.primary_key(fence.key.as_str());
    Some(with.into_update(table, key, condition))
}

fn restore(with: &mut Expression<'_>, claimed: &Claimed, now: Timestamp) -> Option<()> {
    match &claimed.before {
        Before::Nothing => return None,
        Before::Record(before) => {
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
        Before::Unknown => with.set(Field::LeaseUntil, millis(now)),
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
pub(super) fn delete(layout: &Layout, table: &str, fence: &Fence) -> Delete {
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

/// The attributes that every claim and settlement changes, and those that another program changes.
const CHANGING: [Field; 6] = [
    Field::Status,
    Field::Owner,
    Field::LeaseUntil,
    Field::ExpiresAt,
    Field::Attempts,
    Field::UpdatedAt,
];

/// Builds the update by which an operator ends the lease of `found`, if the record is unchanged.
pub(super) fn release(layout: &Layout, table: &str, found: &Item, now: Timestamp) -> Update {
    let mut with = Expression::new(layout);
    with.set(Field::LeaseUntil, millis(now));
    with.set(Field::UpdatedAt, millis(now));
    with.remove(Field::ExclusiveAttempts);
    let condition = with.unchanged(found, &CHANGING);
    with.into_update(table, layout.primary_key_of(found), condition)
}

/// Builds the delete by which an operator removes the record `found`, if the record is unchanged.
pub(super) fn forget(layout: &Layout, table: &str, found: &Item) -> Delete {
    let mut with = Expression::new(layout);
    let condition = with.unchanged(found, &CHANGING);
    Delete::builder()
        .table_name(table)
        .set_key(Some(layout.primary_key_of(found)))
        .condition_expression(condition)
        .set_expression_attribute_names(Some(with.names))
        .set_expression_attribute_values(Some(with.values).filter(|values| !values.is_empty()))
        .build()
        .expect("every required field is set")
}

/// Expressions of a page of records.
pub(super) struct Listing {
    /// Condition on the primary key. `None` for a scan.
    pub(super) key_condition: Option<String>,
    pub(super) filter: String,
    pub(super) projection: String,
    pub(super) names: HashMap<String, String>,
    pub(super) values: HashMap<String, AttributeValue>,
}

/// Builds the expressions that find records by `filter`. Results are not read.
pub(super) fn list(layout: &Layout, filter: &RecordFilter, now: Timestamp) -> Listing {
    let mut with = Expression::new(layout);
    let mut conditions = vec![format!("{} >= :now_s", with.name(Field::ExpiresAt))];
    with.value(":now_s", number(now.as_secs()));
    match filter.status {
        Some(RecordStatus::InProgress) => conditions.push(with.in_progress()),
        Some(RecordStatus::Failed) => conditions.push(with.failed()),
        Some(RecordStatus::Completed) => {
            conditions.push(format!("{} = :completed", with.name(Field::Status)));
            with.value(":completed", string(&*layout.words.completed));
        }
        // Items of other programs have no status.
        None => conditions.push(format!("attribute_exists({})", with.name(Field::Status))),
    }
    if filter.expired_lease {
        conditions.push(format!("{} < :now", with.name(Field::LeaseUntil)));
        with.value(":now", millis(now));
    }
    let mut key_condition = None;
    let id = match layout.sort() {
        None => with.name(Field::Id),
        Some((sort, partition)) => {
            with.names.insert("#sort".into(), sort.to_owned());
            with.value(":partition", string(partition));
            key_condition = Some(format!("{} = :partition", with.name(Field::Id)));
            "#sort"
        }
    };
    if let Some(prefix) = &filter.prefix {
        with.value(":prefix", string(prefix));
        let begins = format!("begins_with({id}, :prefix)");
        match &mut key_condition {
            Some(condition) => *condition = format!("{condition} AND {begins}"),
            None => conditions.push(begins),
        }
    }
    let fields = Field::ALL.into_iter();
    let results = [Field::Result, Field::ResultInS3, Field::ResultOmitted];
    let fields = fields.filter(|field| !results.contains(field));
    let mut projection: Vec<_> = fields.map(|field| with.name(field)).collect();
    if layout.sort().is_some() {
        projection.push(id);
    }
    Listing {
        key_condition,
        filter: conditions.join(" AND "),
        projection: projection.join(", "),
        names: with.names,
        values: with.values,
    }
}
