//! Integration tests of the core, in one binary.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
mod blocking;
mod combinators;
#[cfg(feature = "sim")]
mod engine;
<<<<<<< HEAD
#[cfg(all(feature = "sim", feature = "tracing", feature = "metrics"))]
mod observe;
=======
#[cfg(feature = "sim")]
mod races;
>>>>>>> 985fdac (Engine: twelve interleavings mended, each with a test that plays it out)
mod runtimes;
#[cfg(feature = "sim")]
mod simulation;
