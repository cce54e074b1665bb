//! §1 Mutual exclusion and ownership.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
