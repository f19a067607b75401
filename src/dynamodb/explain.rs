//! Explanations of failed requests, for people.

use std::error::Error;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::RequestId,
};

use crate::protocol::Unavailability;

/// Explains a failure and what to do, without the request or the response: they hold payload.
pub(crate) fn explain<E>(error: &SdkError<E>, permission: &str) -> String
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let Some(service) = error.as_service_error() else {
        return match error {
            SdkError::TimeoutError(_) => "no answer in time".into(),
            // A connector's errors hold addresses and causes, no bodies.
            SdkError::DispatchFailure(failure) => format!(
                "could not connect; check the endpoint, the region and the network ({})",
                failure
                    .as_connector_error()
                    .map_or_else(String::new, |error| causes(error))
            ),
            SdkError::ConstructionFailure(_) => format!(
                "could not make the request ({})",
                error.source().map_or_else(String::new, causes)
            ),
            _ => "the answer could not be read".into(),
        };
    };
    let code = service.code().unwrap_or("unknown error");
    let advice = match code {
        "ResourceNotFoundException" => {
            "there is no such table in this account and region; check its name".into()
        }
        "AccessDeniedException" => format!("this role may not {permission} on it; grant it"),
        "UnrecognizedClientException" | "InvalidSignatureException" | "ExpiredTokenException" => {
            "the credentials are not valid (any more)".into()
        }
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "RequestLimitExceeded" => {
            "throttled; raise the table's capacity or lower the concurrency".into()
        }
        "TransactionConflictException" => {
            "a transaction on the same item is in progress; repeat the request".into()
        }
        _ => without_quotes(service.message().unwrap_or("no further word")).to_owned(),
    };
    let request_id = error.request_id().unwrap_or("none");
    format!("{code}: {advice} (request id {request_id})")
}

/// Classifies a failed request: it may have been applied, and may be repeated, or not.
pub(crate) fn kind<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Unavailability {
    match error {
        SdkError::ConstructionFailure(_) => Unavailability::Rejected,
        SdkError::ServiceError(context) => match context.err().code() {
            Some(
                "ProvisionedThroughputExceededException"
                | "RequestLimitExceeded"
                | "ThrottlingException"
                | "TransactionConflictException"
                | "TransactionInProgressException",
            ) => Unavailability::Contended,
            // Without a code, it is not DynamoDB that answers.
            Some(_) if context.raw().status().is_client_error() => Unavailability::Rejected,
            _ => Unavailability::Unanswered,
        },
        _ => Unavailability::Unanswered,
    }
}

/// An error and its causes, in one line.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    std::iter::successors(Some(error), |&error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// A message of DynamoDB's without what it may quote of the request, which is payload:
///
/// - `1 validation error detected: Value '[TransactWriteItem(...)]' at 'transactItems' failed ...`
/// - `The parameter cannot be converted to a numeric value: ...`
/// - `Input collection [...] contains duplicates`
pub(crate) fn without_quotes(message: &str) -> &str {
    const NOT_A_NUMBER: &str = "cannot be converted to a numeric value";
    if let Some(quoted) = message.rfind("' at '") {
        &message[quoted + "' ".len()..]
    } else if let Some(said) = message.find(NOT_A_NUMBER) {
        &message[..said + NOT_A_NUMBER.len()]
    } else if message.contains("Input collection [") {
        "a set holds the same value twice"
    } else {
        message
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::{error::ErrorMetadata, operation::put_item::PutItemError};
    use aws_smithy_runtime_api::{client::result::ConnectorError, http::Response};

    use super::*;

    type Failed = SdkError<PutItemError>;

    #[test]
    fn unanswered_request_is_explained() {
        let refused = std::io::Error::other("connection refused");
        for (error, wanted) in [
            (Failed::timeout_error("secret"), "no answer in time"),
            (
                Failed::dispatch_failure(ConnectorError::io(refused.into())),
                "could not connect; check the endpoint, the region and the network (io error: connection refused)",
            ),
            (
                Failed::construction_failure("no region"),
                "could not make the request (no region)",
            ),
        ] {
            assert_eq!(explain(&error, "dynamodb:PutItem"), wanted);
        }
    }

    #[test]
    fn refused_request_is_explained_by_code() {
        let of = |code: &str| {
            let said = ErrorMetadata::builder().code(code).message("said").build();
            let response = Response::new(400.try_into().unwrap(), "".into());
            let error = Failed::service_error(PutItemError::generic(said), response);
            let explained = explain(&error, "dynamodb:PutItem");
            let explained = explained.strip_prefix(&format!("{code}: ")).unwrap();
            let explained = explained.strip_suffix(" (request id none)").unwrap();
            explained.to_owned()
        };
        for (codes, advice) in [
            (
                &["ResourceNotFoundException"][..],
                "there is no such table in this account and region; check its name",
            ),
            (
                &["AccessDeniedException"],
                "this role may not dynamodb:PutItem on it; grant it",
            ),
            (
                &[
                    "UnrecognizedClientException",
                    "InvalidSignatureException",
                    "ExpiredTokenException",
                ],
                "the credentials are not valid (any more)",
            ),
            (
                &[
                    "ProvisionedThroughputExceededException",
                    "ThrottlingException",
                    "RequestLimitExceeded",
                ],
                "throttled; raise the table's capacity or lower the concurrency",
            ),
            (&["ValidationException"], "said"),
        ] {
            for code in codes {
                assert_eq!(of(code), advice, "{code}");
            }
        }
    }

    #[test]
    fn explanation_omits_quoted_request() {
        for (message, wanted) in [
            (
                "1 validation error detected: Value '[secret]' at 'transactItems' failed to satisfy constraint: Member must have length less than or equal to 100",
                "at 'transactItems' failed to satisfy constraint: Member must have length less than or equal to 100",
            ),
            (
                "The parameter cannot be converted to a numeric value: secret",
                "The parameter cannot be converted to a numeric value",
            ),
            (
                "One or more parameter values were invalid: Input collection [secret, secret] contains duplicates.",
                "a set holds the same value twice",
            ),
            (
                "Invalid UpdateExpression: Syntax error",
                "Invalid UpdateExpression: Syntax error",
            ),
        ] {
            assert_eq!(without_quotes(message), wanted);
        }
    }
}
