//! Explains failed requests to any AWS service, for logs and errors.

use std::{error::Error, iter::successors};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::RequestId as _,
};

/// No response came in time on an open connection.
#[derive(Debug, thiserror::Error)]
#[error("no answer in time")]
pub(crate) struct NoResponse;

/// Explains a failed request: the code of the service's error with `advice`, and the request id. The text leaves out
/// request and response, which contain payload.
///
/// `advice` gets the code, and may say what to do. If AWS rejected the signature, this function gives its own advice.
pub(crate) fn explain<E>(
    error: &SdkError<E>,
    advice: impl FnOnce(&str, &E) -> Option<String>,
) -> String
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let Some(service) = error.as_service_error() else {
        return unanswered(error);
    };
    let code = service.code().unwrap_or("unknown error");
    let refused = refused_signature(code).map(str::to_owned);
    let advice = refused.or_else(|| advice(code, service));
    let advice = advice.map_or_else(String::new, |advice| format!(": {advice}"));
    let request_id = error.request_id().unwrap_or("none");
    format!("{code}{advice} (request id {request_id})")
}

/// Explains a request that got no response from the service. The text leaves out the request.
pub fn unanswered<E: Error + 'static>(error: &SdkError<E>) -> String {
    let advice = match error {
        SdkError::TimeoutError(_) => return NoResponse.to_string(),
        SdkError::DispatchFailure(_) if sources(error).any(|e| e.is::<NoResponse>()) => {
            return NoResponse.to_string();
        }
        SdkError::DispatchFailure(_) if sources(error).any(|e| e.is::<CredentialsError>()) => {
            "no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; a deployed function needs a role"
        }
        SdkError::DispatchFailure(_) => {
            "could not connect; check the endpoint, the region and the network"
        }
        SdkError::ConstructionFailure(_) => "could not build the request",
        _ => return "the answer could not be read".to_owned(),
    };
    // A connector's errors contain addresses and causes, but no bodies.
    let cause = error.source().map_or_else(String::new, causes);
    format!("{advice} ({cause})")
}

/// Returns what to do about a request whose signature AWS rejected, or `None` for other codes.
pub(crate) fn refused_signature(code: &str) -> Option<&'static str> {
    const CODES: [&str; 4] = [
        "InvalidSignatureException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    ];
    CODES.contains(&code).then_some(
        "the signature was refused: the clock of this machine differs from that of AWS, or the process was frozen after it had signed; if it happens again, set the clock, and check AWS_SECRET_ACCESS_KEY",
    )
}

/// Returns why a service denied a request: user, action, resource, and the kind of policy that denies it. A
/// service control policy, a permissions boundary, an endpoint policy or a KMS key can deny what the role's
/// own policy allows. We leave out everything between the first and the last quote, because it may be
/// payload.
pub(crate) fn reason_of_denial(message: Option<&str>) -> String {
    const QUOTES: [char; 2] = ['\'', '"'];
    let said = message.unwrap_or_default().trim();
    if said.is_empty() {
        return "grant the permission".to_owned();
    }
    let reason = match (said.split_once(QUOTES), said.rsplit_once(QUOTES)) {
        (Some((before, _)), Some((_, after))) => format!("{before}...{after}"),
        _ => said.to_owned(),
    };
    format!("the reason of AWS: {reason}")
}

/// Returns an error and its causes on one line.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<_> = sources(error).map(ToString::to_string).collect();
    let joined = texts.join(": ");
    let words: Vec<_> = joined.split_whitespace().collect();
    words.join(" ")
}

/// Returns an error, its source, the source of that, and so on.
fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::operation::put_item::PutItemError;
    use aws_smithy_runtime_api::client::result::ConnectorError;

    use super::*;

    type Failed = SdkError<PutItemError>;

    #[test]
    fn unanswered_request_is_explained() {
        let refused = std::io::Error::other("connection refused");
        for (error, wanted) in [
            (Failed::timeout_error("secret"), "no answer in time"),
            (
                Failed::dispatch_failure(ConnectorError::timeout(NoResponse.into())),
                "no answer in time",
            ),
            (
                Failed::dispatch_failure(ConnectorError::io(refused.into())),
                "could not connect; check the endpoint, the region and the network (io error: connection refused)",
            ),
            (
                Failed::dispatch_failure(ConnectorError::other(
                    CredentialsError::not_loaded_no_source().into(),
                    None,
                )),
                "no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; a deployed function needs a role (other: the credential provider was not enabled)",
            ),
            (
                Failed::construction_failure("no region"),
                "could not build the request (no region)",
            ),
        ] {
            assert_eq!(unanswered(&error), wanted);
        }
    }

    #[test]
    fn denial_has_reason_of_service_without_quotes() {
        let of_key = "User: arn:aws:sts::123456789012:assumed-role/orders/orders is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:eu-west-1:123456789012:key/k because no resource-based policy allows the kms:Decrypt action";
        for (message, wanted) in [
            (Some(of_key), format!("the reason of AWS: {of_key}")),
            (
                Some("the item '{\"id\": \"secret\"}' of \"secret\" is denied"),
                "the reason of AWS: the item ... is denied".to_owned(),
            ),
            (Some(" "), "grant the permission".to_owned()),
            (None, "grant the permission".to_owned()),
        ] {
            assert_eq!(reason_of_denial(message), wanted);
        }
    }
}
