//! The kit, tried on the reference backend.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod catalogue;
mod checker;
mod dishonest;
/// The stories, which the kit itself is built without.
#[allow(dead_code, unreachable_pub, unused_imports)] // the page shows what is not asked about here
#[path = "../../saboteur/museum/mod.rs"]
mod exhibition;
mod fixture;
mod histories;
mod hooks;
mod museum;
mod outcomes;
mod proxy;
mod report;
mod rng;
mod simulated;
mod sweep;
mod timeline;

use dlock_conformance::{Detection, Rule, rules};
