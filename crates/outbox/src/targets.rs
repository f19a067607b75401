//! [`Targets`]: finds the queue, topic or event bus for an event's name.

use std::{collections::BTreeMap, str::FromStr};

use sqs_once::{
    InvalidValue,
    internal::{entries, is_name},
};

/// The name that stands for every event that no other entry names.
const ANY: &str = "*";

/// Targets by event name, written as in `OUTBOX_TARGETS`: `NAME=TARGET`, separated by commas.
///
/// | target | written as |
/// | --- | --- |
/// | SQS queue | its URL, which ends in `.fifo` for a FIFO queue |
/// | SNS topic | its ARN, which ends in `.fifo` for a FIFO topic |
/// | EventBridge event bus | its ARN |
///
/// The name `*` stands for all events that no other entry names. An event without a target goes to the
/// relay's dead-letter queue.
///
/// ```
/// use sqs_once_outbox::Targets;
///
/// let targets: Targets = "order-placed=https://sqs.eu-central-1.amazonaws.com/123456789012/ship.fifo,\
///     *=arn:aws:events:eu-central-1:123456789012:event-bus/default".parse()?;
/// assert!("order-placed=shipping".parse::<Targets>().is_err());
/// # Ok::<(), sqs_once::InvalidValue>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets(BTreeMap<String, Target>);

/// Where an event is sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Queue { url: String, fifo: bool },
    Topic { arn: String, fifo: bool },
    Bus { arn: String },
}

impl Targets {
    pub(crate) fn of(&self, name: &str) -> Option<&Target> {
        self.0.get(name).or_else(|| self.0.get(ANY))
    }
}

impl Target {
    /// Returns the queue with this URL, or `None` if the text is not a URL.
    pub(crate) fn queue(url: &str) -> Option<Self> {
        let is_url = url.starts_with("https://") || url.starts_with("http://");
        is_url.then(|| Self::Queue {
            url: url.to_owned(),
            fifo: url.ends_with(".fifo"),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let arn = || text.to_owned();
        match text.split(':').nth(2) {
            Some("sns") if text.starts_with("arn:") => Some(Self::Topic {
                arn: arn(),
                fifo: text.ends_with(".fifo"),
            }),
            Some("events") if text.starts_with("arn:") => Some(Self::Bus { arn: arn() }),
            _ => Self::queue(text),
        }
    }
}

impl FromStr for Targets {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let mut targets = BTreeMap::new();
        for pair in entries(text, "") {
            let parsed = pair.split_once('=').and_then(|(name, target)| {
                let (name, target) = (name.trim(), target.trim());
                let known = name == ANY || is_name(name);
                known.then(|| Some((name.to_owned(), Target::parse(target)?)))?
            });
            let Some((name, target)) = parsed else {
                return Err(InvalidValue::new(
                    "must be NAME=TARGET, separated by commas, where TARGET is the URL of a queue, or the ARN of a topic or of an event bus",
                ));
            };
            if targets.insert(name, target).is_some() {
                return Err(InvalidValue::new("names an event twice"));
            }
        }
        Ok(Self(targets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_found_by_name_or_star() {
        let text = "placed=https://sqs/1/a.fifo, shipped=arn:aws:sns:r:1:t.fifo,*=arn:aws:events:r:1:event-bus/b";
        let targets: Targets = text.parse().unwrap();
        let queue = Target::queue("https://sqs/1/a.fifo").unwrap();
        assert_eq!(targets.of("placed"), Some(&queue));
        assert!(matches!(
            targets.of("shipped"),
            Some(Target::Topic { fifo: true, .. })
        ));
        assert!(matches!(targets.of("other"), Some(Target::Bus { .. })));
        let one: Targets = "placed=http://127.0.0.1/1/a".parse().unwrap();
        assert_eq!(one.of("other"), None);
    }

    #[test]
    fn malformed_targets_are_rejected() {
        for text in [
            "",
            "placed",
            "placed=",
            "placed=orders",
            "pla ced=https://sqs/1/a",
            "placed=arn:aws:lambda:r:1:function:f",
            "placed=https://sqs/1/a,",
            "placed=https://sqs/1/a,placed=https://sqs/1/b",
        ] {
            assert!(text.parse::<Targets>().is_err(), "{text}");
        }
    }
}
