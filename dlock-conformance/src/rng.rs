//! A small seeded generator: the same seed, the same run.

use std::time::Duration;

use crate::nanos::nanos;

/// SplitMix64 (Steele, Lea, Flood 2014): every seed is good, the state is one word.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of that seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// An index below `n`; 0 if `n` is 0.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// `true` once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A duration from `least` up to `most`.
    pub fn duration(&mut self, least: Duration, most: Duration) -> Duration {
        let span = nanos(most.saturating_sub(least));
        least + Duration::from_nanos(self.below(span))
    }

    /// Another generator that shares nothing with this one.
    pub fn fork(&mut self) -> Self {
        Self(self.bits())
    }

    /// Shuffles.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }
}
