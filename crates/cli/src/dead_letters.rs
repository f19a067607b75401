//! Queues, and the messages of a dead-letter queue.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_sqs::{
    Client,
    types::{
        ChangeMessageVisibilityBatchRequestEntry as Visible, Message,
        MessageSystemAttributeName as System, QueueAttributeName,
    },
};
use sqs_once::protocol::Timestamp;

use crate::{
    aws::{failed, is_missing},
    output::Error,
};

pub(crate) const REASON: &str = "SqsOnceReason";
pub(crate) const ERROR: &str = "SqsOnceError";
pub(crate) const KEY: &str = "SqsOnceKey";
/// The message attribute with the id of the dead letter from which a message was copied.
pub(crate) const REDRIVE_OF: &str = "SqsOnceRedriveOf";

/// The reason that we show for messages without `SqsOnceReason`.
pub(crate) const MOVED_BY_SQS: &str = "moved_by_sqs";

/// How many messages SQS allows in a request.
const BATCH: usize = 10;
/// Time that a command needs to download or move one message. SQS hides each message for this time multiplied by the number
/// of messages that the command may receive.
const HIDE_EACH: Duration = Duration::from_millis(250);
/// The longest visibility timeout that SQS allows.
const LONGEST_HIDE: Duration = Duration::from_secs(12 * 3600);

/// Returns how long a command that receives up to `max` messages hides each of them, so that none arrives twice. If the
/// command is killed, the messages stay hidden for this long. Otherwise it makes them visible again.
pub(crate) fn hide(shortest: Duration, max: u32) -> Duration {
    (HIDE_EACH * max).clamp(shortest, LONGEST_HIDE)
}

/// A queue's attributes, as SQS reports them. The counts can lag by a minute.
pub(crate) struct Depth {
    pub(crate) arn: String,
    /// How many messages the queue has, including hidden ones.
    pub(crate) messages: usize,
    pub(crate) hidden: usize,
}

pub(crate) struct NamedQueue {
    pub(crate) client: Client,
    pub(crate) url: String,
}

impl NamedQueue {
    /// Finds a queue by its URL, ARN or name.
    pub(crate) async fn find(config: &SdkConfig, name: &str) -> Result<Self, Error> {
        let found = Self::find_existing(config, name).await?;
        found.ok_or_else(|| {
            Error::remote(format!(
                "could not find queue `{name}`: SQS knows no such queue; check the name, the account and AWS_REGION"
            ))
        })
    }

    /// Finds a queue by its URL, ARN or name. Returns `None` if it does not exist. Doesn't check whether a URL exists.
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

    /// Returns whether both queues have the same name in the same account. A queue can have several URLs with different hosts.
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

    /// Receives up to `most` messages, at most ten, and hides them from other receivers for `hide`.
    pub(crate) async fn receive(&self, most: usize, hide: Duration) -> Result<Vec<Message>, Error> {
        let received = self
            .client
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(most.min(BATCH)).unwrap_or(1))
            .visibility_timeout(i32::try_from(hide.as_secs()).unwrap_or(i32::MAX))
            // With a wait of at least one second, SQS asks all of its servers.
            .wait_time_seconds(1)
            .message_system_attribute_names(System::All)
            .message_attribute_names("All")
            .send()
            .await
            .map_err(|error| failed("receive messages", "sqs:ReceiveMessage", &error))?;
        Ok(received.messages.unwrap_or_default())
    }

    /// Reads the ARN of the queue, and how many messages it has.
    pub(crate) async fn depth(&self) -> Result<Depth, Error> {
        let (visible, hidden) = (
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
        );
        let names = [
            QueueAttributeName::QueueArn,
            visible.clone(),
            hidden.clone(),
        ];
        let read = self.client.get_queue_attributes().queue_url(&self.url);
        let read = read.set_attribute_names(Some(names.to_vec())).send().await;
        let read = read.map_err(|error| {
            let action = format!("read queue `{}`", self.name());
            failed(&action, "sqs:GetQueueAttributes", &error)
        })?;
        let attributes = read.attributes.unwrap_or_default();
        let count = |name| attributes.get(name).and_then(|of: &String| of.parse().ok());
        let hidden: usize = count(&hidden).unwrap_or(0);
        Ok(Depth {
            arn: attributes.get(&names[0]).cloned().unwrap_or_default(),
            messages: count(&visible).unwrap_or(0) + hidden,
            hidden,
        })
    }

    /// Makes messages visible again. If that fails, the messages come back when their visibility timeout ends.
    pub(crate) async fn show_again(&self, dead_letters: impl Iterator<Item = &DeadLetter>) {
        let dead_letters: Vec<_> = dead_letters.collect();
        for batch in dead_letters.chunks(BATCH) {
            let entries = batch.iter().enumerate().map(|(index, dead_letter)| {
                Visible::builder()
                    .id(index.to_string())
                    .set_receipt_handle(dead_letter.receipt.clone())
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

    pub(crate) async fn delete(&self, dead_letter: &DeadLetter) -> Result<(), Error> {
        self.client
            .delete_message()
            .queue_url(&self.url)
            .set_receipt_handle(dead_letter.receipt.clone())
            .send()
            .await
            .map_err(|error| failed("delete a message", "sqs:DeleteMessage", &error))?;
        Ok(())
    }
}

pub(crate) fn name_in(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

/// The facts about a received message that a redrive needs. We drop the body, because a thousand bodies may take a gigabyte.
pub(crate) struct DeadLetter {
    pub(crate) id: String,
    receipt: Option<String>,
    pub(crate) group: Option<String>,
    /// The key that the consumer gave the message, or its hash.
    key: Option<String>,
    /// The outcome in `SqsOnceReason`, or [`MOVED_BY_SQS`] if that is missing.
    pub(crate) reason: String,
    /// The text in `SqsOnceError`. For a message without `SqsOnceReason`, this says whether the body is JSON.
    pub(crate) error: String,
    /// Id of the dead letter from which a redrive copied this message.
    pub(crate) redrive_of: Option<String>,
    pub(crate) sent_at: Option<Timestamp>,
    pub(crate) receive_count: Option<String>,
}

impl DeadLetter {
    pub(crate) fn of(message: &Message) -> Self {
        let attributes = message.message_attributes.as_ref();
        let attribute = |name| attributes?.get(name)?.string_value().map(str::to_owned);
        let system = |name| message.attributes.as_ref()?.get(&name).cloned();
        let body = message.body.as_deref().unwrap_or_default();
        let (reason, error) = match attribute(REASON) {
            Some(reason) => (reason, attribute(ERROR).unwrap_or_default()),
            None if serde_json::from_str::<serde::de::IgnoredAny>(body).is_ok() => (
                MOVED_BY_SQS.to_owned(),
                "unknown; the body is JSON".to_owned(),
            ),
            None => (MOVED_BY_SQS.to_owned(), "the body is no JSON".to_owned()),
        };
        let sent = system(System::SentTimestamp).and_then(|sent| sent.parse().ok());
        Self {
            id: message.message_id.clone().unwrap_or_default(),
            receipt: message.receipt_handle.clone(),
            group: system(System::MessageGroupId),
            key: attribute(KEY),
            reason,
            error,
            redrive_of: attribute(REDRIVE_OF),
            sent_at: sent.map(Timestamp::from_millis),
            receive_count: system(System::ApproximateReceiveCount),
        }
    }

    /// Returns the key that the consumer gave the message, or `None` if the message has none, or only its hash.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref().filter(|key| key.contains('#'))
    }
}
