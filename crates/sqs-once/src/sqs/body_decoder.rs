//! [`BodyDecoder`]: turns the body in the queue into content and identity.

use super::{
    encoding::Decoding, fingerprint_source::FingerprintSource, identity::Identity,
    key_fn::NoIdentity, key_source::KeySource, s3_pointer::S3Pointer,
};
use crate::{
    handler::{Body, Content, DeliveryMetadata, FromMessage, InvalidMessage},
    protocol::Namespace,
};

/// The settings by which a consumer reads bodies. It decodes a body, and then makes key and fingerprint from
/// it. Neither step needs the record of the event, so both can also happen after a later read of the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyDecoder<'a> {
    namespace: &'a Namespace,
    key: &'a KeySource,
    fingerprint: &'a FingerprintSource,
    decoding: Decoding,
    /// True if the handler takes bytes.
    is_binary: bool,
    /// True if bodies may be in S3.
    reads_s3: bool,
}

impl<'a> BodyDecoder<'a> {
    /// Creates the decoder for a handler that takes `T`.
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

    /// Sets whether a body that is a pointer to S3 is read from there.
    pub(super) fn reads_s3(self, reads_s3: bool) -> Self {
        Self { reads_s3, ..self }
    }

    /// Returns where in S3 the body is. `None` for other bodies.
    pub(super) fn s3_pointer(
        &self,
        body: Option<&str>,
    ) -> Option<Result<S3Pointer, InvalidMessage>> {
        S3Pointer::find(body.filter(|_| self.reads_s3)?)
    }

    /// Returns whether the decoded body may be larger than the one in the queue.
    pub(super) fn may_grow(&self, facts: &DeliveryMetadata) -> bool {
        self.decoding.may_grow(facts)
    }

    /// Decodes a body. Content without an encoding borrows from the body.
    pub(super) fn content<'b>(
        &self,
        raw: Body<'b>,
        facts: &DeliveryMetadata,
    ) -> Result<Content<'b>, InvalidMessage> {
        self.decoding.decode(raw, facts, self.is_binary)
    }

    /// Makes key and fingerprint from the content.
    pub(super) fn identity(
        &self,
        content: &Content<'_>,
        facts: &DeliveryMetadata,
    ) -> Result<Identity, NoIdentity> {
        let body = content.decoded();
        Identity::of(facts, body, self.namespace, self.key, self.fingerprint)
    }
}
