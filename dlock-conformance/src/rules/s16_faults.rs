//! §16 Connection, session, process, server, clock.

use crate::rule::Rule;

pub(super) static RULES: &[Rule] = &[];
