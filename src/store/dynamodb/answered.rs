//! An answer that is none.

use aws_sdk_dynamodb::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::AfterDeserializationInterceptorContextRef,
    },
    error::BoxError,
};

/// The same client, to which a 200 without a body is no answer.
///
/// DynamoDB answers in JSON, be it `{}`. The SDK takes no body for that too, so whatever stands
/// between and answers like that would make a claim that was never made, and acknowledge what
/// was never recorded.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the client as it was must not be used any more"
)]
pub(crate) fn with_answers(client: Client) -> Client {
    Client::from_conf(client.config().to_builder().interceptor(Answered).build())
}

#[derive(Debug)]
struct Answered;

impl Intercept for Answered {
    fn name(&self) -> &'static str {
        "Answered"
    }

    // Not before: how long a chunked body is, is known when it was read.
    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if context.output_or_error().is_ok()
            && context.response().body().content_length() == Some(0)
        {
            return Err("a 200 without a body, which DynamoDB never answers".into());
        }
        Ok(())
    }
}
