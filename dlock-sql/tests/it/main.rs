//! The backends against the contract of the SPI, each against a real database.

#![allow(missing_docs, clippy::unwrap_used)]

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod direct;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod docs;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod lease;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod session;
#[cfg(feature = "sqlite")]
mod sqlite;
