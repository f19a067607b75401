//! WriteSet in DynamoDB happen exactly once, in each mode, under every fault. The real SDK talks
//! HTTP to a DynamoDB that fails on purpose.

mod world;

mod batches;
mod crashes;
mod failures;
mod item_mode;
mod refusals;
mod requests;
