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
};

use crate::{
    aws::explain::{causes, explain, reason_of_denial, refused_signature},
    protocol::{Pause, Timestamp},
    system::{self, Instant, sleep, timeout_at},
};

/// After this long without a response, we treat the endpoint as unreachable. The first attempt ([`crate::aws::config`]) may
/// use a connection that closed while Lambda had frozen the process. The second attempt then has half a second.
const NO_ANSWER: Duration = Duration::from_millis(1500);
/// Pause after an endpoint couldn't be reached or did not respond. Without it, every batch in a VPC without an
/// SQS endpoint would use up the whole budget.
const PAUSE: Duration = Duration::from_secs(5 * 60);

/// Pause before we retry a call whose signature SQS rejected.
const AFTER_REFUSED_SIGNATURE: Duration = Duration::from_millis(250);

/// Time limit of a background call, for an SDK client without timeouts.
const BACKGROUND: Duration = Duration::from_secs(30);

/// The queues that a process has called, by ARN.
#[derive(Debug)]
pub(super) struct Queues {
    client: Client,
    pub(super) clock: fn() -> Timestamp,
    known: Mutex<Endpoints>,
}

#[derive(Debug, Default)]
struct Endpoints {
    queues: BTreeMap<String, Queue>,
    /// The pauses of endpoints, by Region. No call goes to an endpoint during its pause.
    paused: BTreeMap<String, Pause>,
}

/// A queue, with everything that a call to it needs.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) region: String,
}

/// Time limit of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    /// Until this time, for calls that the response to Lambda waits for.
    Until(Instant),
    /// [`BACKGROUND`]: for calls that the response doesn't wait for. Lambda may freeze the process in the meantime, so a missing
    /// response proves nothing about the endpoint.
    Background,
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// The role may not make the call, or there is no such queue. Every later call would fail in the same way.
    #[error("{0}")]
    Denied(String),
    /// SQS rejected this call, or the SDK refused to send it.
    #[error("{0}")]
    Refused(String),
    /// The endpoint did not respond, and is not called again for [`PAUSE`].
    #[error(
        "the SQS endpoint of {region} did not respond and is not called again for 5 minutes: {cause}"
    )]
    Unreachable { region: String, cause: String },
    /// The endpoint did not respond, but may be called again.
    #[error("the SQS endpoint of {region} did not respond: {cause}")]
    NoResponse { region: String, cause: String },
    /// The call was not sent, because the endpoint couldn't be reached within the last five minutes.
    #[error("the SQS endpoint could not be reached within the last 5 minutes")]
    Paused,
    /// It was time to respond to Lambda.
    #[error("no time was left for a response from SQS")]
    OutOfTime,
}

impl CallError {
    /// Creates the error for a request that lacks a required member.
    #[expect(clippy::needless_pass_by_value, reason = "passed by `map_err`")]
    pub(super) fn not_made(error: BuildError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl Queues {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            clock: Timestamp::now,
            known: Mutex::default(),
        }
    }

    /// Returns queues with the same client and this clock, before any call.
    pub(super) fn with_clock(&self, clock: fn() -> Timestamp) -> Self {
        Self {
            clock,
            ..Self::new(self.client.clone())
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Locks the known queues, for a lookup or an insertion and never during a call. A poisoned lock is harmless,
    /// because no code under it leaves a change half done.
    fn known(&self) -> MutexGuard<'_, Endpoints> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether calls to this queue's endpoint are paused ([`CallError::Paused`]).
    pub(super) fn is_paused(&self, arn: &str) -> bool {
        parse(arn).is_some_and(|(region, ..)| self.is_region_paused(region))
    }

    fn is_region_paused(&self, region: &str) -> bool {
        let pause = self.known().paused.get(region).copied();
        pause.is_some_and(|pause| pause.is_on(self.now()))
    }

    /// Returns the queue with this ARN. Looks its URL up once, though concurrent callers may each do so.
    pub(super) async fn queue(&self, arn: &str, bound: Bound) -> Result<Queue, CallError> {
        if let Some(queue) = self.known().queues.get(arn) {
            return Ok(queue.clone());
        }
        let (region, account, name) = parse(arn)
            .ok_or_else(|| CallError::Refused("this is not the ARN of a queue".into()))?;
        let config = self.client.config();
        // The Region also determines the partition.
        let client = if config.region().is_some_and(|own| own.as_ref() == region) {
            self.client.clone()
        } else {
            let region = Region::new(region.to_owned());
            Client::from_conf(config.to_builder().region(region).build())
        };
        let look_up = client
            .get_queue_url()
            .queue_name(name)
            .queue_owner_aws_account_id(account);
        let send = || look_up.clone().send();
        let found = self.call(region, "sqs:GetQueueUrl", bound, send).await?;
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

    /// Sends a call to the endpoint of `region`. The call needs `permission`, and `send` must be safe to retry.
    pub(super) async fn call<T, E, F>(
        &self,
        region: &str,
        permission: &str,
        bound: Bound,
        send: impl Fn() -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata + Error + 'static,
    {
        let mut sent = system::instant();
        if self.is_region_paused(region) {
            return Err(CallError::Paused);
        }
        let until = match bound {
            Bound::Until(until) => until,
            Bound::Background => sent + BACKGROUND,
        };
        if sent >= until {
            return Err(CallError::OutOfTime);
        }
        let mut answer = timeout_at(until, send()).await;
        // After a freeze, a process may sign once with an old clock or old credentials. SQS then rejects the call, so we retry it.
        if let Ok(Err(error)) = &answer
            && is_signed_with_old(error)
            && until.saturating_duration_since(system::instant()) > AFTER_REFUSED_SIGNATURE
        {
            sleep(AFTER_REFUSED_SIGNATURE).await;
            sent = system::instant();
            answer = timeout_at(until, send()).await;
        }
        let cause = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => match no_answer(&error) {
                Some(cause) => cause,
                None => return Err(rejection(&error, permission)),
            },
            // We waited too briefly to say anything about the endpoint.
            Err(_elapsed) if system::elapsed(sent) < NO_ANSWER => return Err(CallError::OutOfTime),
            Err(_elapsed) => format!("no answer within {:?}", system::elapsed(sent)),
        };
        let region = region.to_owned();
        let Bound::Until(_) = bound else {
            return Err(CallError::NoResponse { region, cause });
        };
        let pause = Pause::new(self.now(), PAUSE);
        self.known().paused.insert(region.clone(), pause);
        Err(CallError::Unreachable { region, cause })
    }
}

/// Returns the cause of an error if it shows that the endpoint couldn't be reached or did not respond.
fn no_answer<E>(error: &SdkError<E>) -> Option<String> {
    match error {
        SdkError::TimeoutError(_) => Some("no answer in time".into()),
        // A connector's errors contain addresses and causes, but no bodies.
        SdkError::DispatchFailure(failure) if failure.is_io() || failure.is_timeout() => Some(
            failure
                .as_connector_error()
                .map_or_else(String::new, |error| causes(error)),
        ),
        _ => None,
    }
}

/// Returns whether SQS rejected a call because it was signed with an old clock or old credentials.
fn is_signed_with_old<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let code = error.as_service_error().and_then(E::code);
    code.is_some_and(|code| refused_signature(code).is_some() || code.contains("ExpiredToken"))
}

/// Returns Region, account and name of `arn:aws:sqs:eu-central-1:123456789012:orders`.
fn parse(arn: &str) -> Option<(&str, &str, &str)> {
    let mut parts = arn.split(':');
    if parts.next() != Some("arn") || parts.next()?.is_empty() || parts.next() != Some("sqs") {
        return None;
    }
    let (region, account, name) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = [region, account, name].iter().all(|part| !part.is_empty());
    (whole && parts.next().is_none()).then_some((region, account, name))
}

/// Returns the error of a rejected call: SQS's code and our advice, without the request, which may contain payload.
fn rejection<E>(error: &SdkError<E>, permission: &str) -> CallError
where
    E: ProvideErrorMetadata + Error + 'static,
{
    // Includes `KmsAccessDenied`: the queue's KMS key denies access, and the reason names the KMS action.
    let is_denied = |code: &str| code.contains("AccessDenied");
    let text = explain(error, |code, service| {
        let reason = reason_of_denial(service.message());
        is_denied(code).then(|| format!("this role may not {permission} on it; {reason}"))
    });
    let code = error.as_service_error().and_then(E::code);
    let code = code.unwrap_or_default();
    // `QueueDoesNotExist`, or `AWS.SimpleQueueService.NonExistentQueue`.
    if is_denied(code) || code.contains("NotExist") || code.contains("NonExistent") {
        CallError::Denied(text)
    } else {
        CallError::Refused(text)
    }
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
            rejection(&error, "sqs:SendMessage")
        };
        for code in ["AccessDenied", "AccessDeniedException", "KmsAccessDenied"] {
            let wanted = format!(
                "{code}: this role may not sqs:SendMessage on it; the reason of AWS: not authorized to perform: kms:Decrypt on ... (request id none)"
            );
            assert_eq!(of(code), CallError::Denied(wanted));
        }
        let refused = |text: &str| CallError::Refused(text.into());
        assert_eq!(of("OverLimit"), refused("OverLimit (request id none)"));
        let skewed = of("RequestTimeTooSkewed").to_string();
        assert!(skewed.contains("clock"), "{skewed}");
        for code in [
            "QueueDoesNotExist",
            "AWS.SimpleQueueService.NonExistentQueue",
        ] {
            let missing = format!("{code} (request id none)");
            assert_eq!(of(code), CallError::Denied(missing));
        }
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
