//! Modes, as they are recorded.

use std::num::NonZeroU32;

use dlock_core::Mode;
use serde::{Deserialize, Serialize};

/// A mode, as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeTag {
    /// Alone.
    Exclusive,
    /// With any number of readers.
    Reader,
    /// One of that many permits.
    Permit(u32),
}

impl From<Mode> for ModeTag {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shared { limit: None } => Self::Reader,
            Mode::Shared { limit: Some(n) } => Self::Permit(n.get()),
            // A mode that the kit does not know yet is held to the strictest rule.
            _ => Self::Exclusive,
        }
    }
}

impl From<ModeTag> for Mode {
    fn from(tag: ModeTag) -> Self {
        match tag {
            ModeTag::Exclusive => Self::Exclusive,
            ModeTag::Reader => Self::READER,
            ModeTag::Permit(n) => Self::permit(NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN)),
        }
    }
}

impl ModeTag {
    /// Whether holders in these two modes may overlap, count aside.
    pub fn shares_with(self, other: Self) -> bool {
        self == other && self != Self::Exclusive
    }

    /// How many holders at once.
    pub fn limit(self) -> usize {
        match self {
            Self::Exclusive => 1,
            Self::Reader => usize::MAX,
            Self::Permit(n) => n as usize,
        }
    }
}
