//! Integration tests of the core, in one binary.

mod runtimes;
