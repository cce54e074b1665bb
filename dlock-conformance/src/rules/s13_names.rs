//! §13 Names and limits.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
