//! Messages of a dead-letter queue: received for a short time, and made visible again.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use aws_config::SdkConfig;
use aws_sdk_sqs::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    types::{
        ChangeMessageVisibilityBatchRequestEntry as Visible, Message,
        MessageSystemAttributeName as System,
    },
};
use sqs_once::protocol::Timestamp;
use tokio::time::Instant;

use crate::{aws::failed, output::Error, progress::Progress};

pub(crate) const REASON: &str = "SqsOnceReason";
pub(crate) const ERROR: &str = "SqsOnceError";
pub(crate) const KEY: &str = "SqsOnceKey";

/// Most messages of one call, a limit of SQS.
const BATCH: i32 = 10;

/// Returns whether SQS says that the queue does not exist. Its older protocol uses a different code.
fn is_missing<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let code = error.as_service_error().and_then(E::code);
    code.is_some_and(|code| code.contains("NonExistentQueue") || code == "QueueDoesNotExist")
}

/// Parses a visibility timeout that SQS accepts.
pub(crate) fn visibility_timeout(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(12 * 3600);
    match humantime::parse_duration(text) {
        Ok(span) if (Duration::from_secs(2)..=LONGEST).contains(&span) => Ok(span),
        _ => Err("must be a duration from 2s to 12h".into()),
    }
}

/// A queue.
pub(crate) struct Queue {
    pub(crate) client: Client,
    pub(crate) url: String,
}

impl Queue {
    /// Finds a queue by its URL, ARN or name.
    ///
    /// # Errors
    ///
    /// If there is no such queue, or SQS did not respond.
    pub(crate) async fn find(config: &SdkConfig, name: &str) -> Result<Self, Error> {
        let found = Self::find_existing(config, name).await?;
        found.ok_or_else(|| {
            Error::remote(format!(
                "could not find queue `{name}`: SQS knows no such queue; check the name, the account and AWS_REGION"
            ))
        })
    }

    /// Finds a queue by its URL, ARN or name. `None` if there is no such queue. Does not look up a URL.
    ///
    /// # Errors
    ///
    /// If SQS did not respond.
    pub(crate) async fn find_existing(
        config: &SdkConfig,
        name: &str,
    ) -> Result<Option<Self>, Error> {
        let client = Client::new(config);
        if name.starts_with("https://") || name.starts_with("http://") {
            let url = name.to_owned();
            return Ok(Some(Self { client, url }));
        }
        let parts: Vec<_> = name.split(':').collect();
        let (name, account) = match *parts {
            [name] => (name, None),
            ["arn", _, "sqs", region, account, queue] => {
                if config.region().is_none_or(|used| used.as_ref() != region) {
                    return Err(Error::usage(format!(
                        "queue `{name}` is in the Region {region}: set AWS_REGION={region}"
                    )));
                }
                (queue, Some(account.to_owned()))
            }
            _ => {
                return Err(Error::usage(format!(
                    "`{name}` is no queue: pass its URL, ARN or name"
                )));
            }
        };
        let call = client.get_queue_url().queue_name(name);
        match call.set_queue_owner_aws_account_id(account).send().await {
            Ok(found) => {
                let url = found.queue_url.unwrap_or_default();
                Ok(Some(Self { client, url }))
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => {
                let action = format!("find queue `{name}`");
                Err(failed(&action, "sqs:GetQueueUrl", &error))
            }
        }
    }

    pub(crate) fn name(&self) -> &str {
        name_in(&self.url)
    }

    /// Returns whether both have the same name in the same account. One queue can have several URLs with
    /// different hosts.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let path = |queue: &Self| {
            let mut parts = queue.url.rsplit('/').map(str::to_owned);
            (parts.next(), parts.next())
        };
        path(self) == path(other)
    }

    pub(crate) fn is_fifo(&self) -> bool {
        self.url.ends_with(".fifo")
    }

    /// Receives until a response is empty or `max` messages were received. The messages are hidden from other
    /// receivers for `hide`.
    ///
    /// Stops after half of that time, so that the caller has the rest.
    ///
    /// # Errors
    ///
    /// If SQS did not respond. The messages received so far are made visible again.
    pub(crate) async fn receive(&self, max: usize, hide: Duration) -> Result<Received, Error> {
        let mut unique = Unique::default();
        let mut more = true;
        let until = Instant::now() + hide / 2;
        let progress = Progress::new();
        while unique.dead_letters.len() < max && Instant::now() < until {
            let rest = i32::try_from(max - unique.dead_letters.len()).unwrap_or(BATCH);
            let received = self
                .client
                .receive_message()
                .queue_url(&self.url)
                .max_number_of_messages(rest.min(BATCH))
                .visibility_timeout(i32::try_from(hide.as_secs()).unwrap_or(i32::MAX))
                // With at least one second, SQS asks all of its servers.
                .wait_time_seconds(1)
                .message_system_attribute_names(System::All)
                .message_attribute_names("All")
                .send()
                .await;
            let messages = match received {
                Ok(answer) => answer.messages.unwrap_or_default(),
                Err(error) => {
                    let received: Vec<_> = unique.dead_letters.iter().collect();
                    self.show_again(&received).await;
                    return Err(failed("receive messages", "sqs:ReceiveMessage", &error));
                }
            };
            if messages.is_empty() {
                more = false;
                break;
            }
            for message in messages {
                unique.add(DeadLetter { message });
            }
            let received = unique.dead_letters.len();
            let text = format!("{received} messages received, at most {max}");
            progress.show(received as f64 / max as f64, &text);
        }
        let dead_letters = unique.dead_letters;
        Ok(Received { dead_letters, more })
    }

    /// Makes messages visible again. If that fails for a message, it returns when its visibility timeout
    /// ends.
    pub(crate) async fn show_again(&self, dead_letters: &[&DeadLetter]) {
        for batch in dead_letters.chunks(10) {
            let entries = batch.iter().enumerate().map(|(index, dead_letter)| {
                Visible::builder()
                    .id(index.to_string())
                    .set_receipt_handle(dead_letter.message.receipt_handle.clone())
                    .visibility_timeout(0)
                    .build()
            });
            let Ok(entries) = entries.collect::<Result<Vec<_>, _>>() else {
                continue;
            };
            let made_visible = self
                .client
                .change_message_visibility_batch()
                .queue_url(&self.url)
                .set_entries(Some(entries))
                .send()
                .await;
            if let Err(error) = made_visible {
                let action = "make messages visible again";
                let error = failed(action, "sqs:ChangeMessageVisibility", &error);
                eprintln!("sqs-once: {error}; they return when their visibility timeout ends");
            }
        }
    }

    /// Deletes a message.
    ///
    /// # Errors
    ///
    /// If SQS did not confirm.
    pub(crate) async fn delete(&self, dead_letter: &DeadLetter) -> Result<(), Error> {
        self.client
            .delete_message()
            .queue_url(&self.url)
            .set_receipt_handle(dead_letter.message.receipt_handle.clone())
            .send()
            .await
            .map_err(|error| failed("delete a message", "sqs:DeleteMessage", &error))?;
        Ok(())
    }
}

/// Messages in the order of their first receive.
#[derive(Default)]
struct Unique {
    dead_letters: Vec<DeadLetter>,
    /// By message id.
    places: HashMap<String, usize>,
}

impl Unique {
    /// Adds a message, or replaces its earlier receive: SQS may ignore a deletion by an old receipt handle
    /// (*Amazon SQS API Reference*, "DeleteMessage").
    fn add(&mut self, dead_letter: DeadLetter) {
        match self.places.entry(dead_letter.id().to_owned()) {
            Entry::Occupied(place) => self.dead_letters[*place.get()] = dead_letter,
            Entry::Vacant(place) => {
                place.insert(self.dead_letters.len());
                self.dead_letters.push(dead_letter);
            }
        }
    }
}

/// The messages that a queue returned.
pub(crate) struct Received {
    pub(crate) dead_letters: Vec<DeadLetter>,
    /// True if receiving stopped before the queue was empty.
    pub(crate) more: bool,
}

/// The text that commands print for [`Received::more`].
pub(crate) const MORE: &str = "not all messages were received, since --max or half of --hide was \
    reached: there may be more";

/// Returns the name of the queue with this URL.
pub(crate) fn name_in(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

/// A message of a dead-letter queue.
pub(crate) struct DeadLetter {
    pub(crate) message: Message,
}

/// Messages with the same reason and error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cause {
    /// The outcome in `SqsOnceReason`, or `moved_by_sqs` if that is missing.
    pub(crate) reason: String,
    /// The text in `SqsOnceError`, or a word about the body if that is missing.
    pub(crate) error: String,
}

/// The reason of messages without `SqsOnceReason`.
pub(crate) const MOVED_BY_SQS: &str = "moved_by_sqs";

impl DeadLetter {
    pub(crate) fn id(&self) -> &str {
        self.message.message_id.as_deref().unwrap_or_default()
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        let attribute = self.message.message_attributes.as_ref()?.get(name)?;
        attribute.string_value()
    }

    pub(crate) fn system(&self, name: &System) -> Option<&str> {
        let attributes = self.message.attributes.as_ref()?;
        attributes.get(name).map(String::as_str)
    }

    /// Returns the key that the consumer gave the message. `None` if the message has none, or only its hash.
    pub(crate) fn key(&self) -> Option<&str> {
        self.attribute(KEY).filter(|key| key.contains('#'))
    }

    pub(crate) fn group(&self) -> Option<&str> {
        self.system(&System::MessageGroupId)
    }

    pub(crate) fn sent_at(&self) -> Option<Timestamp> {
        let sent = self.system(&System::SentTimestamp)?.parse().ok()?;
        Some(Timestamp::from_millis(sent))
    }

    pub(crate) fn cause(&self) -> Cause {
        if let Some(reason) = self.attribute(REASON) {
            return Cause {
                reason: reason.to_owned(),
                error: self.attribute(ERROR).unwrap_or_default().to_owned(),
            };
        }
        let body = self.message.body.as_deref().unwrap_or_default();
        let error = if serde_json::from_str::<serde::de::IgnoredAny>(body).is_ok() {
            "unknown; the body is JSON"
        } else {
            "the body is no JSON"
        };
        Cause {
            reason: MOVED_BY_SQS.to_owned(),
            error: error.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_received_twice_has_the_latest_receipt_handle() {
        let mut unique = Unique::default();
        for (id, handle) in [("a", "first"), ("b", "only"), ("a", "second")] {
            let builder = Message::builder().message_id(id).receipt_handle(handle);
            let message = builder.build();
            unique.add(DeadLetter { message });
        }
        let handle = |of: &DeadLetter| of.message.receipt_handle.clone().unwrap();
        let handles: Vec<_> = unique.dead_letters.iter().map(handle).collect();
        assert_eq!(handles, ["second", "only"]);
    }
}
