//! §2 Acquire: try, wait, deadline.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
