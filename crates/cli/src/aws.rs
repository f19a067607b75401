//! The SDK's configuration for a command, and explanations for failed requests.

use std::time::Duration;

use aws_config::{SdkConfig, timeout::TimeoutConfig};
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::{
    error::{ProvideErrorMetadata, SdkError},
    operation::RequestId,
};

use crate::output::Error;

/// Returns the Region, credentials and endpoint that the SDK finds, with timeouts that suit a person who waits.
pub(crate) async fn config() -> Result<SdkConfig, Error> {
    let config = sqs_once::aws::config().await;
    if config.region().is_none() {
        return Err(Error::usage("no AWS Region is set: set AWS_REGION"));
    }
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(5))
        .operation_attempt_timeout(Duration::from_secs(30))
        .build();
    Ok(config.into_builder().timeout_config(timeouts).build())
}

/// Returns the service's error code, which is empty if the service did not respond.
pub(crate) fn code<E: ProvideErrorMetadata>(error: &SdkError<E>) -> &str {
    let code = error.as_service_error().and_then(E::code);
    code.unwrap_or_default()
}

/// Returns whether AWS says that the resource does not exist. Services and protocols use different codes for this.
pub(crate) fn is_missing<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    ["NonExistent", "NotFound", "DoesNotExist"]
        .iter()
        .any(|missing| code(error).contains(missing))
}

/// Explains a request that failed. Leaves out the request and the response, which may contain payload.
pub(crate) fn failed<E>(action: &str, permission: &str, error: &SdkError<E>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let reason = match error {
        SdkError::ServiceError(service) => {
            let code = service.err().code().unwrap_or("unknown error");
            let advice = match code {
                code if code.contains("AccessDenied") => {
                    format!("; grant {permission} to these credentials")
                }
                code if code.contains("NonExistent")
                    || code.contains("NotFound")
                    // CloudFormation reports a missing stack as `ValidationError`.
                    || code == "ValidationError" =>
                {
                    "; check the name, the account and AWS_REGION".to_owned()
                }
                code if code.contains("Token") || code.contains("Signature") => {
                    "; the credentials are invalid or expired".to_owned()
                }
                _ => String::new(),
            };
            let id = error.request_id().unwrap_or("none");
            format!("{code}{advice} (request id {id})")
        }
        SdkError::TimeoutError(_) => "no answer in time".to_owned(),
        SdkError::DispatchFailure(_) if lacks_credentials(error) => {
            "no AWS credentials, or they have expired; sign in (`aws sso login` or `aws login`), or check AWS_PROFILE".to_owned()
        }
        SdkError::DispatchFailure(_) => {
            "could not connect; check AWS_REGION and the network".to_owned()
        }
        _ => "the request or the response was invalid".to_owned(),
    };
    Error::remote(format!("could not {action}: {reason}"))
}

/// Returns whether the SDK found no valid credentials to sign with.
pub(crate) fn lacks_credentials(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| cause.is::<CredentialsError>())
}
