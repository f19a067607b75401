//! [`Preview`]: what a redriven dead letter will do, judging by the record under its key.

use aws_sdk_sqs::types::Message;
use clap::Args;
use sqs_once::{
    DeliveryMetadata,
    internal::{has_payload, key_of},
    protocol::{Namespace, State, Timestamp},
    sqs::KeySource,
    store::DynamoStore,
};

use crate::{
    dead_letters::DeadLetter,
    next_delivery::{NextDelivery, Rules},
    output::Error,
    table::TableArgs,
};

/// Where the records are, and where keys come from.
#[derive(Args, Debug)]
pub(crate) struct Preview {
    /// Where the keys of messages without SqsOnceKey come from, as the consumer has it: body:/orderId.
    #[arg(
        long,
        value_name = "SOURCE",
        requires = "namespace",
        help_heading = "Preview"
    )]
    key: Option<KeySource>,
    /// Namespace of these keys.
    #[arg(long, value_parser = |name: &str| Namespace::new(name), help_heading = "Preview")]
    namespace: Option<Namespace>,
    /// Name of the consumer's function, whose settings decide whether an attempt is too old to repeat.
    #[arg(long, value_name = "NAME", help_heading = "Preview")]
    function: Option<String>,
    #[command(flatten)]
    table: TableArgs,
}

/// The fate of a redriven message: a one-word name for JSON and tables, then an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Next(pub(crate) &'static str, pub(crate) &'static str);

const NEW_OPERATION: Next = Next(
    "new_operation",
    "runs as a new operation: the key is the message id, and the redriven message has another",
);
const NO_RECORD: Next = Next(
    "no_record",
    "runs as a new operation: there is no record, or it has expired; then an earlier effect may be repeated",
);

impl From<NextDelivery> for Next {
    fn from(next: NextDelivery) -> Self {
        Self(next.name(), next.text())
    }
}

impl Preview {
    /// Opens the table of records, and reads the settings. Returns `None` if no table is named.
    pub(crate) async fn open(&self) -> Result<Option<(DynamoStore, Rules)>, Error> {
        if !self.table.is_named() {
            return Ok(None);
        }
        let rules = match &self.function {
            Some(name) => Rules::of_function(name).await?,
            None => Rules::default(),
        };
        Ok(Some((self.table.open().await?, rules)))
    }

    /// Returns the key of the redriven message's record, if it is known.
    pub(crate) fn key(&self, dead_letter: &DeadLetter, message: &Message) -> Option<String> {
        match (dead_letter.key(), &self.key, &self.namespace) {
            (_, Some(KeySource::MessageId), _) => None,
            (Some(key), ..) => Some(key.to_owned()),
            (None, Some(source), Some(namespace)) => {
                key_by(source, namespace, dead_letter, message)
            }
            _ => None,
        }
    }

    /// Returns what the redriven message will do. `key` is [its key](Self::key).
    pub(crate) async fn next(
        &self,
        known: Option<&(DynamoStore, Rules)>,
        key: Option<&str>,
        message: &Message,
    ) -> Result<Next, Error> {
        let Some((records, rules)) = known else {
            let why = "no table is named: pass --table NAME or set IDEMPOTENCY_TABLE_NAME, as the consumer has it";
            return Ok(Next("not_read", why));
        };
        let body = message.body.as_deref().unwrap_or_default();
        let Some(key) = key else {
            return Ok(match (&self.key, &self.namespace) {
                (Some(KeySource::MessageId), _) => NEW_OPERATION,
                (Some(_), Some(_)) => Next("no_key", "fails: --key finds no key in the message"),
                _ => Next(
                    "key_unknown",
                    "the message has no SqsOnceKey: pass --key SOURCE and --namespace NAME, as the consumer has them",
                ),
            });
        };
        let now = Timestamp::now();
        let stored = records.show(key).await.map_err(Error::remote)?;
        let Some(stored) = stored else {
            return Ok(NO_RECORD);
        };
        let Ok(record) = &stored.record else {
            return Ok(NextDelivery::Unknown.into());
        };
        if record.is_expired(now) {
            return Ok(NO_RECORD);
        }
        if self.key.is_none() && key.ends_with(&format!("#{}", record.message_id)) {
            return Ok(NEW_OPERATION);
        }
        let same_payload = record.fingerprint.as_ref().map(|of| has_payload(body, of));
        Ok(match NextDelivery::by(&stored, rules, now) {
            NextDelivery::Duplicate => match same_payload {
                Some(Some(false)) => Next(
                    "key_reused",
                    "does not run: completed, and its payload was another (unless this body is in S3)",
                ),
                Some(None) => Next(
                    "duplicate_or_key_reused",
                    "does not run: completed; nothing tells whether with this payload",
                ),
                _ => NextDelivery::Duplicate.into(),
            },
            NextDelivery::RunsWithPriorAttempt
                if same_payload == Some(Some(false)) && record.state != State::Failed =>
            {
                Next(
                    "payload_conflict",
                    "does not run: an attempt with another payload may have had its effect (unless this body is in S3)",
                )
            }
            next @ NextDelivery::RunsWithPriorAttempt => Next(
                next.name(),
                "runs with the call key of an earlier attempt, which may have had its effect",
            ),
            next => next.into(),
        })
    }
}

/// Returns the redriven message's key. Its deduplication id is the dead letter's id.
fn key_by(
    source: &KeySource,
    namespace: &Namespace,
    dead_letter: &DeadLetter,
    message: &Message,
) -> Option<String> {
    let texts = message.message_attributes.iter().flatten();
    let texts = texts.filter_map(|(name, of)| Some((name.clone(), of.string_value.clone()?)));
    let delivery = DeliveryMetadata {
        group_id: dead_letter.group.clone(),
        deduplication_id: dead_letter.group.as_ref().map(|_| dead_letter.id.clone()),
        ..DeliveryMetadata::default()
    };
    let body = message.body.as_deref().unwrap_or_default();
    let key = key_of(source, namespace, body, texts, delivery).ok()?;
    Some(key.as_str().to_owned())
}
