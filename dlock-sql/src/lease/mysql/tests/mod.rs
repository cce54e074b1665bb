//! Tests of what has no public name.

mod migration;
mod stopped;
