//! Integration tests of the core, in one binary.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

#[cfg(feature = "sim")]
mod asked;
#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
mod blocking;
#[cfg(feature = "sim")]
mod claims;
mod combinators;
#[cfg(feature = "sim")]
mod conversions;
#[cfg(feature = "sim")]
mod election;
#[cfg(feature = "sim")]
mod engine;
#[cfg(feature = "sim")]
mod given_back;
#[cfg(feature = "sim")]
mod kept;
#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
mod listing;
#[cfg(feature = "sim")]
mod looks;
#[cfg(feature = "sim")]
mod multi;
#[cfg(feature = "sim")]
mod polled;
#[cfg(feature = "sim")]
mod quorum;
#[cfg(feature = "sim")]
mod races;
mod runtimes;
#[cfg(feature = "sim")]
mod scripted;
#[cfg(feature = "sim")]
mod shared_holds;
#[cfg(feature = "sim")]
mod shut_down;
#[cfg(feature = "sim")]
mod signals;
#[cfg(feature = "sim")]
mod simulation;
#[cfg(feature = "sim")]
mod sizes;
#[cfg(feature = "sim")]
mod twisted;
mod url;
mod vocabulary;
#[cfg(feature = "sim")]
mod wait_limits;
#[cfg(feature = "sim")]
mod world;
