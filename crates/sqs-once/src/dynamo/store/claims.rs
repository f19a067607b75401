//! Claims: an `UpdateItem`, or a `PutItem` over an expired record.

use aws_sdk_dynamodb::{
    operation::{put_item::PutItemError, update_item::UpdateItemError},
    types::ReturnValue,
};

use super::{DynamoStore, Field, Place, Request, expressions};
use crate::{
    dynamo::{
        item::Item,
        write::{put_item, update_item},
    },
    protocol::{ClaimRequest, Record, decision::may_claim},
    store::{ClaimResponse, StoreError},
};

impl DynamoStore {
    /// Claims in `place`, or in the next free slot. This takes one request, or two if only a put can replace
    /// the record because it is expired.
    pub(super) async fn claim_in(
        &self,
        place: Option<Place>,
        request: &ClaimRequest,
    ) -> Result<ClaimResponse, StoreError> {
        let _place = self.places.or_take(place, Request::Claim).await;
        let (record, item) = match self.claim_by_update(request).await? {
            Claim::Applied(replaced) => return Ok(ClaimResponse::Applied { replaced }),
            Claim::ConditionFailed(record, item) => (record, item),
        };
        if !may_claim(Some(&record), request) {
            return Ok(ClaimResponse::ConditionFailed(record));
        }
        match self.claim_by_put(request, record, &item).await? {
            // The new record admits the claim.
            ClaimResponse::ConditionFailed(record) if may_claim(Some(&record), request) => {
                Err(StoreError::contended(
                    "claim",
                    &request.key,
                    self.place(),
                    "another worker changed the record before this write",
                ))
            }
            answer => Ok(answer),
        }
    }

    async fn claim_by_update(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let update = expressions::claim(&self.layout, &self.table, request);
        let call = update_item(&self.writing, update).return_values(ReturnValue::AllOld);
        match call.send().await {
            Ok(answer) => {
                // If no record existed, an emulator returns only the key.
                let status = self.layout.name(Field::Status);
                let replaced = answer
                    .attributes()
                    .filter(|old| old.contains_key(status))
                    .map(|old| self.read(&request.key, old))
                    .transpose()?;
                Ok(Claim::Applied(replaced))
            }
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    // An emulator that ignores `ReturnValuesOnConditionCheckFailure` returns no item.
                    let item = failed.item().cloned().unwrap_or_default();
                    let record = self.read(&request.key, &item)?;
                    Ok(Claim::ConditionFailed(record, item))
                }
                _ => Err(self.unavailable("claim", "dynamodb:UpdateItem", &request.key, error)),
            },
        }
    }

    /// Replaces the record `found`, which is expired, with a claim.
    async fn claim_by_put(
        &self,
        request: &ClaimRequest,
        found: Record,
        item: &Item,
    ) -> Result<ClaimResponse, StoreError> {
        let replaced = Some(found).filter(|found| !found.is_expired(request.now));
        let record = self
            .layout
            .item(&request.key, &request.record(replaced.as_ref()));
        let put = expressions::put_over(&self.layout, &self.table, item, record);
        let call = put_item(&self.writing, put);
        match call.send().await {
            Ok(_) => Ok(ClaimResponse::Applied { replaced }),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    let record = self.read(&request.key, failed.item().unwrap_or(&Item::new()))?;
                    Ok(ClaimResponse::ConditionFailed(record))
                }
                _ => Err(self.unavailable("claim", "dynamodb:PutItem", &request.key, error)),
            },
        }
    }
}

/// The response to a claim by `UpdateItem`.
enum Claim {
    Applied(Option<Record>),
    ConditionFailed(Record, Item),
}
