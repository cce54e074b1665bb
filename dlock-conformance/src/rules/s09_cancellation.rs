//! §9 Cancellation and the async contract.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
