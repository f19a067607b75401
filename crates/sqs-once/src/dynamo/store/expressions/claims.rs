//! Expressions of claims, and of an inbox's inserts, which have the condition of a claim.

use aws_sdk_dynamodb::types::{AttributeValue, Put, Update};

use super::builder::Expression;
use crate::{
    dynamo::{
        item::{Item, number, string},
        store::{field::Field, item::millis, layout::Layout},
    },
    protocol::{AfterFailure, ClaimRequest, Fingerprint, Record, record::MAX_FAILED_MESSAGES},
};

/// Placeholder of the request's time in epoch milliseconds.
const NOW: &str = ":now";

impl Expression<'_> {
    /// Returns the part of a claim's condition for records that are not expired.
    fn claimable(&mut self, request: &ClaimRequest) -> String {
        self.names([Field::FailedMessageIds, Field::LeaseUntil]);
        self.new_value(Field::MessageId, string(&request.message_id));
        self.value(NOW, millis(request.now));
        let lease_over = self.lease_over(request);
        let mut taken_over = format!("{} AND #lease_until < {lease_over}", self.in_progress());
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

    /// Returns the placeholder of the time before which an earlier lease must have ended.
    fn lease_over(&mut self, request: &ClaimRequest) -> &'static str {
        const LEASE_OVER: &str = ":lease_over";
        if request.takeover_after.is_zero() {
            return NOW;
        }
        self.value(LEASE_OVER, millis(request.takes_over_leases_before()));
        LEASE_OVER
    }

    /// Returns the condition of a claim by `UpdateItem`.
    ///
    /// An update keeps attributes of the record, so the record must not be expired. So this condition is
    /// stricter than [`may_claim`](crate::protocol::decision::may_claim). [`put_over`] replaces
    /// expired records.
    fn claim_by_update(&mut self, request: &ClaimRequest) -> String {
        self.names([Field::Id, Field::ExpiresAt]);
        self.value(":now_s", number(request.now.as_secs()));
        let claimable = self.claimable(request);
        format!("attribute_not_exists(#id) OR (#expires_at >= :now_s AND {claimable})")
    }

    /// Returns the condition of a claim by `PutItem`, which keeps no attribute of the record. Implements
    /// [`may_claim`](crate::protocol::decision::may_claim).
    fn claim_by_put(&mut self, request: &ClaimRequest) -> String {
        self.names([Field::Id, Field::ExpiresAt]);
        self.value(":now_s", number(request.now.as_secs()));
        let claimable = self.claimable(request);
        format!("attribute_not_exists(#id) OR #expires_at < :now_s OR ({claimable})")
    }

    pub(super) fn set_fingerprint(&mut self, fingerprint: Option<&Fingerprint>) {
        let hex = fingerprint.map(Fingerprint::as_str);
        self.set_or_remove(Field::Fingerprint, hex.map(string));
        let scheme = fingerprint.and_then(Fingerprint::scheme);
        self.set_or_remove(Field::FingerprintScheme, scheme.map(string));
    }

    /// Sets the attributes that claims and inserts of a failure have in common.
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
}

/// Builds a claim.
pub(in crate::dynamo::store) fn claim(
    layout: &Layout,
    table: &str,
    request: &ClaimRequest,
) -> Update {
    let mut with = Expression::new(layout);
    let in_progress = with.in_progress_word();
    with.set_to(Field::Status, in_progress);
    with.set(Field::LeaseUntil, millis(request.lease_until));
    with.set_claim(request, request.expires_at);
    with.set_to_if_absent(Field::FirstClaimedAt, NOW);
    let condition = with.claim_by_update(request);
    with.into_update(table, layout.primary_key(request.key.as_str()), condition)
}

/// Builds the put of an inbox: a COMPLETED record, with the condition of a claim.
pub(in crate::dynamo::store) fn insert_completed(
    layout: &Layout,
    table: &str,
    request: &ClaimRequest,
    record: &Record,
) -> Put {
    let mut with = Expression::new(layout);
    let condition = with.claim_by_put(request);
    with.into_put(table, layout.item(&request.key, record), condition)
}

/// Builds the update of an inbox that records a permanent failure, with the condition of a claim.
pub(in crate::dynamo::store) fn insert_failed(
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

/// Builds a put that replaces `found`, an expired item.
///
/// An update would keep its attributes. The put requires that `found` is unchanged or was deleted.
pub(in crate::dynamo::store) fn put_over(
    layout: &Layout,
    table: &str,
    found: &Item,
    item: Item,
) -> Put {
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
