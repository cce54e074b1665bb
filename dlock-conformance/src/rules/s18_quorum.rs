//! §18 Quorum.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
