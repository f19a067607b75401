//! Rejects 200 responses with an empty body.

use aws_sdk_dynamodb::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::AfterDeserializationInterceptorContextRef,
    },
    error::BoxError,
};

/// Returns the same client, which now rejects 200 responses with an empty body.
///
/// Even the shortest response of DynamoDB is `{}`, but the SDK also reads an empty body as `{}`. So a proxy that sends an
/// empty body would confirm a write that DynamoDB never made, and the consumer would acknowledge a message without a
/// record.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers must not use the client without the check any more"
)]
pub(crate) fn reject_empty_responses(client: Client) -> Client {
    Client::from_conf(
        client
            .config()
            .to_builder()
            .interceptor(RejectEmptyResponses)
            .build(),
    )
}

#[derive(Debug)]
struct RejectEmptyResponses;

impl Intercept for RejectEmptyResponses {
    fn name(&self) -> &'static str {
        "RejectEmptyResponses"
    }

    // Before deserialization, the length of a chunked body is unknown.
    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if context.output_or_error().is_ok()
            && context.response().body().content_length() == Some(0)
        {
            return Err("a 200 response with an empty body, which DynamoDB never sends".into());
        }
        Ok(())
    }
}
