//! Integration tests of the core, in one binary.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod runtimes;
