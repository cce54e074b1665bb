//! §17 Errors and contract.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
