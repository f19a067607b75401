//! Which suspect of a batch starts next, and until when others start: the rules of the library's batch, as the model sees
//! them.

use std::time::Duration;

/// The messages of a batch, as far as they decide which suspect starts next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Messages of the batch that run or can still start, without the waiting suspects.
    pub active: usize,
    /// For each waiting suspect, its attempts alone and its place in the batch.
    pub suspects: Vec<(u64, usize)>,
}

/// Returns the place of the suspect that may start now.
///
/// No suspect starts while another message of the batch is active, and a running suspect is active too. Then
/// the suspect with the fewest attempts alone starts, because it is the least likely to end the process.
pub fn next_suspect(waiting: &Waiting) -> Option<usize> {
    let next = waiting.suspects.iter().min();
    let (_, place) = next.filter(|_| waiting.active == 0)?;
    Some(*place)
}

/// Returns whether a message that is not a suspect may still start. While a suspect waits, it may do so only
/// in the first half of the batch's time.
pub fn may_start_beside(suspects_wait: bool, time: Duration, time_left: Duration) -> bool {
    !suspects_wait || time_left >= time / 2
}
