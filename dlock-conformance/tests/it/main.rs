//! The kit, tried on the reference backend.

mod catalogue;
mod checker;
mod dishonest;
mod fixture;
mod histories;
mod hooks;
mod museum;
mod outcomes;
mod proxy;
#[cfg(feature = "remote")]
mod remote;
mod report;
mod rng;
mod simulated;
mod sweep;
mod timeline;
