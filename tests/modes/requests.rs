//! requests
