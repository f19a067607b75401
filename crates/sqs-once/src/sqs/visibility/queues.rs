//! [`Queues`]: calls to SQS, each with a time limit.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_sdk_sqs::{
    Client,
    config::Region,
    error::{BuildError, ProvideErrorMetadata, SdkError},
    operation::RequestId as _,
};
use tokio::time::{Instant, timeout_at};

use crate::dynamodb::explain::{causes, reason_of_denial, unanswered};

/// A call without an answer for so long shows that the endpoint is out of reach. The first attempt
/// ([`crate::aws::config`]) may use a connection that closed while Lambda had frozen the process; the
/// second attempt then has half a second.
const NO_ANSWER: Duration = Duration::from_millis(1500);
/// Pause after an endpoint could not be reached or did not answer. Without the pause, in a VPC without
/// an SQS endpoint every batch would wait for the whole budget.
const PAUSE: Duration = Duration::from_secs(5 * 60);

/// For an SDK client without timeouts of its own.
const BACKGROUND: Duration = Duration::from_secs(30);

/// The queues that a process has called, by ARN.
#[derive(Debug)]
pub(super) struct Queues {
    client: Client,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    queues: BTreeMap<String, Queue>,
    /// By region: when its endpoint may be asked again.
    paused: BTreeMap<String, Instant>,
}

/// A queue as it is called.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) client: Client,
    pub(super) url: String,
    region: String,
}

/// Time limit of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    /// This time, for calls before the response to Lambda.
    Until(Instant),
    /// This time, for calls while handlers run. No response waits for them, so they are sent during a
    /// pause too, and cause none.
    WhileRunning(Instant),
    /// [`BACKGROUND`], for calls beside the response. Lambda may freeze the process meanwhile, so a
    /// missing answer proves nothing about the endpoint.
    Background,
}

/// The reason why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// SQS refused the call, or the SDK did before it was sent.
    #[error("{0}")]
    Refused(String),
    /// The endpoint is not asked again for [`PAUSE`].
    #[error(
        "the SQS endpoint of {region} gave no answer and is not asked again for 5 minutes: {cause}"
    )]
    Unreachable { region: String, cause: String },
    /// The endpoint may be asked again.
    #[error("the SQS endpoint of {region} gave no answer: {cause}")]
    NoAnswer { region: String, cause: String },
    /// Not sent: the endpoint could not be reached within the last five minutes.
    #[error("the SQS endpoint could not be reached within the last 5 minutes")]
    Paused,
    /// The batch had to be answered.
    #[error("no time was left for an answer of SQS")]
    OutOfTime,
}

impl Known {
    fn is_paused(&self, region: &str) -> bool {
        let end = self.paused.get(region);
        end.is_some_and(|end| Instant::now() < *end)
    }
}

impl CallError {
    /// A member that SQS requires is missing.
    #[expect(clippy::needless_pass_by_value, reason = "passed by `map_err`")]
    pub(super) fn not_made(error: BuildError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl Queues {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::default(),
        }
    }

    /// Held for a lookup or an insertion, never during a call.
    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// Returns whether calls to this queue's endpoint are paused ([`CallError::Paused`]).
    pub(super) fn is_paused(&self, arn: &str) -> bool {
        parse(arn).is_some_and(|(region, ..)| self.known().is_paused(region))
    }

    /// The queue of an ARN. The URL is looked up once, except by concurrent callers.
    pub(super) async fn queue(&self, arn: &str, bound: Bound) -> Result<Queue, CallError> {
        if let Some(queue) = self.known().queues.get(arn) {
            return Ok(queue.clone());
        }
        let (region, account, name) = parse(arn)
            .ok_or_else(|| CallError::Refused("this is not the ARN of a queue".into()))?;
        let config = self.client.config();
        // The region tells the partition too.
        let client = if config.region().is_some_and(|own| own.as_ref() == region) {
            self.client.clone()
        } else {
            let region = Region::new(region.to_owned());
            Client::from_conf(config.to_builder().region(region).build())
        };
        let look_up = client
            .get_queue_url()
            .queue_name(name)
            .queue_owner_aws_account_id(account)
            .send();
        let found = self.call(region, "sqs:GetQueueUrl", bound, look_up).await?;
        let url = found
            .queue_url
            .ok_or_else(|| CallError::Refused("SQS named no URL".into()))?;
        let queue = Queue {
            client,
            url,
            region: region.to_owned(),
        };
        self.known().queues.insert(arn.to_owned(), queue.clone());
        Ok(queue)
    }

    /// Sends a call to `queue`, which needs `permission`.
    pub(super) async fn ask<T, E>(
        &self,
        queue: &Queue,
        permission: &str,
        bound: Bound,
        call: impl Future<Output = Result<T, SdkError<E>>>,
    ) -> Result<T, CallError>
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        self.call(&queue.region, permission, bound, call).await
    }

    async fn call<T, E>(
        &self,
        region: &str,
        permission: &str,
        bound: Bound,
        call: impl Future<Output = Result<T, SdkError<E>>>,
    ) -> Result<T, CallError>
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let sent = Instant::now();
        let heeds_pause = !matches!(bound, Bound::WhileRunning(_));
        if heeds_pause && self.known().is_paused(region) {
            return Err(CallError::Paused);
        }
        let until = match bound {
            Bound::Until(until) | Bound::WhileRunning(until) => until,
            Bound::Background => sent + BACKGROUND,
        };
        if sent >= until {
            return Err(CallError::OutOfTime);
        }
        let cause = match timeout_at(until, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => match no_answer(&error) {
                Some(cause) => cause,
                None => return Err(CallError::Refused(explain_rejection(&error, permission))),
            },
            // Too soon to say anything about the endpoint.
            Err(_elapsed) if sent.elapsed() < NO_ANSWER => return Err(CallError::OutOfTime),
            Err(_elapsed) => format!("no answer within {:?}", sent.elapsed()),
        };
        let region = region.to_owned();
        let Bound::Until(_) = bound else {
            return Err(CallError::NoAnswer { region, cause });
        };
        let end = Instant::now() + PAUSE;
        self.known().paused.insert(region.clone(), end);
        Err(CallError::Unreachable { region, cause })
    }
}

/// Locks also after a panic: no code under these locks leaves a change half made.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cause of an error that shows that the endpoint could not be reached or did not answer.
fn no_answer<E>(error: &SdkError<E>) -> Option<String> {
    match error {
        SdkError::TimeoutError(_) => Some("no answer in time".into()),
        // A connector's errors hold addresses and causes, no bodies.
        SdkError::DispatchFailure(failure) if failure.is_io() || failure.is_timeout() => Some(
            failure
                .as_connector_error()
                .map_or_else(String::new, |error| causes(error)),
        ),
        _ => None,
    }
}

/// Region, account and name: `arn:aws:sqs:eu-central-1:123456789012:orders`.
fn parse(arn: &str) -> Option<(&str, &str, &str)> {
    let mut parts = arn.split(':');
    if parts.next() != Some("arn") || parts.next()?.is_empty() || parts.next() != Some("sqs") {
        return None;
    }
    let (region, account, name) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = [region, account, name].iter().all(|part| !part.is_empty());
    (whole && parts.next().is_none()).then_some((region, account, name))
}

/// Code and advice, without the request, which may hold payload.
fn explain_rejection<E>(error: &SdkError<E>, permission: &str) -> String
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let Some(service) = error.as_service_error() else {
        return unanswered(error);
    };
    let code = service.code().unwrap_or("unknown error");
    // `KmsAccessDenied` too: the queue's key denies, and the reason names the action of KMS.
    let advice = if code.contains("AccessDenied") {
        let reason = reason_of_denial(service.message());
        format!(": this role may not {permission} on it; {reason}")
    } else {
        String::new()
    };
    let request_id = error.request_id().unwrap_or("none");
    format!("{code}{advice} (request id {request_id})")
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::{
        config::http::HttpResponse, error::ErrorMetadata, operation::send_message::SendMessageError,
    };

    use super::*;

    #[test]
    fn denied_call_has_reason_of_service() {
        let of = |code: &str| {
            let message = "not authorized to perform: kms:Decrypt on '{secret}'";
            let said = ErrorMetadata::builder().code(code).message(message).build();
            let response = HttpResponse::new(403.try_into().unwrap(), "".into());
            let error = SdkError::service_error(SendMessageError::generic(said), response);
            explain_rejection(&error, "sqs:SendMessage")
        };
        for code in ["AccessDenied", "AccessDeniedException", "KmsAccessDenied"] {
            assert_eq!(
                of(code),
                format!(
                    "{code}: this role may not sqs:SendMessage on it; the reason of AWS: not authorized to perform: kms:Decrypt on ... (request id none)"
                )
            );
        }
        assert_eq!(of("OverLimit"), "OverLimit (request id none)");
    }

    #[test]
    fn queue_arn_has_region_account_and_name() {
        assert_eq!(
            parse("arn:aws-cn:sqs:cn-north-1:123456789012:orders.fifo"),
            Some(("cn-north-1", "123456789012", "orders.fifo"))
        );
        for arn in [
            "",
            "orders",
            "arn:aws:sns:eu-west-1:123456789012:orders",
            "arn:aws:sqs:eu-west-1:123456789012",
            "arn:aws:sqs:eu-west-1::orders",
            "arn:aws:sqs:eu-west-1:123456789012:orders:more",
        ] {
            assert_eq!(parse(arn), None, "{arn}");
        }
    }
}
