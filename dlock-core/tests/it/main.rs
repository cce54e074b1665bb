//! Integration tests of the core, in one binary.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod combinators;
#[cfg(feature = "sim")]
mod engine;
mod runtimes;
#[cfg(feature = "sim")]
mod simulation;
