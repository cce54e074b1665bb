//! Child processes of the kit: what they do, and that nothing is left of them. A program of its own, because
//! they are it again.
//!
//! Its store is a part of each process, so nothing here is said of locks between processes; the rules with
//! access C do that.

use std::process::ExitCode;

#[cfg(unix)]
#[path = "agent/trials.rs"]
mod trials;

#[cfg(unix)]
fn main() -> ExitCode {
    trials::main()
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
