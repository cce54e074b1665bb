//! Integration tests of the facade, in one binary.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
mod connect;
#[cfg(all(
    feature = "sqlite",
    any(feature = "tokio", feature = "smol", feature = "async-std")
))]
mod quorum;
#[cfg(all(
    feature = "tokio",
    feature = "sqlite",
    feature = "redis",
    feature = "postgres",
    feature = "mysql"
))]
mod same;
mod surface;
