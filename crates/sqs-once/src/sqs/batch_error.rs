//! [`BatchError`]: why a whole batch goes back to the queue.

use std::{fmt, time::Duration};

/// Why an invocation fails. All messages of the batch then stay in the queue.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The event is not an SQS event.
    #[error(
        "the event is not an SQS event, at line {line}, column {column}: check that the trigger of this function is an SQS queue; nothing was processed"
    )]
    NotSqs {
        /// Line at which parsing failed, from 1.
        line: usize,
        /// Column at which parsing failed, from 1.
        column: usize,
    },
    /// A message has no id. SQS deletes messages that the response does not name, so the whole
    /// invocation fails.
    #[error(
        "record {index} of the event has no messageId, so the response could not name it: check that the trigger of this function is an SQS queue; nothing was processed"
    )]
    NoMessageId {
        /// Place of the message in the event, from 0.
        index: usize,
    },
    /// The consumer has a [`LookUp`](crate::LookUp), but its key changes when a message is redriven. The consumer would then not
    /// find the earlier attempt, so it would skip the lookup, and the effect would happen again.
    #[error(
        "the consumer has a lookup, but the key `{key}` changes when a message is redriven, and then nobody looks up: set IDEMPOTENCY_KEY to what names the operation, such as `body:/orderId`; nothing was processed"
    )]
    KeyChangesOnRedrive {
        /// The key source: `message-id` or `deduplication-id`.
        key: &'static str,
    },
    /// `IDEMPOTENCY_KEY` is set, but the code sets another key ([`Consumer::key`](crate::Consumer::key),
    /// [`Consumer::key_by`](crate::Consumer::key_by)).
    #[error(
        "IDEMPOTENCY_KEY is `{environment}`, and the code of the function sets another key with `Consumer::key` or `Consumer::key_by`: remove one of them, so that the key stays what it was: under another key, what is done would be done again; nothing was processed"
    )]
    KeySetTwice {
        /// The value of `IDEMPOTENCY_KEY`.
        environment: String,
    },
    /// `CONSUMER_MIN_TIME_TO_START` is more than ten seconds longer than the function's timeout, or than half of it if the process
    /// runs several invocations at once. Most messages would never start.
    #[error(
        "CONSUMER_MIN_TIME_TO_START is {setting:?}, and with the function's timeout of {timeout:?} it may be at most {longest:?} (half of the timeout if AWS_LAMBDA_MAX_CONCURRENCY is above 1): lower it, or raise the timeout; nothing was processed"
    )]
    MinTimeToStart {
        /// The setting.
        setting: Duration,
        /// The function's timeout, as far as the process knows: the longest time that any of its invocations had.
        timeout: Duration,
        /// The longest value that the setting may have.
        longest: Duration,
    },
    /// Every message of the batch failed because the store could not be reached, denied access or has no such
    /// table. Lambda counts the invocation in its Errors metric.
    #[error(
        "all {messages} messages of the batch failed because the store is unavailable, and go back to the queue: {reason}"
    )]
    StoreUnavailable {
        /// How many messages the batch has.
        messages: usize,
        /// The error of the first message.
        reason: String,
    },
}

/// Shows the error's text, because that is what a `main` that returns the error prints.
impl fmt::Debug for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
