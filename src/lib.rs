#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod backends;
pub mod blocking;
mod connect;

pub use connect::{Connect, connect};
pub use dlock_core::*;
#[cfg(feature = "sqlite")]
pub use dlock_sql::sqlite;
