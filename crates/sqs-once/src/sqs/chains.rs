//! Chains: messages of a batch that must run one after the other. Chains run in parallel.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    str::FromStr,
};

use crate::{InvalidValue, flawed::flawed, protocol::Key};

/// Decides how a message group continues after a permanent failure in its batch.
///
/// ```
/// use sqs_once::sqs::FifoAfterPermanent;
///
/// assert_eq!("continue".parse(), Ok(FifoAfterPermanent::Continue));
/// assert_eq!("stop".parse(), Ok(FifoAfterPermanent::Stop));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FifoAfterPermanent {
    /// The messages behind the failed one run as soon as its failure is recorded. They don't overtake it, because it
    /// doesn't run again while the record is kept and the settings give the message the same key and fingerprint. A
    /// redriven message takes a new place in its group. Behind a failure that isn't recorded, they don't run in this batch,
    /// because another build or setting may run the failed message later. No mode records failures of messages without a
    /// key or a body, and an [item](crate::ItemMode) records none at all.
    #[default]
    Continue,
    /// The messages behind the failed one do not run. They are received again together with it, until they reach the
    /// dead-letter queue. AWS asks functions on FIFO queues to stop at the first failure (*AWS Lambda Developer Guide*,
    /// "Implementing partial batch responses").
    Stop,
}

impl FromStr for FifoAfterPermanent {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "continue" => Ok(Self::Continue),
            "stop" => Ok(Self::Stop),
            _ => Err(InvalidValue::new("must be `continue` or `stop`")),
        }
    }
}

/// Messages that run one after the other: a FIFO message group, or the deliveries of one key. If a message neither succeeds
/// nor fails permanently, those behind it do not run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// Indexes into the batch.
    pub(super) messages: VecDeque<usize>,
    pub(super) is_fifo_group: bool,
    /// True if an earlier message of the group waits for an attempt with another payload to end.
    pub(super) overtakes: bool,
}

/// The facts that decide which chain a message is in.
#[derive(Debug)]
pub(super) struct ChainInputs<'a> {
    /// The key; `None` if we learn it only when the message runs, as with a body in S3.
    pub(super) key: Option<&'a Key>,
    pub(super) fifo_group: Option<&'a str>,
    pub(super) receive_count: u32,
}

impl Chain {
    pub(super) fn next(&self) -> Option<usize> {
        self.messages.front().copied()
    }

    /// Returns the message that runs next, and those behind it.
    pub(super) fn split(mut self) -> Option<(usize, Self)> {
        Some((self.messages.pop_front()?, self))
    }
}

/// Puts each message into a chain. The chains start in the returned order.
///
/// On a standard queue, the messages with the highest receive counts start first, also within a chain. Otherwise a
/// batch that is too large for its deadline could leave the same messages unstarted each time, until they reach
/// the dead-letter queue.
pub(super) fn chains(messages: &[ChainInputs<'_>]) -> VecDeque<Chain> {
    #[derive(PartialEq, Eq, Hash)]
    enum ChainKey<'a> {
        Group(&'a str),
        Key(&'a Key),
        Itself(usize),
    }
    let mut chains: Vec<Chain> = Vec::new();
    let mut chain_of: HashMap<ChainKey<'_>, usize> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        let group = (message.fifo_group).filter(|_| !flawed("a group has no order"));
        let of = match (group, message.key) {
            (Some(group), _) => ChainKey::Group(group),
            (None, Some(key)) => ChainKey::Key(key),
            (None, None) => ChainKey::Itself(index),
        };
        let is_fifo_group = group.is_some();
        let chain = *chain_of.entry(of).or_insert_with(|| {
            let messages = VecDeque::new();
            chains.push(Chain {
                messages,
                is_fifo_group,
                overtakes: false,
            });
            chains.len() - 1
        });
        chains[chain].messages.push_back(index);
    }
    // The sorts are stable, so ties stay in batch order, and message groups keep their order.
    let receives = |index: &usize| Reverse(messages[*index].receive_count);
    for chain in chains.iter_mut().filter(|chain| !chain.is_fifo_group) {
        chain.messages.make_contiguous().sort_by_key(receives);
    }
    chains.sort_by_cached_key(|chain| {
        let first = chain.messages.front().filter(|_| !chain.is_fifo_group);
        first.map_or(Reverse(0), receives)
    });
    chains.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Namespace;

    fn key(name: &str) -> Key {
        Key::new(&Namespace::new("ns").unwrap(), [name]).unwrap()
    }

    fn standard(key: Option<&Key>, receive_count: u32) -> ChainInputs<'_> {
        ChainInputs {
            key,
            fifo_group: None,
            receive_count,
        }
    }

    fn messages(chains: &VecDeque<Chain>) -> Vec<Vec<usize>> {
        let messages = |chain: &Chain| chain.messages.iter().copied().collect();
        chains.iter().map(messages).collect()
    }

    #[test]
    fn chain_has_deliveries_of_one_key() {
        let (a, b) = (key("a"), key("b"));
        let batch = [
            standard(Some(&a), 1),
            standard(None, 1),
            standard(Some(&b), 1),
            standard(Some(&a), 1),
            standard(None, 1),
        ];
        assert_eq!(
            messages(&chains(&batch)),
            [vec![0, 3], vec![1], vec![2], vec![4]]
        );
    }

    #[test]
    fn highest_receive_count_starts_first() {
        let keys = ["a", "b", "c"].map(key);
        let batch = [
            standard(Some(&keys[0]), 1),
            standard(Some(&keys[1]), 4),
            standard(Some(&keys[2]), 2),
            standard(Some(&keys[2]), 3),
        ];
        assert_eq!(messages(&chains(&batch)), [vec![1], vec![3, 2], vec![0]]);
    }

    #[test]
    fn fifo_group_is_one_chain_in_order() {
        let keys = ["a", "b"].map(key);
        let fifo = |key, group, receive_count| ChainInputs {
            key,
            fifo_group: Some(group),
            receive_count,
        };
        let batch = [
            fifo(Some(&keys[0]), "g", 1),
            fifo(Some(&keys[1]), "h", 2),
            fifo(None, "g", 3),
        ];
        let chains = chains(&batch);
        assert_eq!(messages(&chains), [vec![0, 2], vec![1]]);
        assert!(chains.iter().all(|chain| chain.is_fifo_group));
    }

    #[test]
    fn chain_gives_its_messages_one_after_the_other() {
        let chain = Chain {
            messages: [3, 1].into(),
            is_fifo_group: false,
            overtakes: false,
        };
        assert_eq!(chain.next(), Some(3));
        let (first, chain) = chain.split().unwrap();
        assert_eq!((first, chain.next()), (3, Some(1)));
        let (second, chain) = chain.split().unwrap();
        assert_eq!((second, chain.next()), (1, None));
        assert_eq!(chain.split(), None);
    }
}
