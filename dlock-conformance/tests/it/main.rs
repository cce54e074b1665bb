//! The kit, tried on the reference backend.

mod catalogue;
mod outcomes;
mod simulated;
