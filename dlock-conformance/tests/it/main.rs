//! The kit, tried on the reference backend.

mod catalogue;
mod dishonest;
mod histories;
mod outcomes;
mod simulated;
