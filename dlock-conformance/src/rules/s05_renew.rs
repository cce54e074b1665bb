//! §5 Renew and auto-renew.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
