//! §6 Loss signal.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
