//! [`Circuit`]: decides when a process stops calling a system that is down, and finds out when that system
//! works again.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use super::{Key, Timestamp};

/// How many handlers must fail in a row to open the circuit.
pub const FAILURES_TO_OPEN: usize = 20;
/// How many different keys those handlers must have. With fewer keys, the messages themselves may be bad.
pub const KEYS_TO_OPEN: usize = 10;
/// How long the circuit stays open the first time. Each failed probe doubles it.
pub const FIRST_WAIT: Duration = Duration::from_secs(5);
/// The longest time between two probes.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// While the circuit is open, a message still runs at its first receive and at each receive divisible
/// by this number.
const RUNS_AT_EACH: u32 = 10;

/// The circuit breaker of a process. It does no I/O and reads no clock.
///
/// ```text
///            20 handlers failed in a row
///   closed ───────────────────────────────> open ──── the wait is over ────> probing
///     ^                                      ^                                │   │
///     │                                      └──────── the probe failed ──────┘   │
///     └────────── any handler succeeded, or failed permanently ───────────────────┘
/// ```
///
/// The circuit only saves calls to a system that is down. Our promises do not depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Circuit(State);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Keys of the handlers that failed since the last one that did not.
    Closed { failed: VecDeque<Key> },
    /// No probe starts before `until`.
    Open { until: Timestamp, wait: Duration },
    /// One message probes the called system. Since `until`, more messages could.
    Probing { until: Timestamp, wait: Duration },
}

/// The circuit's decision about a message before its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The message runs.
    Run,
    /// The message runs, and the end of its handler decides whether the circuit closes.
    Probe,
    /// A probe is running. Ask again when it has ended.
    Wait,
    /// The message is not claimed. No probe starts before this time.
    Refuse(Timestamp),
}

/// How a handler ended, as the circuit sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerEnd {
    /// It succeeded or failed permanently, so the called system works.
    Answered,
    /// It returned a retryable failure, a failure without an effect, or was cut off.
    Failed,
    /// It panicked, which says nothing about the called system.
    Panicked,
}

/// A change of the circuit that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The circuit opened, or stays open after a failed probe.
    Opened {
        /// Time until the next probe.
        wait: Duration,
    },
    /// The called system works again.
    Closed,
}

impl Default for Circuit {
    /// Creates a closed circuit.
    fn default() -> Self {
        Self(State::Closed {
            failed: VecDeque::new(),
        })
    }
}

/// Returns whether a message runs even while the circuit is open. It may call a different system than the
/// messages that failed.
#[must_use]
pub const fn runs_while_open(receive_count: u32) -> bool {
    receive_count <= 1 || receive_count.is_multiple_of(RUNS_AT_EACH)
}

impl Circuit {
    /// Decides about a message before its claim. After [`Admission::Probe`], the caller reports the end
    /// of this message's handler, or calls [`probe_did_not_run`](Self::probe_did_not_run).
    pub fn admit(&mut self, now: Timestamp, receive_count: u32) -> Admission {
        match self.0 {
            State::Closed { .. } => Admission::Run,
            _ if runs_while_open(receive_count) => Admission::Run,
            State::Open { until, .. } if now < until => Admission::Refuse(until),
            State::Open { until, wait } => {
                self.0 = State::Probing { until, wait };
                Admission::Probe
            }
            State::Probing { .. } => Admission::Wait,
        }
    }

    /// Records the end of a handler. `is_probe` says whether the message was admitted as a probe.
    pub fn handler_ended(
        &mut self,
        now: Timestamp,
        key: &Key,
        end: HandlerEnd,
        is_probe: bool,
    ) -> Option<Change> {
        match (&mut self.0, end) {
            (State::Closed { failed }, HandlerEnd::Failed) => {
                failed.push_back(key.clone());
                if failed.len() > FAILURES_TO_OPEN {
                    failed.pop_front();
                }
                let keys: BTreeSet<_> = failed.iter().map(Key::as_str).collect();
                let opens = failed.len() == FAILURES_TO_OPEN && keys.len() >= KEYS_TO_OPEN;
                opens.then(|| self.open(now, FIRST_WAIT))
            }
            (State::Closed { failed }, HandlerEnd::Answered | HandlerEnd::Panicked) => {
                failed.clear();
                None
            }
            (State::Open { .. } | State::Probing { .. }, HandlerEnd::Answered) => {
                *self = Self::default();
                Some(Change::Closed)
            }
            (State::Probing { wait, .. }, HandlerEnd::Failed | HandlerEnd::Panicked)
                if is_probe =>
            {
                let wait = LONGEST_WAIT.min(*wait * 2);
                Some(self.open(now, wait))
            }
            // A message that runs while the circuit is open does not change it.
            (State::Open { .. } | State::Probing { .. }, _) => None,
        }
    }

    /// Records that a probe ended without running its handler, for example after a conflict. The next message
    /// becomes the probe.
    pub fn probe_did_not_run(&mut self) {
        if let State::Probing { until, wait } = self.0 {
            self.0 = State::Open { until, wait };
        }
    }

    /// Returns whether the circuit is closed.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.0, State::Closed { .. })
    }

    /// Returns the name of the state in logs: `closed`, `open` or `probing`.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match self.0 {
            State::Closed { .. } => "closed",
            State::Open { .. } => "open",
            State::Probing { .. } => "probing",
        }
    }

    fn open(&mut self, now: Timestamp, wait: Duration) -> Change {
        let until = now + wait;
        self.0 = State::Open { until, wait };
        Change::Opened { wait }
    }
}

#[cfg(test)]
mod tests {
    use super::{HandlerEnd::*, *};
    use crate::protocol::Namespace;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn key(name: usize) -> Key {
        Key::new(&Namespace::new("ns").unwrap(), [name.to_string().as_str()]).unwrap()
    }

    /// Ends `handlers` handlers of different keys at `NOW`.
    fn end(circuit: &mut Circuit, handlers: usize, end: HandlerEnd) -> Option<Change> {
        let ends = (0..handlers).map(|n| circuit.handler_ended(NOW, &key(n), end, false));
        ends.last().flatten()
    }

    fn open() -> Circuit {
        let mut circuit = Circuit::default();
        let opened = end(&mut circuit, FAILURES_TO_OPEN, Failed);
        assert_eq!(opened, Some(Change::Opened { wait: FIRST_WAIT }));
        circuit
    }

    #[test]
    fn twenty_failures_in_a_row_open_the_circuit() {
        let mut circuit = Circuit::default();
        assert_eq!(end(&mut circuit, FAILURES_TO_OPEN - 1, Failed), None);
        assert_eq!(circuit.admit(NOW, 2), Admission::Run);
        end(&mut circuit, 1, Failed);
        assert_eq!(circuit.admit(NOW, 2), Admission::Refuse(NOW + FIRST_WAIT));
    }

    #[test]
    fn other_end_starts_the_count_again() {
        for other in [Answered, Panicked] {
            let mut circuit = Circuit::default();
            end(&mut circuit, FAILURES_TO_OPEN - 1, Failed);
            end(&mut circuit, 1, other);
            end(&mut circuit, FAILURES_TO_OPEN - 1, Failed);
            assert!(circuit.is_closed(), "{other:?}");
            end(&mut circuit, 1, Failed);
            assert!(!circuit.is_closed(), "{other:?}");
        }
    }

    #[test]
    fn failures_of_nine_keys_do_not_open_the_circuit() {
        let mut circuit = Circuit::default();
        for n in 0..10 * FAILURES_TO_OPEN {
            circuit.handler_ended(NOW, &key(n % (KEYS_TO_OPEN - 1)), Failed, false);
        }
        assert!(circuit.is_closed());
        // The tenth key.
        circuit.handler_ended(NOW, &key(KEYS_TO_OPEN), Failed, false);
        assert!(!circuit.is_closed());
    }

    #[test]
    fn first_and_tenth_receive_run_while_open() {
        let runs = |count| open().admit(NOW, count) == Admission::Run;
        let running: Vec<_> = (0..=30).filter(|count| runs(*count)).collect();
        assert_eq!(running, [0, 1, 10, 20, 30]);
    }

    #[test]
    fn one_message_at_a_time_probes() {
        let mut circuit = open();
        let later = NOW + FIRST_WAIT;
        assert_eq!(circuit.admit(later, 2), Admission::Probe);
        assert_eq!(circuit.admit(later, 2), Admission::Wait);
        assert_eq!(circuit.admit(later, 1), Admission::Run);
        // A message that runs beside the probe says nothing about it.
        circuit.handler_ended(later, &key(1), Failed, false);
        assert_eq!(circuit.admit(later, 2), Admission::Wait);
        circuit.probe_did_not_run();
        assert_eq!(circuit.admit(later, 2), Admission::Probe);
        circuit.handler_ended(later, &key(1), Answered, true);
        assert_eq!(circuit.admit(later, 2), Admission::Run);
    }

    #[test]
    fn each_state_has_its_name_in_logs() {
        let mut circuit = open();
        let mut names = vec![Circuit::default().state(), circuit.state()];
        assert_eq!(circuit.admit(NOW + FIRST_WAIT, 2), Admission::Probe);
        names.push(circuit.state());
        assert_eq!(names, ["closed", "open", "probing"]);
    }

    #[test]
    fn failed_probes_double_the_wait_up_to_a_minute() {
        let (mut circuit, mut now, mut waits) = (open(), NOW + FIRST_WAIT, Vec::new());
        for end in [Failed, Panicked, Failed, Failed, Failed] {
            assert_eq!(circuit.admit(now, 2), Admission::Probe);
            let changed = circuit.handler_ended(now, &key(1), end, true);
            let Some(Change::Opened { wait }) = changed else {
                panic!("{changed:?}");
            };
            waits.push(wait.as_secs());
            now = now + wait;
        }
        assert_eq!(waits, [10, 20, 40, 60, 60]);
        // After it closed, it opens for the first wait again.
        circuit.handler_ended(now, &key(1), Answered, false);
        let opened = end(&mut circuit, FAILURES_TO_OPEN, Failed);
        assert_eq!(opened, Some(Change::Opened { wait: FIRST_WAIT }));
    }

    #[test]
    fn any_success_closes_the_circuit() {
        let mut circuit = open();
        let closed = circuit.handler_ended(NOW, &key(1), Answered, false);
        assert_eq!(closed, Some(Change::Closed));
        assert_eq!(circuit, Circuit::default());
    }

    #[test]
    fn late_end_of_a_probe_changes_nothing() {
        let mut circuit = open();
        let before = circuit.clone();
        circuit.probe_did_not_run();
        circuit.handler_ended(NOW, &key(1), Failed, true);
        assert_eq!(circuit, before);
    }
}
