//! Properties that hold for random records, keys, payloads and batches.

mod batches;
mod identities;
