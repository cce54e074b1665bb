//! How much is measured, and what the command line says of it.

use std::fmt;
use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds in which the programs that are compared take turns.
    pub rounds: usize,
    /// Milliseconds of each.
    pub millis: u64,
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds of {} ms", self.rounds, self.millis)
    }
}

impl Effort {
    const FULL: Self = Self {
        rounds: 9,
        millis: 400,
    };
    const QUICK: Self = Self {
        rounds: 3,
        millis: 150,
    };

    /// What words like `[quick] [PART...]` ask for: how much, and which parts; all of them where none is
    /// named.
    ///
    /// # Errors
    /// If a word is no part, with the parts that there are.
    pub fn of(mut words: Vec<String>, parts: &[&str]) -> Result<(Self, Vec<String>), String> {
        let before = words.len();
        words.retain(|word| word != "quick");
        let effort = if words.len() < before {
            Self::QUICK
        } else {
            Self::FULL
        };
        if let Some(unknown) = words.iter().find(|word| !parts.contains(&word.as_str())) {
            return Err(format!("there is no part {unknown}; parts: {}", parts.join(", ")));
        }
        if words.is_empty() {
            words = parts.iter().map(ToString::to_string).collect();
        }
        Ok((effort, words))
    }

    /// Multiplies the length of a round.
    pub fn times(self, n: u64) -> Duration {
        Duration::from_millis(self.millis * n)
    }
}
