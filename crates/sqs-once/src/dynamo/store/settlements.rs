//! Settlements: an `UpdateItem` or `DeleteItem`, if the worker still holds the claim.

use aws_sdk_dynamodb::operation::{delete_item::DeleteItemError, update_item::UpdateItemError};

use super::{DynamoStore, Place, Request, expressions};
use crate::{
    dynamo::{
        item::Item,
        write::{delete_item, update_item},
    },
    protocol::{FencingToken, Settlement, Timestamp},
    store::{SettleResponse, StoreError},
};

impl DynamoStore {
    /// Settles in `place`, or in the next free slot.
    pub(super) async fn settle_in(
        &self,
        place: Option<Place>,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<SettleResponse, StoreError> {
        let kind = match settlement {
            Settlement::Complete { .. } | Settlement::Fail { .. } => Request::Other,
            Settlement::Release { .. } | Settlement::Restore(_) | Settlement::Renew { .. } => {
                Request::Lease
            }
        };
        let _place = self.places.or_take(place, kind).await;
        let update = expressions::settle(&self.layout, &self.table, fence, settlement, now);
        let Some(update) = update else {
            return self.delete(fence).await;
        };
        match update_item(&self.writing, update).send().await {
            Ok(_) => Ok(SettleResponse::Applied),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    self.condition_failed(fence, failed.item())
                }
                _ => {
                    let action = settlement.name();
                    Err(self.unavailable(action, "dynamodb:UpdateItem", &fence.key, error))
                }
            },
        }
    }

    async fn delete(&self, fence: &FencingToken) -> Result<SettleResponse, StoreError> {
        let delete = expressions::delete(&self.layout, &self.table, fence);
        match delete_item(&self.writing, delete).send().await {
            Ok(_) => Ok(SettleResponse::Applied),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(failed)) => {
                    self.condition_failed(fence, failed.item())
                }
                _ => Err(self.unavailable("restore", "dynamodb:DeleteItem", &fence.key, error)),
            },
        }
    }

    /// Reads the record on which a settlement's condition failed.
    pub(super) fn condition_failed(
        &self,
        fence: &FencingToken,
        item: Option<&Item>,
    ) -> Result<SettleResponse, StoreError> {
        let record = item.map(|item| self.read(&fence.key, item)).transpose()?;
        Ok(SettleResponse::ConditionFailed(record))
    }
}
