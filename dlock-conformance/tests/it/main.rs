//! The kit, tried on the reference backend.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod catalogue;
mod certificates;
mod checker;
mod children;
mod colliding;
mod dishonest;
mod fixture;
mod foreign;
mod histories;
mod hooks;
mod museum;
mod outcomes;
mod page;
mod proxy;
mod report;
mod rng;
mod simulated;
#[cfg(unix)]
mod stalls;
mod sweep;
mod timeline;
