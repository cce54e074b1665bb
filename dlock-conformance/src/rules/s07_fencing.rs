//! §7 Fencing.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
