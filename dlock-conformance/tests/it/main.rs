//! The kit, tried on the reference backend.

mod catalogue;
mod dishonest;
mod histories;
mod hooks;
mod outcomes;
mod simulated;
