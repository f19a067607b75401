//! Queues, and the messages of a dead-letter queue.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_sqs::{
    Client,
    types::{
        ChangeMessageVisibilityBatchRequestEntry as Visible, Message,
        MessageSystemAttributeName as System,
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

/// The reason of messages without `SqsOnceReason`.
pub(crate) const MOVED_BY_SQS: &str = "moved_by_sqs";

/// Most messages of one request, a limit of SQS.
const BATCH: usize = 10;

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

    /// Receives up to `most` messages, at most ten, and hides them from other receivers for `hide`.
    ///
    /// # Errors
    ///
    /// If SQS did not respond.
    pub(crate) async fn receive(
        &self,
        most: usize,
        hide: Duration,
    ) -> Result<Vec<DeadLetter>, Error> {
        let received = self
            .client
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(most.min(BATCH)).unwrap_or(1))
            .visibility_timeout(i32::try_from(hide.as_secs()).unwrap_or(i32::MAX))
            // With at least one second, SQS asks all of its servers.
            .wait_time_seconds(1)
            .message_system_attribute_names(System::All)
            .message_attribute_names("All")
            .send()
            .await
            .map_err(|error| failed("receive messages", "sqs:ReceiveMessage", &error))?;
        let messages = received.messages.unwrap_or_default();
        Ok(messages.into_iter().map(DeadLetter).collect())
    }

    /// Makes messages visible again. If that fails for a message, it returns when its visibility timeout
    /// ends.
    pub(crate) async fn show_again(&self, dead_letters: impl Iterator<Item = &DeadLetter>) {
        let dead_letters: Vec<_> = dead_letters.collect();
        for batch in dead_letters.chunks(BATCH) {
            let entries = batch.iter().enumerate().map(|(index, dead_letter)| {
                Visible::builder()
                    .id(index.to_string())
                    .set_receipt_handle(dead_letter.0.receipt_handle.clone())
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
            .set_receipt_handle(dead_letter.0.receipt_handle.clone())
            .send()
            .await
            .map_err(|error| failed("delete a message", "sqs:DeleteMessage", &error))?;
        Ok(())
    }
}

/// Returns the name of the queue with this URL.
pub(crate) fn name_in(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

/// A message of a dead-letter queue.
pub(crate) struct DeadLetter(pub(crate) Message);

impl DeadLetter {
    pub(crate) fn id(&self) -> &str {
        self.0.message_id.as_deref().unwrap_or_default()
    }

    pub(crate) fn body(&self) -> &str {
        self.0.body.as_deref().unwrap_or_default()
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        let attribute = self.0.message_attributes.as_ref()?.get(name)?;
        attribute.string_value()
    }

    pub(crate) fn system(&self, name: &System) -> Option<&str> {
        let attributes = self.0.attributes.as_ref()?;
        attributes.get(name).map(String::as_str)
    }

    /// Returns the outcome in `SqsOnceReason`, or [`MOVED_BY_SQS`] if that is missing.
    pub(crate) fn reason(&self) -> &str {
        self.attribute(REASON).unwrap_or(MOVED_BY_SQS)
    }

    /// Returns the text in `SqsOnceError`. Without a reason, says whether the body is JSON.
    pub(crate) fn error(&self) -> &str {
        if self.attribute(REASON).is_some() {
            self.attribute(ERROR).unwrap_or_default()
        } else if serde_json::from_str::<serde::de::IgnoredAny>(self.body()).is_ok() {
            "unknown; the body is JSON"
        } else {
            "the body is no JSON"
        }
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
}
