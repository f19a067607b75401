//! Rejects 200 responses with an empty body.

use aws_sdk_dynamodb::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::AfterDeserializationInterceptorContextRef,
    },
    error::BoxError,
};

/// Returns the same client, which fails requests whose 200 response has an empty body.
///
/// DynamoDB answers with a JSON object, at least `{}`. The SDK reads an empty body as `{}` too. A
/// proxy that answers so would confirm a claim that was never made, and a message would be
/// acknowledged that was never recorded.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the client without the check must not be used any more"
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

    // The length of a chunked body is known only after it was read.
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
