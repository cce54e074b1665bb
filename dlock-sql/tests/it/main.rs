//! The backends against the contract of the SPI, each against a real database.

#![allow(missing_docs, clippy::unwrap_used)]

#[cfg(feature = "sqlite")]
mod sqlite;
