//! What needs a process of its own: child processes of the kit, the program that is made of a harness, and
//! threads that are counted.
//!
//! Of the children: what they do, and that nothing is left of them. They are this program again. Their store
//! is a part of each process, so nothing here is said of locks between processes; the rules with access C do
//! that.

use std::process::ExitCode;

#[cfg(unix)]
#[path = "it/dishonest/agreeing.rs"]
#[expect(dead_code, reason = "the other tests use all of it")]
mod agreeing;
#[cfg(unix)]
#[path = "agent/program.rs"]
mod program;
#[cfg(target_os = "linux")]
#[path = "agent/threads.rs"]
mod threads;
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
