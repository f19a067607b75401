//! The SDK on a wire that fails: DynamoDB, SQS and S3, with a fault at each request.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(
    unreachable_pub,
    reason = "what the files share is public, as in tests/support"
)]

mod batched_writes;
mod costs;
mod dead_letter;
mod faults;
mod modes;
mod outage;
mod s3_bodies;
mod s3_results;
mod swaps;
mod visibility;
