//! §14 Independence and client concurrency.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
