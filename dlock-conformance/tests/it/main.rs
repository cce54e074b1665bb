//! The kit, tried on the reference backend.

mod catalogue;
mod simulated;
