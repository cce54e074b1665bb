//! The kit, tried on the reference backend.

mod simulated;
