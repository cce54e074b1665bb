//! The lease strategy, against real servers. What holds for all of them is written once, in `contract`.

mod contract;
#[cfg(feature = "postgres")]
mod postgres;
mod site;
