//! The table of settings: one row for each variable.
//!
//! A row holds what the setting sets, its parser, its default and its documentation. We make the constants here, the struct
//! `Values` and its reader in `values.rs`, and the hint for unknown names from the rows. `tests/cloud/parameters.rs` compares docs
//! and template with them. To add a setting, add a row:
//!
//! - if the setting affects the consumer in every mode, write `[options.key = str::parse]`, which sets a field of `Options`;
//! - if we make a mode or a client from it, write `(retention: Duration = positive)`, which is a field of `Values`;
//! - a row with neither is read by name, in `records.rs` or `shared.rs`.

/// A row of the table: an environment variable of a consumer or a relay.
#[derive(Debug)]
#[non_exhaustive]
pub struct Setting {
    /// The variable's name.
    pub name: &'static str,
    /// Which function reads it.
    pub reader: Reader,
    /// The value if the variable is not set. Empty if there is none, or if it depends on the function.
    pub default: &'static str,
    /// Text that the docs show after the default, or instead of an empty one.
    pub note: &'static str,
    /// Sentences for the docs. Links are relative to the folder `docs`.
    pub meaning: &'static str,
}

/// Which function reads a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reader {
    /// Consumers, in a DynamoDB mode or in every mode.
    Consumer,
    /// Relays of an outbox.
    Relay,
}

impl Setting {
    /// Returns the row of this setting in a table of docs/settings.md: variable, default, meaning.
    #[must_use]
    pub fn documentation(&self) -> String {
        let Self {
            name,
            default,
            note,
            meaning,
            ..
        } = self;
        let default = if default.is_empty() {
            String::new()
        } else {
            format!("`{default}`")
        };
        format!("| `{name}` | {default}{note} | {meaning} |")
    }
}

/// Passes the rows to a macro.
macro_rules! rows {
    ($use:ident) => {
        $use! {
            IDEMPOTENCY_TABLE_NAME: Consumer, "", "required; not used by `item_mode` and `PostgresMode`";
            "DynamoDB table for the records. Without it, `once` runs only under `cargo lambda watch`, with records [in memory](local-testing.md#cargo-lambda-alone)"

            IDEMPOTENCY_NAMESPACE: Consumer, "", "required";
            "first part of every key, such as `payments`. Never share it between consumers, and never change it: every message would be a new operation"

            IDEMPOTENCY_KEY [options.key = str::parse]: Consumer, "message-id";
            "what names an operation: `body:/orderId`, `attribute:NAME`, `deduplication-id` or `message-id` ([choose one](keys.md)). With `message-id`, a message that is sent twice runs twice"

            CONSUMER_ENVELOPE [options.envelope = str::parse]: Consumer, "none";
            "`auto` [unwraps](handlers.md#envelopes) what SNS, EventBridge or S3 put around a message"

            CONSUMER_MAX_BODY_BYTES (max_body_bytes: NonZeroU32 = bytes): Consumer, "2097152";
            "largest body to read from S3; a message with a larger one fails permanently. Each MiB needs 31 MB of [memory](large-messages.md#memory)"

            CONSUMER_S3_BUCKETS (s3_buckets: Vec<String> = of_s3(buckets)): Consumer, "", "not set";
            "S3 buckets, such as `orders,invoices`, from which to read [large bodies](large-messages.md); needs the feature `s3`"

            IDEMPOTENCY_FINGERPRINT [options.fingerprint = str::parse]: Consumer, "body", "; not used by `item_mode`";
            "what must not change under one key: the body, parts of it (`body:/amount,/currency`), or `off`"

            IDEMPOTENCY_RETENTION (retention: Duration = positive): Consumer, "20d";
            "how long a record, or the key on an item, is kept. Must exceed the retention of the queue and the dead-letter queue together"

            IDEMPOTENCY_RESULT_BUCKET (result_bucket: Option<String> = of_s3(|name| bucket(name).map(Some))): Consumer, "", "not set; not used by `item_mode`";
            "S3 bucket for [outputs](large-messages.md#outputs-in-s3) over 64 KB; needs the feature `s3`. Without it, the record holds up to 392 KB"

            IDEMPOTENCY_BATCHED_WRITES: Consumer, "on", "; in claim mode only";
            "concurrent claims and completions [share requests](sizing.md#batched-writes); needs `dynamodb:PartiQLInsert` and `PartiQLUpdate`"

            OUTBOX_TABLE_NAME (outbox: Option<String> = text): Consumer, "", "not set; not used by `item_mode` and `PostgresMode`";
            "DynamoDB table for the [events](outbox.md) that handlers publish"

            IDEMPOTENCY_ATTRIBUTES: Consumer, "", "not set; not used by `item_mode` and `PostgresMode`";
            "other names of the key and of the TTL attribute, such as `id=PK,expires_at=ttl`"

            IDEMPOTENCY_SORT_KEY: Consumer, "", "not set; not used by `item_mode` and `PostgresMode`";
            "`SK` puts the key into the sort key `SK`, in the partition `idempotency#<namespace>`; `SK=TEXT` does so in the partition `TEXT`"

            CONSUMER_CONCURRENCY (concurrency: Option<NonZeroUsize> = concurrency): Consumer, "auto";
            "how many of a batch's handlers run at a time. `auto` means 10 or, in claim mode without a result bucket, 10 to 100 depending on memory"

            CONSUMER_MIN_TIME_TO_START [options.min_time_to_start = duration]: Consumer, "0s";
            "a message isn't started with less time left than this. With a value above the function's timeout (half of it, with several invocations per process) none is started, and if it's more than 10 s above, every invocation fails"

            CONSUMER_FIFO_AFTER_PERMANENT [options.fifo_after_permanent = str::parse]: Consumer, "continue";
            "after a recorded permanent failure, `continue` runs the rest of the FIFO group, and `stop` reports it as failed"

            CONSUMER_CRASH_ISOLATION (crash_waits: CrashWaits = isolation): Consumer, "on", "; in claim mode only";
            "after a crash, each message that may have caused it [runs alone](operations.md#isolation-after-a-crash), and waits after each further crash"

            CONSUMER_CALL_KEY_LIFETIME (call_key_lifetime: Option<Duration> = lifetime): Consumer, "20h", "; in claim mode only";
            "how long the downstream system remembers a [call key](keys.md#call-keys) (`off`: forever). If an attempt has been open for longer by the end of the invocation, the message fails permanently, unless there is a lookup"

            CONSUMER_CIRCUIT_BREAKER (circuit_breaker: bool = on_or_off): Consumer, "on";
            "after 20 failures in a row, for at least 10 keys, messages return without a claim until [a probe succeeds](operations.md#the-circuit-breaker)"

            CONSUMER_VISIBILITY (visibility: bool = on_or_off): Consumer, "on";
            "sets the visibility timeout of each failed message; `off` keeps the queue's own timeout"

            CONSUMER_BACKOFF_BASE (backoff_base: Duration = backoff): Consumer, "10s";
            "backoff after the first receive. It doubles with each further receive. Half of it is random, so the first backoff is 5 to 10 seconds"

            CONSUMER_BACKOFF_CAP (backoff_cap: Duration = backoff): Consumer, "15m";
            "longest backoff, at most `11h 30m`. The template [derives it](operations.md#outages-that-messages-survive) from the function's timeout"

            CONSUMER_DIRECT_DEAD_LETTERING (dead_letter: bool = on_or_off): Consumer, "on";
            "copies a permanently failed message to [the dead-letter queue](operations.md#direct-dead-lettering) after one receive. With `CONSUMER_VISIBILITY=off`, the default is `off`, and `on` is an error"

            CONSUMER_METRICS: Consumer, "on";
            "adds [metrics](telemetry.md#metrics) to the log line of each batch"

            OUTBOX_TARGETS: Relay, "", "required by a relay";
            "pairs `NAME=TARGET`, separated by commas: the URL of an SQS queue, or the ARN of an SNS topic or event bus. `*` stands for all other names"

            OUTBOX_DEAD_LETTER_QUEUE_URL: Relay, "", "required by a relay";
            "URL of the queue for events that their target rejects"

            OUTBOX_EVENT_SOURCE: Relay, "", "the function's name";
            "`source` of events on EventBridge"
        }
    };
}

/// Defines a constant for each row, and [`SETTINGS`].
macro_rules! constants {
    ($(
        $name:ident $([options.$option:ident = $into:expr])? $(($field:ident: $type:ty = $parse:expr))?: $reader:ident, $default:literal $(, $note:literal)?;
        $meaning:literal
    )+) => {
        $(
            #[doc = concat!("The setting `", stringify!($name), "`.")]
            pub const $name: Setting = Setting {
                name: stringify!($name),
                reader: Reader::$reader,
                default: $default,
                note: concat!($($note)?),
                meaning: $meaning,
            };
        )+

        /// Every setting.
        pub const SETTINGS: &[Setting] = &[$($name),+];
    };
}

rows!(constants);
pub(super) use rows;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let unique: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        assert_eq!(unique.len(), SETTINGS.len());
    }

    #[test]
    fn documentation_has_default_and_note() {
        let rows = [
            (&IDEMPOTENCY_RETENTION, "| `20d` |"),
            (
                &IDEMPOTENCY_FINGERPRINT,
                "| `body`; not used by `item_mode` |",
            ),
            (&OUTBOX_EVENT_SOURCE, "| the function's name |"),
            (&CONSUMER_METRICS, "| `on` |"),
        ];
        for (setting, cell) in rows {
            assert!(setting.documentation().contains(cell), "{setting:?}");
        }
    }
}
