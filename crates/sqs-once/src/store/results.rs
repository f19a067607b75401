//! [`Results`]: where handlers' outputs are stored.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use crate::{
    protocol::{Key, Owner, ResultPointer, StoredResult, record::MAX_RESULT_BYTES},
    system::Instant,
};

/// Where the outputs of completed operations are stored: in the record, in S3, or nowhere. Pass it to
/// [`Once::results`](crate::Once::results).
///
/// A claim whose condition fails costs write units for the whole record. So each duplicate pays for a large output again,
/// and in a transaction twice as much. An output in S3 costs one request when it is stored, and another for each duplicate
/// whose `on_duplicate` reads it ([`Stored::output`](crate::Stored::output)).
///
/// ```
/// use sqs_once::{Once, store::{MemoryStore, Results}};
///
/// // For handlers whose duplicates need no reply.
/// let once = Once::new(MemoryStore::default()).results(Results::none());
/// ```
///
/// # Outputs in S3
///
/// 1. After the handler, the worker stores an output over the limit in S3. The object's name contains the key's
///    hash, the claim's owner, and the output's hash.
/// 2. Then the worker records the completion, with bucket, name, SHA-256 and length.
/// 3. When `on_duplicate` reads the output, the object's SHA-256 must match.
///
/// By step 1 the handler has succeeded, so a failure of S3 never fails the operation. If S3 does not take the
/// output within 2 seconds or half of the time left, the record says that the output is omitted. A crash
/// between the steps leaves an object that no record names. The consumer never deletes objects, so give the
/// bucket a lifecycle rule that deletes them a few days after the [retention](crate::Once::retention).
#[derive(Clone, Debug)]
pub struct Results(ResultPlace);

#[derive(Clone, Debug)]
enum ResultPlace {
    Nowhere,
    InRecord,
    /// Outputs over the limit (in bytes) go here. Shorter ones are in the record.
    Outside {
        outputs: Arc<dyn ResultStore>,
        inline_limit: usize,
    },
}

/// A place for large outputs outside the table.
pub trait ResultStore: Debug + Send + Sync {
    /// Stores an output before `end`. If there isn't enough time, the result says that the output is omitted.
    fn store<'a>(
        &'a self,
        key: &'a Key,
        owner: &'a Owner,
        json: String,
        end: Instant,
    ) -> BoxFuture<'a, StoredResult>;

    /// Reads an output within this time, and compares its digest with the record's.
    fn read_within<'a>(
        &'a self,
        time: Duration,
        pointer: &'a ResultPointer,
    ) -> BoxFuture<'a, Result<String, String>>;
}

/// Longest output that stays in the record if longer ones go elsewhere. A record of 64 KB costs 64 write units.
const DEFAULT_INLINE_LIMIT: usize = 64 * 1024;

/// How long [`Results::read`] may take.
const MAX_READ_TIME: Duration = Duration::from_secs(5);

impl Results {
    /// Stores no outputs, so `on_duplicate` gets none.
    #[must_use]
    pub const fn none() -> Self {
        Self(ResultPlace::Nowhere)
    }

    /// Stores outputs of up to 392 KB of JSON in the record, which is the default. Longer outputs are not stored.
    #[must_use]
    pub const fn inline() -> Self {
        Self(ResultPlace::InRecord)
    }

    /// Stores outputs over [`inline_limit`](Self::inline_limit) in another place, and shorter ones in the record.
    #[must_use]
    pub fn outside(outputs: impl ResultStore + 'static) -> Self {
        Self(ResultPlace::Outside {
            outputs: Arc::new(outputs),
            inline_limit: DEFAULT_INLINE_LIMIT,
        })
    }

    /// Sets the longest output in a record, in bytes of JSON, if longer ones go to S3. The default is 64 KB, the maximum 392 KB.
    #[must_use]
    pub fn inline_limit(self, bytes: usize) -> Self {
        match self.0 {
            ResultPlace::Outside { outputs, .. } => Self(ResultPlace::Outside {
                outputs,
                inline_limit: bytes.min(MAX_RESULT_BYTES),
            }),
            ResultPlace::Nowhere | ResultPlace::InRecord => self,
        }
    }

    /// Stores an output before `end`, and returns the result for the record.
    pub(crate) async fn store(
        &self,
        key: &Key,
        owner: &Owner,
        output: StoredResult,
        end: Instant,
    ) -> StoredResult {
        let StoredResult::Json(json) = output else {
            return output;
        };
        match &self.0 {
            ResultPlace::Nowhere => StoredResult::not_wanted(),
            ResultPlace::InRecord => StoredResult::fit(json),
            ResultPlace::Outside { inline_limit, .. } if json.len() <= *inline_limit => {
                StoredResult::Json(json)
            }
            ResultPlace::Outside { outputs, .. } => outputs.store(key, owner, json, end).await,
        }
    }

    /// Reads an output from S3.
    pub(crate) async fn read(&self, pointer: &ResultPointer) -> Result<String, String> {
        self.read_within(MAX_READ_TIME, pointer).await
    }

    /// Reads an output from S3 within this time. Public for the command-line tool.
    ///
    /// # Errors
    ///
    /// Returns a text that says what failed and what to do. It contains no part of the output.
    #[doc(hidden)]
    pub async fn read_within(
        &self,
        time: Duration,
        pointer: &ResultPointer,
    ) -> Result<String, String> {
        let read = match &self.0 {
            ResultPlace::Outside { outputs, .. } => outputs.read_within(time, pointer).await,
            ResultPlace::Nowhere | ResultPlace::InRecord => {
                Err("set IDEMPOTENCY_RESULT_BUCKET, which needs the feature `s3`".to_owned())
            }
        };
        read.map_err(|why| format!("the stored output cannot be read from {pointer}: {why}"))
    }
}
