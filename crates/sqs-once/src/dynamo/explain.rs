//! Explains failed requests to DynamoDB, for logs and errors.

use std::{env, error::Error};

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::{
    aws::explain::{self, NoResponse, reason_of_denial, unanswered},
    protocol::{Key, RequestErrorKind},
    store::StoreError,
};

/// Explains a failed request to DynamoDB and says what to do. The text leaves out request and response, which contain
/// payload.
pub(crate) fn explain<E>(error: &SdkError<E>, permission: &str) -> String
where
    E: ProvideErrorMetadata + Error + 'static,
{
    if error.as_service_error().is_none() {
        return unsent(error, env::var_os(ACCOUNT_ID).is_some());
    }
    explain::explain(error, |code, service| {
        let advice = match code {
            "ResourceNotFoundException" => {
                "there is no such table in this account and region; check the table name"
            }
            "AccessDeniedException" => {
                let reason = reason_of_denial(service.message());
                return Some(format!(
                    "this role may not {permission} on this table; {reason}"
                ));
            }
            "UnrecognizedClientException" | "ExpiredTokenException" => {
                "the credentials are invalid or expired"
            }
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded" => {
                "throttled; raise the table's capacity or lower the concurrency"
            }
            "TransactionConflictException" => {
                "a transaction on the same item is in progress; retry the request"
            }
            "ReplicatedWriteConflictException" => {
                "another Region writes the same item; retry the request"
            }
            _ => without_quotes(service.message().unwrap_or("no message")),
        };
        Some(advice.to_owned())
    })
}

/// The variable from which the SDK takes the account of DynamoDB's endpoint.
const ACCOUNT_ID: &str = "AWS_ACCOUNT_ID";

/// Explains a request that got no response. If the request was not sent and [`ACCOUNT_ID`] is set, the text names the
/// variable as a possible cause.
fn unsent<E: Error + 'static>(error: &SdkError<E>, account_is_set: bool) -> String {
    let why = unanswered(error);
    let (SdkError::DispatchFailure(_) | SdkError::ConstructionFailure(_)) = error else {
        return why;
    };
    if !account_is_set || why == NoResponse.to_string() {
        return why;
    }
    format!(
        "{why}; {ACCOUNT_ID} is set, so without an endpoint of your own the SDK calls `ACCOUNT.ddb.REGION.amazonaws.com`: check it, unset it, or set AWS_ACCOUNT_ID_ENDPOINT_MODE=disabled"
    )
}

/// Codes for requests that were throttled or collided with another write to the same item. All but the last
/// two are the AWS SDK's throttling codes (`THROTTLING_ERRORS` of `aws-runtime`).
const CONTENDED: [&str; 16] = [
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
    "TransactionConflictException",
    "ReplicatedWriteConflictException",
];

/// Codes for requests that would fail again, because their content is invalid.
const INVALID: [&str; 4] = [
    "IdempotentParameterMismatchException",
    "ItemCollectionSizeLimitExceededException",
    "SerializationException",
    "ValidationException",
];

/// Returns whether a request with this code fails only because of other requests.
pub fn is_contended(code: &str) -> bool {
    CONTENDED.contains(&code)
}

/// Creates the error for a request to `table` that failed for this reason.
pub(crate) fn unavailable<E>(
    action: &'static str,
    key: &Key,
    table: &str,
    reason: String,
    error: SdkError<E>,
) -> StoreError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    StoreError::Unavailable {
        kind: kind(&error),
        action,
        key: key.to_string(),
        store: named(table),
        reason,
        source: error.into(),
    }
}

pub(crate) fn named(table: &str) -> String {
    format!("DynamoDB table `{table}`")
}

/// Classifies a failed request. This is the only place that classifies DynamoDB's error codes.
pub(crate) fn kind<E: ProvideErrorMetadata>(error: &SdkError<E>) -> RequestErrorKind {
    match error {
        SdkError::ConstructionFailure(_) => RequestErrorKind::Invalid,
        SdkError::ServiceError(context) => match context.err().code() {
            Some(code) if CONTENDED.contains(&code) => RequestErrorKind::Contended,
            Some(code) if INVALID.contains(&code) => RequestErrorKind::Invalid,
            // DynamoDB's errors always have a code. Without one, another server sent the response.
            Some(_) if context.raw().status().is_client_error() => RequestErrorKind::Denied,
            _ => RequestErrorKind::Unanswered,
        },
        _ => RequestErrorKind::Unanswered,
    }
}

/// Removes quoted parts of the request, which are payload, from a DynamoDB error message.
///
/// DynamoDB quotes the request in these messages:
///
/// - `1 validation error detected: Value '[TransactWriteItem(...)]' at 'transactItems' failed ...`
/// - `The parameter cannot be converted to a numeric value: ...`
/// - `Input collection [...] contains duplicates`
pub(crate) fn without_quotes(message: &str) -> &str {
    const NOT_A_NUMBER: &str = "cannot be converted to a numeric value";
    if let Some(quoted) = message.rfind("' at '") {
        &message[quoted + "' ".len()..]
    } else if let Some(start) = message.find(NOT_A_NUMBER) {
        &message[..start + NOT_A_NUMBER.len()]
    } else if message.contains("Input collection [") {
        "a set contains the same value twice"
    } else {
        message
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::{
        config::{BehaviorVersion, Credentials, Region},
        error::ErrorMetadata,
        operation::put_item::PutItemError,
    };
    use aws_smithy_runtime_api::http::Response;

    use super::*;

    type Failed = SdkError<PutItemError>;

    #[tokio::test]
    async fn unsent_request_names_the_account_variable() {
        // The SDK finds no endpoint for such an account.
        let credentials = Credentials::builder()
            .access_key_id("a")
            .secret_access_key("b")
            .account_id("payments team")
            .provider_name("test");
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("eu-central-1"))
            .credentials_provider(credentials.build());
        let client = aws_sdk_dynamodb::Client::from_conf(config.build());
        let error = client.list_tables().send().await.unwrap_err();
        let named = unsent(&error, true);
        assert!(named.contains("AWS_ACCOUNT_ID is set"), "{named}");
        let without = unsent(&error, false);
        assert!(!without.contains("AWS_ACCOUNT_ID"), "{without}");
        let sent = Failed::timeout_error("late");
        assert_eq!(unsent(&sent, true), NoResponse.to_string());
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
                "there is no such table in this account and region; check the table name",
            ),
            (
                &["AccessDeniedException"],
                "this role may not dynamodb:PutItem on this table; the reason of AWS: said",
            ),
            (
                &["UnrecognizedClientException", "ExpiredTokenException"],
                "the credentials are invalid or expired",
            ),
            (
                &["InvalidSignatureException", "RequestTimeTooSkewed"],
                "the signature was refused: the clock of this machine differs from that of AWS, or the process was frozen after it had signed; if it happens again, set the clock, and check AWS_SECRET_ACCESS_KEY",
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
    fn failed_request_is_classified_by_code() {
        use RequestErrorKind::{Contended, Denied, Invalid, Unanswered};
        let class = |status: u16, code: Option<&str>| {
            let mut said = ErrorMetadata::builder();
            if let Some(code) = code {
                said = said.code(code);
            }
            let response = Response::new(status.try_into().unwrap(), "".into());
            kind(&Failed::service_error(
                PutItemError::generic(said.build()),
                response,
            ))
        };
        for (status, code, wanted) in [
            (400, Some("ThrottlingException"), Contended),
            (503, Some("SlowDown"), Contended),
            (400, Some("TransactionInProgressException"), Contended),
            (400, Some("ReplicatedWriteConflictException"), Contended),
            (400, Some("AccessDeniedException"), Denied),
            (400, Some("ExpiredTokenException"), Denied),
            (400, Some("ResourceNotFoundException"), Denied),
            (400, Some("SomethingNew"), Denied),
            (400, Some("ValidationException"), Invalid),
            (400, Some("SerializationException"), Invalid),
            (400, Some("IdempotentParameterMismatchException"), Invalid),
            (
                400,
                Some("ItemCollectionSizeLimitExceededException"),
                Invalid,
            ),
            (400, None, Unanswered),
            (500, Some("InternalServerError"), Unanswered),
            (503, None, Unanswered),
        ] {
            assert_eq!(class(status, code), wanted, "{status} {code:?}");
        }
        assert_eq!(kind(&Failed::timeout_error("late")), Unanswered);
        assert_eq!(kind(&Failed::construction_failure("no region")), Invalid);
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
                "a set contains the same value twice",
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
