//! Properties that hold for random records, keys and payloads.

mod identities;
