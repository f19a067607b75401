//! Lanes: messages of a batch that must run one after the other. Lanes run in parallel.

use std::{cmp::Reverse, collections::HashMap};

use crate::{flawed::flawed, protocol::Key};

/// Messages, by their place in the batch, that run one after the other. Lanes run side by side.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) messages: Vec<usize>,
    pub(crate) kind: LaneKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneKind {
    /// Deliveries of one key. The second takes the outcome of the first.
    SameKey,
    /// Messages of one message group. Behind a retryable failure, they do not run.
    FifoGroup,
}

/// The facts that decide which lane a message is in.
#[derive(Debug)]
pub(crate) struct LaneInputs<'a> {
    pub(crate) key: Option<&'a Key>,
    pub(crate) fifo_group: Option<&'a str>,
    pub(crate) receive_count: u32,
}

/// Puts each message into one lane. Lanes start in the returned order.
///
/// On a standard queue, those with the highest receive count start first. Otherwise, in a batch that is too large
/// for its deadline, the same messages could be left over each time until they reach the dead-letter queue.
pub(crate) fn plan(messages: &[LaneInputs<'_>]) -> Vec<Lane> {
    #[derive(PartialEq, Eq, Hash)]
    enum LaneKey<'a> {
        Group(&'a str),
        Key(&'a Key),
        Itself(usize),
    }
    let mut lanes: Vec<Lane> = Vec::new();
    let mut lane_of: HashMap<LaneKey<'_>, usize> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        let group = (message.fifo_group).filter(|_| !flawed!("a group has no order"));
        let (of, kind) = match (group, message.key) {
            (Some(group), _) => (LaneKey::Group(group), LaneKind::FifoGroup),
            (None, Some(key)) => (LaneKey::Key(key), LaneKind::SameKey),
            (None, None) => (LaneKey::Itself(index), LaneKind::SameKey),
        };
        let lane = *lane_of.entry(of).or_insert_with(|| {
            lanes.push(Lane {
                messages: Vec::new(),
                kind,
            });
            lanes.len() - 1
        });
        lanes[lane].messages.push(index);
    }
    // The sort is stable, so ties stay in batch order and message groups keep their order.
    lanes.sort_by_cached_key(|lane| {
        let counts = lane
            .messages
            .iter()
            .map(|&index| messages[index].receive_count);
        Reverse(counts.max().filter(|_| lane.kind == LaneKind::SameKey))
    });
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Namespace;

    fn key(name: &str) -> Key {
        Key::new(&Namespace::new("ns").unwrap(), [name]).unwrap()
    }

    fn standard(key: Option<&Key>, receive_count: u32) -> LaneInputs<'_> {
        LaneInputs {
            key,
            fifo_group: None,
            receive_count,
        }
    }

    fn messages(lanes: &[Lane]) -> Vec<&[usize]> {
        lanes.iter().map(|lane| lane.messages.as_slice()).collect()
    }

    #[test]
    fn lane_groups_deliveries_by_key() {
        let (a, b) = (key("a"), key("b"));
        let batch = [
            standard(Some(&a), 1),
            standard(None, 1),
            standard(Some(&b), 1),
            standard(Some(&a), 1),
            standard(None, 1),
        ];
        assert_eq!(messages(&plan(&batch)), [&[0, 3][..], &[1], &[2], &[4]]);
    }

    #[test]
    fn highest_receive_count_starts_first() {
        let keys = ["a", "b", "c"].map(key);
        let batch = [
            standard(Some(&keys[0]), 1),
            standard(Some(&keys[1]), 4),
            standard(Some(&keys[2]), 2),
        ];
        assert_eq!(messages(&plan(&batch)), [[1], [2], [0]]);
    }

    #[test]
    fn fifo_group_is_one_lane_in_order() {
        let keys = ["a", "b"].map(key);
        let fifo = |key, group| LaneInputs {
            key,
            fifo_group: Some(group),
            receive_count: 1,
        };
        let batch = [
            fifo(Some(&keys[0]), "g"),
            fifo(Some(&keys[1]), "h"),
            fifo(None, "g"),
        ];
        let lanes = plan(&batch);
        assert_eq!(messages(&lanes), [&[0, 2][..], &[1]]);
        assert!(lanes.iter().all(|lane| lane.kind == LaneKind::FifoGroup));
    }
}
