//! §10 Re-entrancy.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
