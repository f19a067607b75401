//! Lanes: messages of a batch that must run one after the other. Lanes run in parallel.

use std::{cmp::Reverse, collections::HashMap};

use crate::protocol::{Key, circuit::runs_while_open};

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

/// The lanes that start first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// On a standard queue, the lanes with the highest receive count. Otherwise, in a batch that is too large
    /// for its deadline, the same messages could be left over each time until they reach the dead-letter
    /// queue.
    HighestReceiveCount,
    /// While the circuit is open, the lanes that run nevertheless. Then the lane with the lowest receive
    /// count, whose message becomes the probe.
    Probe,
}

/// The facts that decide which lane a message is in.
#[derive(Debug)]
pub(crate) struct LaneInputs<'a> {
    pub(crate) key: Option<&'a Key>,
    pub(crate) fifo_group: Option<&'a str>,
    pub(crate) receive_count: u32,
}

/// Puts each message into one lane. Lanes start in the returned order.
pub(crate) fn plan(messages: &[LaneInputs<'_>], first: First) -> Vec<Lane> {
    #[derive(PartialEq, Eq, Hash)]
    enum LaneKey<'a> {
        Group(&'a str),
        Key(&'a Key),
        Itself(usize),
    }
    let mut lanes: Vec<Lane> = Vec::new();
    let mut lane_of: HashMap<LaneKey<'_>, usize> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        let (of, kind) = match (message.fifo_group, message.key) {
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
    let counts = |lane: &Lane| {
        let messages = lane.messages.iter().map(|&index| &messages[index]);
        messages
            .map(|message| message.receive_count)
            .collect::<Vec<_>>()
    };
    match first {
        First::HighestReceiveCount => lanes.sort_by_cached_key(|lane| {
            let is_group = lane.kind == LaneKind::FifoGroup;
            let most = counts(lane).into_iter().max().filter(|_| !is_group);
            Reverse(most)
        }),
        // The first message of a lane decides for those behind it.
        First::Probe => lanes.sort_by_cached_key(|lane| {
            let count = counts(lane).first().copied().unwrap_or_default();
            (!runs_while_open(count), count)
        }),
    }
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
        assert_eq!(
            messages(&plan(&batch, First::HighestReceiveCount)),
            [&[0, 3][..], &[1], &[2], &[4]]
        );
    }

    #[test]
    fn highest_receive_count_starts_first() {
        let keys = ["a", "b", "c"].map(key);
        let batch = [
            standard(Some(&keys[0]), 1),
            standard(Some(&keys[1]), 4),
            standard(Some(&keys[2]), 2),
        ];
        assert_eq!(
            messages(&plan(&batch, First::HighestReceiveCount)),
            [[1], [2], [0]]
        );
    }

    #[test]
    fn probe_starts_behind_messages_that_run_anyway() {
        let keys = ["a", "b", "c", "d"].map(key);
        let batch = [
            standard(Some(&keys[0]), 4),
            standard(Some(&keys[1]), 20),
            standard(Some(&keys[2]), 2),
            standard(Some(&keys[3]), 1),
        ];
        assert_eq!(messages(&plan(&batch, First::Probe)), [[3], [1], [2], [0]]);
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
        let lanes = plan(&batch, First::HighestReceiveCount);
        assert_eq!(messages(&lanes), [&[0, 2][..], &[1]]);
        assert!(lanes.iter().all(|lane| lane.kind == LaneKind::FifoGroup));
    }
}
