//! Whether a lease is held, and how it ended.

use crate::error::LossReason;

/// Whether a lease is held, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// It is held, as far as is known.
    Held,
    /// A release was begun; its outcome is not known yet. Nothing renews it any more.
    Releasing,
    Released,
    Lost(LossReason),
}

impl LeaseState {
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Held => 0,
            Self::Releasing => 1,
            Self::Released => 2,
            Self::Lost(LossReason::Expired) => 3,
            Self::Lost(LossReason::Refused) => 4,
            Self::Lost(LossReason::SessionLost) => 5,
            Self::Lost(LossReason::MaxHold) => 6,
            Self::Lost(LossReason::Closed) => 7,
            Self::Lost(LossReason::Released) => 8,
        }
    }

    pub(super) const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Held,
            1 => Self::Releasing,
            2 => Self::Released,
            3 => Self::Lost(LossReason::Expired),
            4 => Self::Lost(LossReason::Refused),
            5 => Self::Lost(LossReason::SessionLost),
            6 => Self::Lost(LossReason::MaxHold),
            7 => Self::Lost(LossReason::Closed),
            _ => Self::Lost(LossReason::Released),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_survives_its_encoding() {
        for code in 0..=8 {
            assert_eq!(LeaseState::from_code(code).code(), code);
        }
    }
}
