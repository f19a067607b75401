//! Effects in DynamoDB happen exactly once, in each mode, under every fault. The real SDK talks to a DynamoDB that
//! fails on purpose, on paused time where no other service takes part.

pub mod world;

mod batches;
mod crashes;
mod item_mode;
mod refusals;
mod requests;
