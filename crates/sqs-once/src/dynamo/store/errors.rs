//! Errors of the store, and their wording.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use super::DynamoStore;
use crate::{
    dynamo::explain::{explain, named, unavailable},
    protocol::{Key, RequestErrorKind},
    store::StoreError,
};

impl DynamoStore {
    pub(super) fn failed(
        &self,
        kind: RequestErrorKind,
        action: &'static str,
        key: &Key,
        why: &str,
    ) -> StoreError {
        StoreError::unavailable(kind, action, key, self.place(), why)
    }

    pub(super) fn place(&self) -> String {
        named(&self.table)
    }

    pub(super) fn unavailable<E>(
        &self,
        action: &'static str,
        needs: &str,
        key: &Key,
        error: SdkError<E>,
    ) -> StoreError
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let reason = self.explain(&error, needs);
        unavailable(action, key, &self.table, reason, error)
    }

    /// Explains a failed request. If the table has the wrong key, also says which key it must have.
    pub(super) fn explain<E>(&self, error: &SdkError<E>, needs: &str) -> String
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let why = explain(error, needs);
        // DynamoDB says "The provided key element does not match the schema" or "Missing the key id in the item".
        if !(why.contains("key element") || why.contains("Missing the key")) {
            return why;
        }
        let keys = self.layout.primary_key("");
        let mut names: Vec<_> = keys.keys().map(|name| format!("`{name}`")).collect();
        names.sort_unstable();
        format!(
            "{why}; the table must have the primary key {}: name its own in IDEMPOTENCY_ATTRIBUTES or `Layout::rename`, or create another table",
            names.join(" and ")
        )
    }
}
