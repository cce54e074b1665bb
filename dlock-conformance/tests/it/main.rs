//! The kit, tried on the reference backend.

mod catalogue;
mod histories;
mod outcomes;
mod simulated;
