//! [`Results`]: the place of handlers' outputs.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::protocol::record::MAX_RESULT_BYTES;
use crate::protocol::{Key, Owner, ResultPointer, StoredResult};

/// The place of the outputs of completed operations: in the record, in S3, or nowhere.
/// [`Once::results`](crate::Once::results) takes it.
///
/// A claim that is refused costs write units for the whole record, so each duplicate pays for a large
/// output again. A transaction costs twice the write units. An output in S3 costs one request when it
/// is stored, and one for each duplicate whose handler reads it
/// ([`Stored::output`](crate::Stored::output)).
///
/// ```
/// use sqs_once::{Once, store::{MemoryStore, Results}};
///
/// // For handlers whose duplicates need no answer.
/// let once = Once::new(MemoryStore::default()).results(Results::none());
/// ```
///
/// # Outputs in S3
///
/// 1. After the handler, an output over the limit goes to S3, under a name of its own: the hash of the
///    key, the owner of the claim, and the hash of the output.
/// 2. Then the worker records the completion, with bucket, name, SHA-256 and length.
/// 3. A duplicate's handler reads the object, and the SHA-256 is compared.
///
/// The effect has occurred before step 1, so a failure of S3 never fails the operation. If S3 does not
/// take the output within 2 seconds, or half of the time left, the record says that the output is
/// omitted. A crash between the steps leaves an object that no record names. The consumer deletes no
/// object: give the bucket a lifecycle rule that deletes them some days after the
/// [retention](crate::Once::retention).
#[derive(Clone, Debug)]
pub struct Results(Place);

#[derive(Clone, Debug)]
enum Place {
    Nowhere,
    InRecord,
    /// Outputs over the limit, in bytes. Shorter ones are in the record.
    Outside {
        outputs: Arc<dyn OutputStore>,
        inline_limit: usize,
    },
}

/// A place of large outputs outside of the table.
pub trait OutputStore: Debug + Send + Sync {
    /// Stores an output before `end`. If it is not taken in time, the result says that it is omitted.
    fn keep<'a>(
        &'a self,
        key: &'a Key,
        owner: &'a Owner,
        json: String,
        end: Instant,
    ) -> BoxFuture<'a, StoredResult>;

    /// Reads an output in at most this time, and compares its digest with the record's.
    fn read_within<'a>(
        &'a self,
        time: Duration,
        pointer: &'a ResultPointer,
    ) -> BoxFuture<'a, Result<String, String>>;
}

/// Longest output in a record beside outputs elsewhere. A record of 64 KB costs 64 write units.
const DEFAULT_INLINE_LIMIT: usize = 64 * 1024;

/// Maximum time of a read by a handler.
const MAX_READ_TIME: Duration = Duration::from_secs(5);

impl Results {
    /// Stores no outputs. Duplicates get none.
    #[must_use]
    pub const fn none() -> Self {
        Self(Place::Nowhere)
    }

    /// Stores outputs of at most 392 KB of JSON in the record, the default. A longer output is not
    /// stored.
    #[must_use]
    pub const fn inline() -> Self {
        Self(Place::InRecord)
    }

    /// Stores outputs over [`inline_limit`](Self::inline_limit) in another place, and shorter ones in the
    /// record.
    #[must_use]
    pub fn outside(outputs: impl OutputStore + 'static) -> Self {
        Self(Place::Outside {
            outputs: Arc::new(outputs),
            inline_limit: DEFAULT_INLINE_LIMIT,
        })
    }

    /// Sets the longest output in a record, in bytes of JSON, where longer ones go to S3. 64 KB by
    /// default, at most 392 KB.
    #[must_use]
    pub fn inline_limit(self, bytes: usize) -> Self {
        match self.0 {
            Place::Outside { outputs, .. } => Self(Place::Outside {
                outputs,
                inline_limit: bytes.min(MAX_RESULT_BYTES),
            }),
            Place::Nowhere | Place::InRecord => self,
        }
    }

    /// Stores an output before `end`, and returns the result for the record.
    pub(crate) async fn keep(
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
            Place::Nowhere => StoredResult::not_wanted(),
            Place::InRecord => StoredResult::fit(json),
            Place::Outside { inline_limit, .. } if json.len() <= *inline_limit => {
                StoredResult::Json(json)
            }
            Place::Outside { outputs, .. } => outputs.keep(key, owner, json, end).await,
        }
    }

    /// Reads an output from S3.
    ///
    /// # Errors
    ///
    /// The reason, with the remedy. The text has no part of the output.
    pub(crate) async fn read(&self, pointer: &ResultPointer) -> Result<String, String> {
        self.read_within(MAX_READ_TIME, pointer).await
    }

    /// Reads an output from S3 in at most this time. Public for the command-line tool.
    ///
    /// # Errors
    ///
    /// The reason, with the remedy. The text has no part of the output.
    #[doc(hidden)]
    pub async fn read_within(
        &self,
        time: Duration,
        pointer: &ResultPointer,
    ) -> Result<String, String> {
        let read = match &self.0 {
            Place::Outside { outputs, .. } => outputs.read_within(time, pointer).await,
            Place::Nowhere | Place::InRecord => {
                Err("set IDEMPOTENCY_RESULT_BUCKET, which needs the feature `s3`".to_owned())
            }
        };
        read.map_err(|why| format!("the stored output cannot be read from {pointer}: {why}"))
    }
}
