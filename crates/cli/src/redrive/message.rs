//! Moves one message: sends its copy, deletes it, and notes both steps in the journal.

use aws_sdk_sqs::{
    error::SdkError,
    types::{
        MessageAttributeValue as Attribute, MessageSystemAttributeName as System,
        MessageSystemAttributeNameForSends as SystemForSends,
        MessageSystemAttributeValue as SystemAttribute,
    },
};

use super::{Run, report::Fate};
use crate::{
    aws::failed,
    dead_letters::{DeadLetter, ERROR, KEY, REASON},
    journal::{Journal, Step},
    output::Error,
};

/// The message attribute that holds the id of the dead letter from which a message was copied.
const REDRIVE_OF: &str = "SqsOnceRedriveOf";
/// How many attributes SQS allows on a message.
const MAX_ATTRIBUTES: usize = 10;

/// A message that was not moved, and the reason.
pub(super) struct Left {
    pub(super) fate: Fate,
    pub(super) error: Error,
    /// No further message is tried.
    pub(super) ends_run: bool,
}

impl Left {
    const fn one(fate: Fate, error: Error) -> Self {
        let ends_run = false;
        Self {
            fate,
            error,
            ends_run,
        }
    }

    const fn all(fate: Fate, error: Error) -> Self {
        let ends_run = true;
        Self {
            fate,
            error,
            ends_run,
        }
    }
}

impl Run<'_> {
    pub(super) async fn move_one(
        &self,
        letter: &DeadLetter,
        journal: &mut Journal,
    ) -> Result<Fate, Left> {
        let id = letter.id();
        let mut end = Fate::Moved;
        match journal.step(id) {
            Some(Step::Sent | Step::Deleted) => end = Fate::Deleted,
            Some(Step::Send) => {
                let error = format!("message {id}: {}", Fate::Unknown.text());
                return Err(Left::one(Fate::Unknown, Error::negative(error)));
            }
            None => self.send(letter, journal).await?,
        }
        let deleted = self.from.delete(letter).await;
        deleted.map_err(|error| Left::one(Fate::SentNotDeleted, error))?;
        let noted = journal.deleted(id);
        noted.map_err(|error| Left::all(end, error))?;
        Ok(end)
    }

    async fn send(&self, letter: &DeadLetter, journal: &mut Journal) -> Result<(), Left> {
        let id = letter.id();
        let attributes = attributes(letter).map_err(|error| Left::one(Fate::Refused, error))?;
        let body = letter.message.body.as_deref().unwrap_or_default();
        let mut send = self
            .to
            .client
            .send_message()
            .queue_url(&self.to.url)
            .message_body(body)
            .set_message_attributes(Some(attributes))
            .set_message_group_id(letter.group().map(str::to_owned));
        if self.to.is_fifo() {
            send = send.message_deduplication_id(id);
        }
        if let Some(header) = letter.system(&System::AwsTraceHeader) {
            let value = SystemAttribute::builder().data_type("String");
            if let Ok(value) = value.string_value(header).build() {
                send = send.message_system_attributes(SystemForSends::AwsTraceHeader, value);
            }
        }
        let noted = journal.send(id);
        noted.map_err(|error| Left::all(Fate::NotTried, error))?;
        let error = match send.send().await {
            Ok(answer) => match answer.message_id.filter(|new| !new.is_empty()) {
                Some(new) => {
                    let noted = journal.sent(id, &new);
                    return noted.map_err(|error| Left::all(Fate::SentNotDeleted, error));
                }
                // A proxy can answer 200 for SQS.
                None => {
                    let error = "could not send a message: the answer names no new message";
                    return Err(Left::all(Fate::Unknown, Error::remote(error)));
                }
            },
            Err(error) => error,
        };
        let refused = match &error {
            SdkError::ServiceError(answer) => answer.raw().status().is_client_error(),
            SdkError::ConstructionFailure(_) => true,
            _ => false,
        };
        let failure = failed("send a message", "sqs:SendMessage", &error);
        if !refused {
            return Err(Left::all(Fate::Unknown, failure));
        }
        let noted = journal.refused(id);
        noted.map_err(|error| Left::all(Fate::Refused, error))?;
        Err(Left::one(Fate::Refused, failure))
    }
}

/// The attributes of the copy: those of the message, without those of direct dead-lettering.
fn attributes(letter: &DeadLetter) -> Result<std::collections::HashMap<String, Attribute>, Error> {
    let mut attributes = letter
        .message
        .message_attributes
        .clone()
        .unwrap_or_default();
    for name in [REASON, ERROR, KEY] {
        attributes.remove(name);
    }
    let of = Attribute::builder()
        .data_type("String")
        .string_value(letter.id())
        .build()
        .map_err(Error::usage)?;
    attributes.insert(REDRIVE_OF.into(), of);
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(Error::negative(format!(
            "message {} has no room for the attribute {REDRIVE_OF}: SQS takes {MAX_ATTRIBUTES} attributes",
            letter.id()
        )));
    }
    Ok(attributes)
}
