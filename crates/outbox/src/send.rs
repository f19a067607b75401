//! One call to SQS, SNS or EventBridge, and its result for each event.

use std::error::Error;

use aws_config::SdkConfig;
use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use aws_sdk_sns::types::{MessageAttributeValue as SnsAttribute, PublishBatchRequestEntry};
use aws_sdk_sqs::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
    types::{MessageAttributeValue as SqsAttribute, SendMessageBatchRequestEntry},
};

use crate::targets::Target;
use sqs_once::internal::{Published, flawed, unanswered};

/// How many entries all three services allow in one call.
pub(crate) const MAX_ENTRIES: usize = 10;

/// Largest call, in bytes. SNS takes no more by default, but SQS and EventBridge do.
pub(crate) const MAX_CALL_BYTES: usize = 256 * 1024;

/// Room for an event's attributes.
pub(crate) const ATTRIBUTE_BYTES: usize = 1024;

/// Message attribute with the event's id.
const ID: &str = "idempotencyKey";
/// Message attribute with the event's name.
const NAME: &str = "eventName";
/// A dead letter's message attribute with the reason.
const REASON: &str = "SqsOnceReason";
/// A dead letter's message attribute with the event's group.
const GROUP: &str = "eventGroup";

/// Error codes by which a target says that it will always reject an event's contents. An error that is in
/// neither list may come from a missing permission or an outage, so the event is sent again.
const REFUSED_CONTENTS: [&str; 6] = [
    "InvalidMessageContents",
    "AWS.SimpleQueueService.InvalidMessageContents",
    "BatchRequestTooLong",
    "AWS.SimpleQueueService.BatchRequestTooLong",
    "BatchRequestTooLongException",
    "MalformedDetail",
];

/// Error codes by which a target rejects an entry or the whole call. SNS returns `InvalidParameter` both for
/// a topic's ARN in another Region and for a message's text.
const REFUSED_VALUES: [&str; 6] = [
    "InvalidParameterValue",
    "MissingParameter",
    "InvalidParameter",
    "ParameterValueInvalid",
    "InvalidArgument",
    "ValidationException",
];

/// An event to send, with the reason if it goes to the dead-letter queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingEvent<'a> {
    pub(crate) event: &'a Published,
    pub(crate) reason: Option<&'a str>,
}

/// The result for one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The target confirmed the event.
    Confirmed,
    /// The target rejected the event, and would reject it again.
    Refused(String),
    /// The event will be sent again. The target may have accepted it.
    Failed(String),
    /// Like `Failed`, but the target also used up the call's time.
    Silent(String),
}

impl Sent {
    fn not(code: &str) -> Self {
        if REFUSED_CONTENTS.contains(&code) || REFUSED_VALUES.contains(&code) {
            Self::Refused(code.to_owned())
        } else {
            Self::Failed(code.to_owned())
        }
    }

    /// Returns the result of an event whose call failed as a whole, if no call to the target has succeeded. The
    /// rejected value may be the target's URL or ARN, which is not the event's fault, so the event is sent
    /// again.
    fn of_call(self) -> Self {
        match self {
            Self::Refused(code) if REFUSED_VALUES.contains(&&*code) => Self::Failed(code),
            other => other,
        }
    }
}

/// Clients of the three services.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    sqs: aws_sdk_sqs::Client,
    sns: aws_sdk_sns::Client,
    events: aws_sdk_eventbridge::Client,
    /// `source` of EventBridge entries.
    pub(crate) source: String,
}

impl Sender {
    pub(crate) fn new(config: &SdkConfig, source: String) -> Self {
        Self {
            sqs: aws_sdk_sqs::Client::new(config),
            sns: aws_sdk_sns::Client::new(config),
            events: aws_sdk_eventbridge::Client::new(config),
            source,
        }
    }

    /// Sends events in one call, or each in its own call if the target rejects that one. Returns the result of
    /// each event, in order.
    pub(crate) async fn send(&self, target: &Target, parcels: &[OutgoingEvent<'_>]) -> Vec<Sent> {
        match self.call(target, parcels).await {
            Err(Sent::Refused(_)) if parcels.len() > 1 => {
                // A single event may have caused the call to fail.
                let mut calls = Vec::with_capacity(parcels.len());
                for parcel in parcels {
                    calls.push(self.call(target, std::slice::from_ref(parcel)).await);
                }
                let is_willing = calls.iter().any(Result::is_ok);
                let result = |call: Result<_, Sent>| match call {
                    Ok(sent) => first(sent),
                    Err(error) if is_willing => error,
                    Err(error) => error.of_call(),
                };
                calls.into_iter().map(result).collect()
            }
            Err(error) => vec![error.of_call(); parcels.len()],
            Ok(sent) => sent,
        }
    }

    /// Sends events in one call.
    ///
    /// # Errors
    ///
    /// If the whole call failed, returns the one result that applies to all events.
    async fn call(
        &self,
        target: &Target,
        parcels: &[OutgoingEvent<'_>],
    ) -> Result<Vec<Sent>, Sent> {
        match target {
            Target::Queue { url, fifo } => self.to_queue(url, *fifo, parcels).await,
            Target::Topic { arn, fifo } => self.to_topic(arn, *fifo, parcels).await,
            Target::Bus { arn } => self.to_bus(arn, parcels).await,
        }
    }

    async fn to_queue(
        &self,
        url: &str,
        fifo: bool,
        parcels: &[OutgoingEvent<'_>],
    ) -> Result<Vec<Sent>, Sent> {
        let entries = parcels.iter().enumerate().map(|(index, parcel)| {
            let event = parcel.event;
            let body = if flawed("the bodies of a call are swapped") {
                &parcels[parcels.len() - 1 - index].event.body
            } else {
                &event.body
            };
            let mut entry = SendMessageBatchRequestEntry::builder()
                .id(index.to_string())
                .message_body(body);
            for (name, value) in attributes(*parcel) {
                let value = SqsAttribute::builder()
                    .data_type("String")
                    .string_value(value);
                entry = entry.message_attributes(name, value.build().map_err(not_built)?);
            }
            let entry = entry
                .set_message_group_id(message_group(event, fifo))
                .set_message_deduplication_id(fifo.then(|| event.id.clone()));
            entry.build().map_err(not_built)
        });
        let answer = self
            .sqs
            .send_message_batch()
            .queue_url(url)
            .set_entries(Some(entries.collect::<Result<_, _>>()?))
            .send()
            .await
            .map_err(|error| failed(&error))?;
        let confirmed = answer.successful().iter().map(|entry| entry.id());
        let refused = answer
            .failed()
            .iter()
            .map(|entry| (entry.id(), entry.code()));
        Ok(results(parcels.len(), confirmed, refused))
    }

    async fn to_topic(
        &self,
        arn: &str,
        fifo: bool,
        parcels: &[OutgoingEvent<'_>],
    ) -> Result<Vec<Sent>, Sent> {
        let entries = parcels.iter().enumerate().map(|(index, parcel)| {
            let event = parcel.event;
            let mut entry = PublishBatchRequestEntry::builder()
                .id(index.to_string())
                .message(&event.body);
            for (name, value) in attributes(*parcel) {
                let value = SnsAttribute::builder()
                    .data_type("String")
                    .string_value(value);
                entry = entry.message_attributes(name, value.build().map_err(not_built)?);
            }
            let entry = entry
                .set_message_group_id(message_group(event, fifo))
                .set_message_deduplication_id(fifo.then(|| event.id.clone()));
            entry.build().map_err(not_built)
        });
        let answer = self
            .sns
            .publish_batch()
            .topic_arn(arn)
            .set_publish_batch_request_entries(Some(entries.collect::<Result<_, _>>()?))
            .send()
            .await
            .map_err(|error| failed(&error))?;
        let confirmed = answer.successful().iter().filter_map(|entry| entry.id());
        let refused = answer
            .failed()
            .iter()
            .map(|entry| (entry.id(), entry.code()));
        Ok(results(parcels.len(), confirmed, refused))
    }

    async fn to_bus(&self, arn: &str, parcels: &[OutgoingEvent<'_>]) -> Result<Vec<Sent>, Sent> {
        let entries = parcels.iter().map(|parcel| {
            let event = parcel.event;
            PutEventsRequestEntry::builder()
                .event_bus_name(arn)
                .source(&self.source)
                .detail_type(&event.name)
                .detail(detail(event))
                .build()
        });
        let call = self
            .events
            .put_events()
            .set_entries(Some(entries.collect()));
        let answer = call.send().await.map_err(|error| failed(&error))?;
        let sent = answer
            .entries()
            .iter()
            .map(|entry| match entry.error_code() {
                Some(code) => Sent::not(code),
                None if entry.event_id().is_some() => Sent::Confirmed,
                None => unconfirmed(),
            });
        let missing = std::iter::repeat_with(unconfirmed);
        Ok(sent.chain(missing).take(parcels.len()).collect())
    }
}

/// Returns the detail of an EventBridge entry. The detail must be an object, and contains the metadata, because an entry
/// has no attributes.
fn detail(event: &Published) -> String {
    let metadata = serde_json::json!({ ID: event.id, "group": event.group });
    format!(r#"{{"metadata":{metadata},"data":{}}}"#, event.body)
}

/// Returns the message group of an entry. An event without a group has its id as group. On a standard queue or topic we
/// leave the id out, because fair queues would treat each event as a tenant.
fn message_group(event: &Published, fifo: bool) -> Option<String> {
    (fifo || event.group != event.id).then(|| event.group.clone())
}

fn attributes<'a>(parcel: OutgoingEvent<'a>) -> impl Iterator<Item = (&'static str, &'a str)> {
    let OutgoingEvent { event, reason } = parcel;
    let always = [(ID, event.id.as_str()), (NAME, event.name.as_str())];
    let of_dead_letter = reason.map(|reason| [(REASON, reason), (GROUP, event.group.as_str())]);
    always
        .into_iter()
        .chain(of_dead_letter.into_iter().flatten())
}

/// Returns the result of each entry. If the response doesn't name an entry, it is not confirmed.
fn results<'a>(
    count: usize,
    confirmed: impl Iterator<Item = &'a str>,
    refused: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<Sent> {
    if flawed("an event is not confirmed") {
        return vec![Sent::Confirmed; count];
    }
    let mut sent = vec![unconfirmed(); count];
    let answered = confirmed
        .map(|id| (id, Sent::Confirmed))
        .chain(refused.map(|(id, code)| (id, Sent::not(code))));
    for (id, result) in answered {
        let index = id.parse::<usize>().ok();
        if let Some(entry) = index.and_then(|index| sent.get_mut(index)) {
            *entry = result;
        }
    }
    sent
}

fn unconfirmed() -> Sent {
    Sent::Failed("the response does not name the event".to_owned())
}

fn first(sent: Vec<Sent>) -> Sent {
    sent.into_iter().next().unwrap_or_else(unconfirmed)
}

/// Returns the result of an entry that lacks a field.
fn not_built(error: impl Error) -> Sent {
    Sent::Failed(error.to_string())
}

/// Returns the result of a failed call, without the service's text, which may quote the payload.
fn failed<E>(error: &SdkError<E, HttpResponse>) -> Sent
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let is_silent = match error {
        SdkError::TimeoutError(_) => true,
        SdkError::DispatchFailure(failure) => failure.is_timeout(),
        _ => false,
    };
    match error.as_service_error() {
        Some(service) => Sent::not(service.code().unwrap_or("unknown error")),
        None if is_silent => Sent::Silent(unanswered(error)),
        None => Sent::Failed(unanswered(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_entry_is_not_confirmed() {
        let sent = results(
            3,
            ["2", "7", "x"].into_iter(),
            [("0", "MissingParameter")].into_iter(),
        );
        let refused = Sent::Refused("MissingParameter".to_owned());
        assert_eq!(sent, [refused, unconfirmed(), Sent::Confirmed]);
    }

    #[test]
    fn unknown_code_is_sent_again() {
        for code in [
            "AccessDenied",
            "RequestThrottled",
            "ThrottlingException",
            "InternalError",
        ] {
            assert_eq!(Sent::not(code), Sent::Failed(code.to_owned()));
        }
    }

    #[test]
    fn detail_is_an_object_with_the_id() {
        let event = Published {
            id: "orders#\"#00".to_owned(),
            group: "c-1".to_owned(),
            name: "placed".to_owned(),
            body: "[1]".to_owned(),
        };
        let detail: serde_json::Value = serde_json::from_str(&detail(&event)).unwrap();
        assert_eq!(detail["metadata"][ID], event.id);
        assert_eq!(detail["data"], serde_json::json!([1]));
    }
}
