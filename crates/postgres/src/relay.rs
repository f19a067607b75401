//! The table of published events, for the relay in `sqs-once-outbox`. This interface may change in any version.

pub use crate::{
    explain::explain,
    outbox::{MAX_BYTES, MAX_GROUPS, MIN_ROWS_OF_GROUP, Row, lock_due, oldest, settle},
    transaction_connection::{Limits, TransactionConnection},
};
