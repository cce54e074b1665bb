//! §8 Waking, fairness, priority.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
