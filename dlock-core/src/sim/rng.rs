//! The one source of chance in a simulated run.

use std::ops::Range;
use std::time::Duration;

/// A small seeded generator (SplitMix64). Good enough to choose schedules and faults, and the same on every
/// machine.
#[derive(Clone, Debug)]
pub struct SimRng(u64);

impl SimRng {
    /// The generator of that seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator that depends on this one's state and on the label. This one moves on by one draw.
    pub fn fork(&mut self, label: &str) -> Self {
        let mut state = self.next_u64();
        for byte in label.bytes() {
            state = mix(state ^ u64::from(byte));
        }
        Self(state)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; zero if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the multiply-shift is below 2^-32 for every bound that a simulation uses.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with that probability, from 0.0 to 1.0.
    pub fn chance(&mut self, probability: f64) -> bool {
        // Draws even for 0.0 and 1.0, so that changing a probability does not shift every later decision.
        let draw = (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        draw < probability
    }

    /// A duration in that range; its start if the range is empty.
    pub fn duration(&mut self, range: Range<Duration>) -> Duration {
        let width = u64::try_from(range.end.saturating_sub(range.start).as_nanos()).unwrap_or(u64::MAX);
        range.start + Duration::from_nanos(self.below(width))
    }

    /// Fills the buffer.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

/// A bijection that spreads each bit of the input over the output.
pub(super) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
