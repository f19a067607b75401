//! [`Reading`]: from the body in the queue to content and identity.

use super::{
    encoding::Decoding, fingerprint_source::FingerprintSource, identity::Identity,
    key_fn::NoIdentity, key_source::KeySource, s3_pointer::S3Pointer,
};
use crate::{
    handler::{Body, Content, DeliveryFacts, FromMessage, InvalidMessage},
    protocol::Namespace,
};

/// The settings by which a consumer reads bodies. A body is decoded, then key and fingerprint are
/// made of it. Neither needs the record of the event, so both can follow a later read of the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    namespace: &'a Namespace,
    key: &'a KeySource,
    fingerprint: &'a FingerprintSource,
    decoding: Decoding,
    /// The handler takes bytes.
    is_binary: bool,
    /// Bodies may be in S3.
    reads_s3: bool,
}

impl<'a> Reading<'a> {
    /// The reading for a handler that takes `T`.
    pub(crate) fn for_type<T: FromMessage>(
        namespace: &'a Namespace,
        key: &'a KeySource,
        fingerprint: &'a FingerprintSource,
        decoding: Decoding,
    ) -> Self {
        Self {
            namespace,
            key,
            fingerprint,
            decoding,
            is_binary: T::IS_BINARY,
            reads_s3: false,
        }
    }

    /// Sets whether a body that is a pointer to S3 is read there.
    pub(super) fn reads_s3(self, reads_s3: bool) -> Self {
        Self { reads_s3, ..self }
    }

    /// The place of the body in S3; `None` for other bodies.
    pub(super) fn s3_pointer(
        &self,
        body: Option<&str>,
    ) -> Option<Result<S3Pointer, InvalidMessage>> {
        S3Pointer::find(body.filter(|_| self.reads_s3)?)
    }

    /// Returns whether the decoded body may be larger than the one in the queue.
    pub(super) fn may_grow(&self, facts: &DeliveryFacts) -> bool {
        self.decoding.may_grow(facts)
    }

    /// Decodes a body. Content without an encoding borrows the body.
    pub(super) fn content<'b>(
        &self,
        raw: Body<'b>,
        facts: &DeliveryFacts,
    ) -> Result<Content<'b>, InvalidMessage> {
        self.decoding.decode(raw, facts, self.is_binary)
    }

    /// Makes key and fingerprint of the content.
    pub(super) fn identity(
        &self,
        content: &Content<'_>,
        facts: &DeliveryFacts,
    ) -> Result<Identity, NoIdentity> {
        let body = content.decoded();
        Identity::of(facts, body, self.namespace, self.key, self.fingerprint)
    }
}
