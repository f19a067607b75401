//! DynamoDB requests that write records. All condition expressions on records are in this folder.

#![expect(
    clippy::expect_used,
    reason = "a builder fails only where a required field is missing, and all are set"
)]

mod admin;
mod builder;
mod claims;
mod settlements;
mod status;

pub(super) use admin::{delete_record, list, release};
pub(super) use claims::{claim, insert_completed, insert_failed, put_over};
pub(super) use settlements::{REMOVED_BY_COMPLETION, delete, settle};
