//! [`Dice`]: the random numbers of a simulated world, from its seed.

use std::time::Duration;

#[derive(Debug)]
pub struct Dice(fastrand::Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.0.f64() < probability
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end.max(1))
    }

    /// Returns a duration between two, to the millisecond.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let (least, most) = (millis(least), millis(most));
        Duration::from_millis(self.0.u64(least..=most.max(least)))
    }

    /// Returns a duration up to `most`, where short ones are as likely as long ones at each scale.
    pub fn scaled(&mut self, most: Duration) -> Duration {
        let exponent = self.0.f64() * (millis(most).max(1) as f64).ln();
        Duration::from_millis(exponent.exp() as u64).min(most)
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
