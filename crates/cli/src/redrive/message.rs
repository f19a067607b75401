//! Moves one message: sends its copy, deletes it, and notes both steps in the journal.

use std::time::Duration;

use aws_sdk_sqs::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::send_message::{SendMessageOutput, builders::SendMessageFluentBuilder},
    types::{
        MessageAttributeValue as Attribute, MessageSystemAttributeName as System,
        MessageSystemAttributeNameForSends as SystemForSends,
        MessageSystemAttributeValue as SystemAttribute,
    },
};

use sqs_once_dynamodb::explain::is_contended;

use super::{Run, report::MoveStatus};
use crate::{
    aws::failed,
    dead_letters::{DeadLetter, ERROR, KEY, REASON},
    journal::{Journal, Step},
    output::Error,
};

/// The message attribute that holds the id of the dead letter from which a message was copied.
const REDRIVE_OF: &str = "SqsOnceRedriveOf";
/// How often a message is sent to a FIFO queue that does not respond, or throttles.
const MOST_SENDS: u32 = 4;
/// Pause after the first of these sends. It grows with each.
const PAUSE: Duration = Duration::from_millis(100);
/// How many attributes SQS allows on a message.
const MAX_ATTRIBUTES: usize = 10;

/// A message that was not moved, and the reason.
pub(super) struct Unmoved {
    pub(super) status: MoveStatus,
    pub(super) error: Error,
    /// True if no further message is tried.
    pub(super) ends_run: bool,
}

impl Unmoved {
    const fn one(status: MoveStatus, error: Error) -> Self {
        let ends_run = false;
        Self {
            status,
            error,
            ends_run,
        }
    }

    const fn all(status: MoveStatus, error: Error) -> Self {
        let ends_run = true;
        Self {
            status,
            error,
            ends_run,
        }
    }
}

impl Run<'_> {
    pub(super) async fn move_one(
        &self,
        dead_letter: &DeadLetter,
        journal: &mut Journal,
    ) -> Result<MoveStatus, Unmoved> {
        let id = dead_letter.id();
        let mut end = MoveStatus::Moved;
        match journal.step(id) {
            Some(Step::Sent | Step::Deleted) => end = MoveStatus::Deleted,
            Some(Step::Send) => {
                let error = format!("message {id}: {}", MoveStatus::Unknown.text());
                return Err(Unmoved::one(MoveStatus::Unknown, Error::negative(error)));
            }
            None => self.send(dead_letter, journal).await?,
        }
        let deleted = self.from.delete(dead_letter).await;
        deleted.map_err(|error| Unmoved::one(MoveStatus::SentNotDeleted, error))?;
        let noted = journal.deleted(id);
        noted.map_err(|error| Unmoved::all(end, error))?;
        Ok(end)
    }

    async fn send(&self, dead_letter: &DeadLetter, journal: &mut Journal) -> Result<(), Unmoved> {
        let id = dead_letter.id();
        let attributes =
            attributes(dead_letter).map_err(|error| Unmoved::one(MoveStatus::Refused, error))?;
        let body = dead_letter.message.body.as_deref().unwrap_or_default();
        let mut send = self
            .to
            .client
            .send_message()
            .queue_url(&self.to.url)
            .message_body(body)
            .set_message_attributes(Some(attributes))
            .set_message_group_id(dead_letter.group().map(str::to_owned));
        if self.to.is_fifo() {
            send = send.message_deduplication_id(id);
        }
        if let Some(header) = dead_letter.system(&System::AwsTraceHeader) {
            let value = SystemAttribute::builder().data_type("String");
            if let Ok(value) = value.string_value(header).build() {
                send = send.message_system_attributes(SystemForSends::AwsTraceHeader, value);
            }
        }
        let noted = journal.send(id);
        noted.map_err(|error| Unmoved::all(MoveStatus::NotTried, error))?;
        let (failure, is_refused) = match self.deliver(send).await {
            Ok(answer) => match answer.message_id.filter(|new| !new.is_empty()) {
                Some(new) => {
                    let noted = journal.sent(id, &new);
                    return noted.map_err(|error| Unmoved::all(MoveStatus::SentNotDeleted, error));
                }
                // A proxy may respond with 200 in place of SQS.
                None => {
                    let error = "could not send a message: the response names no new message";
                    return Err(Unmoved::all(MoveStatus::Unknown, Error::remote(error)));
                }
            },
            Err(failed) => failed,
        };
        if !is_refused {
            return Err(Unmoved::all(MoveStatus::Unknown, failure));
        }
        let noted = journal.refused(id);
        noted.map_err(|error| Unmoved::all(MoveStatus::Refused, error))?;
        Err(Unmoved::one(MoveStatus::Refused, failure))
    }

    /// Sends a copy. A FIFO queue that does not respond or throttles gets it again, because the deduplication id
    /// prevents a second copy.
    ///
    /// # Errors
    ///
    /// The last error, and whether SQS has refused every copy. Otherwise one may have arrived.
    async fn deliver(
        &self,
        copy: SendMessageFluentBuilder,
    ) -> Result<SendMessageOutput, (Error, bool)> {
        let most = if self.to.is_fifo() { MOST_SENDS } else { 1 };
        let (mut sends, mut unanswered) = (0, false);
        loop {
            let error = match copy.clone().send().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let is_refused = match &error {
                SdkError::ServiceError(answer) => answer.raw().status().is_client_error(),
                SdkError::ConstructionFailure(_) => true,
                _ => false,
            };
            sends += 1;
            unanswered |= !is_refused;
            let may_pass = !is_refused || error.code().is_some_and(is_contended);
            if sends == most || !may_pass {
                let failure = failed("send a message", "sqs:SendMessage", &error);
                return Err((failure, !unanswered));
            }
            tokio::time::sleep(PAUSE * sends).await;
        }
    }
}

/// Returns the attributes of the copy: those of the message, without the ones that direct dead-lettering
/// added.
fn attributes(
    dead_letter: &DeadLetter,
) -> Result<std::collections::HashMap<String, Attribute>, Error> {
    let mut attributes = dead_letter
        .message
        .message_attributes
        .clone()
        .unwrap_or_default();
    for name in [REASON, ERROR, KEY] {
        attributes.remove(name);
    }
    let of = Attribute::builder()
        .data_type("String")
        .string_value(dead_letter.id())
        .build()
        .map_err(Error::usage)?;
    attributes.insert(REDRIVE_OF.into(), of);
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(Error::negative(format!(
            "message {} has no room for the attribute {REDRIVE_OF}: SQS takes {MAX_ATTRIBUTES} attributes",
            dead_letter.id()
        )));
    }
    Ok(attributes)
}
