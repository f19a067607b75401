//! Explains failed requests, for logs and errors.

use std::{env, error::Error};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::RequestId,
};

use crate::{
    protocol::{Key, RequestErrorKind},
    store::StoreError,
    unanswered::Unanswered,
};

pub(crate) use crate::unanswered::{NoResponse, causes};

/// Explains a failed request and says what to do. The text leaves out request and response, which contain
/// payload.
pub(crate) fn explain<E>(error: &SdkError<E>, permission: &str) -> String
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let Some(service) = error.as_service_error() else {
        return unsent(error, env::var_os(ACCOUNT_ID).is_some());
    };
    let code = service.code().unwrap_or("unknown error");
    let refused = refused_signature(code).unwrap_or_default();
    let advice = match code {
        _ if !refused.is_empty() => refused.into(),
        "ResourceNotFoundException" => {
            "there is no such table in this account and region; check the table name".into()
        }
        "AccessDeniedException" => {
            let reason = reason_of_denial(service.message());
            format!("this role may not {permission} on this table; {reason}")
        }
        "UnrecognizedClientException" | "ExpiredTokenException" => {
            "the credentials are invalid or expired".into()
        }
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "RequestLimitExceeded" => {
            "throttled; raise the table's capacity or lower the concurrency".into()
        }
        "TransactionConflictException" => {
            "a transaction on the same item is in progress; retry the request".into()
        }
        "ReplicatedWriteConflictException" => {
            "another Region writes the same item; retry the request".into()
        }
        _ => without_quotes(service.message().unwrap_or("no message")).to_owned(),
    };
    let request_id = error.request_id().unwrap_or("none");
    format!("{code}: {advice} (request id {request_id})")
}

/// The variable from which the SDK takes the account of DynamoDB's endpoint.
const ACCOUNT_ID: &str = "AWS_ACCOUNT_ID";

/// Explains a request that got no response. If it was not sent and [`ACCOUNT_ID`] is set, says so.
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

/// Returns what to do about a request whose signature was refused, or `None` for other codes.
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

/// Explains a request that got no response from the service. The text leaves out the request.
pub fn unanswered<E: Error + 'static>(error: &SdkError<E>) -> String {
    let unanswered = match error {
        SdkError::TimeoutError(_) => Unanswered::Timeout,
        SdkError::DispatchFailure(_) => Unanswered::NotSent,
        SdkError::ConstructionFailure(_) => Unanswered::NotBuilt,
        _ => Unanswered::Unreadable,
    };
    unanswered.explain(error, |error| error.is::<CredentialsError>())
}

/// Codes of requests that were throttled or collided with another write to the same item. All but the last
/// two are the throttling codes of the AWS SDK (`THROTTLING_ERRORS` of `aws-runtime`).
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

/// Codes of requests that would fail again, because their content is invalid.
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

/// Creates the error of a request to `table` that failed for this reason.
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

/// Returns the name of a table as errors show it.
pub(crate) fn named(table: &str) -> String {
    format!("DynamoDB table `{table}`")
}

/// Classifies a failed request. DynamoDB's error codes are classified only here.
pub(crate) fn kind<E: ProvideErrorMetadata>(error: &SdkError<E>) -> RequestErrorKind {
    match error {
        SdkError::ConstructionFailure(_) => RequestErrorKind::Invalid,
        SdkError::ServiceError(context) => match context.err().code() {
            Some(code) if CONTENDED.contains(&code) => RequestErrorKind::Contended,
            Some(code) if INVALID.contains(&code) => RequestErrorKind::Invalid,
            // DynamoDB's errors have a code, so a different server sent this response.
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
    use aws_smithy_runtime_api::{client::result::ConnectorError, http::Response};

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
            assert_eq!(explain(&error, "dynamodb:PutItem"), wanted);
        }
    }

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
