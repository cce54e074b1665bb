//! §12 Watch.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
