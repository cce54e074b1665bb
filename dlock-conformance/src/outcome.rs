//! The outcome of a rule.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The outcome of a rule. Only `Pass` is a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It held, and the run has the required evidence.
    Pass,
    /// It is broken.
    Fail {
        /// What was seen.
        seen: String,
    },
    /// Its needs are not claimed (and are refused, as the rules of section 17 check).
    Unsupported {
        /// What is not claimed.
        needs: String,
    },
    /// It could not run here.
    NotRun {
        /// Why.
        reason: String,
    },
    /// It is known to fail, and the harness waives it.
    Waived {
        /// Why.
        reason: String,
        /// Where it is discussed.
        link: String,
    },
    /// The run could not decide.
    Inconclusive {
        /// Why.
        why: String,
    },
    /// The kit or the harness failed, for example a harness that could connect before and no longer can.
    Error {
        /// What happened.
        what: String,
    },
}

/// The outcomes without their texts, in order of dominance: the first that occurs is the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // described at `Outcome`
pub enum Kind {
    Error,
    Fail,
    Inconclusive,
    NotRun,
    Waived,
    Pass,
    Unsupported,
}

impl Kind {
    /// All of them, in order of dominance.
    pub const ALL: [Self; 7] = [
        Self::Error,
        Self::Fail,
        Self::Inconclusive,
        Self::NotRun,
        Self::Waived,
        Self::Pass,
        Self::Unsupported,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Fail => "fail",
            Self::Inconclusive => "inconclusive",
            Self::NotRun => "not run",
            Self::Waived => "waived",
            Self::Pass => "pass",
            Self::Unsupported => "unsupported",
        })
    }
}

impl Outcome {
    /// Which one it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Pass => Kind::Pass,
            Self::Fail { .. } => Kind::Fail,
            Self::Unsupported { .. } => Kind::Unsupported,
            Self::NotRun { .. } => Kind::NotRun,
            Self::Waived { .. } => Kind::Waived,
            Self::Inconclusive { .. } => Kind::Inconclusive,
            Self::Error { .. } => Kind::Error,
        }
    }

    /// What was seen, or why nothing was; empty for a pass.
    pub fn text(&self) -> &str {
        match self {
            Self::Pass => "",
            Self::Fail { seen } => seen,
            Self::Unsupported { needs } => needs,
            Self::NotRun { reason } | Self::Waived { reason, .. } => reason,
            Self::Inconclusive { why } => why,
            Self::Error { what } => what,
        }
    }

    /// Whether it forbids a green exit.
    pub fn is_red(&self) -> bool {
        matches!(self.kind(), Kind::Error | Kind::Fail | Kind::Inconclusive)
    }
}
