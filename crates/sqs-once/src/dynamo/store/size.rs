//! Size limits of records and results, checked before a request is sent.

use super::DynamoStore;
use crate::{
    dynamo::item as items,
    protocol::{
        ClaimRequest, FencingToken, Key, Settlement, StoredResult,
        record::{MAX_ITEM_BYTES, MAX_RESULT_BYTES},
    },
    store::StoreError,
};

impl DynamoStore {
    /// Rejects a claim whose record would leave no room for a result. The result must fit once the effect has
    /// happened.
    pub(super) fn check_claim(&self, request: &ClaimRequest) -> Result<(), StoreError> {
        let room = MAX_ITEM_BYTES - MAX_RESULT_BYTES;
        if self.layout.largest_claim(request) <= room {
            return Ok(());
        }
        let item = self.layout.item(&request.key, &request.record(None));
        check_size(&request.key, items::size(&item), room)
    }

    /// Rejects a result that is too large, before a request is sent.
    pub(super) fn check_settlement(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        check_result(&fence.key, settlement)
    }
}

/// Rejects a result over [`MAX_RESULT_BYTES`] before a request is sent. [`StoredResult::fit`] normally
/// prevents such results.
pub(super) fn check_result(key: &Key, settlement: &Settlement) -> Result<(), StoreError> {
    let bytes = match settlement {
        Settlement::Complete {
            result: StoredResult::Json(text) | StoredResult::Omitted(text),
            ..
        }
        | Settlement::Fail { error: text, .. } => text.len(),
        // A pointer has a few hundred bytes.
        Settlement::Complete {
            result: StoredResult::InS3(_),
            ..
        }
        | Settlement::Release { .. }
        | Settlement::Restore(_)
        | Settlement::Renew { .. } => 0,
    };
    check_size(key, bytes, MAX_RESULT_BYTES)
}

pub(super) fn check_size(key: &Key, bytes: usize, limit: usize) -> Result<(), StoreError> {
    if bytes <= limit {
        return Ok(());
    }
    Err(StoreError::ItemTooLarge {
        key: key.to_string(),
        bytes,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::dynamo::store::Layout;
    use crate::{
        protocol::{AfterFailure, Fingerprint, Namespace, Owner, Timestamp},
        store::{RequestContext, Store as _},
    };
    use aws_sdk_dynamodb::Client;

    fn request() -> ClaimRequest {
        ClaimRequest {
            key: Key::new(&Namespace::new("ns").unwrap(), ["key"]).unwrap(),
            owner: Owner::fresh(),
            fingerprint: None,
            message_id: "m-1".to_owned(),
            now: Timestamp::now(),
            lease_until: Timestamp::now(),
            takeover_after: Duration::ZERO,
            expires_at: 0,
            after_failure: AfterFailure::Retry,
        }
    }

    #[test]
    fn size_limit_of_claims_is_never_too_low() {
        let layouts = [
            Layout::native(),
            Layout::native()
                .sort_key("SK", "p".repeat(1024))
                .unwrap()
                .rename([("message_id", "m".repeat(255).as_str())])
                .unwrap(),
        ];
        for layout in layouts {
            for length in [1, 100, 2000] {
                let part = "k".repeat(length);
                let mut request = request();
                request.key = Key::new(&Namespace::new("ns").unwrap(), [&*part]).unwrap();
                request.message_id = "x".repeat(length);
                request.fingerprint = Some(Fingerprint::of(b""));
                let item = layout.item(&request.key, &request.record(None));
                assert!(layout.largest_claim(&request) >= items::size(&item));
            }
        }
    }

    #[tokio::test]
    async fn item_over_400_kb_is_refused_before_sending() {
        // This client has no endpoint, so the error can only come from the library's own check.
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
            .build();
        let store = DynamoStore::new(Client::from_conf(config), "table");
        let mut request = request();
        request.message_id = "x".repeat(MAX_ITEM_BYTES - MAX_RESULT_BYTES);
        let refused = store
            .claim(&request, &RequestContext::default())
            .await
            .unwrap_err();
        assert!(
            matches!(refused, StoreError::ItemTooLarge { .. }),
            "{refused}"
        );

        request.message_id.clear();
        let not_sent = store
            .claim(&request, &RequestContext::default())
            .await
            .unwrap_err()
            .to_string();
        let wanted = "could not claim key `ns#key` in DynamoDB table `table`: could not ";
        assert!(not_sent.starts_with(wanted), "{not_sent}");

        let result = StoredResult::Json("x".repeat(MAX_RESULT_BYTES + 1));
        let complete = Settlement::Complete {
            result,
            expires_at: 0,
        };
        let refused = store
            .settle(
                &request.fence(),
                &complete,
                request.now,
                &RequestContext::default(),
            )
            .await
            .unwrap_err();
        assert!(
            matches!(refused, StoreError::ItemTooLarge { .. }),
            "{refused}"
        );
    }
}
