//! §11 Shared and exclusive.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
