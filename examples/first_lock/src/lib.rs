//! The lock that everybody writes, and what becomes of it: one module for each step of docs/certify.md.

pub mod step_1;
pub mod step_2;
pub mod step_3;
pub mod step_4;
pub mod step_5;
pub mod step_6;
