//! [`Circuit`]: decides when a process stops calling a system that is down, and finds out when that system
//! works again.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use super::{Key, Pause, Timestamp};
use crate::flawed::flawed;

/// How many handlers must fail in a row to open the circuit.
pub const FAILURES_TO_OPEN: usize = 20;
/// How many different keys those handlers must have. With fewer keys, the messages themselves may be bad.
pub(crate) const KEYS_TO_OPEN: usize = 10;
/// How long the circuit stays open before the first probe. Each probe doubles the wait.
pub const FIRST_WAIT: Duration = Duration::from_secs(5);
/// The longest time between two probes.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// While the circuit is open, a message still runs at its first receive, and whenever its receive count is divisible
/// by this number.
const RUNS_AT_EACH: u32 = 10;

/// The circuit breaker of a process. `Circuit` does no I/O and reads no clock.
///
/// While it is open, the first message that asks in each interval runs as a probe. The next interval begins when
/// the probe begins, so nobody waits for its end. Any handler that succeeds or fails permanently closes the
/// circuit.
///
/// The circuit only saves calls to a system that is down. Our promises do not depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Circuit {
    /// Messages run.
    Closed {
        /// Keys of the latest calls, which all failed.
        failed: VecDeque<Key>,
    },
    /// Most messages must wait.
    Open {
        /// No probe starts before this pause ends.
        pause: Pause,
        /// True if the called system asked for the pause. Until the pause ends, first receives don't run either, and a
        /// success doesn't close the circuit.
        is_asked: bool,
    },
}

/// How a call of the handler ended, as the circuit sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// The handler succeeded or failed permanently, so the called system works.
    Answered,
    /// The handler returned a retryable failure or a failure without an effect, or was cut off.
    Failed,
    /// The handler panicked, which says nothing about the called system.
    Panicked,
    /// The handler failed because the called system refuses all requests for this long.
    Refused(Duration),
}

/// A change of the circuit that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitChange {
    /// The circuit opened.
    Opened,
    /// The called system refuses all requests for this long.
    Refused(Duration),
    /// The called system works again.
    Closed,
}

impl Default for Circuit {
    /// Creates a closed circuit.
    fn default() -> Self {
        Self::Closed {
            failed: VecDeque::new(),
        }
    }
}

/// Returns whether a message runs even while the circuit is open. Such a message may call a different system than the
/// messages that failed.
#[must_use]
pub const fn runs_while_open(receive_count: u32) -> bool {
    receive_count <= 1 || receive_count.is_multiple_of(RUNS_AT_EACH)
}

impl Circuit {
    /// Decides whether a message may be claimed.
    ///
    /// # Errors
    ///
    /// Returns the time of the next probe if the message must not run.
    pub fn admit(&mut self, now: Timestamp, receive_count: u32) -> Result<(), Timestamp> {
        match self {
            Self::Open { pause, is_asked } if *is_asked || !runs_while_open(receive_count) => {
                if pause.is_on(now) {
                    return Err(pause.end);
                }
                *pause = Pause::new(now, LONGEST_WAIT.min(pause.length * 2));
                *is_asked = false;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records how a call of the handler ended.
    pub fn called(&mut self, now: Timestamp, key: &Key, called: Called) -> Option<CircuitChange> {
        let refused_until = self.refused_until(now);
        match (&mut *self, called) {
            (_, Called::Refused(wait)) => {
                if refused_until.is_some_and(|until| until >= now + wait) {
                    return None;
                }
                let pause = Pause::new(now, wait);
                *self = Self::Open {
                    pause,
                    is_asked: true,
                };
                Some(CircuitChange::Refused(wait))
            }
            // The call began before the system refused.
            _ if refused_until.is_some() => None,
            (Self::Closed { failed }, Called::Failed) => {
                failed.push_back(key.clone());
                if failed.len() > FAILURES_TO_OPEN {
                    failed.pop_front();
                }
                let keys: BTreeSet<_> = failed.iter().map(Key::as_str).collect();
                if failed.len() < FAILURES_TO_OPEN || keys.len() < KEYS_TO_OPEN {
                    return None;
                }
                let pause = Pause::new(now, FIRST_WAIT);
                *self = Self::Open {
                    pause,
                    is_asked: false,
                };
                Some(CircuitChange::Opened)
            }
            (Self::Closed { failed }, _) => {
                failed.clear();
                None
            }
            (Self::Open { .. }, Called::Answered)
                if !flawed("a success does not close the circuit") =>
            {
                *self = Self::default();
                Some(CircuitChange::Closed)
            }
            (Self::Open { .. }, _) => None,
        }
    }

    /// Returns the time until which the called system refuses all requests, or `None` if it doesn't refuse them now.
    fn refused_until(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Open {
                pause,
                is_asked: true,
            } if pause.is_on(now) => Some(pause.end),
            _ => None,
        }
    }

    /// Returns whether the circuit is open.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::{Called::*, *};
    use crate::protocol::Namespace;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn key(name: usize) -> Key {
        Key::new(&Namespace::new("ns").unwrap(), [name.to_string().as_str()]).unwrap()
    }

    /// Records the end of this many handlers at `NOW`, each with a key of its own.
    fn end(circuit: &mut Circuit, handlers: usize, end: Called) -> Option<CircuitChange> {
        let ends = (0..handlers).map(|n| circuit.called(NOW, &key(n), end));
        ends.last().flatten()
    }

    fn open() -> Circuit {
        let mut circuit = Circuit::default();
        let opened = end(&mut circuit, FAILURES_TO_OPEN, Failed);
        assert_eq!(opened, Some(CircuitChange::Opened));
        circuit
    }

    #[test]
    fn twenty_failures_in_a_row_open_the_circuit() {
        let mut circuit = Circuit::default();
        assert_eq!(end(&mut circuit, FAILURES_TO_OPEN - 1, Failed), None);
        assert_eq!(circuit.admit(NOW, 2), Ok(()));
        end(&mut circuit, 1, Failed);
        assert_eq!(circuit.admit(NOW, 2), Err(NOW + FIRST_WAIT));
    }

    #[test]
    fn other_end_starts_the_count_again() {
        for other in [Answered, Panicked] {
            let mut circuit = Circuit::default();
            end(&mut circuit, FAILURES_TO_OPEN - 1, Failed);
            end(&mut circuit, 1, other);
            end(&mut circuit, FAILURES_TO_OPEN - 1, Failed);
            assert!(!circuit.is_open(), "{other:?}");
            end(&mut circuit, 1, Failed);
            assert!(circuit.is_open(), "{other:?}");
        }
    }

    #[test]
    fn failures_of_nine_keys_do_not_open_the_circuit() {
        let mut circuit = Circuit::default();
        for n in 0..10 * FAILURES_TO_OPEN {
            circuit.called(NOW, &key(n % (KEYS_TO_OPEN - 1)), Failed);
        }
        assert!(!circuit.is_open());
        // The tenth key opens it.
        circuit.called(NOW, &key(KEYS_TO_OPEN), Failed);
        assert!(circuit.is_open());
    }

    #[test]
    fn first_and_tenth_receive_run_while_open() {
        let runs = |count| open().admit(NOW, count).is_ok();
        let running: Vec<_> = (0..=30).filter(|count| runs(*count)).collect();
        assert_eq!(running, [0, 1, 10, 20, 30]);
    }

    #[test]
    fn each_probe_doubles_the_interval_up_to_a_minute() {
        let mut circuit = open();
        let mut at = NOW;
        for wait in [5, 10, 20, 40, 60, 60].map(Duration::from_secs) {
            // Messages that run anyway aren't probes.
            assert_eq!(circuit.admit(at + wait, 10), Ok(()));
            let just_before = Timestamp::from_millis((at + wait).as_millis() - 1);
            assert_eq!(circuit.admit(just_before, 2), Err(at + wait));
            at = at + wait;
            assert_eq!(circuit.admit(at, 2), Ok(()));
            assert_eq!(circuit.called(at, &key(0), Failed), None);
        }
    }

    #[test]
    fn system_that_refuses_everybody_is_left_alone() {
        const MINUTE: Duration = Duration::from_secs(60);
        let mut circuit = Circuit::default();
        for (wait, change) in [
            (MINUTE, Some(CircuitChange::Refused(MINUTE))),
            // A call that began earlier asks for a shorter pause.
            (MINUTE / 2, None),
            (2 * MINUTE, Some(CircuitChange::Refused(2 * MINUTE))),
        ] {
            assert_eq!(circuit.called(NOW, &key(0), Refused(wait)), change);
        }
        for end in [Answered, Failed, Panicked] {
            assert_eq!(circuit.called(NOW, &key(1), end), None);
        }
        let end = NOW + 2 * MINUTE;
        for receive in [1, 2, 10] {
            assert_eq!(circuit.admit(NOW, receive), Err(end));
        }
        // After that, a probe and first receives run.
        assert_eq!(circuit.admit(end, 2), Ok(()));
        assert_eq!(circuit.admit(end, 1), Ok(()));
        assert_eq!(circuit.admit(end, 2), Err(end + MINUTE));
        let closed = circuit.called(end, &key(0), Answered);
        assert_eq!(closed, Some(CircuitChange::Closed));
    }

    #[test]
    fn clock_that_steps_back_lets_a_probe_run() {
        let mut circuit = open();
        let before = Timestamp::from_millis(NOW.as_millis() - 1);
        assert_eq!(circuit.admit(before, 2), Ok(()));
        assert!(circuit.admit(before, 2).is_err(), "one probe");
    }

    #[test]
    fn answer_of_any_handler_closes_the_circuit() {
        let mut circuit = open();
        assert_eq!(
            circuit.called(NOW, &key(0), Panicked),
            None,
            "a panic says nothing"
        );
        let closed = circuit.called(NOW, &key(0), Answered);
        assert_eq!(closed, Some(CircuitChange::Closed));
        assert_eq!(circuit.admit(NOW, 2), Ok(()));
        // It needs twenty failures to open again.
        assert_eq!(end(&mut circuit, FAILURES_TO_OPEN - 1, Failed), None);
    }
}
