//! §15 Lost replies, retries, stale messages.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
